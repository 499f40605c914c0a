# SPDX-License-Identifier: Apache-2.0
"""NeMo RL: its shards, its chunks, log-probs on the plan of training, and its own packing whenever there is no plan."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from routepack import InvalidInput  # noqa: E402
from routepack.adapters import PlannerProcess, Reason, Settings, nemo_rl  # noqa: E402

from . import checkouts, contracts  # noqa: E402
from .batches import COST, PATIENT, Batch  # noqa: E402
from .conftest import shared  # noqa: E402
from .model import Model, agree, gradients, policy_loss  # noqa: E402
from .nemo_jobs import columns, config, source_of  # noqa: E402

MISBEHAVING = pathlib.Path(__file__).with_name("misbehaving.py")
Told = Callable[[], list[str]]
RANKS, CAP, MULTIPLE = 4, 128, 4
SOURCES = ["recorded shapes", "checkout's batch", "checkout's policy"]


class Job:
    """A policy without and with RoutePack, and a batch."""

    def __init__(self, source: str, request: pytest.FixtureRequest, **more: Any) -> None:
        self.source = source
        self.settings = {key: more.pop(key) for key in list(more) if key in Settings.__dataclass_fields__}
        self.batch = more.pop("batch", Batch())
        self.cfg = config(self.batch, **more)
        self.module = source_of(source, self.cfg, RANKS, request)
        self.policy = self.module.make(self.cfg, RANKS)
        self.lengths = self.batch.lengths()

    def install(self) -> None:
        chosen = Settings(**{"cost": COST, "experts": self.batch.experts, **PATIENT, **self.settings})
        nemo_rl.install(chosen, policy_module=self.module, data_module=self.module)

    def data(self, **changes: Any) -> Any:
        made = {**columns(self.batch), **changes}
        return self.module.BatchedDataDict({key: value for key, value in made.items() if value is not None})

    def train(self, **changes: Any) -> Any:
        data = self.data(**changes)
        shards = self.policy._shard_for_train(data, self.cfg["train_global_batch_size"])
        return shards, [i for shard in shards for i in shard["idx"]]

    def logprob(self, **changes: Any) -> Any:
        return self.policy._shard_for_logprob(self.data(**changes))

    def metrics(self) -> dict[str, float]:
        return nemo_rl.session_of(self.policy).metrics


@pytest.fixture(params=SOURCES)
def job(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess
) -> Iterator[Callable[..., Job]]:
    shared(monkeypatch, planner)
    yield lambda **more: Job(request.param, request, **more)
    nemo_rl.uninstall()


def rows(shards: Any) -> list[Any]:
    return [(s["idx"], s.micro_batch_indices, s.micro_batch_lengths, s.elem_counts_per_gb) for s in shards]


def test_the_hooks_are_as_recorded(job: Callable[..., Job]) -> None:
    module = job().module
    for name, contract in contracts.NEMO_RL.items():
        if "." in name:
            contracts.holds(module, name, contract)


def test_training_gets_the_plan(job: Callable[..., Job], warned: Told) -> None:
    one = job()
    own, _ = one.train()
    one.install()
    made = one.train()
    assert warned() == [] and rows(made[0]) != rows(own)
    contracts.check_nemo_shards(made, one.lengths, ranks=RANKS, cap=CAP, multiple=MULTIPLE, chunk=16)
    assert one.metrics()["routepack/used"] == 1 and one.metrics()["routepack/windows"] == 2
    for shard in made[0]:
        assert isinstance(shard, one.module.SlicedDataDict)
        begin = shard.elem_counts_per_gb[0]
        second = shard.get_batch(1) if hasattr(shard, "get_batch") else None
        if second is not None:  # NeMo RL's own consumer
            assert second["idx"] == shard["idx"][begin:]
            cells = list(second.make_microbatch_iterator_for_packable_sequences())
            assert [len(cell["idx"]) for cell in cells] == [b - a for a, b in shard.micro_batch_indices[1]]


def test_log_probs_and_training_share_one_plan(job: Callable[..., Job], warned: Told) -> None:
    one = job()
    one.install()
    first, second = one.logprob(), one.logprob(advantages=None)
    trained = one.train()
    assert warned() == [] and rows(first[0]) == rows(second[0])
    assert one.metrics()["routepack/steps"] == 1 and one.metrics()["routepack/passes"] == 3
    contracts.check_nemo_shards(first, one.lengths, ranks=RANKS, cap=CAP, multiple=MULTIPLE, chunk=32)
    found = contracts.check_nemo_shards(trained, one.lengths, ranks=RANKS, cap=CAP, multiple=MULTIPLE, chunk=16)
    cells = [[sorted(part["idx"][a:b]) for a, b in part.micro_batch_indices[0]] for part in first[0]]
    assert cells == [[sorted(cell) for number in found for cell in number[rank]] for rank in range(RANKS)]


def test_log_probs_come_back_in_the_order_of_the_batch(job: Callable[..., Job]) -> None:
    one = job()
    one.install()
    shards, order = one.logprob()
    results = one.module.BatchedDataDict.from_batches([{"logprobs": s["input_ids"].float()} for s in shards])
    results.reorder_data(order)
    assert torch.equal(results["logprobs"], one.data()["input_ids"].float())


def test_log_probs_with_a_smaller_cap_of_their_own_stay_with_the_framework(
    job: Callable[..., Job], warned: Told
) -> None:
    one = job(sequence_packing={"enabled": True, "train_mb_tokens": 128, "logprob_mb_tokens": 96})
    own = rows(one.logprob()[0])
    one.install()
    assert rows(one.logprob()[0]) == own and warned() == []
    one.train()
    assert one.metrics()["routepack/used"] == 1


def test_a_batch_of_another_step_gets_another_plan(job: Callable[..., Job]) -> None:
    one = job()
    one.install()
    one.train()
    one.train()
    assert one.metrics()["routepack/steps"] == 1
    ids = columns(one.batch)["input_ids"]
    ids[0, 0] += 1
    one.train(input_ids=ids)
    assert one.metrics()["routepack/steps"] == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"routed_experts": None}, Reason.NO_ROUTES),
        ({"routed_experts": torch.full((32, 90, 3, 2), -1, dtype=torch.int8)}, Reason.NO_ROUTES),
        ({"routed_experts": torch.full((32, 90, 3, 2), 9, dtype=torch.int8)}, Reason.BAD_INPUT),
        ({"routed_experts": torch.zeros(32, 8, 3, 2, dtype=torch.int8)}, Reason.BAD_INPUT),
        ({"routed_experts": torch.zeros(32, 90, 6, dtype=torch.int8)}, Reason.BAD_INPUT),
    ],
    ids=["no key", "nothing captured", "unknown expert", "too short", "flat"],
)
def test_routes_that_are_missing_or_wrong_leave_the_batch_to_the_framework(
    job: Callable[..., Job], warned: Told, change: dict[str, Any], reason: Reason
) -> None:
    one = job()
    own = rows(one.train(**change)[0])
    one.install()
    assert rows(one.train(**change)[0]) == own
    assert one.metrics()["routepack/fallback"] == reason and len(warned()) == 1
    one.logprob(**change)
    assert warned() == []  # the same step


def test_without_sequence_packing_it_says_so(job: Callable[..., Job], warned: Told) -> None:
    one = job()
    one.install()
    one.policy.use_sequence_packing = False
    one.train()
    (text,) = warned()
    assert "policy.sequence_packing.enabled=true" in text
    assert one.metrics()["routepack/fallback"] == Reason.UNSUPPORTED


def test_batches_outside_a_policy_are_cut_as_before(job: Callable[..., Job], warned: Told) -> None:
    one = job()
    packing = {**one.policy.sequence_packing_args, "max_tokens_per_microbatch": 128}
    own = one.data().shard_by_batch_size(RANKS, batch_size=16, sequence_packing_args=packing)
    one.install()
    made = one.data().shard_by_batch_size(RANKS, batch_size=16, sequence_packing_args=packing)
    assert rows(made[0]) == rows(own[0]) and warned() == [] and one.policy not in nemo_rl._SESSIONS


def test_a_setting_that_drops_tokens_is_refused_by_name(job: Callable[..., Job], warned: Told) -> None:
    one = job()
    one.cfg["megatron_cfg"]["model_overrides"] = {"moe_expert_capacity_factor": 1.0}
    own = rows(one.train()[0])
    one.install()
    assert rows(one.train()[0]) == own
    assert one.metrics()["routepack/fallback"] == Reason.SETTINGS and "moe_expert_capacity_factor" in warned()[0]


def test_a_balancing_loss_is_on_until_its_coefficient_is_said_to_be_0(job: Callable[..., Job], warned: Told) -> None:
    """The coefficient is that of Megatron-Bridge for the model, where none is said."""
    one = job()
    one.cfg["megatron_cfg"]["moe_router_load_balancing_type"] = "global_aux_loss"
    one.install()
    one.train()
    assert one.metrics()["routepack/fallback"] == Reason.SETTINGS and "global_aux_loss" in warned()[0]
    other = job()
    other.cfg["megatron_cfg"]["moe_router_load_balancing_type"] = "global_aux_loss"
    other.cfg["megatron_cfg"]["model_overrides"] = {"moe_aux_loss_coeff": 0.0}
    other.install()
    other.train()
    assert other.metrics()["routepack/used"] == 1 and warned() == []


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("kills itself", Reason.PLANNER_DIED),
        ("raises", Reason.PLANNER_ERROR),
        ("stalls", Reason.DEADLINE),
        ("noise", Reason.BAD_REPLY),
        ("over the cap", Reason.BAD_PLAN),
        ("missing sample", Reason.BAD_PLAN),
        ("empty cell", Reason.BAD_PLAN),
    ],
)
def test_a_planner_that_fails_leaves_the_step_to_the_framework(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, warned: Told, how: str, reason: Reason
) -> None:
    one = job(**({"deadline_ms": 200, "grace_ms": 200} if how == "stalls" else {}))
    own = rows(one.logprob()[0]), rows(one.train()[0])
    bad = PlannerProcess(command=[sys.executable, str(MISBEHAVING), how], start_s=120.0)
    shared(monkeypatch, bad)
    try:
        one.install()
        assert rows(one.logprob()[0]) == own[0]
        (text,) = warned()
        assert "step 1: the framework's own packing is used" in text
        assert rows(one.train()[0]) == own[1] and warned() == []  # the same step
        metrics = one.metrics()
        found = Reason(int(metrics["routepack/fallback"]))
        # some broken layouts are refused by the reader of plans already
        assert found == reason or (reason, found) == (Reason.BAD_PLAN, Reason.BAD_REPLY), text
        assert metrics["routepack/used"] == 0 and metrics["routepack/fallbacks"] == metrics["routepack/steps"] == 1
        if one.source != "checkout's policy":  # whose training needs its workers
            logged = one.policy.train(one.data(), lambda shards: None)["all_mb_metrics"]
            assert logged["routepack/fallback"] == [float(found)] and logged["lr"] == [1e-6]
    finally:
        bad.close()


def test_switched_off_a_missing_cost_file_does_not_matter(job: Callable[..., Job], warned: Told) -> None:
    one = job(cost="/nowhere/cost.toml", enabled=False)
    own = rows(one.train()[0])
    one.install()
    assert rows(one.train()[0]) == own and warned() == []


def test_a_step_after_the_planner_was_killed_is_planned(
    job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, warned: Told
) -> None:
    one = job(deadline_ms=1000, grace_ms=1000)
    own = rows(one.train()[0])
    real = PlannerProcess(start_s=120.0)
    shared(monkeypatch, real)
    try:
        one.install()
        assert rows(one.train()[0]) != own and warned() == []
        assert real.pid is not None
        os.kill(real.pid, signal.SIGSTOP)  # it will not answer; what ends it is SIGKILL
        ids = columns(one.batch)["input_ids"]
        ids[0, 0] += 1
        assert rows(one.train(input_ids=ids)[0]) == own
        assert one.metrics()["routepack/fallback"] == Reason.DEADLINE and len(warned()) == 1
        nemo_rl.session_of(one.policy).settings = Settings(cost=COST, **PATIENT)
        ids[0, 0] += 1
        assert rows(one.train(input_ids=ids)[0]) != own and warned() == []
        assert real.pid is not None
        os.kill(real.pid, signal.SIGKILL)
        ids[0, 0] += 1
        one.train(input_ids=ids)
        ids[0, 0] += 1
        assert rows(one.train(input_ids=ids)[0]) != own and one.metrics()["routepack/planner_restarts"] == 2
        assert len(warned()) <= 1  # for the step in between, if it came before the kernel was done
    finally:
        real.close()


def test_a_configuration_that_is_not_understood_is_a_reason(job: Callable[..., Job], warned: Told) -> None:
    one = job()
    own = rows(one.train()[0])
    one.install()

    class Odd(dict[str, Any]):
        """What this adapter reads of it, and NeMo RL's own packing does not, is not there."""

        def __getitem__(self, name: str) -> Any:
            if name == "train_mb_tokens" and sys._getframe(1).f_globals["__name__"] == nemo_rl.__name__:
                raise KeyError(name)
            return super().__getitem__(name)

    one.cfg["sequence_packing"] = Odd(one.cfg["sequence_packing"])
    for number in (1, 2):
        one.logprob()
        assert rows(one.train()[0]) == own
        (text,) = warned()
        assert "KeyError: 'train_mb_tokens'" in text and one.metrics()["routepack/fallback"] == Reason.INTERNAL
        assert one.metrics()["routepack/fallbacks"] == number


def test_a_file_that_the_driver_cannot_read_is_a_reason(job: Callable[..., Job], warned: Told) -> None:
    one = job(current="/nowhere/placement.json")
    own = rows(one.train()[0])
    one.install()
    assert rows(one.train()[0]) == own
    (text,) = warned()
    assert "/nowhere/placement.json" in text and one.metrics()["routepack/fallback"] == Reason.BAD_INPUT
    assert rows(one.logprob()[0]) and warned() == [] and one.metrics()["routepack/fallbacks"] == 1


def test_an_unknown_number_of_experts_says_what_to_set(job: Callable[..., Job], warned: Told) -> None:
    one = job(experts=0)
    one.install()
    one.train()
    assert "set Settings.experts" in warned()[0] and one.metrics()["routepack/fallback"] == Reason.UNSUPPORTED


def test_metrics_are_among_those_of_training(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, request: Any
) -> None:
    shared(monkeypatch, planner)
    one = Job("recorded shapes", request)
    one.install()
    try:
        seen: list[Any] = []
        results = one.policy.train(one.data(), seen.append)
        assert results["all_mb_metrics"]["routepack/used"] == [1.0] and results["all_mb_metrics"]["lr"] == [1e-6]
        assert len(seen[0]) == RANKS
    finally:
        nemo_rl.uninstall()


def test_the_data_plane_gets_indices_and_counts_routes_on_the_driver(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, request: Any
) -> None:
    """Names of samples are cut, routes are elsewhere. On recorded shapes: the queue itself is not run here."""
    shared(monkeypatch, planner)
    one = Job("recorded shapes", request)
    reads: list[Any] = []

    class TQPolicy(one.module.Policy):  # type: ignore[name-defined, misc]
        _router_replay_enabled = True

        def read_from_dataplane(self, meta: Any, *, select_fields: list[str]) -> dict[str, Any]:
            reads.append(select_fields)
            return {"routed_experts": columns(one.batch)["routed_experts"]}

        def _cut(self, meta: Any, batch_size: int | None) -> Any:
            names = one.module.BatchedDataDict(
                {
                    "input_ids": torch.zeros(len(meta.sample_ids), 1, dtype=torch.int64),
                    "input_lengths": torch.tensor(meta.sequence_lengths),
                    "idx": list(range(len(meta.sample_ids))),
                }
            )
            packing = {**self.sequence_packing_args, "max_tokens_per_microbatch": 128}
            return names.shard_by_batch_size(RANKS, batch_size=batch_size, sequence_packing_args=packing)

        def _logprob_dispatch(self, meta: Any, **kwargs: Any) -> Any:
            return self._cut(meta, None)

        def train_from_meta(self, meta: Any, **kwargs: Any) -> Any:
            return {"cut": self._cut(meta, 16), "all_mb_metrics": {}}

    monkeypatch.setitem(sys.modules, "nemo_rl.models.policy.tq_policy", types.SimpleNamespace(TQPolicy=TQPolicy))
    one.install()
    try:
        policy = TQPolicy(one.cfg, RANKS)
        meta = types.SimpleNamespace(sample_ids=[f"s{i}" for i in range(32)], sequence_lengths=one.lengths)
        first = policy._logprob_dispatch(meta)
        results = policy.train_from_meta(meta)
        assert reads == [["routed_experts"]]
        contracts.check_nemo_shards(first, one.lengths, ranks=RANKS, cap=CAP, multiple=MULTIPLE, chunk=32)
        contracts.check_nemo_shards(results["cut"], one.lengths, ranks=RANKS, cap=CAP, multiple=MULTIPLE, chunk=16)
        assert results["all_mb_metrics"]["routepack/passes"] == [2.0]
    finally:
        nemo_rl.uninstall()


def test_the_data_plane_of_a_checkout_ships_the_plan(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, request: Any
) -> None:
    """NeMo RL's own TQPolicy and `shard_meta_for_dp`. Workers and queue are not run; what is sent to them is read."""
    shared(monkeypatch, planner)
    one = Job("checkout's policy", request)
    plane = sys.modules["nemo_rl.models.policy.tq_policy"]
    sent: list[Any] = []
    policy = object.__new__(plane.TQPolicy)
    vars(policy).update(vars(one.policy))
    policy.flops_tracker, policy._router_replay_enabled = None, True
    policy.dp_client = types.SimpleNamespace(close=lambda: None)
    policy.worker_group = types.SimpleNamespace(
        shutdown=lambda **_: True,
        run_all_workers_sharded_data=lambda method, **given: sent.append(given["meta"]),
        get_all_worker_results=lambda _: [{"global_loss": 0.0, "grad_norm": 0.0, "all_mb_metrics": {}}] * RANKS,
    )
    reads: list[Any] = []

    def read(meta: Any, *, select_fields: list[str]) -> dict[str, Any]:
        reads.append(select_fields)
        return {"routed_experts": columns(one.batch)["routed_experts"]}

    policy.read_from_dataplane = read
    one.install()
    try:
        meta = plane.KVBatchMeta(
            partition_id="train", task_name="all", sample_ids=[f"s{i}" for i in range(32)], fields=["input_ids"],
            sequence_lengths=one.lengths, extra_info={},
        )  # fmt: skip
        policy.get_logprobs_from_meta(meta)
        policy.get_reference_policy_logprobs_from_meta(meta)
        results = policy.train_from_meta(meta, None)
        assert reads == [["routed_experts"]] and results["all_mb_metrics"]["routepack/passes"] == [3.0]
        for parts, chunk in zip(sent, (32, 32, 16), strict=True):
            shards = []
            for part in parts:
                shard = one.module.SlicedDataDict({"input_lengths": torch.tensor(part.sequence_lengths)})
                for name in contracts.NEMO_RL["shard"]:
                    setattr(shard, name, part.extra_info[name])
                shards.append(shard)
            order = [int(name[1:]) for part in parts for name in part.sample_ids]
            contracts.check_nemo_shards(
                (shards, order), one.lengths, ranks=RANKS, cap=CAP, multiple=MULTIPLE, chunk=chunk
            )
    finally:
        nemo_rl.uninstall()


def test_a_nemo_rl_without_the_hooks_is_refused(request: Any) -> None:
    one = Job("recorded shapes", request)
    one.module.Policy._shard_for_train = lambda self, data, batch_size: []
    with pytest.raises(InvalidInput, match="found no call of shard_by_batch_size"):
        one.install()


def test_taking_out_leaves_the_classes_as_they_were(request: Any) -> None:
    one = Job("recorded shapes", request)
    before = (one.module.Policy._shard_for_train, one.module.BatchedDataDict.shard_by_batch_size)
    one.install()
    one.install()
    nemo_rl.uninstall()
    assert (one.module.Policy._shard_for_train, one.module.BatchedDataDict.shard_by_batch_size) == before


def mean_as_recorded(values: Any, mask: Any, global_normalization_factor: float) -> Any:
    """What NeMo RL's `masked_mean` gives over a microbatch."""
    return (values * mask).sum() / (global_normalization_factor + 1e-8)


def train(model: Model, shards: Any, per_token: bool, mean: Any) -> list[tuple[float, dict[str, Any]]]:
    """Loss and gradients of each chunk: by all trained tokens of the chunk, or means of sequences by its sequences."""
    steps = []
    for chunk in range(len(shards[0].elem_counts_per_gb)):
        assert len({len(shard.micro_batch_indices[chunk]) for shard in shards}) == 1
        first = [sum(shard.elem_counts_per_gb[:chunk]) for shard in shards]
        mine = [
            slice(begin, begin + shard.elem_counts_per_gb[chunk]) for begin, shard in zip(first, shards, strict=True)
        ]
        tokens = sum(float(shard["token_mask"][part, 1:].sum()) for part, shard in zip(mine, shards, strict=True))
        sequences = sum(float(shard["sample_mask"][part].sum()) for part, shard in zip(mine, shards, strict=True))
        total = 0.0
        for start, shard in zip(first, shards, strict=True):
            for begin, end in shard.micro_batch_indices[chunk]:
                cell = range(start + begin, start + end)
                lengths = [int(shard["input_lengths"][i]) for i in cell]
                masks = [shard["token_mask"][i, 1:n] for i, n in zip(cell, lengths, strict=True)]
                losses = policy_loss(
                    model,
                    [shard["input_ids"][i, :n] for i, n in zip(cell, lengths, strict=True)],
                    [shard["routed_experts"][i, :n] for i, n in zip(cell, lengths, strict=True)],
                    masks,
                    [float(shard["advantages"][i, 0]) for i in cell],
                )
                if per_token:
                    loss = mean(torch.cat(losses), torch.cat(masks), global_normalization_factor=tokens)
                else:
                    each = torch.stack(
                        [(loss * mask).sum() / mask.sum() for loss, mask in zip(losses, masks, strict=True)]
                    )
                    kept = shard["sample_mask"][cell.start : cell.stop]
                    loss = mean(each, kept, global_normalization_factor=sequences)
                loss.backward()
                total += float(loss.detach())
        steps.append((total, gradients(model)))
    return steps


@pytest.mark.parametrize("per_token", [False, True], ids=["sequence mean", "token mean"])
def test_a_plan_trains_what_the_framework_trains(job: Callable[..., Job], per_token: bool) -> None:
    one = job()
    own, _ = one.train()
    one.install()
    made, _ = one.train()
    assert rows(own) != rows(made)
    model = Model(one.batch)
    mean = checkouts.nemo_masked_mean() if one.source == "checkout's policy" else mean_as_recorded
    for (loss, grads), (other, others) in zip(
        train(model, own, per_token, mean), train(model, made, per_token, mean), strict=True
    ):
        assert loss == pytest.approx(other, rel=1e-5) and agree(grads, others)
    # The comparison can fail: a sample is trained twice, in the place of another one of its chunk.
    for key, values in made[0].items():
        values[0] = values[1]
    (loss, grads), (other, others) = (train(model, shards, per_token, mean)[0] for shards in (own, made))
    assert loss != pytest.approx(other, rel=1e-5) and not agree(grads, others)
