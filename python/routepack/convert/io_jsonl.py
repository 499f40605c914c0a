# SPDX-License-Identifier: Apache-2.0
"""JSON lines, one object at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from routepack.convert.errors import FormatError, shown
from routepack.convert.limits import Limits
from routepack.convert.options import Path
from routepack.convert.tensor import open_binary


def objects(path: Path, limits: Limits) -> Iterator[tuple[str, dict[str, Any]]]:
    """(«file: line n», object) of every line that is not blank; the objects of a line that holds a list come in turn.

    @raises FormatError for a line that is too long, no JSON, or no object
    """
    with open_binary(path) as file:
        number = 0
        while line := file.readline(limits.sample + 1):
            number += 1
            where = f"{path}: line {number}"
            if len(line) > limits.sample:
                raise FormatError(f"{where}: found more than {limits.sample} bytes, wanted one JSON object per line")
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise FormatError(f"{where}: found no valid JSON ({shown(str(error))})") from None
            listed = value if isinstance(value, list) else [value]
            for index, item in enumerate(listed):
                at = f"{where}[{index}]" if isinstance(value, list) else where
                if not isinstance(item, dict):
                    raise FormatError(f"{at}: found {shown(item)}, wanted an object")
                yield at, item


def integer(item: dict[str, Any], key: str, where: str, least: int = 0) -> int | None:
    """An optional integer of an object."""
    value = item.get(key)
    if value is None:
        return None
    if type(value) is not int or not least <= value < 2**31:
        raise FormatError(f"{where}, {key}: found {shown(value)}, wanted an integer from {least} on")
    return value


def length_of(item: dict[str, Any], key: str, where: str) -> int | None:
    """The length of an optional list of token ids."""
    value = item.get(key)
    if value is None:
        return None
    if not isinstance(value, list):
        raise FormatError(f"{where}, {key}: found {shown(value)}, wanted a list of token ids")
    return len(value)


def at_path(item: dict[str, Any], path: str) -> Any:
    """The value at a dotted path, or None."""
    value: Any = item
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
