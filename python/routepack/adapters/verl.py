# SPDX-License-Identifier: Apache-2.0
"""verl: `_balance_batch` orders the batch by RoutePack's plan, and workers cut it into the plan's microbatches.

    export VERL_USE_EXTERNAL_MODULES=routepack.adapters.verl_auto ROUTEPACK_COST=cost.toml

is all: verl imports that module in every process, where it waits for the modules with the hooks. Or call `install` in a
module of your own that is named there.

The driver lets verl balance the batch first. That order says which samples make up which PPO mini-batch, so that
mini-batches are verl's own, with a plan and without. The plan reorders each mini-batch and adds a column that says in
which microbatch a sample trains; workers obey it in every pass whose cap allows it, else cut as verl does, and there is
no column unless all of them can (`verl_cells`). With mode 'placement' or 'both' experts move on all training ranks
right after the plan, before any pass (`verl_experts`).
Source: verl/trainer/ppo/ray_trainer.py, verl/trainer/ppo/v1/trainer_base.py, verl/workers/engine/utils.py,
verl/utils/seqlen_balancing.py of verl 0.9.1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
import sys
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack import exporters
from routepack._core import Constraints, Placement, Topology
from routepack._errors import Error, InvalidInput
from routepack.adapters import verl_cells, verl_experts, verl_rollouts, verl_worker
from routepack.adapters._experts import experts_of
from routepack.adapters._hooks import Replaced, module_of, need_function, or_nothing
from routepack.adapters._reasons import FallBack, Reason
from routepack.adapters._routes import COUNTS, Counted, RouteCounts, unpack_counts, without_dense_layers
from routepack.adapters._session import PlannedStep, Session, Step, StepWindow
from routepack.adapters._settings import Settings
from routepack.adapters._topology import topology_of_sizes
from routepack.adapters._unsafe import Finding, check_settings, look_up, remedy
from routepack.adapters._warning import warn
from routepack.adapters.verl_cells import CELLS as CELLS
from routepack.adapters.verl_cells import no_cells, rearranging, rows_of
from routepack.adapters.verl_rollouts import ROUTES

_LOG = logging.getLogger("routepack")
HELD = "verl.trainer.ppo.ray_trainer"  #: whose trainer holds its batches
STORED = "verl.trainer.ppo.v1.trainer_base"  #: whose trainer names what TransferQueue stores
TRAINERS = {HELD: "RayPPOTrainer", STORED: "PPOTrainer"}
PASSES = ("_compute_old_log_prob", "_compute_ref_log_prob", "_update_actor")
_LOAD = "_load_checkpoint"
_BALANCING, _COEFFICIENT = "moe_router_load_balancing_type", "moe_aux_loss_coeff"

#: of each trainer: what was chosen, and the session that was made of it
_SESSIONS: weakref.WeakKeyDictionary[Any, tuple[Settings, Session]] = weakref.WeakKeyDictionary()
_LAYOUTS: weakref.WeakKeyDictionary[Any, Layout] = weakref.WeakKeyDictionary()
#: of each trainer: what verl will log of the step at hand
_STEPS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_REPLACED = Replaced()


@dataclass(frozen=True, eq=False)
class Layout:
    """What the driver made of a plan."""

    order: npt.NDArray[np.int64]  #: [N]: positions in verl's order
    cells: npt.NDArray[np.int64]  #: [N, 4], in the new order, see `CELLS`
    key: int = 0
    content: int = 0  #: of the batch in the new order, when it is at hand


@dataclass(frozen=True)
class Limits:
    """What verl's configuration says about microbatches of the actor."""

    mini_batch: int  #: samples of an optimizer step
    capacity: int
    row_multiple: int
    sample_multiple: int
    topology: Topology


def install(settings: Settings | None = None) -> None:
    """Makes verl's trainers plan and its workers obey, in this process; twice takes the new settings.

    :param settings: None: from the environment (ROUTEPACK_COST and so on)
    :raises Error: when this verl has no such hooks, or a setting is wrong
    """
    chosen = settings or Settings.from_environment()
    chosen.check()
    with or_nothing(uninstall, switched_off=not chosen.enabled):
        _install(chosen)


def _install(chosen: Settings) -> None:
    # All modules first: the environment may have them hooked as they are imported (`verl_auto`), and these settings win.
    for name in (verl_cells.MODULE, verl_worker.METHODS, verl_rollouts.MODULE, HELD, STORED):
        with contextlib.suppress(InvalidInput):  # not there in an older verl, or without TransferQueue
            module_of("verl", name)
    uninstall()
    install_worker(module_of("verl", verl_cells.MODULE))
    try:
        verl_worker.install_methods(module_of("verl", verl_worker.METHODS))
    except InvalidInput as error:
        if chosen.moves_itself:
            raise
        _LOG.warning("routepack: workers cannot be asked about microbatches: %s", error)
    install_trainer(module_of("verl", HELD).RayPPOTrainer, chosen)
    try:
        verl_rollouts.install(settings=chosen)
    except InvalidInput as error:
        _LOG.info("routepack: routes are counted on the driver: %s", error)
    if STORED in sys.modules:
        module = sys.modules[STORED]
        install_trainer(module.PPOTrainer, chosen, queue=module.tq)


def refuse_trainer(trainer: Any, error: Error) -> None:
    """On the driver: whoever makes a trainer gets the error. Other processes import its class, too, and go on."""
    if not _REPLACED.has(trainer):
        _REPLACED.put(trainer, "__init__", _raising(error))


def _raising(error: Error) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        raise error

    return __init__


def install_worker(module: Any) -> None:
    """In a worker: `rearrange_micro_batches`, as verl.workers.engine.utils calls it, obeys the column.

    Its group has to say so: `verl_worker.install_methods` as well.
    """
    if _REPLACED.has(module):
        return
    name = verl_cells.FUNCTION
    need_function("verl", module, "prepare_micro_batches", ["data", "dp_group"], calls=name)
    original = need_function("verl", module, name, ["batch", "max_token_len", "dp_group", "num_batches_divided_by"])
    _REPLACED.put(module, name, rearranging(original))


def install_trainer(trainer: Any, settings: Settings | None = None, *, queue: Any = None) -> None:
    """On the driver: a trainer's `_balance_batch` plans.

    :param queue: the transfer_queue module, for trainers whose batches are names of what it stores
    """
    chosen = settings or Settings.from_environment()
    if _REPLACED.has(trainer):
        return
    need_function(
        "verl", trainer, "_balance_batch", ["self", "batch", "metrics"], calls="get_seqlen_balanced_partitions"
    )
    for name in PASSES:
        need_function("verl", trainer, name, ["self", "batch"])
    if chosen.moves_itself:
        need_function("verl", trainer, _LOAD, ["self"])
    source = _Stored(queue) if queue is not None else _Held()
    _REPLACED.put(trainer, "_balance_batch", _shipped(_balancing, trainer._balance_batch, chosen, source))
    for name in PASSES:
        _REPLACED.put(trainer, name, _shipped(_passing, vars(trainer)[name], source))
    if chosen.enabled and chosen.on_placement is None and _LOAD in vars(trainer):
        _REPLACED.put(trainer, _LOAD, _shipped(_asking, vars(trainer)[_LOAD], chosen))


def uninstall() -> None:
    """Takes the hooks of this process out again."""
    _REPLACED.put_back()
    verl_rollouts.uninstall()
    verl_worker.uninstall()


def session_of(trainer: Any, settings: Settings | None = None) -> Session:
    """The session of a trainer, made at its first batch; its `metrics` are those of the last step."""
    known = _SESSIONS.get(trainer)
    if known is not None and settings in (None, known[0]):
        return known[1]
    if known is not None:
        known[1].close()
    chosen = used = settings or Settings.from_environment()
    if chosen.moves_itself:
        used = dataclasses.replace(chosen, on_placement=verl_experts.wanting(trainer), current="")
    config = trainer.config.actor_rollout_ref
    checked = {"actor": look_up(config, "actor"), "algorithm": look_up(trainer.config, "algorithm")}
    session = Session.or_off(used, framework="verl", config=checked)
    _SESSIONS[trainer] = chosen, session
    for finding in megatron_findings(config, chosen):
        if chosen.enabled and not finding.refuse:
            warn(f"verl: {finding.text}")
    if trainer in _LOADED:
        session.resume(_LOADED[trainer].physical_to_logical, 0)
    return session


class _Held:
    """Batches that the driver holds: `DataProto` with padded tensors."""

    groups = verl_cells.GROUPS  #: of workers that get the column

    def lengths(self, batch: Any) -> npt.NDArray[np.int64]:
        mask = batch.batch["attention_mask"]
        found: npt.NDArray[np.int64] = mask.view(len(mask), -1).sum(-1).numpy().astype(np.int64)
        return found

    def counts(self, batch: Any, lengths: Sequence[int], experts: int) -> tuple[npt.NDArray[np.int32], Any] | None:
        """What was counted before, and how many rows each sample must have, as for `unpack_counts`. The routes are at
        hand here."""
        return None

    def made_up(self, batch: Any) -> list[bool]:
        """Which samples verl has made up to fill the batch: none."""
        return []

    def routes(self, batch: Any, lengths: Sequence[int]) -> list[Any] | None:
        """Without the last token of each sample, which no engine routes."""
        if ROUTES not in batch.batch:
            return None
        routes, mask = batch.batch[ROUTES], batch.batch["attention_mask"].bool()
        # Prompts are padded on the left, so that real tokens are one span.
        begins = mask.int().argmax(dim=1).tolist()
        return [routes[i, b : b + n - 1] for i, (b, n) in enumerate(zip(begins, lengths, strict=True))]

    def reorder(self, batch: Any, layout: Layout) -> None:
        import torch

        batch.reorder(torch.from_numpy(layout.order))

    def content(self, batch: Any) -> int:
        sums = batch.batch["input_ids"].sum(1).numpy()
        return zlib.crc32(np.ascontiguousarray(sums).tobytes(), zlib.crc32(self.lengths(batch).tobytes()))

    def attach(self, batch: Any, layout: Layout) -> Callable[[], object]:
        import torch

        batch.batch[CELLS] = torch.from_numpy(layout.cells)
        return lambda: batch.batch.pop(CELLS, None)

    def drop(self, batch: Any) -> None:
        """After all there is no layout: no worker may take one from these samples."""


class _Stored:
    """Batches that the driver has names of: `KVBatchMeta`, with the tensors in TransferQueue."""

    groups = (*verl_cells.GROUPS, "critic_wg")  # whatever of a sample is stored goes to all

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def lengths(self, batch: Any) -> npt.NDArray[np.int64]:
        return np.array([tag["seq_len"] for tag in batch.tags], dtype=np.int64)

    def counts(self, batch: Any, lengths: Sequence[int], experts: int) -> tuple[npt.NDArray[np.int32], Any] | None:
        stored = self._read(batch, COUNTS)
        if COUNTS not in stored:
            return None
        packed = rows_of(stored[COUNTS]).numpy()
        return packed, [None if skip else n - 1 for skip, n in zip(self.made_up(batch), lengths, strict=True)]

    def made_up(self, batch: Any) -> list[bool]:
        """Those have zeros for routes, and copies of the other fields of a sample."""
        return [bool(tag.get("is_padding")) for tag in batch.tags]

    def routes(self, batch: Any, lengths: Sequence[int]) -> list[Any] | None:
        try:
            stored = self._read(batch, ROUTES)
        except Exception as error:
            raise FallBack(Reason.NO_ROUTES, f"{ROUTES} cannot be read from TransferQueue: {error}") from None
        if ROUTES not in stored:
            return None
        routes = stored[ROUTES]
        return [some[: n - 1] for some, n in zip(routes.unbind(), lengths, strict=True)]

    def _read(self, batch: Any, field: str) -> Any:
        return self.queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[field])

    def reorder(self, batch: Any, layout: Layout) -> None:
        # Workers read every field of a sample, so that the column is stored beside the others.
        self._put(batch, [batch.keys[i] for i in layout.order.tolist()], layout.cells)
        batch.reorder(layout.order.tolist())

    def content(self, batch: Any) -> int:
        return zlib.crc32("\n".join(batch.keys).encode())

    def attach(self, batch: Any, layout: Layout) -> Callable[[], object]:
        return lambda: None

    def drop(self, batch: Any) -> None:
        """What is stored stays with a sample, and some may have a column and others none: a rank with the latter alone
        would not be asked about it. So all get one that nobody obeys."""
        self._put(batch, list(batch.keys), no_cells(len(batch.keys)))

    def _put(self, batch: Any, names: list[str], cells: npt.NDArray[np.int64]) -> None:
        import torch

        column = module_of("verl", "tensordict").TensorDict({CELLS: torch.from_numpy(cells)}, batch_size=len(names))
        self.queue.kv_batch_put(keys=names, partition_id=batch.partition_id, fields=column)


def _shipped(hook: Callable[..., Any], original: Any, *given: Any) -> Any:
    """A hook of a trainer that may become an actor: Ray copies methods into actor classes, and ships those that are not
    what the module has by value. What a hook knows of this process stays behind then."""
    name = hook.__name__

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        from routepack.adapters import verl

        return getattr(verl, name)(original, *given)(self, *args, **kwargs)

    return method


def _balancing(original: Any, settings: Settings, source: Any) -> Any:
    @functools.wraps(original)
    def _balance_batch(self: Any, batch: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        returned = original(self, batch, metrics, *args, **kwargs)
        now = batch if returned is None else returned  # the one with padding samples
        _LAYOUTS.pop(self, None)
        _STEPS[self] = metrics
        try:
            session = session_of(self, settings)
        except Exception as error:
            _LOG.warning("routepack: verl's own packing is used: %s: %s", type(error).__name__, error)
            return returned
        if settings.moves_itself:
            verl_experts.follow(self, session)
        key = _LAST_KEY[self] = _LAST_KEY.get(self, 0) + 1
        layout = session.run(
            lambda: _build(self, now, source, settings),
            lambda planned: _layout(self, now, source, planned),
            key=key,
        )
        if settings.moves_itself:
            verl_experts.move(self, session)  # what it raises ends the job
        if layout is not None:
            try:
                source.reorder(now, layout)
                _LAYOUTS[self] = Layout(layout.order, layout.cells, key, source.content(now))
            except Exception as error:  # in verl's own data classes
                _fall_back(self, session, key, error, source, now)
        try:
            metrics.update(session.metrics)
        except Exception as error:
            _LOG.warning("routepack: %s: %s", type(error).__name__, error)
        return returned

    return _balance_batch


_LAST_KEY: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
#: of trainers that move nothing: where a checkpoint of one that did has put experts
_LOADED: weakref.WeakKeyDictionary[Any, Placement] = weakref.WeakKeyDictionary()


def _asking(original: Any, settings: Settings) -> Any:
    @functools.wraps(original)
    def _load_checkpoint(self: Any, *args: Any, **kwargs: Any) -> Any:
        if settings.moves_itself:
            settings.check()  # ends the start as well
            verl_experts.ask(self)  # before the state is there; a refusal ends the start
            return original(self, *args, **kwargs)
        made = original(self, *args, **kwargs)
        try:
            told = verl_experts.know(self)
            if told is not None:
                _LOADED[self] = told[0]
                if self in _SESSIONS:
                    _SESSIONS[self][1].resume(told[0].physical_to_logical, 0)
        except Exception as error:  # a plan for experts at home is right too, but less balanced
            _LOG.debug("routepack: workers were not asked where experts are: %s", error)
        return made

    return _load_checkpoint


def _passing(original: Any, source: Any) -> Any:
    @functools.wraps(original)
    def method(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        layout, detach = _LAYOUTS.get(self), None
        if layout is not None:
            try:
                session = session_of(self)
                if source.content(batch) != layout.content:
                    changed = "samples were added, dropped or reordered after the batch was balanced"
                    _fall_back(self, session, layout.key, FallBack(Reason.UNSUPPORTED, changed), source, batch)
                elif session.run(_not_again, lambda planned: layout, key=layout.key) is not None:
                    detach = source.attach(batch, layout)
                else:
                    _LAYOUTS.pop(self, None)  # told already
                    source.drop(batch)
                _STEPS[self].update(session.metrics)  # verl logs them when the step is over
            except Exception as error:
                _LOG.warning("routepack: verl's own packing is used: %s: %s", type(error).__name__, error)
        try:
            return original(self, batch, *args, **kwargs)
        finally:
            if detach is not None:
                detach()

    return method


def _not_again() -> Step:
    raise FallBack(Reason.UNSUPPORTED, "the plan of this batch was dropped in between")


def _fall_back(trainer: Any, session: Session, key: int, error: Exception, source: Any, batch: Any) -> None:
    """A step that was planned goes on with verl's own packing: this pass of it, and those that still come."""

    def refuse(planned: list[PlannedStep]) -> None:
        raise error

    _LAYOUTS.pop(trainer, None)
    session.run(_not_again, refuse, key=key)
    try:
        source.drop(batch)
    except Exception as failed:
        _LOG.warning("routepack: %s: %s", type(failed).__name__, failed)


def _build(trainer: Any, batch: Any, source: Any, settings: Settings) -> Step:
    config = trainer.config.actor_rollout_ref
    lengths = source.lengths(batch)
    dp = (
        int(trainer._get_dp_size(trainer.actor_rollout_wg, "actor"))
        if hasattr(trainer, "_get_dp_size")
        else _dp(trainer)
    )
    if getattr(trainer, "use_prefix_grouper", False):
        raise FallBack(Reason.UNSUPPORTED, "PrefixGrouper keeps groups of samples together")
    limits = limits_of(config, dp)
    for finding in megatron_findings(config, settings):
        if finding.refuse:
            raise FallBack(Reason.SETTINGS, f"{finding.text}; {remedy(finding)}")
    if settings.mode != "placement":
        verl_cells.need_all(trainer, source.groups)
    experts = settings.experts or _experts(trainer.config)
    known = _counted_before(source, batch, lengths, experts) or _counted_here(source, batch, lengths, experts)
    return step_of(lengths, known[0], known[1], dp, limits)


def _counted_before(
    source: Any, batch: Any, lengths: npt.NDArray[np.int64], experts: int
) -> tuple[list[Counted], int] | None:
    """What was counted where rollouts ended, and k; None unless it is there and fits all samples."""
    try:
        found = source.counts(batch, lengths.tolist(), experts)
        if found is None:
            return None
        counted, top_k = unpack_counts(found[0], experts=experts, rows=found[1])
    except Exception as error:  # workers without the hooks, other settings there: the routes say it all
        _LOG.debug("routepack: routes are counted on the driver: %s", error)
        return None
    if not any(some.counts[:, 1:].any() for some in counted):
        raise FallBack(Reason.NO_ROUTES, f"all {ROUTES} are zero")
    return [some for some in without_dense_layers(counted) if some is not None], top_k


def _counted_here(source: Any, batch: Any, lengths: npt.NDArray[np.int64], experts: int) -> tuple[list[Any], int]:
    routes = source.routes(batch, lengths.tolist())
    if routes is None:
        raise FallBack(Reason.NO_ROUTES, f"the batch has no {ROUTES}; is router_replay.mode=R3 on?")
    counted = RouteCounts(experts=experts).of(routes, lengths=lengths.tolist())
    if not any(some is not None and some.counts[:, 1:].any() for some in counted):
        raise FallBack(Reason.NO_ROUTES, f"all {ROUTES} are zero")
    counted = without_dense_layers(counted)
    for i in np.flatnonzero(source.made_up(batch)).tolist():
        some = counted[i]
        counted[i] = some and dataclasses.replace(some, made_up=True)
    return counted, int(routes[0].shape[2])


def step_of(
    lengths: npt.NDArray[np.int64], counted: Sequence[Counted | None], top_k: int, dp: int, limits: Limits
) -> Step:
    """Windows of verl's mini-batches, and the limits of its microbatches.

    :param counted: routes of each sample, without its last token
    :raises FallBack: when samples do not fill mini-batches
    """
    return Step(
        windows=[
            StepWindow(lengths[members].astype(np.int32), [counted[i] for i in members])
            for members in mini_batches(len(lengths), dp, limits.mini_batch)
        ],
        top_k=top_k,
        topology=limits.topology,
        capacity=limits.capacity,
        constraints=Constraints(
            sample_multiple=limits.sample_multiple,
            row_multiple=limits.row_multiple,
            equal_count=True,
            oversized="own-cell",  # verl does not count padding
        ),
    )


def mini_batches(samples: int, dp: int, mini_batch: int) -> list[list[int]]:
    """Positions of the samples of each mini-batch: every rank cuts its chunk of the batch from the front.

    >>> mini_batches(8, 2, 4)
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """
    if samples % mini_batch or mini_batch % dp:
        raise FallBack(
            Reason.UNSUPPORTED,
            f"{samples} samples, mini-batches of {mini_batch}, {dp} ranks: wanted multiples of each other",
        )
    chunk, each = samples // dp, mini_batch // dp
    return [[rank * chunk + begin + i for rank in range(dp) for i in range(each)] for begin in range(0, chunk, each)]


def limits_of(config: Any, dp: int) -> Limits:
    """From `actor_rollout_ref`.

    :raises FallBack: when verl does something that no plan can stand for
    """
    actor = config.actor
    strategy = str(look_up(actor, "strategy") or "")
    engine: Any = look_up(actor, strategy) or look_up(actor, "fsdp_config") or {}
    mini_batch = int(actor.ppo_mini_batch_size) * int(look_up(config, "rollout.n") or 1)
    if look_up(actor, "use_dynamic_bsz") is False:
        raise FallBack(Reason.UNSUPPORTED, "microbatches of fixed size: plans need actor.use_dynamic_bsz=true")
    if look_up(actor, "shuffle"):
        raise FallBack(Reason.UNSUPPORTED, "actor.shuffle draws mini-batches on each rank")
    if look_up(engine, "dynamic_context_parallel"):
        raise FallBack(Reason.UNSUPPORTED, "dynamic context parallelism puts a sample on several slots")
    tp = _size(engine, "tensor_model_parallel_size", "tensor_parallel_size")
    cp = _size(engine, "context_parallel_size")
    pp = _size(engine, "pipeline_model_parallel_size", "pipeline_parallel_size")
    ulysses = _size(engine, "ulysses_sequence_parallel_size", "ulysses_parallel_size")
    if strategy.startswith("fsdp"):
        older = _size(actor, "ulysses_sequence_parallel_size")
        ulysses = older if older > 1 else ulysses  # as verl decides
    # What each engine says is `sp_size`, by which verl multiplies the cap.
    split = {"megatron": cp, "torchtitan": tp}.get(strategy, ulysses)
    group = 1
    if _size(engine, "virtual_pipeline_model_parallel_size") > 1:
        group = int(look_up(engine, "override_transformer_config.microbatch_group_size_per_vp_stage") or pp)
    multiple = 1
    if strategy == "megatron":
        multiple = tp * (2 * cp if cp > 1 else 1)
        if look_up(engine, "override_transformer_config.fp8"):
            multiple = math.lcm(multiple, 16)
    return Limits(
        mini_batch=mini_batch,
        capacity=int(actor.ppo_max_token_len_per_gpu) * split,
        row_multiple=group,
        sample_multiple=multiple,
        topology=topology_of_sizes(
            dp=dp,
            ep=_size(engine, "expert_model_parallel_size", "expert_parallel_size"),
            tp=tp,
            cp=cp * ulysses,  # which splits a sample over ranks as context parallelism does
            etp=_size(engine, "expert_tensor_parallel_size", default=tp if strategy == "megatron" else 1),
            pp=pp,
        ),
    )


def _layout(trainer: Any, batch: Any, source: Any, planned: list[PlannedStep]) -> Layout:
    config = trainer.config.actor_rollout_ref
    lengths = source.lengths(batch)
    dp = planned[0].plan.num_slots
    return layout_of(planned, lengths, dp, limits_of(config, dp))


def layout_of(planned: list[PlannedStep], lengths: npt.NDArray[np.int64], dp: int, limits: Limits) -> Layout:
    """The order of the whole batch, and its column."""
    order: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(dp)]
    cells: list[list[npt.NDArray[np.int64]]] = [[] for _ in range(dp)]
    first = 0
    for step, members in zip(planned, mini_batches(len(lengths), dp, limits.mini_batch), strict=True):
        made = exporters.verl(step.plan, num_batches_divided_by=limits.row_multiple)
        rows = made.num_micro_batches
        columns = np.stack(
            [made.cell_ids + first, *(np.full(len(members), v) for v in (first, rows, limits.capacity))], axis=1
        )
        for rank, (part, column) in enumerate(
            zip(np.split(np.array(members)[made.permutation], dp), np.split(columns, dp), strict=True)
        ):
            order[rank].append(part)
            cells[rank].append(column)
        first += rows
    return Layout(
        order=np.concatenate([part for parts in order for part in parts]).astype(np.int64),
        cells=np.concatenate([part for parts in cells for part in parts]).astype(np.int64),
    )


def _experts(config: Any) -> int:
    return experts_of(_path(config.actor_rollout_ref))


def _path(config: Any) -> str:
    return str(look_up(config, "model.path"))


def megatron_findings(config: Any, settings: Settings) -> list[Finding]:
    """What of the transformer's settings, where verl's engine is Megatron, does not go with plans."""
    megatron = look_up(config, "actor.megatron")
    if megatron is None or look_up(config, "actor.strategy") not in (None, "megatron"):
        return []
    said = dict(look_up(megatron, "override_transformer_config") or {})
    if look_up(megatron, "vanilla_mbridge") and said.get(_COEFFICIENT) and "glm" in _path(config).lower():
        said.setdefault(_BALANCING, "seq_aux_loss")  # as mbridge has it for GLM-4 alone; verl's other bridge has none
    return list(check_settings("megatron", said, allow=settings.allow, moving=settings.mode != "packing"))


def _dp(trainer: Any) -> int:
    group = trainer.actor_rollout_wg
    if "actor" not in group._dispatch_info:
        group._dispatch_info["actor"] = group._query_dispatch_info("actor")
    return int(max(group._dispatch_info["actor"])) + 1


def _size(values: Any, *names: str, default: int = 1) -> int:
    for name in names:
        found = look_up(values, name)
        if found:
            return int(found)
    return default
