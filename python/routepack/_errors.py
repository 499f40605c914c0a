# SPDX-License-Identifier: Apache-2.0
"""What can go wrong. Every message is one line: where, what was found, what was wanted."""

from __future__ import annotations


class Error(RuntimeError):
    """Root of everything that routepack raises on purpose."""


class InvalidInput(Error, ValueError):
    """Values that contradict each other or their own definition."""


class FormatError(InvalidInput):
    """A file whose bytes are not what its format promises."""


class IoError(Error, OSError):
    """The system refused to open, map, read or write."""


class InternalError(Error):
    """A broken invariant of routepack: a bug, never the caller's fault."""


class Cancelled(Error):
    """A stop was requested before there was a plan."""


class InfeasibleError(Error):
    """Well-formed input for which no layout exists, or none was found.

    >>> error = InfeasibleError("sample 3 has 9000 tokens, the cap is 8192", "a larger cap")
    >>> print(error)
    no layout: sample 3 has 9000 tokens, the cap is 8192; what would help: a larger cap
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"no layout: {self.reason}; what would help: {self.remedy}"


class PeerLost(Error, ConnectionError):
    """Another rank of a team, or the way to it, is gone: dead, silent for too long, or it left on its own account.

    >>> error = PeerLost(3, "it was silent for 60 s")
    >>> error.rank, str(error)
    (3, 'rank 3 is lost: it was silent for 60 s')
    """

    def __init__(self, rank: int, what: str) -> None:
        super().__init__(f"rank {rank} is lost: {what}")
        self.rank = rank
        self.what = what

    def __reduce__(self) -> tuple[type[PeerLost], tuple[int, str]]:
        return type(self), (self.rank, self.what)


class RoutePackWarning(UserWarning):
    """Something that works and is not as it should be."""
