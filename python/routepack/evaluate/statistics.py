# SPDX-License-Identifier: Apache-2.0
"""Means with spread, and tests of whether two strategies differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import routepack
from routepack.evaluate.toml import HINT


def require_scipy() -> None:
    """:raises InvalidInput: when scipy is not installed"""
    try:
        import scipy.stats  # noqa: F401
    except ImportError:
        raise routepack.InvalidInput(f"evaluate: found no scipy, wanted it for the tests: {HINT}") from None


@dataclass(frozen=True)
class Spread:
    """Of a figure over steps."""

    mean: float
    sd: float  #: of the sample, divided by n - 1; 0 for a single step
    p10: float  #: 10th percentile, linear between the two nearest

    def as_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "sd": self.sd, "p10": self.p10}


def spread(values: Sequence[float]) -> Spread:
    """
    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0])
    Spread(mean=3.0, sd=1.5811388300841898, p10=1.4)
    """
    array = np.asarray(values, dtype=np.float64)
    sd = float(array.std(ddof=1)) if len(array) > 1 else 0.0
    return Spread(float(array.mean()), sd, float(np.percentile(array, 10)))


@dataclass(frozen=True)
class Comparison:
    """Strategy `after` against `before` on the same steps. p values are two-sided; *adjusted*: times the number of
    comparisons in the scenario, at most 1 (Bonferroni). None with fewer than two steps.
    """

    before: str
    after: str
    gain: float  #: mean over mean, minus 1
    paired_gain: float  #: median over steps of after / before, minus 1
    wins: int  #: steps on which after is faster
    losses: int
    mann_whitney_u: float | None
    mann_whitney_p: float | None
    mann_whitney_adjusted: float | None
    wilcoxon_w: float | None
    wilcoxon_p: float | None
    wilcoxon_adjusted: float | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "before": self.before,
            "after": self.after,
            "gain": self.gain,
            "paired_gain": self.paired_gain,
            "wins": self.wins,
            "losses": self.losses,
            "mann_whitney": {
                "u": self.mann_whitney_u,
                "p": self.mann_whitney_p,
                "adjusted": self.mann_whitney_adjusted,
            },
            "wilcoxon": {"w": self.wilcoxon_w, "p": self.wilcoxon_p, "adjusted": self.wilcoxon_adjusted},
        }


def compare(values: Mapping[str, Sequence[float]]) -> list[Comparison]:
    """Every pair of strategies, in order. `values`: throughput of each on the same steps.

    Mann-Whitney takes the two sets of steps as independent, which is what the paper had to do: its strategies were
    separate runs. Here every strategy sees the same steps, so Wilcoxon's signed-rank test of the differences is the
    better one: what steps have in common drops out.
    """
    pairs = list(itertools.combinations(values, 2))
    return [_compare(before, after, values[before], values[after], len(pairs)) for before, after in pairs]


def _compare(before: str, after: str, x: Sequence[float], y: Sequence[float], comparisons: int) -> Comparison:
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    u, p_u = mann_whitney(x, y)
    w, p_w = wilcoxon(x, y)
    return Comparison(
        before=before,
        after=after,
        gain=float(b.mean() / a.mean()) - 1.0,
        paired_gain=float(np.median(b / a)) - 1.0,
        wins=int((b > a).sum()),
        losses=int((b < a).sum()),
        mann_whitney_u=u,
        mann_whitney_p=p_u,
        mann_whitney_adjusted=bonferroni(p_u, comparisons),
        wilcoxon_w=w,
        wilcoxon_p=p_w,
        wilcoxon_adjusted=bonferroni(p_w, comparisons),
    )


def bonferroni(p: float | None, comparisons: int) -> float | None:
    """
    >>> bonferroni(0.01, 6), bonferroni(0.5, 6)
    (0.06, 1.0)
    """
    return None if p is None else min(1.0, p * comparisons)


def mann_whitney(x: Sequence[float], y: Sequence[float]) -> tuple[float | None, float | None]:
    """U of `x` and the two-sided p: exact for few values without ties, else the normal approximation."""
    if len(x) < 2 or len(y) < 2:
        return None, None
    from scipy.stats import mannwhitneyu

    result = mannwhitneyu(x, y, alternative="two-sided", method="auto")
    return float(result.statistic), _number(result.pvalue)


def wilcoxon(x: Sequence[float], y: Sequence[float]) -> tuple[float | None, float | None]:
    """W, the smaller sum of ranks of y - x, and the two-sided p; steps without a difference are left out."""
    if len(x) < 2:
        return None, None
    differences = [b - a for a, b in zip(x, y) if b != a]
    if not differences:
        return 0.0, 1.0
    from scipy.stats import wilcoxon as signed_rank

    result = signed_rank(differences, alternative="two-sided")
    return float(result.statistic), _number(result.pvalue)


def _number(p: float) -> float:
    return 1.0 if math.isnan(p) else float(p)  # all values the same
