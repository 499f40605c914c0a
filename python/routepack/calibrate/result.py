# SPDX-License-Identifier: Apache-2.0
"""What a calibration found, as objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import routepack
from routepack.calibrate.fit import Fit
from routepack.calibrate.model import EXPERT, DenseStage, Design, all_terms
from routepack.calibrate.records import KINDS, Record


@dataclass(frozen=True)
class Estimate:
    """A value with the interval that holds the true one with the confidence of the calibration."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Residuals:
    """How far the fit is from the times: of one kind of record, or of all."""

    kind: str
    records: int
    rms: float  #: seconds
    rms_relative: float  #: of (time − fit)/fit
    worst: float  #: the (time − fit)/fit furthest from 0
    worst_at: str  #: file and line
    r_squared: float | None  #: 1 − Σ(time − fit)²/Σ(time − mean)²; None when all times are equal


@dataclass(frozen=True)
class Calibration:
    """Coefficients of the time model with their intervals, and the cost model they make."""

    capacity: int  #: C, of the cost model
    tile: int  #: tokens
    confidence: float
    stages: tuple[DenseStage, ...]
    terms: tuple[Estimate, ...]  #: seconds; in the order of `all_terms`, without those left out
    costs: tuple[Estimate, ...]  #: alpha and beta of every stage, as «full.alpha»
    left_out: tuple[str, ...]  #: terms taken as 0
    residuals: tuple[Residuals, ...]  #: of all records first, then by kind
    notes: tuple[str, ...]
    records: int

    def seconds(self, term: str) -> float:
        """A coefficient in seconds, 0 when it was left out."""
        if term not in all_terms(self.stages):
            raise routepack.InvalidInput(f"term: found {term!r}, wanted one of {', '.join(all_terms(self.stages))}")
        return next((found.value for found in self.terms if found.name == term), 0.0)

    @property
    def cost(self) -> routepack.CostModel:
        """The cost model for `capacity`: the unit is one routed token on the busiest rank."""
        found = {cost.name: cost.value for cost in self.costs}
        stages = [
            routepack.Stage(
                stage.name, alpha=found.get(f"{stage.name}.alpha", 0.0), beta=found.get(f"{stage.name}.beta", 0.0)
            )
            for stage in self.stages
        ]
        return routepack.CostModel(stages, 1.0)

    def predict(self, records: Sequence[Record]) -> list[float]:
        """Seconds of other executions, such as those that were kept back to test the fit."""
        design = Design(records, self.stages, [found.name for found in self.terms], tile=self.tile)
        values = np.array([found.value for found in self.terms])
        return [float(x) for x in design.columns(values)[0] @ values]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def summarise(design: Design, fit: Fit, *, capacity: int, confidence: float, notes: Sequence[str]) -> Calibration:
    """The objects above from a fit.

    :raises InvalidInput: when a routed token was found to take no time, so that there is no unit
    """
    at = {name: k for k, name in enumerate(design.terms)}
    unit = at[EXPERT]
    share = fit.coefficients[unit] * float((fit.regressors[:, unit] / design.seconds).max())
    if not share > 1e-9:
        raise routepack.InvalidInput(
            f"{EXPERT}: found 0 s as the best fit, wanted more, for it is the unit of a cost file; what would help: "
            "experts records"
        )
    terms = tuple(
        Estimate(name, float(fit.coefficients[k]), *fit.interval(k, confidence)) for k, name in enumerate(design.terms)
    )
    costs = []
    for stage in design.stages:
        for key, term, factor in (("alpha", stage.token, 1.0), ("beta", stage.pair, float(capacity))):
            if term in at:
                value, low, high = (factor * x for x in fit.ratio(at[term], unit, confidence))
                costs.append(Estimate(f"{stage.name}.{key}", value, low, high))
    return Calibration(
        capacity=capacity,
        tile=design.tile,
        confidence=confidence,
        stages=tuple(design.stages),
        terms=terms,
        costs=tuple(costs),
        left_out=tuple(name for name in all_terms(design.stages) if name not in at),
        residuals=_residuals(design, fit),
        notes=tuple(notes),
        records=len(design.records),
    )


def _residuals(design: Design, fit: Fit) -> tuple[Residuals, ...]:
    kinds = np.array([record.kind for record in design.records])
    found = [_of("all", design, fit, np.arange(len(kinds)))]
    found += [_of(kind, design, fit, np.flatnonzero(kinds == kind)) for kind in KINDS if (kinds == kind).any()]
    return tuple(found)


def _of(kind: str, design: Design, fit: Fit, which: Any) -> Residuals:
    seconds, fitted = design.seconds[which], fit.fitted[which]
    errors = seconds - fitted
    relative = errors / np.where(fitted > 0.0, fitted, seconds)
    worst = int(np.abs(relative).argmax())
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    return Residuals(
        kind,
        len(seconds),
        float(np.sqrt((errors**2).mean())),
        float(np.sqrt((relative**2).mean())),
        float(relative[worst]),
        design.records[which[worst]].where,
        1.0 - float((errors**2).sum()) / spread if spread > 0.0 else None,
    )
