# SPDX-License-Identifier: Apache-2.0
"""The driver's side of moving experts in NeMo RL: which worker class a policy has, and calls on all its workers.

Source: nemo_rl/models/policy/lm_policy.py, nemo_rl/distributed/{worker_groups,ray_actor_environment_registry}.py at
commit 7ea279ab.
"""

from __future__ import annotations

import dataclasses
import inspect
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._core import Placement
from routepack._errors import Error, InvalidInput
from routepack.adapters import _resume
from routepack.adapters._hooks import need_function
from routepack.adapters._reasons import one_line
from routepack.adapters._settings import Settings
from routepack.adapters._unsafe import look_up

_OWN = "nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"
WORKER = "routepack.adapters.nemo_rl_worker.MovingMegatronPolicyWorker"
_INHERIT = "routepack.adapters.nemo_rl_worker.MovingMegatronPolicyWorkerImpl"
_MOVES = "mode='packing' needs none of this"


_NONE = np.empty((0, 0), dtype=np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Where:
    """What a worker says of its experts."""

    maps: npt.NDArray[np.int32]  #: [L, E], the expert in each slot, of all layers with experts
    ranks: int
    epoch: int
    failed: str = ""  #: why they did not move
    layers: tuple[int, ...] = ()  #: Megatron's number of each, counted from 1

    def agrees(self, other: Where) -> bool:
        """Whether two workers say the same, but for the words of a failure."""
        mine, others = (dataclasses.replace(one, maps=_NONE, failed=str(bool(one.failed))) for one in (self, other))
        return dataclasses.astuple(mine)[1:] == dataclasses.astuple(others)[1:] and np.array_equal(
            self.maps, other.maps
        )


class Torn(Error):
    """Workers do not agree on where experts are, or hold none that are whole: the job has to start again."""


class Movers:
    """The workers of one policy."""

    def __init__(self, policy: Any) -> None:
        self._policy = weakref.ref(policy)
        self.here = self._ask("routepack_placement")
        self.failed = ""  #: of the last move
        self.torn: Torn | None = None  #: what nobody may swallow

    def move(self, placement: Placement, epoch: int) -> None:
        """On all workers. `failed` says why experts stayed, on all of them alike.

        :raises InvalidInput: for a placement of another model, before anything has moved
        :raises Torn: when training cannot go on; `torn` keeps it
        """
        self.failed = ""
        found, wanted = placement.physical_to_logical.shape, self.here.maps.shape
        if found != wanted or placement.ranks != self.here.ranks:
            raise InvalidInput(
                f"found a placement of {list(found)} layers and experts on {placement.ranks} ranks, wanted "
                f"{list(wanted)} on {self.here.ranks}, as the policy's workers have them"
            )
        maps = placement.physical_to_logical
        if np.array_equal(maps, self.here.maps):
            return
        try:
            self.here = self._ask("routepack_move", maps=maps, ranks=placement.ranks, epoch=epoch)
            if not self.here.failed and not np.array_equal(self.here.maps, maps):
                raise Torn("nemo_rl: workers say that experts moved, and name another placement than they were given")
        except Exception as error:
            self.torn = Torn(
                f"nemo_rl: experts were left in between by a move: {type(error).__name__}: {one_line(error)}"
            )
            raise self.torn from error
        self.failed = self.here.failed

    def _ask(self, method: str, **more: Any) -> Where:
        policy = self._policy()
        try:
            replies = policy.run_all_workers_single_data(method, **more)  # type: ignore[union-attr]
        except AttributeError as error:
            raise InvalidInput(
                f"nemo_rl: found workers without {method}; a class of yours inherits from {_INHERIT}"
            ) from error
        first: Where = replies[0]
        for rank, reply in enumerate(replies):
            if not reply.agrees(first):
                raise Torn(f"nemo_rl: worker {rank} has experts elsewhere than worker 0 ({method})")
        return first


def need_hooks(policy: Any, registry: Any, groups: Any) -> None:
    """:raises InvalidInput: when this NeMo RL cannot be given another worker class, or a call on all workers"""
    need_function("nemo_rl", policy, "__init__", ["config", "init_optimizer", "worker_extension_cls_fqn"])
    need_function("nemo_rl", policy, "run_all_workers_single_data", ["self", "method_name"])
    need_function("nemo_rl", registry, "get_actor_python_env", ["actor_class_fqn"])
    if not isinstance(getattr(registry, "ACTOR_ENVIRONMENT_REGISTRY", None), dict):
        raise InvalidInput("nemo_rl: ACTOR_ENVIRONMENT_REGISTRY: not found, wanted it to name the worker's environment")
    need_function("nemo_rl", groups, "create_local_venv_on_each_node", ["py_executable", "venv_name"])


def choosing(original: Any, registry: Any, groups: Any, movers: Any, settings: Settings) -> Any:
    """`__init__` of policies that train: their workers move experts. When nothing is to move, workers only know where
    experts are, as a checkpoint may say; what cannot move is refused only where a checkpoint says so.

    :param movers: policy → Movers; None for a policy without an optimizer; nothing for one with NeMo RL's own workers
    """
    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        found = "" if settings.moves_itself else _away(bound.arguments)
        stays = not bound.arguments["init_optimizer"]  # a teacher, or for generation: experts stay at home
        stays |= settings.mode == "packing" and not found
        if not stays:
            try:
                refuse(bound.arguments["config"], _MOVES if settings.moves_itself else "")
            except InvalidInput as error:
                if found:
                    raise InvalidInput(f"{found}, and workers that know where are not to be had: {error}") from error
                if settings.moves_itself:
                    raise
                stays = True
        if stays:
            original(self, *args, **kwargs)
            if not bound.arguments["init_optimizer"]:
                movers[self] = None
            return
        if bound.arguments["worker_extension_cls_fqn"] is None:
            _register(registry, groups)
            bound.arguments["worker_extension_cls_fqn"] = WORKER
        original(*bound.args, **bound.kwargs)
        movers[self] = Movers(self)

    return __init__


def refusing(original: Any, why: str) -> Any:
    """`__init__` of policies whose workers are NeMo RL's own in any case: a checkpoint with moved experts is refused.

    :param why: they cannot
    """
    signature = inspect.signature(original)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        if found := _away(bound.arguments):
            raise InvalidInput(f"{found}, and workers that know where are not to be had: {why}")
        original(self, *args, **kwargs)

    return __init__


def _away(arguments: Any) -> str:
    """Why the checkpoint that a policy starts from needs workers that know where experts are; "": it does not. Weights
    alone are named by expert."""
    path = arguments.get("weights_path")
    loads = path and arguments.get("optimizer_path") is not None and arguments.get("init_optimizer", True)
    return _resume.away(path) if loads else ""


def _register(registry: Any, groups: Any) -> None:
    """The worker class runs in the Python environment of NeMo RL's own."""
    table = registry.ACTOR_ENVIRONMENT_REGISTRY
    if WORKER not in table:
        python = registry.get_actor_python_env(_OWN)
        if python.startswith("uv"):
            python = groups.create_local_venv_on_each_node(py_executable=python, venv_name=_OWN)
        table[WORKER] = python


def refuse(config: Any, hint: str = _MOVES) -> None:
    """Settings of a policy under which experts cannot move. @raises InvalidInput naming the setting

    :param hint: what would help
    """
    hint = f"; {hint}" if hint else ""
    megatron = look_up(config, "megatron_cfg") or {}
    if not megatron.get("enabled"):
        raise InvalidInput(
            "nemo_rl: found policy.megatron_cfg.enabled=false, wanted Megatron workers to move experts in: DTensor "
            f"workers keep experts and their optimizer state in DTensors, which the data plane does not move{hint}"
        )
    for path, bad, why in _REFUSED:
        found = look_up(config, path)
        if bad(found):
            raise InvalidInput(f"nemo_rl: found policy.{path}={found}: {why}{hint}")


def _yes(value: Any) -> bool:
    return bool(value)


_REFUSED = (
    (
        "megatron_cfg.expert_model_parallel_size",
        lambda value: int(value or 1) < 2,
        "wanted 2 or more, as one rank has nowhere to move experts to",
    ),
    ("megatron_cfg.peft.enabled", _yes, "adapters of experts (LoRA) would not follow them"),
    ("quant_cfg", lambda value: value is not None, "quantizers of ModelOpt belong to slots"),
    ("megatron_cfg.optimizer.optimizer_cpu_offload", _yes, "optimizer state on the host during training is not moved"),
    (
        "megatron_cfg.checkpoint.ckpt_assume_constant_structure",
        _yes,
        "a cached plan of a checkpoint says which expert is in which slot, and would be wrong after a move",
    ),
    (
        "generation.backend",
        lambda value: value == "megatron",
        "Megatron's own generation counts slots by dispatchers, or copies, of its own",
    ),
    (
        "generation.refit_transport",
        lambda value: value not in (None, "nixl"),
        "wanted null or nixl: this one compares weights, or sends them, by rank and slot",
    ),
)


__all__ = ["WORKER", "Movers", "Torn", "Where", "choosing", "need_hooks", "refuse", "refusing"]
