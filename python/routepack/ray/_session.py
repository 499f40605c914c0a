# SPDX-License-Identifier: Apache-2.0
"""A planner actor in place of the planner process of `routepack.adapters`."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import ray

from routepack._core import Window
from routepack.adapters import FallBack, PlannerProcess, Reason
from routepack.adapters._process import PlanReply, PlanRequest
from routepack.ray._answers import fetched, one_line
from routepack.ray._plain import PlainOptions
from routepack.ray._planner import RemotePlanner
from routepack.ray._planning_actor import WindowParts
from routepack.ray._samples import Part
from routepack.ray._where import here


class SessionPlanner(PlannerProcess):
    """Plans for a `routepack.adapters.Session` on another node: `Session(settings, framework="…", planner=…)`.

    Windows and plans travel through the object store. Deadlines, and what becomes of a planner that is late or dead,
    are as with a process.
    """

    def __init__(
        self, *, planner: Any = None, num_cpus: float = 0.0, start_s: float = 60.0, name: str | None = None
    ) -> None:
        """:param planner: scheduling strategy of the actor; None: on this node"""
        strategy = here() if planner is None else planner
        self._remote = RemotePlanner(strategy=strategy, num_cpus=num_cpus, start_s=start_s, name=name)
        self._numbers = itertools.count()

    @property
    def restarts(self) -> int:
        """Actors beyond the first."""
        return self._remote.restarts

    @property
    def pid(self) -> int | None:
        """Of the actor's process, when it answers."""
        return self._remote.pid(2.0)

    def start(self) -> None:
        """Begins to start the actor. Never raises."""
        try:
            self._remote.start()
        except Exception:
            return  # the first request tries again, and says what is wrong

    def plan(self, request: PlanRequest, *, timeout_s: float) -> list[PlanReply]:
        """One plan per window. @raises FallBack"""
        until = time.monotonic() + timeout_s
        parts = [_parts(window) for window in request.windows]
        options = PlainOptions.of(request.topology, request.capacity, request.cost, request.constraints, request.params)
        # The search has a deadline of its own in the parameters.
        reply = self._remote.plan(next(self._numbers), parts, options, request.current, soft=until, hard=until)
        if "lost" in reply.status:
            raise FallBack(Reason.PLANNER_ERROR, "the planner could not read the window")
        plans, error = fetched(reply.plans, max(0.1, until - time.monotonic()))
        if error is not None:
            raise FallBack(Reason.PLANNER_DIED, f"the plan was lost: {one_line(error)}")
        metrics = reply.status["metrics"]
        return [PlanReply(plan, dict(values)) for plan, values in zip(plans, metrics, strict=True)]

    def close(self) -> None:
        """Ends the actor. Another request would start a new one."""
        self._remote.close()


def _parts(window: Window) -> WindowParts:
    recorded = np.asarray(window.lengths if window.recorded is None else window.recorded, dtype=np.int32)
    if recorded.ndim == 1:
        recorded = np.repeat(recorded[:, None], window.layers, axis=1)
    everything = np.arange(window.samples)
    return WindowParts(
        ids=window.ids,
        lengths=np.asarray(window.lengths),
        pieces=[(ray.put(Part(window.counts, recorded)), everything, everything)],
        shape=(window.layers, window.experts),
        top_k=window.top_k,
        groups=window.groups,
        atomic=window.atomic,
        pad_counts=window.pad_counts,
        layers=list(window.layer_numbers) or None,
        model=window.model or None,
    )
