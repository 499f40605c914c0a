# SPDX-License-Identifier: Apache-2.0
"""Batches as a rollout makes them: long-tailed lengths, groups of siblings, routes that lean by group."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

COST = 'expert = 1.0\n\n[[stage]]\nname = "full"\nalpha = 60.0\nbeta = 200.0\n'


#: for tests in which the planner works, on machines that are busy
PATIENT: dict[str, Any] = {"deadline_ms": 20_000, "grace_ms": 100_000, "start_ms": 120_000}


@dataclasses.dataclass(frozen=True)
class Batch:
    """`samples` rollouts of `group` per prompt."""

    samples: int = 32
    group: int = 4
    median: float = 24.0
    least: int = 4
    most: int = 90
    layers: int = 3  #: layer 0 is dense
    experts: int = 8
    top_k: int = 2
    vocabulary: int = 50
    seed: int = 1

    def lengths(self) -> list[int]:
        draw = np.random.default_rng(self.seed)
        lengths = np.exp(draw.normal(np.log(self.median), 0.8, self.samples))
        return [int(n) for n in np.clip(lengths, self.least, self.most)]

    def tokens(self) -> list[list[int]]:
        draw = np.random.default_rng(self.seed + 1)
        return [draw.integers(1, self.vocabulary, n).tolist() for n in self.lengths()]

    def response_lengths(self) -> list[int]:
        return [max(1, n - n // 3) for n in self.lengths()]

    def loss_masks(self) -> list[list[int]]:
        """One value per response token; some tokens, such as a tool's, are not trained."""
        draw = np.random.default_rng(self.seed + 2)
        masks = [(draw.random(n) < 0.9).astype(int).tolist() for n in self.response_lengths()]
        for mask in masks:
            mask[-1] = 1
        return masks

    def rewards(self) -> list[float]:
        return [float(x) for x in np.random.default_rng(self.seed + 3).normal(0.0, 1.0, self.samples)]

    def routes(self) -> list[npt.NDArray[np.int32]]:
        """[t - 1, layers, k] of distinct experts, zeros in the dense layer; siblings lean the same way."""
        draw = np.random.default_rng(self.seed + 4)
        groups = -(-self.samples // self.group)
        lean = draw.normal(0.0, 1.5, (groups, self.layers, self.experts))
        made = []
        for i, length in enumerate(self.lengths()):
            scores = lean[i // self.group] + draw.gumbel(size=(length - 1, self.layers, self.experts))
            ids = np.argsort(-scores, axis=-1)[..., : self.top_k].astype(np.int32)
            ids[:, 0] = 0
            made.append(np.ascontiguousarray(ids))
        return made

    def counts(self) -> npt.NDArray[np.int64]:
        """What numpy counts over the layers with experts, [samples, layers - 1, experts]."""
        counted = np.zeros((self.samples, self.layers - 1, self.experts), dtype=np.int64)
        for i, ids in enumerate(self.routes()):
            for layer in range(1, self.layers):
                counted[i, layer - 1] = np.bincount(ids[:, layer].ravel(), minlength=self.experts)
        return counted
