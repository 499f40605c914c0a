// SPDX-License-Identifier: Apache-2.0
// Raw safetensors bytes, well-formed or not, written without the library's own writer.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace routepack::testing {

/// Little-endian bytes of numbers.
template <class T>
std::string raw(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!bytes.empty()) std::memcpy(bytes.data(), std::data(values), bytes.size());
  return bytes;
}

/// Header length, header, data; `stated` instead of the header's true length when given.
inline std::string safetensors_bytes(std::string_view header, std::string_view data,
                                     std::optional<std::uint64_t> stated = std::nullopt) {
  std::string bytes = raw<std::uint64_t>({stated.value_or(header.size())});
  bytes += header;
  bytes += data;
  return bytes;
}

/// A well-formed file whose tensors lie one behind the other in the order they are added, its header unpadded.
class SafetensorsText {
 public:
  SafetensorsText& metadata(std::string_view key, std::string_view value) {
    metadata_ += quoted(key) + ":" + quoted(value) + ",";
    return *this;
  }

  /// `shape` as JSON, "[2, 3]" for instance.
  SafetensorsText& tensor(std::string_view name, std::string_view dtype, std::string_view shape, std::string data) {
    tensors_.push_back({std::string(name), std::string(dtype), std::string(shape), std::move(data)});
    return *this;
  }

  /// Replaces a tensor of that name, or adds it.
  SafetensorsText& replace(std::string_view name, std::string_view dtype, std::string_view shape, std::string data) {
    for (Tensor& old : tensors_) {
      if (old.name != name) continue;
      old = {std::string(name), std::string(dtype), std::string(shape), std::move(data)};
      return *this;
    }
    return tensor(name, dtype, shape, std::move(data));
  }

  SafetensorsText& remove(std::string_view name) {
    std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
    return *this;
  }

  /// `padding` spaces behind the header move the data to another address.
  [[nodiscard]] std::string bytes(std::size_t padding = 0) const {
    std::string header = "{";
    if (!metadata_.empty()) {
      header += quoted("__metadata__") + ":{" + metadata_.substr(0, metadata_.size() - 1) + "},";
    }
    std::string data;
    for (const Tensor& tensor : tensors_) {
      const std::size_t begin = data.size();
      data += tensor.data;
      header += quoted(tensor.name) + ":{\"dtype\":" + quoted(tensor.dtype) + ",\"shape\":" + tensor.shape +
                ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) + "]},";
    }
    if (header.back() == ',') header.pop_back();
    return safetensors_bytes(header + "}" + std::string(padding, ' '), data);
  }

 private:
  struct Tensor {
    std::string name, dtype, shape, data;
  };

  static std::string quoted(std::string_view text) { return '"' + std::string(text) + '"'; }

  std::string metadata_;
  std::vector<Tensor> tensors_;
};

}  // namespace routepack::testing
