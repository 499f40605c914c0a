// SPDX-License-Identifier: Apache-2.0
#include "window/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "core/assert.h"
#include "core/file.h"
#include "core/json.h"
#include "routepack/error.h"

namespace routepack {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxValues = 50'000;

struct Dtype {
  std::string_view name;
  std::int64_t bits;
};

constexpr std::array kDtypes = {
    Dtype{"BOOL", 8}, Dtype{"F4", 4},   Dtype{"F6_E2M3", 6}, Dtype{"F6_E3M2", 6}, Dtype{"U8", 8},
    Dtype{"I8", 8},   Dtype{"U16", 16}, Dtype{"F8_E5M2", 8}, Dtype{"F8_E4M3", 8}, Dtype{"F8_E8M0", 8},
    Dtype{"I16", 16}, Dtype{"F16", 16}, Dtype{"BF16", 16},   Dtype{"I32", 32},    Dtype{"U32", 32},
    Dtype{"F32", 32}, Dtype{"C64", 64}, Dtype{"I64", 64},    Dtype{"U64", 64},    Dtype{"F64", 64},
};

std::optional<std::int64_t> bits_of(std::string_view dtype) {
  const auto* found = std::ranges::find(kDtypes, dtype, &Dtype::name);
  if (found == kDtypes.end()) return std::nullopt;
  return found->bits;
}

/// Bytes of a tensor, nothing when the product overflows or the items do not fill whole bytes.
std::optional<std::int64_t> bytes_of(const std::vector<std::int64_t>& shape, std::int64_t bits) {
  // A zero anywhere makes the product zero, whatever stands beside it.
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  std::int64_t product = bits;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(product, extent, &product)) return std::nullopt;
  }
  if (product % 8 != 0) return std::nullopt;
  return product / 8;
}

/// The text of the header, after every check that needs no JSON.
std::string_view header_text(std::span<const std::byte> file, const std::string& where) {
  const auto fail = [&](const std::string& what) {
    const bool brace = !file.empty() && file[0] == std::byte{'{'};
    throw FormatError(
        fmt::format("{}: header length: {}{}", where, what,
                    brace ? "; it looks like JSON (a window manifest or a plan), wanted a safetensors window" : ""));
  };
  if (file.size() < kLengthBytes) {
    fail(fmt::format("found a file of {} bytes, wanted at least {}", file.size(), kLengthBytes));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) fail(fmt::format("found {}, wanted at most {}", length, kMaxHeaderBytes));
  if (length > file.size() - kLengthBytes) {
    fail(fmt::format("found {}, wanted at most {}, the bytes that follow it", length, file.size() - kLengthBytes));
  }
  const auto bytes = file.subspan(kLengthBytes, static_cast<std::size_t>(length));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.empty() || text.front() != '{') {
    throw FormatError(
        fmt::format("{}: header: found {}, wanted a JSON object that starts with '{{'", where,
                    text.empty() ? "nothing" : fmt::format("byte 0x{:02x}", std::to_integer<int>(bytes[0]))));
  }
  // The JSON library takes a zero byte for the end of its input and would not look behind it.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos) {
    throw FormatError(fmt::format("{}: header: invalid JSON at byte {}: found a zero byte", where, zero + 1));
  }
  return text;
}

/// A parsed value takes far more memory than its text, and looking up keys is linear: bound both before parsing.
void check_value_count(std::string_view text, const std::string& where) {
  std::size_t values = 0;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == ',' || c == '[' || c == '{') {
      ++values;
    }
  }
  if (values > kMaxValues) {
    throw FormatError(fmt::format("{}: header: found {} JSON values, wanted at most {}", where, values, kMaxValues));
  }
}

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::string_view name;
};

/// One tensor entry; its range is returned and not yet compared with the others.
Range read_entry(std::string_view name, const Json& entry, std::int64_t data_size, const std::string& where,
                 TensorView& tensor) {
  const std::string at = fmt::format("{}: tensor {}", where, printable_name(name));
  for (const auto& item : json_object(entry, at).items()) {
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets") {
      throw FormatError(
          fmt::format("{}: found key {}, wanted dtype, shape and data_offsets only", at, printable_name(item.key())));
    }
  }
  tensor.dtype = json_string(json_member(entry, "dtype", at), at + ": dtype");
  const auto bits = bits_of(tensor.dtype);
  if (!bits) {
    throw FormatError(fmt::format("{}: dtype: found {}, wanted a safetensors dtype", at, printable_name(tensor.dtype)));
  }
  for (const Json& extent : json_array(json_member(entry, "shape", at), at + ": shape")) {
    tensor.shape.push_back(json_integer(extent, fmt::format("{}: shape[{}]", at, tensor.shape.size()), 0,
                                        std::numeric_limits<std::int64_t>::max()));
  }
  const Json& offsets = json_array(json_member(entry, "data_offsets", at), at + ": data_offsets");
  if (offsets.size() != 2) {
    throw FormatError(fmt::format("{}: data_offsets: found {} numbers, wanted 2", at, offsets.size()));
  }
  Range range{.name = name};
  range.end = json_integer(offsets[1], at + ": data_offsets[1]", 0, data_size);
  range.begin = json_integer(offsets[0], at + ": data_offsets[0]", 0, range.end);

  const auto wanted = bytes_of(tensor.shape, *bits);
  if (!wanted || *wanted != range.end - range.begin) {
    throw FormatError(fmt::format("{}: data_offsets: found [{}, {}], {} bytes, wanted {} for {} [{}]", at, range.begin,
                                  range.end, range.end - range.begin,
                                  wanted ? std::to_string(*wanted) : "a size that no file has", tensor.dtype,
                                  fmt::join(tensor.shape, ", ")));
  }
  return range;
}

void check_ranges(std::vector<Range>& ranges, std::int64_t data_size, const std::string& where) {
  std::ranges::sort(ranges, [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::int64_t covered = 0;
  std::string_view before;
  for (const Range& range : ranges) {
    if (range.begin != covered) {
      const bool overlaps = range.begin < covered;
      throw FormatError(
          fmt::format("{}: tensor {}: data_offsets: found [{}, {}], which {}, wanted a range that begins at {}", where,
                      printable_name(range.name), range.begin, range.end,
                      overlaps ? fmt::format("overlaps tensor {}", printable_name(before))
                               : fmt::format("leaves a hole of {} bytes before it", range.begin - covered),
                      covered));
    }
    covered = range.end;
    before = range.name;
  }
  if (covered != data_size) {
    throw FormatError(fmt::format("{}: tensor data: found {} bytes, wanted {}, where the last tensor ends", where,
                                  data_size, covered));
  }
}

Metadata read_metadata(const Json& entry, const std::string& where) {
  Metadata metadata;
  const std::string at = where + ": __metadata__";
  for (const auto& item : json_object(entry, at).items()) {
    metadata.emplace_back(item.key(),
                          json_string(item.value(), fmt::format("{}: key {}", at, printable_name(item.key()))));
  }
  return metadata;
}

std::size_t size_of(const TensorToWrite& tensor) {
  const auto bits = bits_of(tensor.dtype);
  ROUTEPACK_ASSERT(bits.has_value(), "tensor " + tensor.name + " has a type that the format does not know");
  const auto bytes = bytes_of(tensor.shape, *bits);
  ROUTEPACK_ASSERT(bytes && (tensor.stream || *bytes == static_cast<std::int64_t>(tensor.bytes.size())),
                   "tensor " + tensor.name + " has another size than its shape says");
  return static_cast<std::size_t>(*bytes);
}

void write_tensor(const TensorToWrite& tensor, const WriteSink& sink) {
  if (!tensor.stream) return sink(tensor.bytes);
  std::size_t written = 0;
  tensor.stream([&](std::span<const std::byte> bytes) {
    written += bytes.size();
    sink(bytes);
  });
  ROUTEPACK_ASSERT(written == size_of(tensor), "tensor " + tensor.name + " was streamed in another size");
}

std::string header_to_write(const Metadata& metadata, const std::vector<TensorToWrite>& tensors) {
  Json header = Json::object();
  if (!metadata.empty()) {
    Json& entry = header["__metadata__"] = Json::object();
    for (const auto& [key, value] : metadata) entry[key] = value;
  }
  std::size_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    const std::size_t end = offset + size_of(tensor);
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

std::string printable_name(std::string_view name) {
  constexpr std::size_t kShown = 60;
  const auto harmless = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  };
  if (!name.empty() && name.size() <= kShown && std::ranges::all_of(name, harmless)) return std::string(name);
  const bool cut = name.size() > kShown;
  const Json shown = std::string(name.substr(0, kShown)) + (cut ? "..." : "");
  return shown.dump(-1, ' ', true, Json::error_handler_t::replace);
}

Safetensors parse_safetensors(std::span<const std::byte> file, const std::string& where) {
  const std::string_view text = header_text(file, where);
  check_value_count(text, where);
  const Json header = parse_json(text, where + ": header");

  const auto data = file.subspan(kLengthBytes + text.size());
  const auto data_size = static_cast<std::int64_t>(data.size());
  Safetensors result;
  std::vector<Range> ranges;
  for (const auto& item : header.items()) {
    if (item.key() == "__metadata__") {
      result.metadata = read_metadata(item.value(), where);
      continue;
    }
    const auto place = result.tensors.try_emplace(item.key()).first;
    ranges.push_back(read_entry(place->first, item.value(), data_size, where, place->second));
    place->second.bytes = data.subspan(static_cast<std::size_t>(ranges.back().begin),
                                       static_cast<std::size_t>(ranges.back().end - ranges.back().begin));
  }
  check_ranges(ranges, data_size, where);
  return result;
}

void write_safetensors(const std::filesystem::path& path, const Metadata& metadata,
                       std::vector<TensorToWrite> tensors) {
  // Not std::stable_sort: clang calls its libstdc++ 12 version deprecated.
  std::vector<TensorToWrite> ordered;
  for (const std::int64_t bits : {64, 32, 16, 8, 6, 4}) {
    for (TensorToWrite& tensor : tensors) {
      if (bits_of(tensor.dtype) == bits) ordered.push_back(std::move(tensor));
    }
  }
  std::string header;
  try {
    header = header_to_write(metadata, ordered);
  } catch (const Json::exception&) {
    throw InvalidInput(fmt::format("{}: metadata: found text that is not UTF-8, wanted UTF-8", path.string()));
  }
  write_atomically(path, [&](const WriteSink& sink) {
    const std::uint64_t length = header.size();
    sink(std::as_bytes(std::span(&length, 1)));
    sink(std::as_bytes(std::span(header)));
    for (const TensorToWrite& tensor : ordered) write_tensor(tensor, sink);
  });
}

}  // namespace routepack
