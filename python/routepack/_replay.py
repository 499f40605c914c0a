# SPDX-License-Identifier: Apache-2.0
"""Counting recorded routes, and building windows from them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from routepack import _core
from routepack._arrays import host_array, ids_array, map_array, mask_array
from routepack._errors import InvalidInput

Missing = Literal["leave-out", "spread", "refuse"]
Invalid = Literal["refuse", "leave-out"]
Rows = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class CountReport:
    """What the rows of routes were, each int32 [L], or [N, L] for a batch."""

    recorded: Rows  #: rows that were counted
    absent: Rows  #: tokens beyond the last row
    sentinel: Rows  #: rows of -1
    zero: Rows  #: rows of nothing but 0, «not captured»
    invalid: Rows  #: rows with an id that no expert has, left out
    spread: Rows  #: missing rows whose load was spread
    duplicates: Rows  #: counted rows that name an expert twice

    @property
    def missing(self) -> Rows:
        """Tokens without a route."""
        return self.absent + self.sentinel + self.zero + self.invalid

    @property
    def not_captured(self) -> npt.NDArray[np.bool_]:
        """Layers without a single recorded row: dense ones, or ones that the engine did not record."""
        return np.asarray(self.recorded == 0)


def _report(columns: Rows) -> CountReport:
    return CountReport(*(np.ascontiguousarray(columns[..., i]) for i in range(7)))


def count_routes(
    ids: Any,
    *,
    experts: int,
    mask: Any = None,
    missing: Missing = "leave-out",
    layers: Sequence[int] | None = None,
    physical_to_logical: Any = None,
    length: int | None = None,
    invalid: Invalid = "refuse",
) -> npt.NDArray[np.uint32]:
    """Counts [L, E] of the expert ids [tokens, layers, k] of one sample.

    Rows of -1, and of nothing but zeros, are routes that were not recorded. `count_routes_report` also says how many.

    :param ids: uint8, int8, uint16, int16, int32 or int64, any strides
    :param experts: routed experts per layer, E
    :param mask: one value per token; 0 leaves the token out (padding, the prompt, …)
    :param missing: tokens without a route add nothing, or what the sample's other tokens add on average, or are refused
    :param layers: which of the layers to count, by their place in `ids`; None: all
    :param physical_to_logical: [L, slots] when ids are physical: the expert in each slot
    :param length: tokens of the sample when there are more than rows: the last one was never routed
    :param invalid: what becomes of rows with ids that no expert has
    :raises InvalidInput: naming layer, token, found and wanted

    >>> ids = np.array([[[0, 2]], [[2, 1]], [[-1, -1]]], dtype=np.int32)
    >>> count_routes(ids, experts=4)
    array([[1, 1, 2, 0]], dtype=uint32)
    >>> count_routes(ids, experts=4, missing="spread")
    array([[2, 1, 3, 0]], dtype=uint32)
    """
    return count_routes_report(
        ids,
        experts=experts,
        mask=mask,
        missing=missing,
        layers=layers,
        physical_to_logical=physical_to_logical,
        length=length,
        invalid=invalid,
    )[0]


def count_routes_report(
    ids: Any,
    *,
    experts: int,
    mask: Any = None,
    missing: Missing = "leave-out",
    layers: Sequence[int] | None = None,
    physical_to_logical: Any = None,
    length: int | None = None,
    invalid: Invalid = "refuse",
) -> tuple[npt.NDArray[np.uint32], CountReport]:
    """Like `count_routes`, with a report of what was recorded and what was not.

    >>> ids = np.array([[[0, 2]], [[2, 1]], [[0, 0]]], dtype=np.uint8)
    >>> counts, report = count_routes_report(ids, experts=4, length=4)
    >>> report.recorded.tolist(), report.zero.tolist(), report.absent.tolist(), report.missing.tolist()
    ([2], [1], [1], [2])
    """
    counts, columns = _core.count_routes(
        ids_array(ids),
        experts,
        mask_array(mask),
        missing,
        layers,
        map_array(physical_to_logical),
        length,
        invalid,
    )
    return counts, _report(columns)


def count_routes_batch(
    ids: Sequence[Any] | Any,
    *,
    experts: int,
    masks: Sequence[Any] | Any = None,
    missing: Missing = "leave-out",
    layers: Sequence[int] | None = None,
    physical_to_logical: Any = None,
    lengths: Sequence[int] | None = None,
    invalid: Invalid = "refuse",
    threads: int = 0,
) -> tuple[npt.NDArray[np.uint32], CountReport]:
    """Counts [N, L, E] of many samples on several threads (0: one per core), and their report.

    `ids` is a list of [tokens, layers, k], or one padded array [N, tokens, layers, k] with `masks` [N, tokens].

    >>> padded = np.array([[[[1]], [[0]]], [[[1]], [[1]]]], dtype=np.int16)
    >>> counts, report = count_routes_batch(padded, experts=2, masks=[[1, 0], [1, 1]])
    >>> counts.tolist(), report.recorded.tolist()
    ([[[0, 1]], [[0, 2]]], [[1], [2]])
    """
    samples = [ids_array(sample) for sample in ids]
    kept: list[Any] = [None] * len(samples) if masks is None else [mask_array(mask) for mask in masks]
    tokens: list[int | None] = [None] * len(samples) if lengths is None else [int(n) for n in lengths]
    for name, values in (("masks", kept), ("lengths", tokens)):
        if len(values) != len(samples):
            raise InvalidInput(f"{name}: found {len(values)}, wanted {len(samples)}, one per sample")
    counts, columns = _core.count_routes_batch(
        samples, experts, kept, missing, layers, map_array(physical_to_logical), tokens, invalid, threads
    )
    return counts, _report(columns)


def routes_from_bytes(
    data: Any, *, dtype: npt.DTypeLike, layers: int, top_k: int, tokens: int | None = None
) -> npt.NDArray[Any]:
    """Raw bytes, little-endian and in C order, as ids [tokens, layers, top_k], without a copy.

    :raises InvalidInput: unless the bytes are exactly that many

    >>> routes_from_bytes(bytes([1, 2, 3, 4]), dtype="uint8", layers=1, top_k=2).tolist()
    [[[1, 2]], [[3, 4]]]
    """
    kind = np.dtype(dtype).newbyteorder("<")
    if layers < 1 or top_k < 1:
        raise InvalidInput(f"ids: found {layers} layers of {top_k} ids, wanted 1 or more of each")
    raw = np.frombuffer(data, dtype=np.uint8)
    row = layers * top_k * kind.itemsize
    wanted = f"{layers} layers of {top_k} ids of {kind.itemsize} bytes"
    if tokens is None and raw.size % row:
        raise InvalidInput(f"ids: found {raw.size} bytes, wanted a multiple of {row} for {wanted}")
    if tokens is not None and raw.size != tokens * row:
        raise InvalidInput(f"ids: found {raw.size} bytes, wanted {tokens * row} for {tokens} tokens of {wanted}")
    ids: npt.NDArray[Any] = raw.view(kind).reshape(-1, layers, top_k)
    return ids


def join_segments(segments: Iterable[tuple[int, Any]]) -> npt.NDArray[Any]:
    """One sample's ids from the segments of an interrupted rollout, given as (first token, ids).

    A segment that repeats what an earlier one covered replaces it from there on: those tokens were forwarded again, and
    are counted once. Engines that return the whole prefix with every segment start all of them at 0.

    >>> first, second = np.array([[[1]], [[2]]]), np.array([[[2]], [[3]]])
    >>> join_segments([(0, first), (1, second)]).tolist()
    [[[1]], [[2]], [[3]]]
    """
    joined: npt.NDArray[Any] | None = None
    for number, (start, ids) in enumerate(segments):
        part = ids_array(ids, f"segments[{number}]")
        if part.ndim != 3:
            raise InvalidInput(f"segments[{number}]: found {part.ndim} dimensions, wanted 3: [tokens, layers, top_k]")
        before = 0 if joined is None else len(joined)
        if not 0 <= start <= before:
            raise InvalidInput(f"segments[{number}]: found first token {start}, wanted 0 to {before}: no gap")
        if joined is None:
            joined = part
        elif part.shape[1:] != joined.shape[1:]:
            raise InvalidInput(
                f"segments[{number}]: found {part.shape[1]} layers with {part.shape[2]} ids per row, "
                f"wanted {joined.shape[1]} with {joined.shape[2]} as in the segments before"
            )
        else:
            joined = np.concatenate([joined[:start], part])
    if joined is None:
        raise InvalidInput("segments: found none, wanted 1 or more")
    return joined


class WindowBuilder:
    """Collects samples as rollouts finish and seals them into a window.

    Safe to use from several threads; counting runs without the GIL. Counts beyond `memory_bytes` wait in an unnamed
    temporary file. Samples are in the order of their ids, or of arrival when they have none. A call that raises changes
    nothing.

    >>> builder = WindowBuilder(experts=4, top_k=2)
    >>> report = builder.add(np.array([[[0, 2]], [[2, 1]]], dtype=np.uint8), length=3)
    >>> report.missing.tolist()
    [1]
    >>> builder.window().counts.tolist()
    [[[1, 1, 2, 0]]]

    :param layers: global numbers of the layers, kept in the window; None: unknown
    :param pad_counts: uint32 [L, E], expert load of one padding token in units of 1/65536
    """

    def __init__(
        self,
        *,
        experts: int,
        top_k: int,
        layers: Sequence[int] | None = None,
        model: str | None = None,
        pad_counts: Any = None,
        memory_bytes: int = 64 << 20,
        spill_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self._core = _core.WindowBuilder(experts, top_k, layers, model, pad_counts, memory_bytes, spill_folder)

    def add(
        self,
        ids: Any,
        *,
        length: int | None = None,
        mask: Any = None,
        id: int | None = None,
        group: int | None = None,
        atomic: int | None = None,
        missing: Missing = "leave-out",
        invalid: Invalid = "refuse",
        layers: Sequence[int] | None = None,
        physical_to_logical: Any = None,
    ) -> CountReport:
        """Counts the routes of a sample (see `count_routes`) and keeps the result.

        :param length: tokens that will be trained; None: as many as there are rows of ids
        """
        array = ids_array(ids)
        tokens = length if length is not None else array.shape[0] if array.ndim else 0
        columns = self._core.add_routes(
            array,
            tokens,
            mask_array(mask),
            id,
            group,
            atomic,
            missing,
            invalid,
            layers,
            map_array(physical_to_logical),
        )
        return _report(columns)

    def add_counts(
        self,
        counts: Any,
        *,
        length: int,
        recorded: Any = None,
        id: int | None = None,
        group: int | None = None,
        atomic: int | None = None,
    ) -> None:
        """Keeps counts [L, E] of a sample.

        :param recorded: rows that they were counted from, one number or one per layer; None: what the counts say
        """
        values = host_array(counts, "counts")
        if values.size and (values.min() < 0 or values.max() >= 2**32):
            raise InvalidInput("counts: found a count below 0 or above 2^32 - 1, wanted a number of tokens")
        rows = None
        if recorded is not None:
            rows = np.atleast_1d(np.asarray(recorded, dtype=np.int32))
        self._core.add_counts(np.ascontiguousarray(values, dtype=np.uint32), length, rows, id, group, atomic)

    def merge(self, part: _core.Window | str | os.PathLike[str]) -> None:
        """Adds every sample of a window, or of a window file: the partial result of another worker."""
        if isinstance(part, _core.Window):
            self._core.merge(part, "window")
        else:
            path = os.fspath(part)
            self._core.merge(_core.Window.load(path), path)

    def window(self) -> _core.Window:
        """The window so far. The builder keeps its samples."""
        return self._core.window()

    def seal(self, path: str | os.PathLike[str]) -> None:
        """Writes the window whole or not at all, and starts the next one empty. If that fails, nothing is lost."""
        self._core.seal(os.fspath(path))

    @property
    def samples(self) -> int:
        """Samples so far."""
        return self._core.samples

    def __len__(self) -> int:
        return self._core.samples


def join_windows(parts: Iterable[_core.Window | str | os.PathLike[str]]) -> _core.Window:
    """One window of all samples of `parts` (windows or window files), part after part.

    :raises InvalidInput: when they differ in experts, top_k, layers, model or pad_counts, or share an id

    >>> counts = np.array([[[3, 1]]], dtype=np.uint16)
    >>> one = _core.Window.from_arrays(lengths=np.array([4], dtype=np.int32), counts=counts, top_k=1)
    >>> join_windows([one, one]).samples
    2
    """
    return _core.join_windows(
        [part if isinstance(part, _core.Window) else _core.Window.load(os.fspath(part)) for part in parts]
    )
