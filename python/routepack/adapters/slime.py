# SPDX-License-Identifier: Apache-2.0
"""slime: `build_dp_schedule` answers with RoutePack's layout.

    from routepack.adapters import Settings, slime
    slime.install(Settings(cost="cost.toml"))      # in train.py, before the rollout manager is made

or, without touching a file, `python -m routepack.adapters.slime train.py …` with ROUTEPACK_COST=cost.toml.

slime makes one schedule per rollout batch on its rollout manager, and every pass uses it: replay, reference and old
log-probs, training. The schedule that slime makes itself says which samples belong to which optimizer step, so those
boundaries are slime's own, and it is what the step runs on when there is no plan. With mode 'placement' or 'both' the
placement travels with the rollout data of each rank, and the training actors move experts before the first pass
(`slime_worker`).
Source: slime/ray/rollout.py, slime/ray/actor_group.py, slime/utils/dp_schedule.py at commit 624b824a.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import itertools
import logging
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from routepack import exporters
from routepack._core import Constraints, Placement
from routepack._errors import InvalidInput
from routepack.adapters._hooks import module_of, need_function, or_nothing, plain_class, run_script, with_global
from routepack.adapters._reasons import FallBack, Reason
from routepack.adapters._routes import RouteCounts
from routepack.adapters._session import PlannedStep, Session, Step, StepWindow
from routepack.adapters._settings import Settings
from routepack.adapters._topology import topology_of_sizes

_LOG = logging.getLogger("routepack")
_BUILD = "build_dp_schedule"
_SPLIT = "_split_train_data_by_dp"
_ROUTES = "rollout_routed_experts"
_SHIP = "tensorize_rollout_data_for_training"
_ALLOCATE = "_allocate_gpus_for_actor"
#: of a rank's rollout data, and of what training actors tell the manager: maps, ranks and epoch of a placement
PLACEMENT = "routepack_placement"

Schedule = tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]

_REPLACED: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_CHOSEN: weakref.WeakKeyDictionary[Any, Settings] = weakref.WeakKeyDictionary()  #: of each class of groups
_SESSIONS: weakref.WeakKeyDictionary[Any, Session] = weakref.WeakKeyDictionary()
_TOLD: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # what the actors of a manager said last
_MOVED: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # what goes with the batch that is cut now
#: of this process: the hook for samples and the manager meet here
_COUNTS: dict[tuple[int, tuple[int, ...]], RouteCounts] = {}


def install(settings: Settings | None = None, *, module: Any = None, group_module: Any = None) -> None:
    """Makes slime's rollout manager plan. Call it in the driver before the manager is made; twice is fine.

    With mode 'placement' or 'both', and no `on_placement`, training actors made from now on move experts. Otherwise
    those of a checkpoint whose experts had moved keep them where they are.

    :param settings: None: from the environment (ROUTEPACK_COST and so on)
    :param module: instead of slime.ray.rollout
    :param group_module: instead of slime.ray.actor_group
    :raises Error: when this slime has no such hook, or a setting is wrong
    """
    chosen = (settings or Settings.from_environment()).with_cost_text()
    chosen.check()

    def take_out() -> None:
        with contextlib.suppress(InvalidInput):  # no slime
            uninstall(module=module, group_module=group_module)

    with or_nothing(take_out, switched_off=not chosen.enabled):
        _install(chosen, module, group_module)


def _install(chosen: Settings, module: Any, group_module: Any) -> None:
    owner = module or module_of("slime", "slime.ray.rollout")
    manager = plain_class(owner.RolloutManager)
    if chosen.moves_itself:
        inner = getattr(manager, "routepack_split", None)
        split = inner if inner is not None else inspect.getattr_static(manager, _SPLIT, None)
        if _SHIP not in getattr(getattr(inspect.unwrap(split), "__code__", None), "co_names", ()):
            raise InvalidInput(
                f"slime: {_SPLIT} does not call {_SHIP}, so that a placement cannot travel with the rollout data; "
                "wanted mode='packing', or on_placement"
            )
        _choose_actors(group_module or module_of("slime", "slime.ray.actor_group"), chosen)
    else:
        with contextlib.suppress(InvalidInput):  # a slime without them, whose actors are its own
            _choose_actors(group_module or module_of("slime", "slime.ray.actor_group"), chosen)
    manager.routepack_settings = chosen
    if getattr(manager, "routepack_split", None) is not None:
        return
    original = need_function("slime", manager, _SPLIT, ["self", "data"], calls=_BUILD)
    need_function(
        "slime",
        owner,
        _BUILD,
        ["args", "train_parallel_config", "total_lengths", "global_batch_size", "rollout_indices"],
    )
    manager.routepack_split = staticmethod(original)
    _REPLACED[manager] = inspect.getattr_static(manager, _SPLIT)
    setattr(manager, _SPLIT, split_train_data)


def _choose_actors(owner: Any, settings: Settings) -> None:
    """Groups of training actors made from now on are of the class that knows where experts are: when experts move, and
    for a checkpoint whose experts had moved."""
    group = owner.RayTrainGroup
    if group in _REPLACED:
        _CHOSEN[group] = settings
        return
    original = need_function("slime", group, _ALLOCATE, ["self"], calls="_actor_cls")

    def _allocate_gpus_for_actor(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.role == "actor":
            _choose_actor(self, _CHOSEN[group])
        return original(self, *args, **kwargs)

    _CHOSEN[group] = settings
    _REPLACED[group] = original
    setattr(group, _ALLOCATE, _allocate_gpus_for_actor)


def _choose_actor(group: Any, settings: Settings) -> None:
    found = ""
    if not settings.moves_itself:
        if settings.mode != "packing" and settings.on_placement is not None:
            return  # whoever moves them restores them
        found = _away(getattr(group, "args", None))
        if not found:
            return
        from routepack.adapters import slime_experts

        try:
            slime_experts.refuse(group.args, hint="")
        except InvalidInput as error:
            raise InvalidInput(f"{found}, and actors that know where are not to be had: {error}") from error
    from routepack.adapters.slime_worker import MovingTrainRayActor

    own = group._actor_cls
    if own is None:
        group._actor_cls = MovingTrainRayActor
    elif not issubclass(own, MovingTrainRayActor):
        why = found or "with mode='placement' or 'both'"
        raise InvalidInput(
            f"slime: found an actor class of your own, {own.__name__}; {why}: it must inherit from "
            "routepack.adapters.slime_worker.MovingTrainRayActor"
        )


def _away(args: Any) -> str:
    """Why the checkpoint that training starts from needs actors that know where experts are; "": it does not. Weights
    alone are named by expert."""
    from routepack.adapters import _resume, slime_experts

    if getattr(args, "no_load_optim", False) or getattr(args, "finetune", False):
        return ""
    folder = slime_experts.checkpoint_folder(getattr(args, "load", None), getattr(args, "ckpt_step", None))
    return "" if folder is None else _resume.away(folder)


def uninstall(*, module: Any = None, group_module: Any = None) -> None:
    """Takes the hook out again, for managers that are made later."""
    owner = group_module or sys.modules.get("slime.ray.actor_group")
    group = getattr(owner, "RayTrainGroup", None)
    if group in _REPLACED:
        setattr(group, _ALLOCATE, _REPLACED.pop(group))
    manager = plain_class((module or module_of("slime", "slime.ray.rollout")).RolloutManager)
    if manager in _REPLACED:
        setattr(manager, _SPLIT, _REPLACED.pop(manager))
        manager.routepack_split = None


def split_train_data(self: Any, data: Any) -> Any:
    """What stands for `RolloutManager._split_train_data_by_dp`: the original, with another schedule inside."""
    original = type(self).routepack_split
    build = original.__globals__[_BUILD]

    def schedule(*args: Any, **kwargs: Any) -> Any:
        own = build(*args, **kwargs)  # what it raises is slime's to raise
        session = session_of(self)
        try:
            given = inspect.signature(build).bind(*args, **kwargs).arguments
            _follow(self, session)
        except Exception as error:
            session.failed(error)
            return own
        made = session.run(
            lambda: step_of(given["args"], given["train_parallel_config"], given["total_lengths"], own, data),
            lambda planned: schedule_of(
                given["train_parallel_config"], given["args"], own, planned, given["total_lengths"]
            ),
        )
        return own if made is None else made

    hooked = with_global(original, _BUILD, schedule)
    if type(self).routepack_settings.moves_itself:
        ship = original.__globals__[_SHIP]

        def with_placement(rollout_data: Any, *args: Any, **kwargs: Any) -> Any:
            if self in _MOVED:
                rollout_data[PLACEMENT] = _MOVED[self]
            return ship(rollout_data, *args, **kwargs)

        hooked = with_global(hooked, _SHIP, with_placement)
    _MOVED.pop(self, None)
    try:
        return hooked(self, data)
    finally:
        _MOVED.pop(self, None)


def placement_message(physical_to_logical: Any, ranks: int, epoch: int, failed: str = "") -> dict[str, Any]:
    """A placement as it travels; from actors whose move of that epoch failed, with the reason."""
    maps = np.array(physical_to_logical, dtype=np.int32)
    return {"maps": maps, "ranks": int(ranks), "epoch": int(epoch), "failed": failed}


def placement_of(message: Any) -> tuple[Placement, int]:
    """The inverse of `placement_message`."""
    maps = np.ascontiguousarray(message["maps"], dtype=np.int32)
    return Placement.from_maps(ranks=int(message["ranks"]), physical_to_logical=maps), int(message["epoch"])


def _follow(manager: Any, session: Session) -> None:
    """The session plans from where training actors say that experts are: at the start, after a checkpoint, and after a
    move that failed, unless a later one has been asked for since."""
    told = (getattr(manager, "train_parallel_config", None) or {}).get(PLACEMENT)
    if told is None or told is _TOLD.get(manager):
        return
    _TOLD[manager] = told
    if told["failed"]:
        session.not_moved(told["failed"])
    if not told["failed"] or int(told["epoch"]) >= session.epoch:
        session.resume(told["maps"], int(told["epoch"]))


def _ship(manager: Any, placement: Placement, epoch: int) -> None:
    """For the rollout data of every rank: the actors move when they get it."""
    told = (getattr(manager, "train_parallel_config", None) or {}).get(PLACEMENT)
    if told is None:
        raise InvalidInput("the training actors said nothing of experts; wanted actors that were made after install")
    found, wanted = placement.physical_to_logical.shape, told["maps"].shape
    if found != wanted or placement.ranks != told["ranks"]:
        raise InvalidInput(
            f"found a placement of {list(found)} layers and experts on {placement.ranks} ranks, wanted {list(wanted)} "
            f"on {told['ranks']}, as training actors have them"
        )
    _MOVED[manager] = placement_message(placement.physical_to_logical, placement.ranks, epoch)


def count_sample(args: Any, sample: Any, *, rollout_id: Any = None, evaluation: bool = False) -> None:
    """For `--rollout-sample-hook-path routepack.adapters.slime.count_sample`: counts routes as samples arrive.

    Without it they are counted when the batch is split, which takes longer than the plan. Never raises.
    """
    routes = getattr(sample, _ROUTES, None)
    if evaluation or routes is None:
        return
    try:
        _counts(args, int(routes.shape[1])).remember(routes)
    except Exception as error:
        _LOG.debug("routepack: routes of a sample were not counted: %s", error)  # the split will say it, if it is so


def step_of(args: Any, parallel: Any, total_lengths: Sequence[int], own: Schedule, data: Any) -> Step:
    """Windows of slime's optimizer steps, and the limits of its microbatches.

    :param own: slime's schedule, which says who belongs to which step
    :raises FallBack: when slime does what no plan can stand for, or routes are missing
    """
    if not getattr(args, "use_dynamic_batch_size", False):
        raise FallBack(Reason.UNSUPPORTED, "microbatches of fixed size: plans need --use-dynamic-batch-size")
    routes = data.get(_ROUTES)
    if routes is None or all(some is None for some in routes):
        raise FallBack(
            Reason.NO_ROUTES, "the samples have no rollout_routed_experts; is --use-rollout-routing-replay on?"
        )
    if len(routes) != len(total_lengths):
        raise FallBack(Reason.BAD_INPUT, f"found routes of {len(routes)} samples, wanted {len(total_lengths)}")
    shape = next(tuple(some.shape) for some in routes if some is not None)
    if len(shape) != 3:
        raise FallBack(Reason.BAD_INPUT, f"{_ROUTES}: found shape {list(shape)}, wanted [tokens - 1, layers, k]")
    counted = _counts(args, int(shape[1])).of(routes, lengths=total_lengths)
    windows = [
        StepWindow(np.array([total_lengths[i] for i in members], dtype=np.int32), [counted[i] for i in members])
        for members in members_of_steps(own)
    ]
    cp, tp = int(parallel["cp_size"]), _size(args, "tensor_model_parallel_size")
    zigzag = cp > 1 and not getattr(args, "allgather_cp", False)
    return Step(
        windows=windows,
        top_k=int(shape[2]),
        topology=topology_of_sizes(
            dp=int(parallel["dp_size"]),
            ep=_size(args, "expert_model_parallel_size"),
            tp=tp,
            cp=cp,
            etp=_size(args, "expert_tensor_parallel_size", tp),  # Megatron's own default
            pp=_size(args, "pipeline_model_parallel_size"),
        ),
        capacity=int(args.max_tokens_per_gpu) * cp,
        constraints=Constraints(
            sample_multiple=2 * cp if zigzag else 1,
            row_multiple=_group(parallel),
            oversized="own-cell",  # as slime does
        ),
    )


def members_of_steps(own: Schedule) -> list[list[int]]:
    """Positions of the samples of each optimizer step, in order, from slime's own schedule.

    >>> members_of_steps(([[0, 2], [3, 1]], [[[0], [1]], [[0], [1]]], [1, 1], [2, 2]))
    [[0, 3], [1, 2]]
    """
    partitions, micro_batch_indices, num_microbatches, _ = own
    steps: list[list[int]] = [[] for _ in num_microbatches]
    ends = list(itertools.accumulate(num_microbatches))
    for partition, cells in zip(partitions, micro_batch_indices, strict=True):
        begin = 0
        for members, end in zip(steps, ends, strict=True):
            members.extend(partition[i] for cell in cells[begin:end] for i in cell)
            begin = end
    return [sorted(members) for members in steps]


def schedule_of(
    parallel: Any, args: Any, own: Schedule, planned: list[PlannedStep], total_lengths: Sequence[int]
) -> Schedule:
    """The plan as `build_dp_schedule` would return it."""
    members = members_of_steps(own)
    made = exporters.slime(
        [step.plan for step in planned],
        lengths=[np.array([total_lengths[i] for i in some], dtype=np.int64) for some in members],
        max_tokens_per_gpu=int(args.max_tokens_per_gpu),
        cp_size=int(parallel["cp_size"]),
        microbatch_group_size_per_vp_stage=_group(parallel),
        positions=members,
    )
    return made.partitions, made.micro_batch_indices, made.num_microbatches, list(own[3])


def moe_layers(args: Any, layers: int) -> list[int]:
    """Global numbers of the layers that have experts, as slime's replay chooses them."""
    frequency = getattr(args, "moe_layer_freq", 1)
    if isinstance(frequency, (list, tuple)):
        if len(frequency) < layers:
            raise InvalidInput(f"moe_layer_freq: found {len(frequency)} entries, wanted {layers}")
        return [layer for layer in range(layers) if int(frequency[layer]) != 0]
    every = int(frequency or 1)
    return [layer for layer in range(layers) if layer % every == 0]


def _counts(args: Any, layers: int) -> RouteCounts:
    experts = int(getattr(args, "num_experts", None) or 0)
    if experts < 1:
        raise FallBack(Reason.UNSUPPORTED, "the model has no experts (num_experts)")
    kept = tuple(moe_layers(args, layers))
    key = (experts, kept)
    if key not in _COUNTS:
        _COUNTS[key] = RouteCounts(experts=experts, layers=kept)
    return _COUNTS[key]


def session_of(manager: Any) -> Session:
    """The session of a rollout manager, made at its first batch; its `metrics` are those of the last step."""
    session = _SESSIONS.get(manager)
    if session is None:
        settings = _logged(manager, type(manager).routepack_settings)
        if settings.moves_itself:
            mine = weakref.ref(manager)
            settings = dataclasses.replace(settings, current="", on_placement=lambda p, e: _ship(mine(), p, e))
        session = Session.or_off(settings, framework="slime", config=manager.args)
        _SESSIONS[manager] = session
    return session


def _logged(manager: Any, settings: Settings) -> Settings:
    """Metrics go to slime's tracker, beside those of the rollout, unless the user wants them elsewhere."""
    if settings.on_metrics is not None:
        return settings
    try:
        tracker = importlib.import_module("slime.observability.logging_utils").log
        number = importlib.import_module("slime.observability.metric_utils").compute_rollout_step
    except Exception:  # whatever importing trackers may raise: then metrics stay in the session
        return settings

    def log(metrics: Any, step: int) -> None:
        values = {**metrics, "rollout/step": number(manager.args, manager.rollout_id)}
        tracker(manager.args, values, step_key="rollout/step")

    return dataclasses.replace(settings, on_metrics=log)


def _size(args: Any, name: str, default: int = 1) -> int:
    return int(getattr(args, name, None) or default)


def _group(parallel: Any) -> int:
    return int(parallel["microbatch_group_size_per_vp_stage"]) if int(parallel["vpp_size"]) > 1 else 1


def main() -> None:
    """`python -m routepack.adapters.slime train.py …`"""
    # By its real name: what travels to the rollout manager must be found there.
    from routepack.adapters import slime

    install_here: Callable[[], object] = slime.install
    run_script(install_here, "usage: ROUTEPACK_COST=cost.toml python -m routepack.adapters.slime train.py …")


if __name__ == "__main__":
    main()
