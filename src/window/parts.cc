// SPDX-License-Identifier: Apache-2.0
// A window from parts.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "routepack/error.h"
#include "routepack/window.h"
#include "window/safetensors.h"

namespace routepack {
namespace {

/// What a joined window has of its own.
struct Joined {
  std::vector<std::int32_t> lengths, recorded, groups, atomic;
  std::vector<std::uint32_t> pad_counts;
  std::vector<std::int64_t> ids;
};

class PartsJoiner {
 public:
  PartsJoiner(std::span<const Window> parts, std::span<const std::string> names)
      : parts_(parts), names_(names), first_(parts.front().arrays()) {
    for (std::size_t k = 0; k < parts.size(); ++k) check(k);
    std::int64_t samples = 0;
    for (const Window& part : parts) samples += part.samples();
    if (samples > std::numeric_limits<std::int32_t>::max()) {
      throw InvalidInput(fmt::format("{} parts: found {} samples together, wanted at most {}", parts.size(), samples,
                                     std::numeric_limits<std::int32_t>::max()));
    }
  }

  [[nodiscard]] std::pair<WindowArrays, std::shared_ptr<const Joined>> join() const {
    auto joined = std::make_shared<Joined>();
    append(joined->lengths, &WindowArrays::lengths);
    append(joined->ids, &WindowArrays::ids);
    append_recorded(joined->recorded);
    append_numbers(joined->groups, &WindowArrays::groups, std::numeric_limits<std::int32_t>::min());
    append_numbers(joined->atomic, &WindowArrays::atomic, 0);
    joined->pad_counts.assign(first_.pad_counts.begin(), first_.pad_counts.end());

    WindowArrays arrays{.samples = static_cast<std::int64_t>(joined->lengths.size()),
                        .layers = first_.layers,
                        .experts = first_.experts,
                        .top_k = first_.top_k,
                        .kind = WindowKind::Samples,
                        .lengths = joined->lengths,
                        .counts = {},
                        .recorded = joined->recorded,
                        .groups = joined->groups,
                        .atomic = joined->atomic,
                        .pad_counts = joined->pad_counts,
                        .ids = joined->ids,
                        .model = first_.model,
                        .layer_numbers = first_.layer_numbers,
                        .metadata = {}};
    return {std::move(arrays), std::move(joined)};
  }

 private:
  void check(std::size_t k) const {
    const WindowArrays& part = parts_[k].arrays();
    const auto differ = [&](std::string_view what, const auto& found, const auto& wanted) {
      if (found == wanted) return;
      throw InvalidInput(
          fmt::format("{}: {}: found {}, wanted {} as in {}", names_[k], what, found, wanted, names_.front()));
    };
    if (parts_[k].kind() == WindowKind::Aggregate) {
      throw InvalidInput(fmt::format("{}: kind: found aggregate, wanted samples in a part", names_[k]));
    }
    differ("layers (L)", part.layers, first_.layers);
    differ("experts (E)", part.experts, first_.experts);
    differ("top_k", part.top_k, first_.top_k);
    const auto name = [](const std::string& model) { return model.empty() ? "none" : printable_name(model); };
    differ("model", name(part.model), name(first_.model));
    const auto said = [](bool there) { return there ? "given" : "absent"; };
    differ("recorded", said(!part.recorded.empty()), said(!first_.recorded.empty()));
    differ("groups", said(!part.groups.empty()), said(!first_.groups.empty()));
    differ("atomic", said(!part.atomic.empty()), said(!first_.atomic.empty()));
    differ("ids", said(!part.ids.empty()), said(!first_.ids.empty()));
    differ("pad_counts", said(!part.pad_counts.empty()), said(!first_.pad_counts.empty()));
    for (std::size_t at = 0; at < part.pad_counts.size(); ++at) {
      if (part.pad_counts[at] == first_.pad_counts[at]) continue;
      const auto experts = static_cast<std::size_t>(part.experts);
      differ(fmt::format("pad_counts[{}, {}]", at / experts, at % experts), part.pad_counts[at], first_.pad_counts[at]);
    }
    differ("metadata layers", said(!part.layer_numbers.empty()), said(!first_.layer_numbers.empty()));
    for (std::size_t l = 0; l < part.layer_numbers.size(); ++l) {
      if (part.layer_numbers[l] == first_.layer_numbers[l]) continue;
      differ(fmt::format("metadata layers[{}]", l), part.layer_numbers[l], first_.layer_numbers[l]);
    }
  }

  template <class T>
  void append(std::vector<T>& all, std::span<const T> WindowArrays::* tensor) const {
    for (const Window& part : parts_) {
      const auto values = part.arrays().*tensor;
      all.insert(all.end(), values.begin(), values.end());
    }
  }

  /// Per layer everywhere when it is so in one part.
  void append_recorded(std::vector<std::int32_t>& all) const {
    const auto per_layer = [](const Window& part) {
      return part.layers() > 1 && part.arrays().recorded.size() > static_cast<std::size_t>(part.samples());
    };
    const bool widen = std::ranges::any_of(parts_, per_layer);
    for (const Window& part : parts_) {
      const auto values = part.arrays().recorded;
      if (!widen || per_layer(part)) {
        all.insert(all.end(), values.begin(), values.end());
      } else {
        for (const std::int32_t value : values) all.insert(all.end(), static_cast<std::size_t>(part.layers()), value);
      }
    }
  }

  /// Values of at least `least` name something inside a part: 0, 1, … as they come, over all parts.
  void append_numbers(std::vector<std::int32_t>& all, std::span<const std::int32_t> WindowArrays::* tensor,
                      std::int32_t least) const {
    std::int32_t next = 0;
    for (const Window& part : parts_) {
      std::unordered_map<std::int32_t, std::int32_t> number;
      for (const std::int32_t value : part.arrays().*tensor) {
        if (value < least) {
          all.push_back(value);
          continue;
        }
        const auto [at, fresh] = number.emplace(value, next);
        if (fresh) ++next;
        all.push_back(at->second);
      }
    }
  }

  std::span<const Window> parts_;
  std::span<const std::string> names_;
  const WindowArrays& first_;
};

}  // namespace

Window Window::join(std::vector<Window> parts, std::span<const std::string> names, bool divided) {
  if (parts.empty()) throw InvalidInput("parts: found none, wanted at least one");
  if (names.size() != parts.size()) {
    throw InvalidInput(fmt::format("parts: found {} names, wanted {}", names.size(), parts.size()));
  }
  std::vector<Window> flat;
  std::vector<std::string> flat_names;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    divided = divided || !parts[k].whole();
    for (const Window& part : parts[k].parts()) {
      flat.push_back(part);
      flat_names.push_back(names[k]);
    }
  }
  auto [arrays, owner] = PartsJoiner(flat, flat_names).join();
  Window joined(std::move(arrays), std::move(owner), std::move(flat));
  joined.whole_ = !divided;
  return joined;
}

}  // namespace routepack
