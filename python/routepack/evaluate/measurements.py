# SPDX-License-Identifier: Apache-2.0
"""Strategies on windows: one `routepack compare` for each, and what it says about every step."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import routepack
from routepack.evaluate.program import Program
from routepack.evaluate.scenario import Scenario, Strategy
from routepack.evaluate.windows import Run, WindowFolder


@dataclass(frozen=True)
class Step:
    """One strategy on one window."""

    seed: int
    step: int
    samples: int
    tokens: int
    rows: int
    cells_over_cap: int
    joint: float
    attention: float
    expert_peak_sum: int
    tail_peak: int
    ep_efficiency: float
    gap: float | None  #: objective over its bound - 1; None when the bound is 0
    cv_global: float
    moved: int  #: (layer, expert) pairs that change rank
    moved_fraction: float
    moved_bytes: float  #: out of a rank, and into it: the mean over ranks
    move_seconds: float | None  #: of the busiest rank on its links; None without a device
    seconds: float | None  #: simulated; None without a device
    place_ms: float
    planning_ms: float  #: placing and packing

    def cost(self) -> float:
        """Time of the step: seconds, or the objective where there is no device."""
        return self.joint if self.seconds is None else self.seconds

    def throughput(self) -> float:
        return self.tokens / self.cost()


@dataclass(frozen=True)
class Measured:
    """A scenario after its runs."""

    scenario: Scenario
    steps: dict[str, list[Step]]  #: by strategy; all on the same windows in the same order
    samples: int
    truncated: int
    expert_bytes: float

    @property
    def simulated(self) -> bool:
        return all(step.seconds is not None for steps in self.steps.values() for step in steps)


def measure(
    scenario: Scenario, folder: WindowFolder, program: Program, threads: int, says: Callable[[str], None]
) -> Measured:
    """Makes the windows and runs every strategy on them.

    :raises Error: when a strategy finds no layout for a window, with what compare says about it
    """
    says(f"{scenario.name}: windows")
    runs = folder.runs(scenario)
    bytes_of_expert = expert_bytes(scenario, program)
    steps: dict[str, list[Step]] = {}
    for strategy in scenario.strategies:
        says(f"{scenario.name}: {strategy.name}")
        steps[strategy.name] = []
        for run in runs:
            compared = program.json(*arguments(scenario, strategy, run, threads))
            found = read_steps(compared, scenario, strategy, run.seed, bytes_of_expert)
            if len(found) != len(run.files):
                raise routepack.Error(
                    f"{scenario.path}: strategy {strategy.name}: found {len(found)} steps in the answer of compare, "
                    f"wanted one for each of {len(run.files)} windows"
                )
            steps[strategy.name] += found
    samples, truncated = sum(run.samples for run in runs), sum(run.truncated for run in runs)
    return Measured(scenario, steps, samples, truncated, bytes_of_expert)


def arguments(scenario: Scenario, strategy: Strategy, run: Run, threads: int) -> list[str]:
    """Of the call for one strategy on one run."""
    more = [] if scenario.device is None else ["--device", str(scenario.device)]
    more += ["--recompute"] if scenario.recompute else []
    more += ["--ranks-per-node", str(scenario.ranks_per_node)] if scenario.ranks_per_node else []
    return [
        *("compare", *(os.path.join(".", path) for path in run.files), "--steps", *scenario.topology.arguments()),
        *("--cap", str(scenario.cap), "--sync", scenario.sync, "--model", scenario.model, *more),
        *("--weight-bytes", str(scenario.weight_bytes), "--optimizer-bytes", str(scenario.optimizer_bytes)),
        *("--optimizer-shards", str(scenario.optimizer_shards)),
        *("--seed", str(run.seed), "--threads", str(threads), *strategy.arguments()),
    ]


def expert_bytes(scenario: Scenario, program: Program) -> float:
    """State of one expert on one replica: 3·hidden·width weights, and what the optimizer keeps of them."""
    presets = {preset["name"]: preset for preset in program.json("generate", "--list-models")["models"]}
    preset = presets.get(scenario.model)
    if preset is None:
        known = ", ".join(sorted(presets))
        raise routepack.InvalidInput(f'{scenario.path}: model: found "{scenario.model}", wanted one of {known}')
    return 3.0 * float(preset["hidden"]) * float(preset["moe_width"]) * scenario.bytes_per_parameter


def read_steps(
    document: dict[str, Any], scenario: Scenario, strategy: Strategy, seed: int, bytes_of_expert: float
) -> list[Step]:
    """The steps of a document of `routepack compare --json` for one strategy.

    :raises Error: when it has no layout for a window, or is no such document
    """
    try:
        return _steps(document, scenario, strategy, seed, bytes_of_expert)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, routepack.Error):
            raise
        raise routepack.Error(
            f"{scenario.path}: strategy {strategy.name}: found an answer of compare without what is read from it, "
            "wanted one of this version"
        ) from None


def _steps(
    document: dict[str, Any], scenario: Scenario, strategy: Strategy, seed: int, bytes_of_expert: float
) -> list[Step]:
    steps = []
    for number, window in enumerate(document["windows"]):
        (placement,) = (p for p in window["placements"] if p["placement"] == strategy.placement)
        (entry,) = (
            entry
            for entry in window["entries"]
            if entry["placement"] == strategy.placement and entry["strategy"] == strategy.packer
        )
        if "no-layout" in entry["marks"]:
            raise routepack.Error(f"{scenario.path}: strategy {strategy.name}, step {number}: {entry['reason']}")
        moves = placement["moves"]
        simulated = entry.get("simulated") or {}
        seconds, move_seconds = simulated.get("seconds"), moves.get("seconds")
        steps.append(
            Step(
                seed=seed,
                step=number,
                samples=window["samples"],
                tokens=window["tokens"],
                rows=entry["rows"],
                cells_over_cap=entry["cells_over_cap"],
                joint=entry["joint"],
                attention=entry["attention"],
                expert_peak_sum=entry["expert_peak_sum"],
                tail_peak=entry["tail_peak"],
                ep_efficiency=entry["ep_efficiency"],
                gap=entry["gap"],
                cv_global=placement["cv_global"],
                moved=moves["experts"],
                moved_fraction=moves["fraction"],
                # Each moved expert leaves one rank and enters another.
                moved_bytes=moves["experts"] * bytes_of_expert / scenario.topology.ep,
                move_seconds=None if move_seconds is None else float(move_seconds),
                seconds=None if seconds is None else float(seconds),
                place_ms=placement["planning_ms"],
                planning_ms=entry["planning_ms"],
            )
        )
        if not 0.0 < steps[-1].cost() < math.inf:
            raise routepack.Error(
                f"{scenario.path}: strategy {strategy.name}, step {number}: found a cost of {steps[-1].cost():g}, "
                "wanted more than 0: there is no throughput without"
            )
    return steps
