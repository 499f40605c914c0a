# SPDX-License-Identifier: Apache-2.0
"""The counting actor: holds the counts of the windows that are being rolled out."""

from __future__ import annotations

import collections
import os
import uuid
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack.ray._samples import CountOptions, Index, Part, Row, count_samples, made_part, narrow

_RELEASED = 256  # names of windows that are over, so that what comes late opens none of them again
_TOLD = 8  # refused samples of a window whose reason is kept


class _Window:
    """Samples of one window in one actor."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.shape: tuple[int, ...] | None = None
        self.replaced = 0
        self.refused: list[str] = []


class CountingActor:
    """One process, one call at a time. A call that fails changes nothing; it may come twice (Ray sends it again)."""

    def __init__(self, options: CountOptions) -> None:
        self._options = options
        self._windows: collections.OrderedDict[Hashable, _Window] = collections.OrderedDict()
        self._released: collections.OrderedDict[Hashable, None] = collections.OrderedDict()
        self._dropped = 0
        self._born = uuid.uuid4().hex

    def add(self, window: Hashable, samples: list[tuple[int, Any, int | None, Any]]) -> tuple[int, dict[int, str]]:
        """Counts samples. Gives how many were counted, and why others were not."""
        if window in self._released:
            return 0, {sample[0]: "its window is over" for sample in samples}
        rows, refused = count_samples(samples, self._options)
        return self._keep(window, rows, refused)

    def add_counts(
        self,
        window: Hashable,
        ids: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        counts: npt.NDArray[Any],
        recorded: npt.NDArray[np.int32] | None,
    ) -> tuple[int, dict[int, str]]:
        """Keeps samples that somebody counted: counts [n, L, E], recorded [n], [n, L] or None."""
        if window in self._released:
            return 0, {int(id): "its window is over" for id in ids}
        layers, experts = counts.shape[1:]
        if experts != self._options.experts:
            text = f"found {experts} experts, wanted {self._options.experts}"
            return self._keep(window, {}, [(int(id), text) for id in ids])
        rows = {}
        for i, id in enumerate(ids):
            known = int(lengths[i]) if recorded is None else recorded[i]
            known_rows = np.broadcast_to(np.asarray(known, dtype=np.int32), (layers,)).copy()
            rows[int(id)] = Row(narrow(counts[i]), known_rows, int(lengths[i]))
        return self._keep(window, rows, [])

    def seal(self, window: Hashable, ids: npt.NDArray[np.int64]) -> tuple[Index, Part]:
        """The counts of those of `ids` that are here. They stay until `release`: the answer may be lost."""
        held = self._windows.get(window)
        dropped, self._dropped = self._dropped, 0
        if held is None:
            return made_part({}, born=self._born, dropped=dropped)
        wanted = set(ids.tolist())
        rows = {id: row for id, row in held.rows.items() if id in wanted}
        return made_part(
            rows,
            born=self._born,
            others=len(held.rows) - len(rows),
            replaced=held.replaced,
            dropped=dropped,
            refused=tuple(held.refused),
        )

    def count(self, samples: list[tuple[int, Any, int | None, Any]]) -> tuple[Index, Part]:
        """Counts samples for the caller and keeps nothing."""
        rows, refused = count_samples(samples, self._options)
        shapes = {row.counts.shape for row in rows.values()}
        if len(shapes) > 1:  # no window holds both
            rows, refused = {}, [(sample[0], f"found samples of {len(shapes)} shapes") for sample in samples]
        return made_part(rows, refused=tuple(f"sample {id}: {text}" for id, text in refused[:_TOLD]))

    def release(self, window: Hashable, ids: npt.NDArray[np.int64] | None) -> None:
        """Forgets these samples of a window; None: all of it, and what still comes for it."""
        if ids is None:
            self._windows.pop(window, None)
            self._released[window] = None
            while len(self._released) > _RELEASED:
                self._released.popitem(last=False)
            return
        held = self._windows.get(window)
        if held is not None:
            for id in ids.tolist():
                held.rows.pop(id, None)
            held.replaced, held.refused = 0, []

    def state(self) -> dict[str, Any]:
        """Answers when the actor is there."""
        return {
            "pid": os.getpid(),
            "windows": len(self._windows),
            "samples": sum(len(held.rows) for held in self._windows.values()),
            "bytes": sum(row.counts.nbytes for held in self._windows.values() for row in held.rows.values()),
        }

    def _keep(
        self, window: Hashable, rows: dict[int, Row], refused: list[tuple[int, str]]
    ) -> tuple[int, dict[int, str]]:
        held = self._windows.get(window)
        if held is None:
            held = self._windows[window] = _Window()
        self._windows.move_to_end(window)
        while len(self._windows) > self._options.windows:
            _, gone = self._windows.popitem(last=False)
            self._dropped += len(gone.rows)
        kept = 0
        for id, row in rows.items():
            shape = row.counts.shape
            if held.shape is None:
                held.shape = shape
            if shape != held.shape:
                refused.append((id, f"found {list(shape)} layers and experts, wanted {list(held.shape)} as before"))
                continue
            held.replaced += id in held.rows
            held.rows[id] = row
            kept += 1
        held.refused += [f"sample {id}: {text}" for id, text in refused][: max(0, _TOLD - len(held.refused))]
        return kept, dict(refused)
