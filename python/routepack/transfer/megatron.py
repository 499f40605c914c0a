# SPDX-License-Identifier: Apache-2.0
"""Experts of a Megatron-Core trainer: finds their state, moves it at a step boundary, and turns the dispatchers.

    experts = attach(model_chunks, optimizer)     # once, on every rank of the stage, before or after a checkpoint load
    ...
    experts.move(plan.placement)                  # between optimizer.zero_grad() and the next forward pass

docs/data-plane.md lists what is refused and why.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from routepack._core import Placement, TrainerFacts, TransferEngine, TransferOutcome
from routepack._errors import Error, InvalidInput
from routepack.transfer.dispatch import PhysicalDispatch
from routepack.transfer.megatron_state import MegatronState, moe_modules, uses_fsdp
from routepack.transfer.postbox import StorePostbox
from routepack.transfer.torch_mover import TorchMover

# Numbers the engines of a name, so that none reads the notes of an earlier one; all ranks count alike.
_engines: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


class MoveFailed(Error):
    """A move did not complete; `outcome` says what every layer is now."""

    def __init__(self, outcome: TransferOutcome) -> None:
        failure = outcome.failure
        where = "" if failure is None else f" in {failure.phase}: {failure.what}"
        super().__init__(f"the move failed{where}")
        self.outcome = outcome


@dataclass(frozen=True)
class _Grid:
    """The ranks that move experts among each other, and how they reach each other."""

    ep_group: Any
    edp_group: Any
    postbox_store: Any
    name: str
    bulk_group: Any
    options: dict[str, Any]

    def everyone(self, mine: Any) -> tuple[list[Any], list[int]]:
        """What every rank of the grid says, and its rank in torch.distributed; in grid order. Collective."""
        row = self._gather((mine, torch.distributed.get_rank()), self.ep_group)
        grid = [entry for lane in self._gather(row, self.edp_group) for entry in lane]
        return [said for said, _ in grid], [number for _, number in grid]

    @staticmethod
    def _gather(mine: Any, group: Any) -> list[Any]:
        everything: list[Any] = [None] * group.size()
        torch.distributed.all_gather_object(everything, mine, group=group)
        return everything


class MegatronExperts:
    """The experts of one pipeline stage, as seen from one rank. Made by `attach`."""

    def __init__(self, state: MegatronState, grid: _Grid, placement: Placement | None, epoch: int) -> None:
        self.state = state
        self._grid = grid
        self._connect(placement, epoch)
        self._dispatches: list[PhysicalDispatch] = []
        try:
            for layer in state.layers:
                dispatcher, experts = layer.module.token_dispatcher, self.layout.experts
                self._dispatches.append(PhysicalDispatch(dispatcher, experts, module=layer.module, device=state.device))
        except InvalidInput:
            for dispatch in self._dispatches:
                dispatch.remove()
            raise
        self._turn_dispatchers()

    def _connect(self, placement: Placement | None, epoch: int) -> None:
        """Agrees on the layout and makes an engine for it. Collective."""
        grid, state = self._grid, self.state
        described, global_ranks = grid.everyone(state.describe())
        ep, edp = grid.ep_group.size(), grid.edp_group.size()
        self.layout = state.layout(ep, edp, described)
        if placement is None:
            placement = Placement.identity(layers=self.layout.layers, experts=self.layout.experts, ranks=ep)
        rank = state.lane * ep + grid.ep_group.rank()
        number = next(_engines[grid.name])
        postbox = StorePostbox(grid.postbox_store, rank, ep * edp, f"{grid.name}/{global_ranks[0]}/{number}")
        mover = TorchMover(self.layout, state, rank, global_ranks=global_ranks, group=grid.bulk_group)
        self._engine = TransferEngine(postbox, self.layout, mover, placement, epoch, **grid.options)

    @property
    def placement(self) -> Placement:
        """What the slots of this stage hold now."""
        return self._engine.placement

    @property
    def epoch(self) -> int:
        return self._engine.epoch

    @property
    def layer_numbers(self) -> list[int]:
        """Megatron's number of each layer of the placement."""
        return [layer.number for layer in self.state.layers]

    def move(self, to: Placement, epoch: int | None = None) -> TransferOutcome:
        """Collective over the stage, at a step boundary: gradients cleared, no forward pass under way.

        Dispatchers follow what the engine says the slots hold, whether it completed or not.

        :param to: a placement of this stage's layers, in the order of `layer_numbers`
        :param epoch: of the new placement; one more than now when there is none
        :raises MoveFailed: saying what every layer is now
        """
        if self._outdated():  # on all ranks: they have stepped as often
            self._connect(self.placement, self.epoch)
        hooked = [chunk for chunk in self.state.chunks if _gathers_late(chunk)]
        for chunk in hooked:  # other lanes' weights are stale until they are gathered
            chunk.disable_forward_pre_hook(param_sync=True)
        try:
            outcome = self._engine.move(to, self.epoch + 1 if epoch is None else epoch)
        finally:
            self._turn_dispatchers()
            for chunk in hooked:
                chunk.enable_forward_pre_hook()
        if not outcome.complete:
            raise MoveFailed(outcome)
        return outcome

    def _outdated(self) -> bool:
        try:
            self.state.refresh()
        except InvalidInput:
            return False  # the engine asks again, and tells the others
        return self.state.outdated()

    def to_identity(self) -> TransferOutcome:
        """Every expert into the slot of its own index, as a canonical checkpoint in buffer order wants it."""
        here = self.placement
        return self.move(Placement.identity(layers=here.layers, experts=here.experts, ranks=here.ranks))

    def assume(self, placement: Placement, epoch: int) -> None:
        """Says what the slots hold, without moving anything: before a checkpoint saved like that is loaded. Collective.

        :param placement: of this stage's layers
        """
        here = self.placement
        found, wanted = ((p.layers, p.experts, p.ranks) for p in (placement, here))
        if found != wanted:
            raise InvalidInput(f"placement: found {list(found)} layers, experts and ranks, wanted {list(wanted)}")
        try:
            self.state.refresh()
        except InvalidInput:
            pass  # `move` asks again, and tells the others
        self._connect(placement, epoch)
        self._turn_dispatchers()

    def show(self, placement: Placement) -> None:
        """Turns the dispatchers to weights that were copied into the slots under another placement, such as those of a
        reference model. What `move` moves is not touched by it; `show(experts.placement)` turns them back.

        :param placement: of this stage's layers
        """
        maps = placement.physical_to_logical
        if len(maps) != len(self._dispatches):
            raise InvalidInput(f"placement: found {len(maps)} layers, wanted {len(self._dispatches)}")
        for row, dispatch in zip(maps, self._dispatches, strict=True):
            dispatch.update(row)

    def detach(self) -> None:
        """Gives the dispatchers their own methods back. The placement must be the identity.

        :raises InvalidInput: when it is not
        """
        here = self.placement
        if here != Placement.identity(layers=here.layers, experts=here.experts, ranks=here.ranks):
            raise InvalidInput("placement: found experts away from their own slots, wanted to_identity() first")
        for dispatch in self._dispatches:
            dispatch.remove()

    def masters_agree(self) -> bool:
        """Whether the weights of every owned range are the rounded masters, as after every optimizer step."""
        for layer, parts in zip(self.state.layers, self.state.parts, strict=True):
            for expert, slot in zip(layer.experts, parts, strict=True):
                for name, part in slot.items():
                    master, weight = part.tensors.get("master"), expert.parameters[name].data.reshape(-1)
                    if master is None or master.dtype != torch.float32:
                        continue
                    mine = weight if part.replicated else weight[self.state.owned(part)]
                    if not torch.equal(mine, master.reshape(-1).to(weight.dtype)):
                        return False
        return True

    def _turn_dispatchers(self) -> None:
        for row, dispatch in zip(self.placement.physical_to_logical, self._dispatches, strict=True):
            dispatch.update(row)


def _gathers_late(chunk: Any) -> bool:
    config = getattr(chunk, "ddp_config", None)
    return bool(getattr(config, "overlap_param_gather", False)) and bool(
        getattr(chunk, "remove_forward_pre_hook_handles", None)
    )


def attach(
    model_chunks: Sequence[Any],
    optimizer: Any,
    *,
    placement: Placement | None = None,
    epoch: int = 0,
    store: Any = None,
    name: str = "experts",
    group: Any = None,
    timeout_ms: int = 60_000,
    **options: Any,
) -> MegatronExperts:
    """Finds the expert state of this rank, agrees with the others on its layout, and wraps the token dispatchers.

    Collective over the ranks of a pipeline stage, after Megatron's groups are made. A stage without experts has nothing
    to attach.

    :param model_chunks: the DistributedDataParallel modules of this rank, as `setup_model_and_optimizer` returns them
    :param optimizer: the MegatronOptimizer, chained or not
    :param placement: what the slots hold already, from a checkpoint; None: the identity
    :param store: a torch.distributed Store for the engine's notes; None: that of the default process group
    :param name: distinguishes engines that share a store
    :param group: the process group for the bulk; None: the default one
    :param options: of `TransferEngine`: route, atomic, staging_limit, read_back
    :raises InvalidInput: for what cannot be moved, with the reason
    """
    from megatron.core import parallel_state

    fully_sharded = any(uses_fsdp(chunk) for chunk in model_chunks)
    TrainerFacts(fully_sharded=fully_sharded).refuse_unmovable()
    buffers = [b for chunk in model_chunks for b in getattr(chunk, "expert_parallel_buffers", None) or []]
    if not buffers:
        raise InvalidInput(
            "model: found no expert_parallel_buffers, wanted chunks wrapped in DistributedDataParallel with "
            "expert_model_parallel_size above 1"
        )
    ep_group, edp_group = parallel_state.get_expert_model_parallel_group(), buffers[0].data_parallel_group
    if store is None:
        store = torch.distributed.distributed_c10d._get_default_store()
    options["timeout_ms"] = timeout_ms
    grid = _Grid(ep_group, edp_group, store, name, group, options)
    state, defect = None, ""
    try:
        state = MegatronState(model_chunks, optimizer, edp_group.rank())
    except InvalidInput as refusal:
        defect = str(refusal)
    defects, numbers = grid.everyone(defect)
    for number, said in zip(numbers, defects, strict=True):
        if said:
            raise InvalidInput(f"rank {number}: {said}")
    assert state is not None
    return MegatronExperts(state, grid, placement, epoch)


__all__ = ["MegatronExperts", "MegatronState", "MoveFailed", "attach", "moe_modules"]
