# SPDX-License-Identifier: Apache-2.0
"""Everything that a report shows, as numbers: before, after, the bound, and the way there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import routepack
from routepack.report.figures import Figures, evaluate, least_peaks, rank_demand, too_hot, variation
from routepack.report.first_fit import first_fit_decreasing
from routepack.report.problem import Problem, current_maps, rank_of, read_document, read_problem
from routepack.report.recording import Step

Ints = npt.NDArray[np.int64]

#: How a search ended, for people.
ENDINGS = {
    "budget": "spent its budget",
    "bound reached": "ended early: the bound is reached",
    "nothing to move": "ended early: no move changes the objective",
    "stopped": "was cut short",
}


@dataclass(frozen=True)
class Analysis:
    """A plan beside what would happen without it."""

    problem: Problem
    model: str
    fingerprint: str
    plan_hash: str
    document: dict[str, Any]  #: the plan file
    before: Figures | None  #: experts where they are, first fit by length; None when that has no layout
    after: Figures
    against: list[Figures]
    before_cv: float  #: cv_global where experts are now
    current_known: bool  #: the plan says where experts were; else expert e in slot e
    least_peaks: list[int]  #: per layer, busiest rank over the step under any placement
    hot_layers: int  #: layers where one expert alone is too hot for any placement to even the ranks out
    moved: Ints  #: [layers] experts that change rank
    moved_in: Ints  #: [layers, ranks]
    moved_out: Ints  #: [layers, ranks]
    steps: list[Step] = field(default_factory=list)  #: how the plan came about, when it was recorded

    @property
    def bound(self) -> float | None:
        """No plan goes below, in the first component of the score."""
        bound = self.document.get("bound", {}).get("max_shard")
        return None if bound is None else float(bound)

    @property
    def gap(self) -> float | None:
        """Score over bound, less one."""
        bound = self.bound
        if bound is None or bound <= 0.0:
            return None
        score = self.after.score[0]
        return 0.0 if abs(score - bound) <= 1e-12 * bound else score / bound - 1.0

    @property
    def fraction_moved(self) -> float:
        """Experts that change rank, as a share of all."""
        return int(self.moved.sum()) / int(self.moved.size * self.problem.counts.shape[2])

    @property
    def timings_ms(self) -> dict[str, float]:
        """Phases in order, without the total."""
        return {name: float(ms) for name, ms in self.document.get("timings_ms", {}).items() if name != "total"}

    @property
    def total_ms(self) -> float | None:
        """Planning time, when the plan says it."""
        timings = self.document.get("timings_ms", {})
        if "total" in timings:
            return float(timings["total"])
        return math.fsum(timings.values()) if timings else None

    @property
    def closed_share(self) -> float | None:
        """How much of the way from before to the bound the plan went."""
        if self.before is None or self.bound is None or self.before.score[0] <= self.bound:
            return None
        return (self.before.score[0] - self.after.score[0]) / (self.before.score[0] - self.bound)

    def as_dict(self) -> dict[str, Any]:
        """The summary, for programs."""
        document = self.document
        result: dict[str, Any] = {
            "window": self.fingerprint,
            "plan": self.plan_hash,
            "before": None if self.before is None else _summary(self.before, self.before_cv),
            "after": _summary(self.after, self.after.cv_global),
            "against": [{"plan": other.name, **_summary(other, other.cv_global)} for other in self.against],
            "bound": {"max_shard": self.bound, "gap": self.gap, "closed_share": self.closed_share},
            "replication_needed_layers": self.hot_layers,
            "moves": {"experts": int(self.moved.sum()), "fraction": self.fraction_moved},
        }
        for key in ("rows_lower_bound", "rows_certified", "search", "timings_ms", "complete"):
            if key in document:
                result[key] = document[key]
        return result


def _summary(figures: Figures, cv_global: float) -> dict[str, Any]:
    score = dict(zip(("max_shard", "total", "worst_row"), figures.score))
    return {"rows": figures.rows, "score": score, "metrics": {**figures.metrics(), "cv_global": cv_global}}


def analyse(
    plan: routepack.Plan,
    window: routepack.Window,
    *,
    against: Sequence[tuple[str, routepack.Plan]] = (),
    progress: Sequence[Step] = (),
    name: str = "this plan",
) -> Analysis:
    """Prices `plan`, other plans for the same window, and what would happen without any.

    `progress` are the steps of a `Recording` of this plan.

    :raises InvalidInput: for a plan of another window, or one that breaks a rule

    >>> analysis = analyse(plan, window)
    >>> analysis.after.rows, analysis.after.score == plan.score, analysis.before.score >= plan.score
    (1, True, True)
    """
    checked = plan.evaluate(window)
    document = read_document(plan)
    problem = read_problem(document, window)
    after_maps = np.array(document["physical_to_logical"], dtype=np.int32)
    after = evaluate(problem, document["layout"], after_maps, name)
    if after.score != checked:
        raise routepack.InternalError(f"report: found score {after.score}, wanted {checked} as from plan.evaluate()")

    maps, known = current_maps(document)
    layout = first_fit_decreasing(problem)
    before = None if layout is None else evaluate(problem, layout, maps, "first fit")
    others = []
    for other_name, other in against:
        other.evaluate(window)
        other_document = read_document(other)
        _require_comparable(problem, read_problem(other_document, window), other_name)
        other_maps = np.array(other_document["physical_to_logical"], dtype=np.int32)
        others.append(evaluate(problem, other_document["layout"], other_maps, other_name))

    was, now = rank_of(maps, problem.ranks), rank_of(after_maps, problem.ranks)
    moved = was != now
    demand = _expert_demand(problem)
    return Analysis(
        problem=problem,
        model=window.model,
        fingerprint=window.fingerprint,
        plan_hash=plan.hash,
        document=document,
        before=before,
        after=after,
        against=others,
        before_cv=variation(rank_demand(demand, maps, problem.ranks)),
        current_known=known,
        least_peaks=least_peaks(demand, problem.ranks),
        hot_layers=too_hot(demand, problem.ranks),
        moved=moved.sum(axis=1),
        moved_in=_per_rank(now, moved, problem.ranks),
        moved_out=_per_rank(was, moved, problem.ranks),
        steps=list(progress),
    )


def _require_comparable(problem: Problem, other: Problem, name: str) -> None:
    for what in ("shards", "ranks", "capacity", "sync", "stages", "weights"):
        found, wanted = getattr(other, what), getattr(problem, what)
        if found != wanted:
            raise routepack.InvalidInput(f"{name}: {what}: found {found}, wanted {wanted} as in the plan it stands against")


def _per_rank(ranks_of: npt.NDArray[np.int32], moved: npt.NDArray[np.bool_], ranks: int) -> Ints:
    """[layers, ranks]: how many moved experts each rank has in `ranks_of` [layers, experts]."""
    return np.stack([np.bincount(row[chosen], minlength=ranks) for row, chosen in zip(ranks_of, moved)]).astype(np.int64)


def _expert_demand(problem: Problem) -> Ints:
    """[L, E], in pieces: the counts may be large."""
    total = np.zeros(problem.counts.shape[1:], dtype=np.int64)
    for begin in range(0, len(problem.counts), 64):
        total += problem.counts[begin : begin + 64].sum(axis=0, dtype=np.int64)
    return total
