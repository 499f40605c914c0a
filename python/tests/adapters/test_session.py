# SPDX-License-Identifier: Apache-2.0
"""Sessions: plans that are used in every pass, and planners that raise, stall, die or talk nonsense."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from routepack import Constraints, InvalidInput, Placement, RoutePackWarning, Topology
from routepack.adapters import (
    METRICS,
    PlannedStep,
    PlannerProcess,
    Reason,
    RouteCounts,
    Session,
    Settings,
    Step,
    StepWindow,
    check_schedule,
)
from routepack.adapters._schedule import Rules
from routepack.adapters._settings import Named

from .batches import COST, PATIENT, Batch
from .misbehaving import CHANGES

MISBEHAVING = pathlib.Path(__file__).with_name("misbehaving.py")
SHORT: dict[str, Any] = {"deadline_ms": 200, "grace_ms": 200}
Told = Callable[[], list[str]]


def step_of(batch: Batch, *, windows: int = 2, capacity: int = 128, **constraints: Any) -> Step:
    counted = RouteCounts(experts=batch.experts, layers=range(1, batch.layers)).of(
        batch.routes(), lengths=batch.lengths()
    )
    lengths = np.array(batch.lengths(), dtype=np.int32)
    each = batch.samples // windows
    return Step(
        windows=[StepWindow(lengths[i : i + each], counted[i : i + each]) for i in range(0, batch.samples, each)],
        top_k=batch.top_k,
        topology=Topology(dp=4, ep=2),
        capacity=capacity,
        constraints=Constraints(**constraints),
    )


def layouts(planned: list[PlannedStep]) -> list[Any]:
    return [step.cells for step in planned]


def misbehaves(how: str) -> PlannerProcess:
    return PlannerProcess(
        command=[sys.executable, str(MISBEHAVING), how], start_s=120.0 if how != "never ready" else 0.3
    )


@pytest.fixture
def session(planner: PlannerProcess) -> Session:
    return Session(Settings(cost=COST, **PATIENT), framework="test", planner=planner)


def test_a_step_gets_a_checked_plan_per_window(session: Session) -> None:
    step = step_of(Batch())
    made = session.run(lambda: step, layouts)
    assert made is not None and len(made) == 2
    for cells, window in zip(made, step.windows, strict=True):
        check_schedule(cells, window.lengths.tolist(), Rules(slots=4, capacity=128))
    assert session.metrics["routepack/fallback"] == 0.0 and session.metrics["routepack/used"] == 1.0
    assert session.metrics["routepack/gap"] >= 0.0 and session.epoch == 0


def test_every_pass_over_a_window_gets_the_same_plan(session: Session) -> None:
    built = []

    def build() -> Step:
        built.append(1)
        return step_of(Batch())

    first, second, third = (session.run(build, layouts, key="window 7") for _ in range(3))
    assert first == second == third and first is not None and len(built) == 1
    assert session.metrics["routepack/passes"] == 3.0 and session.metrics["routepack/steps"] == 1.0
    session.run(build, layouts, key="window 8")
    assert len(built) == 2 and session.metrics["routepack/passes"] == 1.0


def test_a_window_that_fell_back_stays_with_the_framework(session: Session, warned: Told) -> None:
    def build() -> Step:
        raise ValueError("no\nsuch thing")

    assert session.run(build, layouts, key=1) is None
    assert session.run(lambda: step_of(Batch()), layouts, key=1) is None
    (text,) = warned()
    assert "ValueError: no such thing" in text and "\n" not in text
    assert session.metrics["routepack/fallback"] == Reason.INTERNAL and session.metrics["routepack/fallbacks"] == 1.0


def test_an_export_that_fails_leaves_the_step_to_the_framework(session: Session, warned: Told) -> None:
    def export(planned: list[PlannedStep]) -> object:
        raise InvalidInput("slots: found 3")

    assert session.run(lambda: step_of(Batch()), export) is None
    assert session.metrics["routepack/fallback"] == Reason.BAD_INPUT and len(warned()) == 1


def test_what_has_no_layout_is_infeasible(session: Session, warned: Told) -> None:
    assert session.run(lambda: step_of(Batch(), capacity=50), layouts) is None
    assert session.metrics["routepack/fallback"] == Reason.INFEASIBLE
    (text,) = warned()
    assert "what would help" in text
    restarts = session.metrics["routepack/planner_restarts"]
    assert session.run(lambda: step_of(Batch()), layouts) is not None  # the same process
    assert session.metrics["routepack/planner_restarts"] == restarts


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raises", Reason.PLANNER_ERROR),
        ("stalls", Reason.DEADLINE),
        ("stalls and ignores", Reason.DEADLINE),
        ("kills itself", Reason.PLANNER_DIED),
        ("dies at once", Reason.PLANNER_DIED),
        ("never ready", Reason.PLANNER_DIED),
        ("half a frame", Reason.DEADLINE),
        ("noise", Reason.BAD_REPLY),
        ("no JSON", Reason.BAD_REPLY),
        *((how, Reason.BAD_PLAN) for how in CHANGES if "plan" not in how and how != "a list"),
        *((how, Reason.BAD_REPLY) for how in CHANGES if "plan" in how or how == "a list"),
    ],
)
def test_a_planner_that_misbehaves_costs_a_warning_and_a_metric(how: str, reason: Reason, warned: Told) -> None:
    planner = misbehaves(how)
    session = Session(
        Settings(cost=COST, **(SHORT if "stalls" in how or "half" in how else PATIENT)),
        framework="test",
        planner=planner,
    )
    try:
        for number in (1, 2):  # the second step too: a new process is no better
            begin = time.monotonic()
            made = session.run(lambda: step_of(Batch()), layouts, key=number)
            assert made is None and time.monotonic() - begin < 130
            (text,) = warned()
            assert f"step {number}: the framework's own packing is used" in text and "\n" not in text
            found = Reason(int(session.metrics["routepack/fallback"]))
            # some broken layouts are refused by the reader of plans already
            assert found == reason or (reason, found) == (Reason.BAD_PLAN, Reason.BAD_REPLY), text
            assert session.metrics["routepack/used"] == 0.0 and session.metrics["routepack/fallbacks"] == number
            assert set(session.metrics) <= set(METRICS)
    finally:
        session.close()


@pytest.mark.parametrize("when", ["waiting", "planning"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_real_planner_is_killed_or_stopped_and_the_next_step_plans(
    how: signal.Signals, when: str, warned: Told
) -> None:
    planner = PlannerProcess(start_s=120.0)
    session = Session(Settings(cost=COST, **PATIENT), framework="test", planner=planner)
    try:
        assert session.run(lambda: step_of(Batch()), layouts) is not None
        pid = planner.pid
        assert pid is not None

        def build() -> Step:
            step = step_of(Batch())
            if when == "planning":
                os.kill(pid, how)  # while the step is being made: the request finds it so
            return step

        if when == "waiting":
            os.kill(pid, how)
            if how == signal.SIGKILL:
                time.sleep(0.3)
        if how == signal.SIGSTOP:
            session.settings = dataclasses.replace(session.settings, **SHORT)
        made = session.run(build, layouts)
        session.settings = dataclasses.replace(session.settings, **PATIENT)
        told = warned()
        if made is None:
            assert len(told) == 1 and str(pid) in told[0]
            reason = Reason.DEADLINE if how == signal.SIGSTOP else Reason.PLANNER_DIED
            assert session.metrics["routepack/fallback"] == reason
        else:  # seen before the request: a new process has served the same step
            assert how == signal.SIGKILL and told == [] and planner.pid != pid
        assert session.run(lambda: step_of(Batch()), layouts) is not None
        assert warned() == [] and planner.pid != pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        session.close()


def test_a_planner_ends_with_its_session() -> None:
    planner = PlannerProcess()
    planner.start()
    pid = planner.pid
    assert pid is not None
    planner.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_planner_ends_with_a_trainer_that_is_killed() -> None:
    script = (
        "import os, signal\nfrom routepack.adapters import PlannerProcess\n"
        "planner = PlannerProcess()\nplanner.start()\n"
        "print(planner.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    for _ in range(600):
        if not pathlib.Path(f"/proc/{int(done.stdout)}/cmdline").exists() or _is_zombie(int(done.stdout)):
            return
        time.sleep(0.1)
    os.kill(int(done.stdout), signal.SIGKILL)
    pytest.fail("the planner lives on")


def _is_zombie(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_warnings_that_are_errors_do_not_end_a_step(planner: PlannerProcess) -> None:
    session = Session(Settings(cost=COST, **PATIENT), framework="test", planner=planner)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert session.run(lambda: step_of(Batch(), capacity=50), layouts) is None


def test_threads_take_turns(session: Session) -> None:
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(session.run(lambda: step_of(Batch()), layouts, key="one")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(made == found[0] for made in found) and found[0] is not None


def test_experts_move_before_the_step_and_plans_begin_where_they_are(planner: PlannerProcess) -> None:
    moved: list[tuple[Placement, int]] = []
    settings = Settings(
        cost=COST, **PATIENT, mode="both", on_placement=lambda placement, epoch: moved.append((placement, epoch))
    )
    session = Session(settings, framework="test", planner=planner)
    assert session.run(lambda: step_of(Batch()), layouts) is not None
    assert [epoch for _, epoch in moved] == [1] and session.current is not None
    np.testing.assert_array_equal(session.current, moved[0][0].physical_to_logical)
    assert session.last_plans[0].placement == session.last_plans[1].placement == moved[0][0]
    assert session.run(lambda: step_of(Batch(seed=5)), layouts) is not None
    assert session.epoch == 2 and "routepack/ms_moves" in session.metrics


def test_placement_alone_leaves_the_packing_to_the_framework(planner: PlannerProcess, warned: Told) -> None:
    moved: list[int] = []
    settings = Settings(
        cost=COST, **PATIENT, mode="placement", on_placement=lambda placement, epoch: moved.append(epoch)
    )
    session = Session(settings, framework="test", planner=planner)
    assert session.run(lambda: step_of(Batch()), layouts) is None
    assert moved == [1] and warned() == []
    assert session.metrics["routepack/fallback"] == 0.0 and session.metrics["routepack/used"] == 0.0


def test_experts_that_do_not_move_leave_the_step_to_the_framework(planner: PlannerProcess, warned: Told) -> None:
    def fails(placement: Placement, epoch: int) -> None:
        raise RuntimeError("rank 3 is away")

    session = Session(
        Settings(cost=COST, **PATIENT, mode="both", on_placement=fails), framework="test", planner=planner
    )
    assert session.run(lambda: step_of(Batch()), layouts) is None
    assert session.metrics["routepack/fallback"] == Reason.PLACEMENT and session.epoch == 0 and session.current is None
    assert "rank 3 is away" in warned()[0]


def test_packing_alone_keeps_experts_where_a_checkpoint_has_them(
    planner: PlannerProcess, tmp_path: pathlib.Path
) -> None:
    there = np.array([[7, 6, 5, 4, 3, 2, 1, 0], [1, 0, 3, 2, 5, 4, 7, 6]], dtype=np.int32)
    path = tmp_path / "placement.json"
    Placement.from_maps(ranks=2, physical_to_logical=there).save(path)
    session = Session(Settings(cost=COST, **PATIENT, current=str(path)), framework="test", planner=planner)
    assert session.run(lambda: step_of(Batch()), layouts) is not None
    np.testing.assert_array_equal(session.last_plans[0].physical_to_logical, there)


def test_metrics_go_to_the_logger_once_per_step_and_may_fail(planner: PlannerProcess) -> None:
    seen: list[int] = []

    def log(metrics: Any, step: int) -> None:
        assert "routepack/fallback" in metrics
        seen.append(step)
        raise OSError("disk full")

    session = Session(Settings(cost=COST, **PATIENT, on_metrics=log), framework="test", planner=planner)
    for key in ("a", "a", "b"):
        assert session.run(lambda: step_of(Batch()), layouts, key=key) is not None
    assert seen == [1, 2]


def test_every_metric_is_described(session: Session, root: pathlib.Path) -> None:
    session.run(lambda: step_of(Batch()), layouts)
    described = (root / "docs" / "python.md").read_text(encoding="utf-8")
    users = (root / "docs" / "frameworks" / "README.md").read_text(encoding="utf-8")
    for name in set(session.metrics) - set(METRICS):
        assert f"`{name.removeprefix('routepack/')}`" in described, name
    for name in METRICS:
        assert f"`{name.removeprefix('routepack/')}`" in users, name
    for reason in Reason:
        assert f"| {reason.value} | `{reason.name}` |" in users, reason


def test_settings_come_from_words() -> None:
    found = Settings.from_environment(
        {"ROUTEPACK_COST": COST, "ROUTEPACK_ENABLED": "1", "ROUTEPACK_ALLOW": "a, b", "ROUTEPACK_MAX_MISSING": "0.25"}
    )
    assert found.enabled and found.allow == ("a", "b") and found.max_missing == 0.25
    with pytest.raises(InvalidInput, match="deadline_ms: found 'soon'"):
        Settings.from_mapping({"deadline_ms": "soon"})
    with pytest.raises(InvalidInput, match="found option 'speed'"):
        Settings.from_mapping({"speed": 1})
    with pytest.raises(InvalidInput, match="without on_placement"):
        Session(Settings(cost=COST, mode="both"), framework="slime")
    Session(Settings(mode="both", enabled=False), framework="slime").close()


def test_a_setting_that_is_warned_about_is_named_once(planner: PlannerProcess, warned: Told) -> None:
    config = {"moe_router_load_balancing_type": ["none", "aux_loss"], "moe_aux_loss_coeff": [0.0, 0.01]}
    session = Session(Settings(cost=COST, **PATIENT), framework="megatron", config=config, planner=planner)
    assert session.run(lambda: step_of(Batch()), layouts) is not None
    (text,) = warned()
    assert "moe_router_load_balancing_type=aux_loss" in text and isinstance(RoutePackWarning(text), UserWarning)


@pytest.mark.parametrize(
    ("wrong", "reason", "text"),
    [
        ({"current": "/nowhere/placement.json"}, Reason.BAD_INPUT, "/nowhere/placement.json"),
        ({"cost": "/nowhere/cost.toml"}, Reason.BAD_INPUT, "/nowhere/cost.toml"),
        ({"cost": "not a\ncost file"}, Reason.BAD_INPUT, "TOML"),
        ({"mode": "both"}, Reason.BAD_INPUT, "without on_placement"),
        ({"on_placement": Named("nowhere:move")}, Reason.BAD_INPUT, "nowhere:move"),
        ({"cost": "a\0b"}, Reason.INTERNAL, "TypeError"),
    ],
)
def test_a_session_that_cannot_be_made_says_so_at_every_step(
    wrong: dict[str, Any], reason: Reason, text: str, warned: Told
) -> None:
    seen: list[float] = []
    settings = Settings(**{"cost": COST, "on_metrics": lambda m, _: seen.append(m["routepack/fallback"]), **wrong})
    with pytest.raises((InvalidInput, OSError, TypeError)):
        Session(settings, framework="test").close()
    session = Session.or_off(settings, framework="test", config={})
    there = np.array([[1, 0]], dtype=np.int32)
    try:
        for number in (1, 2):
            for _ in range(2):  # two passes over one window: one warning
                assert session.run(lambda: pytest.fail("built"), layouts, key=number) is None
            (told,) = warned()
            assert f"step {number}: the framework's own packing is used" in told and text in told and "\n" not in told
            assert session.metrics["routepack/fallback"] == reason and session.metrics["routepack/used"] == 0.0
            assert session.metrics["routepack/fallbacks"] == session.metrics["routepack/steps"] == number
        assert seen[0] == seen[-1] == reason and set(session.metrics) <= set(METRICS)
        session.resume(there, 3)
        assert session.epoch == 3 and session.current is not None and session.current.tolist() == [[1, 0]]
        session.current = None
        session.not_moved("rank 3 is away")
        assert "rank 3 is away" in warned()[0] and session.last_plans == []
        assert session.run(lambda: pytest.fail("built"), layouts) is None
    finally:
        session.close()


def test_a_session_that_can_be_made_is_made(planner: PlannerProcess, warned: Told) -> None:
    session = Session.or_off(Settings(cost=COST, **PATIENT), framework="test", config={}, planner=planner)
    assert session.run(lambda: step_of(Batch()), layouts) is not None and warned() == []
    off = Session.or_off(Settings(enabled=False, current="/nowhere"), framework="test")
    assert off.run(lambda: step_of(Batch()), layouts) is None and warned() == []
    assert off.metrics["routepack/fallback"] == Reason.OFF


@pytest.mark.parametrize(("lost", "told"), [(1, 0), (2, 1), (8, 1)])
def test_samples_without_routes_are_warned_about_once_when_they_are_many(
    session: Session, warned: Told, lost: int, told: int
) -> None:
    def build() -> Step:
        step = step_of(Batch())
        first = dataclasses.replace(step.windows[0], routes=[None] * lost + list(step.windows[0].routes[lost:]))
        return dataclasses.replace(step, windows=[first, *step.windows[1:]])

    for _ in range(2):
        assert session.run(build, layouts) is not None
        assert session.metrics["routepack/samples_without_routes"] == lost
    texts = warned()
    assert len(texts) == told and all(f"{lost} of 32 samples have no routes" in text for text in texts)


def test_samples_that_only_fill_up_a_batch_are_not_missing(session: Session, warned: Told) -> None:
    def build() -> Step:
        step = step_of(Batch())
        empty = [
            dataclasses.replace(one, counts=one.counts * 0, recorded=one.recorded * 0, made_up=True)
            for one in step.windows[0].routes[:12]
            if one is not None
        ]
        first = dataclasses.replace(step.windows[0], routes=[*empty, *step.windows[0].routes[12:]])
        return dataclasses.replace(step, windows=[first, *step.windows[1:]])

    assert session.run(build, layouts) is not None
    assert session.metrics["routepack/samples_without_routes"] == 0 and warned() == []
