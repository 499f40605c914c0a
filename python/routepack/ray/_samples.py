# SPDX-License-Identifier: Apache-2.0
"""Samples as they come from rollouts, and what is left of them when they are counted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from routepack._arrays import ids_array, mask_array
from routepack._errors import Error, InvalidInput
from routepack._replay import Invalid, Missing, count_routes_batch
from routepack.ray._answers import forget_frames, one_line

_HERE_S = 0.01  # for fetching an object of this node
_AT_ONCE = 64  # samples: bounds the 4-byte counts that counting makes before they are narrowed


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample of a rollout."""

    id: int  #: unique in its window; the same id again replaces what was counted for it
    routes: Any  #: expert ids [rows, layers, k], or an object reference of that
    length: int | None = None  #: tokens, when there are more than rows; None: not known here
    mask: Any = None  #: one value per row; 0 leaves the row out


@dataclass(frozen=True)
class CountOptions:
    """How counting actors count: arguments of `routepack.count_routes`."""

    experts: int
    layers: tuple[int, ...] | None = None
    missing: Missing = "leave-out"
    invalid: Invalid = "refuse"
    physical_to_logical: npt.NDArray[np.int32] | None = None
    threads: int = 1
    fetch_s: float = 30.0  #: what fetching the routes behind object references may take, of a whole call
    windows: int = 8  #: windows that an actor keeps; one more drops the one that was filled last the longest ago


@dataclass(frozen=True, eq=False)
class Row:
    """One sample, counted."""

    counts: npt.NDArray[Any]  #: uint16 or uint32 [L, E]
    recorded: npt.NDArray[np.int32]  #: [L]
    length: int  #: -1: not known


@dataclass(frozen=True, eq=False)
class Index:
    """What a part holds: small, and read by the driver."""

    ids: npt.NDArray[np.int64]  #: [n]
    lengths: npt.NDArray[np.int32]  #: [n], -1: not known
    recorded: npt.NDArray[np.int32]  #: [n], rows at the layer that has most
    shape: tuple[int, int]  #: layers and experts; (0, 0) of a part without samples
    born: str = ""  #: another one when the actor was started again
    others: int = 0  #: samples of the window that were not asked for
    replaced: int = 0  #: samples that replaced one of the same id
    dropped: int = 0  #: samples of windows that were dropped since the last time
    refused: tuple[str, ...] = ()  #: why samples were not counted, one line each


@dataclass(frozen=True, eq=False)
class Part:
    """Counts of some samples: large, and read by the planner alone, where they lie in the object store."""

    counts: npt.NDArray[Any]  #: uint16 or uint32 [n, L, E]
    recorded: npt.NDArray[np.int32]  #: [n, L]


def plain_samples(samples: Sequence[Sample]) -> list[tuple[int, Any, int | None, Any]]:
    """Samples as they travel: numpy arrays, which Ray does not copy on the way in, or object references."""
    made: list[tuple[int, Any, int | None, Any]] = []
    for sample in samples:
        reference = isinstance(sample.routes, ray.ObjectRef)
        routes = sample.routes if reference else ids_array(sample.routes, f"routes of sample {sample.id}")
        length = None if sample.length is None else int(sample.length)
        made.append((int(sample.id), routes, length, mask_array(sample.mask)))
    return made


def count_samples(
    samples: Sequence[tuple[int, Any, int | None, Any]], options: CountOptions
) -> tuple[dict[int, Row], list[tuple[int, str]]]:
    """Counts what can be counted; a sample that cannot is refused with one line, and harms no other."""
    rows: dict[int, Row] = {}
    refused: list[tuple[int, str]] = []
    until = time.monotonic() + options.fetch_s
    for begin in range(0, len(samples), _AT_ONCE):
        some = []
        for id, routes, length, mask in samples[begin : begin + _AT_ONCE]:
            try:
                array = routes
                if isinstance(routes, ray.ObjectRef):  # once the time is over, still what is on this node already
                    array = ray.get(routes, timeout=max(_HERE_S, until - time.monotonic()))
                some.append((id, ids_array(array), length, mask))
            except Exception as error:
                refused.append((id, f"its routes cannot be had: {type(error).__name__}: {one_line(error)}"))
                forget_frames(error)
        try:
            rows.update(_counted(some, options))
        except Error:
            for one in some:
                try:
                    rows.update(_counted([one], options))
                except Error as error:
                    refused.append((one[0], one_line(error)))
    return rows, refused


def _counted(some: Sequence[tuple[int, Any, int | None, Any]], options: CountOptions) -> dict[int, Row]:
    if not some:
        return {}
    # Without a length as many tokens as rows.
    lengths = [routes.shape[0] if length is None and routes.ndim else length or 0 for _, routes, length, _ in some]
    counts, report = count_routes_batch(
        [routes for _, routes, _, _ in some],
        experts=options.experts,
        masks=[mask for _, _, _, mask in some],
        missing=options.missing,
        layers=options.layers,
        physical_to_logical=options.physical_to_logical,
        lengths=lengths,
        invalid=options.invalid,
        threads=options.threads,
    )
    return {
        id: Row(narrow(counts[i]), report.recorded[i].copy(), -1 if length is None else length)
        for i, (id, _, length, _) in enumerate(some)
    }


def narrow(counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy in 2 bytes each, or 4 where they do not fit."""
    return np.array(counts, dtype=np.uint16 if counts.max(initial=0) < 1 << 16 else np.uint32)


def made_part(rows: dict[int, Row], **rest: Any) -> tuple[Index, Part]:
    """Rows, which have equal shapes, as a part."""
    values = list(rows.values())
    if not values:
        empty = np.zeros(0, dtype=np.int32)
        return (
            Index(np.zeros(0, dtype=np.int64), empty, empty, (0, 0), **rest),
            Part(np.zeros((0, 0, 0), dtype=np.uint16), np.zeros((0, 0), dtype=np.int32)),
        )
    wide = any(row.counts.dtype.itemsize > 2 for row in values)
    shape = values[0].counts.shape
    counts = np.empty((len(values), *shape), dtype=np.uint32 if wide else np.uint16)
    recorded = np.empty((len(values), shape[0]), dtype=np.int32)
    for i, row in enumerate(values):
        counts[i], recorded[i] = row.counts, row.recorded
    index = Index(
        np.fromiter(rows, dtype=np.int64, count=len(rows)),
        np.array([row.length for row in values], dtype=np.int32),
        recorded.max(axis=1, initial=0),
        (shape[0], shape[1]),
        **rest,
    )
    return index, Part(counts, recorded)


def checked_step(
    ids: Any, lengths: Any, groups: Any = None, atomic: Any = None
) -> tuple[
    npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32] | None, npt.NDArray[np.int32] | None
]:
    """The samples of a step, as the driver names them. @raises InvalidInput"""
    names = _column("ids", ids, np.int64)
    columns: list[npt.NDArray[np.int32] | None] = []
    for what, values in (("lengths", lengths), ("groups", groups), ("atomic", atomic)):
        column = None if values is None else _column(what, values, np.int32)
        if column is not None and len(column) != len(names):
            raise InvalidInput(f"{what}: found {len(column)}, wanted {len(names)}, one per id")
        columns.append(column)
    known, times = np.unique(names, return_counts=True)
    if len(known) != len(names):
        raise InvalidInput(f"ids: found {int(known[times > 1][0])} twice, wanted each sample once")
    tokens = columns[0]
    if tokens is None:
        raise InvalidInput("lengths: found none, wanted the tokens of each sample")
    if len(tokens) and tokens.min() < 1:
        raise InvalidInput(f"lengths: found {int(tokens.min())}, wanted 1 or more tokens")
    return names, tokens, columns[1], columns[2]


def _column(what: str, values: Any, dtype: type[np.signedinteger[Any]]) -> npt.NDArray[Any]:
    found = np.asarray(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise InvalidInput(f"{what}: found {found.dtype.name} of {found.ndim} dimensions, wanted a list of integers")
    limits = np.iinfo(dtype)
    if found.size and not (limits.min <= int(found.min()) and int(found.max()) <= limits.max):
        raise InvalidInput(f"{what}: found {found.max()}, wanted {limits.bits}-bit integers")
    return found.astype(dtype)
