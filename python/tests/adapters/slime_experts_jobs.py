# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a slime actor do, as far as they need no GPU: Megatron-Core's layers and optimizer, slime's names,
copies and weight sync (of a checkout, or in slime's shapes), and experts that move between steps."""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from transfer.logical import Mismatch
from transfer.megatron_model import Variant

from routepack import Placement
from routepack.adapters import experts as placed
from routepack.adapters import slime_experts

from . import checkouts, slime_worker_like
from .experts_jobs import Job, Language, job

GROUPED = Variant(exact=True, grouped=True)


class Shaped(Language):
    """With the names of a GPT model under Float16Module."""

    def __init__(self, config: Any, layers: int, grouped: bool) -> None:
        super().__init__(config, layers, grouped)
        made = self._modules.pop("layers")
        self.module = torch.nn.Module()
        self.module.decoder = torch.nn.Module()
        self.module.decoder.layers = torch.nn.ModuleList(torch.nn.Module() for _ in made)
        for block, layer in zip(self.module.decoder.layers, made, strict=True):
            block.mlp = layer

    @property
    def layers(self) -> Any:
        held = self._modules.get("layers")
        return [block.mlp for block in self.module.decoder.layers] if held is None else held


class NoPins(TorchFunctionMode):
    """Pinned memory needs a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


def modules(checkout: bool) -> dict[str, Any]:
    """slime's own, or the like."""
    if not checkout:
        like = slime_worker_like
        return {"common": like.common(), "backuper": like.backuper(), "tensor": like.tensor()}
    path = checkouts.folder(checkouts.SLIME)
    with checkouts.imports(path, checkouts.WITHOUT_SLIME_NEEDS + ("ray", "torch_memory_saver")):
        root = "slime.backends.megatron_utils.update_weight"
        found = {
            "common": importlib.import_module(f"{root}.common"),
            "backuper": importlib.import_module("slime.utils.tensor_backper"),
            "tensor": importlib.import_module(f"{root}.update_weight_from_tensor"),
        }
        direct = importlib.import_module(f"{root}.hf_weight_iterator_direct")
        importlib.import_module("slime.utils.distributed_utils").init_gloo_group()
    host = types.SimpleNamespace(
        synchronize=lambda: None, current_device=lambda: "cpu", device=lambda: "cpu", ipc_collect=lambda: None,
        empty_cache=lambda: None,
    )  # fmt: skip
    module: Any
    for module in (found["backuper"], found["tensor"], direct):
        module.accelerator = host
    for module in (found["tensor"], direct):
        module.ray = types.SimpleNamespace(get=lambda refs: refs)
        module.convert_to_hf = lambda args, model, name, param, *_, **__: [(name, param.detach().clone())]
    direct.monkey_patch_torch_reductions = lambda: None
    return found


class Actor:
    """The parts of slime's actor that know names and copies, as its `init` puts them together."""

    def __init__(self, made: Job, parts: dict[str, Any]) -> None:
        self.args = types.SimpleNamespace(num_experts=GROUPED.experts, update_weight_buffer_size=4000)
        model = [made.model.chunk]

        def named(*_: Any) -> Any:
            return parts["common"].named_params_and_buffers(self.args, model)

        self.args.names = named
        self.copies = parts["backuper"]._TensorBackuperNormal(source_getter=named)
        self.copies.backup("actor")
        self.updater = parts["tensor"].UpdateWeightFromTensor(
            self.args, model, weights_getter=lambda: self.copies.get("actor"), model_name="qwen3moe",
            quantization_config=None,
        )  # fmt: skip
        self.updater.rollout_engines = []
        self.sent: dict[str, torch.Tensor] = {}
        self.updater._send_hf_params = self._receive
        self._active_model_tag = "actor"

    def _receive(self, named: Any) -> tuple[list[Any], None]:
        for name, tensor in named:
            if name in self.sent:
                raise Mismatch(f"{name} was sent twice")
            self.sent[name] = tensor.detach().clone()
        return [], None

    def _switch_model(self, tag: str) -> None:
        self.copies.restore(tag)
        self._active_model_tag = tag

    def sync(self) -> dict[str, torch.Tensor]:
        """What a rollout engine gets."""
        self.sent = {}
        with torch.no_grad():
            self.updater.update_weights()
        return self.sent


@contextlib.contextmanager
def actor(parts: dict[str, Any], moves: bool) -> Iterator[tuple[Job, Actor]]:
    with job(GROUPED, "", body=Shaped) as made, NoPins():
        if moves:
            made.experts = placed.attach([made.model.chunk], made.model.optimizer)
            slime_experts.use(made.experts)
        try:
            yield made, Actor(made, parts)
        finally:
            slime_experts.use(None)


def placements(number: int) -> Placement:
    from transfer.megatron_training import random_placement

    return random_placement(GROUPED, number)


def train_and_sync(rank: int, checkout: bool, sabotage: str = "") -> dict[str, Any]:
    """A moved actor and one that stays: the same weights reach the rollout engine after every step; copies give what
    they were taken from, whatever moved since."""
    parts = modules(checkout)
    with actor(parts, False) as (made, one):
        stays = [one.sync()]
        for number in range(3):
            made.step(number)
            one.copies.backup("actor")
            stays.append(one.sync())
        reference = made.probe()
    hooks = {name: part for name, part in parts.items() if name != sabotage}
    slime_experts.install(**hooks)
    try:
        return _moved(parts, stays, reference)
    finally:
        slime_experts.uninstall()


def _moved(parts: dict[str, Any], stays: list[dict[str, torch.Tensor]], last: torch.Tensor) -> dict[str, Any]:
    from routepack.adapters.slime import placement_message

    compared = 0
    with actor(parts, True) as (made, one):
        _same(one.sync(), stays[0], "at the start")
        one.copies.backup("ref")
        one.copies.backup("old_actor")
        reference = made.probe()
        for number in range(3):
            one._switch_model("ref")  # as if a pass had ended so
            to = placements(number)
            slime_experts.move(one, placement_message(to.physical_to_logical, to.ranks, number + 1))
            if made.experts.placement != to or one._active_model_tag != "actor":
                raise Mismatch(f"step {number}: not moved")
            one._switch_model("ref")
            if not torch.equal(made.probe(), reference):
                raise Mismatch(f"step {number}: the reference gives other log-probabilities")
            one._switch_model("actor")
            made.step(number)
            one.copies.backup("actor")
            _same(one.sync(), stays[number + 1], f"step {number}, weight sync")
            for name, tensor in one.args.names():
                if not torch.equal(one.copies.get("actor")[name], tensor):
                    raise Mismatch(f"step {number}: the copy of {name} is not what is in training")
            compared += len(one.sent)
            one.copies.copy(src_tag="actor", dst_tag="old_actor")  # another placement each time
            one._switch_model("old_actor")
            now = made.probe()
            one._switch_model("actor")
            if not torch.equal(now, made.probe()):
                raise Mismatch(f"step {number}: the copy of a copy differs")
        if not torch.equal(made.probe(), last):
            raise Mismatch("log-probabilities differ from those of the actor that stayed")
        return {"compared": compared, "tags": sorted(one.copies._backups)}


def _same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], where: str) -> None:
    if found.keys() != wanted.keys():
        raise Mismatch(f"{where}: names differ: {sorted(found.keys() ^ wanted.keys())[:4]}")
    for name, tensor in wanted.items():
        if not torch.equal(found[name], tensor):
            raise Mismatch(f"{where}: {name} differs")
    if not any(".experts." in name for name in wanted):
        raise Mismatch(f"{where}: no experts")
