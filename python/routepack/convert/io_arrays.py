# SPDX-License-Identifier: Apache-2.0
"""Array files, whatever the container: npy, npz, safetensors, torch archives."""

from __future__ import annotations

import json
import os
from typing import BinaryIO

import numpy as np

from routepack.convert import io_npy, io_npz
from routepack.convert.errors import FormatError, shown
from routepack.convert.limits import Limits
from routepack.convert.options import Path
from routepack.convert.tensor import ArrayFile, Tensor, mapped, named, open_binary


def open_arrays(path: Path, limits: Limits) -> ArrayFile:
    """Opens by content, not by suffix. @raises IoError, FormatError"""
    file = open_binary(path)
    try:
        start = file.read(8)
        size = os.fstat(file.fileno()).st_size
        file.seek(0)
        if start[:6] == io_npy.MAGIC:
            return ArrayFile(path, {"": _npy(file, str(path), size, limits)}, file)
        if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            return io_npz.read(path, file, limits)
        if start[:1] == b"\x80":
            raise FormatError(
                f"{path}: found a bare pickle, which may run code when read; wanted npy, npz, safetensors or torch.save"
            )
        if len(start) == 8:
            return _safetensors(file, path, size, limits)
        raise FormatError(f"{path}: found {shown(start)}, wanted npy, npz, safetensors or torch.save")
    except BaseException:
        file.close()
        raise


def _npy(file: BinaryIO, where: str, size: int, limits: Limits) -> Tensor:
    header = io_npy.read_header(file, where, limits)
    if header.size + header.nbytes != size:
        raise FormatError(
            f"{where}: found {size - header.size} bytes of data, wanted {header.nbytes} for {header.dtype} "
            f"{list(header.shape)}"
        )
    return Tensor(where, header.dtype, header.shape, mapped(file, header, header.size))


_SAFETENSORS = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8",
}  # fmt: skip


def _safetensors(file: BinaryIO, path: Path, size: int, limits: Limits) -> ArrayFile:
    """https://huggingface.co/docs/safetensors: u64 length, JSON header, data."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, limits.safetensors_header):
        raise FormatError(f"{path}: found no npy, npz, safetensors or torch.save file, wanted one of these")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError):
        raise FormatError(f"{path}: found no npy, npz, safetensors or torch.save file, wanted one of these") from None
    tensors: dict[str, Tensor] = {}
    refused: dict[str, FormatError] = {}
    for name, entry in header.items() if isinstance(header, dict) else []:
        where = named(path, name)
        if name == "__metadata__":
            continue
        try:
            code, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        except (TypeError, KeyError, ValueError):
            whole = False
        if not whole:
            raise FormatError(f"{where}: found {shown(entry)}, wanted dtype, shape and data_offsets")
        if not isinstance(code, str) or code not in _SAFETENSORS:
            refused[name] = FormatError(f"{where}: found {shown(code)}, wanted an integer type")
            continue
        array = io_npy.Header(np.dtype(_SAFETENSORS[code]), shape, False, 0)
        if len(shape) > 8 or end - begin != array.nbytes or 8 + length + end > size:
            raise FormatError(
                f"{where}: found offsets {begin} to {end}, wanted {shown(array.nbytes)} bytes inside the file"
            )
        tensors[name] = Tensor(where, array.dtype, shape, mapped(file, array, 8 + length + begin))
    return ArrayFile(path, tensors, file, refused)
