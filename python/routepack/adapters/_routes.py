# SPDX-License-Identifier: Apache-2.0
"""Counting routes where they first appear, so that they are counted once and raw routes need not travel."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._errors import InvalidInput
from routepack._replay import count_routes_batch, count_routes_report


@dataclass(frozen=True, eq=False)
class Counted:
    """Routes of one sample, counted."""

    counts: npt.NDArray[Any]  #: uint16 or uint32 [L, E]
    recorded: npt.NDArray[np.int32]  #: int32 [L], rows that were counted


class RouteCounts:
    """Counts of routes, remembered for as long as the routes live.

    A rollout hook calls `remember` for each sample as it arrives; `of` finds what was counted and counts the rest.

    >>> cache = RouteCounts(experts=2)
    >>> routes = np.array([[[1]], [[0]], [[1]]], dtype=np.int32)
    >>> cache.remember(routes)
    >>> [counted.counts.tolist() for counted in cache.of([routes], lengths=[4])]
    [[[1, 2]]]
    """

    def __init__(self, *, experts: int, layers: Sequence[int] | None = None) -> None:
        """`layers` are places in the routes; None: all."""
        if experts < 1:
            raise InvalidInput(f"experts: found {experts}, wanted 1 or more")
        self.experts = experts
        self.layers = None if layers is None else list(layers)
        self._lock = threading.RLock()  # the collector may call `forget` inside
        self._known: dict[int, tuple[weakref.ref[Any], Counted]] = {}

    def remember(self, routes: Any) -> None:
        """Counts [rows, layers, k] and keeps the result until `routes` is gone."""
        counts, report = count_routes_report(routes, experts=self.experts, layers=self.layers)
        self._keep(routes, Counted(_narrow(counts), report.recorded))

    def of(self, routes: Sequence[Any], *, lengths: Sequence[int]) -> list[Counted | None]:
        """What each sample's routes count, in order; None where there are no routes.

        :param lengths: tokens of each sample, at least as many as rows
        """
        found: list[Counted | None] = []
        missing: list[int] = []
        for i, some in enumerate(routes):
            known = None if some is None else self._find(some)
            if some is not None and known is None:
                missing.append(i)
            found.append(known)
        if missing:
            counts, report = count_routes_batch(
                [routes[i] for i in missing],
                experts=self.experts,
                layers=self.layers,
                lengths=[int(lengths[i]) for i in missing],
            )
            for number, i in enumerate(missing):
                counted = Counted(_narrow(counts[number]), report.recorded[number])
                self._keep(routes[i], counted)
                found[i] = counted
        return found

    def _find(self, routes: Any) -> Counted | None:
        with self._lock:
            entry = self._known.get(id(routes))
        return entry[1] if entry is not None and entry[0]() is routes else None

    def _keep(self, routes: Any, counted: Counted) -> None:
        key = id(routes)
        known, lock = self._known, self._lock

        def forget(gone: weakref.ref[Any]) -> None:
            with lock:
                if key in known and known[key][0] is gone:
                    del known[key]

        try:
            reference = weakref.ref(routes, forget)
        except TypeError:
            return  # a list: counted again next time
        with self._lock:
            self._known[key] = (reference, counted)


def _narrow(counts: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
    return counts.astype(np.uint16) if counts.max(initial=0) < 1 << 16 else np.array(counts)
