# SPDX-License-Identifier: Apache-2.0
"""Moves expert state by gathering all of it and taking what the new placement asks for: slow, and plainly right."""

from __future__ import annotations

import torch
import torch.distributed as dist

from routepack import Placement

from .logical import LogicalState, Mismatch
from .trainer import Trainer


def gather_experts(trainer: Trainer, placement: Placement) -> LogicalState:
    """State of all experts, [L, E, elements] per tensor, from what all ranks' slots hold under `placement`.
    @raises Mismatch when lanes that should agree do not"""
    shape = trainer.shape
    mine = [
        trainer.live(layer, slot, tensor)
        for layer in range(shape.layers)
        for slot in range(shape.slots)
        for tensor in trainer.tensors
    ]
    raw = torch.cat([live.contiguous().view(torch.uint8).view(-1) for live in mine])
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(shape.ranks)]
    dist.all_gather(sizes, torch.tensor([len(raw)]))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(raw)] = raw
    everything = [torch.empty_like(padded) for _ in range(shape.ranks)]
    dist.all_gather(everything, padded)

    state = {
        tensor.name: torch.zeros(shape.layers, shape.experts, tensor.elements, dtype=tensor.dtype)
        for tensor in trainer.tensors
    }
    for rank, given in enumerate(everything):
        p, lane, at = rank % shape.ep, rank // shape.ep, 0
        for layer in range(shape.layers):
            for slot in range(shape.slots):
                e = int(placement.physical_to_logical[layer, p * shape.slots + slot])
                for tensor in trainer.tensors:
                    begin, end = trainer.lane_range(layer, slot, tensor, lane)
                    size = (end - begin) * tensor.dtype.itemsize
                    part = given[at : at + size].clone().view(tensor.dtype)
                    at += size
                    place = state[tensor.name][layer, e, begin:end]
                    if tensor.spread == "replicated" and lane > 0 and not torch.equal(place, part):
                        raise Mismatch(f"rank {rank}: {tensor.name}[{layer}, {e}] differs from that of lane 0")
                    place.copy_(part)
        assert at == int(sizes[rank])
    return state


def gather_dense(trainer: Trainer) -> LogicalState:
    """Dense weights, masters and moments, and what routers keep."""
    state: LogicalState = {"bias": trainer.bias.clone()}
    for kind in trainer.sharded_kinds():
        parts = [torch.empty_like(trainer.dense.exp_avg) for _ in range(trainer.shape.ranks)]
        dist.all_gather(parts, getattr(trainer.dense, kind))
        for i, name in enumerate(trainer.dense_shapes):
            whole = torch.zeros(trainer.weights[name].data.numel())
            for rank, part in enumerate(parts):
                begin, end = trainer.dense.lane_range(i, rank)
                whole[begin:end] = trainer.dense.of_shard(part, i, rank)
            state[f"dense.{name}.{kind}"] = whole
    for name, weight in trainer.weights.items():
        state[f"dense.{name}.weight"] = weight.data.reshape(-1).clone()
    return state


def gather_gradients(trainer: Trainer, placement: Placement) -> LogicalState:
    """Gradients that the last step reduced: [L, E, elements] per parameter of an expert, flat otherwise."""
    shape = trainer.shape
    state: LogicalState = {}
    parts = [torch.empty_like(trainer.dense.reduced) for _ in range(shape.ranks)]
    dist.all_gather(parts, trainer.dense.reduced)
    for i, name in enumerate(trainer.dense_shapes):
        whole = torch.zeros(trainer.weights[name].data.numel())
        for rank, part in enumerate(parts):
            begin, end = trainer.dense.lane_range(i, rank)
            whole[begin:end] = trainer.dense.of_shard(part, i, rank)
        state[f"gradient.dense.{name}"] = whole
    parts = [torch.empty_like(trainer.experts.reduced) for _ in range(shape.ranks)]
    dist.all_gather(parts, trainer.experts.reduced)
    for parameter, (name, size) in enumerate(trainer.expert_shapes.items()):
        stacked = torch.zeros(shape.layers, shape.experts, int(torch.Size(size).numel()))
        for rank, part in enumerate(parts):
            p, lane = rank % shape.ep, rank // shape.ep
            for layer in range(shape.layers):
                for slot in range(shape.slots):
                    e = int(placement.physical_to_logical[layer, p * shape.slots + slot])
                    index = trainer.index(layer, slot, parameter)
                    begin, end = trainer.experts.lane_range(index, lane)
                    stacked[layer, e, begin:end] = trainer.experts.of_shard(part, index, lane)
        state[f"gradient.{name}"] = stacked
    return state


def gather_state(trainer: Trainer, placement: Placement) -> LogicalState:
    return {**gather_dense(trainer), **gather_experts(trainer, placement)}


def permute_state_by_gather(trainer: Trainer, source: Placement, target: Placement) -> None:
    """What `source` describes becomes what `target` asks for, in the trainer's own tensors. All ranks call it."""
    state = gather_experts(trainer, source)
    for layer in range(trainer.shape.layers):
        for slot in range(trainer.shape.slots):
            e = int(target.physical_to_logical[layer, trainer.groups.ep_rank * trainer.shape.slots + slot])
            for tensor in trainer.tensors:
                begin, end = trainer.lane_range(layer, slot, tensor, trainer.groups.lane)
                trainer.live(layer, slot, tensor).copy_(state[tensor.name][layer, e, begin:end])


class OracleMover:
    """The same with the face of a transfer engine. Dispatchers are the caller's to update."""

    def __init__(self, trainer: Trainer, placement: Placement, epoch: int) -> None:
        self.trainer, self.placement, self.epoch = trainer, placement, epoch

    def move(self, to: Placement, epoch: int) -> None:
        permute_state_by_gather(self.trainer, self.placement, to)
        self.placement, self.epoch = to, epoch
