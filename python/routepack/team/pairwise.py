# SPDX-License-Identifier: Apache-2.0
"""All-gather out of messages between pairs: every member hears from every other, so a silent one has a name."""

from __future__ import annotations

import abc
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from routepack._errors import Error, InvalidInput, PeerLost

# Bytes of a first message, which carries the length of what is said and its beginning. Most of what ranks tell each
# other while they plan fits, and then it is the only one.
FIRST_BYTES = 2048
_LENGTH_BYTES = 8


@dataclass(frozen=True)
class Note:
    """What a member that gives up leaves for the others: why, and whom it missed."""

    what: str
    missed: Mapping[int, str]

    def to_bytes(self) -> bytes:
        return json.dumps([self.what, {str(rank): why for rank, why in self.missed.items()}]).encode()

    @staticmethod
    def from_bytes(text: bytes) -> Note:
        what, missed = json.loads(text.decode())
        return Note(what, {int(rank): why for rank, why in missed.items()})


class Missed(Exception):
    """Members that did not answer, each with what is known about it."""

    def __init__(self, peers: Mapping[int, str]) -> None:
        super().__init__(peers)
        self.peers = dict(peers)


def blame(missed: Mapping[int, str], notes: Mapping[int, Note]) -> PeerLost:
    """Who is to be named when `missed` did not answer and some of them have left notes.

    A member that left a note is alive and has given up because of somebody else, whom its note names.

    >>> print(blame({0: "closed its connection", 2: "was silent"}, {0: Note("PeerLost", {2: "was silent"})}))
    rank 2 is lost: it was silent
    >>> print(blame({0: "closed its connection"}, {0: Note("PeerLost", {1: "was silent for 5 s"})}))
    rank 1 is lost: it was silent for 5 s, says rank 0
    >>> print(blame({0: "was silent"}, {0: Note("KeyboardInterrupt", {})}))
    rank 0 is lost: it left: KeyboardInterrupt
    """
    for peer in sorted(missed):
        if peer not in notes:
            return PeerLost(peer, f"it {missed[peer]}")
    for teller in sorted(missed):
        for peer, why in sorted(notes[teller].missed.items()):
            if peer not in notes:
                return PeerLost(peer, f"it {why}, says rank {teller}")
    first = min(missed)
    return PeerLost(first, f"it left: {notes[first].what}")


class PairwiseTeam(abc.ABC):
    """A team over messages between two. Once a call has failed the team is spent: messages may be on their way."""

    def __init__(self, rank: int, ranks: int, patience_s: float) -> None:
        if not (patience_s > 0 and math.isfinite(patience_s)):
            raise InvalidInput(f"patience_s: found {patience_s}, wanted a finite number of seconds above 0")
        self._rank, self._ranks = rank, ranks
        self._patience_s = float(patience_s)
        self._process = os.getpid()
        self._ended: Error | None = None

    @property
    def rank(self) -> int:
        """0 to ranks - 1."""
        return self._rank

    @property
    def ranks(self) -> int:
        """Members of the team."""
        return self._ranks

    @property
    def patience_s(self) -> float:
        """How long a call waits for a silent member."""
        return self._patience_s

    def all_gather(self, mine: bytes) -> list[bytes]:
        """What every member gave to its call, by rank: one message to each of the others, and a second one if it is
        longer than 2040 bytes.

        :raises PeerLost: naming a member that is gone, was silent for `patience_s`, or has left; and in every later
            call
        """
        if os.getpid() != self._process:
            raise Error("the team belongs to the process from which this one was forked")
        if self._ended is not None:
            raise _again(self._ended)
        if self._ranks == 1:
            return [mine]
        try:
            return self._gather(mine)
        except Missed as error:
            missed = error.peers
            notes = self._swap_notes(Note("PeerLost", missed), missed)
            self._ended = blame(missed, notes)
            raise self._ended from error.__cause__
        except BaseException as error:
            self._ended = Error(f"the team was left in the middle of a message: {type(error).__name__}")
            self._swap_notes(Note(type(error).__name__, {}), {})
            raise

    def _gather(self, mine: bytes) -> list[bytes]:
        inside = FIRST_BYTES - _LENGTH_BYTES
        first = (len(mine).to_bytes(_LENGTH_BYTES, "little") + mine[:inside]).ljust(FIRST_BYTES, b"\0")
        firsts = self._exchange(first, [FIRST_BYTES] * self._ranks)
        lengths = [int.from_bytes(message[:_LENGTH_BYTES], "little") for message in firsts]
        lengths[self._rank] = len(mine)
        parts = [message[_LENGTH_BYTES : _LENGTH_BYTES + length] for message, length in zip(firsts, lengths)]
        if max(lengths) > inside:
            rests = self._exchange(mine[inside:], [max(0, length - inside) for length in lengths])
            parts = [part + rest for part, rest in zip(parts, rests)]
        parts[self._rank] = mine
        return parts

    @abc.abstractmethod
    def _exchange(self, out: bytes, sizes: list[int]) -> list[bytes]:
        """Sends `out` to every other member and receives sizes[r] bytes from rank r; a message of no bytes is none.
        What comes back for this rank does not matter.

        :raises Missed: with those that did not answer within the patience, or are known to be gone
        """

    @abc.abstractmethod
    def _swap_notes(self, mine: Note, missed: Mapping[int, str]) -> dict[int, Note]:
        """Leaves a note for everybody and looks for those of the missed, within a second or so. Best effort: never
        raises, but for what is no Exception."""


def _again(ended: Error) -> Error:
    if isinstance(ended, PeerLost):
        return PeerLost(ended.rank, f"{ended.what}; the team is of no more use")
    return Error(f"{ended}; it is of no more use")
