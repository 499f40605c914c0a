# SPDX-License-Identifier: Apache-2.0
"""AReaL trains on plans: its own controller, actor, handles of remote tensors, splits and GRPO loss, on the CPU.

Workers run in this process. What AReaL imports for agents and services, and nothing here reaches, is empty.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pathlib
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from . import empty_packages

torch = pytest.importorskip("torch")
if importlib.util.find_spec("areal") is None:
    pytest.skip("no AReaL: the adapter was NOT run against the real thing", allow_module_level=True)
EMPTY = (
    "openai", "agents", "anthropic", "claude_agent_sdk", "litellm", "qwen_agent", "langchain", "langchain_openai",
    "openhands", "mbridge", "awex", "zstandard", "nltk", "seaborn", "daytona", "cookiecutter", "ninja", "mathruler",
    "swanlab", "trackio", "wandb", "datasets", "redis", "tensorboardX", "math_verify", "pylatexenc", "peft",
)  # fmt: skip
_finder = empty_packages.install(EMPTY)
try:
    # The package of trainers imports every way to train; the actor alone is what is tested.
    import areal as _package

    for _name in ("trainer", "trainer.ppo"):
        _bare = sys.modules[f"areal.{_name}"] = types.ModuleType(f"areal.{_name}")
        _bare.__path__ = [str(pathlib.Path(_package.__path__[0], *_name.split(".")))]
    data = importlib.import_module("areal.utils.data")
    controllers = importlib.import_module("areal.infra.controller.train_controller")
    actors = importlib.import_module("areal.trainer.ppo.actor")
    critics = importlib.import_module("areal.trainer.ppo.critic")
    outputs = importlib.import_module("areal.engine.core.train_engine")
except ImportError as _error:
    pytest.skip(f"AReaL cannot be imported ({_error}): the adapter was NOT run against it", allow_module_level=True)
finally:
    sys.meta_path.remove(_finder)

from areal.api.alloc_mode import ParallelStrategy  # noqa: E402
from areal.api.engine_api import TrainEngine  # noqa: E402
from areal.infra.rpc import rtensor  # noqa: E402

from routepack import InvalidInput  # noqa: E402
from routepack.adapters import PlannerProcess, Reason, Rules, Settings, _hooks, areal, check_schedule  # noqa: E402

from . import areal_experts_jobs  # noqa: E402
from .batches import COST, PATIENT, Batch  # noqa: E402
from .conftest import shared  # noqa: E402
from .model import Model, agree, gradients  # noqa: E402

MISBEHAVING = pathlib.Path(__file__).with_name("misbehaving.py")
DP, CAP, MINI = 4, 128, 2
BATCH = Batch()
Told = Callable[[], list[str]]


class Local:
    """Storage of tensors for handles."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}
        self.fetched: list[str] = []

    def store(self, tensor: Any) -> str:
        self.stored[str(len(self.stored))] = tensor
        return str(len(self.stored) - 1)

    def fetch(self, shards: list[Any]) -> list[Any]:
        self.fetched += [shard.shard_id for shard in shards]
        return [self.stored[shard.shard_id] for shard in shards]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    rtensor.set_backend(Local())
    rtensor.clear_fetch_buffer()
    yield
    areal.uninstall()
    rtensor.set_backend(None)
    rtensor.clear_fetch_buffer()


def trajectories(routed: bool = True, counted: bool = True) -> list[dict[str, Any]]:
    """Of `BATCH`; tensors are elsewhere."""
    return trajectories_of(BATCH, routed, counted)


def trajectories_of(batch: Batch, routed: bool = True, counted: bool = True) -> list[dict[str, Any]]:
    items = areal_experts_jobs.trajectories(batch, data.concat_padded_tensors, routed, counted)
    remote: list[dict[str, Any]] = rtensor.RTensor.remotize(items, node_addr="here")
    return remote


class Engine:
    """A training engine of one rank, up to the optimizer: AReaL's own split, packing and order of outputs."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, Any, Any]] = []
        self.passes: list[list[list[int]]] = []

    def eval(self) -> None: ...

    def train(self) -> None: ...

    def get_version(self) -> int:
        return 0

    def _cells(self, batch: Any) -> Any:
        cells = data.split_padded_tensor_dict_into_mb_list(batch, data.MicroBatchSpec(max_tokens_per_mb=CAP))
        cells.mbs = [data.pack_tensor_dict(mb) for mb in cells.mbs]
        assert not any(key.startswith("routepack") for mb in cells.mbs for key in mb)  # a model would not know them
        self.passes.append([samples_of(mb) for mb in cells.mbs])
        return cells

    def forward(self, input_: Any, aggregate_fn: Any) -> Any:
        model = Model(BATCH)
        lengths = input_["attention_mask"].sum(1).tolist()
        cells = self._cells(input_)
        with torch.no_grad():
            made = [torch.cat(logs_of(model, mb)) for mb in cells.mbs]
        return outputs.reorder_and_pad_outputs(made, lengths, cells, aggregate_fn)

    def train_batch(self, batch: Any, loss_fn: Any, loss_weight_fn: Any) -> dict[str, float]:
        self.steps.append((self._cells(batch), loss_fn, loss_weight_fn))
        return {}


def samples_of(mb: Any) -> list[int]:
    return [int(mb["sample"][begin]) for begin in mb["cu_seqlens"][:-1].tolist()]


def logs_of(model: Model, mb: Any) -> list[Any]:
    """Log-probability of the next token at every token, 0 for the last."""
    routes = BATCH.routes()
    ends = mb["cu_seqlens"].tolist()
    tokens = [mb["input_ids"][b:e] for b, e in zip(ends, ends[1:], strict=False)]
    logs = model.log_probs(tokens, [torch.from_numpy(routes[i]) for i in samples_of(mb)])
    return [torch.cat([log, log.new_zeros(1)]) for log in logs]


@contextlib.contextmanager
def areals_own() -> Iterator[None]:
    """As in a worker without the hook: its half of the hook is out."""
    replaced = [(o, name, was) for o, name, was in areal._REPLACED._were if o is not controllers.TrainController]
    now = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
    for one in replaced:
        _hooks._set(*one)
    try:
        yield
    finally:
        for one in now:
            _hooks._set(*one)


class Scheduler:
    """Calls workers, in this process: handles become tensors on the way in and again on the way out."""

    def __init__(self, kind: Any, config: Any, unhooked: tuple[int, ...] = ()) -> None:
        self.engines = [Engine() for _ in range(DP)]
        self.kind, self.config, self.unhooked = kind, config, unhooked
        self.calls: list[str] = []

    async def async_call_engine(self, worker: str, method: str, name: str, *args: Any, rpc_meta: Any = None) -> Any:
        self.calls.append(method)
        with areals_own() if int(worker) in self.unhooked else contextlib.nullcontext():
            if method.startswith("routepack"):
                assert rpc_meta == {"broadcast": False}  # workers without the hook would leave the others waiting
                return getattr(TrainEngine, method)(self.engines[int(worker)], *args)
            model = object.__new__(self.kind)
            model.config, model.m2_threshold = self.config, None
            model.engine = self.engines[int(worker)]
            given = rtensor.RTensor.localize(list(args))
            return rtensor.RTensor.remotize(getattr(model, method)(*given), node_addr="here")


def actor_configuration(**more: Any) -> types.SimpleNamespace:
    values = {
        "ppo_n_minibatches": MINI, "mb_spec": data.MicroBatchSpec(max_tokens_per_mb=CAP), "backend": "megatron:d4e2",
        "scheduling_spec": (types.SimpleNamespace(cmd="python -m routepack.adapters.areal"),), "is_critic": False,
        "enable_tree_training": False, "m2_threshold": None, "log_agent_stats": False, "log_agent_stats_keys": [],
        "mask_no_eos_with_zero": False, "eps_clip": 0.2, "eps_clip_higher": None, "c_clip": None,
        "rejection_sampling": None, "importance_sampling_level": "token", "prox_logp_method": "recompute",
        "use_sapo_loss": False, "sapo_tau_pos": 1.0, "sapo_tau_neg": 1.0, "use_decoupled_loss": False,
    }  # fmt: skip
    return types.SimpleNamespace(**{**values, **more})


def controller_of(role: str = "actor", unhooked: tuple[int, ...] = (), parallel: Any = None, **more: Any) -> Any:
    """AReaL's own for an actor, a reference model or a critic.

    :param unhooked: workers that have no hook, whatever their `cmd` says
    """
    controller, kind = actors.PPOActorController, actors.PPOActor
    if role == "critic":
        controller, kind = critics.PPOCriticController, critics.PPOCritic
    made = object.__new__(controller)
    made.config = actor_configuration(**more)
    made.scheduler = Scheduler(kind, made.config, unhooked)
    parallel = parallel or ParallelStrategy(data_parallel_size=DP, expert_parallel_size=2)
    made.train_alloc = types.SimpleNamespace(parallel=parallel)
    made.workers = [types.SimpleNamespace(id=str(rank)) for rank in range(DP)]
    made.workers_is_dp_head = [True] * DP
    made._worker_role, made._engine_name = role, lambda rank: role
    return made


def step(controller: Any, items: list[dict[str, Any]]) -> list[Any]:
    """Log-probs and update, as the trainer does. @returns the log-probs of each sample"""
    logs = controller.compute_logp(items)
    controller.ppo_update(items)
    return by_sample(items, logs)


def by_sample(items: list[dict[str, Any]], logs: list[Any]) -> list[Any]:
    """The tokens of each sample, in the order of the trajectories."""
    made = []
    for item, some in zip(items, logs, strict=True):
        mask = areal._here(item["attention_mask"])
        some = areal._here(some)
        assert some.shape == mask.shape
        made += [row[:n] for row, n in zip(some, mask.sum(1).tolist(), strict=True)]
    return made


def results_of(controller: Any, sequences: bool = False) -> list[tuple[float, dict[str, Any]]]:
    """Loss and gradients of each optimizer step, weighted over ranks and cells as AReaL's engines do."""
    found = []
    for parts in zip(*(engine.steps for engine in controller.scheduler.engines), strict=True):
        model, total = Model(BATCH), 0.0

        def weight_of(mb: Any, weigh: Any = parts[0][2]) -> Any:
            return torch.tensor(len(mb["cu_seqlens"]) - 1) if sequences else weigh(mb)

        everything = sum(float(weight_of(mb)) for cells, _, _ in parts for mb in cells.mbs)
        for cells, loss_fn, _ in parts:
            for mb in cells.mbs:
                logs = logs_of(model, mb)
                if sequences:
                    masks = mb["loss_mask"].split([len(log) for log in logs])
                    advantages = mb["advantages"].split([len(log) for log in logs])
                    each = [
                        -(log * m * a).sum() / m.sum().clamp(min=1)
                        for log, m, a in zip(logs, masks, advantages, strict=True)
                    ]
                    loss = torch.stack(each).mean()
                else:
                    packed = torch.cat(logs)
                    loss = loss_fn(packed, torch.zeros_like(packed), dict(mb))
                loss = loss * float(weight_of(mb)) / everything
                loss.backward()
                total += float(loss.detach())
        found.append((total, gradients(model)))
    return found


def settings(**more: Any) -> Settings:
    return Settings(cost=COST, **{**PATIENT, **more})


def install(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, **more: Any) -> None:
    shared(monkeypatch, planner)
    areal.install(settings(**more))
    areal.install_worker()


def passes_of(controller: Any) -> list[list[list[list[int]]]]:
    """[pass][rank][row]: samples."""
    return [list(ranks) for ranks in zip(*(engine.passes for engine in controller.scheduler.engines), strict=True)]


@pytest.mark.parametrize("sequences", [False, True], ids=["token mean", "sequence mean"])
def test_a_plan_trains_what_areal_trains(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, sequences: bool
) -> None:
    before, after = controller_of(), controller_of()
    first = step(before, trajectories(counted=False))
    install(monkeypatch, planner)
    second = step(after, trajectories())
    metrics = areal.session().metrics
    assert (
        metrics["routepack/fallback"] == 0.0
        and metrics["routepack/passes"] == 2.0
        and metrics["routepack/steps"] == 1.0
    )
    assert passes_of(before) != passes_of(after)
    for (loss, grads), (other, others) in zip(results_of(before, sequences), results_of(after, sequences), strict=True):
        assert loss == pytest.approx(other, rel=1e-5)
        assert agree(grads, others)
        assert not agree(grads, dict(others, router=others["router"] * 1.0001))  # the comparison can fail
    for one, other in zip(first, second, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_the_layout_keeps_areals_rules_in_every_pass(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> None:
    before, after = controller_of(), controller_of()
    step(before, trajectories(counted=False))
    install(monkeypatch, planner)
    step(after, trajectories())
    logs, *mini = passes_of(after)
    assert len(mini) == MINI
    for made, own in zip(mini, passes_of(before)[1:], strict=True):
        members = sorted(i for rank in made for cell in rank for i in cell)
        assert members == sorted(i for rank in own for cell in rank for i in cell)  # AReaL's own mini-batches
        assert len({len(rank) for rank in made}) == 1
        number = {sample: i for i, sample in enumerate(members)}
        rows = [[[number[i] for i in rank[r]] for rank in made] for r in range(len(made[0]))]
        check_schedule(rows, [BATCH.lengths()[i] for i in members], Rules(slots=DP, capacity=CAP))
    assert logs == [[cell for made in mini for cell in made[rank]] for rank in range(DP)]


def test_the_controller_fetches_masks_and_counts_alone(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess
) -> None:
    install(monkeypatch, planner)
    items = trajectories()
    store = rtensor.get_backend()
    areal.batch_of(items)
    small = {
        item[key].shard.shard_id
        for item in items
        for key in ("attention_mask", areal.COUNTS, areal.RECORDED, areal.TOP_K)
    }
    assert set(store.fetched) == small


def test_counts_are_those_of_the_routes() -> None:
    batch = areal.batch_of(trajectories())
    assert np.array_equal(np.stack([some.counts for some in batch.counted if some is not None]), BATCH.counts())
    assert batch.lengths.tolist() == BATCH.lengths() and batch.top_k == BATCH.top_k


MISBEHAVES = {
    "raises": Reason.PLANNER_ERROR,
    "stalls": Reason.DEADLINE,
    "stalls and ignores": Reason.DEADLINE,
    "half a frame": Reason.DEADLINE,
    "dies at once": Reason.PLANNER_DIED,
    "kills itself": Reason.PLANNER_DIED,
    "noise": Reason.BAD_REPLY,
    "no JSON": Reason.BAD_REPLY,
    "plan that is none": Reason.BAD_REPLY,
    "too few plans": Reason.BAD_REPLY,
    "over the cap": Reason.BAD_PLAN,
    "missing sample": Reason.BAD_PLAN,
    "duplicate sample": Reason.BAD_PLAN,
    "unequal counts": Reason.BAD_PLAN,
}


@pytest.mark.parametrize("how", MISBEHAVES)
def test_areal_goes_on_as_before_when_the_planner(monkeypatch: pytest.MonkeyPatch, warned: Told, how: str) -> None:
    before, after = controller_of(), controller_of()
    step(before, trajectories(counted=False))
    process = PlannerProcess(command=[sys.executable, str(MISBEHAVING), how], start_s=120.0)
    waits = MISBEHAVES[how] == Reason.DEADLINE
    install(monkeypatch, process, **({"deadline_ms": 300, "grace_ms": 700} if waits else {}))
    step(after, trajectories())
    process.close()
    metrics = areal.session().metrics
    assert passes_of(before) == passes_of(after)
    assert metrics["routepack/fallback"] == MISBEHAVES[how] and metrics["routepack/fallbacks"] == 1.0
    assert metrics["routepack/passes"] == 0.0
    assert len(warned()) == 1


def test_areal_goes_on_when_the_planner_is_killed_while_it_plans(
    monkeypatch: pytest.MonkeyPatch, warned: Told
) -> None:
    before, after = controller_of(), controller_of()
    step(before, trajectories(counted=False))
    process = PlannerProcess(command=[sys.executable, str(MISBEHAVING), "stalls"], start_s=120.0)
    install(monkeypatch, process)
    killed: list[int] = []

    def kill() -> None:
        while process._child is None or not process._child.ready:  # it reads requests from then on
            time.sleep(0.01)
        time.sleep(0.2)
        killed.append(process._child.process.pid)
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    step(after, trajectories())
    killer.join()
    process.close()
    assert passes_of(before) == passes_of(after)
    assert areal.session().metrics["routepack/fallback"] == Reason.PLANNER_DIED
    (text,) = warned()
    assert f"planner {killed[0]} died (status -9)" in text


def test_the_next_step_is_planned_again_after_the_planner_was_killed(
    monkeypatch: pytest.MonkeyPatch, warned: Told
) -> None:
    process = PlannerProcess(start_s=120.0)
    install(monkeypatch, process)
    controller = controller_of()
    step(controller, trajectories())
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    controller.ppo_update(trajectories_of(Batch(seed=11)))
    process.close()
    metrics = areal.session().metrics
    assert metrics["routepack/steps"] == 2.0 and metrics["routepack/fallbacks"] == 0.0 and not warned()
    assert metrics["routepack/planner_restarts"] == 1.0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mb_spec": data.MicroBatchSpec(n_mbs=2)}, Reason.UNSUPPORTED),
        ({"mb_spec": data.MicroBatchSpec(max_tokens_per_mb=CAP, granularity=2)}, Reason.UNSUPPORTED),
        ({"enable_tree_training": True}, Reason.UNSUPPORTED),
        ({"scheduling_spec": (types.SimpleNamespace(cmd="python -m areal.infra.rpc.rpc_server"),)}, Reason.UNSUPPORTED),
        ({"m2_threshold": 0.1}, Reason.SETTINGS),
    ],
)
def test_what_no_plan_can_stand_for_is_left_to_areal(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, change: dict[str, Any], reason: Reason
) -> None:
    before, after = controller_of(), controller_of(**change)
    step(before, trajectories(counted=False))
    install(monkeypatch, planner)
    step(after, trajectories())
    assert areal.session().metrics["routepack/fallback"] == reason
    assert passes_of(before) == passes_of(after)
    assert len(warned()) == 1


def test_trajectories_without_routes_are_left_to_areal(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    install(monkeypatch, planner)
    controller = controller_of()
    step(controller, trajectories(routed=False))
    assert areal.session().metrics["routepack/fallback"] == Reason.NO_ROUTES
    assert sorted(i for made in passes_of(controller)[1:] for rank in made for cell in rank for i in cell) == list(
        range(BATCH.samples)
    )
    assert len(warned()) == 1


def test_placement_alone_moves_experts_and_leaves_the_packing(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess
) -> None:
    before, after = controller_of(), controller_of()
    step(before, trajectories(counted=False))
    moved: list[int] = []
    install(monkeypatch, planner, mode="placement", on_placement=lambda placement, epoch: moved.append(epoch))
    step(after, trajectories())
    assert moved == [1] and passes_of(before) == passes_of(after)


def test_hooks_go_in_once_and_out_again() -> None:
    def now() -> list[Any]:
        return [
            controllers.TrainController._custom_function_call, data.split_padded_tensor_dict_into_mb_list,
            data.concat_batch, data.allocate_balanced_mbs_synced, actors.split_padded_tensor_dict_into_mb_list,
        ]  # fmt: skip

    before = now()
    areal.install(settings())
    areal.install_worker()
    areal.install_worker()
    assert all(one is not other for one, other in zip(before, now(), strict=True))
    areal.uninstall()
    assert now() == before


def test_an_installation_that_is_refused_leaves_areal_as_it_was() -> None:
    before = controllers.TrainController._custom_function_call
    with pytest.raises(InvalidInput, match=r"current: found x\.json"):
        areal.install(Settings(cost=COST, mode="both", current="x.json"))
    assert controllers.TrainController._custom_function_call is before and areal._SETTINGS is None


def test_dense_layers_among_the_routes_are_left_out() -> None:
    routes = np.array([[[0, 0], [1, 2], [0, 3]], [[0, 0], [0, 1], [1, 0]]], np.int32)
    response = types.SimpleNamespace(input_tokens=[1, 2], output_tokens=[3], routed_experts=routes.reshape(2, 6))
    mask = {"attention_mask": torch.ones((1, 3), dtype=torch.bool)}
    none = types.SimpleNamespace(input_tokens=[1, 2], output_tokens=[3], routed_experts=None)
    items = [{**mask, **areal.counts_of(some, layers=3, experts=4, top_k=2)} for some in (none, response)]
    batch = areal.batch_of(items)
    assert batch.counted[0] is None and batch.top_k == 2
    assert batch.counted[1] is not None and batch.counted[1].counts.tolist() == [[1, 2, 1, 0], [2, 1, 0, 1]]
    assert batch.counted[1].recorded.tolist() == [2, 2]


def test_another_number_of_layers_than_the_engines_is_noticed() -> None:
    response = types.SimpleNamespace(input_tokens=[1, 2], output_tokens=[3], routed_experts=np.ones((2, 8), np.int32))
    for layers in (2, 8):
        with pytest.raises(InvalidInput, match=rf"found routes of shape \[2, 8\], wanted \[2 or more, {layers} \* 2\]"):
            areal.counts_of(response, layers=layers, experts=4, top_k=2)
    assert int(areal.counts_of(response, layers=4, experts=4, top_k=2)[areal.TOP_K]) == 2


def test_routes_of_the_wrong_shape_are_refused() -> None:
    response = types.SimpleNamespace(input_tokens=[1, 2], output_tokens=[3], routed_experts=np.zeros((1, 4), np.int32))
    with pytest.raises(InvalidInput, match=r"found routes of shape \[1, 4\], wanted \[2 or more, 2 \* k\]"):
        areal.counts_of(response, layers=2, experts=4)
