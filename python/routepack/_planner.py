# SPDX-License-Identifier: Apache-2.0
"""Planning beside a training job, step after step."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from routepack._core import (
    Constraints,
    CostModel,
    Placement,
    Plan,
    PlanParams,
    Progress,
    Topology,
    Window,
    plan,
)
from routepack._critical_path import CriticalPath, critical_path
from routepack._errors import Error, InvalidInput, RoutePackWarning
from routepack._future import PlanFuture, _settle
from routepack._observation import Observation, compare_loads
from routepack.team.communicator import Communicator


@dataclass(frozen=True)
class _Job:
    future: PlanFuture
    window: Window
    topology: Topology
    current: Placement | None  # None: where the job before left them
    options: dict[str, Any]


class Planner:
    """Plans the steps of one training job in the background, and remembers where experts are.

    Options of `plan` that stay the same are given once; `submit` may change each of them for one step. Steps are
    planned one after the other, as each begins where the one before left the experts. All methods may be called from
    any thread. Leaving the `with` block waits for what was submitted; an exception cancels it.

    >>> counts = np.array([[[3, 1]], [[0, 4]], [[2, 2]], [[1, 3]]], dtype=np.uint16)
    >>> window = Window.from_arrays(lengths=np.array([4, 4, 4, 4], dtype=np.int32), counts=counts, top_k=1)
    >>> cost = CostModel([Stage("full", alpha=1.0, beta=2.0)])
    >>> with Planner(Topology(dp=2, ep=2), capacity=8, cost=cost) as planner:
    ...     future = planner.submit(window)
    ...     early = future.placement  # state may begin to move
    ...     made = future.result(timeout=10)
    >>> made.num_rows, planner.current == made.placement
    (1, True)
    """

    _lock: threading.Lock
    _waiting: collections.deque[_Job]
    _running: _Job | None
    _thread: threading.Thread | None

    def __init__(
        self,
        topology: Topology,
        *,
        capacity: int,
        cost: CostModel,
        constraints: Constraints | None = None,
        params: PlanParams | None = None,
        current: Placement | Plan | None = None,
        sync: str = "step",
        progress: Callable[[Progress], object] | None = None,
        team: Communicator | None = None,
        on_lost: str = "raise",
    ) -> None:
        """`progress` is called in the planner's thread, as that of `plan`.

        :param team: processes whose planners make each step together: all submit the same steps in the same order, and
            nobody else uses the team meanwhile. A step that one of them cancels is cancelled for all
        :param on_lost: 'raise' PeerLost, or plan 'alone' from then on, as in `plan`
        """
        self._topology = topology
        self._options: dict[str, Any] = {
            "capacity": capacity,
            "cost": cost,
            "constraints": constraints,
            "params": params,
            "sync": sync,
            "progress": progress,
        }
        if team is not None:
            self._options |= {"team": team, "on_lost": on_lost}
        self._current = _placement(current)
        self._last: PlanFuture | None = None
        self._closed = False
        self._start_afresh()
        _PLANNERS.add(self)

    def submit(
        self,
        window: Window,
        *,
        current: Placement | Plan | None = None,
        topology: Topology | None = None,
        capacity: int | None = None,
        cost: CostModel | None = None,
        constraints: Constraints | None = None,
        params: PlanParams | None = None,
    ) -> PlanFuture:
        """Begins to plan a step, at once unless others wait, and returns without waiting.

        :param current: where experts are when that is not where the step before left them
        :raises Error: when the planner is closed
        """
        options = dict(self._options)
        for name, value in (("capacity", capacity), ("cost", cost), ("constraints", constraints), ("params", params)):
            if value is not None:
                options[name] = value
        job = _Job(PlanFuture(), window, topology or self._topology, _placement(current), options)
        with self._lock:
            if self._closed:
                raise Error("the planner is closed")
            running = self._running is not None and not self._running.future.done()
            job.future._behind_others = running or len(self._waiting) > 0
            self._waiting.append(job)
            if self._thread is None:
                # Not a daemon: the interpreter waits for the plan instead of pulling the floor from under it.
                self._thread = threading.Thread(target=self._work, name="routepack-planner")
                self._thread.start()
        return job.future

    @property
    def current(self) -> Placement | None:
        """Where experts are after the last step that was planned; None: expert e in slot e.

        Assign it when they are somewhere else: a plan that was not used, a checkpoint that was loaded.
        """
        with self._lock:
            return self._current

    @current.setter
    def current(self, placement: Placement | Plan | None) -> None:
        with self._lock:
            self._current = _placement(placement)

    @property
    def last(self) -> PlanFuture | None:
        """The last step whose plan is there."""
        with self._lock:
            return self._last

    def critical_path(self, *, aux_ms: float, actor_ms: float, future: PlanFuture | None = None) -> CriticalPath:
        """Whether planning made the last step (or that of `future`) longer, given what else was measured.

        :param aux_ms: what else had to end before state could be prepared, from the moment of `submit`
        :param actor_ms: preparing and applying the state of the new placement
        :raises Error: when no plan is there
        """
        times = self._planned(future).timings_ms
        return critical_path(
            place_ms=times["queued"] + times["place"], pack_ms=times["pack"], aux_ms=aux_ms, actor_ms=actor_ms
        )

    def observe(
        self,
        tokens_per_rank: Any,
        *,
        row: int | None = None,
        future: PlanFuture | None = None,
        tolerance: float = 0.05,
        most: int = 10,
    ) -> Observation:
        """Compares the routed tokens that each rank got with what the plan of the last step (or `future`) says.

        `tokens_per_rank` is [rows, shards, layers, ranks]; with one shard without that axis; with `row` that of one row.
        Warns (`RoutePackWarning`) with row, layer and rank when a rank is more than `tolerance` of the mean rank off.
        Tokens whose routes were not recorded are in what is measured, and not in what is predicted.
        """
        seen = compare_loads(
            tokens_per_rank, self._planned(future)._predicted.result(), row=row, tolerance=tolerance, most=most
        )
        if not seen.as_planned:
            warnings.warn(str(seen), RoutePackWarning, stacklevel=2)
        return seen

    def close(self, *, cancel: bool = False) -> None:
        """Takes no more steps, and waits for those there are, or ends them. Twice is fine."""
        with self._lock:
            self._closed = True
            thread = self._thread
            jobs = [*self._waiting] + ([self._running] if self._running is not None else [])
        if cancel:
            for job in jobs:
                job.future.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Planner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(cancel=error is not None)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._waiting = collections.deque()
        self._running = None
        self._thread = None

    def _planned(self, future: PlanFuture | None) -> PlanFuture:
        chosen = self.last if future is None else future
        if chosen is None:
            raise Error("no step was planned yet")
        if future is not None and not chosen.done():
            raise Error("the plan of this step is not there yet")
        chosen.result()
        return chosen

    def _work(self) -> None:
        """Ends when nothing waits: there is no idle thread to end, to fork or to forget."""
        while True:
            with self._lock:
                self._running = self._waiting.popleft() if self._waiting else None
                if self._running is None:
                    self._thread = None
                    return
                job, current = self._running, self._current
            try:
                self._plan(job, job.current or current)
            except BaseException as error:  # whatever it is, it belongs to whoever waits
                job.future._fail(error)
            del job

    def _plan(self, job: _Job, current: Placement | None) -> None:
        future = job.future
        if not future._begin():
            future.set_running_or_notify_cancel()
            if "team" in job.options:
                _tell_cancelled(job)
            return
        made = plan(
            job.window, job.topology, current=current, placed=future._place, control=future._control, **job.options
        )
        placement = made.placement
        with self._lock:  # before the result: who has that may submit the next step
            before, self._current, self._last = (self._current, self._last), placement, future
        if not future._finish(made):
            with self._lock:  # a step that nobody wants any more moves no experts
                if self._current is placement:
                    self._current, self._last = before
            return
        try:
            loads = made.rank_loads(job.window)
        except Exception as error:
            failure = error
            _settle(future._predicted, lambda waiting: waiting.set_exception(failure))
        else:
            _settle(future._predicted, lambda waiting: waiting.set_result(loads))


def _tell_cancelled(job: _Job) -> None:
    """The others of the team wait for this step: they hear of it from a plan that ends as it begins."""
    job.future._control.cancel()
    with contextlib.suppress(Exception):
        plan(job.window, job.topology, control=job.future._control, **job.options)


def _placement(where: Placement | Plan | None) -> Placement | None:
    if isinstance(where, Plan):
        return where.placement
    if where is not None and not isinstance(where, Placement):
        raise InvalidInput(f"current: found {type(where).__name__}, wanted a Placement, a Plan or None")
    return where


_PLANNERS: weakref.WeakSet[Planner] = weakref.WeakSet()


def _after_fork() -> None:
    # The child has neither the thread nor what it was working on, and the lock may be held by nobody.
    for planner in list(_PLANNERS):
        planner._start_afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
