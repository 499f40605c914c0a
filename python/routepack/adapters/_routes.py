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
    made_up: bool = False  #: a sample that only fills up a batch: it has no routes, and none are missing


COUNTS = "routepack_counts"  #: the column with what `pack_counts` makes
_FORM = 1  #: of what `pack_counts` makes; another one is not understood
_HEAD = 5  #: columns before the counts


def pack_counts(routes: Sequence[Any], *, experts: int) -> npt.NDArray[np.int32]:
    """What the routes [rows, layers, k] of each sample count, as one array that travels in their place.

    :return: int32 [samples, layers, 5 + experts]: form, experts, rows, k, rows that were counted, and the counts
    :raises InvalidInput: as `count_routes` does

    >>> pack_counts([np.array([[[0, 2]], [[2, 1]]], dtype=np.uint8)], experts=3).tolist()
    [[[1, 3, 2, 2, 2, 1, 1, 2]]]
    """
    counts, report = count_routes_batch(routes, experts=experts)
    made = np.empty((*counts.shape[:2], _HEAD + experts), dtype=np.int32)
    for i, some in enumerate(routes):
        made[i, :, : _HEAD - 1] = _FORM, experts, some.shape[0], some.shape[2]
    made[..., _HEAD - 1], made[..., _HEAD:] = report.recorded, counts
    return made


def no_counts(routes: Any, *, experts: int) -> npt.NDArray[np.int32]:
    """For one sample whose routes cannot be counted: what nobody takes for counts, [layers, 5 + experts]."""
    layers = routes.shape[1] if routes.ndim > 1 else 1
    return np.zeros((layers, _HEAD + experts), dtype=np.int32)


def unpack_counts(
    packed: npt.NDArray[np.int32], *, experts: int, rows: Sequence[int | None]
) -> tuple[list[Counted], int]:
    """What `pack_counts` made for each sample, and k.

    :param packed: [samples, layers, 5 + experts]
    :param rows: how many rows of routes each sample must have; None: a sample that has none, whatever is there for it
    :raises InvalidInput: when it is not that

    >>> counted, k = unpack_counts(np.array([[[1, 3, 2, 2, 2, 1, 1, 2]]], dtype=np.int32), experts=3, rows=[2])
    >>> counted[0].counts.tolist(), counted[0].recorded.tolist(), k
    ([[1, 1, 2]], [2], 2)
    """
    if packed.ndim != 3 or packed.shape[::2] != (len(rows), _HEAD + experts) or packed.dtype != np.int32:
        raise InvalidInput(
            f"counts: found {packed.dtype} {list(packed.shape)}, wanted int32 [{len(rows)}, layers, {_HEAD + experts}]"
        )
    real = np.array([number is not None for number in rows], dtype=bool)
    wanted = np.array([number or 0 for number in rows], dtype=np.int32)
    head, counts = packed[..., :_HEAD], packed[..., _HEAD:]
    k, recorded = int(head[real, :, 3].max(initial=0)), head[..., 4]
    for name, found, expected in (
        ("form", head[..., 0], _FORM),
        ("experts", head[..., 1], experts),
        ("rows", head[..., 2], wanted[:, None]),
        ("k", head[..., 3], k),
        ("counts", counts.sum(axis=-1, dtype=np.int64), recorded.astype(np.int64) * k),
        ("a count", np.minimum(counts.min(axis=-1, initial=0), 0), 0),
        ("rows counted", recorded, np.clip(recorded, 0, wanted[:, None])),
    ):
        wrong = np.argwhere((found != expected) & real[:, None])
        if len(wrong):
            sample, layer = (int(i) for i in wrong[0])
            value = np.broadcast_to(expected, found.shape)[sample, layer]
            raise InvalidInput(
                f"counts of sample {sample}, layer {layer}: found {name} {found[sample, layer]}, wanted {value}"
            )
    narrow = _narrow(counts)
    narrow[~real] = 0
    recorded = recorded * real[:, None]
    return [Counted(*one) for one in zip(narrow, recorded, (~real).tolist(), strict=True)], k


def without_dense_layers(counted: Sequence[Counted | None]) -> list[Counted | None]:
    """Engines that send all layers send zeros for dense ones, so that no row names an expert but the first: layers with
    experts alone. As it is where samples have different layers, or none has routes.

    >>> one = Counted(np.array([[3, 0], [2, 1]], dtype=np.uint16), np.array([3, 3], dtype=np.int32))
    >>> [some.counts.tolist() for some in without_dense_layers([one]) if some]
    [[[2, 1]]]
    """
    known = [some for some in counted if some is not None]
    if len({some.counts.shape for some in known}) != 1:
        return list(counted)
    kept = np.zeros(known[0].counts.shape[0], dtype=bool)
    for some in known:
        kept |= some.counts[:, 1:].any(axis=1)
        if kept.all():
            return list(counted)
    if not kept.any():
        return list(counted)
    return [some and Counted(some.counts[kept], some.recorded[kept], some.made_up) for some in counted]


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


def _narrow(counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return counts.astype(np.uint16 if counts.max(initial=0) < 1 << 16 else np.uint32)
