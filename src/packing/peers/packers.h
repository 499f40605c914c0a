// SPDX-License-Identifier: Apache-2.0
// One function per packer, each in a file of its name. They see lengths only. What each is in its framework says the
// table of peers.h; docs/compare.md has the rules in full. Equal lengths go in order of their index.
#pragma once

#include "packing/peers/bins.h"

namespace routepack::peers {

/// Sample i belongs to slot i mod D. Each slot packs its own by first-fit decreasing; slots with fewer cells than the
/// fullest slot split their fullest cell until all have as many.
Packed dp_local_ffd(const Lengths& lengths);

/// Equal sample counts per slot by falling length to the lightest; in each slot every sample, by falling length, to the
/// cell with the fewest samples that still holds it. All slots are packed again with the most cells any of them needed.
/// N must be a multiple of D.
Packed areal_ffd(const Lengths& lengths);

/// The same with Karmarkar–Karp on tokens into the fewest cells; a slot whose cells exceed the cap takes areal_ffd's.
Packed areal_kk(const Lengths& lengths);

/// Karmarkar–Karp on 24576·t + t² into slots of equal counts, then into cells, one more per slot until all keep the
/// cap. Light cells come first and last. N must be a multiple of D.
Packed verl_kk_strict(const Lengths& lengths);

/// Modified first-fit decreasing (large, medium, small, tiny), the last phase a worst fit; cells that are missing to a
/// multiple of D get one sample each from the cells with the most.
Packed nemo_mffd(const Lengths& lengths);

/// First fit in arrival order; the fullest cell is split until D divides their number.
Packed slime_first_fit(const Lengths& lengths);

/// First-fit decreasing, the cell with the largest Σt² split until D divides their number; D cells next to each other
/// by falling Σt² make a row.
Packed ffd_sorted_rows(const Lengths& lengths);

/// Karmarkar–Karp on model work into ⌈tokens/C⌉ cells, whatever they then hold: the cap is not kept. The fullest cell
/// is split until D divides their number, and Karmarkar–Karp gives every slot as many of nearly equal work.
Packed kk_on_work(const Lengths& lengths);

}  // namespace routepack::peers
