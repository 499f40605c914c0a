# SPDX-License-Identifier: Apache-2.0
"""A plan in the making on a planner actor."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
import warnings
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from routepack._core import Placement, Plan
from routepack._errors import RoutePackWarning
from routepack.adapters import FallBack, Reason
from routepack.ray._answers import fetched

if TYPE_CHECKING:
    from routepack.ray._planner import RemotePlanner, Reply

_FETCH_S = 30.0  # what fetching a plan or loads may take
_SLICE_S = 0.5  # of waiting for an early placement: so long one thread of the planner is taken


class RayPlanFuture:
    """What `RayPlanning.submit` gives. No plan, for whatever reason, is None: the framework's own packing.

    `fallback` has the reason; the first call that gives None also warns (`RoutePackWarning`), once.
    """

    def __init__(self, number: int, ranks: int, planner: RemotePlanner) -> None:
        self.number = number  #: of the step
        self.metrics: dict[str, float] = {}  #: complete when `done`; docs/ray.md
        self.timings_ms: dict[str, float] = {}  #: `queued`, `count`, `place` and `pack`, as far as it got
        self._ranks = ranks
        self._planner = planner
        self._submitted = time.monotonic()
        self._done = threading.Event()
        self._started = threading.Event()  # its turn has come
        self._lock = threading.Lock()
        self._failure: FallBack | None = None
        self._told = False
        self._cut = self._cancelled = False
        self._reply: Reply | None = None
        self._plan: Plan | None = None
        self._placement: npt.NDArray[np.int32] | None = None

    @property
    def fallback(self) -> FallBack | None:
        """Why there is no plan: `fallback.reason` is a `routepack.adapters.Reason`. None: there is one, or not yet."""
        return self._failure

    def done(self) -> bool:
        """Whether there is a plan, or will be none."""
        return self._done.is_set()

    def running(self) -> bool:
        """Whether its turn has come, and not passed."""
        return self._started.is_set() and not self.done()

    def cancelled(self) -> bool:
        return self._cancelled

    def result(self, timeout: float | None = None) -> Plan | None:
        """The plan, or None for the framework's own packing.

        A timeout ends the search: the best plan by then comes. Without one it takes as long as the deadlines of
        `RayPlanning` allow.

        :raises concurrent.futures.TimeoutError: when the step waits behind others
        :raises concurrent.futures.CancelledError: when it was cancelled
        """
        if self._wait(timeout) is None:
            return None
        return self._fetched()

    def ref(self, timeout: float | None = None) -> Any:
        """The plan by object reference, or None, as `result`. It belongs to this process, and outlives the planner:
        hand it to whoever trains."""
        reply = self._wait(timeout)
        return None if reply is None else reply.plans[0]

    def loads(self, timeout: float | None = None) -> npt.NDArray[np.int64] | None:
        """Routed tokens of ranks [R, G, L, P] that the plan leads to, for `routepack.compare_loads`; with
        `RayPlanning(predict=True)`. None: no plan."""
        reply = self._wait(timeout)
        made = None if reply is None else _fetch(reply.loads)
        return None if made is None else np.asarray(made[0])

    def placement(self, timeout: float | None = None) -> Placement | None:
        """Where experts go, as soon as that is known: long before the plan. None when it is not by then, or never.

        Final as `PlanFuture.placement` is.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while self._placement is None and not self.done():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return None
            pause = _SLICE_S if left is None else min(_SLICE_S, left)
            if not self._started.is_set():
                self._started.wait(pause)
                continue
            self._placement = self._planner.ask("placement", self.number, pause, timeout_s=pause + 1.0)
            if self._placement is None:
                self._done.wait(0.01)
        found = self._placement
        if found is None and self._reply is not None:
            found = self._reply.status["placement"]
        if found is None:
            return None
        return Placement.from_maps(ranks=self._ranks, physical_to_logical=found)

    def progress(self, timeout: float = 1.0) -> dict[str, Any] | None:
        """How far the search is: what `routepack.Progress` has, by name. None when nothing is known in time."""
        if not self.running():
            return None
        answer: dict[str, Any] | None = self._planner.ask("progress", self.number, timeout_s=timeout)
        return answer

    def cut(self) -> None:
        """End the search with the best plan as soon as there is one."""
        self._cut = True
        if self.running():
            self._planner.tell("cut", self.number)

    def cancel(self) -> bool:
        """Ends planning. False when it was over already. A cancelled step moves no experts."""
        with self._lock:
            if self.done():
                return False
            self._cancelled = True
        if self.running():
            self._planner.tell("cancel", self.number)
        return True

    def __await__(self) -> Generator[Any, None, Plan | None]:
        return asyncio.to_thread(self.result).__await__()

    def _wait(self, timeout: float | None) -> Reply | None:
        if not self._done.wait(timeout):
            if not self._started.is_set():
                raise concurrent.futures.TimeoutError(f"step {self.number} waits behind others")
            self.cut()
            self._done.wait()  # ends: every wait of the step has a deadline
        if self._cancelled:
            raise concurrent.futures.CancelledError
        self._tell()
        return self._reply

    def _fetched(self) -> Plan | None:
        if self._plan is None and self._reply is not None:
            made = _fetch(self._reply.plans[0])
            if made is None:  # the node that held it is lost
                self._failure = FallBack(Reason.PLANNER_DIED, "the plan was lost with the node that held it")
                self._reply = None
                self.metrics["routepack/fallback"] = float(self._failure.reason)
                self.metrics["routepack/used"] = 0.0
                self._tell()
                return None
            self._plan = made
        return self._plan

    def _tell(self) -> None:
        with self._lock:
            failure, told = self._failure, self._told
            self._told = self._told or failure is not None
        if failure is not None and not told and failure.reason != Reason.OFF:
            text = f"step {self.number}: the framework's own packing is used: {failure}"
            try:
                warnings.warn(text, RoutePackWarning, stacklevel=4)
            except Warning:  # -W error must not end a step
                return

    # What the driver's thread calls.

    def _begin(self) -> None:
        self.timings_ms["queued"] = 1e3 * (time.monotonic() - self._submitted)
        self._started.set()

    def _finish(self, reply: Reply | None, failure: FallBack | None, metrics: dict[str, float]) -> bool:
        """False when it was cancelled meanwhile."""
        with self._lock:
            self.metrics = metrics
            if not self._cancelled:
                self._reply, self._failure = reply, failure
            self._done.set()
            return not self._cancelled


def _fetch(reference: Any) -> Any:
    if reference is None:
        return None
    return fetched(reference, _FETCH_S)[0]
