# SPDX-License-Identifier: Apache-2.0
"""A rank that dies or stalls while a team plans, and what the others make of it. Survivors leave reports in files."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import threading
import time
import warnings
from typing import Any

import routepack

from . import steps


def report_to(folder: str, rank: int, report: dict[str, Any]) -> None:
    path = pathlib.Path(folder) / f"rank{rank}.json"
    path.with_suffix(".part").write_text(json.dumps(report), encoding="utf-8")
    path.with_suffix(".part").rename(path)


def reports_in(folder: str | pathlib.Path) -> dict[int, dict[str, Any]]:
    return {int(p.stem.removeprefix("rank")): json.loads(p.read_text("utf-8")) for p in pathlib.Path(folder).glob("rank*.json")}


def planned(team: Any, **options: Any) -> dict[str, Any]:
    """How a plan ends in this rank."""
    began = time.monotonic()
    report: dict[str, Any] = {"hash": "", "error": "", "lost": -1, "what": "", "complete": None, "said": []}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", routepack.RoutePackWarning)
        try:
            plan = steps.plan(team=team, **options)
        except BaseException as error:
            report |= {"error": type(error).__name__, "what": str(error), "lost": getattr(error, "rank", -1)}
        else:
            report |= {"hash": plan.hash, "complete": plan.complete}
    report["said"] = [str(warning.message) for warning in said if warning.category is routepack.RoutePackWarning]
    report["seconds"] = time.monotonic() - began
    return report


def end_at(moment: str, how: str, folder: str, rank: int) -> Any:
    """A `progress` that ends or stops this process, once, when a phase begins («place»), or after a level («level 3»)."""
    ahead = [True]

    def progress(now: routepack.Progress) -> None:
        if ahead and (moment == now.phase and now.level == 0 or moment == f"level {now.level}" and now.level > 0):
            ahead.clear()
            if how == "stop":
                (pathlib.Path(folder) / "stopped").write_text(str(os.getpid()), encoding="utf-8")
                os.kill(os.getpid(), signal.SIGSTOP)
            elif how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "interrupt":
                os.kill(os.getpid(), signal.SIGINT)

    return progress


def wake(folder: str, survivors: int) -> None:
    """Lets the stopped rank go on when all others have reported."""
    while len(reports_in(folder)) < survivors:
        time.sleep(0.02)
    os.kill(int((pathlib.Path(folder) / "stopped").read_text(encoding="utf-8")), signal.SIGCONT)


def plan_with_a_loss(rank: int, ranks: int, victim: int, moment: str, how: str, on_lost: str, patience_s: float, folder: str) -> None:
    from routepack.team import TorchTeam

    team = TorchTeam(patience_s=patience_s)
    progress = end_at(moment, how, folder, rank) if rank == victim else None
    report = planned(team, progress=progress, on_lost=on_lost)
    if on_lost == "alone" and rank != victim:
        report["again"] = planned(team, on_lost=on_lost)
    report_to(folder, rank, report)
    if how == "stop" and rank == (victim + 1) % ranks:
        wake(folder, ranks - 1)
    os._exit(0)  # gloo's own clean-up would wait for the dead


def plan_interrupted_in_a_wait(rank: int, folder: str) -> None:
    """Ctrl-C comes to rank 0 while it waits for rank 1, which is late until rank 0 has ended."""
    from routepack.team import TorchTeam

    late, ended = pathlib.Path(folder) / "late", pathlib.Path(folder) / "rank0.json"

    def progress(now: routepack.Progress) -> None:
        if rank == 1 and now.level == 3:
            late.touch()
            wait_for(ended)

    def interrupt() -> None:
        wait_for(late)
        time.sleep(0.5)  # until it waits
        os.kill(os.getpid(), signal.SIGINT)

    team = TorchTeam(patience_s=30)
    if rank == 0:
        threading.Thread(target=interrupt, daemon=True).start()
    report_to(folder, rank, planned(team, progress=progress))
    if rank == 0:
        wait_for(pathlib.Path(folder) / "rank1.json")
    os._exit(0)


def wait_for(path: pathlib.Path) -> None:
    until = time.monotonic() + 30
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)
