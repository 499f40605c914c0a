# SPDX-License-Identifier: Apache-2.0
"""When data cannot tell terms apart: which terms, why, and what measurement would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import routepack
from routepack.calibrate.fit import MOST_RATIO, Fit
from routepack.calibrate.model import ACTIVE, EXCHANGE, EXCHANGE_FIXED, EXPERT, ROW, STEP, Design

Array = npt.NDArray[np.float64]

#: Of the weighted regressors with columns of length 1. Beyond, an error of 1 % in the times is one of 1000 times.
MOST_CONDITION = 1e5
#: Share of the time of some record that an interval as wide as its value may span.
MOST_SHARE = 0.1
_NAMED = 20  #: records in one message


@dataclass(frozen=True)
class Problem:
    """Terms that the data do not identify."""

    terms: tuple[str, ...]
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{', '.join(self.terms)}: {self.reason}; what would help: {self.remedy}"


class Unidentifiable(routepack.InvalidInput):
    """The records leave terms open. One line names them all."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("the records cannot identify " + "; ".join(map(str, problems)))
        self.problems = tuple(problems)


def remedy(term: str) -> str:
    """The measurement that tells a term."""
    known = {
        EXPERT: "experts records with loads of the busiest rank from low to high",
        ACTIVE: "experts records with expert_loads in which few and many experts have load",
        EXCHANGE: "all_to_all records from few to many tokens",
        EXCHANGE_FIXED: "all_to_all records with little to send",
        ROW: "row records from nearly empty to full",
        STEP: "step records, three or more",
    }
    if term in known:
        return known[term]
    stage = term.split(".", 1)[1].rsplit(".", 1)[0]
    return f"attention records of stage {stage} with cells of one long and of many short samples"


def _untouched(term: str) -> str:
    return remedy(term) + ("" if term == EXPERT else f", or --without {term}, which takes it as 0")


def _remedies(terms: Sequence[str]) -> str:
    """Any of them tells the terms apart; more rows seldom do."""
    kernels = [term for term in terms if term != ROW] or list(terms)
    return ", or ".join(dict.fromkeys(map(remedy, kernels)))


def before(design: Design) -> list[Problem]:
    """What shows without a fit: terms that nothing touches, too few records."""
    problems = [
        Problem((term,), "no record depends on it", _untouched(term))
        for term, column in zip(design.terms, design.highest.T)
        if not column.any()
    ]
    problems += _alike(design)
    touched = [term for term, column in zip(design.terms, design.highest.T) if column.any()]
    if len(design.records) <= len(touched):
        reason = f"found {len(design.records)} records for {len(touched)} terms, wanted at least {len(touched) + 1}"
        problems.append(Problem(tuple(touched), reason, "more records, of kinds that touch few terms each"))
    return problems


def _alike(design: Design) -> list[Problem]:
    """Stages that only rows touch, by the same cells: exchanging their coefficients would change no time."""
    timed = {record.stage for record in design.records}
    groups: dict[tuple[bool, bool], list[str]] = {}
    for stage in design.stages:
        kept = (stage.token in design.terms, stage.pair in design.terms)
        if stage.name not in timed and any(kept):
            terms = [term for term, wanted in zip((stage.token, stage.pair), kept) if wanted]
            groups.setdefault(kept, []).extend(terms)
    rows = sum(record.kind == "row" for record in design.records)
    reason = f"their stages have the same cells in all {rows} rows, so that nothing tells which is which"
    return [Problem(tuple(terms), reason, _remedies(terms)) for kept, terms in groups.items() if len(terms) > sum(kept)]


def dependent(design: Design, fit: Fit) -> list[Problem]:
    """Terms whose regressors depend on one another."""
    a = fit.regressors / np.maximum(fit.fitted, design.seconds / MOST_RATIO)[:, np.newaxis]
    scale = np.linalg.norm(a, axis=0)
    if (scale == 0.0).any():
        empty = [term for term, length in zip(design.terms, scale) if length == 0.0]
        return [Problem((term,), "the slowest cells and ranks do not touch it", remedy(term)) for term in empty]
    _, singular, rows = np.linalg.svd(a / scale, full_matrices=False)
    weak = singular * MOST_CONDITION < singular[0]
    tangled = rows[weak].T @ rows[weak]  # projection on what no record sees
    problems, left = [], {k for k in range(len(scale)) if tangled[k, k] > 1e-4}
    while left:
        group = {left.pop()}
        while more := {k for k in left if any(abs(tangled[k, j]) > 1e-4 for j in group)}:
            group |= more
            left -= more
        members = sorted(group)
        terms = tuple(design.terms[k] for k in members)
        problems.append(Problem(terms, _tangle(design, fit.regressors, members, singular), _remedies(terms)))
    return problems


def _tangle(design: Design, regressors: Array, members: list[int], singular: Array) -> str:
    touched = (regressors[:, members] != 0.0).any(axis=1)
    condition = singular[0] / singular[-1] if singular[-1] > 1e-14 * singular[0] else np.inf
    columns = regressors[np.ix_(touched, members)]
    names = " and ".join(design.terms[k] for k in members)
    if (columns == columns[0]).all():
        why = f"are constant in all {len(columns)} records that touch them"
    elif len(members) == 2:
        why = f"keep one ratio in all {len(columns)} records that touch them"
    else:
        why = f"follow from one another in all {len(columns)} records that touch them"
    return f"the factors of {names} {why} (condition number {condition:.2g})"


def require_near(design: Design, fit: Fit) -> None:
    """No record may be MOST_RATIO times as long or as short as the fit: such a time is a slip, or the model is wrong.

    :raises InvalidInput: with all of them, furthest first: file and line, measured, fitted
    """
    with np.errstate(divide="ignore"):
        off = np.abs(np.log(design.seconds) - np.log(fit.fitted))
    far = [int(i) for i in np.argsort(-off, kind="stable") if not off[i] <= np.log(MOST_RATIO)]
    if not far:
        return
    said = [f"{design.records[i].where} ({design.seconds[i]:.4g} s, fit {fit.fitted[i]:.4g} s)" for i in far[:_NAMED]]
    rest = [f"{len(far) - _NAMED} more"] if len(far) > _NAMED else []
    raise routepack.InvalidInput(
        f"found times that differ from the fit by more than {MOST_RATIO:g} times: {', '.join([*said, *rest])}; wanted "
        "none: measure them again or remove them"
    )


def uncertain(design: Design, fit: Fit, confidence: float) -> list[Problem]:
    """Terms whose interval is as wide as their value and wide enough to matter."""
    problems = []
    for k, term in enumerate(design.terms):
        low, high = fit.interval(k, confidence)
        touching = np.flatnonzero(fit.regressors[:, k])
        if fit.decided_alone(k):
            record = design.records[touching[0]] if len(touching) == 1 else None
            reason = "one record alone decides it" + (f" ({record.where})" if record is not None else "")
            problems.append(Problem((term,), reason, remedy(term)))
            continue
        value = float(fit.coefficients[k])
        share = (high - low) * float((fit.regressors[:, k] / np.maximum(fit.fitted, design.seconds / MOST_RATIO)).max())
        if high - low >= value and share > MOST_SHARE:
            span = f"{value:.3g} s with the {100 * confidence:g} % interval [{low:.3g}, {high:.3g}]"
            reason = f"{span}, as wide as the value and {100 * share:.0f} % of the time of a record"
            problems.append(Problem((term,), reason, remedy(term)))
    return problems
