# SPDX-License-Identifier: Apache-2.0
"""One training job's plans: made once per step on the driver, used in every pass, or not used at all."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from routepack._core import Constraints, Placement, Plan, Topology, Window
from routepack.adapters._metrics import mean_metrics
from routepack.adapters._process import PlannerProcess, PlanReply, PlanRequest
from routepack.adapters._reasons import FallBack, Reason, fall_back_of
from routepack.adapters._routes import Counted
from routepack.adapters._schedule import BadSchedule, Rules, check_placement, check_schedule
from routepack.adapters._settings import Settings
from routepack.adapters._unsafe import check_settings, remedy
from routepack.adapters._warning import warn

T = TypeVar("T")
_LOG = logging.getLogger("routepack")
_PLACEMENT_OF_MODE = {"packing": "keep", "placement": "sticky", "both": "joint"}
_MANY_MISSING = 0.05  # share of samples without routes that is worth a warning


@dataclass(frozen=True, eq=False)
class StepWindow:
    """The samples of one optimizer step, in the order in which the plan will number them."""

    lengths: npt.NDArray[np.int32]  #: [N] tokens
    routes: Sequence[Counted | None]  #: [N], None where there are none

    def window(self, top_k: int, max_missing: float) -> tuple[Window, int]:
        """As the planner takes it, and how many samples had no routes. @raises FallBack"""
        wanted = [counted for counted in self.routes if counted is None or not counted.made_up]
        known = [counted for counted in wanted if counted is not None and counted.recorded.any()]
        missing = len(wanted) - len(known)
        if not known or missing > max_missing * len(wanted):
            raise FallBack(
                Reason.NO_ROUTES, f"{missing} of {len(wanted)} samples have no routes; is routing replay switched on?"
            )
        wide = any(counted.counts.dtype.itemsize > 2 for counted in known)
        layers, experts = known[0].counts.shape
        counts = np.zeros((len(self.routes), layers, experts), dtype=np.uint32 if wide else np.uint16)
        recorded = np.zeros((len(self.routes), layers), dtype=np.int32)
        for i, counted in enumerate(self.routes):
            if counted is None:
                continue
            if counted.counts.shape != (layers, experts):
                raise FallBack(
                    Reason.BAD_INPUT,
                    f"sample {i}: found routes of {list(counted.counts.shape)} layers and experts, "
                    f"wanted {[layers, experts]} as before",
                )
            counts[i], recorded[i] = counted.counts, counted.recorded
        return Window.from_arrays(lengths=self.lengths, counts=counts, top_k=top_k, recorded=recorded), missing


@dataclass(frozen=True, eq=False)
class Step:
    """What an adapter knows about a step: one window per optimizer step, planned together on one placement."""

    windows: Sequence[StepWindow]
    top_k: int
    topology: Topology
    capacity: int  #: aligned tokens of a microbatch
    constraints: Constraints = dataclasses.field(default_factory=Constraints)


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """A checked plan of one window. `plan.placement` is where experts are while it runs."""

    plan: Plan
    cells: list[list[list[int]]]  #: [row][slot]: samples, as the window numbers them


@dataclass(eq=False)
class _Made:
    """The last step: planned, or not."""

    key: Hashable | None
    planned: list[PlannedStep] | None
    passes: int = 0


class Session:
    """Plans the steps of one job. One per driver process and model; any thread may call it.

    An adapter has three lines::

        made = session.run(build, export, key=key)   # build() -> Step, export([PlannedStep]) -> the framework's shape
        if made is None:                              # warned and counted already
            made = the framework's own packing

    - `run` never raises an `Exception`. Whatever goes wrong in `build`, the planner, the checks or `export` ends in
      None, one `RoutePackWarning` that says why, and a number in the metric `routepack/fallback`.
    - The decision is made here, once, and shipped by the framework as its own schedule is: no rank decides anything.
    - A plan is used only if every sample is there once, all slots have the same number of non-empty cells, and no cell
      is over the cap, all on aligned lengths, checked without the planner's code.
    - With the same `key` again (another pass over the same window) the plan there is goes to `export` again, and a step
      that fell back stays with the framework, without another warning. None: every call is a step.
    - `build` gives one `StepWindow` per optimizer step; samples never cross. It is not called when nothing is planned.
    """

    def __init__(
        self, settings: Settings, *, framework: str, config: Any = None, planner: PlannerProcess | None = None
    ) -> None:
        """:param config: the framework's configuration, for `check_settings`
        :param planner: instead of a process of its own
        :raises InvalidInput: for a cost file or placement that cannot be read
        """
        settings.need_mover()
        self.settings = settings
        self.framework = framework
        self.epoch = 0  #: moves so far
        self.metrics: dict[str, float] = {}  #: of the last step
        self.last_plans: list[Plan] = []  #: of the last step that was planned
        self._lock = threading.RLock()
        self._steps = self._fallbacks = 0
        self._last: _Made | None = None
        self._unmade: tuple[Reason, str] | None = None
        self._refused: str | None = None
        self._refusal_told = False
        self._missing_told = False
        self._current: npt.NDArray[np.int32] | None = None
        self._cost = settings.check()
        if settings.enabled and settings.current:
            self._current = Placement.load(settings.current).physical_to_logical.copy()
        self._planner = planner or PlannerProcess(start_s=settings.start_ms / 1e3)
        if not settings.enabled:
            return
        for finding in check_settings(framework, config, allow=settings.allow, moving=settings.mode != "packing"):
            if finding.refuse:
                self._refused = self._refused or f"{finding.text}; {remedy(finding)}"
            else:
                warn(f"{framework}: {finding.text}")
        if self._refused is None:
            self._planner.start()

    @classmethod
    def or_off(
        cls, settings: Settings, *, framework: str, config: Any = None, planner: PlannerProcess | None = None
    ) -> Session:
        """As the constructor, which raises where this does not: a session that cannot be made, say for a file that this
        node does not have, is there all the same. Each of its steps falls back, with that as the reason.
        """
        try:
            return cls(settings, framework=framework, config=config, planner=planner)
        except Exception as error:
            made = cls(dataclasses.replace(settings, enabled=False), framework=framework, planner=planner)
            made.settings = settings.without_missing_functions()
            found = fall_back_of(error)
            # a file that is not there is no bug
            reason = Reason.BAD_INPUT if isinstance(error, OSError) else found.reason
            made._unmade = reason, f"no plans can be made: {found}"
            return made

    @property
    def current(self) -> npt.NDArray[np.int32] | None:
        """Where experts are, physical to logical [L, E]; None: expert e in slot e.

        Assign it after loading a checkpoint.
        """
        return self._current

    @current.setter
    def current(self, physical_to_logical: npt.NDArray[np.int32] | None) -> None:
        with self._lock:
            self._current = None if physical_to_logical is None else np.array(physical_to_logical, dtype=np.int32)
            self._last = None

    def resume(
        self, physical_to_logical: npt.NDArray[np.int32] | None, epoch: int, *, keep_plan: bool = False
    ) -> None:
        """Where experts are, when others know better: after a checkpoint was loaded, or a move failed elsewhere.

        :param keep_plan: the last plan's layout serves the passes of its window that still come
        """
        with self._lock:
            last = self._last
            self.current = physical_to_logical
            self.epoch = epoch
            if keep_plan:
                self._last = last

    def not_moved(self, text: str) -> None:
        """Experts stayed where they were though the layout is in use already: warned about and counted as a step
        without moves. Call `resume` as well."""
        with self._lock:
            self._fallbacks += self.metrics.get("routepack/fallback", 0.0) == 0.0
            self.metrics["routepack/fallback"] = float(Reason.PLACEMENT)
            self.metrics["routepack/fallbacks"] = float(self._fallbacks)
            warn(f"{self.framework}, step {self._steps}: experts were not moved, the layout is used: {text}")

    def run(
        self,
        build: Callable[[], Step],
        export: Callable[[list[PlannedStep]], T],
        *,
        key: Hashable | None = None,
    ) -> T | None:
        """The framework's shape of a plan, or None for the framework's own packing."""
        with self._lock:
            begin = time.perf_counter()
            again = key is not None and self._last is not None and self._last.key == key
            made: T | None = None
            failure: FallBack | None = None
            if not again:
                self._steps += 1
                self._last = None
                self.metrics = {}
            try:
                if not again:
                    self._last = _Made(key, None)
                    self._last.planned = self._planned(build)
                assert self._last is not None
                if self._last.planned is not None and self.settings.mode != "placement":
                    made = export(self._last.planned)
                if not again and self._last.planned is not None:
                    self._move(self._last.planned)
            except Exception as error:
                failure, made = fall_back_of(error), None
                if self._last is not None:
                    self._last.planned = None  # for every pass that still comes
            self._finish(failure, made is not None, again, begin)
            return made

    def failed(self, error: Exception, *, key: Hashable | None = None) -> None:
        """A step that cannot be planned for a reason that `run` does not see: told and counted as if it did."""

        def build() -> Step:
            raise error

        self.run(build, lambda planned: None, key=key)

    def close(self) -> None:
        """Ends the planner's process."""
        self._planner.close()

    def _planned(self, build: Callable[[], Step]) -> list[PlannedStep]:
        if not self.settings.enabled:
            raise FallBack(Reason.OFF, "switched off")
        if self._unmade is not None:
            raise FallBack(*self._unmade)
        if self._refused is not None:
            raise FallBack(Reason.SETTINGS, self._refused)
        assert self._cost is not None
        begin = time.perf_counter()
        step = build()
        pairs = [window.window(step.top_k, self.settings.max_missing) for window in step.windows]
        windows = [window for window, _ in pairs]
        if not windows:
            raise FallBack(Reason.UNSUPPORTED, "a step without samples")
        counted = time.perf_counter()
        params = self.settings.params(_PLACEMENT_OF_MODE[self.settings.mode])
        request = PlanRequest(
            windows, step.topology, step.capacity, self._cost, step.constraints, params, self._current
        )
        replies = self._planner.plan(request, timeout_s=(self.settings.deadline_ms + self.settings.grace_ms) / 1e3)
        answered = time.perf_counter()
        try:
            planned = [self._checked(reply, window, step) for reply, window in zip(replies, windows, strict=True)]
        except BadSchedule as error:
            raise FallBack(Reason.BAD_PLAN, f"the plan is not used: {error}") from None
        self.last_plans = [one.plan for one in planned]
        missing, samples = sum(few for _, few in pairs), sum(len(window.routes) for window in step.windows)
        if missing > _MANY_MISSING * samples and not self._missing_told:
            self._missing_told = True
            warn(
                f"{self.framework}, step {self._steps}: {missing} of {samples} samples have no routes, and count as no "
                "expert load; routepack/samples_without_routes goes on counting them"
            )
        self.metrics = {
            **mean_metrics([reply.metrics for reply in replies]),
            "routepack/windows": float(len(windows)),
            "routepack/samples_without_routes": float(missing),
            "routepack/ms_routes": 1e3 * (counted - begin),
            "routepack/ms_planner": 1e3 * (answered - counted),
            "routepack/ms_check": 1e3 * (time.perf_counter() - answered),
        }
        return planned

    def _checked(self, reply: PlanReply, window: Window, step: Step) -> PlannedStep:
        cells = reply.plan.layout
        lengths = np.asarray(window.lengths, dtype=np.int64)
        if reply.plan.dummies:
            lengths = np.concatenate([lengths, np.ones(reply.plan.dummies, dtype=np.int64)])
            if not step.constraints.add_dummies:
                raise BadSchedule(f"dummies: found {reply.plan.dummies}, wanted none")
        check_schedule(cells, lengths, Rules.of(step.constraints, slots=step.topology.slots, capacity=step.capacity))
        unchanged = None
        if self.settings.mode == "packing":
            unchanged = self._current
            if unchanged is None:
                home = np.arange(window.experts, dtype=np.int32)
                unchanged = np.broadcast_to(home, (window.layers, window.experts))
        check_placement(
            reply.plan.physical_to_logical, layers=window.layers, experts=window.experts, unchanged=unchanged
        )
        return PlannedStep(reply.plan, cells)

    def _move(self, planned: list[PlannedStep]) -> None:
        if self.settings.mode == "packing":
            return
        assert self.settings.on_placement is not None
        placement = planned[0].plan.placement
        begin = time.perf_counter()
        try:
            self.settings.on_placement(placement, self.epoch + 1)
        except Exception as error:
            raise FallBack(Reason.PLACEMENT, f"experts were not moved: {type(error).__name__}: {error}") from error
        self.metrics["routepack/ms_moves"] = 1e3 * (time.perf_counter() - begin)
        self.epoch += 1
        self._current = placement.physical_to_logical.copy()

    def _finish(self, failure: FallBack | None, used: bool, again: bool, begin: float) -> None:
        metrics = self.metrics
        if failure is not None:
            self._fallbacks += not (again and metrics.get("routepack/fallback", 0.0) != 0.0)
            metrics = self.metrics = {}
            metrics["routepack/fallback"] = float(failure.reason)
        elif not again:
            metrics["routepack/fallback"] = float(Reason.NONE)
        if self._last is not None:
            self._last.passes += used
            metrics["routepack/passes"] = float(self._last.passes)
        if not again or failure is not None:
            metrics["routepack/used"] = float(used)
        metrics["routepack/steps"] = float(self._steps)
        metrics["routepack/fallbacks"] = float(self._fallbacks)
        metrics["routepack/planner_restarts"] = float(self._planner.restarts)
        metrics["routepack/ms_adapter"] = metrics.get("routepack/ms_adapter", 0.0) + 1e3 * (time.perf_counter() - begin)
        if failure is not None and failure.reason != Reason.OFF:
            if not (failure.reason == Reason.SETTINGS and self._refusal_told):
                warn(f"{self.framework}, step {self._steps}: the framework's own packing is used: {failure}")
            self._refusal_told |= failure.reason == Reason.SETTINGS
        if self.settings.on_metrics is not None and (not again or failure is not None):
            try:
                self.settings.on_metrics(dict(metrics), self._steps)
            except Exception as error:
                _LOG.warning("on_metrics raised %s: %s", type(error).__name__, error)
