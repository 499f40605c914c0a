# SPDX-License-Identifier: Apache-2.0
"""Experts of a Megatron-based worker: where they are, and all that has to know it. Needs torch and Megatron-Core.

    experts = attach(model_chunks, optimizer)      # once, on every rank, after setup_model_and_optimizer
    experts.move(placement, epoch)                 # at a step boundary

Adapters do both. This is what they share: moves by epoch, names for export, placements of kept copies of the weights,
and checkpoints. `routepack.transfer.megatron` does the moving itself.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed

from routepack._core import Placement
from routepack._errors import Error, InvalidInput
from routepack.adapters import _dist_checkpoint
from routepack.adapters._placements import home_of, shape_of
from routepack.transfer import megatron as moving
from routepack.transfer import relabel
from routepack.transfer.checkpoint import (
    PlacementMismatch,
    SavedPlacement,
    load_placement,
    placement_path,
    save_placement,
    stamp,
)
from routepack.transfer.names import ExpertNames

_LOG = logging.getLogger("routepack")
_ALL: list[weakref.ref[WorkerExperts]] = []


class NotReady(InvalidInput):
    """The weights in the slots are those of a kept copy under another placement; training would mix experts up."""


class OtherStageFailed(Error):
    """Experts of another pipeline stage did not move."""

    def __init__(self, text: str, usable: bool) -> None:
        super().__init__(f"on another pipeline stage: {text}")
        self.text, self.usable = text, usable

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.text, self.usable)  # to a driver in another process


class WorkerExperts:
    """The experts of a model as one rank of its workers sees them. Made by `attach`.

    Placements are of the whole model: all MoE layers of all pipeline stages, in order, as plans have them. Two of them
    matter: `placement` is where the state in training is, `shown` is that of the weights now in the slots. They differ
    only while a copy of other weights, such as a reference model's, is there.
    """

    def __init__(
        self,
        stage: moving.MegatronExperts | None,
        numbers: Sequence[int],
        pipeline: Any,
        chunks: Sequence[Any],
        optimizer: Any,
        placement: Placement,
        epoch: int,
    ) -> None:
        self._stage = stage
        self._pipeline = pipeline
        self._chunks = list(chunks)
        self._optimizer = optimizer
        self.layer_numbers = list(numbers)  #: Megatron's number of every layer of a placement, counted from 1
        self._placement = self._shown = placement
        self._epoch = epoch
        self._names: ExpertNames | None = None
        self._removers: list[Callable[[], None]] = []
        self._listeners: list[Callable[[Placement, Placement], None]] = []
        if stage is not None:
            for row, layer in zip(self._rows(), stage.state.layers, strict=True):
                remove = relabel.install(layer.module.experts, functools.partial(self._table, row))
                self._removers.append(remove)
        self._guard_step()
        _dist_checkpoint.install(weakref.ref(self))
        _ALL.append(weakref.ref(self))

    @property
    def placement(self) -> Placement:
        """Where weights, masters and moments in training are."""
        return self._placement

    @property
    def shown(self) -> Placement:
        """Under which placement the weights now in the slots are."""
        return self._shown

    @property
    def epoch(self) -> int:
        """Of the last move, also of one that failed."""
        return self._epoch

    @property
    def moved(self) -> bool:
        """Whether any slot has, now, another expert than that of its own number."""
        here = self._shown
        return here != home_of(here)

    def has(self, module: Any) -> bool:
        """Whether a module is one of this model's, on this rank."""
        return any(module is one for chunk in self._chunks for one in _inside(chunk).modules())

    @property
    def names(self) -> ExpertNames:
        """Renames between slots and experts, for the weights now in the slots. Names count layers from 0."""
        if self._names is None or self._names.placement is not self._shown:
            self._names = ExpertNames(self._shown, layers=[number - 1 for number in self.layer_numbers])
        return self._names

    def logical_name(self, name: str) -> str:
        """A name of an exporter, which counts the slots of all ranks and the layers of all stages, with the expert's
        number instead. Names without experts stay."""
        return self.names.to_logical(name, everywhere=True)

    def on_move(self, listener: Callable[[Placement, Placement], None]) -> None:
        """Calls `listener(before, after)` after each move, on this rank, when all is where it belongs."""
        self._listeners.append(listener)

    def move(self, placement: Placement, epoch: int) -> bool:
        """Collective over all ranks of the model, between optimizer steps. Gradients of the step before are cleared.

        :param placement: of all MoE layers
        :returns: False when this epoch is there already
        :raises InvalidInput: for an epoch that was before, other layers, or while a copy's weights are in the slots
        :raises MoveFailed: when experts did not move; `placement` says where they are
        """
        failure = self._move(placement, epoch)
        if isinstance(failure, bool):
            return failure
        raise failure

    def try_move(self, placement: Placement, epoch: int) -> str:
        """The same; says in one line why experts stayed, when every slot holds a whole expert and training can go on.

        :raises MoveFailed: when it cannot
        """
        failure = self._move(placement, epoch)
        if isinstance(failure, bool):
            return ""
        if not _usable(failure):
            raise failure
        return " ".join(str(failure).split())

    def _move(self, placement: Placement, epoch: int) -> bool | Exception:
        if epoch == self._epoch and placement == self._placement:
            return False
        if epoch <= self._epoch:
            what = "another placement of epoch" if epoch == self._epoch else "epoch"
            raise InvalidInput(f"placement: found {what} {epoch}, wanted {self._epoch + 1} or later")
        self._expect_shape(placement)
        if self._shown != self._placement:
            raise NotReady("placement: found a copy's weights in the slots, wanted those in training restored first")
        before, failure = self._placement, None
        if self._stage is not None:
            self._clear_gradients()
            try:
                self._stage.move(self._of_stage(placement), max(epoch, self._stage.epoch + 1))
            except Exception as error:  # told to the other stages first, which wait
                failure = error
        elsewhere = self._agree(failure)
        self._epoch = epoch
        for listener in self._listeners:
            listener(before, self._placement)
        failure = elsewhere if failure is None else failure
        return True if failure is None else failure

    def _agree(self, failure: Exception | None) -> Exception | None:
        """Where experts of all stages are now. @returns what went wrong on another one"""
        rows, maps = ([], None) if self._stage is None else (self._rows(), self._stage.placement.physical_to_logical)
        said = _gathered((rows, maps, "" if failure is None else str(failure), _usable(failure)), self._pipeline)
        whole = self._placement.physical_to_logical.copy()
        for held, some, _, _ in said:
            if held:
                whole[held] = some
        self._placement = self._shown = Placement.from_maps(ranks=self._placement.ranks, physical_to_logical=whole)
        texts = [text for _, _, text, _ in said if text]
        return OtherStageFailed(texts[0], all(usable for _, _, _, usable in said)) if texts else None

    def assume(self, placement: Placement, epoch: int) -> None:
        """Says where experts are without moving them: before a checkpoint of that placement is loaded. Collective.

        :raises InvalidInput: for other layers, experts or ranks
        """
        self._expect_shape(placement)
        if self._stage is not None:
            self._stage.assume(self._of_stage(placement), epoch)
        self._placement = self._shown = placement
        self._epoch = epoch

    @contextlib.contextmanager
    def under(self, placement: Placement) -> Iterator[None]:
        """While weights that were taken under another placement are in the slots: names and dispatchers follow them."""
        before = self._shown
        self.show(placement)
        try:
            yield
        finally:
            self.show(before)

    def show(self, placement: Placement) -> None:
        """The weights now in the slots, or about to be copied there, are those of another placement.

        Nothing is moved, and nothing is sent. Training is refused until `placement` is shown again.
        """
        self._expect_shape(placement)
        if self._stage is not None:
            self._stage.show(self._of_stage(placement))
        self._shown = placement

    def to_identity(self) -> None:
        """Every expert into the slot of its own number, for whoever knows no placements. Collective."""
        here = self._placement
        home = home_of(here)
        if here != home:
            self.move(home, self._epoch + 1)

    def stamp(self) -> dict[str, Any]:
        """What a checkpoint keeps inside, so that its placement file is recognised."""
        return stamp(self._placement, self._epoch)

    def save(self, checkpoint: str | os.PathLike[str]) -> None:
        """Writes the placement file into, or beside, a checkpoint: on the first rank. Distributed checkpoints of
        Megatron-Core get it by themselves."""
        if torch.distributed.get_rank() == 0:
            save_placement(checkpoint, self._placement, self._epoch)

    def restore(
        self, checkpoint: str | os.PathLike[str], *, stamped: Mapping[str, Any] | None = None, required: bool = False
    ) -> SavedPlacement | None:
        """Before a checkpoint is loaded, and before any state dict is made for that: experts are where it says.

        A checkpoint without a file was made without RoutePack, so that expert e is in slot e. One that names experts
        throughout may come from another expert-parallel size: experts stay where they are. Collective.

        :param checkpoint: the folder with the checkpoint's files, such as `iter_0000010`
        :param stamped: what the checkpoint has inside; None: what Megatron-Core's common state says
        :param required: a file must be there
        :raises PlacementMismatch: when it is missing though the checkpoint knows of one, or is that of another
        """
        inside = _dist_checkpoint.stamp_of(checkpoint) if stamped is None else stamped
        here = self._placement
        if inside is None and not required and not _has_file(checkpoint):
            self.assume(home_of(here), 0)
            return None
        saved = load_placement(checkpoint, stamped=inside)
        if shape_of(saved.placement) != shape_of(here):
            if shape_of(saved.placement)[:2] == shape_of(here)[:2] and _dist_checkpoint.names_experts(checkpoint):
                return None  # saved with other ranks; by names, so that it comes right wherever experts are
            load_placement(checkpoint, stamped=inside, shape=here)
        self.assume(saved.placement, saved.epoch)
        return saved

    def expect_checkpoint(self, checkpoint: str | os.PathLike[str]) -> None:
        """State in the order of slots is about to be loaded: it must be that of `placement`.

        :raises PlacementMismatch: when it is not
        """
        inside, here = _dist_checkpoint.stamp_of(checkpoint), self._placement
        if inside is None and not _has_file(checkpoint):
            held = home_of(here)
        else:
            held = load_placement(checkpoint, stamped=inside, shape=here).placement
        if held != here:
            raise PlacementMismatch(
                f"{checkpoint}: found optimizer state in the order of another placement, wanted that of epoch "
                f"{self._epoch}: call restore(checkpoint) before the state dict is made"
            )

    def detach(self) -> None:
        """Takes everything out again. The placement must be the identity."""
        if self._stage is not None:
            self._stage.detach()
        for remove in self._removers:
            remove()
        self._removers.clear()
        _ALL[:] = [one for one in _ALL if one() not in (None, self)]

    def _rows(self) -> list[int]:
        assert self._stage is not None
        return [self.layer_numbers.index(number) for number in self._stage.layer_numbers]

    def _of_stage(self, placement: Placement) -> Placement:
        if self._pipeline is None:
            return placement
        maps = placement.physical_to_logical[self._rows()]
        return Placement.from_maps(ranks=placement.ranks, physical_to_logical=np.ascontiguousarray(maps))

    def _table(self, row: int) -> list[int]:
        return [int(expert) for expert in self._shown.physical_to_logical[row]]

    def _expect_shape(self, placement: Placement) -> None:
        found, wanted = shape_of(placement), shape_of(self._placement)
        if found != wanted:
            raise InvalidInput(f"placement: found {list(found)} layers, experts and ranks, wanted {list(wanted)}")

    def _clear_gradients(self) -> None:
        """They are those of the step before, and belong to experts that may leave."""
        for chunk in self._chunks:
            chunk.zero_grad_buffer()
        self._optimizer.zero_grad()

    def _guard_step(self) -> None:
        """An optimizer step on a copy's weights would be one on the experts of others."""
        original, mine = self._optimizer.step, weakref.ref(self)

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            experts = mine()
            if experts is not None and experts.shown != experts.placement:
                raise NotReady("optimizer: found a copy's weights under another placement, wanted those in training")
            return original(*args, **kwargs)

        self._optimizer.step = step
        self._removers.append(functools.partial(_put_back, self._optimizer, step))


class WeightCopies:
    """Copies of all weights on the host, by tag, each with the placement under which it was taken.

    For trainers that keep none of their own: a reference model, a teacher, the actor of before. Each rank copies what
    is in its slots, so nothing is sent; the copy's experts then run where they were when it was taken.
    """

    def __init__(self, experts: WorkerExperts) -> None:
        self._experts = experts
        self._kept: dict[str, tuple[Placement, dict[str, torch.Tensor]]] = {}

    @property
    def tags(self) -> list[str]:
        return list(self._kept)

    def placement(self, tag: str) -> Placement:
        """Under which a copy was taken."""
        return self._kept[tag][0]

    def keep(self, tag: str) -> None:
        """Takes a copy of the weights now in the slots."""
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._live()}
        self._kept[tag] = (self._experts.shown, copies)

    def restore(self, tag: str) -> None:
        """Copies them back, and turns dispatchers and names to where its experts are."""
        if tag not in self._kept:
            raise InvalidInput(f"copies: found no {tag}, wanted one of {', '.join(self._kept) or 'none'}")
        placement, copies = self._kept[tag]
        self._experts.show(placement)
        with torch.no_grad():
            for name, tensor in self._live():
                tensor.copy_(copies[name])

    def _live(self) -> Iterator[tuple[str, torch.Tensor]]:
        for number, chunk in enumerate(self._experts._chunks):
            for name, parameter in chunk.named_parameters():
                yield f"{number}.{name}", parameter.data
            for name, buffer in chunk.named_buffers():
                if "expert_bias" in name:
                    yield f"{number}.{name}", buffer


def attach(
    model_chunks: Sequence[Any],
    optimizer: Any,
    *,
    placement: Placement | None = None,
    epoch: int = 0,
    **options: Any,
) -> WorkerExperts:
    """Finds the experts of this rank and wires everything that has to know where they are.

    Collective over all ranks of the model, after Megatron's groups are made; before or after a checkpoint is loaded.

    :param model_chunks: the DistributedDataParallel modules of this rank, as `setup_model_and_optimizer` returns them
    :param placement: of all MoE layers, where experts are already; None: expert e in slot e
    :param options: of `routepack.transfer.megatron.attach`: timeout_ms, group, route, atomic, staging_limit, read_back
    :raises InvalidInput: for what cannot be moved, with the reason, on all ranks of the stage alike
    """
    from megatron.core import parallel_state

    pipeline = parallel_state.get_pipeline_model_parallel_group()
    stage, defect = None, ""
    if pipeline.size() == 1:
        pipeline, stage = None, moving.attach(model_chunks, optimizer, **options)
    elif any(True for chunk in model_chunks for _ in moving.moe_modules(chunk)):
        try:
            stage = moving.attach(model_chunks, optimizer, **options)
        except InvalidInput as refusal:
            defect = str(refusal)
    numbers, shape = ([], None) if stage is None else (stage.layer_numbers, stage.placement)
    mine = (numbers, None if shape is None else (shape.experts, shape.ranks), defect)
    said = _gathered(mine, pipeline)
    defects = [text for _, _, text in said if text]
    sizes = [some for _, some, _ in said if some is not None]
    if defects or not sizes:
        raise InvalidInput(defects[0] if defects else "model: found no layer with experts on any pipeline stage")
    whole = sorted(number for some, _, _ in said for number in some)
    if len(set(whole)) < len(whole):
        raise InvalidInput(f"model: found layers {whole} on the pipeline stages, wanted each number once")
    experts, ranks = sizes[0]
    home = Placement.identity(layers=len(whole), experts=experts, ranks=ranks)
    made = WorkerExperts(stage, whole, pipeline, model_chunks, optimizer, home, 0)
    if placement is not None:
        made.assume(placement, epoch)
    return made


def attached() -> list[WorkerExperts]:
    """Those of this process, newest last."""
    return [one for reference in _ALL if (one := reference()) is not None]


def of_model(chunks: Any) -> WorkerExperts | None:
    """Those of a model, given by its chunks or one of them, wrapped or not; None: they were never attached."""
    wanted = {id(_inside(chunk)) for chunk in (chunks if isinstance(chunks, Sequence) else [chunks])}
    for one in reversed(attached()):
        if any(id(_inside(chunk)) in wanted for chunk in one._chunks):
            return one
    return None


def _has_file(checkpoint: str | os.PathLike[str]) -> bool:
    """Whether the placement of a checkpoint that has no stamp lies beside it. A distributed one has a stamp when it was
    saved with RoutePack; a file in its folder then is that of an earlier save.

    :raises PlacementMismatch: for such a file, and optimizer state in the order of slots
    """
    path = placement_path(checkpoint)
    if not path.is_file() or not _dist_checkpoint.is_one(checkpoint):
        return path.is_file()
    if _dist_checkpoint.names_experts(checkpoint):
        return False
    raise PlacementMismatch(
        f"{path}: found no stamp in the checkpoint, wanted that of this file, which an earlier save has left here; "
        "remove it when the checkpoint is one without RoutePack"
    )


def _inside(chunk: Any) -> Any:
    """The model behind Megatron's wrappers, such as DistributedDataParallel and Float16Module."""
    while isinstance(getattr(chunk, "module", None), torch.nn.Module):
        chunk = chunk.module
    return chunk


def _gathered(mine: Any, group: Any) -> list[Any]:
    """What every rank of a group says; what this one says where there is no group."""
    if group is None:
        return [mine]
    said: list[Any] = [None] * group.size()
    torch.distributed.all_gather_object(said, mine, group=group)
    return said


def _usable(failure: Exception | None) -> bool:
    """Whether every slot holds a whole expert, and all ranks live."""
    if isinstance(failure, moving.MoveFailed):
        outcome = failure.outcome
        # A layer is torn on one rank; that a write failed there is what all ranks know.
        wrote = outcome.failure is None or outcome.failure.phase != "commit"
        return wrote and not outcome.silent and "torn" not in outcome.layers
    return failure is None or bool(getattr(failure, "usable", False))


def _put_back(optimizer: Any, step: Any) -> None:
    if optimizer.__dict__.get("step") is step:
        del optimizer.__dict__["step"]


__all__ = ["NotReady", "OtherStageFailed", "WeightCopies", "WorkerExperts", "attach", "attached", "of_model"]
