# SPDX-License-Identifier: Apache-2.0
"""How a trainer and its planner process talk: frames of JSON, each behind its length.

A frame is 8 bytes, the length little-endian, and UTF-8 text. Requests are short (files hold the windows), so that
writing one never blocks. Nothing that the planner sends is executed or unpickled.
"""

from __future__ import annotations

import json
import os
import selectors
import struct
import time
from typing import Any

from routepack._errors import Error

_LENGTH = struct.Struct("<Q")
MOST_BYTES = 1 << 28  # of a frame: a plan of a million samples has 20 MB


class Closed(Error):
    """The other side has gone."""


class Late(Error):
    """The other side did not answer in time."""


class Garbage(Error):
    """What came is no frame."""


def encode(message: dict[str, Any]) -> bytes:
    """One frame."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return _LENGTH.pack(len(text)) + text


def decode(text: bytes) -> dict[str, Any]:
    """The message of a frame. @raises Garbage"""
    try:
        message = json.loads(text)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Garbage(f"found {text[:40]!r}, wanted JSON ({type(error).__name__})") from None
    if not isinstance(message, dict):
        raise Garbage(f"found a {type(message).__name__}, wanted an object")
    return message


def write(file: int, message: dict[str, Any], until: float) -> None:
    """Writes a frame to a non-blocking descriptor. `until` is of `time.monotonic`."""
    left = memoryview(encode(message))
    with selectors.DefaultSelector() as ready:
        ready.register(file, selectors.EVENT_WRITE)
        while left:
            _wait(ready, until)
            try:
                left = left[os.write(file, left) :]
            except BlockingIOError:
                continue
            except (BrokenPipeError, OSError):
                raise Closed("the planner has gone") from None


def read(file: int, until: float | None) -> dict[str, Any]:
    """Reads a frame. `until` None: waits for ever, on a blocking descriptor."""
    (length,) = _LENGTH.unpack(_bytes(file, _LENGTH.size, until))
    if length > MOST_BYTES:
        raise Garbage(f"found a frame of {length} bytes, wanted at most {MOST_BYTES}")
    return decode(_bytes(file, length, until))


def _bytes(file: int, count: int, until: float | None) -> bytes:
    got = bytearray()
    if until is None:
        while len(got) < count:
            more = os.read(file, min(count - len(got), 1 << 20))
            if not more:
                raise Closed("the other side has gone")
            got += more
        return bytes(got)
    with selectors.DefaultSelector() as ready:
        ready.register(file, selectors.EVENT_READ)
        while len(got) < count:
            _wait(ready, until)
            try:
                more = os.read(file, min(count - len(got), 1 << 20))
            except BlockingIOError:
                continue
            except OSError:
                more = b""
            if not more:
                raise Closed("the planner has gone")
            got += more
    return bytes(got)


def _wait(ready: selectors.BaseSelector, until: float) -> None:
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise Late("no answer in time")
        if ready.select(left):
            return
