# SPDX-License-Identifier: Apache-2.0
"""AReaL's other models beside the policy: references on its plan or on AReaL's own packing, critics on their own, and
workers that do not have the hook their `cmd` promises. The limits of parallel engines. What is said, and where."""

from __future__ import annotations

import importlib
import logging
import logging.config
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from routepack import InvalidInput, Placement  # noqa: E402
from routepack.adapters import PlannerProcess, Reason, Rules, _session, areal, check_schedule  # noqa: E402
from routepack.adapters._reasons import FallBack  # noqa: E402

from . import test_areal as real  # noqa: E402
from .batches import Batch  # noqa: E402
from .conftest import shared  # noqa: E402
from .test_areal import (  # noqa: E402
    BATCH, CAP, DP, MINI, Told, actor_configuration, by_sample, controller_of, data, install,
    nothing_left, passes_of, step, torch, trajectories, trajectories_of,
)  # fmt: skip

__all__ = ["nothing_left"]  # a fixture
ALL = tuple(range(DP))
PLAIN = (types.SimpleNamespace(cmd="python -m areal.infra.rpc.rpc_server"),)
modes = importlib.import_module("areal.api.alloc_mode")
ModelAllocation, ParallelStrategy = modes.ModelAllocation, modes.ParallelStrategy


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is logged, by a handler of its own: AReaL replaces the root, and pytest listens at the first one."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    areal._LOG.addHandler(handler)
    yield said
    areal._LOG.removeHandler(handler)


def samples_of(made: list[list[list[int]]]) -> list[int]:
    """Of one pass of all ranks."""
    return sorted(i for rank in made for cell in rank for i in cell)


def trained(controller: Any, steps: int) -> list[int]:
    """Samples of the optimizer steps, which every rank has the same number of."""
    assert {len(engine.steps) for engine in controller.scheduler.engines} == {steps}
    return sorted(i for made in passes_of(controller)[-steps:] for i in samples_of(made))


@pytest.mark.parametrize("steps", [1, MINI, 3])
@pytest.mark.parametrize("hook", ["in cmd", "not in cmd", "in cmd alone"])
def test_a_critic_packs_for_itself(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, hook: str, steps: int
) -> None:
    before = controller_of("critic", ppo_n_minibatches=steps)
    items = trajectories(counted=False)
    before.compute_values(items)
    before.ppo_update(items)
    install(monkeypatch, planner)
    actor, items = controller_of(), trajectories()
    spec = {} if hook != "not in cmd" else {"scheduling_spec": PLAIN}
    after = controller_of("critic", () if hook == "in cmd" else ALL, ppo_n_minibatches=steps, **spec)
    after.compute_values(items)  # in the order of AReaL's trainer
    step(actor, items)
    after.ppo_update(items)
    assert passes_of(after) == passes_of(before)
    assert trained(after, steps) == trained(actor, MINI) == list(range(BATCH.samples))
    metrics = areal.session().metrics
    assert metrics["routepack/fallback"] == 0.0 and metrics["routepack/passes"] == 2.0 and not warned()


def test_a_reference_model_runs_on_the_plan_of_the_actors_batch(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    own, own_items = controller_of("ref"), trajectories(counted=False)
    wanted = by_sample(own_items, own.compute_logp(own_items))
    install(monkeypatch, planner)
    actor, ref, items = controller_of(), controller_of("ref"), trajectories()
    actor.ppo_update(trajectories_of(Batch(seed=11)))  # a step before, by which it is known who trains
    # Now as in every step of AReaL's trainer: the reference first, by which the batch is planned.
    found = by_sample(items, ref.compute_logp(items))
    metrics = dict(areal.session().metrics)
    logs = step(actor, items)
    assert metrics["routepack/steps"] == 2.0 and metrics["routepack/passes"] == 1.0
    metrics = areal.session().metrics
    assert metrics["routepack/steps"] == 2.0 and metrics["routepack/passes"] == 3.0
    assert metrics["routepack/fallbacks"] == 0.0 and not warned()
    assert passes_of(ref) == passes_of(actor)[-MINI - 1 : -MINI] != passes_of(own)
    assert samples_of(passes_of(ref)[0]) == list(range(BATCH.samples))
    for one, other, third in zip(found, logs, wanted, strict=True):  # sample by sample, in the order they came in
        assert torch.equal(one, other) and torch.allclose(one, third, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hook", ["not in cmd", "in cmd alone", "in all workers but one"])
def test_a_reference_model_without_the_hook_runs_on_areals_packing(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, hook: str
) -> None:
    own, own_items = controller_of("ref"), trajectories(counted=False)
    wanted = by_sample(own_items, own.compute_logp(own_items))
    install(monkeypatch, planner)
    spec = {"scheduling_spec": PLAIN} if hook == "not in cmd" else {}
    ref = controller_of("ref", (2,) if hook == "in all workers but one" else ALL, **spec)
    actor, items = controller_of(), trajectories()
    step(actor, items)
    found = by_sample(items, ref.compute_logp(items))  # after the actor: there is a plan of its batch
    actor.ppo_update(trajectories_of(Batch(seed=11)))
    again = by_sample(items, ref.compute_logp(items))  # before the actor: there is none yet
    step(actor, items)
    assert passes_of(ref) == 2 * passes_of(own)
    assert all(torch.equal(one, other) for one, other in zip(found + again, 2 * wanted, strict=True))
    assert areal.session().metrics["routepack/fallbacks"] == 0.0 and areal.session().metrics["routepack/passes"] == 2.0
    (text,) = warned()  # once, and not at every pass
    assert text.startswith("areal: ref: its passes use AReaL's own packing: workers do not know the hook")


REFERENCES: dict[str, dict[str, Any]] = {
    "smaller cap": {"mb_spec": data.MicroBatchSpec(max_tokens_per_mb=CAP - 1)},
    "no cap": {"mb_spec": data.MicroBatchSpec(n_mbs=2)},
    "coarser lengths": {"parallel": ParallelStrategy(data_parallel_size=DP, tensor_parallel_size=2)},
    "a pipeline": {"parallel": ParallelStrategy(data_parallel_size=DP, pipeline_parallel_size=2)},
    "more microbatches": {"mb_spec": data.MicroBatchSpec(max_tokens_per_mb=CAP, n_mbs=MINI + 1)},
    "microbatches by threes": {"mb_spec": data.MicroBatchSpec(max_tokens_per_mb=CAP, n_mbs_divisor=3)},
}


@pytest.mark.parametrize("limit", REFERENCES)
def test_a_reference_model_with_limits_of_its_own_runs_on_areals_packing(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, limit: str
) -> None:
    own = controller_of("ref", **REFERENCES[limit])
    own.compute_logp(trajectories(counted=False))
    install(monkeypatch, planner)
    actor, ref, items = controller_of(), controller_of("ref", **REFERENCES[limit]), trajectories()
    actor.ppo_update(items)
    ref.compute_logp(items)
    assert passes_of(ref) == passes_of(own)
    assert areal.session().metrics["routepack/passes"] == 1.0 and not warned()


def test_a_reference_model_may_have_looser_limits(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> None:
    install(monkeypatch, planner)
    parallel = ParallelStrategy(data_parallel_size=DP, tensor_parallel_size=2, expert_parallel_size=4)
    actor, items = controller_of(parallel=parallel), trajectories()
    ref = controller_of("ref", mb_spec=data.MicroBatchSpec(max_tokens_per_mb=2 * CAP, n_mbs=MINI))
    step(actor, items)
    ref.compute_logp(items)
    assert passes_of(ref) == passes_of(actor)[:1]
    assert areal.session().metrics["routepack/passes"] == 3.0


def test_another_policy_gets_plans_of_its_own(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    install(monkeypatch, planner)
    one, other, refused = controller_of(), controller_of(ppo_n_minibatches=3), controller_of(m2_threshold=0.1)
    items = trajectories()
    for controller in (one, other, refused):
        controller.ppo_update(items)
        assert trained(controller, controller.config.ppo_n_minibatches) == list(range(BATCH.samples))
    assert areal.session().metrics["routepack/fallback"] == Reason.SETTINGS and len(warned()) == 1


@pytest.mark.parametrize("unhooked", [ALL, (2,)])
def test_workers_that_have_no_hook_though_their_cmd_says_so_get_areals_packing(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, unhooked: tuple[int, ...]
) -> None:
    before, after = controller_of(), controller_of(unhooked=unhooked)
    step(before, trajectories(counted=False))
    install(monkeypatch, planner)
    step(after, trajectories())
    assert passes_of(before) == passes_of(after)
    assert trained(after, MINI) == list(range(BATCH.samples))
    assert areal.session().metrics["routepack/fallback"] == Reason.UNSUPPORTED
    (text,) = warned()
    assert f"asked for {areal.HOOK}, one said AttributeError" in text
    assert after.scheduler.calls.count(areal.HOOK) == DP  # once, and not in every pass
    step(after, trajectories())
    assert after.scheduler.calls.count(areal.HOOK) == DP
    after.scheduler.unhooked, after.workers = (), [types.SimpleNamespace(id=f"{rank}") for rank in reversed(ALL)]
    after.ppo_update(trajectories_of(Batch(seed=11)))  # other workers are asked again
    assert areal.session().metrics["routepack/fallback"] == 0.0


def test_a_step_of_workers_without_the_hook_is_one_step_though_counts_do_not_come_back(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    """As AReaL's trainer does it: what `compute_advantages` gives back is what workers were given, without counts."""
    actor = controller_of(unhooked=(2,))
    install(monkeypatch, planner)
    engine = actor.scheduler.kind
    monkeypatch.setattr(engine, "compute_advantages", lambda self, data: [dict(one) for one in data], raising=False)
    items = trajectories()
    actor.compute_logp(items)
    items = actor._custom_function_call("compute_advantages", items, rpc_meta={"broadcast": True})
    assert not any(areal._counted(item) for item in items)
    actor.ppo_update(items)
    metrics = areal.session().metrics
    assert metrics["routepack/steps"] == metrics["routepack/fallbacks"] == 1
    assert len(warned()) == 1


def test_an_error_of_the_question_costs_one_step(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> None:
    actor = controller_of()
    install(monkeypatch, planner)
    call, calls = actor.scheduler.async_call_engine, []

    async def failing_once(worker: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        calls.append(method)
        if calls == [areal.HOOK]:
            raise RuntimeError("connection reset")
        return await call(worker, method, *args, **kwargs)

    monkeypatch.setattr(actor.scheduler, "async_call_engine", failing_once)
    found = []
    for number in range(3):
        actor.ppo_update(trajectories_of(Batch(seed=30 + number)))
        found.append(areal.session().metrics["routepack/fallback"])
    assert found == [Reason.UNSUPPORTED, 0.0, 0.0]


def test_an_areal_without_such_controllers_packs_for_itself(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess
) -> None:
    actor = controller_of()
    install(monkeypatch, planner)
    monkeypatch.delattr(sys.modules["areal.trainer.ppo.actor"], "PPOActorController")
    actor.ppo_update(trajectories(counted=False))
    assert trained(actor, MINI) == list(range(BATCH.samples))


def test_a_worker_whose_areal_has_no_hooks_starts_without_one_and_says_so(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, lines: list[str]
) -> None:
    before, after = controller_of(), controller_of()
    step(before, trajectories(counted=False))
    served: list[str] = []
    server = types.ModuleType("areal.infra.rpc.rpc_server")
    server.main = lambda: served.append("here")  # type: ignore[attr-defined]
    own = data.allocate_balanced_mbs_synced
    monkeypatch.setitem(sys.modules, server.__name__, server)
    monkeypatch.setattr(data, "allocate_balanced_mbs_synced", lambda *given, **more: own(*given, **more))
    areal._LOG.disabled = True  # as logging's configuration leaves those that were there before
    areal.main()
    assert served == ["here"] and not areal._REPLACED
    (line,) = lines
    assert "this worker has no hook" in line
    shared(monkeypatch, planner)
    areal.install(real.settings())
    step(after, trajectories())
    assert passes_of(before) == passes_of(after) and trained(after, MINI) == list(range(BATCH.samples))
    assert areal.session().metrics["routepack/fallback"] == Reason.UNSUPPORTED and len(warned()) == 1


def test_a_worker_with_half_a_hook_says_no() -> None:
    areal.install_worker()
    assert areal.packs(None)
    ours = real.actors.split_padded_tensor_dict_into_mb_list
    real.actors.split_padded_tensor_dict_into_mb_list = ours.__wrapped__  # a module that came with its own
    try:
        with pytest.raises(InvalidInput, match="ppo.actor.split_padded_tensor_dict_into_mb_list: found AReaL's own"):
            areal.packs(None)
    finally:
        real.actors.split_padded_tensor_dict_into_mb_list = ours


def test_workers_without_the_hook_end_the_start_of_a_policy_whose_experts_are_to_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(self: Any, role: str, ft_spec: Any) -> None: ...

    monkeypatch.setattr(real.controllers.TrainController, "initialize", start)
    areal.install(real.settings(mode="both"))
    areal.install_worker()
    more: dict[str, Any] = {"optimizer": object(), "megatron": types.SimpleNamespace()}
    controller = controller_of(unhooked=(2,), **more)
    with pytest.raises(InvalidInput, match="found workers that do not know the hook, wanted it to move experts: asked"):
        controller.initialize(role="actor", ft_spec=None)
    assert set(controller.scheduler.calls) == {areal.HOOK}


def limits(backend: str, **more: Any) -> areal.Limits:
    config = actor_configuration(backend=backend, **more)
    return areal.limits_of(config, ModelAllocation.from_str(backend).parallel)


@pytest.mark.parametrize(
    ("backend", "more", "wanted"),
    [
        # backend, more of the configuration: lengths are multiples of, rows are multiples of, and at least
        ("megatron:d4e2", {}, (1, 1, 1)),
        ("megatron:d4t2e2", {}, (2, 1, 1)),
        ("megatron:d4c2e2", {}, (4, 1, 1)),
        ("megatron:d4t2c2p2e8", {}, (8, 2, 4)),
        ("megatron:(attn:d4t2c2p2|ffn:d2t2e4p2)", {}, (8, 2, 4)),
        ("megatron:d4t2p2", {"mb_spec": data.MicroBatchSpec(5, max_tokens_per_mb=CAP, n_mbs_divisor=3)}, (2, 6, 5)),
        ("megatron:d4t2", {"megatron": types.SimpleNamespace(fp8_config=object())}, (16, 1, 1)),
        ("archon:d4t2p3", {}, (1, 3, 6)),
        ("fsdp:d4t2", {}, (1, 1, 1)),
    ],
)
def test_limits_are_those_of_areals_engines(backend: str, more: dict[str, Any], wanted: tuple[int, int, int]) -> None:
    found = limits(backend, **more)
    made = found.constraints
    assert (made.sample_multiple, made.row_multiple, made.min_rows) == wanted
    assert found.slots == DP and found.capacity == CAP and made.oversized == "own-cell" and not made.equal_count


def test_a_topology_is_that_of_areals_parallel_strategy() -> None:
    def of(backend: str) -> Any:
        made = areal.topology_of(ModelAllocation.from_str(backend).parallel)
        return made.slots, made.ranks, made.pipeline_stages, made.shards

    assert of("megatron:d4e2") == (4, 2, 1, [[0, 1], [2, 3]])
    assert of("megatron:d4t2c2p2e8") == (4, 8, 2, [[0, 1], [2, 3]])
    assert of("megatron:(attn:d4t2c2p2|ffn:d2t2e4p2)") == (4, 4, 2, [[0, 1], [2, 3]])
    with pytest.raises(InvalidInput, match="span two expert-parallel shards"):
        of("megatron:d4t2c2e2")


@pytest.mark.parametrize(
    ("backend", "more"),
    [
        ("megatron:d4", {"mb_spec": data.MicroBatchSpec()}),
        ("megatron:d4", {"mb_spec": data.MicroBatchSpec(max_tokens_per_mb=CAP, granularity=2)}),
        ("megatron:d4", {"enable_tree_training": True}),
        ("archon:d4p2", {"archon": types.SimpleNamespace(pp_layers_per_stage=2)}),
    ],
)
def test_limits_that_are_not_known_are_no_limits(backend: str, more: dict[str, Any]) -> None:
    with pytest.raises(FallBack) as failure:
        limits(backend, **more)
    assert failure.value.reason == Reason.UNSUPPORTED


@pytest.mark.parametrize(
    ("backend", "multiple", "stages"),
    [("megatron:d4t2c2p2e8", 8, 2), ("megatron:d4t4e8", 4, 1), ("megatron:(attn:d4t2c2p2|ffn:d2t2e4p2)", 8, 2)],
)
def test_plans_of_parallel_engines_keep_the_cap_on_aligned_lengths_and_the_rows_of_pipelines(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, backend: str, multiple: int, stages: int
) -> None:
    batch = Batch(samples=128, seed=3)
    parallel = ModelAllocation.from_str(backend).parallel
    own, controller = controller_of(), controller_of(parallel=parallel, backend=backend)
    own.ppo_update(trajectories_of(batch, counted=False))
    install(monkeypatch, planner)
    controller.ppo_update(trajectories_of(batch))
    assert areal.session().metrics["routepack/fallback"] == 0.0
    lengths = np.array(batch.lengths())
    aligned = -(-lengths // multiple) * multiple
    tokens = [int(aligned[cell].sum()) for made in passes_of(own) for rank in made for cell in rank]
    assert max(tokens) > CAP  # by AReaL's own packing it is broken: the batch is one that can break it
    for made in passes_of(controller):
        (rows,) = {len(rank) for rank in made}
        assert rows >= (2 * stages if stages > 1 else 1) and rows % stages == 0
        members = samples_of(made)
        number = {sample: i for i, sample in enumerate(members)}
        cells = [[[number[i] for i in rank[r]] for rank in made] for r in range(rows)]
        rules = Rules(slots=DP, capacity=CAP, sample_multiple=multiple, row_multiple=stages)
        check_schedule(cells, lengths[members], rules)
    for engine in controller.scheduler.engines:
        for cells_, _, _ in engine.steps:
            padded = data.pad_mb_list(cells_, pad_value=0.0, pad_to_maximum=False, seq_align_to=multiple)
            assert max(padded.align_to_lengths) <= CAP  # as AReaL's Megatron engine aligns them
    assert trained(controller, MINI) == list(range(batch.samples))


def test_a_batch_that_cannot_be_read_is_one_warning_and_one_fallback(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    before, after, seen = controller_of(), controller_of(), []
    step(before, trajectories(counted=False))
    install(monkeypatch, planner, on_metrics=lambda metrics, number: seen.append((number, dict(metrics))))
    for number in (1, 2):
        broken = [{k: v for k, v in item.items() if k != areal.RECORDED} for item in trajectories()]
        step(after, broken)
        metrics = areal.session().metrics
        assert metrics["routepack/fallback"] == Reason.INTERNAL and metrics["routepack/fallbacks"] == number
        (text,) = warned()
        assert f"step {number}: the framework's own packing is used: KeyError" in text
    assert [number for number, _ in seen] == [1, 2]
    assert passes_of(after) == 2 * passes_of(before)


def test_log_probs_that_cannot_be_put_together_are_computed_again(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    before, after, items = controller_of(), controller_of(), trajectories()
    wanted = before.compute_logp(trajectories(counted=False))
    install(monkeypatch, planner)
    monkeypatch.setattr(after.scheduler, "async_call_engine", short_answers(after.scheduler))
    found = after.compute_logp(items)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(areal._here(one), areal._here(other))
    assert areal.session().metrics["routepack/fallback"] == Reason.INTERNAL and len(warned()) == 1


def short_answers(scheduler: Any) -> Any:
    """The first log-probs come without their last trajectory."""
    call = scheduler.async_call_engine
    cut: list[str] = []

    async def answer(worker: str, method: str, *given: Any, **more: Any) -> Any:
        made = await call(worker, method, *given, **more)
        if method == "compute_logp" and len(cut) < DP:
            cut.append(worker)
            return made[:-1]
        return made

    return answer


def test_a_session_that_cannot_be_made_is_a_warning_and_a_fallback_at_every_step(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, tmp_path: Any
) -> None:
    before, after = controller_of(), controller_of()
    step(before, trajectories(counted=False))
    path = tmp_path / "placement.json"
    Placement.identity(layers=2, experts=8, ranks=2).save(str(path))
    install(monkeypatch, planner, current=str(path))
    path.unlink()  # as on another node
    for number in (1, 2):
        step(after, trajectories() if number == 1 else trajectories_of_same_samples())
        metrics = areal.session().metrics
        assert metrics["routepack/fallback"] == Reason.BAD_INPUT and metrics["routepack/fallbacks"] == number
        (text,) = warned()
        assert f"step {number}" in text and "no plans can be made" in text and "placement.json" in text
    assert passes_of(after) == 2 * passes_of(before)


def trajectories_of_same_samples() -> list[dict[str, Any]]:
    """The batch again, as another step has it: one count differs."""
    items = trajectories()
    areal._here(items[0][areal.COUNTS])[0, 0, 0, 0] += 1
    return items


def test_log_lines_are_seen_whatever_areal_does_to_logging(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    theirs = importlib.import_module("areal.utils.logging")
    theirs.getLogger("a test of RoutePack")
    areal._tell("one line")
    assert lines == ["one line"]
    for logger in (areal._LOG, _session._LOG):
        monkeypatch.setattr(logger, "disabled", False)
    alone = logging.Manager(logging.root)
    alone.loggerDict["routepack"] = areal._LOG
    monkeypatch.setattr(logging.root, "manager", alone, raising=False)
    logging.config.dictConfig(theirs.log_config)
    assert areal._LOG.disabled  # as AReaL's configuration does to any logger that was there before
    areal._LOG.warning("lost")
    areal._tell("another line")
    assert lines == ["one line", "another line"]


def test_every_call_of_a_controller_wakes_the_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    areal.install(real.settings())
    for logger in (areal._LOG, _session._LOG):
        monkeypatch.setattr(logger, "disabled", True)
    controller_of("critic").compute_values(trajectories(counted=False))
    assert not areal._LOG.disabled and not _session._LOG.disabled
