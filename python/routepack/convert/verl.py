# SPDX-License-Identifier: Apache-2.0
"""verl batches: npz, safetensors, or torch.save of a dict of tensors. (DataProto.save_to_disk is a pickle: refused.)

Padded: `routed_experts` int16 [batch, width, layers, k] beside `attention_mask` [batch, width]; prompts are padded on
the left, responses on the right. Jagged: `routed_experts` as a torch.jagged nested tensor, or `routed_experts.values`
[tokens, layers, k] with `routed_experts.offsets` [batch+1]. The field spans the whole sequence; rows that the engine
did not record (the last token always, tails of multi-turn samples) are zeros, which a plain count takes for expert 0.
`uid` [batch], numbers or text, gives the groups. Source: verl/experimental/agent_loop/agent_loop.py at commit 1dda039b.
"""

from __future__ import annotations

from collections.abc import Iterator

from routepack.convert import batches
from routepack.convert.errors import FormatError
from routepack.convert.io_arrays import open_arrays
from routepack.convert.options import Options, Path
from routepack.convert.sample import Sample

KEY = "routed_experts"


def read(path: Path, options: Options) -> Iterator[Sample]:
    """Samples of a batch, padded or jagged."""
    with open_arrays(path, options.limits) as file:
        values = file.get(f"{KEY}.values", f"{KEY}_values")
        if values is not None:
            offsets = file.integers((None,), f"{KEY}.offsets", f"{KEY}_offsets", "offsets")
            if offsets is None:
                raise FormatError(f"{path}: found {values.where} without offsets, wanted {KEY}.offsets [batch + 1]")
            known = batches.labels(file, max(len(offsets) - 1, 0), ("uid", "group"), ("index",))
            yield from batches.jagged(file, values, offsets, known, batches.all_but_last)
            return
        routes = file.need(KEY)
        known = batches.labels(file, batches.need_batch(routes), ("uid", "group"), ("index",))
        yield from batches.padded(file, routes, file.need("attention_mask"), known, batches.all_but_last)
