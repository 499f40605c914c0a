# SPDX-License-Identifier: Apache-2.0
"""Where slime's training actors have to know which expert is in which slot. One actor per process.

- setup and load: experts are attached between them, and a checkpoint's placement is known before it is loaded;
- names: `_named_params_and_buffers_global` names experts, for weight sync, HF export, HF load and kept copies;
- kept copies (`TensorBackuper`: actor, ref, teacher, old_actor, rollout_actor): each has the placement under which it
  was taken, and dispatchers and names follow it when it is restored. After a move the actor's own copy follows its
  experts;
- weight sync by tensors keeps lists of who holds what: made anew after a move.

Source: slime/backends/megatron_utils/{actor,model,checkpoint}.py, update_weight/*.py beside them,
slime/utils/tensor_backper.py at commit 624b824a.
"""

from __future__ import annotations

import functools
import logging
import pathlib
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from routepack._core import Placement
from routepack._errors import InvalidInput
from routepack.adapters._hooks import Replaced, need_function
from routepack.adapters.slime import PLACEMENT, placement_message, placement_of

if TYPE_CHECKING:
    from routepack.adapters.experts import WorkerExperts

_LOG = logging.getLogger("routepack")
_REPLACED = Replaced()
_EXPERTS: WorkerExperts | None = None
#: of each holder of copies: tag → the placement under which it was taken
_TAKEN: weakref.WeakKeyDictionary[Any, dict[str, Placement]] = weakref.WeakKeyDictionary()
#: of each weight updater: the placement of its lists, and with what expert routing was configured last
_LISTS: weakref.WeakKeyDictionary[Any, Placement] = weakref.WeakKeyDictionary()
_ROUTED: dict[str, Any] = {}
_ROLE = "actor"
TRAINED = "actor"  #: the tag of the weights in training


def current() -> WorkerExperts | None:
    """The experts of this process's actor; None for a critic, or before the model is there."""
    return _EXPERTS


def install(*, model: Any = None, common: Any = None, backuper: Any = None, tensor: Any = None) -> None:
    """Puts the hooks in. Modules that are None are left alone.

    :param model: slime.backends.megatron_utils.model
    :param common: …update_weight.common
    :param backuper: slime.utils.tensor_backper
    :param tensor: …update_weight.update_weight_from_tensor
    :raises InvalidInput: when one of them has no such hook
    """
    if model is not None:
        setup = need_function("slime", model, "setup_model_and_optimizer", ["args", "role"])
        load = need_function("slime", model, "load_checkpoint", ["ddp_model", "optimizer"])
        _REPLACED.put(model, "setup_model_and_optimizer", _attaching(setup))
        _REPLACED.put(model, "load_checkpoint", _restoring(load))
    if common is not None:
        name = "_named_params_and_buffers_global"
        _REPLACED.put(common, name, _naming(need_function("slime", common, name, ["args", "model"])))
    if backuper is not None:
        holder = backuper._TensorBackuperNormal
        for name, parameters, how in (
            ("backup", ["self", "tag"], _keeping),
            ("restore", ["self", "tag"], _bringing_back),
            ("copy", ["self", "src_tag", "dst_tag"], _copying),
        ):
            need_function("slime", holder, name, parameters)
            _REPLACED.put(holder, name, how(vars(holder)[name]))
    if tensor is not None:
        updater = tensor.UpdateWeightFromTensor
        update = need_function("slime", updater, "update_weights", ["self"], calls="get_hf_weight_chunks")
        configure = need_function("slime", tensor, "configure_expert_routing", ["full_param_info_buckets"])
        made = need_function("slime", updater, "__init__", ["self", "args", "model"])
        _REPLACED.put(tensor, "configure_expert_routing", _remembering(configure))
        _REPLACED.put(updater, "__init__", _listing(made))
        _REPLACED.put(updater, "update_weights", _syncing(update, tensor))


def uninstall() -> None:
    """Takes the hooks out again, and forgets the experts."""
    global _EXPERTS
    _REPLACED.put_back()
    _EXPERTS = None
    _ROUTED.clear()


def refuse(args: Any, hint: str = ", or mode='packing'") -> None:
    """Settings of slime under which experts cannot move. @raises InvalidInput naming the setting

    :param hint: what else would help
    """
    if getattr(args, "update_weight_mode", "full") == "delta":
        raise InvalidInput(
            "slime: --update-weight-mode=delta compares weights rank by rank, and would take an expert that moved for "
            f"a changed one; wanted full{hint}"
        )
    if getattr(args, "ckpt_format", "torch_dist") != "torch_dist":
        raise InvalidInput(
            f"slime: found --ckpt-format {args.ckpt_format}, wanted torch_dist, whose names can say which expert it is"
        )
    if getattr(args, "train_backend", "megatron") != "megatron":
        raise InvalidInput(f"slime: found --train-backend {args.train_backend}, wanted megatron to move experts in")


def use(experts: WorkerExperts | None) -> None:
    """What `setup_model_and_optimizer` attaches; tests attach themselves."""
    global _EXPERTS
    _EXPERTS = experts
    if experts is not None:
        experts.on_move(_follow)


def move(actor: Any, message: Any) -> None:
    """Before the first pass over a batch. Collective over all ranks: the weights in training go into the slots, then
    experts move. A move that failed whole leaves a step that trains with experts where they were, on all ranks.

    :param actor: slime's, which knows whose weights are in the slots, and the rollout manager
    :param message: what came with the rollout data
    """
    if _EXPERTS is None:
        raise InvalidInput("slime: found a placement for an actor without experts")
    if actor._active_model_tag != TRAINED:
        actor._switch_model(TRAINED)
    failed = _EXPERTS.try_move(*placement_of(message))
    if failed:
        _LOG.warning("routepack: experts were not moved, and the step trains where they are: %s", failed)
        _tell(actor, _EXPERTS, failed)


def _tell(actor: Any, experts: WorkerExperts, failed: str) -> None:
    """The rollout manager plans on from where experts are. Nobody waits: it may be in the middle of a rollout."""
    here = placement_message(experts.placement.physical_to_logical, experts.placement.ranks, experts.epoch, failed)
    actor.train_parallel_config = {**actor.train_parallel_config, PLACEMENT: here}
    if actor.args.rank == 0:  # as in slime's set_rollout_manager
        actor.rollout_manager.set_train_parallel_config.remote(actor.train_parallel_config)


def checkpoint_folder(load: Any, step: Any = None) -> pathlib.Path | None:
    """Where Megatron's training loop would load from: `iter_0000010` of a folder that says so, or `release`."""
    if not load:
        return None
    folder = pathlib.Path(load)
    if (folder / "metadata.json").is_file():
        return folder
    tracker = folder / "latest_checkpointed_iteration.txt"
    if step is None and not tracker.is_file():
        return None
    said = str(step) if step is not None else tracker.read_text(encoding="utf-8").strip()
    return folder / ("release" if said == "release" else f"iter_{int(said):07d}")


def _attaching(original: Any) -> Any:
    @functools.wraps(original)
    def setup_model_and_optimizer(args: Any, role: str = _ROLE, *rest: Any, **more: Any) -> Any:
        made = original(args, role, *rest, **more)
        if role == _ROLE and made[1] is not None:
            from routepack.adapters import experts

            refuse(args)
            use(experts.attach(made[0], made[1]))
        return made

    return setup_model_and_optimizer


def _restoring(original: Any) -> Any:
    @functools.wraps(original)
    def load_checkpoint(ddp_model: Any, optimizer: Any, *rest: Any, **more: Any) -> Any:
        if _EXPERTS is not None and optimizer is not None:
            args = original.__globals__["get_args"]()
            folder = checkpoint_folder(args.load, getattr(args, "ckpt_step", None))
            # Weights alone are named by expert in any checkpoint, and come right whatever the placement.
            if folder is not None and not args.no_load_optim and not args.finetune:
                _EXPERTS.restore(folder)
        return original(ddp_model, optimizer, *rest, **more)

    return load_checkpoint


def _naming(original: Any) -> Any:
    @functools.wraps(original)
    def _named_params_and_buffers_global(args: Any, model: Any) -> Iterator[tuple[str, Any]]:
        for name, tensor in original(args, model):
            if _EXPERTS is None:
                yield name, tensor
                continue
            if ".local_experts." in name:
                raise InvalidInput(f"{name}: found SequentialMLP, wanted grouped experts, as slime's own export does")
            yield _EXPERTS.logical_name(name), tensor

    return _named_params_and_buffers_global


def _keeping(original: Any) -> Any:
    @functools.wraps(original)
    def backup(self: Any, tag: str) -> None:
        if _EXPERTS is not None:
            taken = _TAKEN.setdefault(self, {})
            _rename(self, tag, taken.get(tag), _EXPERTS.shown)
            taken[tag] = _EXPERTS.shown
        original(self, tag)

    return backup


def _bringing_back(original: Any) -> Any:
    @functools.wraps(original)
    def restore(self: Any, tag: str) -> None:
        if _EXPERTS is not None:
            if tag not in _TAKEN.get(self, {}):
                raise InvalidInput(f"slime: found a copy {tag} without the placement under which it was taken")
            _EXPERTS.show(_TAKEN[self][tag])
        original(self, tag)

    return restore


def _copying(original: Any) -> Any:
    @functools.wraps(original)
    def copy(self: Any, *, src_tag: str, dst_tag: str) -> None:
        if _EXPERTS is not None:
            taken = _TAKEN.setdefault(self, {})
            _rename(self, dst_tag, taken.get(dst_tag), taken[src_tag])
            taken[dst_tag] = taken[src_tag]
        original(self, src_tag=src_tag, dst_tag=dst_tag)

    return copy


def _rename(holder: Any, tag: str, old: Placement | None, new: Placement) -> list[str]:
    """The buffers of a copy under the names of another placement, slot by slot; what they hold is still the old
    experts'. @returns names of slots that have another expert now"""
    if old is None or old == new:
        return []
    before, after = _names(holder, old), _names(holder, new)
    kept = holder._backups[tag]
    holder._backups[tag] = {now: kept[then] for then, now in zip(before, after, strict=True)}
    return [now for then, now in zip(before, after, strict=True) if then != now]


def _names(holder: Any, placement: Placement) -> list[str]:
    assert _EXPERTS is not None
    with _EXPERTS.under(placement):
        return [name for name, _ in holder._source_getter()]


def _follow(before: Placement, after: Placement) -> None:
    """After a move: the copy of the weights in training has the experts that are here now."""
    if before == after:
        return
    import torch

    for holder, taken in list(_TAKEN.items()):
        if taken.get(TRAINED) != before:
            continue  # taken earlier, under a placement of its own
        changed = set(_rename(holder, TRAINED, before, after))
        taken[TRAINED] = after
        kept = holder._backups[TRAINED]
        with torch.no_grad():
            for name, tensor in holder._source_getter():
                if name in changed:
                    kept[name].copy_(tensor.detach())


def _listing(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _EXPERTS is not None:
            _LISTS[self] = _EXPERTS.shown

    return __init__


def _remembering(original: Any) -> Any:
    @functools.wraps(original)
    def configure_expert_routing(**kwargs: Any) -> Any:
        _ROUTED.clear()
        _ROUTED.update(kwargs)
        return original(**kwargs)

    return configure_expert_routing


def _syncing(original: Any, owner: Any) -> Any:
    @functools.wraps(original)
    def update_weights(self: Any) -> Any:
        if _EXPERTS is not None and _LISTS.get(self) != _EXPERTS.placement:
            _list_again(self, owner)
            _LISTS[self] = _EXPERTS.placement
        return original(self)

    return update_weights


def _list_again(updater: Any, owner: Any) -> None:
    """Which rank has what, and which engine needs it. Collective, as the lists were when they were made first."""
    iterator = updater._hf_weight_iterator
    infos = type(iterator).__init__.__globals__["_get_megatron_local_param_info_buckets"]
    iterator.megatron_local_param_info_buckets = infos(iterator.args, iterator.model)
    updater._full_param_info_buckets = tuple(tuple(some) for some in iterator.megatron_local_param_info_buckets)
    if _ROUTED:
        again = {**_ROUTED, "full_param_info_buckets": updater._full_param_info_buckets}
        configure: Callable[..., Any] = owner.configure_expert_routing
        updater._non_expert_param_info_buckets, updater._expert_transfer_plan = configure(**again)


__all__ = ["TRAINED", "checkpoint_folder", "current", "install", "move", "refuse", "uninstall", "use"]
