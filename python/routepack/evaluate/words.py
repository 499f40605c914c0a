# SPDX-License-Identifier: Apache-2.0
"""Numbers as text, the same in every table."""

from __future__ import annotations

from collections.abc import Sequence

MINUS = "\N{MINUS SIGN}"
NONE = "–"


def percent(share: float | None, digits: int = 2) -> str:
    """
    >>> percent(0.0885), percent(-0.0135), percent(None), percent(0.0)
    ('+8.85 %', '−1.35 %', '–', '0.00 %')
    """
    if share is None:
        return NONE
    text = f"{100 * abs(share):.{digits}f} %"
    if not text.strip("0. %"):
        return text
    return ("+" if share > 0 else MINUS) + text


def share(fraction: float | None) -> str:
    """
    >>> share(0.0452), share(None)
    ('4.5 %', '–')
    """
    return NONE if fraction is None else f"{100 * fraction:.1f} %"


def amount(value: float | None) -> str:
    """Four digits where there are so many.

    >>> amount(46651.2), amount(734.25), amount(12.345), amount(0.00125), amount(0.0)
    ('46,651', '734.2', '12.35', '0.00125', '0')
    """
    if value is None:
        return NONE
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 10 else f"{value:.3g}"


def probability(p: float | None) -> str:
    """
    >>> probability(0.0110), probability(3.2e-7), probability(1.0), probability(None)
    ('0.0110', '3.2e-07', '1.0000', '–')
    """
    if p is None:
        return NONE
    return f"{p:.4f}" if p >= 1e-3 else f"{p:.1e}"


def bytes_of(value: float | None) -> str:
    """
    >>> bytes_of(512.0), bytes_of(66e6), bytes_of(1.23e10)
    ('512 B', '66.0 MB', '12.3 GB')
    """
    if value is None:
        return NONE
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} B"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is its head.

    >>> print(markdown([["a", "b"], ["x|y", "1"]]))
    | a | b |
    |---|---|
    | x\\|y | 1 |
    """
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
