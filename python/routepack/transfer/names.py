# SPDX-License-Identifier: Apache-2.0
"""Names under which experts leave and enter a trainer: slots of a placement on one side, experts on the other.

Weights are never reordered for export; their names are. What stays in the order of slots, such as optimizer state in
buffer order, has its placement saved beside it (`routepack.transfer.checkpoint`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from routepack._core import Placement
from routepack._errors import InvalidInput

Value = TypeVar("Value")

# Local index, counted on one EP rank: Megatron's TEGroupedMLP and SequentialMLP.
_GROUPED = r"experts\.linear_fc[12]\.(?:\w+\.)*(?:weight|bias|_extra_state)(?P<grouped>\d+)$"
_SEQUENTIAL = r"experts\.local_experts\.(?P<sequential>\d+)\."
# Counted over all ranks: Hugging Face and what converters call global names.
_GLOBAL = r"experts\.(?P<everywhere>\d+)\."
_EXPERT = re.compile(rf"(?<![\w])(?:{_GROUPED}|{_SEQUENTIAL}|{_GLOBAL})")
_LAYER = re.compile(r"(?<![\w])layers\.(\d+)\.")
# Layers for multi-token prediction have no routes to plan with, so their experts stay where they are.
UNPLACED = re.compile(r"(?<![\w])mtp\.")
# Parameters of the expert module that belong to no single expert.
_ALL_EXPERTS = re.compile(r"(?<![\w])experts\.(?!.*_extra_state$)")


class ExpertNames:
    """Renames between slots and experts under one placement.

    A physical name has the slot's index in it, a logical one the expert's. Two kinds of names are known. Those of
    Megatron's modules, `…experts.linear_fc1.weight3` and `…experts.local_experts.3.linear_fc1.weight`, count the slots
    of one EP rank when physical, and the experts of all ranks when logical. Those of Hugging Face,
    `…layers.7.mlp.experts.3.gate_proj.weight`, count over all ranks on both sides. The layer is the number behind the
    last `layers.` before the experts. Names without experts, and those of layers for multi-token prediction, stay as
    they are.

    :param placement: of all MoE layers
    :param layers: the number that names give to each of them, in order; 0, 1, … when there is none
    :param unplaced: numbers of layers whose experts stay in the slots of their own indices
    :raises InvalidInput: for another number of layers, or one that comes twice

    >>> maps = np.array([[2, 0, 3, 1]], dtype=np.int32)
    >>> placement = Placement.from_maps(ranks=2, physical_to_logical=maps)
    >>> names = ExpertNames(placement, layers=[7])
    >>> names.to_logical("decoder.layers.7.mlp.experts.linear_fc1.weight0", ep_rank=1)
    'decoder.layers.7.mlp.experts.linear_fc1.weight3'
    >>> names.to_physical("decoder.layers.7.mlp.experts.linear_fc1.weight3", ep_rank=1)
    'decoder.layers.7.mlp.experts.linear_fc1.weight0'
    >>> names.to_logical("model.layers.7.mlp.experts.0.gate_proj.weight")
    'model.layers.7.mlp.experts.2.gate_proj.weight'
    """

    def __init__(
        self, placement: Placement, *, layers: Sequence[int] | None = None, unplaced: Sequence[int] = ()
    ) -> None:
        numbers = list(range(placement.layers)) if layers is None else [int(number) for number in layers]
        if len(numbers) != placement.layers:
            raise InvalidInput(f"layers: found {len(numbers)} numbers, wanted {placement.layers}, one per MoE layer")
        given = [*numbers, *unplaced]
        if len(set(given)) != len(given):
            twice = next(number for number in given if given.count(number) > 1)
            raise InvalidInput(f"layers: found {twice} twice, wanted each number once")
        self.placement = placement
        self.slots_per_rank = placement.experts // placement.ranks
        self._unplaced = frozenset(unplaced)
        self._row = {number: row for row, number in enumerate(numbers)}
        self._expert: npt.NDArray[np.int32] = placement.physical_to_logical
        self._slot: npt.NDArray[np.int32] = placement.logical_to_physical

    def experts_of(self, layer: int, ep_rank: int) -> list[int]:
        """The experts in a rank's slots, in order: what stands for `ep_rank * n + i` wherever a trainer counts so."""
        first = self._first_slot(ep_rank, "experts_of")
        return [int(e) for e in self._expert[self._row_of(layer, "experts_of"), first : first + self.slots_per_rank]]

    def to_logical(self, name: str, *, ep_rank: int | None = None, everywhere: bool = False) -> str:
        """The name with the expert's index for the slot's.

        :param ep_rank: whose slots Megatron's names count; Hugging Face's need none
        :param everywhere: names of Megatron count the slots of all ranks already, as exporters make them
        :raises InvalidInput: for a layer or slot that the placement does not have, or a tensor of several experts
        """
        found = self._find(name)
        if found is None:
            return name
        layer, index, begin, end, local = found
        slot = index
        if local and not everywhere:
            if index >= self.slots_per_rank:
                raise InvalidInput(f"{name}: found slot {index}, wanted 0 to {self.slots_per_rank - 1} on a rank")
            slot = self._first_slot(ep_rank, name) + index
        elif index >= self.placement.experts:
            raise InvalidInput(f"{name}: found slot {index}, wanted 0 to {self.placement.experts - 1}")
        return f"{name[:begin]}{self._expert[layer, slot]}{name[end:]}"

    def to_physical(self, name: str, *, ep_rank: int | None = None) -> str:
        """The inverse of `to_logical`.

        :raises InvalidInput: as there, and for an expert that `ep_rank` does not hold
        """
        found = self._find(name)
        if found is None:
            return name
        layer, index, begin, end, local = found
        if index >= self.placement.experts:
            raise InvalidInput(f"{name}: found expert {index}, wanted 0 to {self.placement.experts - 1}")
        slot = int(self._slot[layer, index])
        if local:
            first = self._first_slot(ep_rank, name)
            if not first <= slot < first + self.slots_per_rank:
                holder = slot // self.slots_per_rank
                raise InvalidInput(f"{name}: found EP rank {ep_rank}, wanted {holder}, which holds expert {index}")
            slot -= first
        return f"{name[:begin]}{slot}{name[end:]}"

    def holds(self, name: str, *, ep_rank: int) -> bool:
        """Whether a rank holds the expert of a logical name; True for names without experts."""
        found = self._find(name)
        if found is None:
            return True
        layer, index = found[:2]
        if index >= self.placement.experts:
            raise InvalidInput(f"{name}: found expert {index}, wanted 0 to {self.placement.experts - 1}")
        first = self._first_slot(ep_rank, name)
        return first <= int(self._slot[layer, index]) < first + self.slots_per_rank

    def logical_map(self, names: Iterable[str], *, ep_rank: int | None = None) -> dict[str, str]:
        """Logical name of each physical one. :raises InvalidInput: when two become the same"""
        return _distinct({name: self.to_logical(name, ep_rank=ep_rank) for name in names})

    def physical_map(self, names: Iterable[str], *, ep_rank: int | None = None) -> dict[str, str]:
        """Physical name of each logical one. :raises InvalidInput: when two become the same"""
        return _distinct({name: self.to_physical(name, ep_rank=ep_rank) for name in names})

    def to_logical_state(self, state: Mapping[str, Value], *, ep_rank: int | None = None) -> dict[str, Value]:
        """A state dict under logical names; the same values."""
        return {new: state[old] for old, new in self.logical_map(state, ep_rank=ep_rank).items()}

    def to_physical_state(self, state: Mapping[str, Value], *, ep_rank: int | None = None) -> dict[str, Value]:
        """A state dict of logical names under those of the slots; the same values. With `ep_rank`, entries of experts
        that the rank does not hold are left out."""
        kept = [name for name in state if ep_rank is None or self.holds(name, ep_rank=ep_rank)]
        return {new: state[old] for old, new in self.physical_map(kept, ep_rank=ep_rank).items()}

    def _find(self, name: str) -> tuple[int, int, int, int, bool] | None:
        """Row of the placement, index, where the index stands, whether it counts on one rank."""
        hit = _EXPERT.search(name)
        if UNPLACED.search(name):
            return None
        if hit is None:
            if _ALL_EXPERTS.search(name):
                wanted = "one tensor per expert: permute stacked ones with stack_to_logical"
                raise InvalidInput(f"{name}: found a tensor of several experts, wanted {wanted}")
            return None
        kind = str(hit.lastgroup)
        numbers = [int(number) for number in _LAYER.findall(name[: hit.start()])]
        if numbers and numbers[-1] in self._unplaced:
            return None
        if not numbers:
            raise InvalidInput(f"{name}: found no layer number, wanted «layers.» and a number before the experts")
        return self._row_of(numbers[-1], name), int(hit[kind]), *hit.span(kind), kind != "everywhere"

    def _row_of(self, layer: int, where: str) -> int:
        if layer not in self._row:
            raise InvalidInput(f"{where}: found layer {layer}, wanted one that the placement covers: {list(self._row)}")
        return self._row[layer]

    def _first_slot(self, ep_rank: int | None, where: str) -> int:
        if ep_rank is None or not 0 <= ep_rank < self.placement.ranks:
            raise InvalidInput(f"{where}: found EP rank {ep_rank}, wanted 0 to {self.placement.ranks - 1}")
        return ep_rank * self.slots_per_rank


def to_identity(placement: Placement) -> Placement:
    """The placement with expert e in slot e: move there before anything that knows no placements.

    >>> swapped = Placement.from_maps(ranks=2, physical_to_logical=np.array([[1, 0]], dtype=np.int32))
    >>> to_identity(swapped).physical_to_logical.tolist()
    [[0, 1]]
    """
    return Placement.identity(layers=placement.layers, experts=placement.experts, ranks=placement.ranks)


def stack_to_logical(stack: Any, placement: Placement, row: int) -> Any:
    """A stack of all slots of a layer, in the order of experts. A new array.

    :param stack: [E, …], of numpy or torch; tensors of several dimensions per expert are viewed so first
    :param row: of the placement

    >>> placement = Placement.from_maps(ranks=2, physical_to_logical=np.array([[2, 0, 3, 1]], dtype=np.int32))
    >>> stack_to_logical(np.array([20, 0, 30, 10]), placement, 0)
    array([ 0, 10, 20, 30])
    """
    return _permuted(stack, placement, row, placement.logical_to_physical)


def stack_to_physical(stack: Any, placement: Placement, row: int) -> Any:
    """The inverse of `stack_to_logical`; a rank's part is `[ep_rank * n : (ep_rank + 1) * n]` of the result.

    >>> placement = Placement.from_maps(ranks=2, physical_to_logical=np.array([[2, 0, 3, 1]], dtype=np.int32))
    >>> stack_to_physical(np.array([0, 10, 20, 30]), placement, 0)
    array([20,  0, 30, 10])
    """
    return _permuted(stack, placement, row, placement.physical_to_logical)


def by_expert(parts: Iterable[tuple[int, Value]], experts: int) -> list[Value]:
    """Values of one layer, gathered in any order, by expert: for formats that stack them.

    :param parts: (expert, value) of every expert
    :raises InvalidInput: when one is missing, comes twice or is not of the layer

    >>> by_expert([(1, "b"), (0, "a")], experts=2)
    ['a', 'b']
    """
    found: dict[int, Value] = {}
    for expert, value in parts:
        if expert in found or not 0 <= expert < experts:
            twice = " twice" if expert in found else ""
            raise InvalidInput(f"by_expert: found expert {expert}{twice}, wanted each of 0 to {experts - 1} once")
        found[expert] = value
    missing = [expert for expert in range(experts) if expert not in found]
    if missing:
        raise InvalidInput(f"by_expert: found no expert {missing[0]}, wanted each of 0 to {experts - 1} once")
    return [found[expert] for expert in range(experts)]


def _permuted(stack: Any, placement: Placement, row: int, order: npt.NDArray[np.int32]) -> Any:
    if not 0 <= row < placement.layers:
        raise InvalidInput(f"placement: found row {row}, wanted 0 to {placement.layers - 1}")
    if not len(stack.shape) or stack.shape[0] != placement.experts:
        raise InvalidInput(f"stack: found shape {list(stack.shape)}, wanted [{placement.experts}, …], one per expert")
    return stack[order[row].astype(np.int64)]


def _distinct(names: dict[str, str]) -> dict[str, str]:
    seen: dict[str, str] = {}
    for old, new in names.items():
        if new in seen:
            raise InvalidInput(f"{old}: found the new name {new} also for {seen[new]}, wanted distinct names")
        seen[new] = old
    return names
