# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a test with the whole adapter do: attach, train, move, compare."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from routepack import InvalidInput, Placement
from routepack.transfer import ExpertParameter, ExpertTensor, GridLayout, MegatronBuffers

from .logical import Mismatch, expect_equal
from .megatron_model import HIDDEN, WIDTH, Model, Variant, gather
from .megatron_on_cpu import HostForGpu, patch_communication, patch_for_cpu


@contextlib.contextmanager
def megatron(variant: Variant) -> Iterator[None]:
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state

    patch_for_cpu()
    patch_communication()
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=variant.ep, create_gloo_process_groups=False
    )
    with HostForGpu():
        yield
    parallel_state.destroy_model_parallel()


def random_placement(variant: Variant, number: int) -> Placement:
    chance = np.random.default_rng([7, number])
    maps = [chance.permutation(variant.experts).astype(np.int32) for _ in range(variant.layers)]
    return Placement.from_maps(ranks=variant.ep, physical_to_logical=np.stack(maps))


def train_and_move(rank: int, variant: Variant, steps: int, sabotage: str = "") -> dict[str, Any]:
    """Two models side by side, one moved before every step and back at the end. They agree to the last bit: in
    outputs, gradient norms, weights, masters and moments; and the moves alone change nothing.

    @returns the words of the layout's tensors, and on how many lanes a parameter lies
    """
    from routepack.transfer import megatron as adapter

    if sabotage == "moments":  # those that the optimizer made after the layout was
        adapter.MegatronState.outdated = lambda self: False
    if sabotage == "dispatcher":
        adapter.MegatronExperts._turn_dispatchers = lambda self: None
    if sabotage == "gather":
        adapter._gathers_late = lambda chunk: False
    with megatron(variant):
        fixed, moving = Model(variant), Model(variant)
        fixed.load(3)
        moving.load(3)
        identity = Placement.identity(variant.layers, variant.experts, variant.ep)
        experts = adapter.attach([moving.chunk], moving.optimizer, timeout_ms=60_000)
        addresses = _addresses(moving)
        for step in range(steps):
            for model in (fixed, moving):
                model.zero_grad()
            before = gather(fixed, identity)
            to = random_placement(variant, step)
            outcome = experts.move(to)
            if not outcome.complete or experts.placement != to or experts.epoch != step + 1:
                raise Mismatch(f"step {step}: {outcome}")
            expect_equal(gather(moving, to), before, f"step {step}, moved")
            if not experts.masters_agree():
                raise Mismatch(f"step {step}: masters and weights differ after the move")
            for layer, row in zip(moving.chunk.module.layers, to.physical_to_logical, strict=True):
                if not sabotage and layer.routepack_slot_to_logical.tolist() != row.tolist():
                    raise Mismatch(f"step {step}: a dispatcher was not turned")
            wanted, found = fixed.step(step), moving.step(step)
            expect_equal(found, wanted, f"step {step}, rank {rank}")
            if variant.overlap_gather:  # other lanes' weights are stale until they are gathered: by the next move
                fixed.chunk.start_param_sync(force_sync=True)
            else:
                expect_equal(gather(moving, to), gather(fixed, identity), f"step {step}, trained")
        moving.zero_grad()
        experts.to_identity()
        expect_equal(gather(moving, identity), gather(fixed, identity), "at the end")
        if _addresses(moving) != addresses:
            raise Mismatch("weights were replaced")
        _expect_megatrons_layout(experts.layout, variant)
        experts.detach()
        fixed.zero_grad()
        expect_equal(moving.step(steps), fixed.step(steps), "detached")
        places = itertools.product(range(variant.layers), range(variant.slots), range(2))
        lanes = max(len(experts.layout.lanes_of(*place)) for place in places)
        return {"tensors": [t.name for t in experts.layout.tensors], "lanes": lanes}


def refusals(rank: int, variant: Variant) -> dict[str, str]:
    """What the adapter says to what it cannot move. @returns a line each"""
    from megatron.core.optimizer import ParamKey
    from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer
    from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction

    from routepack.transfer.megatron import MoveFailed, attach

    said: dict[str, str] = {}

    def refuse(what: str, action: Callable[[], Any]) -> None:
        try:
            action()
        except (InvalidInput, MoveFailed) as refusal:
            said[what] = str(refusal)
            if isinstance(refusal, MoveFailed) and set(refusal.outcome.layers) != {"old"}:
                raise Mismatch(f"{what}: {refusal.outcome.layers}") from refusal
        else:
            raise Mismatch(f"{what} was not refused")

    with megatron(variant):
        model = Model(variant)
        model.load(3)
        chunk, optimizer = model.chunk, model.optimizer
        chunk.ddp_config.use_megatron_fsdp = True
        refuse("fsdp", lambda: attach([chunk], optimizer))
        chunk.ddp_config.use_megatron_fsdp = False
        refuse("not wrapped", lambda: attach([chunk.module], optimizer))
        inner = optimizer.chained_optimizers[-1]
        inner.optimizer, kept = HybridDeviceOptimizer.__new__(HybridDeviceOptimizer), inner.optimizer
        refuse("offloaded optimizer", lambda: attach([chunk], optimizer))
        inner.optimizer = kept
        fc1 = chunk.module.layers[0].experts.local_experts[0].linear_fc1
        plain = fc1.weight
        if rank == 1:
            fc1.weight = Quantized(plain.data)
        refuse("quantized", lambda: attach([chunk], optimizer))
        fc1.weight = plain

        other = Model(variant, {ParamKey(name="*local_experts.1.*"): {"wd_mult": 0.0}})
        refuse("hyper-parameters", lambda: attach([other.chunk], other.optimizer))

        experts = attach([chunk], optimizer, timeout_ms=60_000)
        refuse("attached twice", lambda: attach([chunk], optimizer))
        to = random_placement(variant, 0)
        model.zero_grad()
        model.step(0)
        before = gather(model, experts.placement)
        refuse("gradients", lambda: experts.move(to))
        model.zero_grad()
        slots = chunk.module.layers[0].router.weight.new_zeros(4, 2, dtype=torch.int64)
        RouterReplay.set_replay_data([slots] * len(RouterReplay.global_router_replay_instances))
        refuse("replay", lambda: experts.move(to))
        RouterReplay.clear_global_indices()
        RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_BACKWARD)
        refuse("replay backward", lambda: experts.move(to))
        RouterReplay.clear_global_router_replay_action()
        if rank == 1:
            for buffer in chunk.expert_parallel_buffers:
                buffer.param_data_cpu = buffer.param_data.clone()  # else it would be pinned, which needs a GPU
                buffer.offload_to_cpu()
        refuse("offloaded buffers", lambda: experts.move(to))
        if rank == 1:
            for buffer in chunk.expert_parallel_buffers:
                buffer.reload_from_cpu()
        taller = Placement.identity(variant.layers + 1, variant.experts, variant.ep)
        refuse("another shape", lambda: experts.move(taller))
        experts.move(to)
        expect_equal(gather(model, to), before, "put right")
        refuse("detached away from home", experts.detach)
        experts.to_identity()
        experts.detach()
        again = attach([chunk], optimizer, placement=experts.placement, epoch=experts.epoch)
        again.move(to)
        expect_equal(gather(model, to), before, "attached again")
    return said


class Quantized(torch.nn.Parameter):
    """Stands for Transformer Engine's quantized parameters, which need a GPU."""


def without_expert_parallelism(rank: int) -> str:
    from routepack.transfer.megatron import attach

    variant = Variant(ep=1)
    with megatron(variant):
        model = Model(variant)
        try:
            attach([model.chunk], model.optimizer)
        except InvalidInput as refusal:
            return str(refusal)
    return ""


def _addresses(model: Model) -> list[int]:
    return [p.data.data_ptr() for layer in model.experts for slot in layer for p in slot.values()]


def _expect_megatrons_layout(found: GridLayout, variant: Variant) -> None:
    """What was discovered is what RoutePack's own rules give for the same settings."""
    if not variant.distributed:
        return
    parameters = [ExpertParameter("fc1", [2 * WIDTH, HIDDEN]), ExpertParameter("fc2", [HIDDEN, WIDTH])]
    tensors = [ExpertTensor(p.name, "weight", "F32", "replicated", p.elements, i) for i, p in enumerate(parameters)]
    registration = "grouped" if variant.grouped else "sequential"
    buffers = MegatronBuffers(registration=registration, bucket_elements=variant.bucket_elements)
    wanted = GridLayout.megatron(
        ep=variant.ep,
        edp=found.edp,
        layers=variant.layers,
        slots=variant.slots,
        parameters=parameters,
        tensors=tensors,
        buffers=buffers,
    )
    if [p.shape for p in found.parameters] != [p.shape for p in wanted.parameters]:
        raise Mismatch(f"found shapes {[p.shape for p in found.parameters]}")
    for layer in range(variant.layers):
        for slot in range(variant.slots):
            for parameter in range(2):
                ours, theirs = wanted.lanes_of(layer, slot, parameter), found.lanes_of(layer, slot, parameter)
                if ours != theirs:
                    raise Mismatch(f"lanes of {layer}, {slot}, {parameter}: found {theirs}, wanted {ours}")
