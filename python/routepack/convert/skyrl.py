# SPDX-License-Identifier: Apache-2.0
"""SkyRL: wire payloads in JSON lines, and training batches.

Line: the response of `/skyrl/v1/generate`, {choices: [{token_ids, routed_experts: {data, shape, dtype}}]}, type uint8,
int16 or int32 by the largest id. t from `prompt_token_ids` of the line and `token_ids` of the choice, else rows + 1.
Batch: `rollout_expert_indices` with `attention_mask` [batch, width], padded on the left, and `router_padding_mask`
[batch, width] (True: no captured route). Aligned to the sequence, [batch, width, layers, k], or to the response,
[batch, response width, layers, k] with `response_mask`. Padding, and tokens past the captured rows, have the fake route
0, 1, …, k-1 at every layer. Source: skyrl/backends/skyrl_train/inference_servers/generate_wire.py,
skyrl/train/dataset/preprocess.py, skyrl/backends/skyrl_train/utils/replay_utils.py at commit a9564572.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack.convert import batches, wire
from routepack.convert.errors import FormatError, shown
from routepack.convert.io_arrays import open_arrays
from routepack.convert.io_jsonl import length_of, objects
from routepack.convert.lines import GROUPS, IDS, joined
from routepack.convert.options import Options, Path
from routepack.convert.sample import Routes, Sample
from routepack.convert.slime import group_of, id_of
from routepack.convert.tensor import Array, ArrayFile, Tensor, open_binary

KEY = "rollout_expert_indices"


def decode(payload: object, where: str, options: Options) -> Routes:
    """[rows, layers, k] of {data, shape, dtype}."""
    if not isinstance(payload, dict):
        raise FormatError(f"{where}: found {shown(payload)}, wanted an object with data, shape and dtype")
    shape = payload.get("shape")
    if not isinstance(shape, list) or len(shape) != 3 or any(type(n) is not int or not 0 <= n < 2**31 for n in shape):
        raise FormatError(f"{where}, shape: found {shown(shape)}, wanted three sizes")
    flat = wire.decode(
        payload.get("data"), wire.wire_type(payload.get("dtype"), f"{where}, dtype"), where, options.limits
    )
    return wire.shaped(flat, shape[0], shape[1], shape[2], where)


def _lines(path: Path, options: Options) -> Iterator[tuple[dict[str, Any], Sample]]:
    for where, item in objects(path, options.limits):
        choices = item.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
            raise FormatError(f"{where}, choices: found {shown(choices)}, wanted a list of one object")
        payload = choices[0].get("routed_experts")
        routes = None if payload is None else decode(payload, f"{where}, routed_experts", options)
        prompt, generated = length_of(item, "prompt_token_ids", where), length_of(choices[0], "token_ids", where)
        first = 0
        if options.align == "response":
            if prompt is None:
                raise FormatError(
                    f"{where}, prompt_token_ids: found nothing, wanted it for routes aligned to the response"
                )
            first = prompt
        if prompt is not None and generated is not None:
            tokens = prompt + generated
        elif routes is not None:
            tokens = len(routes) + (0 if options.rows == "len" else 1)
        else:
            raise FormatError(f"{where}: found neither routes nor token ids, wanted one of them")
        yield (
            item,
            Sample(
                where,
                "routed_experts",
                tokens,
                routes,
                first_row=first,
                group=group_of(item, *GROUPS),
                id=id_of(item, *IDS),
            ),
        )


def real_rows(routes: Array) -> npt.NDArray[np.bool_]:
    """True where a row may be a route: not the last token's, and not one of a tail of fake routes 0, 1, …, k-1."""
    mask = batches.all_but_last(0, routes)
    fake = np.arange(routes.shape[2], dtype=np.int64)
    end = len(routes)
    while end > 0 and bool((routes[end - 1] == fake).all()):
        end -= 1
    mask[end:] = False
    return mask


def read(path: Path, options: Options) -> Iterator[Sample]:
    """Samples of a JSON-lines file or of a training batch."""
    with open_binary(path) as start:
        text = start.read(64).lstrip()[:1] in (b"{", b"[")
    if text:
        yield from joined(_lines(path, options), options)
        return
    with open_arrays(path, options.limits) as file:
        routes, attention = file.need(KEY, "routed_experts"), file.need("attention_mask")
        batch = batches.need_batch(routes)
        known = batches.labels(file, batch, ("group",), ("index",))
        if options.align == "response":
            yield from _response_aligned(file, routes, attention, file.need("response_mask"), known)
            return
        padding = file.get("router_padding_mask")
        captured: npt.NDArray[np.bool_] | None = None
        if padding is not None:
            if padding.shape != routes.shape[:2]:
                raise FormatError(
                    f"{padding.where}: found shape {list(padding.shape)}, wanted {list(routes.shape[:2])}"
                )
            captured = ~padding.array().astype(np.bool_)
        inside = attention.array().astype(np.bool_)

        def rows(i: int, real: Array) -> npt.NDArray[np.bool_]:
            mask = real_rows(real)
            return mask if captured is None else mask & captured[i][inside[i]]

        yield from batches.padded(file, routes, attention, known, rows)


def _response_aligned(
    file: ArrayFile, routes: Tensor, attention: Tensor, response: Tensor, known: batches.Labels
) -> Iterator[Sample]:
    if response.shape != routes.shape[:2] or attention.shape[:1] != routes.shape[:1]:
        raise FormatError(f"{response.where}: found shape {list(response.shape)}, wanted {list(routes.shape[:2])}")
    for i, (block, mask, whole) in enumerate(zip(routes.blocks(), response.blocks(), attention.blocks(), strict=True)):
        where = f"{file.path}: sample {i} of {routes.shape[0]}"
        first, end = batches.span(mask, f"{where}, response_mask")
        begin, stop = batches.span(whole, f"{where}, attention_mask")
        tokens, real = stop - begin, block[first:end]
        if len(real) > tokens:
            raise FormatError(
                f"{where}, response_mask: found {len(real)} tokens, wanted at most {tokens}, those of the sample"
            )
        yield Sample(
            where,
            KEY,
            tokens,
            real,
            first_row=tokens - len(real),
            mask=real_rows(real),
            group=known.group(i),
            id=known.id(i),
        )
