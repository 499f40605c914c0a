# SPDX-License-Identifier: Apache-2.0
"""Planning on Ray, step after step, as the driver of a training job sees it."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from routepack._core import Constraints, CostModel, Placement, Plan, PlanParams, Progress, Topology
from routepack._errors import Error, InvalidInput
from routepack._replay import Invalid, Missing
from routepack.adapters import FallBack, Reason
from routepack.adapters._reasons import fall_back_of
from routepack.ray._answers import forget_frames
from routepack.ray._counter import Counter
from routepack.ray._counters import Counters, Gathered
from routepack.ray._future import RayPlanFuture
from routepack.ray._plain import PlainOptions, placement_map
from routepack.ray._planner import RemotePlanner, Reply
from routepack.ray._planning_actor import WindowParts
from routepack.ray._samples import CountOptions, checked_step
from routepack.ray._source import Source
from routepack.ray._where import here, strategies

_LOG = logging.getLogger("routepack")
_TRIES = 2  # to plan a step whose parts were lost with a node
_COUNT_SHARE = 0.8  # of the time that is left: for counts; the rest is the planner's


@dataclass(frozen=True, eq=False)
class _Job:
    future: RayPlanFuture
    window: Hashable
    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    groups: npt.NDArray[np.int32] | None
    atomic: npt.NDArray[np.int32] | None
    options: PlainOptions
    source: Source | None
    current: npt.NDArray[np.int32] | None  # None: where the step before left them
    deadline_s: float
    keep_others: bool


class RayPlanning:
    """Counting actors, a planner actor, and the plans of one training job.

    Rollout workers hold `counters` and add samples to windows by name. The driver says which samples a step has, in
    the order in which the plan shall number them, and gets a future. Steps are planned one after the other, each from
    where the one before left the experts. Whatever happens to the actors, a step ends within `deadline_s` + `grace_s`
    of its turn, with a plan or with None (docs/ray.md); the first may take `start_s` longer.

    The actors belong to the process that made this object: they end with it, with `close`, or with the `with` block.
    All methods may be called from any thread.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        capacity: int,
        cost: CostModel,
        experts: int,
        top_k: int,
        counters: int | Sequence[Any] = 1,
        constraints: Constraints | None = None,
        params: PlanParams | None = None,
        current: Placement | Plan | None = None,
        sync: str = "step",
        progress: Callable[[Progress], object] | None = None,
        source: Source | None = None,
        layers: Sequence[int] | None = None,
        missing: Missing = "leave-out",
        invalid: Invalid = "refuse",
        physical_to_logical: Any = None,
        layer_numbers: Sequence[int] | None = None,
        model: str | None = None,
        pad_counts: Any = None,
        deadline_s: float = 10.0,
        grace_s: float = 2.0,
        count_s: float = 5.0,
        start_s: float = 60.0,
        max_missing: float = 0.5,
        windows: int = 8,
        predict: bool = False,
        planner: Any = None,
        counter_cpus: float = 0.0,
        planner_cpus: float = 0.0,
        counter_threads: int = 1,
        name: str | None = None,
    ) -> None:
        """Begins to start the actors, and does not wait for them.

        :param counters: how many, spread over the nodes; or one scheduling strategy each (`in_bundles`, `on_nodes`)
        :param progress: called in the planner actor, as that of `plan`; must be picklable
        :param source: where samples come from whose counts were lost: routes (or object references of them) by id, or a
            callable that gets the missing ids and gives `Sample`s. None: they are marked as without routes
        :param layers: which layers of the routes to count, by place
        :param physical_to_logical: [L, slots], when routes have physical ids
        :param layer_numbers: global numbers of the layers, kept in the window; also `model` and `pad_counts`
        :param deadline_s: of a step, from its turn: then the search ends with the best plan
        :param grace_s: so much later the planner is ended, and the step has no plan
        :param count_s: what a counting actor may take for one answer, within 0.8 of the deadline
        :param start_s: what the first planner may take to be there
        :param max_missing: share of samples that may be without routes
        :param windows: that an actor keeps at most
        :param predict: let the planner also compute `RayPlanFuture.loads`
        :param planner: scheduling strategy of the planner actor; None: on this node
        :param name: makes the counters known on the cluster to `find_counter`
        :raises InvalidInput: for values out of range, and a name that another job uses
        """
        for what, value in (("deadline_s", deadline_s), ("count_s", count_s), ("start_s", start_s)):
            if not value > 0:
                raise InvalidInput(f"{what}: found {value}, wanted more than 0 seconds")
        if grace_s < 0:
            raise InvalidInput(f"grace_s: found {grace_s}, wanted 0 or more seconds")
        for what, number in (("experts", experts), ("top_k", top_k), ("windows", windows)):
            if number < 1:
                raise InvalidInput(f"{what}: found {number}, wanted 1 or more")
        if not 0.0 <= max_missing <= 1.0:
            raise InvalidInput(f"max_missing: found {max_missing}, wanted a share from 0 to 1")
        if progress is not None:
            try:
                ray.cloudpickle.dumps(progress)
            except Exception as error:
                raise InvalidInput(f"progress: found what cannot be pickled: {type(error).__name__}: {error}") from None
        self._topology, self._capacity, self._cost = topology, capacity, cost
        self._constraints, self._params = constraints, params
        self._sync, self._progress = sync, progress
        self._options = self._plain()
        self._source = source
        self._top_k = top_k
        self._extra: dict[str, Any] = {
            "layers": None if layer_numbers is None else [int(n) for n in layer_numbers],
            "model": model,
            "pad_counts": None if pad_counts is None else np.array(pad_counts, dtype=np.uint32),
        }
        self._deadline_s, self._grace_s, self._count_s = deadline_s, grace_s, count_s
        self._max_missing = max_missing
        self._predict = predict
        self._current = placement_map(current)
        self._lock = threading.Lock()
        self._waiting: collections.deque[_Job] = collections.deque()
        self._running: _Job | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._number = self._steps = self._fallbacks = 0
        counting = CountOptions(
            experts,
            None if layers is None else tuple(int(n) for n in layers),
            missing,
            invalid,
            None if physical_to_logical is None else np.array(physical_to_logical, dtype=np.int32),
            counter_threads,
            windows=windows,
        )
        where = strategies(counters)
        self._planner = RemotePlanner(
            strategy=here() if planner is None else planner, num_cpus=planner_cpus, start_s=start_s, name=name
        )
        self._counters = Counters(where, counting, num_cpus=counter_cpus, name=name)
        try:
            self._planner.start()
        except BaseException:
            self._counters.close()
            raise
        self.counters: list[Counter] = self._counters.clients
        """One per counting actor, for rollout workers: give each the one that is near, or any. They can be pickled."""

    def submit(
        self,
        window: Hashable,
        ids: Any,
        lengths: Any,
        *,
        groups: Any = None,
        atomic: Any = None,
        source: Source | None = None,
        current: Placement | Plan | None = None,
        topology: Topology | None = None,
        capacity: int | None = None,
        cost: CostModel | None = None,
        constraints: Constraints | None = None,
        params: PlanParams | None = None,
        deadline_s: float | None = None,
        keep_others: bool = False,
    ) -> RayPlanFuture:
        """Begins to plan a step, at once unless others wait, and returns without waiting.

        Why samples have to be named: only so can it be seen that some were lost with an actor.

        :param window: under what name samples were added
        :param ids: [N] which of them train in this step; the plan numbers them in this order
        :param lengths: int32 [N] tokens of each, final
        :param groups: int32 [N], as `atomic`, of the window
        :param current: where experts are when that is not where the step before left them
        :param keep_others: leave other samples of the window for a later step; else the window is over with this step
        :raises InvalidInput: for ids or lengths that contradict each other
        :raises Error: when it is closed
        """
        names, tokens, group_column, atomic_column = checked_step(ids, lengths, groups, atomic)
        changed = any(value is not None for value in (topology, capacity, cost, constraints, params))
        options = self._plain(topology, capacity, cost, constraints, params) if changed else self._options
        with self._lock:
            if self._closed:
                raise Error("the planning is closed")
            self._number += 1
            job = _Job(
                RayPlanFuture(self._number, options.ranks, self._planner),
                window,
                names,
                tokens,
                group_column,
                atomic_column,
                options,
                self._source if source is None else source,
                placement_map(current),
                self._deadline_s if deadline_s is None else deadline_s,
                keep_others,
            )
            self._waiting.append(job)
            if self._thread is None:
                # Not a daemon: Ray must not go while a call is under way. It ends when nothing waits.
                self._thread = threading.Thread(target=self._work, name="routepack-ray")
                self._thread.start()
        return job.future

    def plan(
        self, window: Hashable, ids: Any, lengths: Any, timeout: float | None = None, **options: Any
    ) -> Plan | None:
        """`submit`, then `result`."""
        return self.submit(window, ids, lengths, **options).result(timeout)

    @property
    def current(self) -> npt.NDArray[np.int32] | None:
        """Where experts are after the last step that was planned, physical to logical [L, E]; None: expert e in slot e.

        Assign it when they are somewhere else: a plan that was not used, a checkpoint that was loaded.
        """
        with self._lock:
            return self._current

    @current.setter
    def current(self, where: Placement | Plan | npt.NDArray[np.int32] | None) -> None:
        with self._lock:
            self._current = placement_map(where)

    def wait_ready(self, timeout_s: float = 60.0) -> bool:
        """Whether all actors are there by then. Not needed: what is not there yet is waited for, or done without."""
        until = time.monotonic() + timeout_s
        there = self._counters.wait(timeout_s)
        return self._planner.pid(max(0.1, until - time.monotonic())) is not None and there

    def actors(self, timeout_s: float = 5.0) -> dict[str, Any]:
        """For those who look after a cluster: `planner` (process id) and `counters` (of each process id, windows,
        samples and bytes); None where there is no answer."""
        return {"planner": self._planner.pid(timeout_s), "counters": self._counters.states(timeout_s)}

    def close(self, *, cancel: bool = False) -> None:
        """Takes no more steps, waits for those there are, or ends them, and ends the actors. Twice is fine."""
        with self._lock:
            self._closed = True
            thread = self._thread
            jobs = [*self._waiting] + ([self._running] if self._running is not None else [])
        if cancel:
            for job in jobs:
                job.future.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._counters.close()
        self._planner.close()

    def __enter__(self) -> RayPlanning:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(cancel=error is not None)

    def _plain(
        self,
        topology: Topology | None = None,
        capacity: int | None = None,
        cost: CostModel | None = None,
        constraints: Constraints | None = None,
        params: PlanParams | None = None,
    ) -> PlainOptions:
        return PlainOptions.of(
            topology or self._topology,
            self._capacity if capacity is None else capacity,
            cost or self._cost,
            constraints or self._constraints,
            params or self._params,
            sync=self._sync,
            progress=self._progress,
        )

    def _work(self) -> None:
        while True:
            with self._lock:
                self._running = self._waiting.popleft() if self._waiting else None
                if self._running is None:
                    self._thread = None
                    return
                job = self._running
            self._step(job)
            del job

    def _step(self, job: _Job) -> None:
        future, begun = job.future, time.monotonic()
        reply: Reply | None = None
        failure: FallBack | None = None
        metrics: dict[str, float] = {}
        future._begin()
        if not future.cancelled():
            try:
                reply = self._planned(job, begun + job.deadline_s, metrics)
            except Exception as error:
                failure = fall_back_of(error)
                if failure.reason == Reason.INTERNAL:
                    _LOG.error("step %d: a fault of routepack", future.number, exc_info=True)
                forget_frames(failure)  # whoever keeps the future must not keep the counts of the step
                forget_frames(error)
        if reply is not None and "cancelled" in reply.status:
            reply = None
        self._steps += 1
        self._fallbacks += failure is not None and not future.cancelled()
        metrics["routepack/fallback"] = float(Reason.NONE if failure is None else failure.reason)
        metrics["routepack/used"] = float(reply is not None)
        metrics["routepack/steps"] = float(self._steps)
        metrics["routepack/fallbacks"] = float(self._fallbacks)
        metrics["routepack/planner_restarts"] = float(self._planner.restarts)
        metrics["routepack/ray_counter_restarts"] = float(self._counters.restarts)
        metrics["routepack/ms_adapter"] = 1e3 * (time.monotonic() - begun)
        with self._lock:  # before the result: who has that may submit the next step
            before = self._current
            if reply is not None:
                self._current = np.array(reply.status["placement"], dtype=np.int32)
        if not future._finish(reply, failure, metrics):
            with self._lock:  # a step that nobody wants any more moves no experts
                self._current = before

    def _planned(self, job: _Job, soft: float, metrics: dict[str, float]) -> Reply | None:
        if not len(job.ids):
            self._counters.release(job.window, job.ids if job.keep_others else None)
            raise FallBack(Reason.UNSUPPORTED, "a step without samples")
        begun = time.monotonic()
        until = begun + _COUNT_SHARE * (soft - begun)
        gathered = self._counters.gather(
            job.window, job.ids, job.lengths, source=job.source, until=until, timeout_s=self._count_s
        )
        self._counters.release(job.window, job.ids if job.keep_others else None)
        counted = time.monotonic()
        job.future.timings_ms["count"] = metrics["routepack/ms_routes"] = 1e3 * (counted - begun)
        for attempt in range(_TRIES):
            self._describe(gathered, metrics)
            self._require_routes(gathered, len(job.ids))
            if job.future.cancelled():
                return None
            if job.future._cut:
                soft = min(soft, time.monotonic())
            current = self.current if job.current is None else job.current
            reply = self._planner.plan(
                job.future.number,
                [self._parts(job, gathered)],
                job.options,
                current,
                soft=soft,
                hard=max(soft, time.monotonic()) + self._grace_s,
                predict=self._predict,
            )
            if "lost" not in reply.status:
                break
            if attempt + 1 == _TRIES:
                raise FallBack(Reason.NO_ROUTES, "counts were lost with the node that held them, twice")
            lost = [k for _, k in reply.status["lost"]]
            now = time.monotonic()
            until = now + _COUNT_SHARE * max(0.0, soft - now)
            self._counters.replace(
                gathered, lost, job.ids, job.lengths, source=job.source, until=until, timeout_s=self._count_s
            )
        self._timings(job, reply, metrics, counted)
        return reply

    def _parts(self, job: _Job, gathered: Gathered) -> WindowParts:
        return WindowParts(
            ids=job.ids,
            lengths=job.lengths,
            pieces=[(piece.part, piece.rows, piece.places) for piece in gathered.pieces],
            shape=gathered.shape,
            top_k=self._top_k,
            groups=job.groups,
            atomic=job.atomic,
            **self._extra,
        )

    def _describe(self, gathered: Gathered, metrics: dict[str, float]) -> None:
        metrics["routepack/ray_counters"] = float(len(self.counters))
        metrics["routepack/ray_counters_lost"] = float(gathered.lost)
        metrics["routepack/ray_samples_recounted"] = float(gathered.recounted)
        metrics["routepack/ray_samples_marked"] = float(len(gathered.marked))
        metrics["routepack/ray_samples_duplicate"] = float(gathered.duplicates)
        metrics["routepack/ray_samples_unused"] = float(gathered.unused)
        metrics["routepack/ray_samples_dropped"] = float(gathered.dropped)
        metrics["routepack/samples_without_routes"] = float(gathered.without_routes)
        metrics["routepack/ms_ray_recount"] = gathered.recount_ms

    def _require_routes(self, gathered: Gathered, samples: int) -> None:
        without = gathered.without_routes
        if without < samples and without <= self._max_missing * samples and gathered.shape != (0, 0):
            return
        text = f"{without} of {samples} samples have no routes"
        if gathered.lost:
            text += f"; {gathered.lost} of {len(self.counters)} counting actors gave none"
        if gathered.reasons:
            text += f"; {gathered.reasons[0]}"
        raise FallBack(Reason.NO_ROUTES, text)

    def _timings(self, job: _Job, reply: Reply, metrics: dict[str, float], counted: float) -> None:
        metrics["routepack/ms_planner"] = 1e3 * (time.monotonic() - counted)
        if "cancelled" in reply.status:
            return
        status = reply.status
        metrics.update(status["metrics"][0])
        metrics["routepack/ms_ray_window"] = status["ms_window"]
        metrics["routepack/ms_check"] = status["ms_check"]
        place = status["ms_placed"] if status["ms_placed"] is not None else status["ms_planned"]
        job.future.timings_ms["place"] = place
        job.future.timings_ms["pack"] = max(0.0, metrics["routepack/ms_planner"] - place)
