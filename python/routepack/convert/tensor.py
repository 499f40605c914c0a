# SPDX-License-Identifier: Apache-2.0
"""Named integer arrays of a file, not in memory yet.

Uncompressed arrays are memory-mapped, so that a batch of raw routes never sits in memory; compressed ones are inflated
block by block along the first axis.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from routepack.convert import io_npy
from routepack.convert.errors import FormatError, IoError, shown
from routepack.convert.options import Path

Array = npt.NDArray[Any]


class Tensor:
    """An array that is not in memory yet."""

    def __init__(self, where: str, dtype: np.dtype[Any], shape: tuple[int, ...], view: Array | None) -> None:
        self.where, self.dtype, self.shape, self._view = where, dtype, shape, view

    def array(self) -> Array:
        """The whole array: a view of the mapped file where it can be."""
        assert self._view is not None
        return self._view

    def blocks(self) -> Iterator[Array]:
        """The array piece by piece along its first axis."""
        yield from self.array()


class ArrayFile(AbstractContextManager["ArrayFile"]):
    """Tensors by name, in the order of the file. A plain npy has one, named «».

    `refused` are tensors of types without expert ids (log probabilities, say); asking for one raises.
    """

    def __init__(
        self,
        path: Path,
        tensors: dict[str, Tensor],
        file: BinaryIO | None,
        refused: dict[str, FormatError] | None = None,
    ) -> None:
        self.path, self.tensors, self._file, self.refused = path, tensors, file, refused or {}

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def need(self, *names: str) -> Tensor:
        """The first of `names` that is there."""
        found = self.get(*names)
        if found is None:
            there = shown(", ".join(self.tensors) or "nothing", 100)
            raise FormatError(f"{self.path}: found tensors {there}, wanted {' or '.join(names)}")
        return found

    def get(self, *names: str) -> Tensor | None:
        """The first of `names` that is there, or None."""
        for name in names:
            if name in self.tensors:
                return self.tensors[name]
            if name in self.refused:
                raise self.refused[name]
        return None

    def integers(self, shape: tuple[int | None, ...], *names: str) -> npt.NDArray[np.int64] | None:
        """A small integer tensor as int64, its shape checked against `shape` (None: any)."""
        tensor = self.get(*names)
        if tensor is None:
            return None
        fits = len(tensor.shape) == len(shape) and all(
            want in (None, have) for want, have in zip(shape, tensor.shape, strict=True)
        )
        if not fits or tensor.dtype.kind not in "iub":
            wanted = ", ".join("any" if n is None else str(n) for n in shape)
            raise FormatError(f"{tensor.where}: found {tensor.dtype} {list(tensor.shape)}, wanted integers [{wanted}]")
        return tensor.array().astype(np.int64)

    def labels(self, size: int, *names: str) -> list[Hashable] | None:
        """A column [size] of numbers or texts."""
        tensor = next((self.tensors[name] for name in names if name in self.tensors), None)
        if tensor is not None and tensor.dtype.kind in "US" and tensor.shape == (size,):
            return list(tensor.array().tolist())
        numbers = self.integers((size,), *names)
        return None if numbers is None else list(numbers.tolist())


def open_binary(path: Path) -> BinaryIO:
    """A plain file for reading; opening a pipe could wait for ever. @raises IoError"""
    try:
        kind = os.stat(path).st_mode
        if not stat.S_ISREG(kind):
            what = "a folder" if stat.S_ISDIR(kind) else "no plain file"
            raise IoError(f"{path}: found {what}, wanted a file")
        return open(path, "rb")
    except (OSError, ValueError) as error:
        if isinstance(error, IoError):
            raise
        raise IoError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def named(path: Path, name: str) -> str:
    """«file, tensor», whatever characters the file chose for its tensors."""
    return f"{path}, {name if name.isprintable() and len(name) <= 60 else shown(name)}"


def mapped(file: BinaryIO, header: io_npy.Header, offset: int) -> Array:
    """The array behind `offset`; the caller has checked that it ends inside the file."""
    order = "F" if header.fortran else "C"
    if header.nbytes == 0:
        return np.empty(header.shape, header.dtype)
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    flat = np.frombuffer(pages, dtype=header.dtype, count=header.nbytes // header.dtype.itemsize, offset=offset)
    return flat.reshape(header.shape, order="F" if order == "F" else "C")
