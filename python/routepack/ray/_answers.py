# SPDX-License-Identifier: Apache-2.0
"""Waiting for object references, with failures as values.

An error that Ray raises holds the frames that it passed, and these the error, until the garbage collector comes: with
them the arguments of every caller, object references among them, whose objects then stay in the store.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayError


def fetched(reference: Any, timeout_s: float) -> tuple[Any, RayError | None]:
    """What a reference (or a list of them) stands for, or what went wrong, `GetTimeoutError` included."""
    try:
        return ray.get(reference, timeout=max(0.0, timeout_s)), None
    except RayError as error:
        forget_frames(error)
        return None, error


def forget_frames(error: BaseException) -> None:
    """Lets an error hold nothing but its message."""
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None:
            left += [one.__context__, one.__cause__]
            one.__traceback__ = one.__context__ = one.__cause__ = None


def one_line(error: BaseException, most: int = 300) -> str:
    """What an error says, on one line of reasonable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else text[: most - 3] + "..."
