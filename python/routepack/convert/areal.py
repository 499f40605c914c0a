# SPDX-License-Identifier: Apache-2.0
"""AReaL: batches of its R3 branch, and the response form of its main branch.

R3 branch (feat/r3-native-router-replay): `routed_experts` int32 [batch, width, moe layers, k], `r3_routing_valid`
[batch], `attention_mask` [batch, width]. Rows that were not recorded are filled with a copy of the row before: the last
row of a sample always is one, and a sample with another has valid = False and is trained with live routing, so that
none of its rows is a route. Main branch: one file per sample, `routed_experts` int32 [rows, num_layers * k] with
`input_tokens` and `output_tokens`; the segments of an interrupted generation stand behind one another and each repeats
the prefix, so that only the last t-1 rows count. Source: areal/engine/r3/preprocess.py of the branch at commit
ff703e2e; areal/engine/sglang_remote.py and areal/infra/remote_inf_engine.py at commit cbff54d6.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from routepack.convert import batches, wire
from routepack.convert.errors import FormatError
from routepack.convert.io_arrays import open_arrays
from routepack.convert.options import Options, Path
from routepack.convert.sample import Sample
from routepack.convert.tensor import ArrayFile, Tensor
from routepack.convert.vllm import tokens_of

KEY, VALID = "routed_experts", "r3_routing_valid"


def read(path: Path, options: Options) -> Iterator[Sample]:
    """Samples of a batch of the R3 branch, or the one sample of a response file."""
    with open_arrays(path, options.limits) as file:
        routes = file.need(KEY)
        if len(routes.shape) == 2:
            yield _response(file, routes, options)
            return
        batch = batches.need_batch(routes)
        valid = file.integers((batch,), VALID)
        if valid is None:
            file.need(VALID)
        assert valid is not None
        known = batches.labels(file, batch, ("group", "group_id"), ("index",))
        samples = batches.padded(file, routes, file.need("attention_mask"), known, batches.all_but_last)
        for ok, sample in zip(valid, samples, strict=True):
            yield sample if ok else replace(sample, routes=None, mask=None)


def _response(file: ArrayFile, routes: Tensor, options: Options) -> Sample:
    where = f"{file.path}: sample 0"
    if file.get("num_tokens", "output_tokens", "token_ids") is None:
        raise FormatError(
            f"{where}: found rows without token counts, wanted input_tokens and output_tokens (or num_tokens)"
        )
    flat = routes.array()
    tokens = tokens_of(file, len(flat), options)
    rows = tokens - 1
    if len(flat) < rows or rows < 0:
        raise FormatError(f"{where}, {KEY}: found {len(flat)} rows, wanted at least {rows} for {tokens} tokens")
    kept = flat[len(flat) - rows :]
    if rows == 0:
        return Sample(where, KEY, tokens, None)
    shaped = wire.shaped(kept.reshape(-1), rows, options.num_layers, options.top_k, f"{where}, {KEY}")
    return Sample(where, KEY, tokens, shaped)
