# SPDX-License-Identifier: Apache-2.0
"""Batches of samples in one array: padded [batch, width, layers, k] with a token mask, or jagged with offsets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from routepack.convert.errors import FormatError
from routepack.convert.sample import Sample
from routepack.convert.tensor import Array, ArrayFile, Tensor


@dataclass(frozen=True)
class Labels:
    """Optional columns of a batch."""

    groups: list[Hashable] | None = None
    ids: npt.NDArray[np.int64] | None = None

    def group(self, i: int) -> Hashable:
        return None if self.groups is None else self.groups[i]

    def id(self, i: int) -> int | None:
        return None if self.ids is None else int(self.ids[i])


def labels(file: ArrayFile, batch: int, groups: tuple[str, ...], ids: tuple[str, ...]) -> Labels:
    """Columns [batch] by their usual names."""
    return Labels(file.labels(batch, *groups), file.integers((batch,), *ids))


def span(mask: Array, where: str) -> tuple[int, int]:
    """(first, last + 1) of the true entries of a token mask, which must stand together."""
    if mask.ndim != 1 or mask.dtype.kind not in "iub":
        raise FormatError(f"{where}: found {mask.dtype} {list(mask.shape)}, wanted integers [width]")
    true = np.flatnonzero(mask)
    if not true.size:
        raise FormatError(f"{where}: found no token, wanted at least one")
    first, end = int(true[0]), int(true[-1]) + 1
    if end - first != true.size:
        raise FormatError(f"{where}: found {true.size} tokens between {first} and {end}, wanted them without gaps")
    return first, end


def need_batch(tensor: Tensor, names: str = "[batch, width, layers, top_k]") -> int:
    """The batch size of a padded tensor of routes."""
    if len(tensor.shape) != 4:
        raise FormatError(f"{tensor.where}: found shape {list(tensor.shape)}, wanted {names}")
    return tensor.shape[0]


#: (sample index, routes of the real tokens) -> mask of the rows to count, or None for all.
RowMask = Callable[[int, Array], npt.NDArray[np.bool_] | None]


def padded(file: ArrayFile, routes: Tensor, attention: Tensor, known: Labels, rows: RowMask) -> Iterator[Sample]:
    """Samples of a batch padded on either side. Routes of padding, real looking or not, are never read."""
    batch = need_batch(routes)
    if attention.shape != routes.shape[:2]:
        raise FormatError(f"{attention.where}: found shape {list(attention.shape)}, wanted {list(routes.shape[:2])}")
    for i, (block, mask) in enumerate(zip(routes.blocks(), attention.blocks(), strict=True)):
        where = f"{file.path}: sample {i} of {batch}"
        first, end = span(mask, f"{where}, attention_mask")
        real = block[first:end]
        yield Sample(
            where, key_of(routes, file), end - first, real, mask=rows(i, real), group=known.group(i), id=known.id(i)
        )


def jagged(
    file: ArrayFile, values: Tensor, offsets: npt.NDArray[np.int64], known: Labels, rows: RowMask
) -> Iterator[Sample]:
    """Samples that stand behind one another in `values` [tokens, layers, k]."""
    if len(values.shape) != 3:
        raise FormatError(f"{values.where}: found shape {list(values.shape)}, wanted [tokens, layers, top_k]")
    steps = np.diff(offsets)
    if offsets.size < 2 or offsets[0] != 0 or offsets[-1] != values.shape[0] or (steps < 1).any():
        raise FormatError(
            f"{file.path}, offsets: found no ascending numbers from 0 to {values.shape[0]}, the rows of {values.where}"
        )
    whole = values.array()
    for i in range(len(steps)):
        real = whole[int(offsets[i]) : int(offsets[i + 1])]
        where = f"{file.path}: sample {i} of {len(steps)}"
        yield Sample(
            where, key_of(values, file), len(real), real, mask=rows(i, real), group=known.group(i), id=known.id(i)
        )


def all_but_last(_: int, routes: Array) -> npt.NDArray[np.bool_]:
    """The last token of a sample was sampled but never forwarded: what stands in its row is no route."""
    mask = np.ones(len(routes), dtype=np.bool_)
    mask[-1:] = False
    return mask


def key_of(tensor: Tensor, file: ArrayFile) -> str:
    """The name of a tensor as it stands in messages."""
    return tensor.where.removeprefix(f"{file.path}, ")
