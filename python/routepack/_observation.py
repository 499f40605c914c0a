# SPDX-License-Identifier: Apache-2.0
"""What a trainer measured beside what its plan predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._arrays import host_array
from routepack._errors import InvalidInput, RoutePackWarning

__all__ = ["Deviation", "Observation", "RoutePackWarning", "compare_loads"]


@dataclass(frozen=True)
class Deviation:
    """One rank that did not get the tokens that the plan says."""

    row: int
    shard: int
    layer: int  #: by its place in the window
    rank: int
    measured: int
    predicted: int
    share: float  #: (measured - predicted) / mean of the ranks

    def __str__(self) -> str:
        return (
            f"row {self.row}, shard {self.shard}, layer {self.layer}, rank {self.rank}: measured {self.measured} routed "
            f"tokens, predicted {self.predicted} ({self.share:+.1%} of the mean rank)"
        )


@dataclass(frozen=True)
class Observation:
    """How far the measured loads are from the predicted ones."""

    deviations: tuple[Deviation, ...]  #: the largest first, no more than were asked for
    count: int  #: all deviations beyond the tolerance
    largest: float  #: largest share of any rank
    measured_efficiency: float  #: equation 23 of what was measured
    predicted_efficiency: float  #: of what was predicted for the same rows

    @property
    def as_planned(self) -> bool:
        """Whether every rank was within the tolerance."""
        return self.count == 0

    @property
    def metrics(self) -> dict[str, float]:
        """For a dashboard, named like those of a plan."""
        return {
            "routepack/measured_ep_efficiency": self.measured_efficiency,
            "routepack/measured_deviation": self.largest,
            "routepack/measured_deviations": float(self.count),
        }

    def __str__(self) -> str:
        if self.as_planned:
            return f"as planned: no rank is more than {self.largest:.1%} of the mean rank off"
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return f"not as planned: {self.deviations[0]}{more}"


def compare_loads(
    measured: Any,
    predicted: npt.NDArray[np.int64],
    *,
    row: int | None = None,
    tolerance: float = 0.05,
    most: int = 10,
) -> Observation:
    """Compares routed tokens [rows, shards, layers, ranks] with `Plan.rank_loads`.

    With one shard that axis may be left out; with `row` the arrays of that row alone come, [shards, layers, ranks] or
    [layers, ranks].

    :param tolerance: what a rank may be off, as a share of the mean rank of its row, shard and layer
    :param most: deviations to list

    >>> predicted = np.array([[[[50, 50]], [[60, 40]]]])
    >>> seen = compare_loads(np.array([[[[50, 50]], [[40, 60]]]]), predicted)
    >>> print(seen)
    not as planned: row 0, shard 1, layer 0, rank 0: measured 40 routed tokens, predicted 60 (-40.0% of the mean rank) (and 1 more)
    >>> round(seen.measured_efficiency, 3)
    0.833
    """
    if not (math.isfinite(tolerance) and tolerance >= 0) or most < 0:
        raise InvalidInput(f"tolerance, most: found {tolerance} and {most}, wanted 0 or more")
    rows, shards, layers, ranks = predicted.shape
    first = 0
    if row is not None:
        if not 0 <= row < rows:
            raise InvalidInput(f"row: found {row}, wanted 0 to {rows - 1}")
        predicted, first, rows = predicted[row : row + 1], row, 1
    found = host_array(measured, "tokens_per_rank")
    whole = (rows, shards, layers, ranks)
    allowed: list[tuple[int, ...]] = [whole]
    if shards == 1:
        allowed.append((rows, layers, ranks))
    if row is not None:
        allowed.append((shards, layers, ranks))
        if shards == 1:
            allowed.append((layers, ranks))
    if found.shape not in allowed:
        raise InvalidInput(
            f"tokens_per_rank: found shape {list(found.shape)}, wanted {list(whole)}: rows, shards, layers, ranks"
            + ("" if row is None else f" of row {row}")
        )
    real = found.astype(np.int64).reshape(rows, shards, layers, ranks)
    if real.size and real.min() < 0:
        raise InvalidInput(f"tokens_per_rank: found {int(real.min())}, wanted 0 or more")
    mean = np.maximum(predicted.mean(axis=3, keepdims=True), 1.0)
    share = (real - predicted) / mean
    off = np.abs(share)
    beyond = np.flatnonzero(off.ravel() > tolerance)
    worst = beyond[np.argsort(-off.ravel()[beyond], kind="stable")][:most]
    deviations = tuple(_deviation(at, real, predicted, share, first) for at in worst.tolist())
    return Observation(
        deviations=deviations,
        count=int(beyond.size),
        largest=float(off.max(initial=0.0)),
        measured_efficiency=_efficiency(real),
        predicted_efficiency=_efficiency(predicted),
    )


def _deviation(
    at: int, real: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], share: npt.NDArray[np.float64], first: int
) -> Deviation:
    r, g, layer, p = (int(i) for i in np.unravel_index(at, real.shape))
    place = (r, g, layer, p)
    return Deviation(r + first, g, layer, p, int(real[place]), int(predicted[place]), float(share[place]))


def _efficiency(loads: npt.NDArray[np.int64]) -> float:
    peaks = int(loads.max(axis=(1, 3), initial=0).sum())
    return float(loads.mean(axis=3).max(axis=1, initial=0.0).sum()) / peaks if peaks else 1.0
