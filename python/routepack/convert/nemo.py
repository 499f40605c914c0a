# SPDX-License-Identifier: Apache-2.0
"""NeMo RL: its text codec in JSON lines, and its batches.

Codec: «nrlre1:<int8|int16|int32>:<S>x<L>x<K>:<base64>» (or nested lists), -1 in rows without a route. A line is an
object with `routed_experts`, or a NeMo Gym result {response: {output: [items]}} whose items each repeat the routes of
everything before them: the last one counts. Rows beyond the tokens of `prompt_token_ids` + `generation_token_ids` (or
`token_ids`) are padding. Batch: `routed_experts` [batch, width, layers, k] with `input_lengths` [batch], padded on the
right. Source: nemo_rl/utils/routed_experts_codec.py, nemo_rl/environments/nemo_gym.py at commit 7ea279ab.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from routepack.convert import batches, wire
from routepack.convert.errors import FormatError, shown
from routepack.convert.io_arrays import open_arrays
from routepack.convert.io_jsonl import length_of, objects
from routepack.convert.limits import Limits
from routepack.convert.lines import GROUPS, IDS, joined
from routepack.convert.options import Options, Path
from routepack.convert.sample import Routes, Sample
from routepack.convert.segments import Joined
from routepack.convert.slime import group_of, id_of
from routepack.convert.tensor import open_binary

KEY = "routed_experts"
_ENVELOPE = re.compile(r"nrlre1:(int8|int16|int32):(\d{1,10})x(\d{1,10})x(\d{1,10}):")


def decode(payload: object, where: str, limits: Limits) -> Routes:
    """[tokens, layers, k] of an envelope or of nested lists."""
    if not isinstance(payload, str):
        return wire.nested(payload, where, limits)
    start = _ENVELOPE.match(payload)
    if start is None:
        raise FormatError(
            f"{where}: found {shown(payload[:40])}, wanted nrlre1:<int8|int16|int32>:<S>x<L>x<K>:<base64>"
        )
    rows, layers, top_k = (int(n) for n in start.groups()[1:])
    flat = wire.decode(payload[start.end() :], wire.WIRE_TYPES[start.group(1)], where, limits)
    return wire.shaped(flat, rows, layers, top_k, where)


def _part(item: dict[str, Any], where: str, options: Options) -> Sample:
    payload = item.get(KEY)
    routes = None if payload is None else decode(payload, f"{where}, {KEY}", options.limits)
    prompt, generated = length_of(item, "prompt_token_ids", where), length_of(item, "generation_token_ids", where)
    tokens = length_of(item, "token_ids", where)
    if prompt is not None and generated is not None:
        tokens = prompt + generated
    if tokens is None:
        if routes is None:
            raise FormatError(f"{where}: found neither {KEY} nor token ids, wanted one of them")
        tokens = len(routes) if options.rows != "len-1" else len(routes) + 1
    if routes is not None and len(routes) < tokens - 1:
        raise FormatError(f"{where}, {KEY}: found {len(routes)} rows, wanted at least {tokens - 1} for {tokens} tokens")
    kept = None if routes is None else routes[:tokens]
    return Sample(where, KEY, tokens, kept, group=group_of(item, *GROUPS), id=id_of(item, *IDS))


def _lines(path: Path, options: Options) -> Iterator[tuple[dict[str, Any], Sample]]:
    for where, item in objects(path, options.limits):
        response = item.get("response")
        output = response.get("output") if isinstance(response, dict) else None
        if not isinstance(output, list):
            yield item, _part(item, where, options)
            continue
        whole: Joined | None = None
        for i, turn in enumerate(output):
            if not isinstance(turn, dict) or not turn.get("generation_token_ids"):
                continue  # tool output and the like
            part = _part(
                {**turn, **{k: item[k] for k in (*GROUPS, *IDS) if k in item}}, f"{where}, output[{i}]", options
            )
            if whole is None:
                whole = Joined(part)
            else:
                whole.extend(part)
        if whole is None:
            raise FormatError(f"{where}, response.output: found no item with generation_token_ids, wanted one")
        yield item, whole.sample


def read(path: Path, options: Options) -> Iterator[Sample]:
    """Samples of a JSON-lines file or of a batch."""
    with open_binary(path) as start:
        text = start.read(64).lstrip()[:1] in (b"{", b"[")
    if text:
        yield from joined(_lines(path, options), options)
        return
    with open_arrays(path, options.limits) as file:
        routes = file.need(KEY)
        batch = batches.need_batch(routes)
        lengths = file.integers((batch,), "input_lengths", "lengths")
        if lengths is None:
            file.need("input_lengths")
        assert lengths is not None
        known = batches.labels(file, batch, ("group", "idx"), ("index",))
        for i, block in enumerate(routes.blocks()):
            where, tokens = f"{path}: sample {i} of {batch}", int(lengths[i])
            if not 1 <= tokens <= len(block):
                raise FormatError(f"{where}, input_lengths: found {tokens}, wanted 1 to {len(block)}, the width")
            yield Sample(where, KEY, tokens, block[:tokens], group=known.group(i), id=known.id(i))
