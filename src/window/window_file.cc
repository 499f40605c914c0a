// SPDX-License-Identifier: Apache-2.0
#include "window/window_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "core/file.h"
#include "core/json.h"
#include "routepack/error.h"
#include "window/manifest.h"
#include "window/safetensors.h"
#include "window/validate.h"

namespace routepack {
namespace {

constexpr std::string_view kFormat = "routepack.window/1";
constexpr std::string_view kFormatStem = "routepack.window/";
constexpr std::size_t kMaxLayersText = std::size_t{1} << 20;

/// What a loaded window's spans point into.
struct Storage {
  std::shared_ptr<const void> file;
  std::vector<std::unique_ptr<std::byte[]>> copies;
};

class WindowReader {
 public:
  WindowReader(std::span<const std::byte> file, std::shared_ptr<const void> owner, const std::string& where)
      : where_(where), file_(parse_safetensors(file, where)), storage_(std::make_shared<Storage>()) {
    storage_->file = std::move(owner);
  }

  Window read() {
    read_metadata();
    read_counts();
    const std::int64_t n = arrays_.samples;
    const Shape per_sample{n};
    const Shape per_sample_layer{n, arrays_.layers};
    arrays_.lengths = optional<std::int32_t>("lengths", "I32", {per_sample});
    if (arrays_.lengths.empty() && arrays_.kind == WindowKind::Samples) {
      throw FormatError(fmt::format("{}: tensor lengths: missing, wanted I32 [{}]", where_, n));
    }
    arrays_.recorded = optional<std::int32_t>("recorded", "I32", {per_sample, per_sample_layer});
    arrays_.groups = optional<std::int32_t>("groups", "I32", {per_sample});
    arrays_.atomic = optional<std::int32_t>("atomic", "I32", {per_sample});
    arrays_.pad_counts = optional<std::uint32_t>("pad_counts", "U32", {{arrays_.layers, arrays_.experts}});
    arrays_.ids = optional<std::int64_t>("ids", "I64", {per_sample});
    read_layer_numbers();
    return Window(std::move(arrays_), std::move(storage_), where_);
  }

 private:
  using Shape = std::vector<std::int64_t>;

  [[nodiscard]] const std::string* metadata(std::string_view key) const {
    const auto found = std::ranges::find(file_.metadata, key, &Metadata::value_type::first);
    return found == file_.metadata.end() ? nullptr : &found->second;
  }

  [[noreturn]] void wrong_metadata(std::string_view key, const std::string* found, std::string_view wanted) const {
    const std::string shown = found == nullptr ? "nothing" : printable_name(*found);
    throw FormatError(fmt::format("{}: metadata {}: found {}, wanted {}", where_, key, shown, wanted));
  }

  void read_metadata() {
    const std::string* format = metadata("format");
    if (format == nullptr || *format != kFormat) {
      const bool another_major = format != nullptr && format->starts_with(kFormatStem);
      wrong_metadata("format", format,
                     another_major ? fmt::format("{}, the only major version that this program reads", kFormat)
                                   : std::string(kFormat));
    }
    const std::string* top_k = metadata("top_k");
    const std::string digits = top_k == nullptr ? "" : *top_k;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), arrays_.top_k);
    if (digits.empty() || error != std::errc{} || end != digits.data() + digits.size() || arrays_.top_k < 1) {
      wrong_metadata("top_k", top_k, "a positive integer as text");
    }
    if (const std::string* model = metadata("model")) arrays_.model = *model;
    if (const std::string* kind = metadata("kind")) {
      if (*kind == "aggregate") {
        arrays_.kind = WindowKind::Aggregate;
      } else if (*kind != "samples") {
        wrong_metadata("kind", kind, "samples or aggregate");
      }
    }
    for (const auto& item : file_.metadata) {
      if (std::ranges::find(kReservedMetadata, item.first) == kReservedMetadata.end()) arrays_.metadata.push_back(item);
    }
  }

  void read_layer_numbers() {
    const std::string* text = metadata("layers");
    if (text == nullptr) return;
    const std::string wanted = fmt::format("a JSON list of {} integers", arrays_.layers);
    if (text->size() > kMaxLayersText || text->find('\0') != std::string::npos) wrong_metadata("layers", text, wanted);
    const std::string at = where_ + ": metadata layers";
    const Json list = parse_json(*text, at);
    if (json_array(list, at).size() != static_cast<std::size_t>(arrays_.layers)) {
      wrong_metadata("layers", text, wanted);
    }
    for (const Json& number : list) {
      arrays_.layer_numbers.push_back(json_integer(number, fmt::format("{}[{}]", at, arrays_.layer_numbers.size()), 0,
                                                   std::numeric_limits<std::int64_t>::max()));
    }
  }

  void read_counts() {
    const TensorView* counts = find("counts");
    if (counts == nullptr) {
      throw FormatError(fmt::format("{}: tensor counts: missing, wanted U16, U32 or I32 [N, L, E]", where_));
    }
    if (counts->dtype != "U16" && counts->dtype != "U32" && counts->dtype != "I32") {
      throw FormatError(
          fmt::format("{}: tensor counts: dtype: found {}, wanted U16, U32 or I32", where_, counts->dtype));
    }
    const auto usable = [](std::int64_t size) { return size >= 1 && size <= std::numeric_limits<std::int32_t>::max(); };
    if (counts->shape.size() != 3 || !std::ranges::all_of(counts->shape, usable)) {
      throw FormatError(fmt::format("{}: tensor counts: shape: found [{}], wanted [N, L, E], each from 1 to {}", where_,
                                    fmt::join(counts->shape, ", "), std::numeric_limits<std::int32_t>::max()));
    }
    arrays_.samples = counts->shape[0];
    arrays_.layers = counts->shape[1];
    arrays_.experts = counts->shape[2];
    if (counts->dtype == "U16") {
      arrays_.counts = view<std::uint16_t>(*counts);
      return;
    }
    const auto values = view<std::uint32_t>(*counts);
    if (counts->dtype == "I32") check_signs(values);
    arrays_.counts = values;
  }

  /// A negative I32 is a U32 of 2^31 or more.
  void check_signs(std::span<const std::uint32_t> values) const {
    const auto negative = [](std::uint32_t value) { return value > 0x7fffffffU; };
    const auto culprit = std::ranges::find_if(values, negative);
    if (culprit == values.end()) return;
    const auto at = culprit - values.begin();
    const std::int64_t e = at % arrays_.experts;
    const std::int64_t l = at / arrays_.experts % arrays_.layers;
    const std::int64_t i = at / arrays_.experts / arrays_.layers;
    throw InvalidInput(fmt::format("{}: tensor counts[{}, {}, {}]: found {}, wanted 0 or more", where_, i, l, e,
                                   static_cast<std::int32_t>(*culprit)));
  }

  [[nodiscard]] const TensorView* find(std::string_view name) const {
    const auto found = file_.tensors.find(name);
    return found == file_.tensors.end() ? nullptr : &found->second;
  }

  template <class T>
  std::span<const T> optional(std::string_view name, std::string_view dtype, std::initializer_list<Shape> shapes) {
    const TensorView* tensor = find(name);
    if (tensor == nullptr) return {};
    if (tensor->dtype != dtype) {
      throw FormatError(fmt::format("{}: tensor {}: dtype: found {}, wanted {}", where_, name, tensor->dtype, dtype));
    }
    if (std::ranges::find(shapes, tensor->shape) == shapes.end()) {
      std::string wanted;
      for (const Shape& shape : shapes) {
        wanted += fmt::format("{}[{}]", wanted.empty() ? "" : " or ", fmt::join(shape, ", "));
      }
      throw FormatError(fmt::format("{}: tensor {}: shape: found [{}], wanted {}", where_, name,
                                    fmt::join(tensor->shape, ", "), wanted));
    }
    return view<T>(*tensor);
  }

  template <class T>
  std::span<const T> view(const TensorView& tensor) {
    const std::byte* data = tensor.bytes.data();
    if (reinterpret_cast<std::uintptr_t>(data) % alignof(T) != 0) {
      auto& copy = storage_->copies.emplace_back(std::make_unique_for_overwrite<std::byte[]>(tensor.bytes.size()));
      std::memcpy(copy.get(), data, tensor.bytes.size());
      data = copy.get();
    }
    return {reinterpret_cast<const T*>(data), tensor.bytes.size() / sizeof(T)};
  }

  const std::string& where_;
  Safetensors file_;
  std::shared_ptr<Storage> storage_;
  WindowArrays arrays_;
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// As U16 or as U32, whatever they are.
template <class Count>
void write_counts(std::span<const Count> counts, bool narrow, const WriteSink& sink) {
  if (narrow || sizeof(Count) == sizeof(std::uint32_t)) return sink(std::as_bytes(counts));
  constexpr std::size_t kPiece = std::size_t{1} << 18;
  std::vector<std::uint32_t> wide;
  for (std::size_t at = 0; at < counts.size(); at += kPiece) {
    const auto piece = counts.subspan(at, std::min(kPiece, counts.size() - at));
    wide.assign(piece.begin(), piece.end());
    sink(std::as_bytes(std::span(std::as_const(wide))));
  }
}

}  // namespace

Window parse_window(std::span<const std::byte> file, std::shared_ptr<const void> owner, const std::string& where) {
  return WindowReader(file, std::move(owner), where).read();
}

Window Window::load(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  if (looks_like_a_manifest(file->bytes())) return load_parts(path, text_of(file->bytes()));
  return parse_window(file->bytes(), file, path.string());
}

void write_window(const std::filesystem::path& path, const WindowArrays& arrays,
                  std::function<void(const WriteSink&)> stream) {
  Metadata metadata = {{"format", std::string(kFormat)}, {"top_k", std::to_string(arrays.top_k)}};
  if (!arrays.model.empty()) metadata.emplace_back("model", arrays.model);
  if (!arrays.layer_numbers.empty()) {
    metadata.emplace_back("layers", fmt::format("[{}]", fmt::join(arrays.layer_numbers, ", ")));
  }
  if (arrays.kind == WindowKind::Aggregate) metadata.emplace_back("kind", "aggregate");
  metadata.insert(metadata.end(), arrays.metadata.begin(), arrays.metadata.end());

  const auto [n, layers, experts] = std::tuple(arrays.samples, arrays.layers, arrays.experts);
  std::vector<TensorToWrite> tensors;
  const auto add = [&](std::string name, std::string dtype, std::vector<std::int64_t> shape, auto values) {
    if (!values.empty()) {
      tensors.push_back({std::move(name), std::move(dtype), std::move(shape), std::as_bytes(values)});
    }
  };
  add("lengths", "I32", {n}, arrays.lengths);
  std::visit(
      [&]<class Count>(std::span<const Count> counts) {
        tensors.push_back({"counts",
                           sizeof(Count) == 2 ? "U16" : "U32",
                           {n, layers, experts},
                           std::as_bytes(counts),
                           std::move(stream)});
      },
      arrays.counts);
  const bool per_layer = arrays.recorded.size() != static_cast<std::size_t>(n);
  add("recorded", "I32", per_layer ? std::vector{n, layers} : std::vector{n}, arrays.recorded);
  add("groups", "I32", {n}, arrays.groups);
  add("atomic", "I32", {n}, arrays.atomic);
  add("pad_counts", "U32", {layers, experts}, arrays.pad_counts);
  add("ids", "I64", {n}, arrays.ids);
  write_safetensors(path, metadata, std::move(tensors));
}

void Window::save(const std::filesystem::path& path) const {
  if (!counts_here()) throw InvalidInput(fmt::format("{}: counts: some are in another process", path.string()));
  if (parts_.empty()) return write_window(path, arrays_);
  WindowArrays arrays = arrays_;
  const bool narrow = std::ranges::all_of(parts_, [](const Window& part) {
    return std::holds_alternative<std::span<const std::uint16_t>>(part.arrays_.counts);
  });
  arrays.counts = narrow ? CountArray(std::span<const std::uint16_t>()) : std::span<const std::uint32_t>();
  write_window(path, arrays, [&](const WriteSink& sink) {
    for (const Window& part : parts_) {
      std::visit([&](auto counts) { write_counts(counts, narrow, sink); }, part.arrays_.counts);
    }
  });
}

}  // namespace routepack
