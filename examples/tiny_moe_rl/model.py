# SPDX-License-Identifier: Apache-2.0
"""A small mixture-of-experts language model. What it needs from its surroundings are two functions: one that chooses
experts (`routing.py`) and one that runs them, here or on other ranks (`parallel.py`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Shape:
    vocabulary: int = 14
    hidden: int = 64
    heads: int = 4
    layers: int = 3  # every one has experts
    experts: int = 16
    top_k: int = 2
    width: int = 64  # of one expert


class Router(Protocol):
    """Chooses experts: where routes are captured and replayed."""

    def choose(self, layer: int, scores: torch.Tensor) -> torch.Tensor:
        """:param scores: [tokens, E], softmaxed @returns int64 [tokens, K]"""


# (layer, hidden [tokens, H], routing map bool [tokens, E], probabilities [tokens, E]) -> [tokens, H]
RunExperts = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
Cache = list[tuple[torch.Tensor, torch.Tensor]]


class TinyMoE(nn.Module):
    """All that is not an expert: the same on every rank."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        visible: torch.Tensor | None,
        router: Router,
        run_experts: RunExperts,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """Logits [B, T, V].

        :param tokens: int64 [B, T]
        :param positions: int64 [T], of each token in its own sample
        :param visible: bool [T, S], what each token may look at; None: everything
        :param cache: keys and values of what came before, per layer; it grows
        """
        x = self.embedding(tokens)
        turn = rotation(positions, self.shape.hidden // self.shape.heads)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, turn, visible, router, run_experts, cache)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.top_k = shape.heads, shape.top_k
        self.attention_norm = nn.RMSNorm(shape.hidden)
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden, bias=False)
        self.proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.moe_norm = nn.RMSNorm(shape.hidden)
        self.router = nn.Linear(shape.hidden, shape.experts, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        layer: int,
        turn: tuple[torch.Tensor, torch.Tensor],
        visible: torch.Tensor | None,
        router: Router,
        run_experts: RunExperts,
        cache: Cache | None,
    ) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        size = hidden // self.heads
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, tokens, 3, self.heads, size).permute(2, 0, 3, 1, 4)
        q, k = rotated(q, turn), rotated(k, turn)
        if cache is not None:
            if layer < len(cache):
                before_k, before_v = (part.expand(batch, -1, -1, -1) for part in cache[layer])
                k, v = torch.cat([before_k, k], dim=2), torch.cat([before_v, v], dim=2)
                cache[layer] = (k, v)
            else:
                cache.append((k, v))
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, tokens, hidden))

        flat = self.moe_norm(x).view(-1, hidden)
        scores = self.router(flat).softmax(-1)
        ids = router.choose(layer, scores)
        # Probabilities come from the live scores, also of replayed routes: gradients reach the router.
        chosen = scores.gather(1, ids)
        chosen = chosen / chosen.sum(-1, keepdim=True)
        routing_map = torch.zeros_like(scores, dtype=torch.bool).scatter(1, ids, True)
        probs = torch.zeros_like(scores).scatter(1, ids, chosen)
        return x + run_experts(layer, flat, routing_map, probs).view_as(x)


class ExpertSlots(nn.Module):
    """Weights of some slots of every layer: all experts of a rollout copy, or those that a rank of the grid holds."""

    def __init__(self, shape: Shape, slots: int) -> None:
        super().__init__()
        sizes = {"fc1": (2 * shape.width, shape.hidden), "fc2": (shape.hidden, shape.width)}
        self.sizes = sizes
        self.fc1 = nn.ParameterList(torch.zeros(slots, *sizes["fc1"]) for _ in range(shape.layers))
        self.fc2 = nn.ParameterList(torch.zeros(slots, *sizes["fc2"]) for _ in range(shape.layers))

    def weights(self, name: str, layer: int) -> torch.Tensor:
        """[slots, …]"""
        found: torch.Tensor = getattr(self, name)[layer]
        return found

    def run(self, layer: int, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """:param rows: [rows, H], those of the first slot first; `counts` of each"""
        parts = []
        for part, fc1, fc2 in zip(rows.split(counts), self.fc1[layer].unbind(), self.fc2[layer].unbind(), strict=True):
            gate, up = (part @ fc1.t()).chunk(2, dim=-1)
            parts.append((F.silu(gate) * up) @ fc2.t())
        return torch.cat(parts)


def rotation(positions: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary position embedding: cosines and sines [T, size / 2]."""
    rates = 1000.0 ** (-torch.arange(0, size, 2) / size)
    angles = positions[:, None] * rates
    return angles.cos(), angles.sin()


def rotated(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = turn
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def first_weights(shape: Shape, seed: int) -> dict[str, torch.Tensor]:
    """Weights of the whole model by name; experts [E, …] in the order of experts."""
    chance = torch.Generator().manual_seed(seed)
    model, experts = TinyMoE(shape), ExpertSlots(shape, shape.experts)
    state = {}
    for name, weight in [*model.named_parameters(), *((f"experts.{n}", w) for n, w in experts.named_parameters())]:
        if weight.dim() == 1:
            state[name] = torch.ones_like(weight.data)
        else:
            spread = 1.0 if name.startswith("embedding") else weight.shape[-1] ** -0.5
            state[name] = torch.randn(weight.shape, generator=chance) * spread
    return state
