# SPDX-License-Identifier: Apache-2.0
"""The planner process: reads requests, plans, answers. Started by `PlannerProcess`, ends with its parent."""

from __future__ import annotations

import json
import os
import pathlib
import threading
import time
from typing import Any

import numpy as np

import routepack
from routepack.adapters import _wire


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request; failures are replies too."""
    try:
        job = json.loads(pathlib.Path(request["job"]).read_text(encoding="utf-8"))
        topology = routepack.Topology.from_shards(**job["topology"])
        current = None
        if job["current"] is not None:
            current = routepack.Placement.from_maps(
                ranks=topology.ranks, physical_to_logical=np.array(job["current"], dtype=np.int32)
            )
        plans = routepack.plan_many(
            [routepack.Window.load(path) for path in job["windows"]],
            topology,
            capacity=job["capacity"],
            cost=routepack.CostModel.parse(job["cost"]),
            constraints=routepack.Constraints(**job["constraints"]),
            params=routepack.PlanParams(**job["params"]),
            current=current,
        )
        made = [{"plan": plan.to_json(), "metrics": plan.metrics} for plan in plans]
    except Exception as error:
        return {"id": request.get("id"), "error": type(error).__name__, "text": " ".join(str(error).split())}
    return {"id": request.get("id"), "plans": made}


def main() -> None:
    """Serves until the parent goes."""
    parent = os.getppid()
    wire = os.dup(1)
    os.dup2(2, 1)  # what anybody prints must not get between the frames
    # End of file on standard input says the same, unless a fork of the parent holds the pipe or a plan is running.
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _send(wire, {"ready": True, "version": routepack.__version__})
    while True:
        try:
            request = _wire.read(0, None)
        except _wire.Closed:
            return
        _send(wire, answer(request))


def _send(wire: int, message: dict[str, Any]) -> None:
    left = memoryview(_wire.encode(message))
    while left:
        left = left[os.write(wire, left) :]


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    main()
