# SPDX-License-Identifier: Apache-2.0
"""A rank that dies in a move, as a host does that loses power, and what the others make of it. Every process ends by
itself; survivors leave a report in a file."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import time
from typing import Any

import torch
import torch.distributed as dist

from routepack.transfer import TorchMover, schedule_moves

from .engine import EngineMover
from .jobs import random_placement, trainer_of_random_state
from .moe import Shape
from .trainer import Trainer

SMALL = Shape(ep=2, edp=2, experts=8)
VICTIM = 1
SEND, RECEIVE = 1, 2


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingMover(TorchMover):
    """Dies as it is about to start its n-th message, or to write its n-th piece."""

    fatal_message = fatal_write = -1
    messages = writes = 0

    def _begin(self, operations: list[tuple[int, Any]]) -> None:
        left = self.fatal_message - self.messages
        self.messages += len(operations)
        if 0 <= left < len(operations):
            if left:
                for work in dist.batch_isend_irecv([operation for _, operation in operations[:left]]):
                    if left > len(operations) // 2:
                        work.wait()  # what has gone out has arrived
            die()
        super()._begin(operations)

    def commit(self, layer: int, copy: int, read_back: bool) -> None:
        if self.writes == self.fatal_write:
            die()
        self.writes += 1
        super().commit(layer, copy, read_back)


class DyingEngine(EngineMover):
    def make_mover(self, rank: int) -> DyingMover:
        return DyingMover(self.layout, self.state, rank)


def move_with_a_death(rank: int, moment: str, atomic: str, timeout_ms: int, folder: str) -> None:
    shape = SMALL
    trainer, state = trainer_of_random_state(shape, rank)
    now, to = trainer.placement, random_placement(shape, 4, 0)
    mover = DyingEngine(trainer, now, 0, timeout_ms=timeout_ms, atomic=atomic)
    if rank == VICTIM:
        copies = [copy for layer in schedule_moves(mover.layout, now, to, rank) for copy in layer.copies]
        messages = sum(copy["kind"] in (SEND, RECEIVE) for copy in copies)
        writes = sum(bool(copy["to_final"]) for copy in copies)
        assert isinstance(mover.mover, DyingMover) and messages > 10 and writes > 10
        place, kind = moment.split()
        number = {"first": 0, "middle": 1, "last": 2}[place]
        if kind == "message":
            mover.mover.fatal_message = [0, messages // 2, messages - 1][number]
        else:
            mover.mover.fatal_write = [0, writes // 2, writes - 1][number]
    dist.barrier()
    began = time.monotonic()
    outcome = mover.engine.move(to, 1)
    report = {
        "seconds": time.monotonic() - began,
        "complete": outcome.complete,
        "layers": outcome.layers,
        "silent": outcome.silent,
        "phase": outcome.failure.phase if outcome.failure else "",
        "rank": outcome.failure.rank if outcome.failure else -1,
        "what": outcome.failure.what if outcome.failure else "",
        "epoch": mover.engine.epoch,
        "wrong": _wrong(trainer, state, mover),
        "refuses": _refusal(mover, to),
    }
    path = pathlib.Path(folder) / f"rank{rank}.json"
    path.with_suffix(".part").write_text(json.dumps(report), encoding="utf-8")
    path.with_suffix(".part").rename(path)
    os._exit(0)  # gloo's own clean-up would wait for the dead


def _wrong(trainer: Trainer, state: dict[str, torch.Tensor], mover: EngineMover) -> list[str]:
    """Tensors of this rank that are not what the engine says they are."""
    shape, says = trainer.shape, mover.engine.placement
    wrong = []
    for layer in range(shape.layers):
        for slot in range(shape.slots):
            e = int(says.physical_to_logical[layer, trainer.groups.ep_rank * shape.slots + slot])
            for tensor in trainer.tensors:
                begin, end = trainer.lane_range(layer, slot, tensor, trainer.groups.lane)
                if not torch.equal(trainer.live(layer, slot, tensor), state[tensor.name][layer, e, begin:end]):
                    wrong.append(f"layer {layer}, slot {slot}, {tensor.name} is not that of expert {e}")
    return wrong


def _refusal(mover: EngineMover, to: Any) -> str:
    try:
        mover.engine.move(to, 2)
    except Exception as error:
        return str(error)
    return ""
