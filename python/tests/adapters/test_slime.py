# SPDX-License-Identifier: Apache-2.0
"""slime: its schedule, its optimizer steps, and its own packing whenever there is no plan."""

from __future__ import annotations

import ast
import dataclasses
import os
import pathlib
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from routepack import InvalidInput  # noqa: E402
from routepack.adapters import PlannerProcess, Reason, Settings, slime  # noqa: E402

from . import checkouts, contracts, measure_slime  # noqa: E402
from .batches import COST, PATIENT, Batch  # noqa: E402
from .conftest import shared  # noqa: E402
from .slime_jobs import PARALLEL, arguments, checkout, data_of, like, schedule_of  # noqa: E402

Told = Callable[[], list[str]]
MISBEHAVING = pathlib.Path(__file__).with_name("misbehaving.py")


@pytest.fixture(params=["recorded shapes", "checkout"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    return like() if request.param == "recorded shapes" else checkout(monkeypatch)


@pytest.fixture
def job(module: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> Callable[..., Any]:
    """Makes a manager that plans; and the schedule that slime makes itself."""
    shared(monkeypatch, planner)

    def make(batch: Batch, parallel: dict[str, int] | None = None, **more: Any) -> tuple[Any, Any]:
        settings = {key: more.pop(key) for key in list(more) if key in Settings.__dataclass_fields__}
        args, where = arguments(batch, **more), parallel or PARALLEL
        own = schedule_of(module.RolloutManager(args, where)._split_train_data_by_dp(data_of(batch)))
        slime.install(Settings(**{"cost": COST, **PATIENT, **settings}), module=module)
        return module.RolloutManager(args, where), own

    return make


def steps_of(schedule: Any) -> list[set[int]]:
    return [set(members) for members in slime.members_of_steps(schedule)]


def test_the_hooks_are_as_recorded(module: types.SimpleNamespace) -> None:
    for name in ("build_dp_schedule", "RolloutManager._split_train_data_by_dp"):
        contracts.holds(module, name, contracts.SLIME[name])


def test_a_batch_trains_on_the_plan(job: Callable[..., Any], warned: Told) -> None:
    batch = Batch()
    manager, own = job(batch)
    made = schedule_of(manager._split_train_data_by_dp(data_of(batch)))
    assert warned() == []
    contracts.check_slime_schedule(made, batch.lengths(), ranks=4, cap=128, steps=steps_of(own))
    assert made[3] == own[3] and made != own
    metrics = slime.session_of(manager).metrics
    assert metrics["routepack/fallback"] == 0 and metrics["routepack/used"] == 1 and metrics["routepack/windows"] == 2


def test_counts_are_those_of_the_layers_with_experts(job: Callable[..., Any]) -> None:
    batch = Batch()
    manager, own = job(batch)
    manager._split_train_data_by_dp(data_of(batch))
    session = slime.session_of(manager)
    members = slime.members_of_steps(own)
    counts = batch.counts()
    for plan, some in zip(session.last_plans, members, strict=True):
        loads = np.zeros((plan.num_rows, 2, batch.layers - 1, 2), dtype=np.int64)
        for r, row in enumerate(plan.layout):
            for slot, cell in enumerate(row):
                for i in cell:
                    for rank in range(2):
                        loads[r, slot // 2, :, rank] += counts[some[i]][:, rank * 4 : rank * 4 + 4].sum(axis=1)
        shapes = slime.step_of(manager.args, PARALLEL, batch.lengths(), own, data_of(batch))
        window = shapes.windows[members.index(some)].window(batch.top_k, 0.5)[0]
        np.testing.assert_array_equal(plan.rank_loads(window), loads)


def test_siblings_of_a_rollout_stay_in_one_step(job: Callable[..., Any]) -> None:
    batch = Batch()
    manager, _ = job(batch, global_batch_size=8)
    data = data_of(batch)
    data["rollout_ids"] = [i // 2 for i in range(batch.samples)]  # 16 rollouts of two samples
    made = schedule_of(manager._split_train_data_by_dp(data))
    assert made[3] == [8, 8]
    for step in steps_of(made):
        assert len(step) == 16 and {i ^ 1 for i in step} == step


def test_rollouts_that_slime_drops_are_dropped(job: Callable[..., Any]) -> None:
    batch = Batch()
    manager, own = job(batch, global_batch_size=12)
    made = schedule_of(manager._split_train_data_by_dp(data_of(batch)))
    assert steps_of(made) == steps_of(own) and len(steps_of(made)) == 2
    assert sum(len(partition) for partition in made[0]) == 24


def test_a_sample_over_the_cap_trains_alone(job: Callable[..., Any], warned: Told) -> None:
    batch = Batch(most=300, median=60.0, seed=3)
    manager, own = job(batch, max_tokens_per_gpu=200)
    assert max(batch.lengths()) > 200
    made = schedule_of(manager._split_train_data_by_dp(data_of(batch)))
    assert warned() == []
    contracts.check_slime_schedule(made, batch.lengths(), ranks=4, cap=200, steps=steps_of(own))


def test_interleaved_pipelines_get_whole_groups_of_microbatches(job: Callable[..., Any]) -> None:
    batch = Batch(samples=48)
    parallel = {**PARALLEL, "vpp_size": 2, "microbatch_group_size_per_vp_stage": 2}
    manager, own = job(batch, parallel, pipeline_model_parallel_size=2)
    made = schedule_of(manager._split_train_data_by_dp(data_of(batch)))
    contracts.check_slime_schedule(made, batch.lengths(), ranks=4, cap=128, multiple=2, steps=steps_of(own))
    assert slime.session_of(manager).metrics["routepack/used"] == 1


def test_context_parallel_cells_hold_the_cap_on_aligned_lengths(job: Callable[..., Any]) -> None:
    batch = Batch()
    manager, own = job(batch, {**PARALLEL, "cp_size": 2}, max_tokens_per_gpu=64)
    made = schedule_of(manager._split_train_data_by_dp(data_of(batch)))
    aligned = [-(-n // 4) * 4 for n in batch.lengths()]
    contracts.check_slime_schedule(made, aligned, ranks=4, cap=128, steps=steps_of(own))
    assert slime.session_of(manager).metrics["routepack/used"] == 1


def _more_rows_than_tokens(data: dict[str, Any]) -> None:
    data["rollout_routed_experts"][0] = torch.ones(len(data["tokens"][0]) + 1, 3, 2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data.pop("rollout_routed_experts"), Reason.NO_ROUTES),
        (lambda data: data.update(rollout_routed_experts=[None] * len(data["tokens"])), Reason.NO_ROUTES),
        (lambda data: [ids.zero_() for ids in data["rollout_routed_experts"]], Reason.NO_ROUTES),
        (lambda data: data["rollout_routed_experts"][0].fill_(99), Reason.BAD_INPUT),
        (_more_rows_than_tokens, Reason.BAD_INPUT),
        (lambda data: data.update(rollout_routed_experts=[torch.zeros(2)] * len(data["tokens"])), Reason.BAD_INPUT),
    ],
    ids=["no key", "all None", "nothing captured", "unknown expert", "more rows than tokens", "wrong shape"],
)
def test_routes_that_are_missing_or_wrong_leave_the_step_to_slime(
    job: Callable[..., Any], warned: Told, change: Callable[[Any], object], reason: Reason
) -> None:
    batch = Batch()
    manager, own = job(batch)
    data = data_of(batch)
    change(data)
    assert schedule_of(manager._split_train_data_by_dp(data)) == own
    metrics = slime.session_of(manager).metrics
    assert metrics["routepack/fallback"] == reason and metrics["routepack/used"] == 0
    assert len(warned()) == 1


def test_microbatches_of_fixed_size_stay_with_slime(job: Callable[..., Any], warned: Told) -> None:
    batch = Batch()
    manager, _ = job(batch)
    manager.args.use_dynamic_batch_size = False
    manager._split_train_data_by_dp(data_of(batch))
    assert slime.session_of(manager).metrics["routepack/fallback"] == Reason.UNSUPPORTED
    (text,) = warned()
    assert "--use-dynamic-batch-size" in text


def test_a_setting_that_drops_tokens_is_refused_by_name(job: Callable[..., Any], warned: Told) -> None:
    batch = Batch()
    manager, own = job(batch, moe_expert_capacity_factor=1.25)
    for _ in range(2):
        assert schedule_of(manager._split_train_data_by_dp(data_of(batch))) == own
        assert slime.session_of(manager).metrics["routepack/fallback"] == Reason.SETTINGS
    (text,) = warned()
    assert "moe_expert_capacity_factor" in text and "drops" in text


def test_a_setting_that_is_accepted_plans(job: Callable[..., Any], warned: Told) -> None:
    batch = Batch()
    manager, own = job(batch, moe_expert_capacity_factor=1.25, allow=("moe_expert_capacity_factor",))
    assert schedule_of(manager._split_train_data_by_dp(data_of(batch))) != own
    assert warned() == []


def test_switched_off_it_is_slime(job: Callable[..., Any], warned: Told) -> None:
    batch = Batch()
    manager, own = job(batch, enabled=False)
    assert schedule_of(manager._split_train_data_by_dp(data_of(batch))) == own
    assert warned() == [] and slime.session_of(manager).metrics["routepack/fallback"] == Reason.OFF


def test_switched_off_a_missing_cost_file_does_not_matter(warned: Told) -> None:
    module, batch = like(), Batch()
    own = schedule_of(module.RolloutManager(arguments(batch), PARALLEL)._split_train_data_by_dp(data_of(batch)))
    slime.install(Settings(cost="/nowhere/cost.toml", enabled=False), module=module)
    manager = module.RolloutManager(arguments(batch), PARALLEL)
    assert schedule_of(manager._split_train_data_by_dp(data_of(batch))) == own
    assert warned() == [] and slime.session_of(manager).metrics["routepack/fallback"] == Reason.OFF


def test_an_installation_that_is_refused_leaves_slime_as_it_was() -> None:
    module = like()
    group = type("RayTrainGroup", (), {"_allocate_gpus_for_actor": lambda self: self._actor_cls})
    before = vars(group)["_allocate_gpus_for_actor"]
    module.build_dp_schedule = lambda args: None
    with pytest.raises(InvalidInput, match="build_dp_schedule: found parameters args"):
        slime.install(
            Settings(cost=COST), module=module, group_module=types.SimpleNamespace(RayTrainGroup=group)
        )
    assert vars(group)["_allocate_gpus_for_actor"] is before


def test_installing_twice_and_taking_out_leaves_slime_as_it_was() -> None:
    module = like()
    before = module.RolloutManager._split_train_data_by_dp
    slime.install(Settings(cost=COST), module=module)
    slime.install(Settings(cost=COST, seed=3), module=module)
    assert module.RolloutManager.routepack_settings.seed == 3
    slime.uninstall(module=module)
    assert module.RolloutManager._split_train_data_by_dp is before


def test_a_slime_without_the_hook_is_refused() -> None:
    module = like()
    module.RolloutManager = type("RolloutManager", (), {"_split_train_data_by_dp": lambda self, data: data})
    with pytest.raises(InvalidInput, match="found no call of build_dp_schedule"):
        slime.install(Settings(cost=COST), module=module)


def test_routes_counted_as_samples_arrive_are_not_counted_again(job: Callable[..., Any], monkeypatch: Any) -> None:
    batch = Batch()
    manager, own = job(batch)
    data = data_of(batch)
    for routes in data["rollout_routed_experts"]:
        slime.count_sample(manager.args, types.SimpleNamespace(rollout_routed_experts=routes), rollout_id=0)
    monkeypatch.setattr("routepack.adapters._routes.count_routes_batch", None)  # would fail
    made = schedule_of(manager._split_train_data_by_dp(data))
    assert made != own and slime.session_of(manager).metrics["routepack/used"] == 1


def test_metrics_go_to_slimes_tracker_under_the_step_of_the_rollout(
    module: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess
) -> None:
    shared(monkeypatch, planner)
    logged: list[tuple[dict[str, float], str]] = []
    tracker = types.SimpleNamespace(log=lambda args, metrics, step_key: logged.append((metrics, step_key)))
    steps = types.SimpleNamespace(compute_rollout_step=lambda args, rollout_id: 7 * rollout_id)
    monkeypatch.setitem(sys.modules, "slime.observability.logging_utils", tracker)
    monkeypatch.setitem(sys.modules, "slime.observability.metric_utils", steps)
    slime.install(Settings(cost=COST, **PATIENT), module=module)
    manager = module.RolloutManager(arguments(Batch()), PARALLEL)
    manager.rollout_id = 3
    manager._split_train_data_by_dp(data_of(Batch()))
    ((metrics, key),) = logged
    assert key == "rollout/step" and metrics[key] == 21 and metrics["routepack/fallback"] == 0.0


def test_the_tracker_of_a_checkout_takes_what_is_logged() -> None:
    """By its source: importing it needs trackers that are not here."""
    folder = checkouts.folder(checkouts.SLIME) / "slime" / "observability"
    found = {}
    for name in ("logging_utils", "metric_utils"):
        for node in ast.parse((folder / f"{name}.py").read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = [one.arg for one in node.args.args]
    assert found["log"] == ["args", "metrics", "step_key"]
    assert found["compute_rollout_step"] == ["args", "rollout_id"]


def test_512_samples_cost_the_manager_less_than_50_ms(
    module: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess
) -> None:
    """Processor time of the manager's process, slime's own part included: 48 layers of 128 experts, 8 ranks."""
    shared(monkeypatch, planner)
    args, batch = measure_slime.arguments(), measure_slime.data_of(64)
    settings = Settings(cost=COST, effort="fast", on_metrics=lambda metrics, step: None, **PATIENT)
    slime.install(settings, module=module)
    manager = module.RolloutManager(args, measure_slime.PARALLEL)
    for routes in batch["rollout_routed_experts"]:
        slime.count_sample(args, types.SimpleNamespace(rollout_routed_experts=routes))
    took = []
    for _ in range(5):
        begin = time.process_time()
        manager._split_train_data_by_dp(dict(batch))
        took.append(time.process_time() - begin)
        assert slime.session_of(manager).metrics["routepack/used"] == 1.0
    assert min(took) < 0.05


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("kills itself", Reason.PLANNER_DIED),
        ("dies at once", Reason.PLANNER_DIED),
        ("raises", Reason.PLANNER_ERROR),
        ("stalls", Reason.DEADLINE),
        ("stalls and ignores", Reason.DEADLINE),
        ("noise", Reason.BAD_REPLY),
        ("half a frame", Reason.DEADLINE),
        ("over the cap", Reason.BAD_PLAN),
        ("duplicate sample", Reason.BAD_PLAN),
        ("unequal counts", Reason.BAD_PLAN),
    ],
)
def test_slime_goes_on_as_before_when_the_planner(
    module: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, warned: Told, how: str, reason: Reason
) -> None:
    process = PlannerProcess(command=[sys.executable, str(MISBEHAVING), how])
    shared(monkeypatch, process)
    batch = Batch()
    args = arguments(batch)
    own = schedule_of(module.RolloutManager(args, PARALLEL)._split_train_data_by_dp(data_of(batch)))
    slime.install(Settings(cost=COST, deadline_ms=300, grace_ms=700), module=module)
    manager = module.RolloutManager(args, PARALLEL)
    try:
        assert schedule_of(manager._split_train_data_by_dp(data_of(batch))) == own
        metrics = slime.session_of(manager).metrics
        assert metrics["routepack/fallback"] == reason and metrics["routepack/used"] == 0.0
        assert len(warned()) == 1
    finally:
        process.close()


def test_what_goes_wrong_before_the_plan_is_told_and_counted(
    module: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    shared(monkeypatch, planner)
    batch = Batch()
    args = arguments(batch)
    own = schedule_of(module.RolloutManager(args, PARALLEL)._split_train_data_by_dp(data_of(batch)))
    slime.install(Settings(cost=COST, **PATIENT), module=module)
    manager = module.RolloutManager(args, PARALLEL)

    def failing(manager: Any, session: Any) -> None:
        raise RuntimeError("actors said nonsense")

    monkeypatch.setattr(slime, "_follow", failing)
    for number in (1, 2):
        assert schedule_of(manager._split_train_data_by_dp(data_of(batch))) == own
        metrics = slime.session_of(manager).metrics
        assert metrics["routepack/fallback"] == Reason.INTERNAL and metrics["routepack/fallbacks"] == number
        (text,) = warned()
        assert "actors said nonsense" in text


@pytest.mark.parametrize(("how", "reason"), [("STOP", Reason.DEADLINE), ("KILL", Reason.PLANNER_DIED)])
def test_a_planner_that_is_killed_or_stopped_costs_one_step_at_most(
    module: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, warned: Told, how: str, reason: Reason
) -> None:
    batch = Batch()
    process = PlannerProcess(start_s=120.0)
    shared(monkeypatch, process)
    args = arguments(batch)
    own = schedule_of(module.RolloutManager(args, PARALLEL)._split_train_data_by_dp(data_of(batch)))
    slime.install(Settings(cost=COST, **PATIENT), module=module)
    manager = module.RolloutManager(args, PARALLEL)
    try:
        assert schedule_of(manager._split_train_data_by_dp(data_of(batch))) != own
        session = slime.session_of(manager)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)  # in the middle of everything
        if how == "KILL":
            threading.Timer(0.15, os.kill, (process.pid, signal.SIGKILL)).start()
        session.settings = dataclasses.replace(session.settings, deadline_ms=200, grace_ms=300)
        assert schedule_of(manager._split_train_data_by_dp(data_of(batch))) == own
        assert session.metrics["routepack/fallback"] == reason
        assert len(warned()) == 1
        session.settings = dataclasses.replace(session.settings, **PATIENT)
        assert schedule_of(manager._split_train_data_by_dp(data_of(batch))) != own  # a new one
        assert session.metrics["routepack/planner_restarts"] == 1
        assert warned() == []
    finally:
        process.close()
