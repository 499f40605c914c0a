# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core trains on plans: its own loader and scheduler, on several processes over gloo.

Hybrid context parallelism is that of the installed Megatron-Core. The packing scheduler came after the last version for
this Python: ROUTEPACK_MEGATRON_CHECKOUT names a source checkout that has megatron/core/datasets/data_schedule.py.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip(
    "megatron.core.datasets.data_schedule", reason="no Megatron-Core: the adapter was NOT run against the real thing"
)

import torch.distributed as dist  # noqa: E402
from transfer.processes import run_ranks  # noqa: E402

from routepack import InvalidInput, RoutePackWarning  # noqa: E402
from routepack.adapters import PlannerProcess, Reason, Rules, Settings, check_schedule, megatron  # noqa: E402

from . import megatron_like  # noqa: E402
from .batches import COST, Batch  # noqa: E402
from .model import Model, agree  # noqa: E402

CHECKOUT = "ROUTEPACK_MEGATRON_CHECKOUT"
MISBEHAVING = pathlib.Path(__file__).with_name("misbehaving.py")
RANKS, CAP = 4, 128
BATCH = Batch()


def on_cpu() -> None:
    """What Megatron puts on the current GPU stays on the host."""
    torch.cuda.current_device = lambda: "cpu"
    torch.Tensor.cuda = lambda self, *args, **kwargs: self


def configuration(**more: Any) -> types.SimpleNamespace:
    values = {
        "max_seqlen_per_dp_cp_rank": CAP,
        "expert_model_parallel_size": 2,
        "expert_tensor_parallel_size": 1,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "virtual_pipeline_model_parallel_size": None,
        "microbatch_group_size_per_vp_stage": None,
        "num_moe_experts": BATCH.experts,
        "moe_router_topk": BATCH.top_k,
        "sequence_packing_scheduler": "dp_balanced",
    }
    return types.SimpleNamespace(**{**values, **more})


def groups_of(rank: int, cp: int = 1, pp: int = 1) -> types.SimpleNamespace:
    """Process groups of DP × CP × PP, context parallelism inside, pipelines outside."""
    world = dist.get_world_size()
    each = world // pp

    def of(members: list[list[int]]) -> Any:
        made = [dist.new_group(some) for some in members]
        return next(group for group, some in zip(made, members, strict=True) if rank in some)

    stages = [list(range(stage * each, (stage + 1) * each)) for stage in range(pp)]
    return types.SimpleNamespace(
        tp=of([[r] for r in range(world)]),
        dp_cp=of(stages),
        dp=of([stage[c::cp] for stage in stages for c in range(cp)]),
        cp=of([stage[d * cp : (d + 1) * cp] for stage in stages for d in range(each // cp)]),
        pp=of([list(column) for column in zip(*stages, strict=True)]),
    )


def mine_of(dp_rank: int, ranks: int) -> list[int]:
    """The samples that a data-parallel rank reads; ids count rank by rank."""
    each = BATCH.samples // ranks
    return list(range(dp_rank * each, (dp_rank + 1) * each))


def masks() -> list[Any]:
    """1 for tokens whose prediction is trained, one value per token."""
    made = []
    for length, response in zip(BATCH.lengths(), BATCH.loss_masks(), strict=True):
        mask = torch.zeros(length)
        mask[length - 1 - len(response) : length - 1] = torch.tensor(response, dtype=torch.float32)
        made.append(mask)
    return made


def sample_of(i: int) -> dict[str, Any]:
    tokens = torch.tensor(BATCH.tokens()[i])
    labels = torch.roll(tokens, -1)
    return {"tokens": tokens, "labels": labels, "loss_mask": masks()[i], "position_ids": torch.arange(len(tokens))}


def losses_of(model: Model, samples: list[int]) -> list[Any]:
    """Of a cell: minus the log-probability of each trained token, per sample."""
    routes = BATCH.routes()
    logs = model.log_probs(
        [torch.tensor(BATCH.tokens()[i]) for i in samples], [torch.from_numpy(routes[i]) for i in samples]
    )
    found = masks()
    return [-(log * found[i][:-1]) for log, i in zip(logs, samples, strict=True)]


def train(cells: list[list[int]], weights: list[float]) -> dict[str, Any]:
    """Both losses of what a rank runs, with gradients over all ranks.

    :param weights: of each sample: several ranks may share it
    """
    found: dict[str, Any] = {}
    lengths = [float(mask.sum()) for mask in masks()]
    for kind, scale in {
        "token": [1 / sum(lengths)] * len(lengths),
        "sequence": [1 / n / len(lengths) for n in lengths],
    }.items():
        model = Model(BATCH)
        total = torch.zeros(1)
        for cell in cells:
            sums = [loss.sum() * scale[i] * weights[i] for loss, i in zip(losses_of(model, cell), cell, strict=True)]
            loss = torch.stack(sums).sum()
            loss.backward()
            total += loss.detach()
        grads = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}
        for tensor in [total, *grads.values()]:
            dist.all_reduce(tensor)
        found[kind] = (float(total), {name: grad.numpy().copy() for name, grad in grads.items()})
    return found


def provide(dp_rank: int, ranks: int) -> None:
    routes = BATCH.routes()
    megatron.provide([routes[i] for i in mine_of(dp_rank, ranks)], layers=list(range(1, BATCH.layers)))


def caught(session: Any, told: list[Any]) -> dict[str, Any]:
    return {
        "metrics": dict(session.metrics) if session is not None else None,
        "warnings": [str(w.message) for w in told if issubclass(w.category, RoutePackWarning)],
    }


def hybrid_job(
    rank: int, install: bool, planner: list[str] | None, without: list[int], current: str = ""
) -> dict[str, Any]:
    """The installed Megatron's loader, one step. `without`: ranks that provide no routes."""
    on_cpu()
    from megatron.core.datasets import data_schedule

    if planner is not None:
        spoil(planner)
    config, groups = configuration(), groups_of(rank)
    if install:
        megatron.install(Settings(cost=COST, deadline_ms=500, grace_ms=1500, current=current), config)
    mine = [sample_of(i) for i in mine_of(rank, RANKS)]
    packed = {key: torch.cat([sample[key] for sample in mine]) for key in mine[0]}
    packed["cu_seqlens"] = torch.tensor(np.cumsum([0, *(len(s["tokens"]) for s in mine)]), dtype=torch.int32)
    loader = data_schedule.HybridCPDataLoaderWrapper(iter([[packed]]), config, groups)
    if install and rank not in without:
        provide(rank, RANKS)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        samples, schedule = next(loader)
    schedule = [[[int(i) for i in cell] for cell in row] for row in schedule]
    for row in schedule:  # what arrived is what the schedule says
        for i in row[rank]:
            assert torch.equal(samples[i]["tokens"], torch.tensor(BATCH.tokens()[i]))
    shared = [0] * BATCH.samples
    for row in schedule:
        for cell in row:
            for i in cell:
                shared[i] += 1
    cells = [[i] for row in schedule for i in row[rank]]  # hybrid context parallelism runs them one by one
    made = {"schedule": schedule, "trained": train(cells, [1 / n for n in shared]), **caught(megatron.session(), told)}
    megatron.uninstall()
    return made


def spoil(planner: list[str]) -> None:
    import routepack.adapters._session as module

    module.PlannerProcess = lambda **_: PlannerProcess(command=planner)  # type: ignore[misc, assignment]


def packing_job(
    rank: int, install: bool, cp: int, pp: int, mode: str, planner: list[str] | None, like: bool = False
) -> dict[str, Any]:
    """The checkout's packing scheduler, one step. `like`: one of the same shapes instead."""
    on_cpu()
    module = megatron_like if like else checkout()
    if planner is not None:
        spoil(planner)
    config = configuration(pipeline_model_parallel_size=pp)
    groups = groups_of(rank, cp, pp)
    moved: list[tuple[Any, int]] = []
    if install:
        settings = Settings(
            cost=COST,
            deadline_ms=500,
            grace_ms=1500,
            mode=mode,
            on_placement=lambda p, e: moved.append((p.physical_to_logical.tolist(), e)),
        )
        megatron.install(settings, config, module=module)
    ranks, mine = groups.dp.size(), groups.dp.rank()
    if install:
        provide(mine, ranks)
    samples = []
    for i in mine_of(mine, ranks):
        length = torch.tensor([len(BATCH.tokens()[i])], dtype=torch.int32)
        samples.append({**sample_of(i), "original_seq_len": length, "padded_seq_len": length.clone()})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        iterator, rows, tokens, _ = module.wrap_data_iterator(
            iter([[some] for some in samples]), config, len(samples), groups
        )
    assert tokens == sum(BATCH.lengths())
    cells = []
    for _ in range(rows):
        cell = next(iterator)
        ends = cell["cu_seqlens_padded"].tolist()
        parts = [cell["tokens"][begin:end].tolist() for begin, end in zip(ends, ends[1:], strict=False)]
        cells.append([BATCH.tokens().index(part) for part in parts])
    copies = cp * pp  # ranks with the same samples
    made = {
        "cells": cells,
        "slot": mine,
        "moved": moved,
        "trained": train(cells, [1 / copies] * BATCH.samples),
        **caught(megatron.session(), told),
    }
    megatron.uninstall()
    return made


def checkout() -> Any:
    """megatron.core.datasets.data_schedule of a checkout, on the rest of the installed Megatron-Core."""
    folder = pathlib.Path(os.environ[CHECKOUT]) / "megatron" / "core" / "datasets"
    for name in ("data_schedule_utils", "data_schedule"):
        full = f"megatron.core.datasets.{name}"
        spec = importlib.util.spec_from_file_location(full, folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def packing() -> None:
    if not os.environ.get(CHECKOUT):
        pytest.skip(f"{CHECKOUT} names no checkout: the packing scheduler did NOT run against Megatron's own code")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    megatron.uninstall()


@functools.cache
def hybrid_own() -> list[Any]:
    """Without RoutePack."""
    return run_ranks(hybrid_job, RANKS, False, None, [])


@functools.cache
def packing_own(cp: int, pp: int, like: bool = False) -> list[Any]:
    """Without RoutePack."""
    return run_ranks(packing_job, RANKS, False, cp, pp, "packing", None, like)


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for kind in ("token", "sequence"):
        assert one[kind][0] == pytest.approx(other[kind][0], rel=1e-5)
        first, second = ({n: torch.from_numpy(g) for n, g in made[kind][1].items()} for made in (one, other))
        assert agree(first, second)
        assert not agree(first, dict(second, router=second["router"] * 1.0001 + 1e-4))  # the comparison can fail


def test_hybrid_context_parallelism_trains_on_a_plan_what_it_trains_without() -> None:
    own = hybrid_own()
    planned = run_ranks(hybrid_job, RANKS, True, None, [])
    schedule = planned[0]["schedule"]
    assert all(one["schedule"] == schedule for one in planned)
    assert schedule != own[0]["schedule"]
    # One sample per rank and group: with more passes on one rank the others, with their experts, would be waited for.
    check_schedule(schedule, BATCH.lengths(), Rules(slots=RANKS, capacity=CAP, max_samples_per_cell=1))
    metrics = planned[0]["metrics"]
    assert metrics["routepack/fallback"] == 0.0 and metrics["routepack/used"] == 1.0
    assert all(one["metrics"] is None for one in planned[1:])  # one rank plans
    same(own[0]["trained"], planned[0]["trained"])


@pytest.mark.parametrize(
    ("how", "reasons"),
    [
        ("kills itself", {Reason.PLANNER_DIED}),
        ("raises", {Reason.PLANNER_ERROR}),
        ("stalls", {Reason.DEADLINE}),
        ("noise", {Reason.BAD_REPLY}),
        ("missing sample", {Reason.BAD_PLAN, Reason.BAD_REPLY}),  # the reader of plans may see it first
        ("empty cell", {Reason.BAD_PLAN, Reason.BAD_REPLY}),
    ],
)
def test_all_ranks_go_on_with_their_own_schedule_when_the_planner(how: str, reasons: set[Reason]) -> None:
    own = hybrid_own()
    planned = run_ranks(hybrid_job, RANKS, True, [sys.executable, str(MISBEHAVING), how], [])
    assert all(one["schedule"] == own[0]["schedule"] for one in planned)
    metrics = planned[0]["metrics"]
    assert metrics["routepack/fallback"] in reasons and metrics["routepack/used"] == 0.0
    assert metrics["routepack/fallbacks"] == metrics["routepack/steps"] == 1.0
    (text,) = planned[0]["warnings"]
    assert "the framework's own packing is used" in text
    assert not any(one["warnings"] or one["metrics"] for one in planned[1:])


def test_a_file_that_the_rank_that_plans_cannot_read_leaves_all_ranks_with_their_own_schedule() -> None:
    own = hybrid_own()
    planned = run_ranks(hybrid_job, RANKS, True, None, [], "/nowhere/placement.json")
    assert all(one["schedule"] == own[0]["schedule"] for one in planned)
    assert planned[0]["metrics"]["routepack/fallback"] == Reason.BAD_INPUT
    (text,) = planned[0]["warnings"]
    assert "/nowhere/placement.json" in text and not any(one["warnings"] for one in planned[1:])


def test_routes_that_one_rank_did_not_provide_leave_all_ranks_with_their_own_schedule() -> None:
    own = hybrid_own()
    planned = run_ranks(hybrid_job, RANKS, True, None, [2])
    assert all(one["schedule"] == own[0]["schedule"] for one in planned)
    assert planned[0]["metrics"]["routepack/fallback"] == Reason.NO_ROUTES
    assert "rank 2 provided no routes" in planned[0]["warnings"][0]


@pytest.mark.parametrize(("cp", "pp"), [(1, 1), (2, 1), (1, 2)])
def test_the_packing_scheduler_trains_on_a_plan_what_it_trains_without(packing: None, cp: int, pp: int) -> None:
    own = packing_own(cp, pp)
    planned = run_ranks(packing_job, RANKS, True, cp, pp, "packing", None)
    slots = RANKS // cp // pp
    rows = len(planned[0]["cells"])
    layout: list[list[list[int]]] = [[[] for _ in range(slots)] for _ in range(rows)]
    for one in planned:
        assert len(one["cells"]) == rows
        for r, cell in enumerate(one["cells"]):
            assert layout[r][one["slot"]] in ([], cell)  # ranks with the same samples have the same cells
            layout[r][one["slot"]] = cell
    check_schedule(layout, BATCH.lengths(), Rules(slots=slots, capacity=CAP * cp))
    assert [one["cells"] for one in own] != [one["cells"] for one in planned]
    assert planned[0]["metrics"]["routepack/fallback"] == 0.0
    same(own[0]["trained"], planned[0]["trained"])


@pytest.mark.parametrize("source", ["recorded shapes", "checkout"])
@pytest.mark.parametrize(
    ("how", "reasons"),
    [
        (None, {Reason.NONE}),
        ("kills itself", {Reason.PLANNER_DIED}),
        ("stalls", {Reason.DEADLINE}),
        ("noise", {Reason.BAD_REPLY}),
        ("over the cap", {Reason.BAD_PLAN, Reason.BAD_REPLY}),
    ],
)
def test_the_packing_scheduler_goes_on_when_the_planner(
    request: pytest.FixtureRequest, source: str, how: str | None, reasons: set[Reason]
) -> None:
    if source == "checkout":
        request.getfixturevalue("packing")
    like = source != "checkout"
    own = packing_own(1, 1, like)
    planner = None if how is None else [sys.executable, str(MISBEHAVING), how]
    planned = run_ranks(packing_job, RANKS, True, 1, 1, "packing", planner, like)
    same_cells = [one["cells"] for one in own] == [one["cells"] for one in planned]
    assert same_cells == (how is not None)  # a planner that works has a plan of its own
    metrics = planned[0]["metrics"]
    assert metrics["routepack/fallback"] in reasons and metrics["routepack/fallbacks"] == float(how is not None)
    assert len(planned[0]["warnings"]) == (how is not None)
    assert not any(one["warnings"] or one["metrics"] for one in planned[1:])
    same(own[0]["trained"], planned[0]["trained"])


def test_the_packing_scheduler_falls_back_on_all_stages(packing: None) -> None:
    own = packing_own(1, 2)
    planned = run_ranks(packing_job, RANKS, True, 1, 2, "packing", [sys.executable, str(MISBEHAVING), "kills itself"])
    assert [one["cells"] for one in own] == [one["cells"] for one in planned]
    assert planned[0]["metrics"]["routepack/fallback"] == Reason.PLANNER_DIED


@pytest.mark.parametrize("mode", ["placement", "both"])
def test_experts_move_on_all_ranks_together(packing: None, mode: str) -> None:
    own = packing_own(1, 1)
    planned = run_ranks(packing_job, RANKS, True, 1, 1, mode, None)
    assert len(planned[0]["moved"]) == 1 and planned[0]["moved"][0][1] == 1
    assert all(one["moved"] == planned[0]["moved"] for one in planned)
    assert ([one["cells"] for one in own] == [one["cells"] for one in planned]) == (mode == "placement")


def test_a_megatron_without_schedulers_is_refused() -> None:
    with pytest.raises(InvalidInput, match="found no scheduler_map and no HybridCPDataLoaderWrapper"):
        megatron.install(Settings(cost=COST), configuration(), module=types.ModuleType("empty"))


@pytest.mark.parametrize("mode", ["placement", "both"])
@pytest.mark.parametrize("how", ["attach", "on_placement"])
def test_moves_are_refused_where_ranks_do_not_meet_to_move(mode: str, how: str) -> None:
    """Megatron-Core 0.16.1 has hybrid context parallelism alone: plans would be for a placement that never comes."""
    from megatron.core.datasets import data_schedule

    module: Any = types.ModuleType("data_schedule")
    module.HybridCPDataLoaderWrapper = data_schedule.HybridCPDataLoaderWrapper
    before = data_schedule.HybridCPDataLoaderWrapper.__next__
    mover = None if how == "attach" else lambda placement, epoch: None
    with pytest.raises(InvalidInput, match=rf"found no wrap_data_iterator.*mode='packing' instead of '{mode}'"):
        megatron.install(Settings(cost=COST, mode=mode, on_placement=mover), configuration(), module=module)
    assert data_schedule.HybridCPDataLoaderWrapper.__next__ is before and not megatron.installed()
    megatron.install(Settings(mode=mode, enabled=False), configuration(), module=module)
    megatron.uninstall()


def test_a_configuration_is_needed_unless_switched_off() -> None:
    with pytest.raises(InvalidInput, match="config: found none"):
        megatron.install(Settings(cost=COST))
    assert not megatron.installed()
    megatron.install(Settings(enabled=False))
    megatron.uninstall()


def test_hooks_go_in_once_and_out_again() -> None:
    from megatron.core.datasets import data_schedule

    before = data_schedule.HybridCPDataLoaderWrapper.__next__
    megatron.install(Settings(cost=COST), configuration())
    megatron.install(Settings(cost=COST), configuration())
    assert data_schedule.HybridCPDataLoaderWrapper.__next__ is not before
    megatron.uninstall()
    assert data_schedule.HybridCPDataLoaderWrapper.__next__ is before


def test_a_dynamic_scheduler_is_left_alone() -> None:
    class Scheduler:
        def get_groups_and_subsamples(self) -> None: ...
        def run(self) -> None: ...

    module: Any = types.ModuleType("schedules")
    module.scheduler_map = {"default_dynamic_cp": Scheduler, "dp_balanced": Scheduler}
    megatron.install(Settings(cost=COST), configuration(), module=module)
    assert module.scheduler_map["default_dynamic_cp"] is Scheduler
    assert module.scheduler_map["dp_balanced"] is not Scheduler
