# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core: a sequence-packing scheduler that answers with RoutePack's layout.

    from routepack.adapters import Settings, megatron
    megatron.install(Settings(cost="cost.toml"), config)   # on every rank, before the training loop is imported
    megatron.attach(model_chunks, optimizer)               # mode 'placement' or 'both': on every rank, before loading
    megatron.provide(routes)                               # on every rank that reads data, before each step

Megatron computes the schedule on every rank that reads data, from lengths that all of them gathered. Here the first of
them plans, with the routes that all of them provided, and sends the result to the others: one decision, which is the
plan's layout for all ranks or Megatron's own for all ranks.
Source: megatron/core/datasets/data_schedule.py of Megatron-Core 0.16.1 (HybridCPDataLoaderWrapper) and at commit
d98e8a64 (DpBalancedScheduler, scheduler_map, wrap_data_iterator).
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from routepack import exporters
from routepack._core import Constraints, Placement, Topology
from routepack._errors import InvalidInput
from routepack.adapters._hooks import Replaced, module_of, or_nothing
from routepack.adapters._placements import expect_shape
from routepack.adapters._reasons import FallBack, Reason
from routepack.adapters._routes import Counted, RouteCounts
from routepack.adapters._session import PlannedStep, Session, Step, StepWindow
from routepack.adapters._settings import Settings
from routepack.adapters._topology import topology_of_sizes

if TYPE_CHECKING:
    from routepack.adapters.experts import WorkerExperts

Samples = Sequence[tuple[int, int]]  # (global id, padded tokens), ids counted from 0
Groups = list[list[list[int]]]  # [row][rank of the data- and context-parallel group]: ids

_LOG = logging.getLogger("routepack")
_LOCK = threading.Lock()
_ACTIVE: _Active | None = None
_REPLACED = Replaced()


@dataclasses.dataclass(eq=False)
class _Active:
    settings: Settings
    config: Any
    counts: RouteCounts | None = None
    provided: list[Counted | None] | None = None  # by this rank, for the next step
    top_k: int = 0
    session: Session | None = None  # of the rank that plans
    moved: tuple[Placement, int] | None = None  # on the rank that plans: what all ranks must move to
    experts: WorkerExperts | None = None


@dataclasses.dataclass(frozen=True)
class _Ranks:
    """Who schedules together."""

    data: Any  #: process group of the data-parallel ranks, which read different samples
    all: Any  #: process group of the data- and context-parallel ranks
    pipeline: Any | None  #: process group of the pipeline stages
    device: Any = None

    @property
    def first(self) -> bool:
        return self.pipeline is None or self.pipeline.rank() == 0

    @property
    def peers(self) -> int:
        """Neighbours in `all` that read the same samples."""
        return int(self.all.size() // self.data.size())


def install(settings: Settings | None = None, config: Any = None, *, module: Any = None) -> None:
    """Makes Megatron's scheduler plan. Call it on every rank with the same settings; twice takes the new ones.

    :param settings: None: from the environment (ROUTEPACK_COST and so on)
    :param config: the TransformerConfig: parallel sizes, num_moe_experts, moe_router_topk; needed unless switched off
    :param module: instead of megatron.core.datasets.data_schedule
    :raises Error: when this Megatron-Core has no such scheduler, or a setting is wrong
    """
    chosen = settings or Settings.from_environment()
    chosen.check()
    if chosen.enabled and config is None:
        raise InvalidInput("config: found none, wanted the TransformerConfig: parallel sizes, num_moe_experts")
    uninstall()
    with or_nothing(uninstall, switched_off=not chosen.enabled):
        _install(chosen, config, module or module_of("megatron", "megatron.core.datasets.data_schedule"))


def _install(chosen: Settings, config: Any, owner: Any) -> None:
    global _ACTIVE
    packing = _packing_schedulers(owner)
    hybrid = getattr(owner, "HybridCPDataLoaderWrapper", None)
    if not packing and hybrid is None:
        raise InvalidInput(f"megatron: {owner.__name__}: found no scheduler_map and no HybridCPDataLoaderWrapper")
    wrap = getattr(owner, "wrap_data_iterator", None)
    if chosen.enabled and chosen.mode != "packing" and wrap is None:
        raise InvalidInput(
            f"megatron: {owner.__name__}: found no wrap_data_iterator, where experts would move on all ranks; wanted "
            f"mode='packing' instead of {chosen.mode!r}"
        )
    with _LOCK:
        _ACTIVE = _Active(chosen, config)
    for key, scheduler in packing.items():
        _REPLACED.put(owner.scheduler_map, key, _planning(scheduler))
    if hybrid is not None:
        _REPLACED.put(hybrid, "__next__", _hybrid_next(hybrid.__next__))
    if wrap is not None:
        replacement = _moving(wrap)
        for user in list(sys.modules.values()):
            if getattr(user, "__dict__", {}).get("wrap_data_iterator") is wrap:
                _REPLACED.put(user, "wrap_data_iterator", replacement)


def uninstall() -> None:
    """Takes the hooks out again, and ends the planner."""
    global _ACTIVE
    _REPLACED.put_back()
    with _LOCK:
        active, _ACTIVE = _ACTIVE, None
    if active is not None and active.session is not None:
        active.session.close()


def installed() -> bool:
    """Whether this process has the hooks."""
    return _ACTIVE is not None


def attach(model_chunks: Sequence[Any], optimizer: Any, **options: Any) -> WorkerExperts:
    """Lets this adapter move experts: `mode="placement"` or `"both"`. After `install`, on every rank of the model, when
    model and optimizer are there; before a checkpoint is loaded.

    :param options: as of `routepack.adapters.experts.attach`
    :returns: where experts are, names for export, copies and checkpoints
    :raises InvalidInput: for what cannot be moved, with the reason
    """
    from routepack.adapters import experts

    active = _ACTIVE
    if active is None:
        raise InvalidInput("megatron: found no hooks, wanted megatron.install(settings, config) before attach")
    if active.settings.current and "placement" not in options:
        options["placement"] = Placement.load(active.settings.current)
    active.experts = experts.attach(model_chunks, optimizer, **options)
    return active.experts


def provide(routes: Sequence[Any], *, layers: Sequence[int] | None = None) -> None:
    """Routes of the samples that this rank's data iterator gives for the next step, in that order.

    Counted at once: what travels to the rank that plans are counts. Never raises: what cannot be counted is missing.

    :param routes: per sample [tokens or fewer, layers, k], what `RouteCounts.of` made of it, or None
    :param layers: which places of the routes are layers with experts; None: all
    """
    active = _ACTIVE
    if active is None or not active.settings.enabled:
        return
    counted: list[Counted | None] = []
    for some in routes:
        if some is None or isinstance(some, Counted):
            counted.append(some)
            continue
        try:
            if active.counts is None:
                active.counts = RouteCounts(experts=_experts(active), layers=layers)
            active.top_k = int(some.shape[2])
            counted += active.counts.of([some], lengths=[int(some.shape[0]) + 1])
        except Exception:
            counted.append(None)
    active.provided = counted


def session() -> Session | None:
    """On the rank that plans, after its first step: its `metrics` are those of the last step. None elsewhere."""
    return None if _ACTIVE is None else _ACTIVE.session


def step_of(
    samples: Samples,
    provided: Sequence[Sequence[Counted | None] | None],
    *,
    topology: Topology,
    top_k: int,
    capacity: int,
    constraints: Constraints,
) -> Step:
    """One window: Megatron's scheduler sees one global batch at a time.

    :param provided: of each data-parallel rank, as ids count
    :raises FallBack: when routes are missing or do not fit the samples
    """
    silent = [rank for rank, some in enumerate(provided) if some is None]
    if silent:
        raise FallBack(Reason.NO_ROUTES, f"rank {silent[0]} provided no routes; call megatron.provide before each step")
    routes = [counted for some in provided if some is not None for counted in some]
    if len(routes) != len(samples):
        raise FallBack(Reason.BAD_INPUT, f"found routes of {len(routes)} samples, wanted {len(samples)}")
    if [number for number, _ in samples] != list(range(len(samples))):
        raise FallBack(Reason.UNSUPPORTED, "samples whose ids do not count from 0")
    lengths = np.array([length for _, length in samples], dtype=np.int32)
    return Step([StepWindow(lengths, routes)], top_k, topology, capacity, constraints)


def _packing_schedulers(owner: Any) -> dict[Any, Any]:
    """Schedulers that give every sample to one slot: `get_groups_and_subsamples(samples)` and `run` with the groups."""
    table = getattr(owner, "scheduler_map", None)
    if not isinstance(table, dict):
        return {}
    return {
        key: scheduler
        for key, scheduler in table.items()
        if callable(getattr(scheduler, "get_groups_and_subsamples", None))
        and callable(getattr(scheduler, "run", None))
        and "dynamic" not in str(getattr(key, "value", key)).lower()  # a sample on several slots is no cell
    }


def _planning(scheduler: Any) -> Any:
    class RoutePackScheduler(scheduler):  # type: ignore[misc]
        """Megatron's scheduler, which asks RoutePack first."""

        def run(self, *args: Any, **kwargs: Any) -> Any:
            names = ["data_iterator", "num_microbatches", "dp_group", "tp_group", "pp_group", "dp_cp_group", "dev"]
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            self.routepack_ranks = _Ranks(given["dp_group"], given["dp_cp_group"], given["pp_group"], given["dev"])
            return super().run(*args, **kwargs)

        def get_groups_and_subsamples(self, sample_id_seqlens: Samples, *args: Any) -> Any:
            own: Groups = super().get_groups_and_subsamples(sample_id_seqlens, *args)
            group = self.microbatch_group_size_per_vp_stage or 1
            made = _decide(
                sample_id_seqlens,
                getattr(self, "routepack_ranks", None),
                slots=int(self.dp_size),
                cp=int(self.cp_size),
                capacity=int(self.max_seqlen_per_dp_cp_rank) * int(self.cp_size),
                constraints=Constraints(row_multiple=int(group), oversized="own-cell"),
                export=lambda planned: exporters.megatron(
                    planned[0].plan, cp_size=int(self.cp_size), microbatch_group_size_per_vp_stage=int(group)
                ),
            )
            return own if made is None else made

    RoutePackScheduler.__name__ = RoutePackScheduler.__qualname__ = scheduler.__name__
    return RoutePackScheduler


def _hybrid_next(original: Any) -> Any:
    def __next__(self: Any) -> Any:
        balancer = self.cp_balancing_scheduler
        if not isinstance(balancer, _Hybrid):
            self.cp_balancing_scheduler = _Hybrid(balancer, self)
        return original(self)

    return __next__


class _Hybrid:
    """Stands for `BalancedCPScheduler`: hybrid context parallelism, where every rank is a slot of its own.

    It runs the samples of a group one by one, as microbatches of their own. Experts of several ranks therefore only
    stay in step when each rank has one sample per group, which is what is planned.
    """

    def __init__(self, own: Any, loader: Any) -> None:
        self.own = own
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def get_groups_and_subsamples(self, sample_id_seqlens: Samples, config: Any) -> tuple[Any, Any]:
        """(lengths, ids), both [group][rank]."""
        own = self.own.get_groups_and_subsamples(sample_id_seqlens, config)
        slots, cap = int(self.own.total_hdp_gpus), int(self.own.max_seq_len_per_rank)
        made: Groups | None = _decide(
            sample_id_seqlens,
            _Ranks(self.loader.dp_group, self.loader.dp_cp_group, None),
            slots=slots,
            cp=1,
            capacity=cap,
            constraints=Constraints(max_samples_per_cell=1),
            export=lambda planned: exporters.megatron(planned[0].plan, max_num_seqs=1),
        )
        if made is None:
            return own[0], own[1]
        tokens = dict(sample_id_seqlens)
        return [[[tokens[i] for i in cell] for cell in row] for row in made], made


def _decide(
    samples: Samples,
    ranks: _Ranks | None,
    *,
    slots: int,
    cp: int,
    capacity: int,
    constraints: Constraints,
    export: Callable[[list[PlannedStep]], Groups],
) -> Groups | None:
    """The plan's layout, or None for Megatron's own: the same on all ranks. Every rank that schedules must call it."""
    active = _ACTIVE
    if active is None:
        return None
    provided, active.provided = active.provided, None
    everything = _gathered((provided, active.top_k), ranks)
    if everything is None:  # not the rank that plans
        return _received(None, ranks)
    made: Groups | None = None
    if ranks is None or ranks.first:

        def build() -> Step:
            top_k = max((k for _, k in everything), default=0) or int(getattr(active.config, "moe_router_topk", 0) or 0)
            if cp > 1 and getattr(active.config, "dynamic_context_parallel", False):
                raise FallBack(Reason.UNSUPPORTED, "dynamic context parallelism puts a sample on several slots")
            return step_of(
                samples,
                [some for some, _ in everything],
                topology=_topology(active.config, slots, cp),
                top_k=top_k,
                capacity=capacity,
                constraints=constraints,
            )

        active.moved = None
        try:  # the other ranks wait: nothing may end this one here
            active.session = active.session or _session(active)
            try:
                _follow(active)
            except Exception as error:
                active.session.failed(error)
            else:
                made = active.session.run(build, export)
        except Exception as error:
            _LOG.warning("routepack: Megatron's own packing is used: %s: %s", type(error).__name__, error)
    return _received(made, ranks, plans=True)


def _gathered(mine: Any, ranks: _Ranks | None) -> list[Any] | None:
    """What every data-parallel rank has, on the rank that plans; None on the others."""
    if ranks is None or ranks.all.size() == 1:
        return [mine]
    import torch.distributed as dist

    # Context-parallel peers have the same data: of a slot's ranks the first one counts.
    everything: list[Any] | None = [None] * ranks.all.size() if ranks.all.rank() == 0 else None
    dist.gather_object(mine, everything, dst=dist.get_process_group_ranks(ranks.all)[0], group=ranks.all)
    return None if everything is None else everything[:: ranks.peers]


def _received(made: Groups | None, ranks: _Ranks | None, *, plans: bool = False) -> Groups | None:
    """The decision of the rank that plans: from the first stage to the last, and in each to all ranks."""
    if ranks is None:
        return made
    import torch.distributed as dist

    box: list[Any] = [made]
    stages = 1 if ranks.pipeline is None else ranks.pipeline.size()
    if plans and stages > 1:  # rank 0 of the data-parallel ranks of the first and of the last stage
        peers = dist.get_process_group_ranks(ranks.pipeline)
        if ranks.first:
            dist.send_object_list(box, dst=peers[-1], group=ranks.pipeline, device=ranks.device)
        else:
            dist.recv_object_list(box, src=peers[0], group=ranks.pipeline, device=ranks.device)
    if ranks.all.size() > 1:
        dist.broadcast_object_list(box, src=dist.get_process_group_ranks(ranks.all)[0], group=ranks.all)
    return box[0]  # type: ignore[no-any-return]


def _session(active: _Active) -> Session:
    settings = active.settings
    if settings.mode != "packing":
        # Experts move on all ranks together, once all are there: in `wrap_data_iterator`.
        def note(placement: Placement, epoch: int) -> None:
            if active.experts is None and active.settings.on_placement is None:
                raise InvalidInput("wanted megatron.attach(model_chunks, optimizer) on every rank, or on_placement")
            if active.experts is not None:
                expect_shape(
                    placement, active.experts.placement, "; are the layers of megatron.provide those with experts?"
                )
            active.moved = (placement, epoch)

        settings = dataclasses.replace(settings, on_placement=note)
    return Session.or_off(settings, framework="megatron", config=active.config)


def _moving(original: Any) -> Any:
    def wrap_data_iterator(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        active = _ACTIVE
        if active is None or active.settings.mode == "packing" or not active.settings.enabled:
            return made
        import torch.distributed as dist

        box: list[Any] = [None]
        if active.moved is not None:
            placement, epoch = active.moved
            box = [(placement.physical_to_logical.tolist(), placement.ranks, epoch)]
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.broadcast_object_list(box, src=0)
        active.moved = None
        if box[0] is not None:
            maps, count, epoch = box[0]
            placement = Placement.from_maps(ranks=count, physical_to_logical=np.array(maps, dtype=np.int32))
            if active.settings.on_placement is not None:
                active.settings.on_placement(placement, epoch)
            else:
                _move(active, placement, epoch)
        return made

    return wrap_data_iterator


def _follow(active: _Active) -> None:
    """The session plans from where experts are, which a checkpoint or a failed move may have changed."""
    if active.experts is None or active.session is None:
        return
    maps, here = active.experts.placement.physical_to_logical, active.session.current
    if active.session.epoch != active.experts.epoch or here is None or not np.array_equal(maps, here):
        active.session.resume(maps, active.experts.epoch)


def _move(active: _Active, placement: Placement, epoch: int) -> None:
    """On all ranks. A move that failed whole leaves a step that trains on the layout, with experts where they were."""
    assert active.experts is not None
    failed = active.experts.try_move(placement, epoch)
    if active.session is not None:
        if failed:
            active.session.not_moved(failed)
        _follow(active)


def _topology(config: Any, slots: int, cp: int) -> Topology:
    return topology_of_sizes(
        dp=slots,
        ep=_size(config, "expert_model_parallel_size"),
        tp=_size(config, "tensor_model_parallel_size"),
        cp=cp,
        etp=_size(config, "expert_tensor_parallel_size", _size(config, "tensor_model_parallel_size")),
        pp=_size(config, "pipeline_model_parallel_size"),
    )


def _experts(active: _Active) -> int:
    return active.settings.experts or int(getattr(active.config, "num_moe_experts", 0) or 0)


def _size(config: Any, name: str, default: int = 1) -> int:
    return int(getattr(config, name, None) or default)
