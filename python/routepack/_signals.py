# SPDX-License-Identifier: Apache-2.0
"""Signals that end a program, as exceptions: what is temporary goes away as after Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType


class Stopped(BaseException):
    """SIGTERM or SIGHUP came."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def stops() -> Iterator[None]:
    """Raises Stopped in the block when SIGTERM or SIGHUP comes; afterwards they do what they did before.

    A signal that is ignored (nohup) or handled by somebody else stays as it is, and so do all outside the main thread.
    """
    before: dict[signal.Signals, signal.Handlers] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)  # nothing interrupts the cleaning up
        raise Stopped(number)

    if threading.current_thread() is threading.main_thread():
        before = {n: signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL}
    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """Ctrl-C in the block ends the program at once, with 130. For imports: nothing is to be cleaned up, and what
    compiled modules make of an exception in the middle of them is a traceback or another exception.
    """
    _leave_on_interrupt()
    try:
        yield
    finally:
        imported()


def _leave_on_interrupt() -> None:
    alone = threading.current_thread() is threading.main_thread() and _is_program()
    if alone and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def imported() -> None:
    """Ctrl-C is KeyboardInterrupt from here on."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_program() -> bool:
    """Whether this process was started as `routepack …` or `python -m routepack …`, whose main calls `imported`."""
    if os.path.basename(sys.argv[0] if sys.argv else "") == "routepack":
        return True
    words = sys.orig_argv
    return any(pair == ("-m", "routepack") for pair in zip(words, words[1:]))


# The package is imported before its main is, and imports this module first.
_leave_on_interrupt()
