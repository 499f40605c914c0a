# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a test do. Every function here runs in all processes of a world at once."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from routepack import InvalidInput, Placement
from routepack.transfer import TrainerFacts, load_placement, save_placement, stamp

from . import moe
from .engine import EngineMover, Refused
from .logical import LogicalState, Mismatch, digest, errors, expect_close, expect_equal, initial_state
from .moe import Shape
from .oracle import OracleMover, gather_experts, gather_gradients, gather_state
from .reference import Reference
from .trainer import Groups, Trainer


class Mover(Protocol):
    """Moves expert state of all ranks at a step boundary. All of them make theirs, and call it, together."""

    def move(self, to: Placement, epoch: int) -> None: ...


# Every test of training runs once with each of these.
MOVERS: dict[str, Callable[[Trainer, Placement, int], Mover]] = {"engine": EngineMover, "oracle": OracleMover}

# Largest differences by kind of tensor, in units of the tensor's largest value; none where nothing is said. About ten
# times what 52 steps showed. Sums in another order differ by the last bits of fp32; where activations are bf16, now and
# then by the last bit of bf16, 0.004.
FP32 = {
    "losses": 2e-6,
    "outputs": 5e-6,
    "gradient": 1e-5,
    "weight": 1e-5,
    "exp_avg": 5e-6,
    "exp_avg_sq": 1e-5,
    "amax": 2e-6,
}
BF16 = {
    "losses": 2e-3,
    "outputs": 3e-2,
    "gradient": 2e-2,
    "weight": 8e-3,
    "master": 1e-4,
    "exp_avg": 4e-3,
    "exp_avg_sq": 5e-4,
    "amax": 8e-3,
}

SABOTAGE = ("moments", "dispatcher", "maps")


def random_placement(shape: Shape, seed: int, epoch: int) -> Placement:
    chance = np.random.default_rng([seed, 3, epoch])
    maps = [chance.permutation(shape.experts).astype(np.int32) for _ in range(shape.layers)]
    return Placement.from_maps(ranks=shape.ep, physical_to_logical=np.stack(maps))


def make_mover(name: str, trainer: Trainer, epoch: int = 0, sabotage: str | None = None) -> Mover:
    if sabotage == "moments" and name == "engine":
        return EngineMover(trainer, trainer.placement, epoch, without=("moment",))
    return MOVERS[name](trainer, trainer.placement, epoch)


def move(trainer: Trainer, mover: Mover, to: Placement, epoch: int, sabotage: str | None = None) -> float:
    """Moves state and lets dispatchers follow, but for what sabotage leaves out. @returns seconds"""
    began = time.perf_counter()
    behind = sabotage == "moments" and isinstance(mover, OracleMover)
    with _moments_left_behind(trainer) if behind else contextlib.nullcontext():
        mover.move(to, epoch)
    if sabotage != "dispatcher":
        trainer.placed(to)
    if sabotage == "maps" and trainer.rank == 3:
        other = random_placement(trainer.shape, 99, epoch)
        for layer, physical in enumerate(trainer.physical):
            physical.update(other.physical_to_logical[layer])
    return time.perf_counter() - began


@contextlib.contextmanager
def _moments_left_behind(trainer: Trainer) -> Iterator[None]:
    before = trainer.experts.exp_avg.clone(), trainer.experts.exp_avg_sq.clone()
    yield
    trainer.experts.exp_avg.copy_(before[0])
    trainer.experts.exp_avg_sq.copy_(before[1])


def stepwise(rank: int, shape: Shape, mover: str, steps: int, sabotage: str | None = None) -> dict[str, Any]:
    """Each step begins with the state of the reference, laid out under the placement of the step before; moves to a new
    one; packs anew; replays the reference's routes; and is compared with what the reference did from there.

    @returns largest differences seen, losses, seconds and bytes of a step; of rank 0
    """
    seed = 5
    text = moe.read_text()
    trainer = Trainer(shape, rank, Groups(shape, rank))
    state = initial_state(shape, seed)
    reference = Reference(shape, state) if rank == 0 else None
    data_plane = make_mover(mover, trainer, sabotage=sabotage)
    tolerance = FP32 if shape.exact else BF16
    routes = torch.zeros(shape.samples, shape.length, shape.layers, shape.top_k, dtype=torch.int64)
    report: dict[str, Any] = {"losses": [], "move_s": 0.0, "step_s": 0.0, "errors": {}}
    for step in range(steps):
        samples = moe.samples_of_step(text, shape, seed, step)
        wanted: LogicalState = {}
        if reference is not None:
            state = {name: value.clone() for name, value in reference.state.items()}
            seen, routes, wanted = reference.step(samples)
            wanted = {**seen, **wanted, **reference.state}
        state, routes = _broadcast(state, routes)
        trainer.load(state)
        target = random_placement(shape, seed, step)
        dist.barrier()  # so that nobody's move waits for another's load
        report["move_s"] += move(trainer, data_plane, target, step + 1, sabotage) / steps
        _add_outcome(report, data_plane, steps)
        began = time.perf_counter()
        found: LogicalState = trainer.step(samples, moe.packing_of_step(shape, seed, step), routes)
        report["step_s"] += (time.perf_counter() - began) / steps
        for value in found.values():
            dist.all_reduce(value)
        found = {**found, **gather_gradients(trainer, target), **gather_state(trainer, target)}
        if reference is not None:
            expect_close(found, wanted, f"step {step}", tolerance)
            for kind, error in errors(found, wanted).items():
                report["errors"][kind] = max(report["errors"].get(kind, 0.0), error)
            report["losses"].append(float(wanted["losses"].sum() / sum(len(sample) - 1 for sample in samples)))
    return report


def _add_outcome(report: dict[str, Any], mover: Mover, steps: int) -> None:
    """What the move of a step sent, all ranks together, and how long its phases took here."""
    outcome = getattr(mover, "outcome", None)
    if outcome is None:
        return
    sums = torch.tensor([outcome.bytes_sent, outcome.bytes_local, outcome.staging_bytes], dtype=torch.float64)
    dist.all_reduce(sums)
    for name, value in zip(("sent_bytes", "local_bytes", "staging_bytes"), sums.tolist(), strict=True):
        report[name] = report.get(name, 0.0) + value / steps
    for phase, seconds in outcome.seconds.items():
        report[f"{phase}_s"] = report.get(f"{phase}_s", 0.0) + seconds / steps


def _broadcast(state: LogicalState, routes: torch.Tensor) -> tuple[LogicalState, torch.Tensor]:
    """What rank 0 has, on all ranks; shapes are equal everywhere."""
    everything = {**state, "routes": routes}
    raw = torch.cat([value.contiguous().view(-1).view(torch.uint8) for value in everything.values()])
    dist.broadcast(raw, 0)
    at = 0
    for name, value in everything.items():
        size = value.numel() * value.element_size()
        everything[name] = raw[at : at + size].clone().view(value.dtype).view(value.shape)
        at += size
    routes = everything.pop("routes")
    return everything, routes


def free_run(rank: int, shape: Shape, mover: str, steps: int, sabotage: str | None = None) -> dict[str, Any]:
    """Two trainings side by side, on one packing: one stays with the identity, one has new placements at every step.
    What they compute is equal to the last bit, every loss, output and route of every step, and all state.

    @returns losses of the steps, digest of the last state
    """
    seed = 6
    text = moe.read_text()
    groups = Groups(shape, rank)
    fixed, moving = Trainer(shape, rank, groups), Trainer(shape, rank, groups)
    state = initial_state(shape, seed)
    fixed.load(state)
    moving.load(state)
    data_plane = make_mover(mover, moving, sabotage=sabotage)
    losses = []
    for step in range(steps):
        samples = moe.samples_of_step(text, shape, seed, step)
        packing = moe.packing_of_step(shape, seed, step)
        target = random_placement(shape, seed, step)
        move(moving, data_plane, target, step + 1, sabotage)
        wanted, found = fixed.step(samples, packing), moving.step(samples, packing)
        expect_equal(found, wanted, f"step {step}, rank {rank}")
        losses.append(float(wanted["losses"].sum()))
        if step % 5 == 4 or step == steps - 1 or sabotage:
            wanted, found = gather_state(fixed, fixed.placement), gather_state(moving, target)
            expect_equal(found, wanted, f"step {step}")
            expect_equal(gather_gradients(moving, target), gather_gradients(fixed, fixed.placement), f"step {step}")
    return {"losses": losses, "digest": digest(found)}


def _checkpoint_file(folder: str, rank: int) -> pathlib.Path:
    return pathlib.Path(folder) / f"rank{rank}.pt"


def train_and_save(rank: int, shape: Shape, mover: str, steps: int, save_at: int, folder: str) -> str:
    """Trains under changing placements and saves in between, in the order of slots. @returns digest of the last state"""
    trainer = Trainer(shape, rank, Groups(shape, rank))
    trainer.load(initial_state(shape, 7))
    data_plane = make_mover(mover, trainer)

    def save(step: int) -> None:
        if step != save_at:
            return
        kept = {"state": trainer.physical_state(), "placement": stamp(trainer.placement, step)}
        torch.save(kept, _checkpoint_file(folder, rank))
        if rank == 0:
            save_placement(folder, trainer.placement, step)

    return _train(trainer, data_plane, 0, steps, seed=7, save=save)


def resume(
    rank: int, shape: Shape, mover: str, steps: int, begin: int, folder: str, forget_placement: bool = False
) -> str:
    """Goes on from there under other placements. @returns digest of the last state"""
    trainer = Trainer(shape, rank, Groups(shape, rank))
    kept = torch.load(_checkpoint_file(folder, rank))
    if not forget_placement:
        saved = load_placement(folder, stamped=kept["placement"], shape=trainer.placement)
        assert saved.epoch == begin
        trainer.placed(saved.placement)
    trainer.load_physical(kept["state"])
    data_plane = make_mover(mover, trainer, begin)
    return _train(trainer, data_plane, begin, steps, seed=8)


def _train(
    trainer: Trainer, data_plane: Mover, begin: int, end: int, seed: int, save: Callable[[int], None] = lambda step: None
) -> str:
    text = moe.read_text()
    for step in range(begin, end):
        save(step)
        move(trainer, data_plane, random_placement(trainer.shape, seed, step), step + 1)
        trainer.step(moe.samples_of_step(text, trainer.shape, 7, step), moe.packing_of_step(trainer.shape, 7, step))
    return digest(gather_state(trainer, trainer.placement))


def trainer_of_random_state(shape: Shape, rank: int) -> tuple[Trainer, dict[str, torch.Tensor]]:
    """And that state, all of it. No two tensors agree, so that a byte in the wrong place shows."""
    trainer = Trainer(shape, rank, Groups(shape, rank))
    state = initial_state(shape, 1)
    chance = torch.Generator().manual_seed(2)
    for name, value in state.items():
        if name not in ("step", "bias"):
            value.copy_(torch.randn(value.shape, generator=chance))
    trainer.load(state)
    return trainer, state


def moves_only(rank: int, shape: Shape, mover: str, moves: int) -> list[int]:
    """Random state, so that no two tensors agree, through random placements and back.

    The memory of every rank is what the oracle leaves there, bit by bit, gaps between parameters included.

    @returns how many elements of every sharded tensor this rank holds
    """
    trainer, state = trainer_of_random_state(shape, rank)
    twin = Trainer(shape, rank, trainer.groups)
    twin.load(state)
    addresses = _addresses(trainer)
    data_plane, oracle = make_mover(mover, trainer), OracleMover(twin, twin.placement, 0)
    identity = trainer.placement
    for epoch, to in enumerate([*(random_placement(shape, 4, i) for i in range(moves)), identity], start=1):
        data_plane.move(to, epoch)
        expect_equal(gather_state(trainer, to), state, f"move {epoch}")
        oracle.move(to, epoch)
        expect_equal(trainer.physical_state(), twin.physical_state(), f"move {epoch}, rank {rank}, the oracle")
    if _addresses(trainer) != addresses:
        raise Mismatch(f"rank {rank}: tensors were replaced")
    return [
        trainer.live(layer, slot, tensor).numel()
        for layer in range(shape.layers)
        for slot in range(shape.slots)
        for tensor in trainer.tensors
        if tensor.spread == "sharded"
    ]


def refusals(rank: int, shape: Shape) -> dict[str, str]:
    """What one rank does wrong is refused by all of them, with nothing moved; put right, the same engines move.

    @returns what was said of each
    """
    trainer = Trainer(shape, rank, Groups(shape, rank))
    state = initial_state(shape, 1)
    trainer.load(state)
    to, other = random_placement(shape, 4, 0), random_placement(shape, 4, 1)
    said = {}

    def refuse(what: str, mover: EngineMover, target: Placement, epoch: int) -> None:
        try:
            mover.move(target, epoch)
        except Refused as refused:
            said[what] = str(refused)
            if refused.outcome.failure.phase != "prepare" or set(refused.outcome.layers) != {"old"}:
                raise Mismatch(f"{what}: {refused.outcome.failure}, {refused.outcome.layers}") from refused
        else:
            raise Mismatch(f"{what} was not refused")
        expect_equal(gather_experts(trainer, trainer.placement), experts, what)

    experts = gather_experts(trainer, trainer.placement)
    # A slot that this rank keeps as it is may have a gradient; one that gives its expert away may not.
    first = shape.slots * trainer.groups.ep_rank
    moved = next(s for s in range(shape.slots) if int(to.physical_to_logical[0, first + s]) != first + s)

    mover = EngineMover(trainer, trainer.placement, 5)
    if rank == 2:
        trainer.gradient(0, moved, 1)[3] = 1e-30
    refuse("a gradient", mover, to, 6)
    trainer.gradient(0, moved, 1).zero_()
    if rank == 3:
        trainer.experts.step += 1
    refuse("steps", mover, to, 6)
    if rank == 3:
        trainer.experts.step -= 1
    refuse("the epoch asked for", mover, to, 7 if rank == 1 else 6)
    refuse("maps", mover, other if rank == 3 else to, 6)
    if rank == 1:
        mover.state.say = TrainerFacts(offloaded=True)
    refuse("offloaded", mover, to, 6)
    mover.state.say = TrainerFacts()
    refuse("a stale epoch", EngineMover(trainer, trainer.placement, 4 if rank == 2 else 5), to, 6)
    without = ("moment",) if rank == 0 else ()
    refuse("the layout", EngineMover(trainer, trainer.placement, 5, without=without), to, 6)
    stale = EngineMover(trainer, other if rank == 1 else trainer.placement, 5)
    refuse("the placement before", stale, to, 6)
    limited = EngineMover(trainer, trainer.placement, 5, staging_limit=100 if rank == 2 else None)
    refuse("staging", limited, to, 6)

    mover.move(to, 6)
    expect_equal(gather_experts(trainer, to), experts, "put right")
    return said


def _addresses(trainer: Trainer) -> list[int]:
    shape = trainer.shape
    where = [(layer, slot, t) for layer in range(shape.layers) for slot in range(shape.slots) for t in trainer.tensors]
    return [trainer.live(*at).data_ptr() for at in where]


def exported(rank: int, shape: Shape, mover: str) -> dict[str, Any]:
    """Weights under Megatron's names, from where a move has put them, and those of the model in logical order."""
    trainer = Trainer(shape, rank, Groups(shape, rank))
    state = initial_state(shape, 3)
    trainer.load(state)
    to = random_placement(shape, 11, 0)
    move(trainer, make_mover(mover, trainer), to, 1)
    return {
        "ep_rank": trainer.groups.ep_rank,
        "maps": to.physical_to_logical,
        "physical": {name: value.float().numpy().copy() for name, value in trainer.state_dict().items()},
        "logical": {name: state[f"{name}.weight"].float().numpy() for name in trainer.expert_shapes},
    }


def failing_write(rank: int, shape: Shape) -> dict[str, Any]:
    """A rank whose write of one tensor fails whenever it is tried: its layer is torn, and everybody knows."""
    trainer = Trainer(shape, rank, Groups(shape, rank))
    trainer.load(initial_state(shape, 1))
    mover = EngineMover(trainer, trainer.placement, 0, timeout_ms=10_000)
    to = random_placement(shape, 4, 0)
    if rank == 1:
        commit = mover.mover.commit

        def fail(layer: int, copy: int, read_back: bool) -> None:
            if layer == 1:
                raise OSError("no such memory")
            commit(layer, copy, read_back)

        mover.mover.commit = fail  # type: ignore[method-assign]
    outcome = mover.engine.move(to, 1)
    try:
        mover.engine.move(to, 2)
    except InvalidInput as refusal:
        spent = str(refusal)
    assert outcome.failure is not None
    return {
        "complete": outcome.complete,
        "layers": outcome.layers,
        "what": outcome.failure.what,
        "phase": outcome.failure.phase,
        "spent": spent,
    }
