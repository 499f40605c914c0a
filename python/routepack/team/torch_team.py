# SPDX-License-Identifier: Apache-2.0
"""A team over torch.distributed, with gloo."""

from __future__ import annotations

import datetime
import queue
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from routepack._errors import InvalidInput
from routepack.team.pairwise import Missed, Note, PairwiseTeam

# Of the messages of a plan, among those of the group.
_TAG = 0x5250
# How often a rank that waits looks whether those it waits for have left.
_LOOK_S = 0.5
# How long a look into the store, or a word of gloo that comes late, may take.
_GRACE_S = 1.0

_TEAMS: Counter[str] = Counter()


class TorchTeam(PairwiseTeam):
    """The ranks of a `torch.distributed` process group plan together.

    Messages travel as CPU tensors over the group's gloo backend, from each rank to each; 1.6 kB of them for 512 samples
    on two ranks and one round of the search. The making is collective, and groups are best of their own:
    `TorchTeam(torch.distributed.new_group(backend="gloo"))`. While a plan is made, nothing else may use the group for
    messages with this tag; collectives of other groups may go on.

    A rank that dies is noticed at once, by its connection. One that is silent for `patience_s` is named as well: the
    pairs of gloo then close, in this and by and by in all survivors, and the group is of no more use. Survivors tell
    each other through the group's store who it was; without a store, or when its host is the one that is gone, each
    names whom it missed itself.
    """

    def __init__(self, group: Any = None, *, patience_s: float = 60.0) -> None:
        """
        :param group: a process group with gloo for CPU tensors; None: the default one
        :param patience_s: longer than the longest work of any rank between two messages: coming to `plan` later than
            the others, counting rows, one round of the search
        :raises InvalidInput: for another backend, or where this process is no member
        """
        group = dist.group.WORLD if group is None else group
        if group is None or group is dist.GroupMember.NON_GROUP_MEMBER:
            raise InvalidInput("group: found none that this process belongs to, wanted a gloo process group")
        backend = _cpu_backend(group)
        if backend != "gloo":
            wanted = "torch.distributed.new_group(backend='gloo')"
            raise InvalidInput(f"group: found {backend} for CPU tensors, wanted {wanted}")
        super().__init__(dist.get_rank(group), dist.get_world_size(group), patience_s)
        self._group = group
        self._global = dist.get_process_group_ranks(group)
        name = str(group.group_name)
        self._key = f"routepack/team/{name}/{_TEAMS[name]}"
        _TEAMS[name] += 1
        self._store = _store_of(group)
        self._talk: _Talk | None = None  # a message that failed keeps its memory: gloo may still write there
        self._talker, self._clerk = _Worker("routepack-team"), _Worker("routepack-team-notes")
        weakref.finalize(self, _close, self._talker, self._clerk)

    def _exchange(self, out: bytes, sizes: list[int]) -> list[bytes]:
        talk = self._talk = _Talk(self._group, self._global, self._rank, out, sizes, self._patience_s)
        over = self._talker.do(talk.run)
        until = time.monotonic() + self._patience_s + _GRACE_S
        while not over.wait(min(_LOOK_S, max(0.0, until - time.monotonic()))):
            missing = talk.missing()
            left = {peer: missing[peer] for peer, _ in self._read_notes(missing, 0.0)}
            if left:
                raise Missed(left)
            if time.monotonic() >= until:
                break
        failures = talk.failures()
        if failures:
            raise Missed(failures)
        return talk.received()

    def _swap_notes(self, mine: Note, missed: Mapping[int, str]) -> dict[int, Note]:
        if self._store is None:
            return {}
        self._ask(lambda: self._store.set(f"{self._key}/{self._rank}", mine.to_bytes()))
        # A connection that closed may be that of a rank that gives up: its note comes in a moment.
        closed = any("silent" not in why for why in missed.values())
        return dict(self._read_notes(missed, _GRACE_S if closed else 0.0))

    def _read_notes(self, peers: Mapping[int, str], wait_s: float) -> Iterator[tuple[int, Note]]:
        until = time.monotonic() + wait_s
        left = sorted(peers)
        while left:
            for peer in list(left):
                key = f"{self._key}/{peer}"
                if self._ask(lambda: self._store.check([key])):
                    text = self._ask(lambda: self._store.get(key))
                    if text is not None:
                        left.remove(peer)
                        yield peer, Note.from_bytes(bytes(text))
            if self._store is None or time.monotonic() >= until:
                return
            time.sleep(0.02)

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The store's answer; None when it has none, or its host is gone, or does not answer in time."""
        if self._store is None:
            return None
        answer: list[Any] = []

        def ask() -> None:
            try:
                answer.append(question())
            except RuntimeError:
                self._store = None  # its host is gone

        if not self._clerk.do(ask).wait(_GRACE_S):
            self._store = None  # never again: the clerk still waits
        return answer[0] if answer else None


class _Talk:
    """One message to each of the others and one from each. Runs in a thread of its own, as gloo's messages end only
    in a wait that nobody can interrupt, nor cut into pieces: a wait that runs out of time closes all connections."""

    def __init__(
        self, group: Any, world: list[int], rank: int, out: bytes, sizes: list[int], patience_s: float
    ) -> None:
        self._group, self._world = group, world
        self._patience_s = patience_s
        self._until = time.monotonic() + patience_s
        peers = [peer for peer in range(len(sizes)) if peer != rank]
        self._out = torch.frombuffer(bytearray(out), dtype=torch.uint8) if out else None
        self._in = [torch.empty(size, dtype=torch.uint8) for size in sizes]
        self._lock = threading.Lock()
        self._failures: dict[int, str] = {}
        self._todo = {(peer, True) for peer in peers if sizes[peer] > 0}
        if self._out is not None:
            self._todo |= {(peer, False) for peer in peers}

    def run(self) -> None:
        works: list[tuple[int, bool, Any]] = []
        for peer, receives in sorted(self._todo):
            try:
                if receives:
                    work = dist.irecv(self._in[peer], self._world[peer], group=self._group, tag=_TAG)
                else:
                    work = dist.isend(self._out, self._world[peer], group=self._group, tag=_TAG)
            except (RuntimeError, ValueError) as error:
                self._fail(peer, _what(str(error), self._patience_s))
            else:
                works.append((peer, receives, work))
        # What arrives first: who has not said anything is the one to be named, not who takes no message.
        for peer, receives, work in sorted(works, key=lambda one: not one[1]):
            if self._gone():
                return
            left = max(0.001, self._until - time.monotonic())
            try:
                work.wait(datetime.timedelta(seconds=left))
            except RuntimeError as error:
                self._fail(peer, _what(str(error), self._patience_s))
            else:
                with self._lock:
                    self._todo.discard((peer, receives))

    def missing(self) -> dict[int, str]:
        """Those that have not answered yet."""
        with self._lock:
            silent = f"was silent for {self._patience_s:g} s"
            return {peer: self._failures.get(peer, silent) for peer, _ in sorted(self._todo)}

    def failures(self) -> dict[int, str]:
        """Those that are known to be gone; else those that are missing."""
        with self._lock:
            gone = {peer: why for peer, why in self._failures.items() if "silent" not in why}
        return gone or self.missing()

    def received(self) -> list[bytes]:
        return [bytes(tensor.numpy()) for tensor in self._in]

    def _fail(self, peer: int, why: str) -> None:
        with self._lock:
            self._failures.setdefault(peer, why)
            self._todo.add((peer, True))

    def _gone(self) -> bool:
        with self._lock:
            return any("silent" not in why for why in self._failures.values())


class _Worker:
    """A thread that does one thing after the other, and whom nobody has to wait for. Started when first asked."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = queue.SimpleQueue()
        self._started = False

    def do(self, task: Callable[[], None]) -> threading.Event:
        """@returns what is set when it is done"""
        if not self._started:
            threading.Thread(target=_work, args=(self._tasks,), name=self._name, daemon=True).start()
            self._started = True
        done = threading.Event()
        self._tasks.put((task, done))
        return done

    def end(self) -> None:
        self._tasks.put(None)


def _work(tasks: queue.SimpleQueue[tuple[Callable[[], None], threading.Event] | None]) -> None:
    while (task := tasks.get()) is not None:
        try:
            task[0]()
        finally:
            task[1].set()
        del task


def _close(*workers: _Worker) -> None:
    for worker in workers:
        worker.end()


def _what(text: str, patience_s: float) -> str:
    """What gloo's words mean."""
    if "Timed out" in text or "Application timeout" in text:
        return f"was silent for {patience_s:g} s"
    words = re.sub(r"^\[[^]]*\] ", "", text.split("\n")[0]).split(". ")[0]
    return f"closed its connection ({words})"


def _cpu_backend(group: Any) -> str:
    """Of a group whose description is that of several, «cpu:gloo,cuda:nccl», the first."""
    text = str(dist.get_backend_config(group)) if hasattr(dist, "get_backend_config") else str(dist.get_backend(group))
    by_device = dict(part.split(":", 1) for part in text.split(",") if ":" in part)
    return by_device.get("cpu", "nothing" if by_device else text)


def _store_of(group: Any) -> Any:
    """A connection of its own, so that nobody's wait in the store holds up a note."""
    try:
        store = group.get_group_store()
    except (AttributeError, RuntimeError):
        return None
    try:
        return store.clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        return store


__all__ = ["TorchTeam"]
