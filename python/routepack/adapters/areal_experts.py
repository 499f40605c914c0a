# SPDX-License-Identifier: Apache-2.0
"""Where AReaL's Megatron engines have to know which expert is in which slot. Several engines may share a process.

- the controller asks by one method of every engine, `routepack_experts`: attach, move, where (`areal_mover`);
- names: `get_named_parameters` names experts, for weight sync of types xccl and disk;
- HF export and load, by AReaL's own functions or by the bridge, name experts;
- checkpoints: a checkpoint's placement is known before its optimizer state is loaded.

Engines whose experts were never attached, such as a reference model's or a critic's, are left alone.
Source: areal/engine/megatron_engine.py, areal/engine/megatron_utils/{megatron,checkpointer}.py,
areal/models/mcore/hf_{save,load}.py, areal/infra/rpc/guard/engine_blueprint.py of AReaL 1.0.4.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from routepack._core import Placement
from routepack._errors import InvalidInput
from routepack.adapters._hooks import Replaced, module_of, need_function

if TYPE_CHECKING:
    from routepack.adapters.experts import WorkerExperts

METHOD = "routepack_experts"  #: `serve` as a method of every engine of a worker, by which the controller asks
_NAMES = "get_named_parameters"
_EP_UPDATE = "_update_bucket_expert_weights_from_distributed"
_REPLACED = Replaced()


def message_of(physical_to_logical: Any, ranks: int, epoch: int, failed: str = "") -> str:
    """A placement as it travels: one text, since AReaL broadcasts every number of a list by itself."""
    maps = np.asarray(physical_to_logical).tolist()
    return json.dumps({"maps": maps, "ranks": int(ranks), "epoch": int(epoch), "failed": failed})


def placement_of(message: str) -> tuple[Placement, int, str]:
    """The inverse of `message_of`: placement, epoch, and why experts stayed."""
    said = json.loads(message)
    maps = np.array(said["maps"], dtype=np.int32)
    return Placement.from_maps(ranks=said["ranks"], physical_to_logical=maps), said["epoch"], said["failed"]


def experts_of(engine: Any) -> WorkerExperts | None:
    """The experts of the model that an engine has now; None: they were never attached."""
    from routepack.adapters import experts

    model = getattr(engine, "model", None)
    return None if model is None else experts.of_model(model)


def serve(engine: Any, what: str, message: str = "") -> str:
    """Answers the controller. Collective over all workers of the engine.

    :param what: `attach`, `move` with a placement, or `where`
    :returns: where experts are, and for a move that failed whole why
    :raises InvalidInput: for what cannot be moved, with the reason
    :raises MoveFailed: when a layer is torn
    """
    failed = ""
    if what == "attach":
        attach(engine)
    placed = experts_of(engine)
    if placed is None:
        raise InvalidInput(f"areal: {type(engine).__name__}: found no experts attached, wanted attach before {what}")
    if what == "move":
        placement, epoch, _ = placement_of(message)
        with engine._offload_aware_context():
            failed = placed.try_move(placement, epoch)
    here = placed.placement
    return message_of(here.physical_to_logical, here.ranks, placed.epoch, failed)


def attach(engine: Any) -> WorkerExperts:
    """After `initialize`, before a checkpoint is loaded. The second time gives what there is."""
    from routepack.adapters import experts

    refuse(engine)
    found = experts_of(engine)
    if found is None:
        install()
        module_of("routepack", f"routepack.adapters.{_bridge_names(engine)}").install()
        found = experts.attach(engine.model, engine.optimizer)
        engine.model[0].routepack_experts = found  # as long as the model is there
    return found


def refuse(engine: Any) -> None:
    """Engines in which experts cannot move. @raises InvalidInput naming the reason"""
    name = f"areal: {type(engine).__name__}"
    if not hasattr(engine, _EP_UPDATE):
        raise InvalidInput(f"{name}: found an engine that is not Megatron's, wanted actor.backend=megatron:…")
    if getattr(engine.config, "use_lora", False):
        raise InvalidInput(f"{name}: found use_lora, wanted whole weights: adapters would not move with their experts")
    if engine.optimizer is None:
        raise InvalidInput(f"{name}: found no optimizer, wanted an engine that trains; others stay at home")
    if any(".local_experts." in parameter for parameter, _ in engine.model.named_parameters()):
        raise InvalidInput(f"{name}: found SequentialMLP, wanted grouped experts, as AReaL's own names do")


def install() -> None:
    """Puts the hooks into AReaL's Megatron engine, in this process; twice is fine.

    :raises InvalidInput: when this AReaL has no such hooks
    """
    if _REPLACED:
        return
    owner = module_of("areal", "areal.engine.megatron_engine")
    engine = owner.MegatronEngine
    names = need_function("areal", owner, _NAMES, ["model_module", "num_experts"])
    need_function("areal", engine, "_update_weights_via_registry", ["self", "meta"], calls=_NAMES)
    need_function("areal", engine, _EP_UPDATE, ["self", "meta", "named_tensors"])
    need_function("areal", engine, "_offload_aware_context", ["self"])
    need_function("areal", engine, "_save_model_to_hf", ["self", "path"])
    need_function("areal", engine, "_load_model_from_hf", ["self", "path"])
    manager = module_of("areal", "areal.engine.megatron_utils.checkpointer").MegatronCheckpointManager
    need_function("areal", manager, "wait_async_saves", ["self"])
    need_function("areal", manager, "load_checkpoint", ["self", "local_path", "with_optimizer"])
    replacement = _naming(names)
    for user in [module for path, module in list(sys.modules.items()) if path.split(".")[0] == "areal"]:
        if getattr(user, "__dict__", {}).get(_NAMES) is names:
            _REPLACED.put(user, _NAMES, replacement)
    if not _REPLACED.has(owner, _NAMES):
        raise InvalidInput(f"areal: {_NAMES}: found it wrapped, wanted AReaL's own to name experts in")
    for holder, name, how in (
        (engine, "_save_model_to_hf", _saving),
        (engine, "_load_model_from_hf", _loading),
        (manager, "load_checkpoint", _restoring),
    ):
        _REPLACED.put(holder, name, how(vars(holder)[name]))


def uninstall() -> None:
    """Takes the hooks out again; experts stay attached to their engines."""
    _REPLACED.put_back()


def _bridge_names(engine: Any) -> str:
    """Who knows the names of an engine's bridge."""
    kind = str(getattr(engine, "bridge_cls", ""))
    known = {"mbridge": "_mbridge", "megatron-bridge": "_megatron_bridge"}
    if kind not in known:
        raise InvalidInput(f"areal: found megatron.bridge_type {kind}, wanted one of {', '.join(known)}")
    return known[kind]


def _naming(original: Any) -> Any:
    @functools.wraps(original)
    def get_named_parameters(model_module: Any, num_experts: Any) -> Iterator[tuple[str, Any]]:
        from routepack.adapters import experts

        placed = experts.of_model(model_module)
        for name, tensor in original(model_module, num_experts):
            yield name if placed is None else placed.logical_name(name), tensor

    return get_named_parameters


def _saving(original: Any) -> Any:
    @functools.wraps(original)
    def _save_model_to_hf(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _through_mbridge(self, "leaving"):
            return original(self, *args, **kwargs)

    return _save_model_to_hf


def _loading(original: Any) -> Any:
    @functools.wraps(original)
    def _load_model_from_hf(self: Any, *args: Any, **kwargs: Any) -> Any:
        placed = experts_of(self)
        if placed is not None and _stacked(self):
            placed.to_identity()  # AReaL takes experts out of a stack by their slots
        with _through_mbridge(self, "entering"):
            return original(self, *args, **kwargs)

    return _load_model_from_hf


@contextlib.contextmanager
def _through_mbridge(engine: Any, direction: str) -> Iterator[None]:
    """AReaL's own fast export and load ask mbridge for names and conversions, one by one."""
    placed = experts_of(engine)
    if placed is None or _bridge_names(engine) != "_mbridge":
        yield
        return
    from routepack.adapters import _mbridge

    with getattr(_mbridge, direction)(engine.bridge, placed):
        yield


def _stacked(engine: Any) -> bool:
    if _bridge_names(engine) != "_mbridge":
        return False
    save = module_of("areal", "areal.models.mcore.hf_save")
    return bool(getattr(save, "_bridge_uses_stacked_experts", lambda _: False)(engine.bridge))


def _restoring(original: Any) -> Any:
    @functools.wraps(original)
    def load_checkpoint(
        self: Any, local_path: str, with_model: bool = True, with_optimizer: bool = True, *args: Any, **kwargs: Any
    ) -> Any:
        placed = experts_of(self)
        # Weights alone are named by expert in any checkpoint, and come right whatever the placement.
        if placed is not None and with_optimizer:
            self.wait_async_saves()
            placed.restore(local_path)
        return original(self, local_path, with_model, with_optimizer, *args, **kwargs)

    return load_checkpoint


__all__ = [
    "METHOD", "attach", "experts_of", "install", "message_of", "placement_of", "refuse", "serve", "uninstall",
]  # fmt: skip
