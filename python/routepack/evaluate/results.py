# SPDX-License-Identifier: Apache-2.0
"""What came out of a scenario, as a document: figures of every strategy, tests, and what the paper says beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import routepack
from routepack.evaluate import statistics
from routepack.evaluate.measurements import Measured, Step
from routepack.evaluate.scenario import PACKING, Scenario

FORMAT = "routepack.evaluate/1"


def scenario_results(measured: Measured) -> dict[str, Any]:
    """The document of one scenario. Keys that end in `_ms` are times of this run and differ from run to run."""
    scenario = measured.scenario
    throughput = {name: [step.throughput() for step in steps] for name, steps in measured.steps.items()}
    base = throughput[scenario.baseline]
    strategies = []
    for name, steps in measured.steps.items():
        exposed = _with_moves(steps)
        strategies.append(
            {
                "name": name,
                **scenario.strategy(name).as_dict(),
                "throughput": statistics.spread(throughput[name]).as_dict(),
                "gain": _gain(throughput[name], base),
                "throughput_with_moves": None if exposed is None else statistics.spread(exposed).as_dict(),
                "gain_with_moves": None if exposed is None else _gain(exposed, base),
                "metrics": _metrics(steps),
                "moves": _moves(steps),
                "planning": _planning(steps, scenario),
                "steps": [_step(step) for step in steps],
            }
        )
    first = measured.steps[scenario.baseline]
    return {
        "name": scenario.name,
        "file": str(scenario.path),
        "description": scenario.description,
        "model": scenario.model,
        "device": scenario.device_name or None,
        "cap": scenario.cap,
        "sync": scenario.sync,
        "topology": {**_topology(scenario), "shards": scenario.topology.shards},
        "windows": {
            **scenario.windows.as_dict(),
            "windows": len(first),
            "samples_per_step": measured.samples / len(first),
            "tokens_per_step": float(np.mean([step.tokens for step in first])),
            "truncated_samples": measured.truncated,
        },
        "time": "simulated" if measured.simulated else "objective",
        "expert_bytes": measured.expert_bytes,
        "baseline": scenario.baseline,
        "strategies": strategies,
        "comparisons": [comparison.as_dict() for comparison in statistics.compare(throughput)],
        "packing": _packing(measured),
        "published": None if scenario.published is None else scenario.published.as_dict(),
        "notes": _notes(measured),
    }


def _topology(scenario: Scenario) -> dict[str, int]:
    t = scenario.topology
    return {"dp": t.dp, "ep": t.ep, "tp": t.tp, "cp": t.cp, "etp": t.etp, "pp": t.pp}


def _gain(values: Sequence[float], base: Sequence[float]) -> float:
    return float(np.mean(values) / np.mean(base)) - 1.0


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _with_moves(steps: Sequence[Step]) -> list[float] | None:
    """Tokens per second when nothing hides the moves."""
    exposed = []
    for step in steps:
        if step.seconds is None or step.move_seconds is None:
            return None
        exposed.append(step.tokens / (step.seconds + step.move_seconds))
    return exposed


def _metrics(steps: Sequence[Step]) -> dict[str, Any]:
    gaps = [step.gap for step in steps if step.gap is not None]
    return {
        "rows": _mean([step.rows for step in steps]),
        "joint": _mean([step.joint for step in steps]),
        "attention": _mean([step.attention for step in steps]),
        "expert_peak_sum": _mean([step.expert_peak_sum for step in steps]),
        "tail_peak": _mean([step.tail_peak for step in steps]),
        "ep_efficiency": _mean([step.ep_efficiency for step in steps]),
        "gap": _mean(gaps) if gaps else None,
        "cv_global": statistics.spread([step.cv_global for step in steps]).as_dict(),
    }


def _moves(steps: Sequence[Step]) -> dict[str, Any]:
    """Experts that change rank: in the first step of a run, which starts from experts in order, and in later ones.

    `seconds` is what the busiest rank takes on its links when nothing else uses them.
    """
    return {
        "first": _moved([step for step in steps if step.step == 0]),
        "later": _moved([step for step in steps if step.step > 0]),
        "all": _moved(steps),
    }


def _moved(steps: Sequence[Step]) -> dict[str, Any] | None:
    if not steps:
        return None
    seconds = [step.move_seconds for step in steps if step.move_seconds is not None]
    return {
        "experts": _mean([step.moved for step in steps]),
        "fraction": _mean([step.moved_fraction for step in steps]),
        "bytes_per_rank": _mean([step.moved_bytes for step in steps]),
        "seconds": _mean(seconds) if len(seconds) == len(steps) else None,
    }


def _planning(steps: Sequence[Step], scenario: Scenario) -> dict[str, Any]:
    """Equations 19 and 20 of the paper, step by step, with this machine's planning times."""
    paths = [
        routepack.critical_path(
            place_ms=step.place_ms,
            pack_ms=max(0.0, step.planning_ms - step.place_ms),
            aux_ms=0.0,
            actor_ms=1e3 * step.move_seconds + scenario.state_ms,
        )
        for step in steps
        if step.move_seconds is not None
    ]
    return {
        "place_ms": _mean([step.place_ms for step in steps]),
        "planning_ms": _mean([step.planning_ms for step in steps]),
        "admission_ms": _mean([path.makespan_ms for path in paths]) if paths else None,
        "extension_ms": _mean([path.extension_ms for path in paths]) if paths else None,
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "seed": step.seed,
        "step": step.step,
        "tokens": step.tokens,
        "rows": step.rows,
        "seconds": step.seconds,
        "throughput": step.throughput(),
        "joint": step.joint,
        "attention": step.attention,
        "expert_peak_sum": step.expert_peak_sum,
        "tail_peak": step.tail_peak,
        "ep_efficiency": step.ep_efficiency,
        "gap": step.gap,
        "cv_global": step.cv_global,
        "moved_experts": step.moved,
        "moved_fraction": step.moved_fraction,
        "move_seconds": step.move_seconds,
        "place_ms": step.place_ms,
        "planning_ms": step.planning_ms,
    }


def _packing(measured: Measured) -> dict[str, Any] | None:
    """The paper's table 4: means over steps of the change by packing alone."""
    if measured.scenario.packing is None:
        return None
    before, after = (measured.steps[name] for name in measured.scenario.packing)
    changes = {
        metric: _mean_change([getattr(step, metric) for step in before], [getattr(step, metric) for step in after])
        for metric in PACKING
    }
    efficiency = [_mean([step.ep_efficiency for step in steps]) for steps in (before, after)]
    return {"strategies": list(measured.scenario.packing), **changes, "ep_efficiency": efficiency}


def _mean_change(before: Sequence[float], after: Sequence[float]) -> float | None:
    """None where something came out of nothing."""
    if any(a == 0 != b for a, b in zip(before, after)):
        return None
    return _mean([0.0 if a == b else b / a - 1.0 for a, b in zip(before, after)])


def _notes(measured: Measured) -> list[str]:
    """What makes strategies hard to compare."""
    notes = []
    fewest = [min(steps) for steps in zip(*([step.rows for step in steps] for steps in measured.steps.values()))]
    for name, steps in measured.steps.items():
        more = sum(step.rows > least for step, least in zip(steps, fewest))
        if more:
            notes.append(f"{name} uses more rows than the fewest on {more} of {len(steps)} steps")
        over = sum(step.cells_over_cap > 0 for step in steps)
        if over:
            notes.append(f"{name} has cells over the cap on {over} of {len(steps)} steps")
    if measured.truncated:
        share = measured.truncated / measured.samples
        notes.append(f"{measured.truncated:,} samples ({100 * share:.1f} %) were longer than the cap, cut there")
    if not measured.simulated:
        notes.append("no device, no step time: throughput is tokens per unit of the objective")
    return notes
