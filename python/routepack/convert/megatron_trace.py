# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core router traces (`--moe-routing-trace-path`): `router_trace_rank{r}.jsonl`, summed demand.

A line per step, layer and rank: {step, stage: "pre_dispatch", block, layer, rank, num_tokens, topk, top_indices}. Token
slices of a rank without sample identity: enough to place experts, not to pack. Ids are logical. MTP layers (block
"mtp") are left out. Layer numbers of a hooked model are those within a pipeline stage, and a record does not say which:
stages are to be converted apart. Source: megatron/core/transformer/moe/router_trace.py at commit d98e8a64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack.convert.errors import FormatError, shown
from routepack.convert.io_jsonl import integer, objects
from routepack.convert.options import Options, Path
from routepack.convert.sample import Demand


def _indices(record: dict[str, Any], top_k: int, where: str) -> npt.NDArray[np.int64]:
    value = record.get("top_indices")
    tokens = integer(record, "num_tokens", where)
    if tokens == 0 and value == []:
        return np.empty((0, top_k), dtype=np.int64)
    try:
        ids = np.array(value)
    except (ValueError, OverflowError, RecursionError):
        ids = np.empty(0)
    if ids.dtype.kind != "i" or ids.ndim != 2 or ids.shape != (len(ids) if tokens is None else tokens, top_k):
        raise FormatError(
            f"{where}, top_indices: found {ids.dtype} {list(ids.shape)}, wanted integers [{tokens}, {top_k}] "
            "(num_tokens, topk)"
        )
    return ids.astype(np.int64)


def read(path: Path, options: Options) -> Iterator[Demand]:
    """The demand of one file, by decoder layer. Only `options.steps`, when given."""
    experts = options.need_experts()
    counts: dict[int, npt.NDArray[np.int64]] = {}
    top_k = options.top_k
    for where, record in objects(path, options.limits):
        if record.get("stage") != "pre_dispatch":
            raise FormatError(
                f"{where}, stage: found {shown(record.get('stage'))}, wanted pre_dispatch: other ids may be physical"
            )
        step, layer, width = (integer(record, key, where) for key in ("step", "layer", "topk"))
        if layer is None or width is None or width < 1:
            raise FormatError(
                f"{where}: found {shown(sorted(record))}, wanted a router trace record with layer and topk"
            )
        if record.get("block") != "decoder" or (options.steps is not None and step not in options.steps):
            continue
        top_k = width if top_k is None else top_k
        if width != top_k:
            raise FormatError(f"{where}, topk: found {width}, wanted {top_k}")
        ids = _indices(record, width, where)
        ids = ids[~(ids == -1).all(axis=1)]  # replayed rows without a route
        if ids.size and (ids.min() < 0 or ids.max() >= experts):
            wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise FormatError(f"{where}, top_indices: found expert {wrong}, wanted 0 to {experts - 1}")
        counts.setdefault(layer, np.zeros(experts, dtype=np.int64))
        counts[layer] += np.bincount(ids.ravel(), minlength=experts)
    if not counts:
        raise FormatError(f"{path}: found no record of a decoder layer, wanted at least one")
    numbers = tuple(sorted(counts))
    yield Demand(str(path), "top_indices", np.stack([counts[n] for n in numbers]), top_k, numbers)
