# SPDX-License-Identifier: Apache-2.0
"""AReaL, single controller: passes over the trajectories of a step are dispatched and cut by RoutePack's plan.

    from routepack.adapters import Settings, areal
    areal.install(Settings(cost="cost.toml"))           # in the training script, before the trainer is made

and in its configuration, so that workers know the hook too:

    actor:
      scheduling_spec:
        - cmd: python -m routepack.adapters.areal       # instead of python -m areal.infra.rpc.rpc_server

AReaL chooses the mini-batches of `ppo_update` on each rank, after it has dealt trajectories to ranks. Both choices are
made again here, by AReaL's own functions, to learn which samples make up which optimizer step; those stay together. The
plan then says on which rank and in which microbatch each of them trains. Critics pack for themselves. Routes are
counted in the workflow, with `counts_of`, as AReaL's trainer drops the routes themselves. With mode 'placement' or
'both' the controller moves experts in its workers before the first pass of the policy over a batch (`areal_mover`,
`areal_experts`).

A worker without the hook would train every sample of the trajectories that it gets a part of. Workers are asked whether
they have it before they get any: `cmd` is not always what runs (roles that share or fork workers, Ray).
Source: areal/infra/controller/train_controller.py, areal/trainer/ppo/actor.py, areal/utils/data.py of AReaL 1.0.4.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import logging
import math
import sys
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack import exporters
from routepack._core import Constraints, Placement, Topology
from routepack._errors import InvalidInput
from routepack._replay import count_routes_report
from routepack.adapters import _resume, _session, _warning, areal_experts, areal_mover
from routepack.adapters._hooks import Replaced, module_of, need_function, or_nothing
from routepack.adapters._reasons import FallBack, Reason, one_line
from routepack.adapters._routes import Counted, without_dense_layers
from routepack.adapters._session import PlannedStep, Session, Step, StepWindow
from routepack.adapters._settings import Settings
from routepack.adapters._topology import topology_of_sizes
from routepack.adapters._warning import warn

_LOG = logging.getLogger("routepack")
PREFIX = "routepack_"
COUNTS = "routepack_counts"  #: int32 [samples, layers, experts, 1]; AReaL trims last dimensions to the sequence length
RECORDED = "routepack_recorded"  #: int32 [samples, layers, 1]
TOP_K = "routepack_top_k"  #: int32 [samples, 1]
ROWS = "routepack_rows"  #: int64 [n]: which samples of a trajectory this rank gets
CELLS = "routepack_cells"  #: int64 [n, 2]: optimizer step and row of each of them
METHODS = ("compute_logp", "ppo_update")
HOOK = "routepack_packs_1"  #: `packs` as a method of every engine of a worker; the number changes with the keys above
CMD = "python -m routepack.adapters.areal"

_REPLACED = Replaced()
_SETTINGS: Settings | None = None
_SESSION: Session | None = None
_ACTOR: Any = None  # the controller that trains
_UPDATES = 0  # of the policy, by which steps are told apart that have no samples to tell them by
_ASKED: weakref.WeakKeyDictionary[Any, tuple[list[str], str]] = weakref.WeakKeyDictionary()  # workers, what they lack
_TOLD: weakref.WeakSet[Any] = weakref.WeakSet()  # reference models whose workers have no hook
_STEPS: list[list[int]] = []  # samples of the optimizer steps of the batch that was planned last
_WORKERS = False
_MOVER: areal_mover.Mover | None = None  # of the workers whose experts move
_GROUPS: contextvars.ContextVar[list[list[int]] | None] = contextvars.ContextVar("routepack_areal_groups", default=None)


@dataclass(frozen=True, eq=False)
class Dispatch:
    """Which samples each rank gets, and where they train. Samples are numbered trajectory by trajectory."""

    samples: list[list[int]]  #: [rank]
    cells: dict[int, tuple[int, int]]  #: of each sample: optimizer step and row


@dataclass(frozen=True, eq=False)
class Batch:
    """Trajectories as the controller has them."""

    sizes: list[int]  #: samples of each trajectory
    lengths: npt.NDArray[np.int64]  #: tokens of each sample
    counted: list[Counted | None]
    top_k: int

    @property
    def key_of_lengths(self) -> str:
        """The same, too, when counts were taken away in between."""
        return hashlib.blake2b(repr(self.sizes).encode() + self.lengths.tobytes(), digest_size=16).hexdigest()

    @property
    def key(self) -> str:
        """The same for every pass over these samples."""
        made = hashlib.blake2b(self.key_of_lengths.encode(), digest_size=16)
        for counted in self.counted:
            made.update(b"-" if counted is None else counted.counts.tobytes())
        return made.hexdigest()


@dataclass(frozen=True, eq=False)
class Limits:
    """What an engine's microbatches have to keep."""

    slots: int  #: data-parallel ranks
    capacity: int  #: aligned tokens of a microbatch
    constraints: Constraints  #: of one optimizer step

    def allow(self, other: Limits, steps: int) -> bool:
        """Whether any plan of `steps` optimizer steps under the other limits keeps these, run as one."""
        mine, theirs = self.constraints, other.constraints
        return (
            self.slots == other.slots
            and self.capacity >= other.capacity
            and theirs.sample_multiple % mine.sample_multiple == 0
            and theirs.row_multiple % mine.row_multiple == 0
            and theirs.min_rows * steps >= mine.min_rows
        )


def install(settings: Settings | None = None, *, workers: bool = False) -> None:
    """In the process of the controller: makes it plan. Twice takes the new settings.

    :param settings: None: from the environment (ROUTEPACK_COST and so on)
    :param workers: they call `install_worker` in another way than `scheduling_spec.cmd`
    :raises Error: when this AReaL has no such hooks, or a setting is wrong
    """
    global _SETTINGS, _WORKERS
    chosen = settings or Settings.from_environment()
    chosen.check()
    uninstall()
    _SETTINGS, _WORKERS = chosen, workers
    with or_nothing(uninstall, switched_off=not chosen.enabled):
        _install(chosen)


def _install(chosen: Settings) -> None:
    owner = module_of("areal", "areal.infra.controller.train_controller")
    controller = owner.TrainController
    original = need_function(
        "areal", controller, "_custom_function_call", ["self", "method", "rpc_meta"], calls="_prepare_dispatch"
    )
    for name in ("_call_workers", "_collect_results", "_prepare_dispatch"):
        need_function("areal", controller, name, ["self"])
    need_function("areal", owner, "_dispatch_tensors", ["item_list", "dp_size", "group_size"])
    need_function("areal", module_of("areal", "areal.utils.data"), "allocate_balanced_mbs", ["mb_spec", "lens"])
    _REPLACED.put(controller, "_custom_function_call", _calling(original, owner))
    if chosen.moves_itself:
        _let_move(chosen, owner)
    elif (not chosen.enabled or chosen.mode == "packing") and hasattr(controller, "load"):
        _REPLACED.put(controller, "load", _refusing(vars(controller)["load"]))


def _refusing(original: Any) -> Any:
    """Workers that do not know where experts are would load optimizer state in the order of slots in silence."""

    @functools.wraps(original)
    def load(self: Any, meta: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(meta, "with_optim", False) and (found := _resume.away(meta.path)):
            raise InvalidInput(f"areal: {found}, wanted mode='placement' or 'both' to load its optimizer state")
        return original(self, meta, *args, **kwargs)

    return load


def _let_move(settings: Settings, owner: Any) -> None:
    """Controllers that are initialized from now on attach the experts of their workers."""
    if settings.current:
        raise InvalidInput(
            f"current: found {settings.current}, wanted none: workers say where experts are, or a checkpoint"
        )
    controller = owner.TrainController
    start = need_function("areal", controller, "initialize", ["self", "role", "ft_spec"])
    load = need_function("areal", controller, "load", ["self", "meta"])

    @functools.wraps(start)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _ACTOR, _MOVER
        if not areal_mover.trains(self.config):
            return start(self, *args, **kwargs)
        areal_mover.refuse(self, _promised(self.config))
        made = start(self, *args, **kwargs)
        if lack := _lack(self, owner):
            raise InvalidInput(f"areal: found workers that do not know the hook, wanted it to move experts: {lack}")
        _ACTOR, _MOVER = self, areal_mover.Mover(self, owner.run_async_task)
        return made

    @functools.wraps(load)
    def load_and_ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = load(self, *args, **kwargs)
        if _MOVER is not None and _MOVER.controller is self:
            _MOVER.ask()
        return made

    _REPLACED.put(controller, "initialize", initialize)
    _REPLACED.put(controller, "load", load_and_ask)
    gateway = None
    with contextlib.suppress(InvalidInput):  # another kind of controller, which not every AReaL has
        gateway = module_of("areal", "areal.experimental.training_service.controller.controller").GatewayTrainController
    if gateway is not None:
        begin = need_function("areal", gateway, "initialize", ["self", "role"])

        @functools.wraps(begin)
        def begin_or_refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
            if areal_mover.trains(self.config):
                areal_mover.refuse(self, True)
            return begin(self, *args, **kwargs)

        _REPLACED.put(gateway, "initialize", begin_or_refuse)


def install_worker() -> None:
    """In a worker: trajectories are cut to the samples of this rank, and microbatches are those of the plan. Engines
    answer the controller that moves experts.

    :raises InvalidInput: when this AReaL has no such hooks
    """
    data = module_of("areal", "areal.utils.data")
    if _REPLACED.has(data):
        return
    split = need_function(
        "areal", data, "split_padded_tensor_dict_into_mb_list", ["data", "mb_spec", "group"],
        calls="allocate_balanced_mbs_synced",
    )  # fmt: skip
    allocate = need_function("areal", data, "allocate_balanced_mbs_synced", ["mb_spec", "lens", "group"])
    concat = need_function("areal", data, "concat_batch", ["data"])
    engines = module_of("areal", "areal.api.engine_api").TrainEngine
    module_of("areal", "areal.trainer.ppo.actor")  # it has names of its own for these functions
    _REPLACED.put(data, "allocate_balanced_mbs_synced", _allocating(allocate))
    for name, original, replacement in (
        ("split_padded_tensor_dict_into_mb_list", split, _splitting(split)),
        ("concat_batch", concat, _concatenating(concat)),
    ):
        for owner in [module for path, module in list(sys.modules.items()) if path.split(".")[0] == "areal"]:
            if getattr(owner, "__dict__", {}).get(name) is original:
                _REPLACED.put(owner, name, replacement)
    _REPLACED.put(engines, areal_experts.METHOD, areal_experts.serve)
    _REPLACED.put(engines, HOOK, packs)  # the last, by which the controller knows of all the others


def packs(engine: Any) -> bool:
    """A worker's answer to the controller, which asks before it sends samples. Not collective.

    :raises InvalidInput: when a module of AReaL kept its own function
    """
    data = sys.modules["areal.utils.data"]
    for name in ("split_padded_tensor_dict_into_mb_list", "concat_batch"):
        ours = getattr(data, name)
        for path, module in list(sys.modules.items()):
            theirs = getattr(module, "__dict__", {}).get(name)
            if path.split(".")[0] == "areal" and theirs is not None and theirs is getattr(ours, "__wrapped__", theirs):
                raise InvalidInput(f"areal: {path}.{name}: found AReaL's own, wanted RoutePack's")
    return True


def uninstall() -> None:
    """Takes the hooks of this process out again, and ends the planner."""
    global _SETTINGS, _SESSION, _ACTOR, _MOVER, _UPDATES
    _REPLACED.put_back()
    areal_experts.uninstall()
    _ASKED.clear()
    _TOLD.clear()
    _UPDATES = 0
    if _SESSION is not None:
        _SESSION.close()
    _SETTINGS = _SESSION = _ACTOR = _MOVER = None


def session() -> Session | None:
    """After the actor's first pass; its `metrics` are those of the last step."""
    return _SESSION


def counts_of(response: Any, *, layers: int, experts: int, top_k: int | None = None) -> dict[str, Any]:
    """What a workflow adds to its result: `result.update(areal.counts_of(response, layers=48, experts=128, top_k=8))`.

    Nothing where the engine gave no routes (`rollout.return_routed_experts`, SGLang): that sample has none. All samples
    of a batch need the same keys, so use it for all or for none.

    :param response: a `ModelResponse`; its routes are int32 [rows, layers * k], of which the last ones count
    :param layers: that the engine sends; dense ones among them, whose rows are zeros, are left out by the controller
    :param top_k: None: as `layers` says, which then has to be right
    :raises InvalidInput: for routes of another shape
    """
    import torch

    if layers < 1:
        raise InvalidInput(f"layers: found {layers}, wanted 1 or more")
    tokens = len(response.input_tokens) + len(response.output_tokens)
    flat = response.routed_experts
    counts, recorded, found_k = np.zeros((layers, experts), np.int32), np.zeros(layers, np.int32), 0
    if flat is not None and tokens > 1:
        rows = np.asarray(flat)
        found_k = rows.shape[1] // layers if rows.ndim == 2 and rows.shape[1] % layers == 0 else 0
        if not found_k or found_k != (top_k or found_k) or len(rows) < tokens - 1:
            raise InvalidInput(
                f"areal: found routes of shape {list(rows.shape)}, wanted [{tokens - 1} or more, {layers} * "
                f"{top_k or 'k'}]"
            )
        # Segments of an interrupted answer stand behind one another; each repeats the prefix.
        last = rows[len(rows) - tokens + 1 :].reshape(-1, layers, found_k)
        found, report = count_routes_report(last, experts=experts)
        counts, recorded = found.astype(np.int32), np.asarray(report.recorded, dtype=np.int32)
    return {
        COUNTS: torch.from_numpy(counts)[None, :, :, None],
        RECORDED: torch.from_numpy(recorded)[None, :, None],
        TOP_K: torch.tensor([[found_k]], dtype=torch.int32),
    }


def batch_of(items: Sequence[dict[str, Any]]) -> Batch:
    """Lengths and counts; tensors that are elsewhere are fetched, which these two are small enough for."""
    sizes: list[int] = []
    lengths: list[int] = []
    counted: list[Counted | None] = []
    top_k = 0
    for item in items:
        mask = _here(item["attention_mask"])
        sizes.append(int(mask.shape[0]))
        lengths += mask.sum(1).tolist()
        if COUNTS not in item:
            counted += [None] * sizes[-1]
            continue
        counts, recorded = _here(item[COUNTS]).numpy()[..., 0], _here(item[RECORDED]).numpy()[..., 0]
        top_k = max(top_k, int(_here(item[TOP_K]).max()))
        for some, rows in zip(counts, recorded, strict=True):
            kind = np.uint16 if some.max(initial=0) < 1 << 16 else np.uint32
            counted.append(Counted(some.astype(kind), rows.astype(np.int32)) if rows.any() else None)
    return Batch(sizes, np.array(lengths, dtype=np.int64), without_dense_layers(counted), top_k)


def optimizer_steps(items: Sequence[Any], batch: Batch, dp: int, mini_batches: int, dispatch: Any) -> list[list[int]]:
    """Samples of each optimizer step, as AReaL's own dispatch and its mini-batches on every rank would have them.

    :param dispatch: AReaL's `_dispatch_tensors`
    """
    data = module_of("areal", "areal.utils.data")
    spec = data.MicroBatchSpec(n_mbs=mini_batches, max_tokens_per_mb=data.DEFAULT_MAX_TOKENS_PER_MB)
    _, groups = dispatch(items, dp, group_size=1)
    begins = np.cumsum([0, *batch.sizes]).tolist()
    steps: list[list[int]] = [[] for _ in range(mini_batches)]
    for group in groups:
        mine = [i for item in group for i in range(begins[item], begins[item + 1])]
        if len(mine) < mini_batches:
            raise FallBack(Reason.UNSUPPORTED, f"{len(mine)} samples on a rank for {mini_batches} mini-batches")
        cut = data.allocate_balanced_mbs(spec, np.array([batch.lengths[i] for i in mine]))
        if len(cut) != mini_batches:
            raise FallBack(Reason.UNSUPPORTED, f"AReaL made {len(cut)} mini-batches, wanted {mini_batches}")
        for step, cell in zip(steps, cut, strict=True):
            step.extend(mine[int(i)] for i in cell)
    return [sorted(step) for step in steps]


def limits_of(config: Any, parallel: Any) -> Limits:
    """The limits of AReaL's microbatches, as its engines cut and pad them.

    :param config: of the engine
    :param parallel: AReaL's `ParallelStrategy`
    :raises FallBack: when AReaL does what no plan can stand for
    """
    spec, backend = config.mb_spec, str(config.backend).split(":")[0]
    if spec.max_tokens_per_mb is None:
        raise FallBack(Reason.UNSUPPORTED, "microbatches without a cap: plans need actor.mb_spec.max_tokens_per_mb")
    if spec.granularity != 1 or getattr(config, "enable_tree_training", False):
        raise FallBack(Reason.UNSUPPORTED, "groups of samples in one microbatch, or tree training")
    tp, cp, pp = _sizes_of(parallel, "tensor", "context", "pipeline")
    if backend == "archon" and pp > 1 and getattr(getattr(config, "archon", None), "pp_layers_per_stage", None):
        raise FallBack(Reason.UNSUPPORTED, "archon.pp_layers_per_stage: how many stages there are is not known here")
    multiple = 1
    if backend == "megatron":
        multiple = tp * cp * 2 if cp > 1 else tp
        if getattr(getattr(config, "megatron", None), "fp8_config", None) is not None:
            multiple = math.lcm(multiple, 16)
    return Limits(
        int(parallel.dp_size),
        int(spec.max_tokens_per_mb),
        Constraints(
            sample_multiple=multiple,
            row_multiple=math.lcm(pp, int(spec.n_mbs_divisor or 1)),
            min_rows=max(2 * pp if pp > 1 else 1, int(spec.n_mbs or 1)),
            oversized="own-cell",  # AReaL does not count padding
        ),
    )


def topology_of(parallel: Any) -> Topology:
    """:param parallel: AReaL's `ParallelStrategy`
    :raises InvalidInput: when a data-parallel rank would be part of two groups of experts
    """
    tp, cp, pp, ep, etp = _sizes_of(parallel, "tensor", "context", "pipeline", "expert", "expert_tensor")
    return topology_of_sizes(dp=int(parallel.dp_size), ep=ep, tp=tp, cp=cp, etp=etp, pp=pp)


def _sizes_of(parallel: Any, *names: str) -> list[int]:
    return [int(getattr(parallel, f"{name}_parallel_size") or 1) for name in names]


def step_of(controller: Any, batch: Batch, steps: list[list[int]]) -> Step:
    """Windows of AReaL's optimizer steps, and the limits of its microbatches.

    :raises FallBack: when AReaL does what no plan can stand for
    """
    limits = limits_of(controller.config, controller.parallel_strategy)
    if not any(counted is not None for counted in batch.counted):
        raise FallBack(Reason.NO_ROUTES, f"trajectories have no {COUNTS}; does the workflow call areal.counts_of?")
    return Step(
        windows=[
            StepWindow(batch.lengths[members].astype(np.int32), [batch.counted[i] for i in members])
            for members in steps
        ],
        top_k=batch.top_k,
        topology=topology_of(controller.parallel_strategy),
        capacity=limits.capacity,
        constraints=limits.constraints,
    )


def dispatch_of(planned: list[PlannedStep], steps: list[list[int]]) -> Dispatch:
    """The plan, for the whole batch."""
    samples: list[list[int]] = [[] for _ in range(planned[0].plan.num_slots)]
    cells: dict[int, tuple[int, int]] = {}
    for number, (one, members) in enumerate(zip(planned, steps, strict=True)):
        made = exporters.areal(one.plan, equal_counts=False)
        for rank, (mine, rows) in enumerate(zip(made.group_indices, made.micro_batches, strict=True)):
            samples[rank] += [members[i] for i in mine]
            for row, cell in enumerate(rows):
                cells.update({members[mine[i]]: (number, row) for i in cell})
    return Dispatch([sorted(some) for some in samples], cells)


def parts_of(items: Sequence[dict[str, Any]], sizes: list[int], dispatch: Dispatch) -> list[list[dict[str, Any]]]:
    """For each rank the trajectories of which it has samples, and which, and where they train. No tensor is cut."""
    import torch

    begins = np.cumsum([0, *sizes]).tolist()
    parts: list[list[dict[str, Any]]] = []
    for mine in dispatch.samples:
        owners = np.searchsorted(begins, mine, side="right") - 1
        part = []
        for item in np.unique(owners).tolist():
            chosen = [i for i, owner in zip(mine, owners, strict=True) if owner == item]
            part.append(
                {key: value for key, value in items[item].items() if not key.startswith(PREFIX)}
                | {
                    ROWS: torch.tensor([i - begins[item] for i in chosen]),
                    CELLS: torch.tensor([dispatch.cells[i] for i in chosen]),
                }
            )
        parts.append(part)
    return parts


def merged(results: list[Any], sizes: list[int], dispatch: Dispatch) -> list[Any] | None:
    """What ranks returned per part, as one result per trajectory, in their order."""
    if all(result is None for result in results):
        return None
    import torch

    begins = np.cumsum([0, *sizes]).tolist()
    rows: list[Any] = [None] * begins[-1]
    for mine, result in zip(dispatch.samples, results, strict=True):
        tensors = [row for part in result for row in _here(part).unbind(0)]
        for i, row in zip(mine, tensors, strict=True):
            rows[i] = row
    made = []
    for begin, end in zip(begins, begins[1:], strict=False):
        width = max(row.shape[0] for row in rows[begin:end])
        made.append(torch.stack([torch.nn.functional.pad(row, (0, width - row.shape[0])) for row in rows[begin:end]]))
    return made


def _calling(original: Any, owner: Any) -> Any:
    @functools.wraps(original)
    def _custom_function_call(self: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        global _UPDATES
        _wake_loggers()
        made = None
        if method in METHODS and len(args) == 1 and not set(kwargs) - {"rpc_meta"} and _is_policy(self):
            try:
                made = _planned(self, method, args[0], owner)
            except Exception as error:
                _failed(error)
            _UPDATES += method == "ppo_update"
            if _MOVER is not None and _MOVER.controller is self and _SESSION is not None:
                _MOVER.move(_SESSION)  # whoever packs; what it raises ends the job
        if made is None:
            if any(_counted(value) for value in (*args, *kwargs.values())) and _lack(self, owner):
                # what workers do not know must not come to a model
                args = tuple(_without(value) for value in args)
                kwargs = {name: _without(value) for name, value in kwargs.items()}
            return original(self, method, *args, **kwargs)
        batch, dispatch, parts = made
        results = owner.run_async_task(self._call_workers, method, [parts], {}, rpc_meta=kwargs.get("rpc_meta"))
        if method == "ppo_update":
            return None
        heads = [result for i, result in enumerate(results) if self.workers_is_dp_head[i]]
        try:
            return merged(heads, batch.sizes, dispatch)
        except Exception as error:  # nothing was trained: the pass can run again
            _failed(error)
            return original(self, method, *args, **kwargs)

    return _custom_function_call


def _is_policy(controller: Any) -> bool:
    """The one that trains, a reference or a teacher. A critic is another model, whose `ppo_update` is its own."""
    actors = sys.modules.get("areal.trainer.ppo.actor")
    policy = getattr(actors, "PPOActorController", None)
    return policy is not None and isinstance(controller, policy)


def _planned(
    controller: Any, method: str, items: Any, owner: Any
) -> tuple[Batch, Dispatch, list[list[dict[str, Any]]]] | None:
    """What each rank gets in this pass, or None for AReaL's own packing."""
    if not isinstance(items, list) or not items or "attention_mask" not in items[0]:
        return None
    if any(key.startswith("multi_modal_input") for item in items for key in item):
        return None
    actor = _policy(controller, method)
    if actor is None or not (controller is actor or _may_share(controller, actor, owner)):
        return None  # a reference model before the actor's first pass, on other ranks, or with limits of its own
    session = _session_of(actor)
    lack = _lack(actor, owner)  # in every pass: the plan may be one of a pass before
    batch = batch_of(items)
    dp, mini_batches = int(actor.parallel_strategy.dp_size), actor.config.ppo_n_minibatches
    # Workers that must not see counts give trajectories back without them.
    key: Hashable = (id(actor), dp, mini_batches, batch.key_of_lengths if lack else batch.key)
    if _MOVER is not None:
        _MOVER.follow(session, key)

    def build() -> Step:
        if lack:
            raise FallBack(Reason.UNSUPPORTED, f"workers do not know the hook: {lack}")
        _STEPS[:] = optimizer_steps(items, batch, dp, int(mini_batches), owner._dispatch_tensors)
        return step_of(actor, batch, _STEPS)

    def export(planned: list[PlannedStep]) -> tuple[Dispatch, list[list[dict[str, Any]]]]:
        dispatch = dispatch_of(planned, _STEPS)
        return dispatch, parts_of(items, batch.sizes, dispatch)

    # With a key the steps of the pass before hold: samples are the same.
    made = session.run(build, export, key=key)
    return None if made is None or lack else (batch, *made)


def _policy(controller: Any, method: str) -> Any:
    """The controller that trains, as far as it is known."""
    global _ACTOR, _SESSION
    before = _ACTOR
    if method == "ppo_update":
        _ACTOR = controller
    elif getattr(controller, "_worker_role", "") == "actor":
        _ACTOR = _ACTOR or controller
    if before is not None and _ACTOR is not before and _SESSION is not None:
        _SESSION.close()  # it looked at the settings of the other one
        _SESSION = None
    return _ACTOR


def _may_share(controller: Any, actor: Any, owner: Any) -> bool:
    """Whether a reference model can run on the actor's plan."""
    try:
        mine, theirs = (limits_of(one.config, one.parallel_strategy) for one in (controller, actor))
    except FallBack:
        return False
    if not mine.allow(theirs, int(actor.config.ppo_n_minibatches or 1)):
        return False
    lack = _lack(controller, owner)
    if lack and controller not in _TOLD and not _lack(actor, owner):
        _TOLD.add(controller)
        role = getattr(controller, "_worker_role", "another model")
        warn(f"areal: {role}: its passes use AReaL's own packing: workers do not know the hook: {lack}")
    return not lack


def _session_of(actor: Any) -> Session:
    global _SESSION
    assert _SETTINGS is not None
    if _SESSION is None:
        settings = _SETTINGS
        if settings.moves_itself:
            settings = dataclasses.replace(settings, on_placement=_note)
        _SESSION = Session.or_off(settings, framework="areal", config={"actor": actor.config})
    return _SESSION


def _failed(error: Exception) -> None:
    """A pass that could not be planned for another reason than its plan: warned about and counted as a step."""
    if _SESSION is None:
        warn(f"areal: the framework's own packing is used: {type(error).__name__}: {one_line(error)}")
        return
    _SESSION.failed(error, key=("failed", _UPDATES))


def _tell(text: str) -> None:
    _wake_loggers()
    _LOG.warning("%s", text)


def _wake_loggers() -> None:
    """Configurations of logging, AReaL's among them, disable loggers that were there before."""
    for logger in (_LOG, _session._LOG, _warning._LOG):
        logger.disabled = False


def _note(placement: Placement, epoch: int) -> None:
    if _MOVER is None or _MOVER.controller is not _ACTOR:
        raise InvalidInput("workers said nothing of experts; wanted areal.install before the trainer is made")
    _MOVER.note(placement, epoch)


def _counted(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) and COUNTS in item for item in value)


def _without(value: Any) -> Any:
    """Trajectories as they would be without RoutePack."""
    if not _counted(value):
        return value
    return [{key: some for key, some in item.items() if not key.startswith(PREFIX)} for item in value]


def _promised(config: Any) -> bool:
    """Whether workers should have the hook, as far as the configuration says."""
    return _WORKERS or all(
        "routepack" in str(getattr(spec, "cmd", "")) for spec in getattr(config, "scheduling_spec", None) or ("",)
    )


def _lack(controller: Any, owner: Any) -> str:
    """Why workers cannot train parts of trajectories; empty: they can. Workers are asked until they have answered."""
    if not _promised(controller.config):
        return f"set scheduling_spec.cmd to «{CMD}»"
    workers = [str(worker.id) for worker in controller.workers]
    known = _ASKED.get(controller)
    if known is not None and known[0] == workers:
        return known[1]
    lack = "" if workers else "there are none yet"
    try:  # Not broadcast: workers without the hook would leave the others waiting.
        owner.run_async_task(controller._call_workers, HOOK, [], {}, rpc_meta={"broadcast": False})
    except Exception as error:
        lack = f"asked for {HOOK}, one said {type(error).__name__}: {one_line(error)}; does it run «{CMD}»?"
        if "attribute" not in str(error):
            return lack  # not of the worker, but of the call: asked again in the next pass
    if workers:
        _ASKED[controller] = workers, lack
    return lack


def _concatenating(original: Any) -> Any:
    @functools.wraps(original)
    def concat_batch(data: list[dict[str, Any]]) -> Any:
        return original([_cut(item) for item in data])

    return concat_batch


def _cut(item: Any) -> Any:
    """A trajectory with the samples of this rank alone, and without counts, which only the controller reads."""
    if not isinstance(item, dict) or not any(key.startswith(PREFIX) for key in item):
        return item
    rows = item.get(ROWS)
    if rows is None:
        return item
    samples = len(item["attention_mask"])
    made = {}
    for key, value in item.items():
        if key == CELLS:
            made[key] = value
        elif not key.startswith(PREFIX):
            whole = hasattr(value, "shape") and value.ndim > 0 and value.shape[0] == samples
            made[key] = value[rows.to(value.device)] if whole else value
    return made


def _splitting(original: Any) -> Any:
    @functools.wraps(original)
    def split_padded_tensor_dict_into_mb_list(data: dict[str, Any], mb_spec: Any, group: Any = None) -> Any:
        cells = data.get(CELLS)
        if any(key.startswith(PREFIX) for key in data):
            data = {key: value for key, value in data.items() if not key.startswith(PREFIX)}
        if cells is None:
            return original(data, mb_spec, group=group)
        pairs = [tuple(pair) for pair in cells.tolist()]
        if mb_spec.max_tokens_per_mb is None:  # mini-batches, one per optimizer step
            groups = [[i for i, pair in enumerate(pairs) if pair[0] == step] for step in sorted({s for s, _ in pairs})]
        else:
            groups = [[i for i, pair in enumerate(pairs) if pair == cell] for cell in sorted(set(pairs))]
        token = _GROUPS.set(groups)
        try:
            made = original(data, mb_spec, group=group)
        finally:
            _GROUPS.reset(token)
        if mb_spec.max_tokens_per_mb is None:
            for mb, members in zip(made.mbs, groups, strict=True):
                mb[CELLS] = cells[members]
        return made

    return split_padded_tensor_dict_into_mb_list


def _allocating(original: Any) -> Any:
    @functools.wraps(original)
    def allocate_balanced_mbs_synced(mb_spec: Any, lens: Any, group: Any = None) -> list[list[int]]:
        groups = _GROUPS.get()
        # Made once for all ranks, with equal counts: nothing is left to agree about.
        return original(mb_spec, lens, group=group) if groups is None else groups

    return allocate_balanced_mbs_synced


def _here(value: Any) -> Any:
    """A tensor, fetched when it is elsewhere."""
    return value.to_local() if hasattr(value, "to_local") and hasattr(value, "shard") else value


def main() -> None:
    """`python -m routepack.adapters.areal …`: AReaL's worker, with the hook."""
    from routepack.adapters import areal

    try:
        areal.install_worker()
    except InvalidInput as error:
        _tell(f"areal: this worker has no hook, and its controller will leave samples to AReaL: {error}")
    module_of("areal", "areal.infra.rpc.rpc_server").main()


if __name__ == "__main__":
    main()
