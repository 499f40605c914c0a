# SPDX-License-Identifier: Apache-2.0
"""A small mixture-of-experts transformer on bytes of text, written so that weights are views of flat buffers and
gradients are added in fp32 into views of others, as Megatron does."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

TEXT = pathlib.Path(__file__).resolve().parents[3] / "LICENSE"
AUX_WEIGHT = 0.02
AMAX_LENGTH = 4


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes. `exact`: fp32 throughout, for comparisons to the last bit; otherwise bf16 with fp32 masters."""

    exact: bool = False
    layers: int = 2
    hidden: int = 32
    width: int = 32
    heads: int = 2
    experts: int = 16
    top_k: int = 2  # sums of two addends do not depend on their order, so that exact runs can agree
    vocabulary: int = 256
    length: int = 32
    samples: int = 24
    ep: int = 4
    edp: int = 2
    microbatches: int = 2
    bucket_elements: int = 3000  # small, so that buckets and lanes cut through experts

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.exact else torch.bfloat16

    @property
    def slots(self) -> int:
        """Per rank."""
        return self.experts // self.ep

    @property
    def ranks(self) -> int:
        return self.ep * self.edp

    def dense(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters outside experts, in order of registration."""
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (self.vocabulary, self.hidden),
            "positions": (self.length, self.hidden),
        }
        for layer in range(self.layers):
            shapes[f"{layer}.attention_norm"] = (self.hidden,)
            shapes[f"{layer}.qkv"] = (3 * self.hidden, self.hidden)
            shapes[f"{layer}.proj"] = (self.hidden, self.hidden)
            shapes[f"{layer}.moe_norm"] = (self.hidden,)
            shapes[f"{layer}.router"] = (self.experts, self.hidden)
        shapes["norm"] = (self.hidden,)
        shapes["head"] = (self.vocabulary, self.hidden)
        return shapes

    def expert(self) -> dict[str, tuple[int, ...]]:
        """Shapes of an expert's parameters; fc1 is gate above up."""
        return {"fc1": (2 * self.width, self.hidden), "fc2": (self.hidden, self.width)}


@dataclasses.dataclass
class Weight:
    """A parameter: its values in the model's dtype, and where its gradient is added, in fp32."""

    data: torch.Tensor
    grad: torch.Tensor


@dataclasses.dataclass
class Batch:
    """Samples one after another. `sample` counts within the batch; `ids` are those of the step."""

    tokens: torch.Tensor  # int64 [T]
    targets: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T]
    sample: torch.Tensor  # int64 [T]
    lengths: torch.Tensor  # int64 [B]
    ids: list[int]


def read_text() -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(TEXT.read_bytes(), dtype=np.uint8).astype(np.int64))


def samples_of_step(text: torch.Tensor, shape: Shape, seed: int, step: int) -> list[torch.Tensor]:
    """Pieces of text of 8 to `length` + 1 bytes."""
    chance = np.random.default_rng([seed, 1, step])
    lengths = chance.integers(8, shape.length + 1, shape.samples)
    starts = chance.integers(0, len(text) - shape.length - 1, shape.samples)
    return [text[start : start + length + 1] for start, length in zip(starts.tolist(), lengths.tolist())]


def make_batch(samples: list[torch.Tensor], ids: list[int]) -> Batch:
    chosen = [samples[i] for i in ids]
    lengths = torch.tensor([len(s) - 1 for s in chosen])
    return Batch(
        torch.cat([s[:-1] for s in chosen]),
        torch.cat([s[1:] for s in chosen]),
        torch.cat([torch.arange(len(s) - 1) for s in chosen]),
        torch.repeat_interleave(torch.arange(len(ids)), lengths),
        lengths,
        ids,
    )


def packing_of_step(shape: Shape, seed: int, step: int) -> list[list[list[int]]]:
    """[rank][microbatch], the samples: cells of 1 sample or more, as chance has it."""
    chance = np.random.default_rng([seed, 2, step])
    cells = shape.ranks * shape.microbatches
    order = chance.permutation(shape.samples)
    where = np.concatenate([np.arange(cells), chance.integers(0, cells, shape.samples - cells)])
    packed: list[list[list[int]]] = [[[] for _ in range(shape.microbatches)] for _ in range(shape.ranks)]
    for sample, cell in zip(order.tolist(), where.tolist()):
        packed[cell // shape.microbatches][cell % shape.microbatches].append(sample)
    return packed


class _Product(torch.autograd.Function):
    """x · weightᵀ, in fp32 inside; the weight's gradient is added where it belongs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Weight) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weight = weight
        return (x.float() @ weight.data.float().t()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        dy = grads[0].float()
        ctx.weight.grad.add_(dy.t() @ x.float())
        return (dy @ ctx.weight.data.float()).to(x.dtype), None


class _Lookup(torch.autograd.Function):
    """Rows of a table. `anchor` only makes autograd come by."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, ids: torch.Tensor, weight: Weight) -> torch.Tensor:
        ctx.ids, ctx.weight = ids, weight
        return weight.data.index_select(0, ids)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        ctx.weight.grad.index_add_(0, ctx.ids, grads[0].float())
        return torch.zeros(()), None, None


class _Gain(torch.autograd.Function):
    """x, scaled column by column."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Weight) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weight = weight
        return x * weight.data.float()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        ctx.weight.grad.add_((grads[0] * x).sum(0))
        return grads[0] * ctx.weight.data.float(), None


def product(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    return _Product.apply(x, weight)


def norm(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    wide = x.float()
    return _Gain.apply(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5), weight).to(x.dtype)


def attention(x: torch.Tensor, batch: Batch, qkv: Weight, proj: Weight, heads: int) -> torch.Tensor:
    tokens, hidden = x.shape
    q, k, v = product(x, qkv).view(tokens, 3, heads, hidden // heads).permute(1, 2, 0, 3).float()
    scores = (q @ k.transpose(1, 2)) * (hidden // heads) ** -0.5
    visible = (batch.sample[:, None] == batch.sample) & (batch.positions[:, None] >= batch.positions)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return product((weights @ v).transpose(0, 1).reshape(tokens, hidden).to(x.dtype), proj)


def expert(x: torch.Tensor, fc1: Weight, fc2: Weight) -> torch.Tensor:
    gate, up = product(x, fc1).float().chunk(2, dim=-1)
    return product((F.silu(gate) * up).to(x.dtype), fc2)


@dataclasses.dataclass
class Routing:
    """What a router decided, in the order of experts."""

    ids: torch.Tensor  # int64 [T, K]
    map: torch.Tensor  # bool [T, E]
    probs: torch.Tensor  # fp32 [T, E]
    aux: torch.Tensor  # scalar, summed over the samples


def route(
    x: torch.Tensor, batch: Batch, weight: Weight, bias: torch.Tensor, top_k: int, replay: torch.Tensor | None
) -> Routing:
    """Softmax scores; the bias decides about who is chosen and nothing else. The auxiliary loss is one per sample, so
    that no packing changes it.

    :param replay: int64 [T, K], to take the choice from there
    """
    scores = product(x.float(), weight).softmax(-1)
    ids = torch.topk(scores.detach() + bias, top_k, dim=-1).indices if replay is None else replay
    chosen = scores.gather(1, ids)
    chosen = chosen / chosen.sum(-1, keepdim=True)
    routing_map = torch.zeros_like(scores, dtype=torch.bool).scatter(1, ids, True)
    probs = torch.zeros_like(scores).scatter(1, ids, chosen)
    share = torch.zeros(len(batch.ids), scores.shape[1]).index_add(0, batch.sample, routing_map.float())
    mean = torch.zeros(len(batch.ids), scores.shape[1]).index_add(0, batch.sample, scores)
    scale = scores.shape[1] / (top_k * batch.lengths.square()).float()
    return Routing(ids, routing_map, probs, ((share * mean).sum(-1) * scale).sum())


Experts = Callable[[int, torch.Tensor, Routing], torch.Tensor]


@dataclasses.dataclass
class Forward:
    losses: torch.Tensor  # fp32 [T]
    objective: torch.Tensor  # scalar, this batch's part of the step's
    outputs: list[torch.Tensor]  # of the experts, [T, hidden] per layer
    routes: list[torch.Tensor]  # int64 [T, K] per layer


def forward(
    shape: Shape,
    dense: dict[str, Weight],
    bias: torch.Tensor,
    batch: Batch,
    experts: Experts,
    *,
    total_tokens: int,
    replay: torch.Tensor | None = None,
) -> Forward:
    """One microbatch. :param replay: int64 [T, L, K]"""
    anchor = torch.zeros((), requires_grad=True)
    x = _Lookup.apply(anchor, batch.tokens, dense["embedding"])
    x = x + _Lookup.apply(anchor, batch.positions, dense["positions"])
    outputs, routes, aux = [], [], torch.zeros(())
    for layer in range(shape.layers):
        normed = norm(x, dense[f"{layer}.attention_norm"])
        x = x + attention(normed, batch, dense[f"{layer}.qkv"], dense[f"{layer}.proj"], shape.heads)
        normed = norm(x, dense[f"{layer}.moe_norm"])
        given = None if replay is None else replay[:, layer]
        routing = route(normed, batch, dense[f"{layer}.router"], bias[layer], shape.top_k, given)
        y = experts(layer, normed, routing)
        x = x + y
        outputs.append(y.detach())
        routes.append(routing.ids)
        aux = aux + routing.aux
    logits = product(norm(x, dense["norm"]), dense["head"]).float()
    losses = F.cross_entropy(logits, batch.targets, reduction="none")
    objective = losses.sum() / total_tokens + AUX_WEIGHT * aux / (shape.samples * shape.layers)
    return Forward(losses.detach(), objective, outputs, routes)


def update_bias(bias: torch.Tensor, chosen: torch.Tensor) -> None:
    """Expert bias without auxiliary loss: up where less than the mean was chosen."""
    mean = chosen.float().mean(1, keepdim=True)
    bias.add_(0.001 * torch.sign(mean - chosen.float()))
