// SPDX-License-Identifier: Apache-2.0
#include "transfer/layout_rules.h"

#include <fmt/format.h>

#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "routepack/error.h"

namespace routepack {
namespace {

std::string at(std::string_view list, std::size_t index, const std::string& name) {
  return fmt::format("{}[{}] ({})", list, index, name);
}

template <class Enum>
void check_known(Enum value, const std::string& where, std::string_view what) {
  if (name_of(value) == "?") {
    refuse_layout(fmt::format("{}: found the unknown {} {}, which cannot be moved", where, what,
                              static_cast<std::int64_t>(value)));
  }
}

void check_name(const std::string& name, std::set<std::string_view>& names, std::string_view list, std::size_t index) {
  if (name.empty()) refuse_layout(fmt::format("{}[{}]: name: found an empty name", list, index));
  if (!names.insert(name).second) refuse_layout(fmt::format("{}: the name occurs twice", at(list, index, name)));
}

/// Values that may be cut anywhere: no scale belongs to a shard of them.
bool cuts_without_loss(ScalarType type) {
  return type == ScalarType::BF16 || type == ScalarType::F32 || type == ScalarType::F64;
}

void check_sharded(const ExpertTensor& tensor, std::span<const ExpertParameter> parameters, const std::string& where) {
  if (!tensor.parameter) refuse_layout(fmt::format("{}: sharded, but without a parameter that says how", where));
  const ExpertParameter& parameter = parameters[static_cast<std::size_t>(*tensor.parameter)];
  if (tensor.elements != parameter.elements()) {
    refuse_layout(fmt::format("{}: elements: found {}, wanted {}, as the sharded parameter {} has", where,
                              tensor.elements, parameter.elements(), parameter.name));
  }
  const bool scaled = tensor.role == TensorRole::Master || tensor.role == TensorRole::Moment;
  if (scaled && !cuts_without_loss(tensor.type)) {
    refuse_layout(
        fmt::format("{}: type: found {}, wanted BF16, F32 or F64: other masters and moments have a scale per shard, so "
                    "that a new partition would quantise them anew",
                    where, name_of(tensor.type)));
  }
}

void check_tensor(const ExpertTensor& tensor, std::span<const ExpertParameter> parameters, const std::string& where) {
  check_known(tensor.role, where, "role");
  check_known(tensor.type, where, "type");
  check_known(tensor.spread, where, "spread");
  if (tensor.role == TensorRole::Canary) {
    refuse_layout(fmt::format("{}: role: found canary, which RoutePack adds itself", where));
  }
  if (tensor.elements < 1) {
    refuse_layout(fmt::format("{}: elements: found {}, wanted at least 1", where, tensor.elements));
  }
  if (tensor.parameter && (*tensor.parameter < 0 || std::cmp_greater_equal(*tensor.parameter, parameters.size()))) {
    refuse_layout(fmt::format("{}: parameter: found index {}, wanted one of {} parameters", where, *tensor.parameter,
                              parameters.size()));
  }
  if ((tensor.role == TensorRole::Step) != (tensor.spread == Spread::Equal)) {
    refuse_layout(fmt::format("{}: found role {} with spread {}: a step is equal everywhere, and nothing else is",
                              where, name_of(tensor.role), name_of(tensor.spread)));
  }
  if (tensor.role == TensorRole::Step && tensor.elements != 1) {
    refuse_layout(fmt::format("{}: elements: found {}, wanted 1 for a step", where, tensor.elements));
  }
  if (tensor.spread == Spread::Sharded) check_sharded(tensor, parameters, where);
}

void check_at_least_one(std::string_view name, std::int64_t value) {
  if (value < 1) refuse_layout(fmt::format("{}: found {}, wanted at least 1", name, value));
}

}  // namespace

void refuse_layout(const std::string& what) {
  throw InvalidInput("grid layout: " + what);
}

std::int64_t capped_product(std::int64_t a, std::int64_t b) {
  return b != 0 && a > kTooMuch / b ? kTooMuch : a * b;
}

void check_shape(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots,
                 std::span<const ExpertParameter> parameters) {
  check_at_least_one("ep", grid.ep);
  check_at_least_one("edp", grid.edp);
  check_at_least_one("layers", layers);
  check_at_least_one("slots", slots);
  if (grid.ep == 1) refuse_layout("ep: found 1, wanted at least 2: with one EP rank there is nowhere to move to");
  if (std::int64_t{grid.ep} * grid.edp > kMostGridRanks) {
    refuse_layout(
        fmt::format("found ep = {} times edp = {} ranks, wanted at most {}", grid.ep, grid.edp, kMostGridRanks));
  }
  constexpr std::int64_t kMostExperts = std::numeric_limits<std::int32_t>::max();
  if (capped_product(std::int64_t{layers} * slots, grid.ep) > kMostExperts) {
    refuse_layout(fmt::format("found {} layers of {} slots on {} EP ranks, wanted at most {} experts in all", layers,
                              slots, grid.ep, kMostExperts));
  }
  const auto per_slot = static_cast<std::int64_t>(parameters.empty() ? 1 : parameters.size());
  if (capped_product(std::int64_t{layers} * slots, per_slot) > kMostParameterInstances) {
    refuse_layout(fmt::format("found {} layers of {} slots with {} parameters, wanted a product of at most {}", layers,
                              slots, parameters.size(), kMostParameterInstances));
  }

  std::set<std::string_view> names;
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ExpertParameter& parameter = parameters[i];
    check_name(parameter.name, names, "parameters", i);
    for (const std::int64_t size : parameter.shape) {
      if (size < 1) {
        refuse_layout(fmt::format("{}: shape: found {}, wanted at least 1", at("parameters", i, parameter.name), size));
      }
    }
    elements += parameter.elements();
    if (capped_product(std::int64_t{layers} * slots, elements) >= kTooMuch) {
      refuse_layout(fmt::format("{}: found 2^62 elements or more on a rank", at("parameters", i, parameter.name)));
    }
  }
}

void check_tensors(const ExpertGrid& grid, std::int32_t layers, std::int32_t slots,
                   std::span<const ExpertParameter> parameters, std::span<const ExpertTensor> tensors) {
  if (tensors.empty()) refuse_layout("tensors: found none, wanted at least one");
  if (tensors.size() > std::size_t{1} << 16) {
    refuse_layout(fmt::format("tensors: found {}, wanted at most 65536", tensors.size()));
  }
  const std::int64_t experts = std::int64_t{layers} * slots * grid.ep;
  const std::string canary = canary_tensor().name;
  std::set<std::string_view> names{canary};
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const ExpertTensor& tensor = tensors[i];
    check_name(tensor.name, names, "tensors", i);
    const std::string where = at("tensors", i, tensor.name);
    check_tensor(tensor, parameters, where);
    const std::int64_t of_one = capped_product(tensor.elements, bytes_of(tensor.type));
    const std::int64_t copies = tensor.spread == Spread::Sharded ? 1 : grid.edp;
    // Both stay below 2⁶² by this very check, so that their sum fits.
    bytes += capped_product(capped_product(of_one, copies), experts);
    if (bytes >= kTooMuch) refuse_layout(fmt::format("{}: found 2^62 bytes or more on the grid", where));
  }
}

ExpertTensor canary_tensor() {
  return {.name = "routepack.canary",
          .role = TensorRole::Canary,
          .type = ScalarType::I64,
          .spread = Spread::Replicated,
          .elements = 2,
          .parameter = std::nullopt};
}

}  // namespace routepack
