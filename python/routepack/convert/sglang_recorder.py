# SPDX-License-Identifier: Apache-2.0
"""SGLang's expert distribution recorder: `expert_distribution_recorder_*.pt`, summed demand.

Modes stat and stat_approx: `logical_count` int32 [buffered steps, num_layers, E]. Modes per_pass and per_token:
`records`, each with `global_physical_count` [num_layers, slots] or `topk_ids_of_layer` [num_layers, tokens, 8] (width 8
whatever k is, the rest and dense layers -1), and `last_physical_to_logical_map` [num_layers, slots], by which physical
slots, copies of an expert included, are brought back to experts. Source: python/sglang/srt/eplb/expert_distribution.py
at commit 02295fe5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack.convert import io_torch
from routepack.convert.errors import FormatError, shown
from routepack.convert.options import Options, Path
from routepack.convert.sample import Demand


def _integers(value: Any, dimensions: int, where: str) -> npt.NDArray[Any]:
    if not io_torch.is_tensor(value):
        raise FormatError(f"{where}: found a {type(value).__name__}, wanted a tensor")
    found = io_torch.array(value, where)
    if found.ndim != dimensions or found.dtype.kind not in "iu":
        raise FormatError(
            f"{where}: found {found.dtype} {list(found.shape)}, wanted integers of {dimensions} dimensions"
        )
    return found


def _checked(counts: npt.NDArray[np.int64], where: str) -> npt.NDArray[np.int64]:
    if counts.size == 0 or counts.min() < 0:
        raise FormatError(
            f"{where}: found {int(counts.min(initial=0))} tokens of an expert in {list(counts.shape)}, wanted counts"
        )
    return counts


def _logical(
    slots: npt.NDArray[np.int64], maps: npt.NDArray[np.int64], experts: int, where: str
) -> npt.NDArray[np.int64]:
    """Counts [layers, slots] by expert."""
    if slots.shape != maps.shape:
        raise FormatError(
            f"{where}: found counts of {list(slots.shape)} slots, wanted {list(maps.shape)}, as in the map"
        )
    found = np.zeros((len(slots), experts), dtype=np.int64)
    for layer in range(len(slots)):
        np.add.at(found[layer], maps[layer], slots[layer])
    return found


def _slot_counts(record: dict[str, Any], slots: int, where: str) -> tuple[npt.NDArray[np.int64], int | None]:
    """([layers, slots], k) of one record."""
    if record.get("topk_ids_of_layer") is None:
        counts = _integers(record.get("global_physical_count"), 2, f"{where}, global_physical_count")
        return counts.astype(np.int64), None
    at = f"{where}, topk_ids_of_layer"
    ids = _integers(record["topk_ids_of_layer"], 3, at)
    if ids.size and (ids.min() < -1 or ids.max() >= slots):
        wrong = int(ids.min()) if ids.min() < -1 else int(ids.max())
        raise FormatError(f"{at}: found slot {wrong}, wanted -1 to {slots - 1}")
    counts = np.zeros((len(ids), slots), dtype=np.int64)
    for layer, rows in enumerate(ids):
        counts[layer] = np.bincount(rows.ravel().astype(np.int64) + 1, minlength=slots + 1)[1:]
    used = (ids >= 0).any(axis=(0, 1)) if ids.size else np.zeros(0, dtype=np.bool_)
    return counts, int(used.sum()) or None


def read(path: Path, options: Options) -> Iterator[Demand]:
    """The demand of one file, every recorded pass summed."""
    value = io_torch.load(path, options.limits)
    if not isinstance(value, dict) or not ({"logical_count", "records"} & set(value)):
        raise FormatError(
            f"{path}: found {shown(type(value).__name__)}, wanted a recorder file with logical_count or records"
        )
    if value.get("logical_count") is not None:
        where = f"{path}, logical_count"
        steps = _integers(value["logical_count"], 3, where)
        if options.experts is not None and steps.shape[2] != options.experts:
            raise FormatError(f"{where}: found {steps.shape[2]} experts, wanted {options.experts}")
        counts = _checked(steps.sum(axis=0, dtype=np.int64), where)
        yield Demand(str(path), "logical_count", counts, options.top_k)
        return
    maps = _integers(value.get("last_physical_to_logical_map"), 2, f"{path}, last_physical_to_logical_map").astype(
        np.int64
    )
    experts = options.experts if options.experts is not None else int(maps.max(initial=-1)) + 1
    if maps.size == 0 or maps.min() < 0 or maps.max() >= experts:
        raise FormatError(
            f"{path}, last_physical_to_logical_map: found expert {maps.max(initial=-1)}, wanted 0 to {experts - 1}"
        )
    records = value.get("records")
    if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
        raise FormatError(f"{path}, records: found {shown(type(records).__name__)}, wanted a list of records")
    total = np.zeros((len(maps), experts), dtype=np.int64)
    top_k = options.top_k
    for i, record in enumerate(records):
        where = f"{path}: record {i}"
        slots, width = _slot_counts(record, maps.shape[1], where)
        top_k = width if top_k is None else top_k
        if width is not None and width != top_k:
            raise FormatError(f"{where}, topk_ids_of_layer: found {width} experts per token, wanted {top_k}")
        total += _logical(_checked(slots, where), maps, experts, where)
    yield Demand(str(path), "records", total, top_k)
