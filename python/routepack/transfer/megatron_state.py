# SPDX-License-Identifier: Apache-2.0
"""What one rank of a Megatron-Core trainer holds of its experts, and where: model, flat buffers, optimizer.

Nothing is told by version numbers: what is looked for is named where it is used (megatron/core/transformer/moe,
distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py), and what is not understood is refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from routepack._core import ExpertParameter, ExpertTensor, GridLayout, TrainerFacts
from routepack._errors import InvalidInput
from routepack.transfer.names import UNPLACED

_TYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.uint8: "U8",
}
_PARTS = ("token_dispatcher", "experts", "router")  # of a layer with experts
_MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer")
_LOCAL_EXPERT = re.compile(r"^local_experts\.(\d+)\.(.+)$")
_GROUPED = re.compile(r"^(linear_fc[12]\.(?:weight|bias))(\d+)$")
# What a parameter group may say that must be the same for all experts of a layer.
_HYPER_PARAMETERS = (
    "lr",
    "weight_decay",
    "lr_mult",
    "wd_mult",
    "betas",
    "eps",
    "min_lr",
    "max_lr",
    "start_wd",
    "end_wd",
)


@dataclass
class _Expert:
    """One local slot of one layer: its parameters by name, in registration order."""

    parameters: dict[str, torch.nn.Parameter]


@dataclass
class _Layer:
    number: int
    module: Any
    experts: list[_Expert]


@dataclass
class _Part:
    """What the optimizer of this rank holds of one parameter."""

    lanes: list[tuple[int, int, int]]  # (lane, begin, end) over the flat parameter
    replicated: bool = False
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    hyper: tuple[Any, ...] = ()


def moe_modules(chunk: Any) -> Iterator[Any]:
    """The layers of a chunk that route tokens to experts. Those of multi-token prediction, of which no plan knows, stay
    at home."""
    for name, module in chunk.named_modules():
        if not UNPLACED.search(f"{name}.") and all(getattr(module, part, None) is not None for part in _PARTS):
            yield module


def _slots_of(module: Any) -> list[_Expert]:
    """The parameters of each local expert of TEGroupedMLP or SequentialMLP."""
    by_slot: dict[int, dict[str, torch.nn.Parameter]] = {}
    for name, parameter in module.experts.named_parameters():
        grouped, sequential = _GROUPED.match(name), _LOCAL_EXPERT.match(name)
        if grouped:
            slot, key = int(grouped[2]), grouped[1]
        elif sequential:
            slot, key = int(sequential[1]), sequential[2]
        else:
            kind = type(module.experts).__name__
            raise InvalidInput(
                f"layer {module.layer_number}: found expert parameter {name} of {kind}, wanted one tensor per expert "
                "as in TEGroupedMLP (without moe_single_grouped_weight) or SequentialMLP"
            )
        by_slot.setdefault(slot, {})[key] = parameter
    if sorted(by_slot) != list(range(len(by_slot))) or not by_slot:
        raise InvalidInput(f"layer {module.layer_number}: found experts {sorted(by_slot)}, wanted 0, 1, … without gaps")
    return [_Expert(by_slot[slot]) for slot in range(len(by_slot))]


def _flat_optimizers(optimizer: Any) -> list[Any]:
    """A ChainedOptimizer's parts, those of its parts, and so on."""
    parts = getattr(optimizer, "chained_optimizers", None)
    if parts is None:
        return [optimizer]
    return [inner for part in parts for inner in _flat_optimizers(part)]


class _Finder:
    """Looks up what belongs to a parameter: its buffer, its optimizer, its state."""

    def __init__(self, chunks: Sequence[Any], optimizer: Any) -> None:
        if any("LayerWise" in type(one).__name__ for one in (optimizer, *_flat_optimizers(optimizer))):
            raise InvalidInput("optimizer: found LayerWiseDistributedOptimizer (dist Muon), wanted a sharded Adam")
        flat = [o for o in _flat_optimizers(optimizer) if not getattr(o, "is_stub_optimizer", False)]
        for one in flat:
            if type(getattr(one, "optimizer", None)).__name__ == "HybridDeviceOptimizer":
                raise InvalidInput("optimizer: found optimizer_cpu_offload, wanted states on the device of the weights")
        self._sharded = any(hasattr(o, "model_param_group_index_map") for o in flat)
        self._place: dict[torch.nn.Parameter, tuple[Any, tuple[int, int, int]]] = {}
        for chunk in chunks:
            for buffer in getattr(chunk, "expert_parallel_buffers", None) or []:
                for parameter, place in buffer.param_index_map.items():
                    self._place[parameter] = (buffer, place)
        # By what the optimizer calls a parameter: the model's own, or its main copy.
        self._held: dict[torch.Tensor, tuple[Any, Any, Any]] = {}
        for one in flat:
            groups = one.optimizer.param_groups
            for parameter, (group, order) in getattr(one, "model_param_group_index_map", {}).items():
                self._held[parameter] = (groups[group]["params"][order], one.optimizer, groups[group])
            if not self._sharded:
                for group in groups:
                    self._held.update({key: (key, one.optimizer, group) for key in group["params"]})

    def part(self, parameter: torch.nn.Parameter, name: str) -> _Part:
        if self._sharded:
            part, key = _Part(self._lanes(parameter, name)), parameter
        else:
            main = getattr(parameter, "main_param", None)
            part, key = _Part([], replicated=True), parameter if main is None else main
        if key in self._held:
            self._fill(part, parameter, *self._held[key], name)
        elif not self._sharded:
            raise InvalidInput(f"{name}: found in no group of the optimizer, wanted every expert's parameters trained")
        return part

    def _fill(
        self, part: _Part, parameter: torch.nn.Parameter, key: Any, optimizer: Any, group: Any, name: str
    ) -> None:
        part.hyper = tuple(str(group.get(word)) for word in _HYPER_PARAMETERS)
        state = dict(optimizer.state.get(key, {}))
        master = state.pop("master_param", key)
        if not _same_memory(master, parameter):
            part.tensors["master"] = master
        for word, value in state.items():
            if not torch.is_tensor(value):
                continue
            if word == "step" and value.numel() == 1:
                part.tensors["step"] = value
            elif word in _MOMENTS:
                part.tensors[word] = value
            else:
                raise InvalidInput(f"{name}: found optimizer state {word}, wanted one of {', '.join(_MOMENTS)}, step")

    def _lanes(self, parameter: torch.nn.Parameter, name: str) -> list[tuple[int, int, int]]:
        """Who owns what: equal parts of the bucket, whatever parameters they cut."""
        if parameter not in self._place:
            raise InvalidInput(f"{name}: found in no expert buffer, wanted it in one of DistributedDataParallel's")
        buffer, (start, end, bucket_id) = self._place[parameter]
        bucket = buffer.buckets[bucket_id]
        lanes = buffer.data_parallel_group.size()
        size = bucket.grad_data.numel() // lanes
        owned = []
        for lane in range(lanes):
            begin = max(start, bucket.offset + lane * size)
            stop = min(end, bucket.offset + (lane + 1) * size)
            if begin < stop:
                owned.append((lane, begin - start, stop - start))
        return owned


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a master is a view of the fp32 weights themselves."""
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)  # also while the memory is given back


class MegatronState:
    """Where the live tensors of one rank's experts are, for `TorchMover`; looked up anew at every move."""

    def __init__(self, chunks: Sequence[Any], optimizer: Any, lane: int) -> None:
        self.chunks = list(chunks)
        self.optimizer = optimizer
        self.lane = lane
        modules = sorted((m for chunk in self.chunks for m in moe_modules(chunk)), key=lambda m: int(m.layer_number))
        if not modules:
            wanted = "Megatron's MoELayer"
            raise InvalidInput(f"model: found no layer with router, experts and token_dispatcher, wanted {wanted}")
        self.layers = [_Layer(int(m.layer_number), m, _slots_of(m)) for m in modules]
        numbers = [layer.number for layer in self.layers]
        if len(set(numbers)) < len(numbers):
            raise InvalidInput(f"model: found layers {numbers}, wanted each number once")
        first = self.layers[0].experts[0].parameters
        self.names = list(first)
        for layer in self.layers:
            for slot, expert in enumerate(layer.experts):
                shapes = {name: tuple(parameter.shape) for name, parameter in expert.parameters.items()}
                if shapes != {name: tuple(first[name].shape) for name in self.names}:
                    where = f"layer {layer.number}, slot {slot}"
                    raise InvalidInput(f"{where}: found {shapes}, wanted those of the first layer")
                for name, parameter in expert.parameters.items():
                    _refuse_quantized(f"layer {layer.number}, slot {slot}, {name}", parameter)
        self._kinds: list[tuple[str, str]] = []  # (parameter, tensor) of each tensor of the layout
        self._parts: list[list[dict[str, _Part]]] = []  # [layer][slot], parameter name → what the optimizer holds
        self._step: torch.Tensor | None = None
        self.refresh()

    def refresh(self) -> None:
        """Looks everything up again: optimizers make their state in the first step, and rebind it at a load."""
        finder = _Finder(self.chunks, self.optimizer)
        self._parts = [
            [
                {name: finder.part(p, f"layer {layer.number}, {name}") for name, p in expert.parameters.items()}
                for expert in layer.experts
            ]
            for layer in self.layers
        ]
        self._step = next((part.tensors["step"] for part in self._all() if "step" in part.tensors), None)

    def _all(self) -> Iterator[_Part]:
        return (part for layer in self._parts for slot in layer for part in slot.values())

    @property
    def parts(self) -> list[list[dict[str, _Part]]]:
        return self._parts

    @property
    def device(self) -> torch.device:
        return next(iter(self.layers[0].experts[0].parameters.values())).device

    def owned(self, part: _Part) -> slice:
        """Which elements of the flat parameter are this lane's."""
        return next((slice(begin, end) for lane, begin, end in part.lanes if lane == self.lane), slice(0, 0))

    def kinds(self) -> dict[tuple[str, str], str]:
        """(parameter, tensor) → type, of all tensors that the optimizer holds on this lane."""
        kinds: dict[tuple[str, str], str] = {}
        for layer in self._parts:
            for slot in layer:
                for name, part in slot.items():
                    for word, tensor in part.tensors.items():
                        kinds[name, word] = _type_of(tensor, f"{name}, {word}")
        return kinds

    def outdated(self) -> bool:
        """Whether the optimizer holds other kinds of tensors than when `layout` was made, as after its first step."""
        here = {name for layer in self._parts for slot in layer for name, part in slot.items() if part.tensors}
        return set(self.kinds()) != {(name, word) for name, word in self._kinds if word and name in here}

    def describe(self) -> dict[str, Any]:
        """What this rank can say of the layout; ranks join theirs, since a lane need not own a part of everything."""
        first = self.layers[0].experts[0].parameters
        return {
            "shapes": {name: list(first[name].shape) for name in self.names},
            "types": {name: _type_of(first[name], name) for name in self.names},
            "numbers": [layer.number for layer in self.layers],
            "slots": len(self.layers[0].experts),
            "replicated": any(part.replicated for part in self._all()),
            "kinds": self.kinds(),
            "ranges": [part[name].lanes for layer in self._parts for part in layer for name in self.names],
            "hyper": [self._hyper(layer, name) for layer in self._parts for name in self.names],
        }

    @staticmethod
    def _hyper(layer: list[dict[str, _Part]], name: str) -> list[tuple[Any, ...]]:
        return sorted({slot[name].hyper for slot in layer} - {()})

    def layout(self, ep: int, edp: int, described: Sequence[dict[str, Any]]) -> GridLayout:
        """The grid's layout from what its ranks described."""
        mine = self.describe()
        for other in described:
            for word in ("shapes", "types", "numbers", "slots", "replicated", "ranges"):
                if other[word] != mine[word]:
                    raise InvalidInput(f"layout: {word} differ between ranks: found {other[word]}, wanted {mine[word]}")
        for other in described:
            for name, mine_of, others in zip(self.names * len(self.layers), mine["hyper"], other["hyper"], strict=True):
                if len({*mine_of, *others}) > 1:
                    raise InvalidInput(f"optimizer: found hyper-parameters of {name} that differ, wanted equal ones")
        owners = {lane for owned in mine["ranges"] for lane, _, _ in owned}
        if not mine["replicated"] and len(owners) < edp:
            raise InvalidInput(f"optimizer: found parts of experts on {len(owners)} of {edp} lanes, wanted one on each")
        kinds: dict[tuple[str, str], str] = {}
        for other in described:
            for key, kind in other["kinds"].items():
                if kinds.setdefault(key, kind) != kind:
                    raise InvalidInput(f"layout: {key} is {kind} on one rank and {kinds[key]} on another")
        elements = {name: int(np.prod(shape)) for name, shape in mine["shapes"].items()}
        parameters = [ExpertParameter(name, mine["shapes"][name]) for name in self.names]
        tensors, self._kinds = [], []
        for index, name in enumerate(self.names):
            role = "bias" if name.rsplit(".", 1)[-1].startswith("bias") else "weight"
            tensors.append(ExpertTensor(name, role, mine["types"][name], "replicated", elements[name], index))
            self._kinds.append((name, ""))
        spread = "replicated" if mine["replicated"] else "sharded"
        for (name, word), kind in sorted(kinds.items()):
            index = self.names.index(name)
            if word == "step":
                tensors.append(ExpertTensor(f"{name}.step", "step", kind, "equal", 1, None))
            else:
                role = "moment" if word != "master" else "remainder" if kind == "I16" else "master"
                tensors.append(ExpertTensor(f"{name}.{word}", role, kind, spread, elements[name], index))
            self._kinds.append((name, word))
        ranges = mine["ranges"]
        if mine["replicated"]:
            ranges = [[(0, 0, elements[name])] for name in self.names] * (len(self.layers) * mine["slots"])
        return GridLayout.explicit_ranges(
            ep=ep,
            edp=edp,
            layers=len(self.layers),
            slots=mine["slots"],
            parameters=parameters,
            tensors=tensors,
            ranges=ranges,
        )

    def tensor(self, layer: int, local_slot: int, tensor: int) -> torch.Tensor:
        name, word = self._kinds[tensor]
        parameter = self.layers[layer].experts[local_slot].parameters[name]
        if not word:
            return parameter.data
        tensors = self._parts[layer][local_slot][name].tensors
        if word in tensors:
            return tensors[word].data
        if word != "step":  # this lane owns nothing of the parameter
            return parameter.data.new_empty(0)
        if self._step is None:
            raise InvalidInput("optimizer: found no step on this rank, wanted a part of an expert on every lane")
        return self._step

    def gradient(self, layer: int, local_slot: int, parameter: int) -> torch.Tensor | None:
        held = self.layers[layer].experts[local_slot].parameters[self.names[parameter]]
        gradient = getattr(held, "main_grad", None)
        gradient = held.grad if gradient is None else gradient
        return None if gradient is None or _released(gradient) else gradient

    def facts(self) -> TrainerFacts:
        """The first thing that a move asks for: what was looked up before is forgotten."""
        self.refresh()
        parameters = [p for layer in self.layers for e in layer.experts for p in e.parameters.values()]
        config = getattr(self.layers[0].module, "config", None)
        return TrainerFacts(
            fully_sharded=any(uses_fsdp(chunk) for chunk in self.chunks),
            weight_remat=int(getattr(config, "expert_gtp_weight_remat_size", 1) or 1),
            experts_differ=self._experts_differ(),
            replay_in_flight=_replay_in_flight(),
            offloaded=any(_released(p.data) for p in parameters) or self._state_offloaded(),
            params_gather_pending=any(
                getattr(group, "param_gather_handle", None) is not None
                for chunk in self.chunks
                for group in getattr(chunk, "expert_parallel_bucket_groups", None) or []
            ),
        )

    def _experts_differ(self) -> bool:
        return any(len(self._hyper(layer, name)) > 1 for layer in self._parts for name in self.names)

    def _state_offloaded(self) -> bool:
        """Optimizer state on the host beside weights on a GPU, or nowhere."""
        device = self.device
        held = (t for part in self._all() for word, t in part.tensors.items() if word != "step")
        return any(t.device != device or _released(t) for t in held)


def uses_fsdp(chunk: Any) -> bool:
    return bool(getattr(getattr(chunk, "ddp_config", None), "use_megatron_fsdp", False))


def _released(tensor: torch.Tensor) -> bool:
    """Whether its memory was given back, as by `untyped_storage().resize_(0)`."""
    return bool(tensor.numel() > 0 and tensor.untyped_storage().size() == 0)


def _type_of(tensor: torch.Tensor, name: str) -> str:
    if tensor.dtype not in _TYPES:
        raise InvalidInput(f"{name}: found {tensor.dtype}, wanted one of {', '.join(str(t) for t in _TYPES)}")
    return _TYPES[tensor.dtype]


def _refuse_quantized(name: str, parameter: torch.Tensor) -> None:
    if type(parameter) not in (torch.nn.Parameter, torch.Tensor) or hasattr(parameter, "_data"):
        raise InvalidInput(f"{name}: found {type(parameter).__name__} (fp8_param_gather?), wanted plain parameters")


def _replay_in_flight() -> bool:
    """Whether Megatron's RouterReplay has routes that a backward pass, or a recomputation in it, has yet to read."""
    router_replay = sys.modules.get("megatron.core.transformer.moe.router_replay")
    if router_replay is None:
        return False
    replays: Iterable[Any] = router_replay.RouterReplay.global_router_replay_instances
    return any(
        getattr(getattr(replay, "router_replay_action", None), "name", "RECORD") != "RECORD"
        or bool(getattr(replay, "replay_backward_list", None))
        for replay in replays
    )


__all__ = ["MegatronState", "moe_modules", "uses_fsdp"]
