# SPDX-License-Identifier: Apache-2.0
"""Which part each sample of a step comes from."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack.ray._samples import Index


@dataclass
class Piece:
    """What the planner takes from one part: rows of the part, and their places in the window."""

    part: Any  #: object reference of a `Part`, owned by the driver
    rows: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]


@dataclass
class Selected:
    pieces: list[Piece]
    shape: tuple[int, int]
    missing: npt.NDArray[np.int64]
    unrecorded: int
    duplicates: int


def select(
    answers: Sequence[tuple[Index, Any]],
    ids: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    shape: tuple[int, int] = (0, 0),
) -> Selected:
    """Which part each sample comes from: one that has it at its length; of several that with most recorded rows."""
    if shape == (0, 0):  # that of most samples: one worker that records otherwise must not decide
        votes: collections.Counter[tuple[int, int]] = collections.Counter()
        for index, _ in answers:
            votes[index.shape] += len(index.ids)
        shape = max(votes, key=lambda one: votes[one], default=shape)
    usable = [(index, part) for index, part in answers if len(index.ids) and index.shape == shape]
    if not usable or not len(ids):
        return Selected([], shape, np.arange(len(ids)), 0, 0)
    names = np.concatenate([index.ids for index, _ in usable])
    known = np.concatenate([index.lengths for index, _ in usable])
    recorded = np.concatenate([index.recorded for index, _ in usable])
    part = np.concatenate([np.full(len(index.ids), k) for k, (index, _) in enumerate(usable)])
    row = np.concatenate([np.arange(len(index.ids)) for index, _ in usable])
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], names), len(ids) - 1)
    place = order[at]
    fits = (ids[place] == names) & (recorded <= lengths[place]) & ((known < 0) | (known == lengths[place]))
    place, part, row, recorded = place[fits], part[fits], row[fits], recorded[fits]
    # By place, then most rows, then the first part: the first of each place is taken.
    rank = np.lexsort((part, -recorded.astype(np.int64), place))
    place, part, row, recorded = place[rank], part[rank], row[rank], recorded[rank]
    first = np.ones(len(place), dtype=bool)
    first[1:] = place[1:] != place[:-1]
    duplicates = int((~first).sum())
    place, part, row, recorded = place[first], part[first], row[first], recorded[first]
    pieces = []
    for k, (_, reference) in enumerate(usable):
        mine = part == k
        if mine.any():
            pieces.append(Piece(reference, row[mine], place[mine]))
    there = np.zeros(len(ids), dtype=bool)
    there[place] = True
    return Selected(pieces, shape, np.flatnonzero(~there), int((recorded == 0).sum()), duplicates)
