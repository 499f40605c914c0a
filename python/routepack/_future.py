# SPDX-License-Identifier: Apache-2.0
"""A plan in the making."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._core import Placement, Plan, PlanControl
from routepack._errors import Error


class PlanFuture(concurrent.futures.Future[Plan]):
    """A plan that a `Planner` is making: a `concurrent.futures.Future` that can also be awaited.

    `placement_future` has where experts go, as soon as that is known; `cancel` also ends a plan that is running.
    Made by `Planner.submit`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.placement_future: concurrent.futures.Future[Placement] = concurrent.futures.Future()
        self._predicted: concurrent.futures.Future[npt.NDArray[np.int64]] = concurrent.futures.Future()
        self._control = PlanControl()
        self._process = os.getpid()
        self._behind_others = False
        self._submitted = time.perf_counter()
        self._started: float | None = None
        self._placed: float | None = None
        self._finished: float | None = None

    @property
    def placement(self) -> Placement:
        """Where experts go; waits until they have a place.

        Final unless the placement is joint: with `two_batches` a second batch of moves starts from here; without, a few
        more experts may move once it is known who trains with whom, and with free moves all of them.
        """
        self._require_own_process()
        return self.placement_future.result()

    @property
    def placed(self) -> bool:
        """Whether experts have a place."""
        return self.placement_future.done() and self.placement_future.exception() is None

    def result(self, timeout: float | None = None) -> Plan:
        """The plan. A timeout ends the search: the best plan by then comes, with `complete` False if it was cut short.

        The timeout cannot end what comes before the first layout, a few percent of planning, and a plan that waits
        behind others raises `concurrent.futures.TimeoutError`.
        """
        self._require_own_process()
        try:
            return super().result(timeout)
        except concurrent.futures.TimeoutError:
            if self.done() or self._behind_others:
                raise
        self.cut()
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What went wrong, or None."""
        self._require_own_process()
        return super().exception(timeout)

    def cut(self) -> None:
        """End the search with the best plan as soon as there is one."""
        self._control.cut()

    def cancel(self) -> bool:
        """Ends planning at once. False when the plan was there already."""
        cancelled = super().cancel()
        if cancelled:
            self._control.cancel()
            self.placement_future.cancel()
            self._predicted.cancel()
        return cancelled

    def running(self) -> bool:
        """Whether it is being planned right now."""
        return self._started is not None and not self.done()

    @property
    def timings_ms(self) -> dict[str, float]:
        """`queued`, then `place` until experts had a place, and `pack` from then on, as far as it got."""
        times: dict[str, float] = {}
        if self._started is not None:
            times["queued"] = 1e3 * (self._started - self._submitted)
            if self._placed is not None:
                times["place"] = 1e3 * (self._placed - self._started)
                if self._finished is not None:
                    times["pack"] = 1e3 * (self._finished - self._placed)
        return times

    def __await__(self) -> Generator[Any, None, Plan]:
        return asyncio.wrap_future(self).__await__()

    def _require_own_process(self) -> None:
        if self._process != os.getpid() and self._finished is None:
            raise Error("the plan is made in another process, from which this one was forked; submit it here")

    # What the planner's thread calls.

    def _begin(self) -> bool:
        if self.cancelled():
            return False
        self._behind_others = False
        self._started = time.perf_counter()
        return True

    def _place(self, placement: Placement) -> None:
        self._placed = time.perf_counter()
        _settle(self.placement_future, lambda future: future.set_result(placement))

    def _finish(self, plan: Plan) -> bool:
        self._finished = time.perf_counter()
        if not self.set_running_or_notify_cancel():
            return False
        self.set_result(plan)
        return True

    def _fail(self, error: BaseException) -> None:
        self._finished = time.perf_counter()
        _settle(self.placement_future, lambda future: future.set_exception(error))
        _settle(self._predicted, lambda future: future.set_exception(error))
        if self.set_running_or_notify_cancel():
            self.set_exception(error)


def _settle(future: concurrent.futures.Future[Any], act: Callable[[concurrent.futures.Future[Any]], None]) -> None:
    """Unless it has an answer, or nobody wants one any more."""
    try:
        act(future)
    except concurrent.futures.InvalidStateError:
        pass
