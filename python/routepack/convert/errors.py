# SPDX-License-Identifier: Apache-2.0
"""The package's exception classes, by their one source. Everything in this folder imports them from here."""

from __future__ import annotations

from routepack import FormatError, InvalidInput, IoError

__all__ = ["FormatError", "InvalidInput", "IoError", "shown"]


def shown(value: object, most: int = 60) -> str:
    """A value of foreign origin on one line and of bounded length, for messages."""
    try:
        text = repr(value)
    except Exception:  # a foreign __repr__ may do anything
        text = f"a {type(value).__name__}"
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= most else text[: most - 1] + "…"
