# SPDX-License-Identifier: Apache-2.0
"""Costs that mean time: what a token takes, from measured executions.

    import routepack.calibrate
    records = routepack.calibrate.read_records(["kernels.csv", "rows.jsonl"])
    found = routepack.calibrate.calibrate(records, capacity=8192)
    plan = routepack.plan(window, topology, capacity=8192, cost=found.cost)

The fit needs scipy (`pip install "routepack[calibrate]"`), which is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import routepack
from routepack.calibrate import identify
from routepack.calibrate.fit import fit as _fit
from routepack.calibrate.fit import scipy_parts as _scipy_parts
from routepack.calibrate.identify import Problem, Unidentifiable
from routepack.calibrate.model import MOST_CAPACITY, MOST_TILE, DenseStage, Design, kept_terms, stages_of
from routepack.calibrate.output import cost_toml, timing_toml
from routepack.calibrate.records import Record, read_records
from routepack.calibrate.result import Calibration, Estimate, Residuals, summarise

__all__ = [
    "Calibration",
    "DenseStage",
    "Estimate",
    "Problem",
    "Record",
    "Residuals",
    "Unidentifiable",
    "calibrate",
    "cost_toml",
    "read_records",
    "timing_toml",
]


def calibrate(
    records: Sequence[Record],
    *,
    capacity: int,
    stages: Sequence[DenseStage] | None = None,
    tile: int = 1,
    without: Sequence[str] = (),
    confidence: float = 0.95,
    keep_wide: bool = False,
) -> Calibration:
    """Fits the terms of the time model (docs/calibrate.md) to measured executions.

    `capacity` is the token cap C of the costs. Without `stages`, those that attention records name, else one. `tile`:
    tokens, an expert's load counts as the next multiple. `without`: terms to take as 0. `keep_wide`: a term whose
    interval is as wide as its value is kept and noted, not refused.

    :raises Unidentifiable: when the records leave terms open
    :raises InvalidInput: for records that lack what the terms need or are more than 4 times as long or as short as the
        fit, for what the planner and the simulator would refuse, and when scipy is missing
    :raises ImportError: when scipy is there and cannot be loaded

    >>> records = [Record("experts", 1e-6 * peak, expert_peak=peak) for peak in (100.0, 200.0, 400.0)]
    >>> records += [Record("attention", 5e-6 * t, stage="full", layers=1, tokens=(t,)) for t in (10.0, 20.0)]
    >>> found = calibrate(
    ...     records, capacity=2048, without=["expert.active", "all_to_all", "stage.full.pair", "fixed"]
    ... )
    >>> round(found.cost.stages[0].alpha, 9)
    5.0
    """
    for name, number, most in (("capacity", capacity, MOST_CAPACITY), ("tile", tile, MOST_TILE)):
        if not 1 <= number <= most:
            raise routepack.InvalidInput(f"{name}: found {number}, wanted 1 to {most} tokens")
    if not 0.0 < confidence < 1.0:
        raise routepack.InvalidInput(f"confidence: found {confidence}, wanted a number between 0 and 1")
    if not records:
        raise routepack.InvalidInput("records: found none, wanted measured executions")
    _scipy_parts()
    dense = stages_of(records, stages)
    design = Design(records, dense, kept_terms(dense, without), tile=tile)
    problems = identify.before(design)
    touched = [term for term, column in zip(design.terms, design.highest.T) if column.any()]
    if len(records) > len(touched):
        rest = design if touched == design.terms else Design(records, dense, touched, tile=tile)
        found = _fit(rest)
        named = {term for problem in problems for term in problem.terms}
        problems += [problem for problem in identify.dependent(rest, found) if not named.issuperset(problem.terms)]
    if problems:
        raise Unidentifiable(problems)
    identify.require_near(design, found)
    wide = identify.uncertain(design, found, confidence)
    if wide and not keep_wide:
        raise Unidentifiable(wide)
    notes = []
    if stages is None:
        said = ", ".join(f"{stage.name} ({stage.layers})" for stage in dense)
        notes.append(f"Stages and their decoder layers, from the records: {said}; --stage NAME:LAYERS says otherwise")
    notes += [f"Uncertain: {', '.join(problem.terms)}: {problem.reason}" for problem in wide]
    if not found.settled:
        notes.append("Which cells are the slowest did not settle: several are equally slow under these coefficients")
    return summarise(design, found, capacity=capacity, confidence=confidence, notes=notes)
