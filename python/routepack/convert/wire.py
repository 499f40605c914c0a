# SPDX-License-Identifier: Apache-2.0
"""Routes inside text: base64 of flat row-major ids, and nested lists."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from routepack.convert.errors import FormatError, shown
from routepack.convert.limits import Limits
from routepack.convert.sample import Routes

#: Names of types on the wire; the bytes are little-endian everywhere.
WIRE_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name).newbyteorder("<") for name in ("int8", "uint8", "int16", "uint16", "int32", "int64")
}


def wire_type(name: object, where: str) -> np.dtype[Any]:
    """The type that a sender advertises."""
    found: np.dtype[Any] | None = WIRE_TYPES.get(name.strip().lower()) if isinstance(name, str) else None
    if found is None:
        raise FormatError(f"{where}: found type {shown(name)}, wanted one of {', '.join(WIRE_TYPES)}")
    return found


def decode(text: object, dtype: np.dtype[Any], where: str, limits: Limits) -> Routes:
    """Flat ids of a base64 text, without a copy of the bytes."""
    if not isinstance(text, str):
        raise FormatError(f"{where}: found a {type(text).__name__}, wanted base64 text")
    if len(text) // 4 * 3 > limits.sample:
        raise FormatError(f"{where}: found {len(text)} characters, wanted at most {limits.sample} bytes of routes")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError(f"{where}: found no valid base64 ({shown(str(error))})") from None
    if len(data) % dtype.itemsize:
        raise FormatError(f"{where}: found {len(data)} bytes, wanted a multiple of {dtype.itemsize} ({dtype.name})")
    return np.frombuffer(data, dtype=dtype)


def shaped(flat: Routes, rows: int, num_layers: int | None, top_k: int | None, where: str) -> Routes:
    """[rows, layers, top_k] of flat ids; a sender that states neither leaves at most the layers to be worked out.

    The byte count must fit exactly: a wrong type or a wrong model shows here.
    """
    if top_k is None:
        raise FormatError(f"{where}: found {flat.size} ids without a shape, wanted the option top_k")
    found = f"found {flat.size * flat.itemsize} bytes, {flat.size} ids of {flat.dtype.name}"
    if num_layers is None:
        if rows < 1 or flat.size % (rows * top_k) or flat.size == 0:
            raise FormatError(f"{where}: {found}, wanted a multiple of {rows} rows x top_k {top_k}")
        num_layers = flat.size // (rows * top_k)
    if flat.size != rows * num_layers * top_k:
        raise FormatError(
            f"{where}: {found}, wanted {rows * num_layers * top_k} = {rows} rows x {num_layers} layers x top_k {top_k}"
        )
    return flat.reshape(rows, num_layers, top_k)


def nested(value: object, where: str, limits: Limits) -> Routes:
    """[rows, layers, k] of nested lists. Shared inner lists may stand for more numbers than memory: sizes first."""
    if not isinstance(value, (list, tuple)):
        raise FormatError(f"{where}: found a {type(value).__name__}, wanted lists [rows][layers][top_k]")
    layers = len(value[0]) if value and isinstance(value[0], (list, tuple)) else 0
    first = value[0][0] if layers else None
    top_k = len(first) if isinstance(first, (list, tuple)) else 0
    if value and not (layers and top_k):
        raise FormatError(f"{where}: found {shown(value[0])} as row 0, wanted lists [layers][top_k]")
    if len(value) * layers * top_k * 8 > limits.sample:
        raise FormatError(f"{where}: found {len(value)} x {layers} x {top_k} ids, wanted at most {limits.sample} bytes")
    routes = np.empty((len(value), layers, top_k), dtype=np.int64)
    for j, row in enumerate(value):
        if not isinstance(row, (list, tuple)) or len(row) != layers:
            raise FormatError(f"{where}, row {j}: found {shown(row)}, wanted {layers} layers")
        for layer, ids in enumerate(row):
            if not isinstance(ids, (list, tuple)) or len(ids) != top_k or any(type(e) is not int for e in ids):
                raise FormatError(f"{where}, row {j}, layer {layer}: found {shown(ids)}, wanted {top_k} expert ids")
            try:
                routes[j, layer] = ids
            except OverflowError:
                raise FormatError(f"{where}, row {j}, layer {layer}: found {shown(ids)}, wanted expert ids") from None
    return routes
