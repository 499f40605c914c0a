# SPDX-License-Identifier: Apache-2.0
"""Weighted least squares with coefficients of at least 0, and how far they can be trusted.

Timings err by a share of themselves, so each record weighs 1/fit², and the fit with its own weights is the answer: a
fixed point, found by iteration, not the least Σ(time/fit − 1)², which favours fits that are too long. Intervals are
those of the same regression without the bound, cut off at 0: as the true value is at least 0, cutting loses no
coverage, and a term at the bound keeps an honest upper end. Variances are HC2 (MacKinnon and White 1985), which allows
every record its own spread; quantiles are Student's with Bell and McCaffrey's degrees of freedom (2002), which count
the records that really speak of a term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import routepack
from routepack.calibrate.model import ACTIVE, Design

Array = npt.NDArray[np.float64]

HINT = 'pip install "routepack[calibrate]"'
#: Time over fit, or fit over time, beyond which a record and the fit do not describe the same machine.
MOST_RATIO = 4.0
_ITERATIONS = 200
_SETTLED = 1e-13
_ALONE = 1e-9  #: leverage so close to 1 leaves a record no error of its own


def scipy_parts() -> tuple[Any, Any, Any]:
    """(nnls, lsq_linear, Student's quantile function).

    :raises InvalidInput: when scipy is not installed
    :raises ImportError: when it is and cannot be loaded, with the reason
    """
    try:
        from scipy.optimize import lsq_linear, nnls
        from scipy.special import stdtrit
    except ModuleNotFoundError as error:
        if error.name != "scipy":
            raise
        raise routepack.InvalidInput(f"calibrate: found no scipy, wanted it for the fit: {HINT} brings it") from None
    return nnls, lsq_linear, stdtrit


@dataclass(frozen=True)
class Fit:
    """Coefficients, and what inference needs."""

    coefficients: Array  #: [terms] at least 0
    free: Array  #: [terms] the same without the bound
    regressors: Array  #: [records, terms] under the final choice of slowest candidates
    fitted: Array  #: [records] seconds
    settled: bool  #: whether the choice of slowest candidates came to rest
    maps: Array  #: [records, terms] free = mapsᵀ·(seconds/fitted)
    basis: Array  #: [records, terms] orthonormal, of the weighted regressors
    errors: Array  #: [records] relative, without the bound

    def interval(self, term: int, confidence: float) -> tuple[float, float]:
        """Two-sided, from 0 up; infinite where one record alone decides."""
        return self._around(self.maps[:, term], self.free[term], float(self.coefficients[term]), confidence)

    def ratio(self, term: int, unit: int, confidence: float) -> tuple[float, float, float]:
        """coefficient over that of `unit` with its interval, by the delta method."""
        value = float(self.coefficients[term] / self.coefficients[unit])
        if not self.free[unit] > 0.0:
            return value, 0.0, np.inf
        free = self.free[term] / self.free[unit]
        return value, *self._around(
            (self.maps[:, term] - free * self.maps[:, unit]) / self.free[unit], free, value, confidence
        )

    def decided_alone(self, term: int) -> bool:
        """Whether the term rests on a record that nothing checks."""
        return self._spread(self.maps[:, term])[1] <= 0.0

    def _around(self, line: Array, free: float, value: float, confidence: float) -> tuple[float, float]:
        variance, freedom = self._spread(line)
        if freedom <= 0.0:
            return 0.0, np.inf
        *_, stdtrit = scipy_parts()
        reach = float(stdtrit(freedom, 0.5 + 0.5 * confidence) * np.sqrt(variance))
        return float(max(0.0, min(free - reach, value))), float(max(free + reach, value))

    def _spread(self, line: Array) -> tuple[float, float]:
        """(HC2 variance, degrees of freedom) of lineᵀ·(seconds/fitted); freedom 0 where one record alone decides."""
        leverage = np.minimum((self.basis * self.basis).sum(axis=1), 1.0)
        alone = leverage > 1.0 - _ALONE
        if np.abs(line[alone]).max(initial=0.0) > _ALONE * np.abs(line).max():
            return np.inf, 0.0
        rest = np.where(alone, 1.0, 1.0 - leverage)
        w = np.where(alone, 0.0, line * line / rest)
        # Satterthwaite's (Σλ)²/Σλ² under equal spreads; off the diagonal (I − H)² is H².
        off = self.basis.T @ (w[:, np.newaxis] * self.basis)
        spread = float((w * w * (rest * rest - leverage * leverage)).sum() + (off * off).sum())
        trace = float((w * rest).sum())
        return float((w * self.errors * self.errors).sum()), trace * trace / spread if spread > 0.0 else 0.0


def fit(design: Design) -> Fit:
    """Of the fixed points from several starts, the one with the least squares of log(time/fit)."""
    peaks = design.highest.max(axis=0)
    even = float(np.median(design.seconds)) / np.where(peaks > 0.0, peaks, 1.0)
    second = np.array([term == ACTIVE or term.endswith(".pair") for term in design.terms])
    # All terms alike decide who is slowest, then tokens, then pairs and experts with load.
    starts = [even, np.where(second, 1e-3 * even, even), np.where(second, even, 1e-3 * even)]
    known: set[bytes] = set()
    found = [end for start in starts if (end := _iterate(design, start, known)) is not None]
    _, coefficients, settled = min(found, key=lambda end: end[0])
    return _infer(design, coefficients, settled)


def _iterate(design: Design, start: Array, known: set[bytes]) -> tuple[float, Array, bool] | None:
    """(loss, coefficients, settled) from one start; None when it comes to a choice of which the end is known."""
    seconds, coefficients, choice = design.seconds, start, b""
    # Weights from the times would let one that is far too short rule the first fit, and so every later one.
    fitted = _within(design.columns(start)[0] @ start, seconds)
    kept: tuple[float, Array] | None = None
    for _ in range(_ITERATIONS):
        regressors, chosen = design.columns(coefficients)
        found = _bounded(regressors / fitted[:, np.newaxis], seconds / fitted)
        change = np.abs(regressors @ (found - coefficients)).max() / seconds.max()
        same, choice = chosen == choice, chosen
        if same and choice in known:
            return None
        coefficients = found
        fitted = _within(regressors @ coefficients, seconds)
        loss = float((np.log(np.maximum(seconds / fitted, 1.0 / MOST_RATIO)) ** 2).sum())
        if same and change <= _SETTLED:
            known.add(choice)
            return loss, coefficients, True
        if kept is None or loss < kept[0]:
            kept = loss, coefficients
    assert kept is not None
    # Weights may creep long after the choice has come to rest, by less than anybody measures.
    settled = design.columns(kept[1])[1] == choice
    return *kept, settled


def _within(fitted: Array, seconds: Array) -> Array:
    """No weight from a fit below the time over MOST_RATIO: a fit of 0 would weigh infinitely."""
    return np.maximum(fitted, seconds / MOST_RATIO)


def _bounded(a: Array, b: Array) -> Array:
    """argmin ‖a·x − b‖ with x ≥ 0, columns scaled, and solved once more where x > 0."""
    nnls, lsq_linear, _ = scipy_parts()
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0.0] = 1.0
    try:
        x = np.asarray(nnls(a / scale, b)[0], dtype=np.float64)
    except RuntimeError:  # too many iterations
        x = np.asarray(lsq_linear(a / scale, b, bounds=(0.0, np.inf), method="bvls").x, dtype=np.float64)
    used = np.flatnonzero(x > 0.0)
    polished = np.linalg.lstsq(a[:, used] / scale[used], b, rcond=None)[0]
    if (polished >= 0.0).all():
        x[used] = polished
    scaled: Array = x / scale
    return scaled


def _infer(design: Design, coefficients: Array, settled: bool) -> Fit:
    regressors, _ = design.columns(coefficients)
    fitted = regressors @ coefficients
    weights = 1.0 / _within(fitted, design.seconds)
    a, b = regressors * weights[:, np.newaxis], design.seconds * weights
    scale = np.linalg.norm(a, axis=0)
    scale[scale == 0.0] = 1.0
    basis, r = np.linalg.qr(a / scale)
    maps = basis @ np.linalg.pinv(r).T
    free = maps.T @ b
    errors = b - (a / scale) @ free
    return Fit(coefficients, free / scale, regressors, fitted, settled, maps / scale, basis, errors)
