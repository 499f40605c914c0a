# SPDX-License-Identifier: Apache-2.0
"""RoutePack's engine over torch.distributed, moving the state of the tests' trainer."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist

from routepack import Placement
from routepack.transfer import (
    ExpertParameter,
    ExpertTensor,
    GridLayout,
    MegatronBuffers,
    StorePostbox,
    TorchMover,
    TrainerFacts,
    TransferEngine,
    TransferOutcome,
)

from .trainer import Trainer

TYPES = {torch.float32: "F32", torch.bfloat16: "BF16"}
_numbers = itertools.count()  # every rank makes its engines in the same order


class Refused(Exception):
    """A move that did not complete."""

    def __init__(self, outcome: TransferOutcome) -> None:
        super().__init__(str(outcome.failure))
        self.outcome = outcome


class TrainerState:
    """The trainer's memory, by the numbers of a layout that may leave some tensors out."""

    def __init__(self, trainer: Trainer, tensors: list[int]) -> None:
        self.trainer, self.tensors = trainer, tensors
        self.say = TrainerFacts()

    def tensor(self, layer: int, local_slot: int, tensor: int) -> torch.Tensor:
        return self.trainer.tensor(layer, local_slot, self.tensors[tensor])

    def gradient(self, layer: int, local_slot: int, parameter: int) -> torch.Tensor:
        return self.trainer.gradient(layer, local_slot, parameter)

    def facts(self) -> TrainerFacts:
        return self.say


def layout_of(trainer: Trainer, tensors: list[int]) -> GridLayout:
    """By Megatron's rules, from shapes alone."""
    shape = trainer.shape
    described = [trainer.tensors[i] for i in tensors]
    return GridLayout.megatron(
        ep=shape.ep,
        edp=shape.edp,
        layers=shape.layers,
        slots=shape.slots,
        parameters=[ExpertParameter(name, list(size)) for name, size in shape.expert().items()],
        tensors=[ExpertTensor(t.name, t.role, TYPES[t.dtype], t.spread, t.elements, t.parameter) for t in described],
        buffers=MegatronBuffers(registration="grouped", bucket_elements=shape.bucket_elements),
    )


class EngineMover:
    """The engine with the face of `jobs.Mover`. Dispatchers are the caller's to update.

    :param without: words of tensors that the layout leaves out, for sabotage
    :param options: of `TransferEngine`
    """

    def __init__(
        self, trainer: Trainer, placement: Placement, epoch: int, *, without: tuple[str, ...] = (), **options: Any
    ) -> None:
        kept = [i for i, t in enumerate(trainer.tensors) if t.role not in without]
        self.layout = layout_of(trainer, kept)
        self.state = TrainerState(trainer, kept)
        store = dist.distributed_c10d._get_default_store()
        self.postbox = StorePostbox(store, trainer.rank, trainer.shape.ranks, f"test{next(_numbers)}")
        self.mover = self.make_mover(trainer.rank)
        self.engine = TransferEngine(self.postbox, self.layout, self.mover, placement, epoch, **options)
        self.outcome: TransferOutcome | None = None

    def make_mover(self, rank: int) -> TorchMover:
        return TorchMover(self.layout, self.state, rank)

    def move(self, to: Placement, epoch: int) -> None:
        """:raises Refused: unless it completes"""
        self.outcome = self.engine.move(to, epoch)
        if not self.outcome.complete:
            raise Refused(self.outcome)
