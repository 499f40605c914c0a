# SPDX-License-Identifier: Apache-2.0
"""Members of a team that are threads of one process: planning lets go of the GIL, so they do plan at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import routepack


class Hub:
    def __init__(self, ranks: int, patience_s: float = 60.0) -> None:
        self.ranks = ranks
        self.patience_s = patience_s
        self.barrier = threading.Barrier(ranks)
        self.given: list[bytes] = [b""] * ranks
        self.calls = [0] * ranks


class ThreadTeam:
    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.ranks = hub, rank, hub.ranks
        self.threads: set[int] = set()
        self.sent = 0

    def all_gather(self, mine: bytes) -> list[bytes]:
        hub = self.hub
        self.threads.add(threading.get_ident())
        self.sent += len(mine)
        hub.given[self.rank] = mine
        hub.calls[self.rank] += 1
        try:
            hub.barrier.wait(hub.patience_s)
            given = list(hub.given)
            hub.barrier.wait(hub.patience_s)
        except threading.BrokenBarrierError:
            lost = hub.calls.index(min(hub.calls))
            raise routepack.PeerLost(lost, "it was silent") from None
        return given


class Ended:
    """How one rank's function ended."""

    def __init__(self) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self.calls = 0
        self.sent = 0

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


def run_threads(ranks: int, function: Callable[[Any], Any], *, patience_s: float = 60.0, make: Any = ThreadTeam) -> list[Ended]:
    """`function(team)` in a thread for each rank. @returns how each ended, by rank"""
    hub = Hub(ranks, patience_s)
    ends = [Ended() for _ in range(ranks)]

    def work(rank: int) -> None:
        team = make(hub, rank)
        try:
            ends[rank].value = function(team)
        except BaseException as error:
            ends[rank].error = error
        ends[rank].calls, ends[rank].sent = hub.calls[rank], team.sent

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return ends
