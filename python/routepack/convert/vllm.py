# SPDX-License-Identifier: Apache-2.0
"""vLLM `routed_experts`, one file per sample: npy, npz, safetensors or torch.save of a dict.

`routed_experts` [rows, num_hidden_layers, k]; builds that split it also have `prompt_routed_experts`, which stands in
front. Together t-1 rows (the last token is never forwarded). int32, int16 or uint8 by version. t from `token_ids`
(`prompt_token_ids` in front), or `num_tokens`, else rows + 1 (option rows=len: rows). Source: `CompletionOutput` and
`RequestOutput`; vllm-project/vllm#28284, #50721.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from routepack.convert.errors import FormatError
from routepack.convert.io_arrays import open_arrays
from routepack.convert.options import Options, Path
from routepack.convert.sample import Sample
from routepack.convert.tensor import ArrayFile

KEY = "routed_experts"


def tokens_of(file: ArrayFile, rows: int, options: Options) -> int:
    """t of a file that holds one sample of `rows` rows."""
    stated = file.integers((), "num_tokens")
    completion = file.get("token_ids", "output_tokens")
    if stated is None and completion is None:
        return rows if options.rows == "len" else rows + 1
    if stated is not None:
        return int(stated)
    prompt = file.get("prompt_token_ids", "input_tokens")
    parts = [tensor for tensor in (prompt, completion) if tensor is not None]
    for tensor in parts:
        if len(tensor.shape) != 1:
            raise FormatError(f"{tensor.where}: found shape {list(tensor.shape)}, wanted [tokens]")
    return sum(tensor.shape[0] for tensor in parts)


def read(path: Path, options: Options) -> Iterator[Sample]:
    """The sample of one file."""
    with open_arrays(path, options.limits) as file:
        routes = file.need(KEY, "").array()
        prompt = file.get(f"prompt_{KEY}")
        if prompt is not None:
            front = prompt.array()
            if front.ndim != 3 or routes.ndim != 3 or front.shape[1:] != routes.shape[1:]:
                raise FormatError(
                    f"{prompt.where}: found shape {list(front.shape)}, wanted [rows, *{list(routes.shape[1:])}]"
                )
            routes = np.concatenate([front, routes])
        if routes.ndim != 3:
            raise FormatError(f"{path}, {KEY}: found shape {list(routes.shape)}, wanted [rows, layers, top_k]")
        tokens = tokens_of(file, len(routes), options)
        if len(routes) not in (tokens - 1, tokens):
            raise FormatError(f"{path}, {KEY}: found {len(routes)} rows, wanted {tokens - 1} for {tokens} tokens")
        group, number = file.integers((), "group", "group_index"), file.integers((), "index", "id")
        yield Sample(
            f"{path}: sample 0", KEY, tokens, routes,
            group=None if group is None else int(group), id=None if number is None else int(number),
        )  # fmt: skip
