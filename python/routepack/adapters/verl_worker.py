# SPDX-License-Identifier: Apache-2.0
"""verl's training workers, and their experts that move. `verl_auto` puts these hooks into every process of verl.

- worker groups get methods, which the driver calls on all ranks at once: whether they obey a plan's microbatches
  (`verl_cells`), where experts are, and move;
- checkpoints: optimizer state, which verl saves apart from the weights, says its placement, and is loaded under it;
- copies of the weights on the host (verl's `DetachActorWorker`) have the placement under which they were taken.

Names in weight sync and HF export are those of the bridge that the engine uses (`_mbridge`, `_megatron_bridge`). Only
the actor's experts move. The engines of a reference model and of a critic are models of their own, and stay at home.
Source: verl/workers/engine_workers.py, verl/workers/engine/megatron/transformer_impl.py,
verl/utils/checkpoint/megatron_checkpoint_manager.py, verl/experimental/separation/engine_workers.py of verl 0.9.1.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import TYPE_CHECKING, Any

from routepack._core import Placement
from routepack._errors import InvalidInput
from routepack.adapters._hooks import Replaced, module_of, need_function
from routepack.adapters._placements import home_of
from routepack.adapters._unsafe import look_up
from routepack.adapters.verl_cells import routepack_obeys
from routepack.transfer.checkpoint import STAMP, placement_path

if TYPE_CHECKING:
    from routepack.adapters.experts import WorkerExperts

#: what a rank says: where its experts are (None: they cannot move, or were never attached), epoch, why not
Told = tuple[Placement | None, int, str]

ASK, MOVE = "routepack_placement", "routepack_move"  #: methods of a worker group
_BUILD, _SAVE, _LOAD = "_build_optimizer_state_dict", "_save_dist_checkpoint", "load_checkpoint"
METHODS = "verl.workers.engine_workers"  #: where methods are added
_COPY, _BACK, _FORGET = "save_model_to_cpu", "restore_model_from_cpu", "clear_cpu_model"
_DELTA = "_mcore_export_index"
_REPLACED = Replaced()
#: of each worker with copies: key → the placement under which it was taken
_TAKEN: weakref.WeakKeyDictionary[Any, dict[Any, Placement]] = weakref.WeakKeyDictionary()


def install_methods(module: Any) -> None:
    """Worker groups made from now on have the methods. In workers, and in the driver before it makes them.

    :param module: verl.workers.engine_workers
    :raises InvalidInput: when it has no such workers
    """
    worker = module.ActorRolloutRefWorker
    if ASK in vars(worker):
        return
    need_function("verl", worker, "init_model", ["self"])
    everywhere = module.register(dispatch_mode=module.Dispatch.ONE_TO_ALL)
    for method in (routepack_placement, routepack_move, routepack_obeys):
        _REPLACED.put(worker, method.__name__, everywhere(method))
    critic = getattr(module, "TrainingWorker", None)  # may have processes of its own
    if critic is not None:
        _REPLACED.put(critic, routepack_obeys.__name__, everywhere(routepack_obeys))


def install_checkpoints(module: Any) -> None:
    """:param module: verl.utils.checkpoint.megatron_checkpoint_manager
    :raises InvalidInput: when it has no such hooks
    """
    manager = module.MegatronCheckpointManager
    if _hooked(manager, _LOAD):
        return
    where = need_function("verl", module, "get_optimizer_dist_checkpoint_path", ["checkpoint_path"])
    need_function("verl", manager, _BUILD, ["self", "model_sharded_state_dict", "metadata", "is_loading"])
    need_function("verl", manager, _SAVE, ["self", "dist_checkpoint_path", "state_dict"])
    need_function("verl", manager, _LOAD, ["self", "local_path"], calls=_BUILD)
    need_function("verl", manager, "save_checkpoint", ["self", "local_path"], calls=_BUILD)
    _REPLACED.put(manager, _BUILD, _stamping(vars(manager)[_BUILD]))
    _REPLACED.put(manager, _SAVE, _writing(vars(manager)[_SAVE]))
    _REPLACED.put(manager, _LOAD, _restoring(vars(manager)[_LOAD], where))


def install_copies(module: Any) -> None:
    """:param module: verl.experimental.separation.engine_workers
    :raises InvalidInput: when it has no such hooks
    """
    worker = module.DetachActorWorker
    if _hooked(worker, _COPY):
        return
    for name, how in ((_COPY, _keeping), (_BACK, _bringing_back), (_FORGET, _forgetting)):
        need_function("verl", worker, name, ["self", "n"])
        _REPLACED.put(worker, name, how(vars(worker)[name]))


def install_engine(module: Any) -> None:
    """:param module: verl.workers.engine.megatron.transformer_impl
    :raises InvalidInput: when it has no such engine
    """
    engine = module.MegatronEngine
    need_function("verl", engine, "train_mode", ["self"])
    if _DELTA in vars(engine) and not _hooked(engine, _DELTA):
        _REPLACED.put(engine, _DELTA, _no_deltas(vars(engine)[_DELTA]))


#: modules of verl, and what goes into them; a worker has them only once it has imported them
HOOKS = {
    METHODS: install_methods,
    "verl.utils.checkpoint.megatron_checkpoint_manager": install_checkpoints,
    "verl.workers.engine.megatron.transformer_impl": install_engine,
    "verl.experimental.separation.engine_workers": install_copies,
}


def uninstall() -> None:
    """Takes the hooks of this process out again."""
    _REPLACED.put_back()


def routepack_placement(self: Any, attach: bool = True) -> Told:
    """Where the experts of a worker's actor are. Collective over all ranks of the actor.

    :param attach: they are to move from now on; False: only asks
    """
    engine = _engine(self)
    experts = None if engine is None else _of(engine.module)
    if experts is None and attach:
        try:
            experts = _attach(self, engine)
        except InvalidInput as refusal:  # on all ranks alike
            return None, 0, " ".join(str(refusal).split())
    return (None, 0, "") if experts is None else (experts.placement, experts.epoch, "")


def routepack_move(self: Any, placement: Placement, epoch: int) -> Told:
    """Moves the experts of a worker's actor: weights and states are on the device meanwhile. Collective.

    :returns: where experts are now, and why they stayed when they did
    :raises MoveFailed: when training cannot go on
    """
    engine = _engine(self)
    experts = None if engine is None else _of(engine.module)
    if experts is None:
        raise InvalidInput("verl: asked to move experts before it was asked where they are")
    with engine.train_mode():
        failed = experts.try_move(placement, epoch)
    return experts.placement, experts.epoch, failed


def refuse(engine: Any, config: Any) -> None:
    """:param config: actor_rollout_ref
    :raises InvalidInput: naming what forbids that experts move
    """
    if engine is None or not all(hasattr(engine, name) for name in ("module", "optimizer", "bridge", "train_mode")):
        raise InvalidInput(f"verl: found {type(engine).__name__}, wanted an actor with verl's Megatron engine")
    if engine.optimizer is None:
        raise InvalidInput("verl: found an actor without an optimizer, wanted one that is trained")
    if getattr(engine, "peft_cls", None) is not None:
        raise InvalidInput("verl: found LoRA, wanted all weights trained: experts of a frozen model cannot move")
    if getattr(engine, "_qat_enabled", False):
        raise InvalidInput("verl: found qat.enable, whose exporter numbers experts by itself; wanted it off")
    manager = getattr(engine, "checkpoint_mananager", None) or getattr(engine, "checkpoint_manager", None)
    if not _hooked(type(manager), _LOAD):
        raise InvalidInput(f"verl: {type(manager).__name__}: found no hooks, wanted routepack.adapters.verl_auto in it")
    refuse_settings(config)


def refuse_settings(config: Any) -> None:
    """The same by what verl's configuration says, before there is an engine."""
    strategy = look_up(config, "actor.strategy")
    if strategy != "megatron":
        raise InvalidInput(f"verl: found actor.strategy={strategy}, wanted megatron to move experts in")
    for name in ("model.lora_rank", "model.lora.rank", "model.lora_adapter_path"):
        if look_up(config, name):
            raise InvalidInput(
                f"verl: found {name}={look_up(config, name)}, wanted all weights trained to move experts"
            )
    for name in ("actor.megatron.use_megatron_fsdp", "actor.megatron.qat.enable"):
        if look_up(config, name):
            raise InvalidInput(f"verl: found {name}, wanted it off to move experts")
    backend = look_up(config, "rollout.checkpoint_engine.backend")
    if backend == "delta_sharded":
        raise InvalidInput(
            "verl: rollout.checkpoint_engine.backend=delta_sharded compares weights rank by rank, and would take an "
            "expert that moved for a changed one; wanted another one, or mode='packing'"
        )


def _engine(worker: Any) -> Any:
    return getattr(getattr(worker, "actor", None), "engine", None)


def _of(chunks: Any) -> WorkerExperts | None:
    from routepack.adapters import experts

    return experts.of_model(chunks)


def _attach(worker: Any, engine: Any) -> WorkerExperts:
    refuse(engine, worker.config)
    copies = getattr(worker, _COPY, None)
    if copies is not None and not _hooked(type(worker), _COPY):
        raise InvalidInput(f"verl: {type(worker).__name__}.{_COPY}: found no hook, wanted routepack.adapters.verl_auto")
    return _attached(engine.module, engine.optimizer, bool(getattr(engine, "vanilla_bridge", False)))


def _attached(chunks: Any, optimizer: Any, vanilla: bool) -> WorkerExperts:
    from routepack.adapters import experts

    if any(name.endswith("weight_quantizer") for chunk in chunks for name, _ in chunk.named_modules()):
        raise InvalidInput("verl: found quantizers in the model (qat.enable), whose exporter numbers experts by itself")
    if vanilla:
        from routepack.adapters import _mbridge

        _mbridge.install()
    else:
        from routepack.adapters import _megatron_bridge

        _megatron_bridge.install()
    made = experts.attach(chunks, optimizer)
    chunks[0].routepack_experts = made  # as long as the model is there
    return made


def _stamping(original: Any) -> Any:
    @functools.wraps(original)
    def _build_optimizer_state_dict(
        self: Any, model_sharded_state_dict: Any, metadata: Any, is_loading: bool = False, **more: Any
    ) -> Any:
        made = original(self, model_sharded_state_dict, metadata, is_loading=is_loading, **more)
        experts = _of(self.model)
        if experts is not None and not is_loading:
            if experts.shown != experts.placement:
                raise InvalidInput("verl: found a copy's weights in the slots, wanted those in training to save them")
            made[STAMP] = experts.stamp()
        return made

    return _build_optimizer_state_dict


def _writing(original: Any) -> Any:
    @functools.wraps(original)
    def _save_dist_checkpoint(self: Any, dist_checkpoint_path: str, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, dist_checkpoint_path, state_dict, *args, **kwargs)
        experts = _of(self.model) if STAMP in state_dict else None
        if experts is not None:
            experts.save(dist_checkpoint_path)
        return made

    return _save_dist_checkpoint


def _restoring(original: Any, where: Any) -> Any:
    @functools.wraps(original)
    def load_checkpoint(self: Any, local_path: Any, *args: Any, **kwargs: Any) -> Any:
        # Weights alone are named by expert, and come right whatever the placement.
        if local_path and os.path.isdir(local_path) and self.should_load_optimizer and self.role == "actor":
            _restore(self, where(local_path))
        return original(self, local_path, *args, **kwargs)

    return load_checkpoint


def _restore(manager: Any, folder: str) -> None:
    """Experts are where optimizer state is about to be loaded from; also of a trainer that moves none by itself."""
    from routepack.adapters._dist_checkpoint import names_experts, stamp_of

    experts = _of(manager.model)
    if experts is None and (stamp_of(folder) is not None or placement_path(folder).is_file()):
        try:
            experts = _attached(manager.model, manager.optimizer, bool(manager.vanilla_bridge))
        except InvalidInput:  # on all ranks alike, as with an expert-parallel size of 1
            if not names_experts(folder):
                raise
    if experts is not None:
        experts.restore(folder)


def _keeping(original: Any) -> Any:
    @functools.wraps(original)
    def save_model_to_cpu(self: Any, n: Any) -> Any:
        experts = _of(self.actor.engine.module)
        made = original(self, n)
        if experts is not None:
            _TAKEN.setdefault(self, {})[n] = experts.shown
        return made

    return save_model_to_cpu


def _bringing_back(original: Any) -> Any:
    @functools.wraps(original)
    def restore_model_from_cpu(self: Any, n: Any) -> Any:
        experts = _of(self.actor.engine.module)
        if experts is not None and n in getattr(self, "cpu_saved_models", {}):
            here = experts.placement
            experts.show(_TAKEN.get(self, {}).get(n, home_of(here)))  # taken before experts could move
        return original(self, n)

    return restore_model_from_cpu


def _forgetting(original: Any) -> Any:
    @functools.wraps(original)
    def clear_cpu_model(self: Any, n: Any) -> Any:
        _TAKEN.get(self, {}).pop(n, None)
        return original(self, n)

    return clear_cpu_model


def _no_deltas(original: Any) -> Any:
    @functools.wraps(original)
    def _mcore_export_index(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _of(self.module) is not None:
            raise InvalidInput("verl: found experts that move, wanted none of them for an export of deltas")
        return original(self, *args, **kwargs)

    return _mcore_export_index


def _hooked(owner: Any, name: str) -> bool:
    return any(_REPLACED.has(kind, name) for kind in owner.__mro__)


def install() -> None:
    """All hooks, in this process. @raises InvalidInput when this verl does not have them"""
    for name, how in HOOKS.items():
        how(module_of("verl", name))


__all__ = ["ASK", "HOOKS", "MOVE", "install", "refuse", "refuse_settings", "uninstall"]
