# SPDX-License-Identifier: Apache-2.0
"""How a plan came about over time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import routepack
from routepack.report.problem import current_maps, read_document, read_problem


@dataclass(frozen=True)
class Step:
    """A phase that began (level 0), or a temperature of the search that ended."""

    ms: float  #: since the recording began
    phase: str
    level: int
    proposals: int  #: moves tried so far in this search
    best: float  #: first component of the best score so far; inf before there is a layout


class Recording:
    """Remembers what the planner says of its progress, and when.

    Give it to a plan, and its steps to `analyse`:

        recording = routepack.report.Recording()
        plan = routepack.plan(window, topology, capacity=8192, cost=cost, progress=recording)
        analysis = routepack.report.analyse(plan, window, progress=recording.steps)
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._began = time.perf_counter()

    def __call__(self, progress: routepack.Progress) -> None:
        """Takes one report of `routepack.plan`."""
        ms = 1000.0 * (time.perf_counter() - self._began)
        self.steps.append(Step(ms, progress.phase, progress.level, progress.proposals, progress.best))

    def save(self, path: Path) -> None:
        """One JSON object per line; `best` is null before there is a layout."""
        from routepack.report.images import write_text

        lines = [{**asdict(step), "best": step.best if math.isfinite(step.best) else None} for step in self.steps]
        write_text(Path(path), "".join(json.dumps(line) + "\n" for line in lines))


def load_steps(path: Path) -> list[Step]:
    """Steps that were saved.

    :raises FormatError: names the line
    """
    steps = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            found = json.loads(line)
            best = math.inf if found["best"] is None else float(found["best"])
            step = Step(float(found["ms"]), str(found["phase"]), int(found["level"]), int(found["proposals"]), best)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise routepack.FormatError(
                f"{path}: line {number}: found no step of a search, wanted an object with ms, phase, level, proposals, best"
            ) from None
        steps.append(step)
    return steps


def replan(plan: routepack.Plan, window: routepack.Window) -> list[Step]:
    """Makes `plan` again from what it says of itself, to see how it came about. Takes as long as planning did.

    :raises InvalidInput: when the plan does not say how it was made, or comes out different

    >>> [step.phase for step in replan(plan, window) if step.level == 0][:4]
    ['demand', 'place', 'loads', 'rows']
    """
    document = read_document(plan)
    if plan.params is None:
        raise routepack.InvalidInput("plan: found no params, wanted how it was made: it cannot be made again")
    maps, known = current_maps(document)
    problem = read_problem(document, window)
    recording = Recording()
    again = routepack.plan(
        window,
        routepack.Topology.from_shards(problem.ranks, problem.shards, document["topology"].get("pp", 1)),
        capacity=problem.capacity,
        cost=routepack.CostModel([routepack.Stage(*stage) for stage in problem.stages], document["cost"].get("expert", 1.0)),
        constraints=plan.constraints,
        params=plan.params,
        current=routepack.Placement.from_maps(ranks=problem.ranks, physical_to_logical=maps) if known else None,
        sync=problem.sync,
        progress=recording,
    )
    if again.hash != plan.hash:
        raise routepack.InvalidInput(
            f"plan: found {plan.hash}, wanted {again.hash} as when it is made again: a deadline cut it, it shares its "
            "placement with other windows, or another version made it"
        )
    return recording.steps


def search_steps(steps: Iterable[Step]) -> list[Step]:
    """The ends of temperatures alone, in order."""
    return [step for step in steps if step.level > 0]
