# SPDX-License-Identifier: Apache-2.0
"""The planner actor: makes windows of parts that lie in the object store, and plans them, one step at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import routepack
from routepack._core import Placement, Plan, PlanControl, Progress, Window, plan_many
from routepack._errors import Cancelled
from routepack.ray._answers import fetched, forget_frames
from routepack.ray._plain import PlainOptions
from routepack.ray._samples import Part


_FETCH_SHARE = 0.5  # of the budget: a node that vanished in silence must leave time to count again what it held
_FETCH_LEAST_S = 0.5  # even when the search has no time left


@dataclass(frozen=True, eq=False)
class WindowParts:
    """A window to be: who is in it, and where the counts are. Samples in no part have no recorded routes."""

    ids: npt.NDArray[np.int64] | None  #: [N]
    lengths: npt.NDArray[np.int32]  #: [N]
    pieces: list[tuple[Any, npt.NDArray[np.int64], npt.NDArray[np.int64]]]  #: reference of a `Part`, rows, places
    shape: tuple[int, int]  #: layers and experts
    top_k: int
    groups: npt.NDArray[np.int32] | None = None
    atomic: npt.NDArray[np.int32] | None = None
    pad_counts: npt.NDArray[np.uint32] | None = None
    layers: list[int] | None = None
    model: str | None = None


@dataclass(eq=False)
class _Step:
    control: PlanControl = field(default_factory=PlanControl)
    placed: threading.Event = field(default_factory=threading.Event)
    placement: npt.NDArray[np.int32] | None = None
    progress: dict[str, Any] | None = None
    begun: float = 0.0
    placed_ms: float | None = None
    is_cut: bool = False


class PlannerActor:
    """`plan` runs in a thread of its own; the other methods answer meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[int, _Step] = {}
        self._over = -1

    def ready(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "version": routepack.__version__}

    def plan(
        self,
        number: int,
        parts: Sequence[WindowParts],
        options: PlainOptions,
        current: npt.NDArray[np.int32] | None,
        budget_s: float,
        predict: bool,
    ) -> tuple[Any, ...]:
        """What became of it, the routed tokens of ranks [R, G, L, P] that each plan leads to (or None), then each plan.

        The search ends with the best plan after `budget_s` seconds. All are objects that the caller owns: they outlive
        this actor.
        """
        nothing = [None] * (1 + len(parts))
        begun = time.monotonic()
        step = self._step(number)
        step.begun = begun
        try:
            windows = []
            lost: list[tuple[int, int]] = []
            for i, one in enumerate(parts):
                window, missing = _window(one, begun + max(_FETCH_LEAST_S, _FETCH_SHARE * budget_s))
                lost += [(i, k) for k in missing]
                if window is not None:
                    windows.append(window)
            if lost:
                return {"lost": lost}, *nothing
            assembled = time.monotonic()
            plans = self._plan(step, windows, options, current, begun + budget_s - time.monotonic())
            planned = time.monotonic()
            broken = [rule for plan, window in zip(plans, windows, strict=True) for rule in plan.verify(window)]
            status = {
                "broken": [f"{rule}: {sentence}" for rule, sentence in broken],
                "metrics": [plan.metrics for plan in plans],
                "placement": plans[0].physical_to_logical.copy(),
                "ms_window": 1e3 * (assembled - begun),
                "ms_check": 1e3 * (time.monotonic() - planned),
                "ms_placed": step.placed_ms,
                "ms_planned": 1e3 * (planned - begun),
            }
            loads = [p.rank_loads(w) for p, w in zip(plans, windows, strict=True)] if predict else None
            return status, loads, *plans
        except Cancelled:
            return {"cancelled": True}, *nothing
        except Exception as error:
            forget_frames(error)  # and the window with them
            return {"error": type(error).__name__, "text": " ".join(str(error).split())[:500]}, *nothing
        finally:
            step.placed.set()
            with self._lock:
                for old in [old for old in self._steps if old < number]:
                    del self._steps[old]
                if self._steps.get(number) is step:  # otherwise it comes again
                    del self._steps[number]
                    self._over = max(self._over, number)

    def cut(self, number: int) -> None:
        """End the search of a step with the best plan there is."""
        if number > self._over:
            step = self._step(number)
            step.is_cut = True
            step.control.cut()

    def again(self, number: int) -> bool:
        """Ends what is left of a call to `plan` whose answer goes to nobody: it will come once more."""
        with self._lock:
            step = self._steps.get(number)
            if step is not None and step.begun:
                new = self._steps[number] = _Step(is_cut=step.is_cut)
                if step.is_cut:
                    new.control.cut()
                step.control.cancel()
            self._over = min(self._over, number - 1)
        return True

    def cancel(self, number: int) -> None:
        """End a step without a plan."""
        if number > self._over:
            self._step(number).control.cancel()

    def progress(self, number: int) -> dict[str, Any] | None:
        """The last that the search said; None before, and after the step."""
        with self._lock:
            step = self._steps.get(number)
        return None if step is None else step.progress

    def placement(self, number: int, timeout_s: float) -> npt.NDArray[np.int32] | None:
        """Where experts go, as soon as that is known; None when it is not by then, or the step is over."""
        if number <= self._over:
            return None
        step = self._step(number)
        step.placed.wait(timeout_s)
        return step.placement

    def _step(self, number: int) -> _Step:
        with self._lock:
            return self._steps.setdefault(number, _Step())

    def _plan(
        self,
        step: _Step,
        windows: list[Window],
        options: PlainOptions,
        current: npt.NDArray[np.int32] | None,
        budget_s: float,
    ) -> list[Plan]:
        arguments = options.arguments()
        topology = arguments.pop("topology")
        where = None
        if current is not None:
            where = Placement.from_maps(ranks=topology.ranks, physical_to_logical=current)

        def placed(placement: Placement) -> None:
            step.placement = placement.physical_to_logical.copy()
            step.placed_ms = 1e3 * (time.monotonic() - step.begun)
            step.placed.set()

        def progress(now: Progress) -> object:
            step.progress = {name: getattr(now, name) for name in _PROGRESS}
            return None if options.progress is None else options.progress(now)

        timer = threading.Timer(max(0.0, budget_s), step.control.cut)
        timer.daemon = True
        timer.start()
        try:
            return plan_many(
                windows, topology, current=where, progress=progress, placed=placed, control=step.control, **arguments
            )
        finally:
            timer.cancel()


_PROGRESS = ("phase", "level", "levels", "temperature", "acceptance", "best", "gap", "proposals")


def _window(parts: WindowParts, until: float) -> tuple[Window | None, list[int]]:
    """The window, or which of its parts cannot be had."""
    lost: list[int] = []
    held: list[Part] = []
    for k, (reference, _, _) in enumerate(parts.pieces):
        # Once the time is over, still what is on this node already.
        part, error = fetched(reference, max(0.1, until - time.monotonic()))
        if error is not None:
            lost.append(k)
        else:
            held.append(part)
    if lost:
        return None, lost
    samples = len(parts.lengths)
    if len(held) == 1 and np.array_equal(parts.pieces[0][1], np.arange(len(held[0].counts))) and (
        np.array_equal(parts.pieces[0][2], np.arange(samples))
    ):
        counts, recorded = held[0].counts, held[0].recorded  # used where it lies
    else:
        wide = any(part.counts.dtype.itemsize > 2 for part in held)
        counts = np.zeros((samples, *parts.shape), dtype=np.uint32 if wide else np.uint16)
        recorded = np.zeros((samples, parts.shape[0]), dtype=np.int32)
        for part, (_, rows, places) in zip(held, parts.pieces, strict=True):
            counts[places], recorded[places] = part.counts[rows], part.recorded[rows]
    window = Window.from_arrays(
        lengths=parts.lengths,
        counts=counts,
        top_k=parts.top_k,
        recorded=recorded,
        groups=parts.groups,
        atomic=parts.atomic,
        pad_counts=parts.pad_counts,
        ids=parts.ids,
        layers=parts.layers,
        model=parts.model,
    )
    return window, []
