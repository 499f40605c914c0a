# SPDX-License-Identifier: Apache-2.0
"""Samples in, one window out. Raw routes are counted and let go one sample at a time."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

import routepack
from routepack.convert import counting, layers
from routepack.convert.errors import FormatError, InvalidInput, shown
from routepack.convert.options import MAX_SIZE, Options
from routepack.convert.report import Report
from routepack.convert.sample import Routes, Sample


class WindowMaker:
    """Collects samples. Per sample it keeps counts [layers, experts] as u16 or u32, a length and recorded rows."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._experts = options.need_experts()
        self._top_k = options.top_k
        self._axis: int | None = None
        self._columns: tuple[int, ...] | None = None
        self._map: npt.NDArray[np.int64] | None = None
        self._shape_from = ""  # the sample that fixed axis and top_k
        self._lengths: list[int] = []
        self._counts: list[npt.NDArray[Any] | None] = []
        self._recorded: list[npt.NDArray[np.int64] | None] = []
        self._groups: list[Hashable] = []
        self._ids: list[int | None] = []
        self._seen: npt.NDArray[np.int64] | None = None  # [layers] evidence of a capture, summed over samples

    def add(self, sample: Sample) -> None:
        """Counts one sample. @raises FormatError naming file, sample and tensor."""
        if not 1 <= sample.tokens <= MAX_SIZE:
            raise FormatError(f"{sample.where}: found {sample.tokens} tokens, wanted 1 to {MAX_SIZE}")
        counts: npt.NDArray[Any] | None = None
        recorded: npt.NDArray[np.int64] | None = None
        if sample.routes is not None:
            where = f"{sample.where}, {sample.key}"
            self._check_shape(sample.routes, sample, where)
            ids, mask = self._rows_to_count(sample.routes, sample, where)
            found = counting.count(
                ids,
                experts=self._experts,
                mask=mask,
                missing=self._options.missing,
                columns=self._columns,
                physical_to_logical=self._map,
                length=sample.tokens if self._options.missing == "spread" else None,
                where=where,
            )
            recorded = self._recorded_rows(found, sample, where)
            counts = found.astype(np.uint16 if found.max(initial=0) < 2**16 else np.uint32)
            self._note_evidence(found, recorded)
        self._lengths.append(sample.tokens)
        self._counts.append(counts)
        self._recorded.append(recorded)
        self._groups.append(sample.group)
        self._ids.append(sample.id)

    def _check_shape(self, routes: Routes, sample: Sample, where: str) -> None:
        if routes.ndim != 3:
            raise FormatError(f"{where}: found shape {list(routes.shape)}, wanted [rows, layers, top_k]")
        rows, axis, top_k = routes.shape
        if sample.first_row < 0 or sample.first_row + rows > sample.tokens:
            raise FormatError(
                f"{where}: found {rows} rows from token {sample.first_row} on, wanted at most {sample.tokens} tokens"
            )
        if axis < 1 or top_k < 1:
            raise FormatError(f"{where}: found shape {list(routes.shape)}, wanted at least one layer and one expert")
        if self._top_k is None:
            self._top_k, self._shape_from = top_k, sample.where
        if top_k != self._top_k:
            before = f", as in {self._shape_from}" if self._shape_from else ""
            raise FormatError(f"{where}: found {top_k} experts per token, wanted {self._top_k}{before}")
        if top_k > self._experts:
            raise FormatError(f"{where}: found {top_k} experts per token, wanted at most {self._experts}")
        if self._axis is None:
            self._columns = layers.columns(axis, self._options, where)
            self._axis, self._shape_from = axis, sample.where
            self._map = self._map_of_layers(axis, where)
        if axis != self._axis:
            raise FormatError(f"{where}: found {axis} layers, wanted {self._axis}, as in {self._shape_from}")

    def _map_of_layers(self, axis: int, where: str) -> npt.NDArray[np.int64] | None:
        """The rows of the physical map for the counted layers."""
        given = self._options.physical_to_logical
        if given is None:
            return None
        if int(given.max()) >= self._experts:
            raise InvalidInput(f"physical_to_logical: found expert {given.max()}, wanted 0 to {self._experts - 1}")
        counted = axis if self._columns is None else len(self._columns)
        if given.shape[0] == counted:
            return given
        if self._columns is not None and given.shape[0] == axis:
            return given[list(self._columns)]
        numbers = self._options.layers
        if numbers is not None and self._columns is None and given.shape[0] > numbers[-1]:
            return given[list(numbers)]  # the file has MoE layers only, the map all of them
        raise FormatError(f"{where}: found {axis} layers, wanted {given.shape[0]}, as in physical_to_logical")

    def _rows_to_count(self, routes: Routes, sample: Sample, where: str) -> tuple[Routes, npt.NDArray[np.bool_] | None]:
        """Leaves the never routed last token out of what the policy for missing rows sees, or puts all of them in."""
        rows, mask = routes.shape[0], sample.mask
        if mask is not None and mask.shape != (rows,):
            raise FormatError(f"{where}: found a mask of shape {list(mask.shape)}, wanted [{rows}]")
        if self._options.missing == "refuse":
            absent = sample.tokens - 1 - (sample.first_row + rows)
            if sample.first_row > 0 or absent > 0:
                raise FormatError(
                    f"{where}: found {rows} rows from token {sample.first_row} on, wanted {sample.tokens - 1} from 0 on"
                )
            if sample.first_row + rows == sample.tokens and not np.any(routes[-1] > 0):
                return routes[:-1], None if mask is None else mask[:-1]
        if self._options.missing == "spread":
            if sample.first_row > 0:  # rows that lack in front are missing as those behind are
                wide = np.int64 if routes.dtype.itemsize >= 4 else np.int32
                padded = np.full((sample.first_row + rows, *routes.shape[1:]), -1, dtype=wide)
                padded[sample.first_row :] = routes
                routes, mask = padded, None if mask is None else np.r_[np.zeros(sample.first_row, np.bool_), mask]
            if mask is not None:  # copies and fake routes are missing, too; padding never comes here
                routes = np.where(mask[:, None, None], routes.astype(np.int64), -1)
            return routes, None
        return routes, mask

    def _recorded_rows(self, counts: npt.NDArray[np.int64], sample: Sample, where: str) -> npt.NDArray[np.int64]:
        assert self._top_k is not None
        rows: npt.NDArray[np.int64]
        rows, rest = np.divmod(counts.sum(axis=1), self._top_k)
        if rest.any():
            layer = int(np.flatnonzero(rest)[0])
            raise FormatError(
                f"{where}: found {int(counts[layer].sum())} routes at layer {layer}, wanted a multiple of top_k, "
                f"{self._top_k}: a row is recorded in part"
            )
        if rows.max(initial=0) > sample.tokens:
            raise FormatError(f"{where}: found {int(rows.max())} routed tokens, wanted at most {sample.tokens}")
        return rows

    def _note_evidence(self, counts: npt.NDArray[np.int64], recorded: npt.NDArray[np.int64]) -> None:
        """With one expert per token a row of zeros may be a route; a whole layer on slot 0 is no evidence of one."""
        evidence = recorded
        if self._top_k == 1:
            first = np.zeros(len(counts), dtype=np.int64) if self._map is None else self._map[:, 0]
            evidence = recorded - counts[np.arange(len(counts)), first]
        self._seen = evidence.copy() if self._seen is None else self._seen + evidence

    def seal(self, where: str) -> tuple[routepack.Window, Report]:
        """The window of all samples so far. @raises FormatError when there is nothing in it."""
        if not self._lengths:
            raise FormatError(f"{where}: found no sample, wanted at least one")
        if self._seen is None or self._top_k is None or self._axis is None:
            raise FormatError(
                f"{where}: found no routes in any of {len(self._lengths)} samples: was recording them on?"
            )
        dense, numbers = 0, self._options.layers
        if numbers is not None:
            layers.refuse_empty(self._seen, numbers, where)
        else:
            dense = layers.leading_dense(self._seen, where)
            if dense > 0 or self._axis == self._options.num_layers:
                numbers = tuple(range(dense, self._axis))
        shape = (len(self._seen) - dense, self._experts)
        wide = any(c is not None and c.dtype == np.uint32 for c in self._counts)
        counts = np.zeros((len(self._lengths), *shape), dtype=np.uint32 if wide else np.uint16)
        recorded = np.zeros((len(self._lengths), shape[0]), dtype=np.int32)
        for i, (one, rows) in enumerate(zip(self._counts, self._recorded, strict=True)):
            if one is not None and rows is not None:
                counts[i], recorded[i] = one[dense:], rows[dense:]
        lengths = np.array(self._lengths, dtype=np.int32)
        flat = bool((recorded == recorded[:, :1]).all())
        window = routepack.Window.from_arrays(
            lengths=lengths,
            counts=counts,
            top_k=self._top_k,
            recorded=np.ascontiguousarray(recorded[:, 0]) if flat else recorded,
            groups=_groups(self._groups),
            ids=_ids(self._ids, where),
            layers=None if numbers is None else list(numbers),
            model=self._options.model,
        )
        total = int(recorded.sum(dtype=np.int64))
        tokens = int(lengths.sum(dtype=np.int64))
        report = Report(
            kind="samples",
            samples=len(lengths),
            tokens=tokens,
            layers=shape[0],
            experts=self._experts,
            top_k=self._top_k,
            recorded=total,
            missing=tokens * shape[0] - total,
            without_routes=int((recorded.max(axis=1) == 0).sum()),
            dense_layers=dense,
        )
        return window, report


def _groups(values: list[Hashable]) -> npt.NDArray[np.int32] | None:
    """Numbers in order of first appearance; samples without a group get one each; None when nobody has one."""
    if all(value is None for value in values):
        return None
    numbers: dict[Hashable, int] = {}
    return np.array(
        [
            numbers.setdefault(("own", i) if value is None else ("named", value), len(numbers))
            for i, value in enumerate(values)
        ],
        dtype=np.int32,
    )


def _ids(values: list[int | None], where: str) -> npt.NDArray[np.int64] | None:
    known = [value for value in values if value is not None]
    if len(known) != len(values):
        return None
    for value in known:
        if not -(2**63) <= value < 2**63:
            raise FormatError(f"{where}: found sample id {shown(value)}, wanted 64 bits")
    return np.array(known, dtype=np.int64)
