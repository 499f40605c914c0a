# SPDX-License-Identifier: Apache-2.0
"""Executions with known times. The times are added up in plain loops, apart from the package's own arithmetic."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

import numpy as np

from routepack.calibrate import DenseStage, Record

STAGES = (DenseStage("sliding", 2), DenseStage("full", 1))
TRUE = {
    "expert.token": 5e-7,
    "expert.active": 4e-5,
    "all_to_all.token": 2e-7,
    "all_to_all.fixed": 1e-4,
    "stage.sliding.token": 6e-6,
    "stage.sliding.pair": 0.0,
    "stage.full.token": 4e-6,
    "stage.full.pair": 3e-9,
    "fixed.row": 4e-3,
    "fixed.step": 0.05,
}
CAP = 2048


@dataclass
class World:
    """Draws records whose times follow `true` with noise of the size of a share."""

    seed: int
    noise: float = 0.0
    true: dict[str, float] = field(default_factory=lambda: dict(TRUE))
    tile: int = 1
    layers: int = 3
    ranks: int = 4
    experts: int = 3  #: of a rank

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def seconds(self, exact: float) -> float:
        return exact * math.exp(self.noise * self.draw.gauss(0.0, 1.0)) if self.noise else exact

    def cell(self) -> tuple[int, int]:
        """(Σt, Σt²)"""
        longest, left, lengths = self.draw.choice([60, 300, CAP]), self.draw.randint(150, CAP), []
        while left > 0:
            lengths.append(min(left, self.draw.randint(longest // 4, longest)))
            left -= lengths[-1]
        return sum(lengths), sum(t * t for t in lengths)

    def loads(self, layers: int, tokens: int, idle: float) -> list[list[list[int]]]:
        """[layers][ranks][experts], at least one expert with load in every layer."""
        found = []
        for _ in range(layers):
            layer = [
                [0 if self.draw.random() < idle else self.draw.randint(1, tokens) for _ in range(self.experts)]
                for _ in range(self.ranks)
            ]
            layer[self.draw.randrange(self.ranks)][0] = self.draw.randint(1, tokens)
            found.append(layer)
        return found

    def dense(self, stage: str, tokens: int, squares: int) -> float:
        return self.true[f"stage.{stage}.token"] * tokens + self.true[f"stage.{stage}.pair"] * squares

    def expert_seconds(self, loads: list[list[list[int]]]) -> float:
        total = 0.0
        for layer in loads:
            slowest = 0.0
            for rank in layer:
                rounded = sum(-(-load // self.tile) * self.tile for load in rank)
                active = sum(load > 0 for load in rank)
                slowest = max(slowest, self.true["expert.token"] * rounded + self.true["expert.active"] * active)
            total += slowest
        return total

    def row(self) -> Record:
        cells = [self.cell() for _ in range(self.ranks)]
        loads = self.loads(self.layers, self.draw.choice([100, 1000, 4000]), 0.3)
        peak = 0.0
        for layer in loads:
            received = [sum(rank) for rank in layer]
            per_token = sum(received) / sum(tokens for tokens, _ in cells)
            peak += max(*received, *(per_token * tokens for tokens, _ in cells))
        exact = self.true["fixed.row"] + self.expert_seconds(loads)
        exact += sum(max(self.dense(stage.name, *cell) for cell in cells) for stage in STAGES)
        exact += self.true["all_to_all.token"] * peak + self.true["all_to_all.fixed"] * self.layers
        return Record(
            "row",
            self.seconds(exact),
            tokens=tuple(float(tokens) for tokens, _ in cells),
            squares=tuple(float(squares) for _, squares in cells),
            expert_loads=np.array(loads, dtype=np.float64),
        )

    def attention(self, stage: DenseStage) -> Record:
        """One layer of a stage."""
        tokens, squares = self.cell()
        seconds = self.seconds(self.dense(stage.name, tokens, squares) / stage.layers)
        return Record("attention", seconds, stage=stage.name, layers=1, tokens=(tokens,), squares=(squares,))

    def expert_kernel(self) -> Record:
        loads = self.loads(1, self.draw.choice([20, 200, 2000, 8000]), self.draw.choice([0.0, 0.6, 0.9]))
        return Record(
            "experts", self.seconds(self.expert_seconds(loads)), expert_loads=np.array(loads, dtype=np.float64)
        )

    def exchange(self) -> Record:
        peak = float(int(10.0 ** self.draw.uniform(1.0, 4.0)))
        exact = self.true["all_to_all.token"] * peak + self.true["all_to_all.fixed"]
        return Record("all_to_all", self.seconds(exact), layers=1, all_to_all_peak=peak)

    def step(self) -> Record:
        return Record("step", self.seconds(self.true["fixed.step"]))

    def records(
        self, *, rows: int = 24, attention: int = 24, experts: int = 30, exchanges: int = 16, steps: int = 10
    ) -> list[Record]:
        found = [self.row() for _ in range(rows)]
        for stage in STAGES:
            found += [self.attention(stage) for _ in range(attention)]
        found += [self.expert_kernel() for _ in range(experts)]
        found += [self.exchange() for _ in range(exchanges)]
        found += [self.step() for _ in range(steps)]
        return [replace(record, where=f"{record.kind} {k}") for k, record in enumerate(found)]


def true_costs(true: dict[str, float], cap: int = CAP) -> dict[str, float]:
    """alpha and beta by their definition: the unit is one routed token on the busiest rank."""
    found = {}
    for stage in STAGES:
        found[f"{stage.name}.alpha"] = true[f"stage.{stage.name}.token"] * cap / (true["expert.token"] * cap)
        found[f"{stage.name}.beta"] = true[f"stage.{stage.name}.pair"] * cap * cap / (true["expert.token"] * cap)
    return found
