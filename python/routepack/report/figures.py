# SPDX-License-Identifier: Apache-2.0
"""A layout under a placement, priced from scratch in numpy, in the binding order of docs/mathematics.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack.report.problem import Layout, Maps, Problem

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """Loads and costs. R rows, D slots, G shards, L layers, P ranks."""

    name: str
    rows: int
    loads: Ints  #: [R, G, L, P] routed tokens
    demand: Ints  #: [L, P] routed tokens of the whole step, without padding
    tokens: Ints  #: [R, D]
    samples: Ints  #: [R, D]
    work: Floats  #: [R, D] dense work of each cell, summed over the stages
    dense: Floats  #: [R, G] A: the slowest slot of every stage
    expert: Floats  #: [R, G] E: the busiest rank of every layer
    score: tuple[float, float, float]  #: max_shard, total, worst_row
    attention: float
    expert_peak_sum: int
    tail_peak: int
    ep_efficiency: float
    cv_global: float

    @property
    def joint(self) -> Floats:
        """[R, G] J, dense and expert side together."""
        return self.dense + self.expert

    @property
    def peak_over_mean(self) -> Floats:
        """[R, L] tokens of the busiest rank of any shard, over the mean rank of the fullest shard."""
        mean = self.loads.sum(axis=3).max(axis=1) / self.loads.shape[3]
        peak = self.loads.max(axis=(1, 3))
        return over(peak, mean)

    def split(self, sync: str) -> tuple[float, float]:
        """The first component of the score as its dense and its expert share."""
        if sync == "row":
            slowest = self.joint.argmax(axis=1)
            at = (np.arange(self.rows), slowest)
            return float(self.dense[at].sum()), float(self.expert[at].sum())
        g = int(self.joint.sum(axis=0).argmax())
        return float(self.dense[:, g].sum()), float(self.expert[:, g].sum())

    def metrics(self) -> dict[str, float]:
        """The metrics of plan files, by their names there."""
        return {
            "cv_global": self.cv_global,
            "expert_peak_sum": self.expert_peak_sum,
            "tail_peak": self.tail_peak,
            "ep_efficiency": self.ep_efficiency,
            "attention": self.attention,
            "joint": self.score[0],
        }


def evaluate(problem: Problem, layout: Layout, maps: Maps, name: str) -> Figures:
    """Prices `layout` with the experts where `maps` says. Reads every count once: O(N·L·E)."""
    rows, shards = len(layout), problem.shards
    layers, experts = maps.shape
    loads = np.zeros((rows, len(shards), layers, problem.ranks), dtype=np.int64)
    demand = np.zeros((layers, problem.ranks), dtype=np.int64)
    cells = [[np.array(cell, dtype=np.int64) for cell in row] for row in layout]
    tokens = np.array([[problem.lengths[cell].sum() for cell in row] for row in cells])
    squares = np.array([[(problem.lengths[cell] ** 2).sum() for cell in row] for row in cells])
    rounded = -(-problem.lengths // problem.sample_multiple) * problem.sample_multiple
    aligned = np.array([[rounded[cell].sum() for cell in row] for row in cells])
    pads = -(-aligned // problem.cell_multiple) * problem.cell_multiple - tokens

    rates = None if problem.pad_counts is None else _per_rank(problem.pad_counts.astype(np.int64), maps, problem.ranks)
    for r in range(rows):
        for g, members in enumerate(shards):
            real = np.concatenate([cells[r][d] for d in members])
            real = np.sort(real[real < len(problem.counts)])
            summed = problem.counts[real].sum(axis=0, dtype=np.int64)
            loads[r, g] = _per_rank(summed, maps, problem.ranks)
            demand += loads[r, g]
            if rates is not None:
                loads[r, g] += (int(pads[r, members].sum()) * rates + 32768) >> 16

    dense, work = _dense(problem, tokens, squares)
    expert = _expert(problem, loads)
    joint = [[dense[r][g] + expert[r][g] for g in range(len(shards))] for r in range(rows)]
    peak_sum = int(loads.max(axis=(1, 3)).sum())
    full_sum = int(loads.sum(axis=3).max(axis=1).sum())
    return Figures(
        name=name,
        rows=rows,
        loads=loads,
        demand=demand,
        tokens=tokens,
        samples=np.array([[len(cell) for cell in row] for row in cells]),
        work=work,
        dense=np.array(dense),
        expert=np.array(expert),
        score=_score(joint, problem.sync),
        attention=_sum(a for row in dense for a in row),
        expert_peak_sum=peak_sum,
        tail_peak=int(loads.max()),
        ep_efficiency=float(full_sum) / problem.ranks / float(peak_sum) if peak_sum else 1.0,
        cv_global=variation(demand),
    )


def over(values: npt.NDArray[Any], means: npt.NDArray[Any]) -> Floats:
    """`values` over `means`, 1 where there is nothing to divide by."""
    means = np.broadcast_to(means, values.shape)
    ratio = np.ones(values.shape)
    np.divide(values, means, out=ratio, where=means > 0)
    return ratio


def _per_rank(of_experts: Ints, maps: Maps, ranks: int) -> Ints:
    """[L, E] by expert to [L, P] by rank."""
    placed = np.take_along_axis(of_experts, maps, axis=1)
    summed: Ints = placed.reshape(len(maps), ranks, -1).sum(axis=2)
    return summed


def rank_demand(demand: Ints, maps: Maps, ranks: int) -> Ints:
    """[L, P] from the demand [L, E]."""
    return _per_rank(demand, maps, ranks)


def _sum(values: object) -> float:
    """From left to right: Python's sum() and numpy's both round otherwise."""
    total = 0.0
    for value in values:  # type: ignore[attr-defined]
        total += value
    return total


def _dense(problem: Problem, tokens: Ints, squares: Ints) -> tuple[list[list[float]], Floats]:
    c = float(problem.capacity)
    mean_tokens, mean_squares = tokens / c, squares / (c * c)
    stages = [alpha * mean_tokens + beta * mean_squares for _, alpha, beta in problem.stages]
    dense = [
        [_sum(max(0.0, float(stage[r, members].max())) for stage in stages) for members in problem.shards]
        for r in range(len(tokens))
    ]
    return dense, sum(stages, np.zeros(tokens.shape))


def _expert(problem: Problem, loads: Ints) -> list[list[float]]:
    peaks = loads.max(axis=3).tolist()
    c = float(problem.capacity)
    return [[_sum(w * p for w, p in zip(problem.weights, shard)) / c for shard in row] for row in peaks]


def _score(joint: list[list[float]], sync: str) -> tuple[float, float, float]:
    shards = [_sum(row[g] for row in joint) for g in range(len(joint[0]))]
    first = max(0.0, *shards) if sync == "step" else _sum(max(0.0, *row) for row in joint)
    return first, _sum(shards), max(0.0, *(j for row in joint for j in row))


def variation(demand: Ints) -> float:
    """`cv_global`: the mean over layers of sd over mean of the ranks' loads [L, P]."""
    ranks = demand.shape[1]
    of_layers = []
    for layer in demand.tolist():
        if sum(layer) > 0:
            mean = sum(layer) / ranks
            of_layers.append(math.sqrt(_sum((load - mean) * (load - mean) for load in layer) / ranks) / mean)
    return _sum(of_layers) / len(of_layers) if of_layers else 0.0


def least_peaks(demand: Ints, ranks: int) -> list[int]:
    """For each layer of `demand` [L, E]: no placement makes the busiest rank lighter than this."""
    per_rank = demand.shape[1] // ranks
    peaks = []
    for layer in demand.tolist():
        loads = sorted(layer, reverse=True)
        peak = -(-sum(loads) // ranks)
        for j in range(per_rank):
            hot = loads[ranks * j - j : ranks * j + 1]
            peak = max(peak, sum(hot) + sum(loads[len(loads) - (per_rank - j - 1) :]))
        peaks.append(peak)
    return peaks





def too_hot(demand: Ints, ranks: int) -> int:
    """Layers of `demand` [L, E] where the hottest expert beside the coldest ones exceeds the mean rank."""
    per_rank = demand.shape[1] // ranks
    return sum(max(layer) + sum(sorted(layer)[: per_rank - 1]) > -(-sum(layer) // ranks) for layer in demand.tolist())
