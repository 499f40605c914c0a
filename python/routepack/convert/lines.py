# SPDX-License-Identifier: Apache-2.0
"""Samples from JSON lines whose segments may have to be joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from routepack.convert.errors import FormatError, shown
from routepack.convert.io_jsonl import at_path
from routepack.convert.options import Options
from routepack.convert.sample import Sample
from routepack.convert.segments import Joined

GROUPS = ("group_index", "group", "uid")
IDS = ("index", "id")


def joined(parts: Iterator[tuple[dict[str, Any], Sample]], options: Options) -> Iterator[Sample]:
    """Without the option `join` every part is a sample; with it, neighbouring parts of equal key are one sample.

    Parts of one sample must stand together: only one sample's raw routes are held.
    """
    if options.join is None:
        for _, sample in parts:
            yield sample
        return
    closed: set[int | str] = set()
    key: int | str | None = None
    current: Joined | None = None
    for item, sample in parts:
        found = at_path(item, options.join)
        if type(found) not in (int, str):
            raise FormatError(
                f"{sample.where}, {options.join}: found {shown(found)}, wanted a number or a name to join by"
            )
        if current is not None and found == key:
            current.extend(sample)
            continue
        if current is not None and key is not None:
            closed.add(key)
            yield current.sample
        if found in closed:
            raise FormatError(
                f"{sample.where}, {options.join}: found {shown(found)} again, wanted its lines to stand together"
            )
        key, current = found, Joined(sample)
    if current is not None:
        yield current.sample
