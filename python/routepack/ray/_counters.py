# SPDX-License-Identifier: Apache-2.0
"""The driver's side of the counting actors: starting them, and getting a step's counts out of them, or what is left."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from routepack._errors import InvalidInput
from routepack.ray._answers import fetched, one_line
from routepack.ray._counter import NAMESPACE, Counter
from routepack.ray._counting import CountingActor
from routepack.ray._samples import CountOptions, Index, plain_samples
from routepack.ray._selection import Piece, select
from routepack.ray._source import Source, from_source
from routepack.ray._where import asked_for

_EARLY_S = 0.05  # `ray.wait` may end a little before its time
_ROUNDS = 4  # of counting again: for what was with an actor that died, or said nothing, doing it


@dataclass
class _Actor:
    handle: Any
    up: Any  # answered by `state` once the actor is there
    is_up: bool = False
    gone: bool = False  # for good
    born: str = ""  # when it last gave counts; empty when it was down since


@dataclass
class Gathered:
    """Counts of a step, and what became of the rest."""

    pieces: list[Piece]
    shape: tuple[int, int]  #: layers and experts; (0, 0) when nothing was counted
    marked: npt.NDArray[np.int64]  #: places without counts
    without_routes: int  #: samples marked, and samples of which no row was recorded
    lost: int = 0  #: actors that died, stalled or were not there
    recounted: int = 0
    recount_ms: float = 0.0
    duplicates: int = 0  #: samples that two actors had, or that came twice
    unused: int = 0  #: counted, and not in the step
    dropped: int = 0  #: samples of windows that actors dropped to make room
    reasons: list[str] = field(default_factory=list)  #: why samples have no counts, some of them


class Counters:
    """Counting actors. They restart by themselves, and empty."""

    def __init__(self, where: Sequence[Any], options: CountOptions, *, num_cpus: float, name: str | None) -> None:
        remote = ray.remote(CountingActor)
        self._actors: list[_Actor] = []
        self._options = options
        self.restarts = 0
        for number, strategy in enumerate(where):
            named = {} if name is None else {"name": f"{name}/counter/{number}", "namespace": NAMESPACE}
            try:
                handle = remote.options(
                    max_restarts=-1,
                    max_task_retries=0,
                    **asked_for(strategy, num_cpus),
                    **named,
                ).remote(options)
            except ValueError as error:
                self.close()
                raise InvalidInput(
                    f"name: found {name!r}, which another job on this cluster uses ({one_line(error)})"
                ) from None
            self._actors.append(_Actor(handle, _up(handle)))

    @property
    def clients(self) -> list[Counter]:
        handles = [actor.handle for actor in self._actors]
        return [Counter(handles, number) for number in range(len(handles))]

    def wait(self, timeout_s: float) -> bool:
        """Whether all are there by then."""
        ray.wait([a.up for a in self._actors], num_returns=len(self._actors), timeout=timeout_s)
        return len(self._alive()) == len(self._actors)

    def states(self, timeout_s: float = 5.0) -> list[dict[str, Any] | None]:
        """Of each actor pid, windows, samples and bytes; None where there is no answer."""
        calls = [actor.handle.state.remote() for actor in self._actors]
        ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
        return [fetched(call, 0.0)[0] for call in calls]

    def gather(
        self,
        window: Hashable,
        ids: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        *,
        source: Source | None,
        until: float,
        timeout_s: float,
    ) -> Gathered:
        """The counts of a step's samples. Ends by `until`, and gives no actor more than `timeout_s` for one answer."""
        alive = self._alive()
        named = ray.put(ids)
        calls = {i: a.handle.seal.options(num_returns=2).remote(window, named) for i, a in enumerate(self._actors)}
        answers, lost = self._collect(calls, alive, until, timeout_s, source is None)
        found = select(answers, ids, lengths)
        result = Gathered(found.pieces, found.shape, found.missing, 0, lost=len(lost), duplicates=found.duplicates)
        for index, _ in answers:
            result.unused += index.others
            result.dropped += index.dropped
            result.duplicates += index.replaced
            result.reasons += index.refused
        unrecorded = found.unrecorded
        if len(found.missing) and source is not None:
            begin = time.perf_counter()
            unrecorded += self._again(result, ids, lengths, source, until, timeout_s)
            result.recount_ms = 1e3 * (time.perf_counter() - begin)
        result.without_routes = len(result.marked) + unrecorded
        return result

    def replace(
        self,
        gathered: Gathered,
        lost: Sequence[int],
        ids: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        *,
        source: Source | None,
        until: float,
        timeout_s: float,
    ) -> None:
        """Counts again what was in pieces whose objects are gone, or marks it."""
        gone = [gathered.pieces[i].places for i in lost]
        gathered.pieces = [piece for i, piece in enumerate(gathered.pieces) if i not in set(lost)]
        gathered.marked = np.concatenate([gathered.marked, *gone])
        if not gathered.pieces:
            gathered.shape = (0, 0)
        before = gathered.recounted
        if source is not None:
            self._again(gathered, ids, lengths, source, until, timeout_s)
        gathered.without_routes += sum(map(len, gone)) - (gathered.recounted - before)

    def release(self, window: Hashable, ids: npt.NDArray[np.int64] | None) -> None:
        """Lets the actors forget a window, or some of its samples. Does not wait."""
        named = None if ids is None else ray.put(ids)
        for actor in self._actors:
            if not actor.gone:
                actor.handle.release.remote(window, named)

    def close(self) -> None:
        """Ends the actors."""
        for actor in self._actors:
            try:
                ray.kill(actor.handle)
            except Exception:
                continue  # Ray itself is gone
        self._actors = []

    def _alive(self) -> set[int]:
        """Actors that are there, as far as one can tell without waiting."""
        for actor in self._actors:
            if actor.is_up or actor.gone or not ray.wait([actor.up], timeout=0)[0]:
                continue
            _, error = fetched(actor.up, 1.0)
            actor.is_up = error is None
            actor.gone = isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError)
            if error is not None and not actor.gone:
                actor.up = _up(actor.handle)
        return {i for i, actor in enumerate(self._actors) if actor.is_up}

    def _down(self, number: int) -> None:
        actor = self._actors[number]
        if actor.is_up:
            actor.is_up, actor.born = False, ""
            actor.up = _up(actor.handle)
            self.restarts += 1

    def _again_born(self, number: int, born: str) -> bool:
        actor = self._actors[number]
        if not born or actor.born == born:
            return False
        new = actor.born != ""  # otherwise it was counted when it went down
        self.restarts += new
        actor.born = born
        return new

    def _collect(
        self, calls: Mapping[int, Any], alive: set[int], until: float, timeout_s: float, all: bool
    ) -> tuple[list[tuple[Index, Any]], set[int]]:
        """Answers, and which actors gave none, or were started again meanwhile. Who starts again holds nothing yet and
        is not waited for, unless `all` is asked for: it may have come back, and been filled, since it was last seen."""
        patience = time.monotonic() + timeout_s
        until = min(until, patience)
        answers: list[tuple[Index, Any]] = []
        lost: set[int] = set()
        waiting = {i: call for i, call in calls.items() if not self._actors[i].gone}
        lost |= set(calls) - set(waiting)
        while waiting:
            if not all and not (set(waiting) & alive):
                break
            ready, _ = ray.wait(
                [index for index, _ in waiting.values()], timeout=max(0.0, until - time.monotonic()), num_returns=1
            )
            if not ready:
                break
            for i in [i for i, call in waiting.items() if call[0] in ready]:
                index_reference, part = waiting.pop(i)
                answer, error = fetched(index_reference, 5.0)
                if error is not None:
                    lost.add(i)
                    self._down(i)
                    continue
                answers.append((answer, part))
                if self._again_born(i, answer.born):
                    lost.add(i)
        patient = time.monotonic() >= patience - _EARLY_S
        for i in waiting:
            lost.add(i)
            if i in alive and patient:  # it was there, and said nothing
                self._down(i)
                _restart(self._actors[i].handle)
        return answers, lost

    def _again(
        self,
        gathered: Gathered,
        ids: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int32],
        source: Source,
        until: float,
        timeout_s: float,
    ) -> int:
        """Counts what is marked again, where that can be. Gives the samples that turned out to have no recorded row."""
        patience = min(until, time.monotonic() + timeout_s)
        samples = from_source(source, ids[gathered.marked], lengths[gathered.marked], patience, gathered.reasons)
        todo = {}
        for sample in samples:
            try:
                todo[int(sample.id)] = plain_samples([sample])[0]
            except InvalidInput as error:
                gathered.reasons.append(f"sample {sample.id}: {one_line(error)}")
        unrecorded = 0
        silent: set[int] = set()
        for left in reversed(range(_ROUNDS)):
            there = [actor.up for actor in self._actors if not actor.gone]
            if todo and there and not self._alive():
                ray.wait(there, timeout=max(0.0, until - time.monotonic()))
            up = self._alive()
            alive = sorted(up - silent or up)
            if not todo or not alive or time.monotonic() >= until:
                break
            some = list(todo.values())
            calls = {}
            for number, i in enumerate(alive):
                share = some[number :: len(alive)]
                if share:
                    calls[i] = self._actors[i].handle.count.options(num_returns=2).remote(share)
            now = time.monotonic()
            limit = now + (until - now) / (2 if left else 1)
            answers, without = self._collect(calls, set(alive), limit, timeout_s, True)
            silent |= without
            # Who answered has nothing more to say about its samples: those that it refused will be refused again.
            places = np.sort(gathered.marked)
            found = select(answers, ids[places], lengths[places], gathered.shape)
            for piece in found.pieces:
                gathered.pieces.append(Piece(piece.part, piece.rows, places[piece.places]))
                gathered.recounted += len(piece.rows)
                for id in ids[places[piece.places]].tolist():
                    todo.pop(id, None)
            gathered.shape = found.shape
            gathered.marked = places[found.missing]
            unrecorded += found.unrecorded
            for index, _ in answers:
                gathered.reasons += index.refused
            if len(answers) == len(calls):
                break
        return unrecorded


def _up(handle: Any) -> Any:
    # Sent again with every restart, so that it is answered once the actor is there.
    return handle.state.options(max_task_retries=-1).remote()


def _restart(handle: Any) -> None:
    """Ends an actor that may be stopped; Ray starts it again. Ray's own patience with it is some seconds."""
    try:
        ray.kill(handle, no_restart=False)
    except Exception:
        return  # it is dead already
