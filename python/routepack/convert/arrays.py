# SPDX-License-Identifier: Apache-2.0
"""Plain arrays: npy, npz, safetensors or a torch.save of a dict.

- [rows, layers, k], alone in an npy: one sample; t = rows + 1 (option rows=len: rows).
- `routed_experts` [batch, width, layers, k] with `attention_mask` [batch, width], or with `lengths` [batch], padded on
  the right.
- `routed_experts` [tokens, layers, k] with `offsets` [batch+1].
- any other npz, safetensors or dict: each tensor [rows, layers, k] is a sample, in the order of the file; `groups` and
  `sample_ids` [samples] may stand beside them.
`routed_experts` may be called `ids`. Any integer type, either byte order, C or Fortran order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from routepack.convert import batches
from routepack.convert.errors import FormatError
from routepack.convert.io_arrays import open_arrays
from routepack.convert.options import Options, Path
from routepack.convert.sample import Sample
from routepack.convert.tensor import Array, ArrayFile

_LABELS = {"groups", "sample_ids"}


def read(path: Path, options: Options) -> Iterator[Sample]:
    """Samples of one file."""
    with open_arrays(path, options.limits) as file:
        routes = file.get("routed_experts", "ids")
        if routes is None:
            yield from _one_each(file, options)
            return
        offsets = file.integers((None,), "offsets")
        if offsets is not None:
            known = batches.labels(file, max(len(offsets) - 1, 0), ("groups",), ("sample_ids",))
            yield from batches.jagged(file, routes, offsets, known, _all)
            return
        if len(routes.shape) == 3:
            yield _sample(f"{path}: sample 0", "routed_experts", routes.array(), options)
            return
        batch = batches.need_batch(routes)
        known = batches.labels(file, batch, ("groups",), ("sample_ids",))
        attention = file.get("attention_mask", "mask")
        if attention is not None:
            yield from batches.padded(file, routes, attention, known, _all)
            return
        lengths = file.integers((batch,), "lengths")
        if lengths is None:
            raise FormatError(
                f"{path}: found {routes.where} without lengths, wanted attention_mask, lengths or offsets"
            )
        for i, block in enumerate(routes.blocks()):
            where, tokens = f"{path}: sample {i} of {batch}", int(lengths[i])
            if not 1 <= tokens <= len(block):
                raise FormatError(f"{where}, lengths: found {tokens}, wanted 1 to {len(block)}, the width")
            yield Sample(where, "routed_experts", tokens, block[:tokens], group=known.group(i), id=known.id(i))


def _all(_: int, __: Array) -> npt.NDArray[np.bool_] | None:
    return None


def _sample(where: str, key: str, routes: Array, options: Options) -> Sample:
    if routes.ndim != 3:
        raise FormatError(f"{where}, {key}: found shape {list(routes.shape)}, wanted [rows, layers, top_k]")
    return Sample(where, key, len(routes) + (0 if options.rows == "len" else 1), routes)


def _one_each(file: ArrayFile, options: Options) -> Iterator[Sample]:
    names = [name for name in file.tensors if name not in _LABELS]
    for error in file.refused.values():  # here every tensor is a sample
        raise error
    if not names:
        raise FormatError(f"{file.path}: found no tensor of integers, wanted routes")
    known = batches.labels(file, len(names), ("groups",), ("sample_ids",))
    for i, name in enumerate(names):
        key = batches.key_of(file.tensors[name], file) if name else "array"
        sample = _sample(f"{file.path}: sample {i}", key, file.tensors[name].array(), options)
        yield replace(sample, group=known.group(i), id=known.id(i))
