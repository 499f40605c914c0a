# SPDX-License-Identifier: Apache-2.0
"""verl trains on plans: its own trainers, data classes, worker cuts and loss aggregation, on the CPU.

Workers are simulated in this process: each rank gets its chunk of the batch as verl's dispatch cuts it, makes
mini-batches with verl's iterator and microbatches with verl's `prepare_micro_batches`.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("verl") is None:
    pytest.skip("no verl: the adapter was NOT run against the real thing", allow_module_level=True)
try:
    import verl.protocol as protocol
    import verl.trainer.ppo.ray_trainer as trainer_module
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from verl.trainer.ppo.core_algos import agg_loss
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine import utils as engine
except ImportError as error:
    pytest.skip(f"verl cannot be imported ({error}): the adapter was NOT run against it", allow_module_level=True)

from routepack import Error, InvalidInput, Placement  # noqa: E402
from routepack.adapters import (  # noqa: E402
    PlannerProcess,
    Reason,
    Rules,
    Settings,
    check_schedule,
    verl,
    verl_cells,
)

from .batches import COST, PATIENT, Batch  # noqa: E402
from .conftest import shared  # noqa: E402
from .model import Model, agree, gradients  # noqa: E402

MISBEHAVING = pathlib.Path(__file__).with_name("misbehaving.py")
DP, CAP, MINI = 4, 128, 16
BATCH = Batch()
LAYERS = BATCH.layers
Told = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    verl.uninstall()


def configuration(**actor: Any) -> Any:
    return OmegaConf.create(
        {
            "actor_rollout_ref": {
                "model": {"path": "none"},
                "rollout": {"n": 4, "temperature": 1.0, "multi_turn": {"enable": False}},
                "actor": {
                    "strategy": "megatron",
                    "ppo_mini_batch_size": MINI // 4,  # prompts
                    "ppo_max_token_len_per_gpu": CAP,
                    "ppo_epochs": 1,
                    "data_loader_seed": 1,
                    "shuffle": False,
                    "calculate_entropy": False,
                    "entropy_coeff": 0.0,
                    "use_dynamic_bsz": True,
                    "policy_loss": {"loss_mode": "vanilla"},
                    "loss_agg_mode": "token-mean",
                    "megatron": {
                        "expert_model_parallel_size": 2,
                        "expert_tensor_parallel_size": 1,
                        "tensor_model_parallel_size": 1,
                        "override_transformer_config": {},
                    },
                    **actor,
                },
            },
            "trainer": {"critic_warmup": 0},
            "critic": {"ppo_mini_batch_size": 4},
        }
    )


def batch_of(some: Batch = BATCH) -> Any:
    """What verl's rollout gives: prompts padded on the left, answers on the right, no route for the last token."""
    lengths, answers = some.lengths(), some.response_lengths()
    prompt_width = max(n - a for n, a in zip(lengths, answers, strict=True)) + 2
    answer_width = max(answers) + 3
    width = prompt_width + answer_width
    n = some.samples
    ids, mask = torch.zeros(n, width, dtype=torch.long), torch.zeros(n, width, dtype=torch.long)
    routes = torch.zeros(n, width, some.layers, some.top_k, dtype=torch.int16)
    response_mask = torch.zeros(n, answer_width, dtype=torch.long)
    for i, (tokens, ids_of, trained) in enumerate(zip(some.tokens(), some.routes(), some.loss_masks(), strict=True)):
        begin = prompt_width - (lengths[i] - answers[i])
        ids[i, begin : begin + lengths[i]] = torch.tensor(tokens)
        mask[i, begin : begin + lengths[i]] = 1
        routes[i, begin : begin + lengths[i] - 1] = torch.from_numpy(ids_of).to(torch.int16)
        response_mask[i, : answers[i]] = torch.tensor(trained)
    return protocol.DataProto.from_dict(
        tensors={
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "prompts": ids[:, :prompt_width],
            "responses": ids[:, prompt_width:],
            "response_mask": response_mask,
            "routed_experts": routes,
            "advantages": torch.tensor(some.rewards(), dtype=torch.float32)[:, None].expand(n, answer_width).clone(),
            "sample": torch.arange(n),
        },
        non_tensors={"uid": np.array([str(i // 4) for i in range(n)], dtype=object)},
    )


class Group:
    """All workers of the actor, in this process."""

    def __init__(
        self, infer_cap: int = CAP, mode: str = "token-mean", sp_size: int = 1, divided_by: int | None = None
    ) -> None:
        self._dispatch_info = {"actor": list(range(DP))}
        self.infer_cap, self.mode = infer_cap, mode
        self.sp_size, self.divided_by = sp_size, divided_by  # as engines set them
        self.cells: list[list[list[list[int]]]] = []  # [pass or mini-batch][rank][row]: samples
        self.results: list[tuple[float, dict[str, Any]]] = []  # of each optimizer step

    def routepack_obeys(self) -> list[str]:
        return [verl_cells.routepack_obeys(None)] * DP

    def _ranks(self, data: Any) -> list[Any]:
        return tu.chunk_tensordict(data, DP)

    def _micro_batches(self, data: Any, cap: int) -> tuple[list[Any], list[list[int]]]:
        tu.assign_non_tensor(data, use_dynamic_bsz=True, max_token_len_per_gpu=cap, sp_size=self.sp_size)
        return engine.prepare_micro_batches(
            data, dp_group=None, num_batches_divided_by=self.divided_by, same_micro_num_in_dp=True
        )

    def compute_log_prob(self, data: Any) -> Any:
        model = Model(BATCH)
        outputs, made = [], []
        for rank in self._ranks(data):
            micro_batches, indices = self._micro_batches(rank, self.infer_cap)
            made.append([m["sample"].tolist() for m in micro_batches])
            lists = []
            for m in micro_batches:
                with torch.no_grad():
                    logs = [torch.cat([log, log.new_zeros(1)]) for log in logs_of(model, m)]
                nested = torch.nested.as_nested_tensor(logs, layout=torch.jagged)
                lists.append({"model_output": {"log_probs": nested, "entropy": nested * 0}})
            outputs.append(engine.postprocess_batch_func(lists, indices, rank)["model_output"])
        self.cells.append(made)
        tensors = {
            key: torch.nested.as_nested_tensor(
                [row for out in outputs for row in out[key].unbind()], layout=torch.jagged
            )
            for key in ("log_probs", "entropy")
        }
        return tu.get_tensordict(tensors, non_tensor_dict={"metrics": {"mfu": 0.0}})

    def update_actor(self, data: Any) -> Any:
        ranks = self._ranks(data)
        mini = tu.get(data, "mini_batch_size")
        kwargs = tu.get(data, "dataloader_kwargs")
        iterators = [
            list(tu.make_iterator(rank, mini_batch_size=mini // DP, epochs=1, seed=1, dataloader_kwargs=kwargs))
            for rank in ranks
        ]
        for parts in zip(*iterators, strict=True):
            model, total, made = Model(BATCH), 0.0, []
            tokens = float(sum(part["response_mask"].sum() for part in parts))
            for part in parts:
                micro_batches, _ = self._micro_batches(part, CAP)
                made.append([m["sample"].tolist() for m in micro_batches])
                for m in micro_batches:
                    logs = logs_of(model, m)
                    answers = m["responses"].shape[1]
                    matrix = torch.zeros(len(logs), answers)
                    for i, log in enumerate(logs):
                        size = int(m["attention_mask"][i, -answers:].sum())
                        matrix[i, :size] = -log[len(log) - size :] * m["advantages"][i, :size]
                    matrix = matrix.masked_fill(m["response_mask"] == 0, 0.0)
                    loss = agg_loss(
                        loss_mat=matrix,
                        loss_mask=m["response_mask"],
                        loss_agg_mode=self.mode,
                        dp_size=DP,
                        batch_num_tokens=tokens,
                        global_batch_size=mini,
                    )
                    (loss / DP).backward()
                    total += float(loss.detach()) / DP
            self.cells.append(made)
            self.results.append((total, gradients(model)))
        return tu.get_tensordict({}, non_tensor_dict={"metrics": {"mfu": [0.0]}})


def logs_of(model: Model, m: Any) -> list[Any]:
    return model.log_probs(list(m["input_ids"].unbind()), list(m["routed_experts"].unbind()))


def trainer_of(group: Group, **actor: Any) -> Any:
    """verl's trainer without what it starts."""
    trainer = object.__new__(trainer_module.RayPPOTrainer)
    trainer.config = configuration(**actor)
    trainer.actor_rollout_wg = group
    trainer.ref_in_actor = True
    return trainer


def step(trainer: Any, change: Callable[[Any], None] | None = None) -> tuple[Any, dict[str, Any]]:
    """Balance, old and reference log-probs, update: as `fit` does."""
    batch, metrics = batch_of(), {}
    trainer._balance_batch(batch, metrics)
    if change is not None:
        change(batch)
    old, _ = trainer._compute_old_log_prob(batch)
    batch = batch.union(old)
    batch = batch.union(trainer._compute_ref_log_prob(batch))
    trainer._update_actor(batch)
    return batch, metrics


def by_sample(batch: Any, key: str) -> Any:
    return batch.batch[key][batch.batch["sample"].argsort()]


def settings(**more: Any) -> Settings:
    return Settings(cost=COST, experts=BATCH.experts, **more)


@pytest.fixture(scope="module")
def own() -> tuple[Group, Any]:
    """A step without RoutePack."""
    group = Group()
    return group, step(trainer_of(group))[0]


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_a_plan_trains_what_verl_trains(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, mode: str) -> None:
    before, after = Group(mode=mode), Group(mode=mode)
    first, _ = step(trainer_of(before))
    shared(monkeypatch, planner)
    verl.install(settings())
    trainer = trainer_of(after)
    second, metrics = step(trainer)
    assert metrics["routepack/fallback"] == 0.0 and metrics["routepack/used"] == 1.0
    assert metrics["routepack/passes"] == 4.0  # balance, old, reference, update
    assert before.cells != after.cells and len(before.results) == BATCH.samples // MINI
    for (loss, grads), (other, others) in zip(before.results, after.results, strict=True):
        assert loss == pytest.approx(other, rel=1e-5)
        assert agree(grads, others)
        assert not agree(grads, dict(others, router=others["router"] * 1.0001))  # the comparison can fail
    for key in ("old_log_probs", "ref_log_prob"):
        assert torch.allclose(by_sample(first, key), by_sample(second, key), rtol=1e-5, atol=1e-6)


def test_the_layout_keeps_verls_rules_in_every_pass(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, own: tuple[Group, Any]
) -> None:
    shared(monkeypatch, planner)
    verl.install(settings())
    group = Group()
    step(trainer_of(group))
    old, reference, *mini = group.cells
    mine = own[0].cells[2:]
    for made, other in zip(mini, mine, strict=True):
        members = sorted(i for rank in made for cell in rank for i in cell)
        assert members == sorted(i for rank in other for cell in rank for i in cell)  # verl's own mini-batches
        number = {sample: i for i, sample in enumerate(members)}
        rows = [[[number[i] for i in rank[r]] for rank in made] for r in range(len(made[0]))]
        assert len({len(rank) for rank in made}) == 1
        check_schedule(rows, [BATCH.lengths()[i] for i in members], Rules(slots=DP, capacity=CAP, equal_count=True))
    # Log-probs run the cells of all mini-batches one after the other.
    assert old == reference == [[cell for made in mini for cell in made[rank]] for rank in range(DP)]


def test_a_pass_with_a_smaller_cap_is_cut_by_verl(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> None:
    shared(monkeypatch, planner)
    verl.install(settings())
    group = Group(infer_cap=CAP - 1)
    step(trainer_of(group))
    lengths = BATCH.lengths()
    assert all(sum(lengths[i] for i in cell) < CAP for rank in group.cells[0] for cell in rank)
    assert group.cells[0] != [[cell for made in group.cells[2:] for cell in made[rank]] for rank in range(DP)]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raises", Reason.PLANNER_ERROR),
        ("stalls", Reason.DEADLINE),
        ("stalls and ignores", Reason.DEADLINE),
        ("kills itself", Reason.PLANNER_DIED),
        ("dies at once", Reason.PLANNER_DIED),
        ("noise", Reason.BAD_REPLY),
        ("half a frame", Reason.DEADLINE),
        ("plan of another request", Reason.BAD_REPLY),
        ("over the cap", Reason.BAD_PLAN),
        ("missing sample", Reason.BAD_PLAN),
        ("unequal counts", Reason.BAD_PLAN),
        ("moved experts", Reason.BAD_PLAN),
    ],
)
def test_verl_goes_on_as_before_when_the_planner(
    monkeypatch: pytest.MonkeyPatch, warned: Told, own: tuple[Group, Any], how: str, reason: Reason
) -> None:
    process = PlannerProcess(command=[sys.executable, str(MISBEHAVING), how], start_s=120.0)
    shared(monkeypatch, process)
    patience = {"deadline_ms": 300, "grace_ms": 700} if reason == Reason.DEADLINE else PATIENT
    verl.install(settings(**patience))
    group = Group()
    _, metrics = step(trainer_of(group))
    process.close()
    assert group.cells == own[0].cells
    assert metrics["routepack/fallback"] == reason and metrics["routepack/used"] == 0.0
    assert len(warned()) == 1


@pytest.mark.parametrize(("kill", "reason"), [(True, Reason.PLANNER_DIED), (False, Reason.DEADLINE)])
def test_a_planner_that_is_ended_or_stopped_in_the_middle_costs_one_step(
    monkeypatch: pytest.MonkeyPatch, warned: Told, own: tuple[Group, Any], kill: bool, reason: Reason
) -> None:
    process = PlannerProcess(start_s=120.0)
    shared(monkeypatch, process)
    verl.install(settings(**PATIENT))
    group = Group()
    trainer = trainer_of(group)
    try:
        step(trainer)
        assert group.cells != own[0].cells and process.pid is not None
        session = verl.session_of(trainer)
        os.kill(process.pid, signal.SIGSTOP)  # with the request in its pipe, half read or not
        if kill:
            threading.Timer(0.15, os.kill, (process.pid, signal.SIGKILL)).start()
        else:
            session.settings = dataclasses.replace(session.settings, deadline_ms=200, grace_ms=300)
        group.cells.clear()
        _, metrics = step(trainer)
        assert group.cells == own[0].cells
        assert metrics["routepack/fallback"] == reason and metrics["routepack/passes"] == 0.0
        assert len(warned()) == 1
        session.settings = dataclasses.replace(session.settings, **PATIENT)
        group.cells.clear()
        _, metrics = step(trainer)
        assert group.cells != own[0].cells
        assert metrics["routepack/fallback"] == 0.0 and metrics["routepack/planner_restarts"] == 1.0
        assert warned() == []
    finally:
        process.close()


def test_a_session_that_cannot_be_made_leaves_every_step_to_verl_and_says_so(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, own: tuple[Group, Any]
) -> None:
    shared(monkeypatch, planner)
    verl.install(settings(current="/nowhere/placement.json"))
    group = Group()
    trainer = trainer_of(group)
    for number in (1, 2):
        group.cells.clear()
        _, metrics = step(trainer)
        assert group.cells == own[0].cells
        assert metrics["routepack/fallback"] == Reason.BAD_INPUT and metrics["routepack/fallbacks"] == number
        assert len(said := warned()) == 1 and "/nowhere/placement.json" in said[0]


@pytest.mark.parametrize(
    ("actor", "reason"),
    [
        ({"use_dynamic_bsz": False}, Reason.UNSUPPORTED),
        ({"shuffle": True}, Reason.UNSUPPORTED),
        ({"megatron": {"dynamic_context_parallel": True}}, Reason.UNSUPPORTED),
        ({"policy_loss": {"loss_mode": "clip_cov"}}, Reason.SETTINGS),
        ({"megatron": {"override_transformer_config": {"moe_expert_capacity_factor": 1.0}}}, Reason.SETTINGS),
    ],
)
def test_what_no_plan_can_stand_for_is_left_to_verl(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, actor: dict[str, Any], reason: Reason
) -> None:
    shared(monkeypatch, planner)
    verl.install(settings())
    batch, metrics = batch_of(), {}
    trainer_of(Group(), **actor)._balance_batch(batch, metrics)
    assert metrics["routepack/fallback"] == reason
    assert len(warned()) == 1


def test_routes_that_are_missing_leave_the_batch_to_verl(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    shared(monkeypatch, planner)
    verl.install(settings())
    for spoil in (lambda b: b.batch.pop("routed_experts"), lambda b: b.batch["routed_experts"].zero_()):
        batch, metrics = batch_of(), {}
        spoil(batch)
        trainer_of(Group())._balance_batch(batch, metrics)
        assert metrics["routepack/fallback"] == Reason.NO_ROUTES
        assert len(warned()) == 1


def test_a_batch_that_changed_since_is_cut_by_verl(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    shared(monkeypatch, planner)
    verl.install(settings())
    group = Group()
    trainer = trainer_of(group)
    _, metrics = step(trainer, change=lambda batch: batch.reorder(torch.arange(BATCH.samples).flip(0)))
    # In what verl logs of the step, though the passes came after the balance.
    assert metrics["routepack/fallback"] == Reason.UNSUPPORTED and metrics["routepack/used"] == 0.0
    assert metrics["routepack/steps"] == metrics["routepack/fallbacks"] == metrics["routepack/passes"] == 1.0
    assert len(said := warned()) == 1 and "reordered after the batch was balanced" in said[0]
    trained = sorted(i for made in group.cells[2:] for rank in made for cell in rank for i in cell)
    assert trained == list(range(BATCH.samples))


def test_placement_alone_moves_experts_and_leaves_the_packing(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, own: tuple[Group, Any]
) -> None:
    shared(monkeypatch, planner)
    moved: list[Any] = []
    verl.install(settings(mode="placement", on_placement=lambda placement, epoch: moved.append(epoch)))
    group = Group()
    _, metrics = step(trainer_of(group))
    assert moved == [1] and metrics["routepack/fallback"] == 0.0
    assert group.cells == own[0].cells


def stored_trainer(group: Any, store: Store, chosen: Settings) -> Any:
    """verl's V1 trainer without what it starts, and with the hooks."""
    v1 = pytest.importorskip("verl.trainer.ppo.v1.trainer_base", reason="no V1 trainer: NOT run against it")
    verl.install_trainer(v1.PPOTrainer, chosen, queue=store)
    trainer = object.__new__(
        type("Trainer", (v1.PPOTrainer,), {name: None for name in v1.PPOTrainer.__abstractmethods__})
    )
    trainer.config, trainer.use_critic, trainer.global_steps = configuration(), False, 1
    trainer.tokenizer = types.SimpleNamespace(eos_token_id=0)
    trainer.actor_rollout_wg = group
    trainer.ref_in_actor = True
    trainer.config.trainer.resume_mode = "disable"
    group.update_actor = lambda names: Group.update_actor(group, store.real(names))
    return trainer


def names_of(store: Store) -> Any:
    """What V1's trainer has of a batch."""
    metadata = pytest.importorskip("transfer_queue.metadata", reason="no TransferQueue: V1 was NOT run")
    tags = [{"seq_len": n} for n in BATCH.lengths()]
    return metadata.KVBatchMeta(keys=list(store.rows), tags=tags, partition_id="train", extra_info={})


@pytest.mark.parametrize("mode", ["packing", "both"])
def test_batches_that_are_names_are_planned_too(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, mode: str
) -> None:
    """verl's V1 trainer, with a dictionary for TransferQueue."""
    shared(monkeypatch, planner)
    store = Store(batch_of())
    group: Any = Group()
    trainer = stored_trainer(group, store, settings(mode=mode))
    verl.install_worker(engine)
    calls: list[str] = []
    at = [(Placement.identity(layers=LAYERS - 1, experts=BATCH.experts, ranks=2), 0, "")]

    def where(attach: bool = True) -> Any:
        calls.append("attach" if attach else "ask")
        return at * DP

    def move(placement: Placement, epoch: int) -> Any:
        calls.append("move")
        at[0] = (placement, epoch, "")
        return at * DP

    group.routepack_placement, group.routepack_move = where, move
    trainer._load_checkpoint()
    meta = names_of(store)
    metrics: dict[str, Any] = {}
    meta = trainer._balance_batch(meta, metrics)
    assert metrics["routepack/fallback"] == 0.0
    moved = ["move"] if metrics["routepack/moved_experts"] else []
    assert calls == (["ask"] if mode == "packing" else ["attach", "attach", *moved])
    trainer._update_actor(meta, metrics)
    assert metrics["routepack/passes"] == 2.0
    for made in group.cells:
        assert len({len(rank) for rank in made}) == 1
        assert all(sum(BATCH.lengths()[i] for i in cell) <= CAP for rank in made for cell in rank)
    trained = sorted(i for made in group.cells for rank in made for cell in rank for i in cell)
    assert trained == list(range(BATCH.samples))
    mini = verl.mini_batches(BATCH.samples, DP, MINI)
    assert len(group.cells) == len(mini)
    rows = [int(store.rows[key][verl.CELLS][2]) for key in meta.keys]
    assert len(group.cells[0][0]) == rows[0]


def test_names_that_changed_since_have_no_column_that_some_ranks_would_obey(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    """What is stored stays: a rank whose samples have none would not be asked."""
    shared(monkeypatch, planner)
    store = Store(batch_of())
    group: Any = Group()
    trainer = stored_trainer(group, store, settings())
    verl.install_worker(engine)
    meta = names_of(store)
    late = meta.keys[-4:]
    more = {key: dict(row) for key, row in store.rows.items() if key in late}
    metrics: dict[str, Any] = {}
    meta = trainer._balance_batch(meta, metrics)
    assert metrics["routepack/fallback"] == 0.0 and all(verl.CELLS in row for row in store.rows.values())
    for key, row in more.items():  # others take the place of some
        store.rows[f"late {key}"] = row
        meta.keys[meta.keys.index(key)] = f"late {key}"
    trainer._update_actor(meta, metrics)
    assert metrics["routepack/fallback"] == Reason.UNSUPPORTED and len(warned()) == 1
    for key in meta.keys:
        assert verl_cells.cells_of(store.rows[key][verl.CELLS].numpy()[None], CAP, 1) is None
    trained = sorted(i for made in group.cells for rank in made for cell in rank for i in cell)
    assert trained == list(range(BATCH.samples))


def test_a_queue_that_fails_leaves_the_step_to_verl(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    shared(monkeypatch, planner)
    store = Store(batch_of())
    trainer = stored_trainer(Group(), store, settings())
    verl.install_worker(engine)
    put = store.kv_batch_put

    def half(keys: list[str], partition_id: str, fields: Any) -> None:
        put(keys[:9], partition_id, fields[:9])
        store.kv_batch_put = put  # type: ignore[method-assign]
        raise RuntimeError("a storage unit is away")

    store.kv_batch_put = half  # type: ignore[method-assign]
    metrics: dict[str, Any] = {}
    meta = trainer._balance_batch(names_of(store), metrics)
    assert metrics["routepack/fallback"] == Reason.INTERNAL and metrics["routepack/used"] == 0.0
    assert len(said := warned()) == 1 and "a storage unit is away" in said[0]
    columns = [store.rows[key][verl.CELLS].tolist() for key in meta.keys]
    assert columns == verl_cells.no_cells(BATCH.samples).tolist()


class Store:
    """What TransferQueue does for a trainer: rows by name."""

    def __init__(self, batch: Any) -> None:
        data = __import__("verl.workers.utils.padding", fromlist=["x"]).left_right_2_no_padding(batch.to_tensordict())
        self.rows: dict[str, dict[str, Any]] = {f"k{i}": {} for i in range(len(data))}
        for name, value in data.items():
            if isinstance(value, torch.Tensor):
                for key, row in zip(self.rows, value.unbind(), strict=True):
                    self.rows[key][name] = row

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        made = {
            name: torch.nested.as_nested_tensor([self.rows[key][name] for key in keys], layout=torch.jagged)
            for name in select_fields
        }
        return TensorDict(made, batch_size=len(keys))

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any) -> None:
        for name, value in fields.items():
            for key, row in zip(keys, value.unbind(), strict=True):
                self.rows[key][name] = row

    def real(self, meta: Any) -> Any:
        first = self.rows[meta.keys[0]]
        nested = ("input_ids", "routed_experts", "position_ids")
        made = {
            name: torch.nested.as_nested_tensor([self.rows[k][name] for k in meta.keys], layout=torch.jagged)
            if name in nested
            else torch.stack([self.rows[k][name] for k in meta.keys])
            for name in first
        }
        data = TensorDict(made, batch_size=len(meta.keys))
        tu.assign_non_tensor(data, **meta.extra_info)
        return data


def test_hooks_go_in_once_and_out_again() -> None:
    before = trainer_module.RayPPOTrainer._balance_batch, engine.rearrange_micro_batches
    verl.install(settings())
    verl.install(settings())
    assert trainer_module.RayPPOTrainer._balance_batch is not before[0]
    verl.uninstall()
    assert (trainer_module.RayPPOTrainer._balance_batch, engine.rearrange_micro_batches) == before


def test_another_verl_is_refused() -> None:
    module: Any = types.ModuleType("other")
    module.prepare_micro_batches = lambda data, dp_group: None
    with pytest.raises(InvalidInput, match="rearrange_micro_batches"):
        verl.install_worker(module)


def test_the_module_that_verl_imports_hooks_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTEPACK_COST", COST)
    before = engine.rearrange_micro_batches
    finders = list(sys.meta_path)
    try:
        sys.modules.pop("routepack.adapters.verl_auto", None)
        importlib.import_module("routepack.adapters.verl_auto")
        assert engine.rearrange_micro_batches is not before
        assert trainer_module.RayPPOTrainer._balance_batch.__wrapped__
    finally:
        sys.meta_path[:] = finders


def test_a_call_wins_over_the_environment_that_hooks_what_it_imports() -> None:
    """In the script of the trainer, with the environment set for the workers."""
    code = (
        "import sys; import verl as V; from routepack.adapters import Settings, verl\n"
        "assert 'verl.trainer.ppo.ray_trainer' not in sys.modules\n"
        "verl.install(Settings(enabled=False))\n"
        "trainer = sys.modules['verl.trainer.ppo.ray_trainer'].RayPPOTrainer\n"
        "print(hasattr(trainer._balance_batch, '__wrapped__'), hasattr(trainer._load_checkpoint, '__wrapped__'))\n"
        "verl.install(Settings(cost=sys.argv[1]))\n"
        "print(hasattr(trainer._balance_batch, '__wrapped__'), hasattr(trainer._load_checkpoint, '__wrapped__'))\n"
    )
    # Settings of the environment do not matter, not even wrong ones: the call has its own.
    names = {"VERL_USE_EXTERNAL_MODULES": "routepack.adapters.verl_auto", "ROUTEPACK_EXPERTS": "many"}
    env = {**os.environ, **names}
    done = subprocess.run([sys.executable, "-c", code, COST], env=env, capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines()[-2:] == ["True False", "True True"], done.stderr


def test_any_sample_may_show_that_a_layer_has_experts() -> None:
    """k = 1: the first sample's tokens all go to expert 0 of a layer that others use fully; dense layers are zeros."""
    first, second = torch.zeros((2, 3, 1), dtype=torch.int32), torch.zeros((2, 3, 1), dtype=torch.int32)
    first[:, 1], second[:, 1], second[1, 2] = 3, 2, 1
    source: Any = types.SimpleNamespace(routes=lambda batch, lengths: [first, second], made_up=lambda batch: [False] * 2)
    counted, top_k = verl._counted_here(source, None, np.array([3, 3]), 4)
    assert top_k == 1 and [some.counts.tolist() for some in counted] == [
        [[0, 0, 0, 2], [0, 0, 0, 0]],  # nothing but zeros: not recorded, see docs/replay.md
        [[0, 0, 2, 0], [1, 1, 0, 0]],
    ]


def test_a_cost_file_that_the_trainers_node_does_not_have_is_a_reason_at_every_step(
    monkeypatch: pytest.MonkeyPatch, warned: Told, own: tuple[Group, Any]
) -> None:
    """By the environment, as on a cluster where somebody forgot to copy it."""
    monkeypatch.setenv("ROUTEPACK_COST", "/nowhere/cost.toml")
    verl.install_trainer(trainer_module.RayPPOTrainer)
    verl.install_worker(engine)
    group = Group()
    trainer = trainer_of(group)
    _, metrics = step(trainer)
    assert group.cells == own[0].cells and metrics["routepack/fallback"] == Reason.BAD_INPUT
    (text,) = warned()
    assert "/nowhere/cost.toml" in text


def test_where_experts_are_to_move_a_missing_cost_file_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    verl.install_trainer(trainer_module.RayPPOTrainer, Settings(cost="/nowhere/cost.toml", mode="both"))
    with pytest.raises(Error, match="/nowhere/cost.toml"):
        trainer_of(Group())._load_checkpoint()
