# SPDX-License-Identifier: Apache-2.0
"""Strict reading of TOML: every value is asked for by name and type, and what nobody asked for is an error."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import routepack

HINT = 'pip install "routepack[evaluate]"'
Value = TypeVar("Value")


def _parser() -> Any:
    """tomllib of Python 3.11, or tomli, which is the same for 3.10."""
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise routepack.InvalidInput(f"evaluate: found no tomli, wanted it to read scenarios on Python 3.10: {HINT}")


def load(path: Path) -> Table:
    """A TOML file.

    :raises IoError: when it cannot be read
    :raises FormatError: when it is no TOML
    """
    parser = _parser()
    try:
        values = parser.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise routepack.IoError(f"{path}: cannot read: {error.strerror}") from None
    except (parser.TOMLDecodeError, UnicodeDecodeError) as error:
        raise routepack.FormatError(f"{path}: found no TOML: {' '.join(str(error).split())}") from None
    return Table(path, "", values)


class Table:
    """One table of a file. Values are taken out of it; `close` refuses those that are left."""

    def __init__(self, path: Path, prefix: str, values: dict[str, Any]) -> None:
        self.path = path
        self._prefix = prefix
        self._values = dict(values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def keys(self) -> list[str]:
        """Keys that are still there."""
        return list(self._values)

    def wrong(self, key: str, found: object, wanted: str) -> routepack.InvalidInput:
        """The error for a value: file, key, found, wanted."""
        shown = found if isinstance(found, str) and found.startswith("no ") else _shown(found)
        return routepack.InvalidInput(f"{self.path}: {self._prefix}{key}: found {shown}, wanted {wanted}")

    def _take(self, key: str, default: Value | None, wanted: str, reads: Callable[[Any], Value | None]) -> Value:
        if key not in self._values:
            if default is None:
                raise self.wrong(key, "no value", wanted)
            return default
        value = self._values.pop(key)
        read = reads(value)
        if read is None:
            raise self.wrong(key, value, wanted)
        return read

    def text(self, key: str, default: str | None = None, *, among: Sequence[str] = ()) -> str:
        wanted = f"one of {', '.join(among)}" if among else "text"
        return self._take(
            key,
            default,
            wanted,
            lambda v: v if isinstance(v, str) and v.strip() and (not among or v in among) else None,
        )

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        return self._take(
            key,
            default,
            "a list of texts",
            lambda v: tuple(v) if isinstance(v, list) and v and all(isinstance(x, str) and x for x in v) else None,
        )

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        return self._take(
            key, default, f"a whole number of at least {least}", lambda v: v if _whole(v) and v >= least else None
        )

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        return self._take(
            key,
            default,
            "a list of whole numbers of at least 0, each once",
            lambda v: (
                tuple(v)
                if isinstance(v, list) and v and all(_whole(x) and x >= 0 for x in v) and len(set(v)) == len(v)
                else None
            ),
        )

    def number(self, key: str, default: float | None = None, *, least: float = -math.inf) -> float:
        wanted = "a number" if least == -math.inf else f"a number of at least {least:g}"
        return self._take(key, default, wanted, lambda v: float(v) if _finite(v) and v >= least else None)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of `count` numbers."""
        return self._take(
            key,
            None,
            f"a list of {count} numbers",
            lambda v: (
                tuple(float(x) for x in v)
                if isinstance(v, list) and len(v) == count and all(_finite(x) for x in v)
                else None
            ),
        )

    def range(self, key: str) -> tuple[float, ...]:
        """A number, twice, or a list of the least and the most."""
        if not isinstance(self._values.get(key), list):
            return (self.number(key),) * 2
        return self.numbers(key, 2)

    def flag(self, key: str, default: bool) -> bool:
        return self._take(key, default, "true or false", lambda v: v if isinstance(v, bool) else None)

    def table(self, key: str) -> Table:
        """A table inside this one; an empty one when it is missing."""
        nothing: dict[str, Any] = {}
        values = self._take(key, nothing, "a table", lambda v: v if isinstance(v, dict) else None)
        return Table(self.path, f"{self._prefix}{key}.", values)

    def tables(self, key: str) -> list[Table]:
        """A list of tables, `[[key]]`; empty when it is missing."""
        nothing: list[dict[str, Any]] = []
        values = self._take(
            key,
            nothing,
            f"tables, [[{key}]]",
            lambda v: v if isinstance(v, list) and all(isinstance(x, dict) for x in v) else None,
        )
        return [Table(self.path, f"{self._prefix}{key}[{k}].", value) for k, value in enumerate(values)]

    def close(self, known: Sequence[str]) -> None:
        """:raises InvalidInput: when a key is left"""
        for key in self._values:
            raise routepack.InvalidInput(
                f"{self.path}: {self._prefix}{key}: found an unknown key, wanted one of {', '.join(known)}"
            )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
