# SPDX-License-Identifier: Apache-2.0
"""A planner in a process of its own, which may raise, stall, die or talk nonsense without the trainer noticing.

A process and not a thread: a call that stalls inside compiled code cannot be ended in a thread, and would hold memory,
cores and the interpreter's exit for ever. A process is ended with SIGKILL, which also works on one that is stopped.
A new interpreter and not a fork or multiprocessing: forks of processes with CUDA, Ray or gRPC threads hang, and «spawn»
imports the trainer's main script again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._core import Constraints, CostModel, Plan, PlanParams, Topology, Window
from routepack._errors import Error
from routepack.adapters import _wire
from routepack.adapters._reasons import FallBack, Reason, one_line

COMMAND = (sys.executable, "-m", "routepack.adapters._worker")
_SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class PlanRequest:
    """The arguments of `routepack.plan_many`."""

    windows: Sequence[Window]
    topology: Topology
    capacity: int
    cost: CostModel
    constraints: Constraints
    params: PlanParams
    current: npt.NDArray[np.int32] | None  #: physical to logical [L, E]


@dataclass(frozen=True)
class PlanReply:
    """A plan as it came, not checked yet."""

    plan: Plan
    metrics: dict[str, float]


class PlannerProcess:
    """One planner at a time, started when needed and again after each failure. Any thread may call it."""

    def __init__(self, *, command: Sequence[str] = COMMAND, start_s: float = 30.0) -> None:
        """`start_s` is what a new process may take until it is ready, on top of the time of a request."""
        self._command = list(command)
        self._start_s = start_s
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._started = 0

    @property
    def restarts(self) -> int:
        """Processes beyond the first."""
        return max(0, self._started - 1)

    @property
    def pid(self) -> int | None:
        """Of the process there is, ready or not."""
        child = self._child
        return None if child is None else child.process.pid

    def start(self) -> None:
        """Begins to start a process, so that the first request finds it ready. Never raises."""
        with self._lock, contextlib.suppress(FallBack):
            self._running()

    def plan(self, request: PlanRequest, *, timeout_s: float) -> list[PlanReply]:
        """One plan per window.

        :raises FallBack: with what became of the planner; whatever it was, the next request gets a new one
        """
        with self._lock:
            child = self._running()
            try:
                reply = child.exchange(request, timeout_s)
                return _plans(reply, len(request.windows))
            except (_wire.Late, _wire.Closed, _wire.Garbage) as error:
                failure = self._end(child, error, timeout_s)
                self._again()
                raise failure from None
            except FallBack:
                raise  # said by a planner that works
            except BaseException:
                self._drop(child)  # its answer would be taken for the next one's
                raise

    def close(self) -> None:
        """Ends the process. Another request would start a new one."""
        with self._lock:
            if self._child is not None:
                self._drop(self._child)

    def _running(self) -> _Child:
        child = self._child
        if child is not None and child.owner != os.getpid():
            child = self._child = None  # this is a fork: the process belongs to the parent
        if child is not None and child.process.poll() is not None:
            self._drop(child)  # it died between two requests: a new one serves this request
            child = None
        if child is None:
            try:
                child = self._child = _Child(self._command, self._start_s)
            except OSError as error:
                raise FallBack(Reason.PLANNER_DIED, f"the planner cannot be started: {one_line(error)}") from None
            self._started += 1
        return child

    def _end(self, child: _Child, error: Error, timeout_s: float) -> FallBack:
        pid = child.process.pid
        if isinstance(error, _wire.Late):
            self._drop(child)
            if not child.ready:
                return FallBack(Reason.PLANNER_DIED, f"planner {pid} was not ready in time and was ended")
            return FallBack(Reason.DEADLINE, f"planner {pid} did not answer within {timeout_s:.1f} s and was ended")
        if isinstance(error, _wire.Closed):
            status = self._drop(child)
            return FallBack(Reason.PLANNER_DIED, f"planner {pid} died (status {status})")
        self._drop(child)
        return FallBack(Reason.BAD_REPLY, f"planner {pid} sent no plan: {one_line(error)}")

    def _drop(self, child: _Child) -> int | None:
        self._child = None
        return child.end()

    def _again(self) -> None:
        """A new process, so that the next request finds it ready."""
        with contextlib.suppress(FallBack):
            self._running()


class _Child:
    """A process and its pipes."""

    def __init__(self, command: Sequence[str], start_s: float) -> None:
        self.owner = os.getpid()
        self.ready = False
        self._next = 0
        # Its own process group: Ctrl-C is the trainer's. Nor modules of the current folder, which may shadow ours.
        self.process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._input, self._output = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self._ready_by = time.monotonic() + start_s
        self._finalizer = weakref.finalize(self, _end, self.process, self.owner)

    def exchange(self, request: PlanRequest, timeout_s: float) -> dict[str, Any]:
        """Sends a request and waits for its reply."""
        if not self.ready:
            if _wire.read(self._output, self._ready_by).get("ready") is not True:
                raise _wire.Garbage("found no greeting, wanted one")
            self.ready = True
        until = time.monotonic() + timeout_s
        folder = tempfile.mkdtemp(prefix="routepack-", dir=_folder(sum(w.counts.nbytes for w in request.windows)))
        try:
            self._next += 1
            _wire.write(self._input, {"id": self._next, "job": _written(request, folder)}, until)
            reply = _wire.read(self._output, until)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if reply.get("id") != self._next:
            raise _wire.Garbage(f"found a reply to request {reply.get('id')!r}, wanted {self._next}")
        return reply

    def end(self) -> int | None:
        """Ends the process at once, and says with what status."""
        self._finalizer.detach()
        return _end(self.process, self.owner)


def _end(process: subprocess.Popen[bytes], owner: int) -> int | None:
    if owner != os.getpid():
        return None  # a fork must not end its parent's planner
    if process.poll() is None:
        process.kill()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError, ValueError):
            if pipe is not None:
                pipe.close()
    try:
        return process.wait(timeout=5.0)
    except subprocess.TimeoutExpired:  # waits for a device; nothing more can be done, and nothing waits for it
        return None


def _folder(size: int) -> str | None:
    """Where windows go: shared memory when there is plenty."""
    try:
        system = os.statvfs(_SHARED_MEMORY)
        if os.access(_SHARED_MEMORY, os.W_OK) and system.f_bavail * system.f_frsize > 2 * size + (1 << 24):
            return _SHARED_MEMORY
    except OSError:
        pass
    return None


def _written(request: PlanRequest, folder: str) -> str:
    paths = []
    for number, window in enumerate(request.windows):
        paths.append(os.path.join(folder, f"{number}.safetensors"))
        window.save(paths[-1])
    params = request.params.as_dict()
    params.pop("search", None)  # an object; an effort stands for it
    job = {
        "windows": paths,
        "topology": {
            "ep": request.topology.ranks,
            "shards": request.topology.shards,
            "pp": request.topology.pipeline_stages,
        },
        "capacity": request.capacity,
        "cost": request.cost.to_toml(),
        "constraints": request.constraints.as_dict(),
        "params": params,
        "current": None if request.current is None else request.current.tolist(),
    }
    path = os.path.join(folder, "job.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(job, file, separators=(",", ":"))
    return path


def _plans(reply: dict[str, Any], wanted: int) -> list[PlanReply]:
    if "error" in reply:
        kinds = {"InfeasibleError": Reason.INFEASIBLE, "InvalidInput": Reason.BAD_INPUT}
        kind = str(reply["error"])
        text = one_line(reply.get("text", ""))
        if kind in kinds:
            raise FallBack(kinds[kind], text)
        raise FallBack(Reason.PLANNER_ERROR, f"the planner raised {kind}: {text}")
    found = reply.get("plans")
    if not isinstance(found, list) or len(found) != wanted:
        raise _wire.Garbage(f"found no list of {wanted} plans")
    made = []
    for item in found:
        try:
            metrics = {str(name): float(value) for name, value in item["metrics"].items()}
            made.append(PlanReply(Plan.from_json(item["plan"], "the planner's reply"), metrics))
        except Exception as error:
            raise _wire.Garbage(f"found a plan that cannot be read: {one_line(error)}") from None
    return made
