# SPDX-License-Identifier: Apache-2.0
"""The rules of a schedule, checked before it is used. Independent of the planner, which is not believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from routepack._core import Constraints
from routepack._errors import Error

Cells = Sequence[Sequence[Sequence[int]]]  # [row][slot]: samples of the microbatch


class BadSchedule(Error):
    """A schedule that may not be used. The message is one line: where, what was found, what was wanted."""


@dataclass(frozen=True)
class Rules:
    """What a framework needs of the microbatches of one optimizer step."""

    slots: int  #: D, data-parallel ranks
    capacity: int  #: aligned tokens of a cell
    sample_multiple: int = 1  #: each sample counts as so many tokens, rounded up
    cell_multiple: int = 1  #: each cell too
    row_multiple: int = 1
    min_rows: int = 1
    max_samples_per_cell: int = 0  #: 0: any number
    equal_count: bool = False  #: every slot trains the same number of samples
    own_cell: bool = False  #: a sample over the cap may have its own cell

    @staticmethod
    def of(constraints: Constraints, *, slots: int, capacity: int) -> Rules:
        """The rules behind the constraints of a plan."""
        return Rules(
            slots=slots,
            capacity=capacity,
            sample_multiple=constraints.sample_multiple,
            cell_multiple=constraints.cell_multiple,
            row_multiple=constraints.row_multiple,
            min_rows=constraints.min_rows,
            max_samples_per_cell=constraints.max_samples_per_cell,
            equal_count=constraints.equal_count,
            own_cell=constraints.oversized == "own-cell",
        )


def check_schedule(cells: Cells, lengths: npt.NDArray[np.int64] | Sequence[int], rules: Rules) -> None:
    """Every sample exactly once, the same number of non-empty cells on every slot, no cell over the cap.

    :param lengths: tokens of every sample, [N]
    :raises BadSchedule: for the first rule that is broken

    >>> check_schedule([[[0], [1]]], [3, 4], Rules(slots=2, capacity=4))
    >>> check_schedule([[[0], [0]]], [3, 4], Rules(slots=2, capacity=4))
    Traceback (most recent call last):
    ...
    routepack.adapters._schedule.BadSchedule: sample 0: found 2 times, wanted once
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    rows = len(cells)
    if rows < max(rules.min_rows, 1) or rows % rules.row_multiple:
        raise BadSchedule(
            f"rows: found {rows}, wanted {max(rules.min_rows, 1)} or more and a multiple of {rules.row_multiple}"
        )
    flat: list[int] = []
    sizes: list[int] = []
    for r, row in enumerate(cells):
        if len(row) != rules.slots:
            raise BadSchedule(f"row {r}: found {len(row)} cells, wanted {rules.slots}, one per data-parallel rank")
        for d, cell in enumerate(row):
            if not cell:
                raise BadSchedule(f"row {r}, slot {d}: found no sample, wanted one or more")
            if any(type(sample) is not int for sample in cell):
                raise BadSchedule(f"row {r}, slot {d}: found a sample that is no whole number")
            flat.extend(cell)
            sizes.append(len(cell))
    ids, starts = np.asarray(flat, dtype=np.int64), np.cumsum([0, *sizes[:-1]])
    if ids.min() < 0 or ids.max() >= tokens.size:
        wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise BadSchedule(f"sample {wrong}: found in a cell, wanted 0 to {tokens.size - 1}")
    seen = np.bincount(ids, minlength=tokens.size)
    if (seen != 1).any():
        wrong = int(np.flatnonzero(seen != 1)[0])
        raise BadSchedule(f"sample {wrong}: found {int(seen[wrong])} times, wanted once")
    aligned = -(-tokens // rules.sample_multiple) * rules.sample_multiple
    loads = np.add.reduceat(aligned[ids], starts)
    loads = -(-loads // rules.cell_multiple) * rules.cell_multiple
    counts = np.asarray(sizes, dtype=np.int64)
    over = loads > rules.capacity
    if rules.own_cell:
        over &= counts > 1
    _refuse(over, loads, rules, f"aligned tokens, wanted at most {rules.capacity}")
    if rules.max_samples_per_cell:
        _refuse(
            counts > rules.max_samples_per_cell, counts, rules, f"samples, wanted at most {rules.max_samples_per_cell}"
        )
    if rules.equal_count:
        each = counts.reshape(rows, rules.slots).sum(axis=0)
        if (each != each[0]).any():
            d = int(np.flatnonzero(each != each[0])[0])
            raise BadSchedule(f"slot {d}: found {int(each[d])} samples, wanted {int(each[0])}, as on slot 0")


def check_placement(
    physical_to_logical: npt.NDArray[np.int32], *, layers: int, experts: int, unchanged: npt.NDArray[np.int32] | None
) -> None:
    """Every layer is a permutation of its experts; with `unchanged` it is that one.

    :raises BadSchedule: naming the layer

    >>> check_placement(np.array([[1, 0]], dtype=np.int32), layers=1, experts=2, unchanged=None)
    """
    if physical_to_logical.shape != (layers, experts):
        raise BadSchedule(f"placement: found shape {list(physical_to_logical.shape)}, wanted [{layers}, {experts}]")
    wrong = (np.sort(physical_to_logical, axis=1) != np.arange(experts)).any(axis=1)
    if wrong.any():
        raise BadSchedule(f"placement, layer {int(np.flatnonzero(wrong)[0])}: wanted every expert once")
    if unchanged is not None and (physical_to_logical != unchanged).any():
        layer = int(np.flatnonzero((physical_to_logical != unchanged).any(axis=1))[0])
        raise BadSchedule(f"placement, layer {layer}: found experts that move, wanted all where they are")


def _refuse(broken: npt.NDArray[np.bool_], values: npt.NDArray[np.int64], rules: Rules, wanted: str) -> None:
    if broken.any():
        at = int(np.flatnonzero(broken)[0])
        raise BadSchedule(f"row {at // rules.slots}, slot {at % rules.slots}: found {int(values[at])} {wanted}")
