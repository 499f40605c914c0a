# SPDX-License-Identifier: Apache-2.0
"""SGLang responses, one per JSON line (or a list of them), as `/generate` or the OpenAI paths return them.

`meta_info.routed_experts` is base64 of flat row-major int32 (`meta_info.routed_experts_dtype` names another type) for
the tokens [routed_experts_start_len, t-1) of prompt and completion: every decoder layer, dense ones as zeros. The shape
is not sent, so that num_layers and top_k come from the caller, and the byte count must fit. On the OpenAI paths the
fields stand in `choices[i].sglext` and the token counts in `usage`. Source:
python/sglang/srt/state_capturer/{routed_experts,routed_experts_wire,base}.py; sgl-project/sglang#12162 and #31219.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from routepack.convert import wire
from routepack.convert.errors import FormatError, shown
from routepack.convert.io_jsonl import integer, objects
from routepack.convert.lines import GROUPS, IDS, joined
from routepack.convert.options import Options, Path
from routepack.convert.sample import Sample
from routepack.convert.slime import group_of, id_of

KEY = "routed_experts"


def _segment(item: dict[str, Any], meta: dict[str, Any], tokens: int | None, where: str, options: Options) -> Sample:
    key = f"meta_info.{KEY}"
    start = integer(meta, "routed_experts_start_len", where) or 0
    text = meta.get(KEY)
    group, number = group_of(item, *GROUPS), id_of(item, *IDS)
    if text is None:
        if tokens is None:
            raise FormatError(
                f"{where}: found neither routes nor token counts, wanted prompt_tokens and completion_tokens"
            )
        return Sample(where, key, tokens, None, group=group, id=number)
    stated = meta.get("routed_experts_dtype")
    dtype = wire.WIRE_TYPES["int32"] if stated is None else wire.wire_type(stated, f"{where}, routed_experts_dtype")
    flat = wire.decode(text, dtype, f"{where}, {key}", options.limits)
    if tokens is None:  # several choices share one usage: the bytes have to tell
        if options.num_layers is None or options.top_k is None:
            raise FormatError(f"{where}: found no token counts of its own, wanted the options num_layers and top_k")
        tokens = start + flat.size // (options.num_layers * options.top_k) + 1
    rows = tokens - 1 - start
    if rows < 0:
        raise FormatError(f"{where}: found routed_experts_start_len {start}, wanted less than {tokens} tokens")
    if rows == 0 and flat.size == 0:
        return Sample(where, key, tokens, None, group=group, id=number)
    routes = wire.shaped(flat, rows, options.num_layers, options.top_k, f"{where}, {key}")
    return Sample(where, key, tokens, routes, first_row=start, group=group, id=number)


def _total(counts: dict[str, Any], where: str) -> int | None:
    prompt, completion = integer(counts, "prompt_tokens", where), integer(counts, "completion_tokens", where)
    return None if prompt is None or completion is None else prompt + completion


def _segments(path: Path, options: Options) -> Iterator[tuple[dict[str, Any], Sample]]:
    for where, item in objects(path, options.limits):
        choices = item.get("choices")
        if choices is None:
            meta = item.get("meta_info")
            if not isinstance(meta, dict):
                raise FormatError(f"{where}, meta_info: found {shown(meta)}, wanted an object with {KEY}")
            yield item, _segment(item, meta, _total(meta, where), where, options)
            continue
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
            raise FormatError(f"{where}, choices: found {shown(choices)}, wanted a list of objects")
        usage = item.get("usage")
        tokens = _total(usage, where) if isinstance(usage, dict) and len(choices) == 1 else None
        for i, choice in enumerate(choices):
            held = (choice.get(name) for name in ("sglext", "sgl_ext", "meta_info"))
            meta = next((m for m in held if isinstance(m, dict)), choice)
            labels = item if len(choices) == 1 else {key: value for key, value in item.items() if key not in IDS}
            yield item, _segment(labels, meta, tokens, f"{where}, choices[{i}]", options)


def read(path: Path, options: Options) -> Iterator[Sample]:
    """Samples of a JSON-lines file of responses."""
    yield from joined(_segments(path, options), options)
