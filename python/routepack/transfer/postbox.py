# SPDX-License-Identifier: Apache-2.0
"""Small notes between ranks, for votes and checksums: what `TransferEngine` asks of a network besides the bulk.

A torch.distributed `Store` carries them here. It is there in every job, it outlives a rank that dies as long as its own
host lives (under torchrun that is the agent, not a worker), and asking it never waits for a peer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from routepack._errors import PeerLost


class Postbox(Protocol):
    """Notes from anyone to anyone. No call waits for a peer; a peer that is gone is no error."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    def post(self, to: int, note: bytes) -> None:
        """Sends at most 1024 bytes, in order per pair of ranks."""

    def note(self) -> tuple[int, bytes] | None:
        """The next note that has arrived: who sent it, and what."""


class StorePostbox:
    """Notes over a `torch.distributed.Store`, or anything with its `set`, `get`, `add`, `check` and `delete_key`.

    All ranks give the same `prefix`, and a fresh one for every engine. A poll costs one round trip to the store's host
    (0.1 ms on a loopback), so polls are `poll_seconds` apart while notes come, and up to ten times as far when none do.
    Not for a `FileStore`, whose file grows with every poll.

    >>> class Local:
    ...     def __init__(self): self.values = {}
    ...     def set(self, key, value): self.values[key] = value
    ...     def get(self, key): return self.values[key]
    ...     def add(self, key, amount):
    ...         self.values[key] = self.values.get(key, 0) + amount
    ...         return self.values[key]
    ...     def check(self, keys): return all(key in self.values for key in keys)
    ...     def delete_key(self, key): return self.values.pop(key, None) is not None
    >>> store = Local()
    >>> here, there = (StorePostbox(store, rank, 2, "doc", poll_seconds=0) for rank in (0, 1))
    >>> here.post(1, b"hello")
    >>> there.note(), there.note()
    ((0, b'hello'), None)
    """

    def __init__(self, store: Any, rank: int, ranks: int, prefix: str, *, poll_seconds: float = 0.0005) -> None:
        if not 0 <= rank < ranks:
            raise ValueError(f"rank: found {rank}, wanted 0 to {ranks - 1}")
        self._store = store
        self._rank, self._ranks = rank, ranks
        self._prefix = f"routepack/{prefix}"
        self._sent: dict[int, int] = {}
        self._taken = dict.fromkeys(range(ranks), 0)
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._rings = 0
        self._shortest = self._interval = poll_seconds
        self._next_poll = 0.0

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def ranks(self) -> int:
        return self._ranks

    def post(self, to: int, note: bytes) -> None:
        number = self._sent.get(to, 0)
        self._sent[to] = number + 1
        # The bell rings after the letter lies there: whoever hears it finds the letter.
        self._ask(self._store.set, self._key(to, self._rank, number), note)
        self._ask(self._store.add, f"{self._prefix}/{to}/bell", 1)

    def note(self) -> tuple[int, bytes] | None:
        if not self._waiting and time.monotonic() >= self._next_poll:
            self._collect()
            quiet = not self._waiting
            self._interval = min(1.5 * self._interval, 10 * self._shortest) if quiet else self._shortest
            self._next_poll = time.monotonic() + self._interval
        return self._waiting.popleft() if self._waiting else None

    def _collect(self) -> None:
        rings = self._ask(self._store.add, f"{self._prefix}/{self._rank}/bell", 0)
        if rings == self._rings:
            return
        self._rings = rings
        for sender in range(self._ranks):
            key = self._key(self._rank, sender, self._taken[sender])
            while self._ask(self._store.check, [key]):
                self._waiting.append((sender, bytes(self._ask(self._store.get, key))))
                self._ask(self._store.delete_key, key)
                self._taken[sender] += 1
                key = self._key(self._rank, sender, self._taken[sender])

    def _key(self, to: int, sender: int, number: int) -> str:
        return f"{self._prefix}/{to}/{sender}/{number}"

    @staticmethod
    def _ask(question: Callable[..., Any], *words: Any) -> Any:
        try:
            return question(*words)
        except Exception as error:  # torch raises bare RuntimeErrors and DistStoreErrors of its own
            raise PeerLost(-1, f"the store does not answer: {error}") from error


__all__ = ["PeerLost", "Postbox", "StorePostbox"]
