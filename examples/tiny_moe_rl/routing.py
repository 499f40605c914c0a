# SPDX-License-Identifier: Apache-2.0
"""Routes: captured when a rollout is sampled, replayed when it is trained (rollout routing replay, R3).

A rollout engine and a trainer do not add numbers in the same order, and a router near a tie then chooses differently.
Replay makes the trainer use the experts that produced the tokens. It also makes the load of every expert known before
training begins: that is what RoutePack plans with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

Routes = npt.NDArray[np.uint8]  # [tokens, L, K]


class Live:
    """Chooses the best of now. Also keeps the loss that evens out the use of experts, for the warm-up."""

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k
        self.balance = torch.zeros(())

    def choose(self, layer: int, scores: torch.Tensor) -> torch.Tensor:
        ids = scores.topk(self.top_k, dim=-1).indices
        used = torch.zeros(scores.shape[1]).index_add(0, ids.reshape(-1), torch.ones(ids.numel()))
        self.balance = self.balance + (used * scores.sum(0)).sum() * scores.shape[1] / max(1, ids.numel())
        return ids


class Capture:
    """Chooses the best of now, and remembers it."""

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k
        self._layers: list[torch.Tensor] = []

    def choose(self, layer: int, scores: torch.Tensor) -> torch.Tensor:
        ids = scores.topk(self.top_k, dim=-1).indices
        self._layers.append(ids)
        return ids

    def take(self, sequences: int) -> npt.NDArray[np.uint8]:
        """[sequences, tokens, L, K] of the forward pass since the last call."""
        routes = torch.stack(self._layers, dim=1).to(torch.uint8)
        self._layers = []
        return routes.view(sequences, -1, *routes.shape[1:]).numpy()


class Replay:
    """Chooses what was chosen. `routes` are those of the samples of a microbatch, one sample after the other."""

    def __init__(self, routes: Sequence[Routes], layers: int, top_k: int) -> None:
        empty: list[Routes] = [np.zeros((0, layers, top_k), dtype=np.uint8)]
        self._ids = torch.from_numpy(np.concatenate(empty + list(routes)).astype(np.int64))

    def choose(self, layer: int, scores: torch.Tensor) -> torch.Tensor:
        return self._ids[:, layer]
