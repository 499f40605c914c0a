# SPDX-License-Identifier: Apache-2.0
"""The driver's side of the planner actor: one at a time, ended when it is late, started again when it is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

from routepack._errors import InvalidInput
from routepack.adapters import FallBack, Reason
from routepack.ray._answers import fetched, one_line
from routepack.ray._counter import NAMESPACE
from routepack.ray._plain import PlainOptions
from routepack.ray._planning_actor import PlannerActor, WindowParts
from routepack.ray._where import asked_for

_ASK_S = 2.0  # what an idle planner may take to say that it is there


@dataclass(frozen=True, eq=False)
class Reply:
    """What a planner made. Plans and loads are object references that this process owns."""

    status: dict[str, Any]
    plans: list[Any]  #: one per window
    loads: Any


class RemotePlanner:
    """Starts a planner actor and asks it. Each failure ends it, and begins to start the next one.

    Ray could restart it by itself; it is replaced instead, as a stalled one does not die and as nobody must wait for
    Ray's patience with it. One `plan` at a time; other methods from any thread.
    """

    def __init__(self, *, strategy: Any, num_cpus: float, start_s: float, name: str | None) -> None:
        self._strategy = strategy
        self._num_cpus = num_cpus
        self._start_s = start_s
        self._name = name
        self._lock = threading.Lock()
        self._started = 0
        self._handle: Any = None
        self._ready: Any = None
        self._is_ready = False
        self._since = 0.0

    @property
    def restarts(self) -> int:
        """Actors beyond the first."""
        return max(0, self._started - 1)

    def start(self) -> None:
        """Begins to start an actor, if there is none. @raises InvalidInput: when its name is taken"""
        with self._lock:
            if self._handle is not None:
                return
            named = {}
            if self._name is not None:  # a number, as Ray frees a name only some time after its actor is dead
                named = {"name": f"{self._name}/planner/{self._started}", "namespace": NAMESPACE}
            remote = ray.remote(concurrency_groups={"plan": 1, "control": 8})(PlannerActor)
            try:
                self._handle = remote.options(
                    max_restarts=0,
                    **asked_for(self._strategy, self._num_cpus),
                    **named,
                ).remote()
            except ValueError as error:
                raise InvalidInput(
                    f"name: found {self._name!r}, which another job on this cluster uses ({error})"
                ) from None
            self._ready = self._handle.ready.options(concurrency_group="control").remote()
            self._is_ready = False
            self._since = time.monotonic()
            self._started += 1

    def pid(self, timeout_s: float) -> int | None:
        """Of the actor there is, when it answers."""
        with self._lock:
            handle = self._handle
        answer = _asked(handle, "ready", (), timeout_s)
        return None if answer is None else int(answer["pid"])

    def plan(
        self,
        number: int,
        parts: Sequence[WindowParts],
        options: PlainOptions,
        current: npt.NDArray[np.int32] | None,
        *,
        soft: float,
        hard: float,
        predict: bool = False,
    ) -> Reply:
        """One step: the search ends at `soft` with the best plan, and the planner at `hard`, both monotonic times.

        :raises FallBack: with what became of the planner
        """
        handle = self._running(soft)
        call = handle.plan.options(num_returns=2 + len(parts), concurrency_group="plan")
        begun = time.monotonic()
        try:
            for attempt in range(2):
                status, loads, *plans = call.remote(
                    number, list(parts), options, current, max(0.0, soft - time.monotonic()), predict
                )
                reply, error = fetched(status, hard - time.monotonic())
                # Ray calls an actor unavailable when a connection ends. It may be there all the same, and then plans
                # once more: what the first call made went to nobody.
                if attempt or not isinstance(error, ActorUnavailableError) or not self._is_there(handle, number, hard):
                    break
        except BaseException:
            self._end()  # its answer would come when nobody waits
            raise
        if error is not None:
            self._end()
            if isinstance(error, GetTimeoutError):
                took = time.monotonic() - begun
                raise FallBack(Reason.DEADLINE, f"the planner did not answer within {took:.1f} s and was ended")
            raise FallBack(Reason.PLANNER_DIED, f"the planner died: {one_line(error)}")
        if "error" in reply:
            kinds = {"InfeasibleError": Reason.INFEASIBLE, "InvalidInput": Reason.BAD_INPUT}
            kind, text = str(reply["error"]), str(reply["text"])
            if kind in kinds:
                raise FallBack(kinds[kind], text)
            raise FallBack(Reason.PLANNER_ERROR, f"the planner raised {kind}: {text}")
        if reply.get("broken"):
            raise FallBack(Reason.BAD_PLAN, f"the plan is not used: {reply['broken'][0]}")
        return Reply(reply, plans, loads)

    def tell(self, method: str, number: int) -> None:
        """`cut` or `cancel` of a step; does not wait, and does not raise."""
        with self._lock:
            handle = self._handle
        try:
            getattr(handle, method).options(concurrency_group="control").remote(number)
        except Exception:
            return  # dead: whoever waits for the plan is told

    def ask(self, method: str, *arguments: Any, timeout_s: float) -> Any:
        """What `progress` or `placement` says; None when there is no answer in time."""
        with self._lock:
            handle = self._handle
        return _asked(handle, method, arguments, timeout_s)

    def close(self) -> None:
        """Ends the actor."""
        with self._lock:
            handle, self._handle = self._handle, None
        _kill(handle)

    def _is_there(self, handle: Any, number: int, hard: float) -> bool:
        left = min(_ASK_S, hard - time.monotonic())
        return left > 0 and _asked(handle, "again", (number,), left) is not None

    def _running(self, soft: float) -> Any:
        """An actor that answers. @raises FallBack: when there is none in time"""
        for attempt in range(2):
            try:
                self.start()
            except InvalidInput as taken:
                raise FallBack(Reason.PLANNER_DIED, f"the planner cannot be started: {taken}") from None
            first = self._started == 1 and not self._is_ready
            until = max(soft, self._since + self._start_s) if first else soft
            if not self._is_ready:
                _, error = fetched(self._ready, until - time.monotonic())
                self._is_ready = error is None
                if isinstance(error, GetTimeoutError):
                    if time.monotonic() - self._since > self._start_s:
                        self._end()
                    raise FallBack(Reason.PLANNER_DIED, "the planner is starting, and was not ready in time")
            else:
                ask = self._handle.ready.options(concurrency_group="control").remote()
                _, error = fetched(ask, min(_ASK_S, max(0.1, soft - time.monotonic())))
            if error is None:
                return self._handle
            self._end()
            if attempt and not isinstance(error, GetTimeoutError):
                raise FallBack(Reason.PLANNER_DIED, f"the planner cannot be started: {one_line(error)}")
        raise FallBack(Reason.PLANNER_DIED, "the planner did not answer and was ended")

    def _end(self) -> None:
        """Ends the actor and begins to start the next one."""
        self.close()
        try:
            self.start()
        except Exception:
            return  # the next step tries again


def _kill(handle: Any) -> None:
    if handle is None:
        return
    try:
        ray.kill(handle)
    except Exception:
        return  # dead already, or Ray is gone


def _asked(handle: Any, method: str, arguments: tuple[Any, ...], timeout_s: float) -> Any:
    """None when there is no actor, or no answer in time."""
    if handle is None:
        return None
    try:
        call = getattr(handle, method).options(concurrency_group="control").remote(*arguments)
    except RayError:
        return None
    return fetched(call, timeout_s)[0]
