# SPDX-License-Identifier: Apache-2.0
"""One measured execution, and the files that hold them (docs/calibrate.md has every field)."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

import routepack
from routepack.convert.errors import shown

Loads = npt.NDArray[np.float64]

KINDS = ("row", "attention", "experts", "all_to_all", "step")

#: Fields that a record of each kind may have beside kind, seconds and note.
ALLOWED = {
    "row": (
        "layers", "tokens", "squares", "loads", "expert_loads", "expert_peak", "active_experts", "sent", "received",
        "all_to_all_peak",
    ),
    "attention": ("stage", "layers", "tokens", "squares"),
    "experts": ("layers", "loads", "expert_loads", "expert_peak", "active_experts"),
    "all_to_all": ("layers", "sent", "received", "all_to_all_peak"),
    "step": (),
}  # fmt: skip

_TABLES = {"loads": 2, "sent": 2, "received": 2, "expert_loads": 3}  #: lists in lists, by depth
_LINE_BYTES = 256 << 20
_EXACT = 2**53
_SECONDS = (1e-12, 1e9)


@dataclass(frozen=True)
class Record:
    """One measured execution on one EP communicator; `seconds` are forward and backward together.

    tokens and squares: Σt and Σt² of each cell. loads [layers, ranks] and expert_loads [layers, ranks, experts of a
    rank]: routed tokens; sent and received [layers, ranks]: routed tokens that a rank sends and receives. The scalars
    are sums over the layers that were timed: of the busiest rank's load (expert_peak), of its experts with load
    (active_experts), of the most that a rank sends or receives (all_to_all_peak).

    :raises InvalidInput: for values that contradict each other or the kind
    """

    kind: str
    seconds: float
    where: str = "record"  #: for messages: file and line
    stage: str | None = None  #: of an attention record
    layers: int | None = None  #: that were timed
    tokens: tuple[float, ...] | None = None
    squares: tuple[float, ...] | None = None
    loads: Loads | None = None
    expert_loads: Loads | None = None
    expert_peak: float | None = None
    active_experts: float | None = None
    sent: Loads | None = None
    received: Loads | None = None
    all_to_all_peak: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            self.fail("kind", shown(self.kind), f"one of {', '.join(KINDS)}")
        if not _SECONDS[0] <= self.seconds <= _SECONDS[1]:
            self.fail("seconds", shown(self.seconds), "a time from 1e-12 to 1e9")
        for field in fields(self)[3:]:
            if getattr(self, field.name) is not None and field.name not in ALLOWED[self.kind]:
                allowed = ", ".join(ALLOWED[self.kind]) or "seconds alone"
                self.fail(field.name, "it in a record of kind " + self.kind, allowed)
        self._check_cells()
        self._check_loads()
        if self.kind == "attention":
            self._require("stage", "tokens", "layers")
            if len(self.tokens or ()) != 1:
                self.fail("tokens", f"{len(self.tokens or ())} cells", "one: the cell that was timed")

    def fail(self, field: str, found: str, wanted: str) -> NoReturn:
        """Refuses the record."""
        raise routepack.InvalidInput(f"{self.where}: {field}: found {found}, wanted {wanted}")

    def _require(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) is None:
                self.fail(name, "none", f"it in a record of kind {self.kind}")

    def _check_cells(self) -> None:
        if self.squares is None:
            return
        if self.tokens is None or len(self.tokens) != len(self.squares):
            beside = (
                "no tokens" if self.tokens is None else f"{len(self.squares)} cells beside {len(self.tokens)} of tokens"
            )
            self.fail("squares", beside, "one Σt² for the Σt of every cell")
        for cell, (t, q) in enumerate(zip(self.tokens, self.squares)):
            if not t <= q <= t * t:
                self.fail(f"squares[{cell}]", f"{q:.15g} for {t:.15g} tokens", "Σt², from Σt up to (Σt)²")

    def _check_loads(self) -> None:
        given = [name for name in ("loads", "expert_loads", "expert_peak") if getattr(self, name) is not None]
        if len(given) > 1:
            self.fail(given[1], f"it beside {given[0]}", "one of them")
        if self.active_experts is not None and self.expert_loads is not None:
            self.fail("active_experts", "it beside expert_loads", "one of them")
        if self.all_to_all_peak is not None and (self.sent is not None or self.received is not None):
            self.fail("all_to_all_peak", "it beside sent or received", "one of them")
        if (self.sent is None) != (self.received is None):
            self.fail("sent" if self.sent is None else "received", "none", "sent and received together")
        shapes = {name: getattr(self, name).shape[:2] for name in _TABLES if getattr(self, name) is not None}
        first = next(iter(shapes), "")
        for name, shape in shapes.items():
            if shape != shapes[first]:
                self.fail(name, f"{list(shape)} layers and ranks", f"{list(shapes[first])} as {first} has")
        if shapes and self.layers is not None and shapes[first][0] != self.layers:
            self.fail(first, f"{shapes[first][0]} layers", f"{self.layers}, as the field layers says")

    @property
    def timed_layers(self) -> int | None:
        """Layers, from the field or from the loads."""
        for table in (self.loads, self.expert_loads, self.sent):
            if table is not None:
                return int(table.shape[0])
        return self.layers


def read_records(paths: Sequence[str | os.PathLike[str]]) -> list[Record]:
    """The records of files, in order: .csv, or .jsonl and .ndjson.

    >>> from pathlib import Path
    >>> _ = Path("step.csv").write_text("kind,seconds\\nstep,0.25\\n")
    >>> [(record.kind, record.seconds, record.where) for record in read_records(["step.csv"])]
    [('step', 0.25, 'step.csv: line 2')]

    :raises FormatError: with file, line, field, what was found and what was wanted
    :raises IoError: for a file that cannot be read
    """
    records: list[Record] = []
    for path in map(Path, paths):
        suffix = path.suffix.lower()
        if suffix not in (".csv", ".jsonl", ".ndjson"):
            raise routepack.InvalidInput(f"{path}: found {shown(suffix)} at its end, wanted .csv, .jsonl or .ndjson")
        before = len(records)
        try:
            with open(path, "rb") as file:
                records += [_record(*item) for item in (_csv if suffix == ".csv" else _jsonl)(path, file)]
        except OSError as error:
            raise routepack.IoError(f"{path}: cannot read: {error.strerror or error}") from None
        if len(records) == before:
            raise routepack.FormatError(f"{path}: found no records, wanted at least one")
    return records


Item = tuple[str, dict[str, Any]]


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[str, str]]:
    """(«file: line n», text) of every line that is not blank."""
    number = 0
    while raw := file.readline(_LINE_BYTES + 1):
        number += 1
        where = f"{path}: line {number}"
        if len(raw) > _LINE_BYTES:
            raise routepack.FormatError(f"{where}: found more than {_LINE_BYTES} bytes, wanted one record a line")
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise routepack.FormatError(f"{where}: found bytes that are no UTF-8, wanted text") from None
        if text:
            yield where, text


def _csv(path: Path, file: BinaryIO) -> Iterator[Item]:
    header: list[str] | None = None
    for where, text in _lines(path, file):
        if text.startswith("#"):
            continue
        try:
            (cells,) = csv.reader([text], strict=True)
        except (csv.Error, ValueError) as error:
            raise routepack.FormatError(f"{where}: found no line of CSV ({shown(str(error))})") from None
        cells = [cell.strip() for cell in cells]
        if header is None:
            header = cells
            for name in header:
                if name not in _PARSERS:
                    wanted = ", ".join(_PARSERS)
                    raise routepack.FormatError(
                        f"{where}: found a column {shown(name)}, wanted names of fields: {wanted}"
                    )
                if name in _TABLES or header.count(name) > 1:
                    wanted = "lists in JSON lines only" if name in _TABLES else "every column once"
                    raise routepack.FormatError(f"{where}: found a column {name}, wanted {wanted}")
            continue
        if len(cells) != len(header):
            raise routepack.FormatError(f"{where}: found {len(cells)} cells, wanted {len(header)} as in the first line")
        values: dict[str, Any] = {}
        for name, cell in zip(header, cells):
            if cell:
                values[name] = cell if name in _TEXTS else _number_of(where, name, cell)
        yield where, values


def _number_of(where: str, name: str, cell: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(cell.replace("_", "x"))  # Python would read 1_000
        except ValueError:
            continue
    raise routepack.FormatError(f"{where}: {name}: found {shown(cell)}, wanted a number")


def _jsonl(path: Path, file: BinaryIO) -> Iterator[Item]:
    for where, text in _lines(path, file):
        try:
            value = json.loads(text, object_pairs_hook=_pairs)
        except (ValueError, RecursionError) as error:
            raise routepack.FormatError(f"{where}: found no valid JSON ({shown(str(error))})") from None
        if not isinstance(value, dict):
            raise routepack.FormatError(f"{where}: found {shown(value)}, wanted an object")
        yield where, value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key stands twice")
    return values


def _record(where: str, values: dict[str, Any]) -> Record:
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in _PARSERS:
            raise routepack.FormatError(f"{where}: found a field {shown(name)}, wanted one of {', '.join(_PARSERS)}")
        if value is not None and name != "note":
            parsed[name] = _PARSERS[name](f"{where}: {name}", value)
    for name in ("kind", "seconds"):
        if name not in parsed:
            raise routepack.FormatError(f"{where}: {name}: found none, wanted it in every record")
    try:
        return Record(where=where, **parsed)
    except routepack.FormatError:
        raise
    except routepack.InvalidInput as error:
        raise routepack.FormatError(str(error)) from None


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > 200 or not value.isprintable():
        raise routepack.FormatError(f"{where}: found {shown(value)}, wanted printable text")
    return value


def _real(where: str, value: Any) -> float:
    wanted = "a number from 0 to 2^53"
    if type(value) not in (int, float):
        raise routepack.FormatError(f"{where}: found {shown(value)}, wanted {wanted}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0.0 <= number <= _EXACT:
        raise routepack.FormatError(f"{where}: found {shown(value)}, wanted {wanted}")
    return number


def _count(where: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < _EXACT:
        raise routepack.FormatError(f"{where}: found {shown(value)}, wanted an integer of at least 0, below 2^53")
    return value


def _layers(where: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= 1 << 20:
        raise routepack.FormatError(f"{where}: found {shown(value)}, wanted a number of layers of at least 1")
    return value


def _cells(where: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list):
        return (float(_count(where, value)),)
    if not value:
        raise routepack.FormatError(f"{where}: found an empty list, wanted one number for every cell")
    return tuple(float(_count(f"{where}[{cell}]", item)) for cell, item in enumerate(value))


def _table(where: str, value: Any, depth: int) -> Loads:
    """[layers, ranks] or [layers, ranks, experts] of routed tokens."""
    wanted = "[layers][ranks]" if depth == 2 else "[layers][ranks][experts]"
    if (quick := _counts(value, depth)) is not None:
        return quick

    def check(at: str, item: Any, level: int) -> None:
        if level == depth:
            _count(at, item)
            return
        if not isinstance(item, list) or not item:
            raise routepack.FormatError(f"{at}: found {shown(item)}, wanted a list, {wanted} in all")
        for index, inner in enumerate(item):
            check(f"{at}[{index}]", inner, level + 1)
            if level + 1 < depth and len(inner) != len(item[0]):
                found = f"{len(inner)} numbers"
                raise routepack.FormatError(f"{at}[{index}]: found {found}, wanted {len(item[0])} as before it")

    check(where, value, 0)
    try:
        return np.array(value, dtype=np.float64)
    except ValueError:
        raise routepack.FormatError(f"{where}: found lists of several lengths, wanted {wanted}") from None


def _counts(value: Any, depth: int) -> Loads | None:
    """A table in which nothing is wrong, fast; None for one to look at number by number."""
    level = value
    try:
        for _ in range(depth - 1):
            level = list(chain.from_iterable(level))
        table = np.array(value) if set(map(type, level)) == {int} else None
    except (TypeError, ValueError, OverflowError):
        return None
    if table is None or table.ndim != depth or table.dtype.kind != "i" or table.min() < 0 or table.max() >= _EXACT:
        return None
    return table.astype(np.float64)


_TEXTS = ("kind", "stage", "note")
_PARSERS: dict[str, Any] = {
    "kind": _text,
    "seconds": _real,
    "stage": _text,
    "layers": _layers,
    "tokens": _cells,
    "squares": _cells,
    "loads": lambda where, value: _table(where, value, 2),
    "expert_loads": lambda where, value: _table(where, value, 3),
    "expert_peak": _real,
    "active_experts": _real,
    "sent": lambda where, value: _table(where, value, 2),
    "received": lambda where, value: _table(where, value, 2),
    "all_to_all_peak": _real,
    "note": _text,
}
