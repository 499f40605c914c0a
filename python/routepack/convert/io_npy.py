# SPDX-License-Identifier: Apache-2.0
"""The npy header, read strictly: no objects, sizes before memory.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html (versions 1 to 3).
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from routepack.convert.errors import FormatError, shown
from routepack.convert.limits import Limits

MAGIC = b"\x93NUMPY"
_TYPES = re.compile(r"[<>|=](b1|[iu][1248]|[US][0-9]{1,3})")


class UnusableType(FormatError):
    """A sound array of a type that holds no expert ids: refused where it is asked for, not where it merely stands."""


@dataclass(frozen=True)
class Header:
    """What an npy file says about its array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    size: int  #: bytes in front of the data

    @property
    def nbytes(self) -> int:
        """Bytes of data, as a Python integer: a shape of absurd size does not overflow."""
        return math.prod(self.shape) * self.dtype.itemsize


def _take(file: IO[bytes], size: int, where: str) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise FormatError(f"{where}: found the end after {len(data)} bytes, wanted {size} more of an npy header")
    return data


def read_header(file: IO[bytes], where: str, limits: Limits) -> Header:
    """Reads magic and header and leaves `file` at the data."""
    start = _take(file, 8, where)
    version = start[6]
    if start[:6] != MAGIC or version not in (1, 2, 3):
        raise FormatError(f"{where}: found {shown(start)}, wanted an npy file of version 1 to 3")
    width = 2 if version == 1 else 4
    length = int.from_bytes(_take(file, width, where), "little")
    if length > limits.header:
        raise FormatError(f"{where}: found an npy header of {length} bytes, wanted at most {limits.header}")
    text = _take(file, length, where).decode("latin-1" if version < 3 else "utf-8", "replace")
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        value = None
    if not isinstance(value, dict) or set(value) != {"descr", "fortran_order", "shape"}:
        raise FormatError(f"{where}: found {shown(text)}, wanted an npy header with descr, fortran_order and shape")
    descr, fortran, shape = value["descr"], value["fortran_order"], value["shape"]
    if not isinstance(descr, str) or not _TYPES.fullmatch(descr):
        reason = ": objects are pickles, which may run code" if isinstance(descr, str) and "O" in descr else ""
        raise UnusableType(f"{where}, descr: found {shown(descr)}, wanted an integer type{reason}")
    if not isinstance(fortran, bool):
        raise FormatError(f"{where}, fortran_order: found {shown(fortran)}, wanted True or False")
    if not isinstance(shape, tuple) or len(shape) > 8 or any(type(n) is not int or n < 0 for n in shape):
        raise FormatError(f"{where}, shape: found {shown(shape)}, wanted at most 8 sizes")
    header = Header(np.dtype(descr), shape, fortran, 8 + width + length)
    if header.nbytes >= 2**62:
        raise FormatError(f"{where}, shape: found {shown(shape)}, wanted an array that fits a file")
    return header
