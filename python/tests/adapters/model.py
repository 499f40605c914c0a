# SPDX-License-Identifier: Apache-2.0
"""A small mixture-of-experts language model that replays routes, on packed cells, and the losses of RL frameworks.

Attention stays inside samples, and routes are given, so that what a sample computes does not depend on its neighbours:
as with packed kernels and routing replay.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from .batches import Batch


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, batch: Batch, hidden: int = 16) -> None:
        super().__init__()
        torch.manual_seed(11)
        layers = batch.layers
        self.embedding = torch.nn.Parameter(torch.randn(batch.vocabulary, hidden) * 0.5)
        self.attention = torch.nn.Parameter(torch.randn(layers, 3, hidden, hidden) * 0.2)
        self.router = torch.nn.Parameter(torch.randn(layers, batch.experts, hidden) * 0.3)
        self.experts = torch.nn.Parameter(torch.randn(layers, batch.experts, hidden, hidden) * 0.2)

    def log_probs(self, tokens: Sequence[torch.Tensor], routes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Of each next token, one tensor [t - 1] per sample of a cell; routes are [t - 1 or t, layers, k]."""
        sizes = [len(some) - 1 for some in tokens]
        x = self.embedding[torch.cat([some[:-1] for some in tokens])]
        ids = torch.cat([some[:size].long() for some, size in zip(routes, sizes, strict=True)])
        samples = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        causal = torch.tril(torch.ones(len(x), len(x), dtype=torch.bool)) & (samples[:, None] == samples)
        for layer in range(len(self.attention)):
            q, k, v = (x @ weight.T for weight in self.attention[layer])
            scores = (q @ k.T / x.shape[1] ** 0.5).masked_fill(~causal, float("-inf"))
            x = x + scores.softmax(dim=-1) @ v
            chosen = ids[:, layer]
            probs = (x @ self.router[layer].T).softmax(dim=-1).gather(1, chosen)
            out = torch.einsum("tkij,tj->tki", self.experts[layer][chosen], x)
            x = x + torch.tanh((probs[..., None] * out).sum(dim=1))
        targets = torch.cat([some[1:] for some in tokens])
        logs = F.log_softmax(x @ self.embedding.T, dim=-1).gather(1, targets[:, None]).squeeze(1)
        return list(logs.split(sizes))


def policy_loss(
    model: Model,
    tokens: Sequence[torch.Tensor],
    routes: Sequence[torch.Tensor],
    masks: Sequence[torch.Tensor],
    rewards: Sequence[float],
) -> list[torch.Tensor]:
    """Clipped policy loss per response token of each sample of a cell, not yet summed."""
    made = []
    for logs, mask, reward in zip(model.log_probs(tokens, routes), masks, rewards, strict=True):
        now = logs[len(logs) - len(mask) :]
        ratio = torch.exp(now - now.detach() * 0.98)
        made.append(-torch.minimum(ratio * reward, ratio.clamp(0.8, 1.2) * reward))
    return made


def gradients(model: Model) -> dict[str, torch.Tensor]:
    """Taken out of the model."""
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return found


def agree(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float = 1e-5) -> bool:
    """Within a share of the largest entry of each tensor."""
    return one.keys() == other.keys() and all(
        float((one[name] - other[name]).abs().max()) <= tolerance * float(one[name].abs().max()) for name in one
    )
