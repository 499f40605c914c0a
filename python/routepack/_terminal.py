# SPDX-License-Identifier: Apache-2.0
"""Output for people: tables within 100 columns, colours and a progress line on terminals only."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TextIO

from routepack._errors import IoError

#: Columns that a table may take.
WIDTH = 100

_STYLES = {"bold": "1", "good": "36", "bad": "33"}  # cyan and yellow: apart for every kind of colour vision


def is_terminal(stream: TextIO) -> bool:
    """Whether a person reads `stream`, on something that understands more than plain lines."""
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def has_colour(stream: TextIO) -> bool:
    """Colours go to terminals, unless NO_COLOR (any text) forbids them."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, style: str, stream: TextIO) -> str:
    """`text` in a style: bold, good or bad; as it is where there is no colour."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if has_colour(stream) else text


def display_width(text: str) -> int:
    """Columns of `text` on a terminal.

    >>> display_width("gap é"), display_width("窓")
    (5, 2)
    """
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` columns: what does not fit is left out in front, where paths say least.

    >>> shortened("runs/2026/step-17/plan.json", 14)
    '…-17/plan.json'
    """
    text = "".join(c if c.isprintable() else "?" for c in text)
    if display_width(text) <= width:
        return text
    while text and display_width(text) > width - 1:
        text = text[1:]
    return "…" + text


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest entry, the first to the left and the others to the right.

    >>> print(table([["", "before", "after"], ["rows", "7", "12"]]))
          before  after
    rows       7     12
    """
    columns = max((len(row) for row in rows), default=0)
    widths = [max((display_width(row[c]) for row in rows if c < len(row)), default=0) for c in range(columns)]
    lines = []
    for row in rows:
        padding = [" " * (width - display_width(cell)) for width, cell in zip(widths, row)]
        cells = [cell + pad if c == 0 else pad + cell for c, (cell, pad) in enumerate(zip(row, padding))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def output(text: str) -> None:
    """A result on standard output, at once.

    :raises IoError: when it cannot be written; nothing is tried again at exit
    """
    stream = sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)
    except OSError as error:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (OSError, ValueError):
            pass
        raise IoError(f"standard output: cannot write: {error.strerror}") from None


class Progress:
    """One line that says what is being done, on a terminal; nothing elsewhere. rich draws it where it is installed."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = is_terminal(self._stream)
        self._status: Any = None

    def __enter__(self) -> Progress:
        if self._shown:
            try:
                from rich.console import Console
            except ImportError:
                pass
            else:
                self._status = Console(file=self._stream).status("")
                self._status.start()
        return self

    def says(self, what: str) -> None:
        """Replaces the line."""
        if not self._shown:
            return
        what = shortened(what, max(8, min(WIDTH, shutil.get_terminal_size().columns) - 4))
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(f"{what} …"))
        else:
            self._stream.write(f"\r\x1b[K{what} …")
            self._stream.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
        elif self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
