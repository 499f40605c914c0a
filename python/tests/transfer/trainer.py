# SPDX-License-Identifier: Apache-2.0
"""The small model trained on an EP × EDP grid: every rank a data-parallel rank, experts in slots, state sharded."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from routepack import Placement
from routepack.transfer import PhysicalDispatch

from . import moe
from .logical import LogicalState
from .moe import Batch, Routing, Shape, Weight
from .optimizer import FlatBuffer


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, send: list[int], receive: list[int], group: Any) -> torch.Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _exchange(rows, send, receive, group)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _exchange(grads[0], ctx.receive, ctx.send, ctx.group), None, None, None


def _exchange(rows: torch.Tensor, send: list[int], receive: list[int], group: Any) -> torch.Tensor:
    raw = rows.contiguous().view(torch.uint8)
    out = torch.empty(sum(receive), raw.shape[1], dtype=torch.uint8)
    dist.all_to_all_single(out, raw, receive, send, group=group)
    return out.view(rows.dtype)


class SlotDispatcher:
    """Sends every token to the ranks of its slots and back. Its columns are slots; it knows no experts. The stages have
    Megatron's names, so that it is wrapped as Megatron's are."""

    def __init__(self, ranks: int, slots: int, group: Any) -> None:
        self.ranks, self.slots, self.group = ranks, slots, group

    def dispatch_preprocess(
        self, hidden_states: torch.Tensor, routing_map: torch.Tensor, probs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows by slot, then by token, and the probability of each."""
        self.tokens = hidden_states.shape[0]
        self.token = routing_map.t().nonzero()[:, 1]
        self.counts = routing_map.sum(0).view(self.ranks, self.slots)
        return hidden_states.index_select(0, self.token), probs.t().masked_select(routing_map.t())

    def token_dispatch(self, rows: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Rows of this rank's slots, by slot, then by source rank, and how many each slot has."""
        arriving = torch.empty_like(self.counts)
        dist.all_to_all_single(arriving, self.counts, group=self.group)
        self.send, self.receive = self.counts.sum(1).tolist(), arriving.sum(1).tolist()
        rows = _AllToAll.apply(rows, self.send, self.receive, self.group)
        slot_of_row = torch.arange(self.slots).repeat(self.ranks).repeat_interleave(arriving.view(-1))
        order = torch.sort(slot_of_row, stable=True).indices
        self.back = torch.sort(order).indices
        return rows.index_select(0, order), arriving.sum(0).tolist()

    def combine(self, rows: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
        rows = _AllToAll.apply(rows.index_select(0, self.back), self.receive, self.send, self.group)
        weighted = rows.float() * probs[:, None]
        return torch.zeros(self.tokens, rows.shape[1]).index_add(0, self.token, weighted).to(rows.dtype)


@dataclasses.dataclass(frozen=True)
class ExpertTensor:
    """One tensor of an expert's state, with the words of RoutePack's grid layouts."""

    name: str
    role: str
    dtype: torch.dtype
    spread: str  # replicated, sharded, equal
    elements: int
    parameter: int | None


def state_tensors(shape: Shape) -> list[ExpertTensor]:
    """The state of an expert of the small model."""
    tensors = []
    for parameter, (name, size) in enumerate(shape.expert().items()):
        elements = _size(size)
        tensors.append(ExpertTensor(f"{name}.weight", "weight", shape.dtype, "replicated", elements, parameter))
        if not shape.exact:
            tensors.append(ExpertTensor(f"{name}.master", "master", torch.float32, "sharded", elements, parameter))
        for moment in ("exp_avg", "exp_avg_sq"):
            tensors.append(ExpertTensor(f"{name}.{moment}", "moment", torch.float32, "sharded", elements, parameter))
    tensors.append(ExpertTensor("amax", "metadata", torch.float32, "replicated", moe.AMAX_LENGTH, None))
    tensors.append(ExpertTensor("step", "step", torch.float32, "equal", 1, None))
    return tensors


class Groups:
    """Communicators of the grid, rank = lane · EP + p. Every process makes all of them, in one order, once."""

    def __init__(self, shape: Shape, rank: int) -> None:
        ep = [list(range(lane * shape.ep, (lane + 1) * shape.ep)) for lane in range(shape.edp)]
        edp = [list(range(p, shape.ranks, shape.ep)) for p in range(shape.ep)]
        made = {tuple(ranks): dist.new_group(ranks) for ranks in ep + edp}
        self.ep_rank, self.lane = rank % shape.ep, rank // shape.ep
        self.ep = made[tuple(ep[self.lane])]
        self.edp = made[tuple(edp[self.ep_rank])]
        self.world = dist.group.WORLD


class Trainer:
    """One rank. Which expert each slot holds is `placement`: whoever moves state says so by `placed`."""

    def __init__(self, shape: Shape, rank: int, groups: Groups) -> None:
        self.shape, self.rank, self.groups = shape, rank, groups
        self.placement = Placement.identity(shape.layers, shape.experts, shape.ep)
        self.dense_shapes, self.expert_shapes = shape.dense(), shape.expert()
        self.dense = self._buffer([_size(s) for s in self.dense_shapes.values()], shape.ranks, rank, groups.world)
        # Registered as TEGroupedMLP does: fc1 of all local experts, then fc2 of all, layer by layer.
        per_layer = [_size(s) for s in self.expert_shapes.values() for _ in range(shape.slots)]
        self.experts = self._buffer(per_layer * shape.layers, shape.edp, groups.lane, groups.edp)
        self.weights = {
            name: self._weight(self.dense, i, self.dense_shapes[name]) for i, name in enumerate(self.dense_shapes)
        }
        self.bias = torch.zeros(shape.layers, shape.experts)
        self.amax = torch.zeros(shape.layers, shape.slots, moe.AMAX_LENGTH)
        self.dispatchers = [SlotDispatcher(shape.ep, shape.slots, groups.ep) for _ in range(shape.layers)]
        self.physical = [PhysicalDispatch(d, shape.experts) for d in self.dispatchers]
        self.tensors = state_tensors(shape)

    def _buffer(self, sizes: list[int], lanes: int, lane: int, group: Any) -> FlatBuffer:
        shape = self.shape
        return FlatBuffer(
            sizes, lanes=lanes, lane=lane, group=group, dtype=shape.dtype, bucket_elements=shape.bucket_elements
        )

    @staticmethod
    def _weight(buffer: FlatBuffer, parameter: int, shape: tuple[int, ...]) -> Weight:
        return Weight(buffer.weight(parameter).view(shape), buffer.gradient(parameter).view(shape))

    def index(self, layer: int, slot: int, parameter: int) -> int:
        """Of an expert's parameter in the expert buffer."""
        return (layer * len(self.expert_shapes) + parameter) * self.shape.slots + slot

    def live(self, layer: int, slot: int, tensor: ExpertTensor) -> torch.Tensor:
        """The trainer's own memory of a tensor in a local slot, flat: what this lane holds of it."""
        if tensor.role == "step":
            return self.experts.step.view(1)
        if tensor.role == "metadata":
            return self.amax[layer, slot]
        assert tensor.parameter is not None
        parameter = self.index(layer, slot, tensor.parameter)
        kind = tensor.name.split(".")[1]
        return self.experts.weight(parameter) if kind == "weight" else self.experts.state(parameter, kind)

    def lane_range(self, layer: int, slot: int, tensor: ExpertTensor, lane: int) -> tuple[int, int]:
        """Elements of the whole tensor that a lane holds."""
        if tensor.spread != "sharded":
            return 0, tensor.elements
        assert tensor.parameter is not None
        return self.experts.lane_range(self.index(layer, slot, tensor.parameter), lane)

    def tensor(self, layer: int, slot: int, tensor: int) -> torch.Tensor:
        """The same by index: the face that `routepack.transfer` asks for."""
        return self.live(layer, slot, self.tensors[tensor])

    def gradient(self, layer: int, slot: int, parameter: int) -> torch.Tensor:
        return self.experts.gradient(self.index(layer, slot, parameter))

    def placed(self, placement: Placement) -> None:
        """The slots hold what `placement` says: dispatchers follow."""
        self.placement = placement
        for layer, physical in enumerate(self.physical):
            physical.update(placement.physical_to_logical[layer])

    def load(self, state: LogicalState) -> None:
        """Takes the state of all experts, this rank its slots and ranges, under the placement of now."""
        for i, name in enumerate(self.dense_shapes):
            self.weights[name].data.view(-1).copy_(state[f"dense.{name}.weight"])
            begin, end = self.dense.lane_range(i, self.rank)
            for kind in self.sharded_kinds():
                self.dense.state(i, kind).copy_(state[f"dense.{name}.{kind}"][begin:end])
        self.bias.copy_(state["bias"])
        self.dense.step.copy_(state["step"][0, 0, 0])
        self.load_experts(state)

    def load_experts(self, state: LogicalState) -> None:
        for layer in range(self.shape.layers):
            for slot in range(self.shape.slots):
                e = int(self.placement.physical_to_logical[layer, self.groups.ep_rank * self.shape.slots + slot])
                for tensor in self.tensors:
                    begin, end = self.lane_range(layer, slot, tensor, self.groups.lane)
                    self.live(layer, slot, tensor).copy_(state[tensor.name][layer, e, begin:end])

    def sharded_kinds(self) -> list[str]:
        return ["exp_avg", "exp_avg_sq"] if self.shape.exact else ["master", "exp_avg", "exp_avg_sq"]

    def step(
        self, samples: list[torch.Tensor], packing: list[list[list[int]]], routes: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """One optimizer step. @returns this rank's part of what it computed, per sample, zero elsewhere

        :param packing: [rank][microbatch], the samples
        :param routes: int64 [N, S, L, K], to replay
        """
        shape = self.shape
        total = sum(len(sample) - 1 for sample in samples)
        seen = {
            "losses": torch.zeros(shape.samples, shape.length),
            "outputs": torch.zeros(shape.samples, shape.length, shape.layers, shape.hidden),
        }
        chosen = torch.zeros(shape.layers, shape.experts, dtype=torch.int64)
        self.step_amax = torch.zeros(shape.layers, shape.slots)
        for ids in packing[self.rank]:
            batch = moe.make_batch(samples, ids)
            at = (torch.tensor(ids)[batch.sample], batch.positions)
            replay = None if routes is None else routes[at]
            done = moe.forward(
                shape, self.weights, self.bias, batch, self._experts, total_tokens=total, replay=replay
            )
            done.objective.backward()
            seen["losses"][at] = done.losses
            seen["outputs"][at] = torch.stack([y.float() for y in done.outputs], dim=1)
            for layer, used in enumerate(done.routes):
                chosen[layer] += torch.bincount(used.reshape(-1), minlength=shape.experts)
        dist.all_reduce(self.step_amax, op=dist.ReduceOp.MAX, group=self.groups.edp)
        self.amax.copy_(torch.cat([self.step_amax[:, :, None], self.amax[:, :, :-1]], dim=2))
        dist.all_reduce(chosen)
        moe.update_bias(self.bias, chosen)
        self.dense.update()
        self.experts.update()
        return seen

    def _experts(self, layer: int, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        dispatcher = self.dispatchers[layer]
        rows, probs = dispatcher.dispatch_preprocess(x, routing.map, routing.probs)
        rows, counts = dispatcher.token_dispatch(rows)
        done = []
        for slot, part in enumerate(rows.split(counts)):
            if len(part):
                seen = part.detach().abs().max().float()
                self.step_amax[layer, slot] = torch.maximum(self.step_amax[layer, slot], seen)
                fc1, fc2 = (
                    self._weight(self.experts, self.index(layer, slot, i), shape)
                    for i, shape in enumerate(self.expert_shapes.values())
                )
                part = moe.expert(part, fc1, fc2)
            done.append(part)
        return dispatcher.combine(torch.cat(done), probs)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Expert weights under Megatron's names, which count the slots of this rank."""
        return {
            f"decoder.layers.{layer}.mlp.experts.linear_{name}.weight{slot}": self._weight(
                self.experts, self.index(layer, slot, i), shape
            ).data
            for layer in range(self.shape.layers)
            for i, (name, shape) in enumerate(self.expert_shapes.items())
            for slot in range(self.shape.slots)
        }

    def physical_state(self) -> dict[str, Any]:
        """This rank's state as it lies in memory, in the order of slots: what bucket-space checkpoints hold."""
        state: dict[str, Any] = {"bias": self.bias, "amax": self.amax}
        for name, buffer in (("dense", self.dense), ("experts", self.experts)):
            for part in ("data", "master", "exp_avg", "exp_avg_sq", "step"):
                state[f"{name}.{part}"] = getattr(buffer, part)
        return {name: value.clone() for name, value in state.items()}

    def load_physical(self, state: dict[str, Any]) -> None:
        self.bias.copy_(state["bias"])
        self.amax.copy_(state["amax"])
        for name, buffer in (("dense", self.dense), ("experts", self.experts)):
            for part in ("data", "master", "exp_avg", "exp_avg_sq", "step"):
                getattr(buffer, part).copy_(state[f"{name}.{part}"])


def _size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
