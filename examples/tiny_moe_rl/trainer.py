# SPDX-License-Identifier: Apache-2.0
"""One rank of the trainer: dense weights everywhere, experts in slots, Adam whose moments are spread over the
lanes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from grpo import Policy, Rollout, advantages, token_losses
from model import ExpertSlots, Router, Shape, TinyMoE
from parallel import Grid, SlotDispatcher
from routepack import Placement
from routepack.transfer import PhysicalDispatch, stack_to_logical, stack_to_physical
from routing import Live, Replay

BETA1, BETA2, EPSILON = 0.9, 0.98, 1e-8
Array = npt.NDArray[Any]
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclasses.dataclass(frozen=True)
class Objective:
    """What is minimised. `clip` and `kl` as in `grpo.token_losses`."""

    clip: float = 0.2
    kl: float = 0.0


@dataclasses.dataclass
class Seen:
    """What a rank saw of a step."""

    loss: float  # of all ranks
    token_losses: dict[int, Array]  # of the samples that trained here
    received: Array  # int64 [R, L], routed tokens that this rank's experts got
    ratio: float  # largest |new / old probability - 1| of all ranks


class Trainer:
    def __init__(self, shape: Shape, grid: Grid) -> None:
        self.shape, self.grid = shape, grid
        self.slots = shape.experts // grid.ep
        self.placement = Placement.identity(layers=shape.layers, experts=shape.experts, ranks=grid.ep)
        self.model = TinyMoE(shape)
        self.experts = ExpertSlots(shape, self.slots)
        self.dispatchers = [SlotDispatcher(grid.ep, self.slots, grid.ep_group) for _ in range(shape.layers)]
        self.physical = [PhysicalDispatch(dispatcher, shape.experts) for dispatcher in self.dispatchers]
        self.steps = torch.zeros(1)
        self.dense_moments = {
            name: {moment: torch.zeros_like(weight.data) for moment in MOMENTS}
            for name, weight in self.model.named_parameters()
        }
        # This lane's part of the moments of every slot, [slots, elements / EDP], flat.
        self.expert_moments = {
            name: {moment: torch.zeros(self.slots, weight[0].numel() // grid.edp) for moment in MOMENTS}
            for name, weight in self.experts.named_parameters()
        }

    # One optimizer step: backward() for the gradients of all ranks, update() to take it.

    def backward(self, layout: list[list[list[int]]], rollouts: Sequence[Rollout], objective: Objective) -> Seen:
        """The gradient of the mean over all answer tokens: the same however samples are packed.

        :param layout: [row][slot], the samples; every slot has as many rows
        """
        advantage = advantages(rollouts)
        answer_tokens = sum(len(rollout.logprobs) for rollout in rollouts)
        seen = Seen(0.0, {}, np.zeros((len(layout), self.shape.layers), dtype=np.int64), 0.0)
        for row, cells in enumerate(layout):
            ids = cells[self.grid.rank]
            chosen = [rollouts[i] for i in ids]
            router = Replay([r.routes for r in chosen], self.shape.layers, self.shape.top_k)
            batch = Packed.of([(r.tokens, r.prompt_length) for r in chosen])
            logprobs = self._logprobs(batch, router)
            old = _joined([r.logprobs for r in chosen])
            weights = _joined([np.full(len(r.logprobs), advantage[i], np.float32) for i, r in zip(ids, chosen)])
            reference = None
            if objective.kl:
                reference = _joined([r.reference for r in chosen if r.reference is not None])
            losses = token_losses(logprobs, old, weights, objective.clip, reference, objective.kl)
            (losses.sum() / answer_tokens).backward()
            for i, part in zip(ids, losses.detach().split([len(r.logprobs) for r in chosen])):
                seen.token_losses[i] = part.numpy()
            if len(ids):
                seen.ratio = max(seen.ratio, float(((logprobs.detach() - old).exp() - 1).abs().max()))
            seen.received[row] = [dispatcher.received for dispatcher in self.dispatchers]
        seen.loss = self._sum(sum(part.sum(dtype=np.float64) for part in seen.token_losses.values())) / answer_tokens
        seen.ratio = self._largest(seen.ratio)
        self._reduce()
        return seen

    def backward_on_answers(self, texts: Sequence[tuple[Array, Array]]) -> float:
        """Supervised: (tokens, which of them to learn) of this rank's samples. Routers choose live."""
        router = Live(self.shape.top_k)
        batch = Packed.of([(tokens, 1) for tokens, _ in texts])
        learn = torch.from_numpy(np.concatenate([mask[1:] for _, mask in texts]))
        total = self._sum(float(learn.sum()))
        losses = -self._logprobs(batch, router)[learn]
        tokens = self.shape.layers * len(batch.tokens) * self.grid.ranks
        (losses.sum() / total + 0.01 * router.balance / tokens).backward()
        loss = self._sum(float(losses.detach().sum())) / total
        self._reduce()
        return loss

    @torch.no_grad()
    def update(self, rate: float) -> float:
        """One step of Adam, after the gradient was cut to length 1. @returns its length before"""
        grid = self.grid
        length = self.gradient_length()
        cut = 1.0 / max(1.0, length)
        self.steps += 1
        step = int(self.steps)
        for name, weight in self.model.named_parameters():
            assert weight.grad is not None
            adam(weight.data, weight.grad * cut, self.dense_moments[name], step, rate)
            weight.grad = None
        for name, weight in self.experts.named_parameters():
            assert weight.grad is not None
            by_lane = weight.data.view(self.slots, grid.edp, -1)
            mine = by_lane[:, grid.lane].contiguous()
            adam(mine, weight.grad.view_as(by_lane)[:, grid.lane] * cut, self.expert_moments[name], step, rate)
            parts = [torch.empty_like(mine) for _ in range(grid.edp)]
            dist.all_gather(parts, mine, group=grid.edp_group)
            for lane, part in enumerate(parts):
                by_lane[:, lane] = part
            weight.grad = None
        return length

    def zero_gradients(self) -> None:
        for weight in (*self.model.parameters(), *self.experts.parameters()):
            weight.grad = None

    @torch.no_grad()
    def gradient_length(self) -> float:
        """Over all experts of all ranks; gradients have been summed already."""
        dense = sum(float(w.grad.double().square().sum()) for w in self.model.parameters() if w.grad is not None)
        experts = sum(float(w.grad.double().square().sum()) for w in self.experts.parameters() if w.grad is not None)
        return float((dense + self._sum(experts) / self.grid.edp) ** 0.5)

    def _logprobs(self, batch: Packed, router: Router) -> torch.Tensor:
        """Of the answer tokens of a microbatch, one sample after the other."""
        logits = self.model(batch.tokens[None], batch.positions, batch.visible(), router, self._run_experts)[0]
        scores = logits[batch.answer].log_softmax(-1)
        return scores.gather(1, batch.targets[batch.answer][:, None])[:, 0]

    def _run_experts(
        self, layer: int, hidden: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor
    ) -> torch.Tensor:
        dispatcher = self.dispatchers[layer]
        rows, weights = dispatcher.dispatch_preprocess(hidden, routing_map, probs)
        rows, counts = dispatcher.token_dispatch(rows)
        return dispatcher.combine(self.experts.run(layer, rows, counts), weights)

    @torch.no_grad()
    def _reduce(self) -> None:
        """Sums gradients: those of dense weights over all ranks, those of experts over the lanes."""
        for module, group in ((self.model, None), (self.experts, self.grid.edp_group)):
            weights = list(module.parameters())
            flat = torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).view(-1) for w in weights])
            dist.all_reduce(flat, group=group)
            for weight, part in zip(weights, flat.split([w.numel() for w in weights])):
                weight.grad = part.view_as(weight).clone()

    def _sum(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return float(total)

    def _largest(self, value: float) -> float:
        largest = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return float(largest)

    # Whole states, in the order of experts, for whatever knows no placement.

    @torch.no_grad()
    def gather(self, value: Callable[[torch.nn.Parameter], torch.Tensor | None]) -> dict[str, torch.Tensor]:
        """Weights (or their gradients) of the whole model by logical names, on every rank."""
        state = {name: _of(value, weight).clone() for name, weight in self.model.named_parameters()}
        for name, weight in self.experts.named_parameters():
            mine = _of(value, weight).contiguous()
            parts = [torch.empty_like(mine) for _ in range(self.grid.ep)]
            dist.all_gather(parts, mine, group=self.grid.ep_group)
            state[f"experts.{name}"] = stack_to_logical(torch.cat(parts), self.placement, _layer_of(name))
        return state

    def weights(self) -> dict[str, torch.Tensor]:
        return self.gather(lambda weight: weight.data)

    @torch.no_grad()
    def load_weights(self, state: dict[str, torch.Tensor]) -> None:
        """Takes weights by logical names, this rank its slots. Moments stay."""
        for name, weight in self.model.named_parameters():
            weight.copy_(state[name])
        first = self.grid.ep_rank * self.slots
        for name, weight in self.experts.named_parameters():
            slots = stack_to_physical(state[f"experts.{name}"], self.placement, _layer_of(name))
            weight.copy_(slots[first : first + self.slots])

    # As it lies in memory, in the order of slots: what checkpoints hold, with the placement beside them.

    def memory(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "experts": self.experts.state_dict(),
            "dense_moments": self.dense_moments,
            "expert_moments": self.expert_moments,
            "steps": self.steps,
        }

    @torch.no_grad()
    def load_memory(self, memory: dict[str, Any], placement: Placement) -> None:
        self.model.load_state_dict(memory["model"])
        self.experts.load_state_dict(memory["experts"])
        for mine, saved in (
            (self.dense_moments, memory["dense_moments"]),
            (self.expert_moments, memory["expert_moments"]),
        ):
            for name, moments in mine.items():
                for moment, value in moments.items():
                    value.copy_(saved[name][moment])
        self.steps.copy_(memory["steps"])
        self.placed(placement)

    def forget_moments(self) -> None:
        """As at the first step."""
        for of_all in (self.dense_moments, self.expert_moments):
            for moments in of_all.values():
                for value in moments.values():
                    value.zero_()
        self.steps.zero_()

    def placed(self, placement: Placement) -> None:
        """The slots hold what `placement` says: dispatchers follow."""
        self.placement = placement
        for layer, physical in enumerate(self.physical):
            physical.update(placement.physical_to_logical[layer])


@dataclasses.dataclass
class Packed:
    """Samples one after the other, without padding. Each is forwarded but for its last token."""

    tokens: torch.Tensor  # int64 [T]
    targets: torch.Tensor  # int64 [T], the token after each
    positions: torch.Tensor  # int64 [T], in its sample
    sample: torch.Tensor  # int64 [T]
    answer: torch.Tensor  # bool [T], whether the target is part of an answer

    @classmethod
    def of(cls, samples: Sequence[tuple[Array, int]]) -> Packed:
        """:param samples: (tokens, how many of them are prompt)"""
        nothing = np.zeros(0, dtype=np.int64)
        lengths = [len(tokens) - 1 for tokens, _ in samples]
        positions = [np.arange(length) for length in lengths]
        answers = [place >= prompt - 1 for place, (_, prompt) in zip(positions, samples)]
        return cls(
            torch.from_numpy(np.concatenate([nothing, *(tokens[:-1] for tokens, _ in samples)])),
            torch.from_numpy(np.concatenate([nothing, *(tokens[1:] for tokens, _ in samples)])),
            torch.from_numpy(np.concatenate([nothing, *positions])),
            torch.from_numpy(np.repeat(np.arange(len(samples)), lengths)),
            torch.from_numpy(np.concatenate([nothing.astype(bool), *answers])),
        )

    def visible(self) -> torch.Tensor:
        """bool [T, T]: what comes no later in the same sample."""
        return (self.sample[:, None] == self.sample) & (self.positions[:, None] >= self.positions)


def whole_policy(shape: Shape) -> Policy:
    """A copy of the model for sampling: all experts are here, in their own order. Load it with `load_policy`."""
    experts = ExpertSlots(shape, shape.experts)

    def run_experts(layer: int, hidden: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        dispatcher = SlotDispatcher(1, shape.experts)
        rows, weights = dispatcher.dispatch_preprocess(hidden, routing_map, probs)
        rows, counts = dispatcher.token_dispatch(rows)
        return dispatcher.combine(experts.run(layer, rows, counts), weights)

    return Policy(TinyMoE(shape), experts, run_experts)


@torch.no_grad()
def load_policy(policy: Policy, state: dict[str, torch.Tensor]) -> None:
    """Weight sync: by logical names, so that it does not matter where the trainer keeps its experts."""
    for name, weight in policy.model.named_parameters():
        weight.copy_(state[name])
    for name, weight in policy.experts.named_parameters():
        weight.copy_(state[f"experts.{name}"])


def adam(weight: torch.Tensor, grad: torch.Tensor, moments: dict[str, torch.Tensor], step: int, rate: float) -> None:
    """One step in place, element by element."""
    moments["exp_avg"].lerp_(grad, 1 - BETA1)
    moments["exp_avg_sq"].mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
    scale = (moments["exp_avg_sq"] / (1 - BETA2**step)).sqrt_().add_(EPSILON)
    weight.addcdiv_(moments["exp_avg"], scale, value=-rate / (1 - BETA1**step))


def _joined(parts: Sequence[Array]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.float32), *parts]))


def _of(value: Callable[[torch.nn.Parameter], torch.Tensor | None], weight: torch.nn.Parameter) -> torch.Tensor:
    found = value(weight)
    return torch.zeros_like(weight) if found is None else found


def _layer_of(name: str) -> int:
    return int(name.split(".")[-1])
