# SPDX-License-Identifier: Apache-2.0
"""Strict reading of TOML: every value is asked for by name and type, and what nobody asked for is an error."""

from __future__ import annotations

import importlib
import stat
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import routepack
from routepack import _terminal

HINT = 'pip install "routepack[evaluate]"'
Value = TypeVar("Value")

#: Bounds of what nothing else bounds: wide enough for every scenario, and far from overflows.
MOST_BYTES = 1 << 20
MOST_TEXT = 1000
MOST_VALUES = 10_000
MOST_INTEGER = 2**31 - 1
MOST_NUMBER = 1e15
_BIDIRECTIONAL = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


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
        there = path.stat()
        if not stat.S_ISREG(there.st_mode):
            raise routepack.IoError(f"{path}: cannot read: found no regular file, wanted a TOML file")
        if there.st_size > MOST_BYTES:
            raise routepack.FormatError(f"{path}: found {there.st_size:,} bytes, wanted at most {MOST_BYTES:,}")
        values = parser.loads(path.read_bytes().decode("utf-8-sig"))
    except routepack.Error:
        raise
    except OSError as error:
        raise routepack.IoError(f"{path}: cannot read: {error.strerror}") from None
    except RecursionError:
        raise routepack.FormatError(f"{path}: found values nested too deep, wanted plain tables and lists") from None
    except ValueError as error:  # no TOML, no UTF-8, a number of thousands of digits
        raise routepack.FormatError(f"{path}: found no TOML: {plain(str(error), 200)}") from None
    return Table(path, "", values)


def plain(text: str, width: int) -> str:
    """`text` on one line, in at most `width` columns, without control characters.

    >>> plain("a\\n b\\x00c", 20)
    'a b?c'
    """
    text = " ".join(text[: 4 * width].split())
    text = "".join("?" if _control(c) else c for c in text)
    while _terminal.display_width(text) > width:
        text = text[: max(0, width - 3 - (_terminal.display_width(text) - len(text)))] + "..."
    return text


def _control(c: str) -> bool:
    """What moves the cursor, ends a line or hides: nothing that a name needs."""
    return unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in _BIDIRECTIONAL


def is_text(value: object, most: int = MOST_TEXT) -> bool:
    """A text that is not empty, not longer than `most` columns, and without control characters."""
    return (
        isinstance(value, str)
        and 0 < len(value.strip()) <= 4 * most
        and not any(map(_control, value))
        and _terminal.display_width(value) <= most
    )


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
        shown = plain(found, 200) if isinstance(found, str) and found.startswith("no ") else _shown(found)
        return routepack.InvalidInput(f"{self.path}: {self._name(key)}: found {shown}, wanted {wanted}")

    def _name(self, key: str) -> str:
        return plain(f"{self._prefix}{key}", 100)

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

    def text(
        self,
        key: str,
        default: str | None = None,
        *,
        among: Sequence[str] = (),
        most: int = MOST_TEXT,
        lines: bool = False,
    ) -> str:
        """`most`: columns. `lines`: line ends may be in it, and become blanks with all other white space."""
        wanted = f"text of one line, at most {most} characters, none of them a control character"
        if among:
            wanted = f"one of {', '.join(among)}"

        def reads(value: Any) -> str | None:
            if lines and isinstance(value, str):
                value = " ".join(value.split())
            return value if is_text(value, most) and (not among or value in among) else None

        return self._take(key, default, wanted, reads)

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        return self._take(
            key,
            default,
            f"a list of texts without control characters, each of at most {MOST_TEXT}",
            lambda v: tuple(v) if isinstance(v, list) and 0 < len(v) <= MOST_VALUES and all(map(is_text, v)) else None,
        )

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = MOST_INTEGER) -> int:
        wanted = f"a whole number of at least {least} and at most {most}"
        return self._take(key, default, wanted, lambda v: v if _whole(v) and least <= v <= most else None)

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        return self._take(
            key,
            default,
            f"a list of whole numbers of at least 0 and at most {MOST_INTEGER}, each once",
            lambda v: (
                tuple(v)
                if isinstance(v, list)
                and 0 < len(v) <= MOST_VALUES
                and all(_whole(x) and 0 <= x <= MOST_INTEGER for x in v)
                and len(set(v)) == len(v)
                else None
            ),
        )

    def number(
        self, key: str, default: float | None = None, *, least: float = -MOST_NUMBER, most: float = MOST_NUMBER
    ) -> float:
        wanted = f"a number of at least {least:g} and at most {most:g}"
        return self._take(key, default, wanted, lambda v: float(v) if _bounded(v, least, most) else None)

    def numbers(self, key: str, count: int, *, least: float = -MOST_NUMBER) -> tuple[float, ...]:
        """A list of `count` numbers."""
        return self._take(
            key,
            None,
            f"a list of {count} numbers of at least {least:g} and at most {MOST_NUMBER:g}",
            lambda v: (
                tuple(float(x) for x in v)
                if isinstance(v, list) and len(v) == count and all(_bounded(x, least, MOST_NUMBER) for x in v)
                else None
            ),
        )

    def range(self, key: str) -> tuple[float, ...]:
        """A number, twice, or a list of the least and the most."""
        if not isinstance(self._values.get(key), list):
            return (self.number(key),) * 2
        least, most = self.numbers(key, 2)
        if least > most:
            raise self.wrong(key, [least, most], "the least and then the most")
        return least, most

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
                f"{self.path}: {self._name(key)}: found an unknown key, wanted one of {', '.join(known)}"
            )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bounded(value: object, least: float, most: float) -> bool:
    """Compared as they are: a whole number of any size, inf and nan are told apart without a conversion."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{plain(value, 60) if value.strip() else value[:60] if value.isprintable() else "?"}"'
    if isinstance(value, int) and abs(value) > 10**30:
        return "a number of more than 30 digits"
    try:
        return plain(str(value), 60)
    except (ValueError, RecursionError):  # numbers of thousands of digits, tables in tables
        return "a value too large to show"
