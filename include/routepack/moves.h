// SPDX-License-Identifier: Apache-2.0
// What moving experts costs: bytes of state, limits and prices, the account of who is away from home, and move lists.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "routepack/ids.h"
#include "routepack/params.h"
#include "routepack/placement.h"

namespace routepack {

/// Bytes per parameter that a trainer keeps. The optimizer's part is split over `optimizer_shards` EDP replicas: each
/// replica moves its own weights, but only its share of master weights and moments.
struct StateLayout {
  std::int64_t weight_bytes = 2;      ///< bf16
  std::int64_t master_bytes = 4;      ///< fp32 copy of the weights
  std::int64_t moment_bytes = 8;      ///< Adam, two fp32 moments
  std::int64_t optimizer_shards = 1;  ///< m: 14 bytes per parameter for m = 1, 2 + 12/m with the defaults
};

/// Parameters of one gated FFN expert, 3·hidden·width (up, gate and down, without biases).
/// @throws InvalidInput unless both are positive and the product stays below 2⁵⁰.
std::int64_t gated_ffn_parameters(std::int64_t hidden, std::int64_t width);
/// Bytes that one replica sends when an expert moves. Rounded up.
/// @throws InvalidInput for a negative size or fewer than one shard
std::int64_t expert_state_bytes(std::int64_t parameters, const StateLayout& layout = {});
/// The same with the widths of a preset that list_models() names. @throws InvalidInput listing the names
std::int64_t expert_state_bytes(std::string_view model, const StateLayout& layout = {});

/// The preset that free text like «openai/gpt-oss-20b» names: its last part, in small letters. Empty when that is none.
std::string preset_of(std::string_view model);

/// Bytes with a unit, like 66MB or 1.5GiB: B, KB, MB, GB in powers of 1000, KiB, MiB, GiB in powers of 1024; rounded
/// down. Nothing for text that ends in no unit. @throws InvalidInput, one line that begins with `name`
std::optional<std::int64_t> parse_bytes(std::string_view text, std::string_view name);

/// Work of one routed token in one expert of a preset, forward and backward: 18·hidden·width FLOP.
/// @throws InvalidInput listing the names
double expert_flops(std::string_view model);

/// Rates that turn bytes into objective units.
struct MoveRates {
  double link_bytes_per_second = 0.0;   ///< achieved by one rank, one way
  double flops_per_second = 0.0;        ///< achieved in the experts
  double flops_per_routed_token = 0.0;  ///< forward and backward, 18·hidden·width; 24 with full recomputation
  double steps = 1.0;                   ///< optimizer steps over which a move stays useful
  double parallel_swaps = 1.0;          ///< disjoint swaps that share the time of one
};

/// The price of one moved expert in units of J, from `state_bytes` and the value `token_value` of one routed token less
/// on the busiest rank (w_l/C). The two ranks of a swap exchange one expert each, both ways at once, in
/// bytes/bandwidth seconds; in that time a rank computes flops_per_second/flops_per_routed_token routed tokens per
/// second. One moved expert bears half. Widths cancel: with 14 bytes per parameter a swap costs 2.33·F/BW routed
/// tokens.
/// @throws InvalidInput unless all rates are positive
double move_price(std::int64_t state_bytes, const MoveRates& rates, double token_value);

/// Limits on a move; all hold. The default is free.
struct MoveBudget {
  double share = 1.0;                           ///< of the L·E experts, that may be away from home
  std::optional<std::int64_t> rank_bytes = {};  ///< into each rank, and out of each rank
  double price = 0.0;                           ///< of one moved expert, in units of J
  double price_between_nodes = 0.0;             ///< of one that leaves its node; ≥ price
  friend bool operator==(const MoveBudget&, const MoveBudget&) = default;

  /// Narrows the budget by one value of `--moves`: `free`, a share of all experts (`0.05`), bytes per rank (`200MB`,
  /// see parse_bytes) or `price:X[,Y]`. Of two limits of one kind the tighter holds, of two prices the dearer.
  /// @throws InvalidInput, one line
  void add(std::string_view text);
  /// @throws InvalidInput, one line
  static MoveBudget parse(std::span<const std::string> values);
  /// Experts of `all` that the share allows.
  [[nodiscard]] std::int64_t most_experts(std::int64_t all) const;
};

/// One expert of a layer on its way.
struct Relocation {
  ExpertId expert;
  RankId from, to;
};

/// Counts what a placement in the making is away from home, the placement before. An expert that returns no longer
/// counts. Limits never are exceeded, not by one byte, by what `allows` allowed. Constant calls are safe from several
/// threads.
class MoveLedger {
 public:
  /// Everything at home. `expert_bytes` may be 0 when no byte limit is set; `ranks_per_node` 0 means one node.
  /// @throws InvalidInput for a byte limit without bytes per expert, or negative sizes
  MoveLedger(const Placement& home, const MoveBudget& budget, std::int64_t expert_bytes = 0,
             std::int32_t ranks_per_node = 0);

  /// Whether all limits hold after these relocations of one layer, as far as they make anything worse. O(n²), n small.
  [[nodiscard]] bool allows(LayerId l, std::span<const Relocation> relocations) const;
  /// By how many the experts away from home change.
  [[nodiscard]] std::int64_t moved_change(LayerId l, std::span<const Relocation> relocations) const;
  /// By how much the total price changes; negative when an expert goes home.
  [[nodiscard]] double price_change(LayerId l, std::span<const Relocation> relocations) const;
  void record(LayerId l, std::span<const Relocation> relocations);
  /// Counts again from scratch. @throws InvalidInput for another shape
  void recount(const Placement& now);

  [[nodiscard]] const Placement& home() const { return home_; }
  [[nodiscard]] const MoveBudget& budget() const { return budget_; }
  [[nodiscard]] std::int64_t moved() const { return near_ + far_; }
  [[nodiscard]] std::int64_t moved_between_nodes() const { return far_; }
  [[nodiscard]] std::int64_t most_moved() const { return most_moved_; }
  [[nodiscard]] std::int64_t bytes_in(RankId p) const { return in_[p] * expert_bytes_; }
  [[nodiscard]] std::int64_t bytes_out(RankId p) const { return out_[p] * expert_bytes_; }
  [[nodiscard]] double total_price() const {
    return static_cast<double>(near_) * budget_.price + static_cast<double>(far_) * budget_.price_between_nodes;
  }
  /// No relocation can be refused: neither share nor bytes are limited.
  [[nodiscard]] bool unlimited() const { return !limited_bytes_ && most_moved_ >= all_; }
  [[nodiscard]] std::int32_t node_of(RankId p) const { return p.value() / ranks_per_node_; }
  friend bool operator==(const MoveLedger&, const MoveLedger&) = default;

 private:
  Placement home_;
  MoveBudget budget_;
  std::int64_t expert_bytes_ = 0;
  std::int32_t ranks_per_node_ = 1;
  bool limited_bytes_ = false;
  std::int64_t most_per_rank_ = 0;  // experts in, and out, under the byte limit
  std::int64_t most_moved_ = 0, all_ = 0;
  std::int64_t near_ = 0, far_ = 0;  // away from home inside and outside their node
  std::vector<std::int64_t> in_, out_;
};

/// The expert in slots[k] goes to slots[k + 1], the last to the first.
struct MoveCycle {
  LayerId layer;
  std::vector<std::int32_t> slots;
  friend bool operator==(const MoveCycle&, const MoveCycle&) = default;
};

struct RankTraffic {
  std::int64_t in = 0, out = 0;  ///< bytes
  friend bool operator==(const RankTraffic&, const RankTraffic&) = default;
};

/// How to get from one placement to another.
struct MoveList {
  std::vector<MoveCycle> cycles;   ///< layer by layer; each begins at its lowest slot, sorted by it
  std::vector<RankTraffic> ranks;  ///< [P]
  std::int64_t between_nodes = 0;  ///< moved experts that leave their node
  std::int64_t same_index = 0;     ///< moved experts that keep their local slot: no optimizer re-partition
};

/// @throws InvalidInput when the placements differ in shape
MoveList list_moves(const Placement& from, const Placement& to, std::int64_t expert_bytes,
                    std::int32_t ranks_per_node = 0);

/// Why a layer of a sticky placement ended as it did.
enum class LayerEnd {
  Kept,       ///< balanced enough before: nothing was tried
  Balanced,   ///< max/mean ≤ 1 + epsilon
  HotExpert,  ///< within 1 + epsilon of the least peak that any placement could reach, and that is above 1 + epsilon
  Budget,     ///< a limit or the price of moves forbids the swaps that are left
  NoSwap,     ///< no single swap with the hottest rank helps
};
constexpr auto choices(LayerEnd) {
  using enum LayerEnd;
  return std::array{Choice<LayerEnd>{"kept", Kept}, Choice<LayerEnd>{"balanced", Balanced},
                    Choice<LayerEnd>{"hot expert", HotExpert}, Choice<LayerEnd>{"budget", Budget},
                    Choice<LayerEnd>{"no swap helps", NoSwap}};
}

/// A lower bound on the swaps that bring every rank of a layer to at most `peak`; absent when no number of swaps does.
/// `loads` and `rank_of` are [E]. A swap lowers one rank at most, and k swaps lower a rank by at most its k hottest
/// experts less the k coldest elsewhere. O(E log E).
std::optional<std::int64_t> fewest_swaps(std::span<const std::int64_t> loads, std::span<const std::int32_t> rank_of,
                                         std::int32_t ranks, std::int64_t peak);

}  // namespace routepack
