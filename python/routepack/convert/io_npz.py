# SPDX-License-Identifier: Apache-2.0
"""npz archives: stored members are mapped, compressed ones inflated piece by piece, within limits."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, BinaryIO

import numpy as np

from routepack.convert import io_npy
from routepack.convert.errors import FormatError, shown
from routepack.convert.limits import Limits
from routepack.convert.options import Path
from routepack.convert.tensor import Array, ArrayFile, Tensor, mapped, named


class _Packed(Tensor):
    """A compressed member of an npz. `open_member` starts its byte stream anew."""

    def __init__(self, where: str, header: io_npy.Header, open_member: Callable[[], IO[bytes]], limits: Limits) -> None:
        super().__init__(where, header.dtype, header.shape, None)
        self._header, self._open, self._limits = header, open_member, limits

    def _read(self, file: IO[bytes], shape: tuple[int, ...], order: str = "C") -> Array:
        size = self.dtype.itemsize
        for n in shape:
            size *= n
        if size > self._limits.sample:
            raise FormatError(f"{self.where}: found {size} bytes after inflating, wanted at most {self._limits.sample}")
        try:
            data = file.read(size)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise FormatError(f"{self.where}: found damaged data ({shown(str(error))})") from None
        if len(data) != size:
            raise FormatError(f"{self.where}: found {len(data)} bytes of data, wanted {size} for {list(shape)}")
        return np.frombuffer(data, dtype=self.dtype).reshape(shape, order="F" if order == "F" else "C")

    def array(self) -> Array:
        with self._open() as file:
            file.read(self._header.size)
            return self._read(file, self.shape, "F" if self._header.fortran else "C")

    def blocks(self) -> Iterator[Array]:
        if self._header.fortran and len(self.shape) > 1:  # the first axis is spread over the whole stream
            yield from self.array()
            return
        with self._open() as file:
            file.read(self._header.size)
            for _ in range(self.shape[0]):
                yield self._read(file, self.shape[1:])


def is_torch_archive(archive: zipfile.ZipFile) -> bool:
    """`torch.save` writes NAME/data.pkl; numpy writes members that end in .npy."""
    return any(name.count("/") == 1 and name.endswith("/data.pkl") for name in archive.namelist())


def open_zip(file: BinaryIO, path: Path, limits: Limits) -> zipfile.ZipFile:
    """The directory of an archive. @raises FormatError"""
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, struct.error, ValueError, OSError, NotImplementedError) as error:
        raise FormatError(f"{path}: found a damaged archive ({shown(str(error))})") from None
    if len(archive.infolist()) > limits.members:
        raise FormatError(f"{path}: found {len(archive.infolist())} members, wanted at most {limits.members}")
    return archive


def read(path: Path, file: BinaryIO, limits: Limits) -> ArrayFile:
    archive = open_zip(file, path, limits)
    if is_torch_archive(archive):
        file.close()
        from routepack.convert import io_torch

        return ArrayFile(path, *io_torch.tensors(path, limits))
    tensors: dict[str, Tensor] = {}
    refused: dict[str, FormatError] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        where = named(path, name)
        if name == info.filename or name in tensors or name in refused:
            found = "no npy member" if name == info.filename else "the name twice"
            raise FormatError(f"{where}: found {found}, wanted an npz file")
        try:
            tensors[name] = _member(archive, info, file, where, limits)
        except io_npy.UnusableType as error:
            refused[name] = error
    return ArrayFile(path, tensors, file, refused)


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BinaryIO, where: str, limits: Limits) -> Tensor:
    ratio = info.file_size / max(info.compress_size, 1)
    if info.file_size > limits.inflate_free and ratio > limits.inflate_ratio:
        raise FormatError(
            f"{where}: found {info.compress_size} bytes that inflate to {info.file_size}, wanted at most "
            f"{limits.inflate_ratio} times as many"
        )

    def member() -> IO[bytes]:
        try:
            return archive.open(info)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error, OSError, ValueError) as error:
            raise FormatError(f"{where}: found a member that cannot be read ({shown(str(error))})") from None

    with member() as stream:
        try:
            header = io_npy.read_header(stream, where, limits)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise FormatError(f"{where}: found damaged data ({shown(str(error))})") from None
    if header.size + header.nbytes != info.file_size:
        raise FormatError(
            f"{where}: found {info.file_size - header.size} bytes of data, wanted {header.nbytes} for {header.dtype} "
            f"{list(header.shape)}"
        )
    if info.compress_type != zipfile.ZIP_STORED:
        return _Packed(where, header, member, limits)
    # A stored member is mapped. Its data stand behind a local header whose extra field may differ from the directory's.
    file.seek(info.header_offset + 26)
    lengths = file.read(4)
    if len(lengths) != 4:
        raise FormatError(f"{where}: found the end of the file, wanted a local header")
    begin = info.header_offset + 30 + sum(struct.unpack("<HH", lengths)) + header.size
    if begin + header.nbytes > os.fstat(file.fileno()).st_size:
        raise FormatError(f"{where}: found data beyond the end of the file")
    return Tensor(where, header.dtype, header.shape, mapped(file, header, begin))
