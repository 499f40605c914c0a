# SPDX-License-Identifier: Apache-2.0
"""RoutePack's data plane between two optimizer steps: experts change ranks, with all that belongs to them."""

from __future__ import annotations

import torch

from routepack import Placement
from routepack.transfer import (
    ExpertParameter,
    ExpertTensor,
    GridLayout,
    StorePostbox,
    TorchMover,
    TrainerFacts,
    TransferEngine,
)
from trainer import MOMENTS, Trainer

KINDS = {torch.float32: "F32", torch.float64: "F64"}


class ExpertMover:
    """Moves weights and moments of experts between ranks, in place. The methods `tensor`, `gradient` and `facts` are
    what `routepack.transfer` asks of a trainer.

    Weights are fp32 here and so their own masters; with masters they would be one more «sharded» tensor.
    """

    def __init__(self, trainer: Trainer, epoch: int) -> None:
        shape, grid = trainer.shape, trainer.grid
        self.trainer = trainer
        parameters = [ExpertParameter(name, list(size)) for name, size in trainer.experts.sizes.items()]
        kind = KINDS[trainer.experts.weights("fc1", 0).dtype]
        tensors, self._what = [], []
        for index, parameter in enumerate(parameters):
            name, size = parameter.name, parameter.elements
            tensors.append(ExpertTensor(f"{name}.weight", "weight", kind, "replicated", size, index))
            self._what.append((name, "weight"))
            for moment in MOMENTS:
                tensors.append(ExpertTensor(f"{name}.{moment}", "moment", kind, "sharded", size, index))
                self._what.append((name, moment))
        tensors.append(ExpertTensor("step", "step", kind, "equal", 1))
        self._what.append(("", "step"))
        # Lane k holds the k-th part of the moments of every parameter, in every slot.
        parts = [[(k, p.elements // grid.edp) for k in range(grid.edp)] for p in parameters]
        of_slot = [[(k, k * size, (k + 1) * size) for k, size in lanes] for lanes in parts]
        self.layout = GridLayout.explicit_ranges(
            ep=grid.ep,
            edp=grid.edp,
            layers=shape.layers,
            slots=trainer.slots,
            parameters=parameters,
            tensors=tensors,
            ranges=of_slot * (shape.layers * trainer.slots),
        )
        postbox = StorePostbox(grid.store, grid.rank, grid.ranks, "experts")
        mover = TorchMover(self.layout, self, grid.rank)
        self.engine = TransferEngine(postbox, self.layout, mover, trainer.placement, epoch)

    def move(self, to: Placement) -> int:
        """On all ranks, between two optimizer steps. @returns bytes that this rank sent"""
        if (to.physical_to_logical == self.engine.placement.physical_to_logical).all():
            return 0
        outcome = self.engine.move(to, self.engine.epoch + 1)
        self.trainer.placed(self.engine.placement)  # what the slots hold now, however it ended
        if not outcome.complete:
            raise RuntimeError(f"experts did not move: {outcome.failure}; layers are {outcome.layers}")
        return outcome.bytes_sent

    def tensor(self, layer: int, local_slot: int, tensor: int) -> torch.Tensor:
        name, kind = self._what[tensor]
        if kind == "step":
            return self.trainer.steps
        if kind == "weight":
            return self.trainer.experts.weights(name, layer).data[local_slot].view(-1)
        return self.trainer.expert_moments[f"{name}.{layer}"][kind][local_slot]

    def gradient(self, layer: int, local_slot: int, parameter: int) -> torch.Tensor | None:
        grad = self.trainer.experts.weights(("fc1", "fc2")[parameter], layer).grad
        return None if grad is None else grad[local_slot]

    def facts(self) -> TrainerFacts:
        return TrainerFacts()
