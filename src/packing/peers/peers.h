// SPDX-License-Identifier: Apache-2.0
// The packers that people use today, written from their descriptions, as layouts to be compared with ours.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

#include "packing/peers/bins.h"
#include "routepack/error.h"
#include "routepack/instance.h"
#include "routepack/layout.h"

namespace routepack::peers {

struct Peer {
  std::string_view name;         ///< as on the command line
  std::string_view description;  ///< one line
  std::string_view source;       ///< framework and file, or paper
  bool keeps_cap;                ///< false: cells may hold more than C
  bool wants_equal_counts;       ///< N must be a multiple of D
  Packed (*pack)(const Lengths& lengths);
};

/// All of them, in the order in which they are shown.
std::span<const Peer> all();
/// Null when there is none of that name.
const Peer* find(std::string_view name);

/// What a packer made of a window. Nothing promises that the layout keeps the cap or any other constraint.
struct PeerLayout {
  Layout layout;
  std::int64_t cells_over_cap = 0;
  std::int64_t fullest_cell = 0;     ///< aligned tokens
  std::int64_t dummies = 0;          ///< one-token samples N, N + 1, … in the layout
  std::int64_t dummies_removed = 0;  ///< such samples that were there for the packer only
};

/// Packs the aligned lengths of the instance, with its row_multiple, min_rows and pipeline stages; of the other
/// constraints these packers know nothing. One that wants equal counts gets one-token dummies behind the last sample
/// while it packs. They are taken out again unless the instance adds dummies itself, and a cell that held nothing else
/// is a failure.
std::variant<PeerLayout, Infeasible> pack_with(const Peer& peer, const Instance& instance);

}  // namespace routepack::peers
