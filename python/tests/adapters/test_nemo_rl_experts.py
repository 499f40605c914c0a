# SPDX-License-Identifier: Apache-2.0
"""NeMo RL's policy workers move experts: what rollout engines get, reference log-probs, checkpoints, and the driver's
call on all workers. The same on NeMo RL's and Megatron-Bridge's own code when ROUTEPACK_NEMO_RL_CHECKOUT and
ROUTEPACK_MEGATRON_BRIDGE name them."""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core", reason="no Megatron-Core: experts did NOT move in the real thing")

from transfer.processes import RankFailed, run_ranks  # noqa: E402

from routepack import InvalidInput, Placement  # noqa: E402
from routepack.adapters import (  # noqa: E402
    PlannerProcess, Reason, Settings, _megatron_bridge, nemo_rl, nemo_rl_moves,
)  # fmt: skip
from routepack.adapters.nemo_rl_moves import Torn, Where  # noqa: E402
from routepack.transfer.checkpoint import STAMP, save_placement, stamp  # noqa: E402

from . import bridge_source, checkouts, nemo_like, nemo_rl_experts_jobs  # noqa: E402
from .batches import PATIENT, Batch  # noqa: E402
from .conftest import shared  # noqa: E402
from .experts_jobs import COST  # noqa: E402
from .nemo_jobs import columns, config  # noqa: E402

Told = Callable[[], list[str]]
RANKS = 4
REAL = pytest.param(
    True,
    marks=pytest.mark.skipif(
        not (os.environ.get(checkouts.NEMO_RL) and os.environ.get(bridge_source.FOLDER)),
        reason=f"{checkouts.NEMO_RL} and {bridge_source.FOLDER} name no code: NOT run on NeMo RL's own",
    ),
)


@pytest.mark.parametrize("checkout", [False, REAL])
def test_a_worker_that_moves_gives_rollout_engines_the_weights_of_one_that_stays(checkout: bool) -> None:
    made = run_ranks(nemo_rl_experts_jobs.train_and_refit, RANKS, checkout)
    assert all(one["compared"] == made[0]["compared"] >= 2 * 2 * 8 * 2 for one in made)
    assert all("rank 1: InvalidInput: no bytes today" in one["failed"] for one in made)
    assert all("training step open" in one["open"] for one in made)
    assert all(one["where"].agrees(made[0]["where"]) for one in made)


def test_pipeline_stages_give_and_take_experts_by_their_numbers() -> None:
    checkouts.folder(bridge_source.FOLDER)
    made = run_ranks(nemo_rl_experts_jobs.stages, RANKS)
    assert len(set(made)) == 1 and made[0] > 0


def test_a_receiver_that_counts_gets_the_order_it_was_told() -> None:
    stream = [("c", 3), ("a", 1), ("b", 2)]
    assert list(_megatron_bridge.in_order(stream, ["a", "b", "c"])) == [("a", 1), ("b", 2), ("c", 3)]
    for wrong in (["a", "b"], ["a", "b", "c", "d"]):
        with pytest.raises(InvalidInput, match="the receiver"):
            list(_megatron_bridge.in_order(stream, wrong))
    with pytest.raises(InvalidInput, match="or one twice"):
        list(_megatron_bridge.in_order([*stream, ("a", 4)], ["a", "b", "c"]))


def test_what_waits_for_its_turn_is_read_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo RL changes its CUDA stream between two weights; no GPU is here, so streams only say what they are asked."""
    said: list[Any] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def record_event(self) -> str:
            return f"made on {self.name}"

        def wait_event(self, event: str) -> None:
            said.append((self.name, event))

    class Tensor:
        is_cuda, device = True, "cuda:0"

        def record_stream(self, stream: Stream) -> None:
            said.append((stream.name, self))

    first, second = Stream("first"), Stream("second")
    now = [first]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: now[0])
    a, b, c, on_host = Tensor(), Tensor(), Tensor(), torch.ones(1)
    ordered = _megatron_bridge.in_order([("c", c), ("d", on_host), ("a", a), ("b", b)], ["a", "b", "c", "d"])
    assert next(ordered) == ("a", a)
    now[0] = second
    assert [*ordered] == [("b", b), ("c", c), ("d", on_host)]
    assert said == [("second", "made on first"), ("second", c)]


MISSING = ["bridge", "order", "reference"] if os.environ.get("ROUTEPACK_LONG") else ["order"]


@pytest.mark.parametrize("missing", MISSING)
def test_a_hook_that_is_missing_is_seen(missing: str) -> None:
    with pytest.raises(RankFailed):
        run_ranks(nemo_rl_experts_jobs.train_and_refit, RANKS, False, missing)


@pytest.mark.parametrize("checkout", [False, REAL])
def test_a_checkpoint_is_loaded_by_setup_with_experts_where_they_were(checkout: bool, tmp_path: pathlib.Path) -> None:
    made = run_ranks(nemo_rl_experts_jobs.resume, RANKS, checkout, str(tmp_path))
    assert all(one == made[0] for one in made)


@pytest.mark.parametrize("checkout", [False, REAL])
def test_weights_alone_need_no_placement(checkout: bool, tmp_path: pathlib.Path) -> None:
    made = run_ranks(nemo_rl_experts_jobs.resume, RANKS, checkout, str(tmp_path), "alone")
    assert made == [{"epoch": 0}] * RANKS


@pytest.mark.parametrize("missing", ["file", "hooks"] if os.environ.get("ROUTEPACK_LONG") else ["file"])
def test_a_checkpoint_without_its_placement_is_loud(missing: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(RankFailed) as failure:
        run_ranks(nemo_rl_experts_jobs.resume, RANKS, False, str(tmp_path), missing)
    assert failure.value.kind == "PlacementMismatch"


class Workers:
    """All workers of a policy, as the driver sees them."""

    def __init__(self, batch: Batch) -> None:
        home = Placement.identity(layers=batch.layers - 1, experts=batch.experts, ranks=2)
        self.layers = tuple(range(2, batch.layers + 1))  # the first is dense
        self.here = [Where(home.physical_to_logical, 2, 6, "", self.layers)] * RANKS
        self.calls: list[int] = []
        self.fail = ""
        self.rebels = 0

    def call(self, method_name: str, *args: Any, **kwargs: Any) -> list[Where]:
        assert not args  # as NeMo RL's groups want it
        if method_name == "routepack_placement":
            return self.here
        if method_name != "routepack_move":
            raise AttributeError(method_name)
        self.calls.append(kwargs["epoch"])
        if self.fail == "loud":
            raise RuntimeError("MoveFailed: layer 0 is torn")
        if self.fail:
            kept = self.here[0]
            self.here = [Where(kept.maps, kept.ranks, kwargs["epoch"], self.fail, self.layers)] * RANKS
        else:
            self.here = [Where(kwargs["maps"], kwargs["ranks"], kwargs["epoch"], "", self.layers)] * RANKS
        replies = list(self.here)
        away = Where(self.here[0].maps[:, ::-1], 2, kwargs["epoch"], "", self.layers)
        replies[RANKS - self.rebels :] = [away] * self.rebels
        return replies


class Driver:
    """A module with a policy in NeMo RL's shapes, whose workers are here, and RoutePack installed."""

    def __init__(self, **more: Any) -> None:
        self.batch = more.pop("batch", Batch())
        self.cfg = config(self.batch, **more.pop("cfg", {}))
        self.workers = workers = Workers(self.batch)
        self.classes: list[Any] = []
        classes = self.classes

        class Policy(nemo_like.Policy):
            def __init__(
                self, cluster: Any, config: Any, init_optimizer: bool = True, weights_path: Any = None,
                optimizer_path: Any = None, worker_extension_cls_fqn: Any = None,
            ) -> None:  # fmt: skip
                super().__init__(config, RANKS)
                classes.append(worker_extension_cls_fqn)

            def run_all_workers_single_data(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
                return workers.call(method_name, *args, **kwargs)

        batch_kind = type("BatchedDataDict", (nemo_like.BatchedDataDict,), dict(vars(nemo_like.BatchedDataDict)))
        policy = type("Policy", (Policy,), dict(vars(Policy)))  # hooks look into the class itself
        policy._shard_for_train = nemo_like.Policy._shard_for_train  # type: ignore[attr-defined]
        policy._shard_for_logprob = nemo_like.Policy._shard_for_logprob  # type: ignore[attr-defined]
        self.module = types.SimpleNamespace(
            Policy=policy, BatchedDataDict=batch_kind, SlicedDataDict=nemo_like.SlicedDataDict
        )
        own = nemo_rl_moves._OWN
        table = {own: more.pop("python", "uv run --extra mcore")}
        self.registry = types.SimpleNamespace(
            ACTOR_ENVIRONMENT_REGISTRY=table, get_actor_python_env=lambda actor_class_fqn: table[actor_class_fqn]
        )
        self.groups = types.SimpleNamespace(
            create_local_venv_on_each_node=lambda py_executable, venv_name: f"/venvs/{venv_name}/bin/python"
        )
        self.settings = Settings(**{"cost": COST, "mode": "both", "experts": self.batch.experts, **PATIENT, **more})

    def install(self) -> None:
        nemo_rl.install(
            self.settings, policy_module=self.module, data_module=self.module, registry_module=self.registry,
            groups_module=self.groups,
        )  # fmt: skip

    def policy(self, **more: Any) -> Any:
        return self.module.Policy("cluster", self.cfg, **more)

    def data(self) -> Any:
        return self.module.BatchedDataDict(columns(self.batch))

    def train(self, policy: Any) -> Any:
        return policy._shard_for_train(self.data(), self.cfg["train_global_batch_size"])


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> Iterator[Callable[..., Driver]]:
    shared(monkeypatch, planner)
    yield lambda **more: Driver(**more)
    nemo_rl.uninstall()


def rows(shards: Any) -> list[Any]:
    return [(shard["idx"], shard.micro_batch_indices) for shard in shards]


def test_all_workers_move_before_the_first_pass_and_once_per_window(
    driver: Callable[..., Driver], warned: Told
) -> None:
    one = driver()
    one.install()
    policy = one.policy()
    assert one.classes == [nemo_rl_moves.WORKER]
    assert one.registry.ACTOR_ENVIRONMENT_REGISTRY[nemo_rl_moves.WORKER] == f"/venvs/{nemo_rl_moves._OWN}/bin/python"
    policy._shard_for_logprob(one.data())
    one.train(policy)
    session = nemo_rl.session_of(policy)
    assert warned() == [] and one.workers.calls == [7] and session.epoch == 7
    placement = session.last_plans[0].placement
    assert np.array_equal(one.workers.here[0].maps, placement.physical_to_logical)
    assert session.metrics["routepack/fallback"] == 0.0 and session.metrics["routepack/passes"] == 2
    one.batch = Batch(seed=5)
    one.train(policy)
    assert session.epoch == 8 and nemo_rl.session_of(policy, one.settings) is session


def test_moves_alone_leave_the_packing_to_the_framework(driver: Callable[..., Driver], warned: Told) -> None:
    one = driver(mode="placement", python="/usr/bin/python3")
    own = rows(nemo_like.Policy(one.cfg, RANKS)._shard_for_train(one.data(), 16))
    one.install()
    policy = one.policy()
    assert one.registry.ACTOR_ENVIRONMENT_REGISTRY[nemo_rl_moves.WORKER] == "/usr/bin/python3"
    assert rows(one.train(policy)) == own and one.workers.calls == [7] and warned() == []


def test_a_move_that_fails_whole_leaves_the_layout_in_every_pass(driver: Callable[..., Driver], warned: Told) -> None:
    one = driver()
    one.install()
    policy = one.policy()
    one.workers.fail = "no bytes today"
    before = one.workers.here[0].maps
    first, _ = policy._shard_for_logprob(one.data())
    (text,) = warned()
    session = nemo_rl.session_of(policy)
    assert "experts were not moved, the layout is used: no bytes today" in text
    assert session.metrics["routepack/fallback"] == Reason.PLACEMENT and session.metrics["routepack/used"] == 1
    assert np.array_equal(session.current, before) and one.workers.calls == [7]  # type: ignore[arg-type]
    trained = one.train(policy)
    cells = [sorted(sorted(part["idx"][a:b]) for a, b in part.micro_batch_indices[0]) for part in first]
    begins = [part.elem_counts_per_gb[0] for part in trained]
    again = [
        sorted(
            sorted(part["idx"][at * begin + a : at * begin + b])
            for at in range(2)
            for a, b in part.micro_batch_indices[at]
        )
        for part, begin in zip(trained, begins, strict=True)
    ]
    assert cells == again and one.workers.calls == [7] and warned() == []
    one.workers.fail, one.batch = "", Batch(seed=5)
    one.train(policy)
    assert one.workers.calls == [7, 8] and session.epoch == 8


@pytest.mark.parametrize("how", ["an exception", "a worker elsewhere"])
def test_workers_that_are_torn_end_the_job(driver: Callable[..., Driver], how: str) -> None:
    one = driver()
    one.install()
    policy = one.policy()
    if how == "an exception":
        one.workers.fail = "loud"
    else:
        one.workers.rebels = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):  # nor does a second try train on it
            with pytest.raises(Torn, match="layer 0 is torn|worker 3 has experts elsewhere"):
                one.train(policy)


def test_a_placement_of_another_model_leaves_the_step_to_the_framework(
    driver: Callable[..., Driver], warned: Told
) -> None:
    one = driver()
    one.install()
    home = Placement.identity(layers=5, experts=8, ranks=2)
    one.workers.here = [Where(home.physical_to_logical, 2, 0)] * RANKS
    policy = one.policy()
    session = nemo_rl.session_of(policy, one.settings)
    session.resume(None, 0)
    own = rows(nemo_like.Policy(one.cfg, RANKS)._shard_for_train(one.data(), 16))
    assert rows(one.train(policy)) == own and one.workers.calls == []
    (text,) = warned()
    assert "as the policy's workers have them" in text and session.metrics["routepack/fallback"] == Reason.PLACEMENT


def test_policies_that_do_not_train_keep_their_experts_and_their_packing(
    driver: Callable[..., Driver], warned: Told
) -> None:
    one = driver(cfg={"megatron_cfg": {"enabled": False}})
    own = rows(nemo_like.Policy(one.cfg, RANKS)._shard_for_logprob(one.data())[0])
    one.install()
    teacher = one.policy(init_optimizer=False)
    assert rows(teacher._shard_for_logprob(one.data())[0]) == own and one.classes == [None]
    assert one.workers.calls == [] and warned() == []


def test_a_policy_from_before_install_says_so(driver: Callable[..., Driver], warned: Told) -> None:
    one = driver()
    policy = one.policy()
    one.install()
    one.train(policy)
    assert "made before nemo_rl.install" in warned()[0] and one.workers.calls == []


def test_a_worker_class_of_the_users_own_is_kept_and_must_know_how_to_move(driver: Callable[..., Driver]) -> None:
    one = driver()
    one.install()
    one.policy(worker_extension_cls_fqn="mine.Worker")
    assert one.classes == ["mine.Worker"]
    one.workers.call = lambda name, **_: getattr(object(), name)  # type: ignore[method-assign]
    with pytest.raises(InvalidInput, match="inherits from routepack.adapters.nemo_rl_worker"):
        one.policy(worker_extension_cls_fqn="mine.Worker")


def test_an_on_placement_of_the_users_own_moves_and_nothing_else(driver: Callable[..., Driver], warned: Told) -> None:
    seen: list[int] = []
    one = driver(on_placement=lambda placement, epoch: seen.append(epoch))
    one.install()
    policy = one.policy()
    one.train(policy)
    assert seen == [1] and one.workers.calls == [] and one.classes == [None] and warned() == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("megatron_cfg.enabled", False),
        ("megatron_cfg.expert_model_parallel_size", 1),
        ("megatron_cfg.peft.enabled", True),
        ("quant_cfg", "FP8"),
        ("megatron_cfg.optimizer.optimizer_cpu_offload", True),
        ("megatron_cfg.checkpoint.ckpt_assume_constant_structure", True),
        ("generation.backend", "megatron"),
        ("generation.refit_transport", "nccl_reshard"),
        ("generation.refit_transport", "vllm_zmq_sparse"),
    ],
)
def test_what_cannot_move_is_refused_by_the_settings_name(driver: Callable[..., Driver], path: str, value: Any) -> None:
    one = driver()
    one.install()
    nemo_rl_moves.refuse(one.cfg)
    *heads, last = path.split(".")
    held = one.cfg
    for head in heads:
        held = held.setdefault(head, {})
    held[last] = value
    with pytest.raises(InvalidInput, match=path.replace(".", r"\.")):
        one.policy()
    assert one.classes == []


def test_a_framework_without_the_hooks_is_refused(driver: Callable[..., Driver]) -> None:
    one = driver()
    del one.module.Policy.run_all_workers_single_data
    one.module.Policy.__bases__[0].run_all_workers_single_data = None
    with pytest.raises(InvalidInput, match="run_all_workers_single_data: not found"):
        one.install()
    one = driver()
    one.registry.ACTOR_ENVIRONMENT_REGISTRY = None
    with pytest.raises(InvalidInput, match="ACTOR_ENVIRONMENT_REGISTRY"):
        one.install()


def test_a_policy_of_the_framework_is_given_workers_that_move(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """NeMo RL's own `Policy.__init__`, with a group of workers that starts no actor."""
    module = checkouts.nemo_policy()
    registry = importlib.import_module("nemo_rl.distributed.ray_actor_environment_registry")
    groups = importlib.import_module("nemo_rl.distributed.worker_groups")
    batch, classes = Batch(), []
    workers = Workers(batch)

    class Group:
        def __init__(self, cluster: Any, builder: Any, **_: Any) -> None:
            classes.append((builder.ray_actor_class_fqn, registry.get_actor_python_env(builder.ray_actor_class_fqn)))

        def run_all_workers_single_data(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
            return workers.call(method_name, *args, **kwargs)

        def shutdown(self, **_: Any) -> bool:
            return True

    monkeypatch.setattr(module, "RayWorkerGroup", Group)
    monkeypatch.setattr(module, "RayQueue", lambda: None)
    monkeypatch.setattr(module, "ray", types.SimpleNamespace(get=lambda futures: futures))
    monkeypatch.setattr(module, "get_default_hf_config", lambda name: None)
    monkeypatch.setattr(module.FLOPTracker, "from_config", lambda *_: None)
    monkeypatch.setattr(groups, "create_local_venv_on_each_node", functools.wraps(
        groups.create_local_venv_on_each_node
    )(lambda py_executable, venv_name: f"/venvs/{venv_name}/bin/python"))  # fmt: skip
    monkeypatch.setattr(registry, "ACTOR_ENVIRONMENT_REGISTRY", dict(registry.ACTOR_ENVIRONMENT_REGISTRY))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    cfg = config(batch, sequence_packing={
        "enabled": True, "train_mb_tokens": 128, "logprob_mb_tokens": 128, "algorithm": "modified_first_fit_decreasing"
    })  # fmt: skip
    cluster = types.SimpleNamespace(world_size=lambda: RANKS, _sorted_bundle_indices=None)
    nemo_rl.install(Settings(cost=COST, mode="both", experts=batch.experts), policy_module=module)
    try:
        policy = module.Policy(cluster, cfg, None)
        module.Policy(cluster, cfg, None, init_optimizer=False, init_reference_model=False)
        with pytest.raises(InvalidInput, match="megatron_cfg.enabled=false"):
            module.Policy(cluster, {**cfg, "megatron_cfg": {"enabled": False}}, None)
        nemo_rl._move(policy, Placement.from_maps(ranks=2, physical_to_logical=workers.here[0].maps[:, ::-1].copy()), 7)
        nemo_rl.install(Settings(cost=COST, experts=batch.experts), policy_module=module)
        module.Policy(cluster, cfg, None)
        module.Policy(cluster, cfg, None, **saved(tmp_path, away(batch)))
    finally:
        nemo_rl.uninstall()
    own = nemo_rl_moves._OWN
    moving, theirs = (nemo_rl_moves.WORKER, f"/venvs/{own}/bin/python"), (own, registry.get_actor_python_env(own))
    assert classes == [moving, theirs, theirs, moving]
    assert workers.calls == [7] and policy.cfg is cfg


def test_switched_off_workers_still_know_where_a_checkpoint_has_its_experts(
    driver: Callable[..., Driver], warned: Told
) -> None:
    one = driver(enabled=False)
    own = rows(nemo_like.Policy(one.cfg, RANKS)._shard_for_train(one.data(), 16))
    one.install()
    assert rows(one.train(one.policy())) == own and one.classes == [nemo_rl_moves.WORKER]
    one.cfg["quant_cfg"] = "FP8"
    assert rows(one.train(one.policy())) == own and one.classes == [nemo_rl_moves.WORKER, None]
    assert one.workers.calls == [] and warned() == []
    one = driver(enabled=False)
    one.registry.ACTOR_ENVIRONMENT_REGISTRY = None  # nor does a NeMo RL that has no such hooks end anything
    one.install()
    assert rows(one.train(one.policy())) == own and one.classes == [None]


def saved(folder: pathlib.Path, placement: Placement) -> dict[str, str]:
    """What a policy that resumes is given, when a checkpoint was saved under a placement."""
    place = folder / "weights" / "iter_0000000"
    place.mkdir(parents=True)
    save_placement(place, placement, 6)
    torch.save({STAMP: stamp(placement, 6)}, place / "common.pt")
    return {"weights_path": str(folder / "weights"), "optimizer_path": str(folder / "optimizer")}


def away(batch: Batch) -> Placement:
    maps = np.arange(batch.experts, dtype=np.int32)[::-1]
    return Placement.from_maps(ranks=2, physical_to_logical=np.tile(maps, (batch.layers - 1, 1)))


@pytest.mark.parametrize("enabled", [True, False])
def test_a_checkpoint_whose_experts_had_moved_has_workers_that_know_it_in_every_mode(
    driver: Callable[..., Driver], warned: Told, tmp_path: pathlib.Path, enabled: bool
) -> None:
    one = driver(mode="packing", enabled=enabled)
    there = away(one.batch)
    one.workers.here = [Where(there.physical_to_logical, 2, 6, "", one.workers.layers)] * RANKS
    one.install()
    policy = one.policy(**saved(tmp_path, there))
    assert one.classes == [nemo_rl_moves.WORKER]
    one.train(policy)
    session = nemo_rl.session_of(policy)
    assert np.array_equal(session.current, there.physical_to_logical)  # type: ignore[arg-type]
    assert session.metrics["routepack/fallback"] == (Reason.NONE if enabled else Reason.OFF)
    if enabled:
        assert session.last_plans[0].placement == there
    assert warned() == [] and one.workers.calls == []


def test_other_checkpoints_have_workers_of_the_frameworks_own(
    driver: Callable[..., Driver], warned: Told, tmp_path: pathlib.Path
) -> None:
    one = driver(mode="packing")
    home = Placement.identity(layers=one.batch.layers - 1, experts=one.batch.experts, ranks=2)
    at_home, moved = saved(tmp_path / "home", home), saved(tmp_path / "moved", away(one.batch))
    before = saved(tmp_path / "before", away(one.batch))
    inside = tmp_path / "before" / "weights" / "iter_0000000"
    (inside / "routepack-placement.json").unlink()
    torch.save({"iteration": 1}, inside / "common.pt")
    one.install()
    for more in (
        {}, at_home, before, {"weights_path": str(tmp_path / "none"), "optimizer_path": "x"},
        {**moved, "optimizer_path": None}, {**moved, "init_optimizer": False},
    ):  # fmt: skip
        one.train(one.policy(**more))
    assert one.classes == [None] * 6 and warned() == []


@pytest.mark.parametrize("mode", ["packing", "both"])
@pytest.mark.parametrize("broken", ["quant_cfg", "registry", "file", "torn file", "class"])
def test_a_checkpoint_whose_experts_had_moved_is_refused_without_such_workers(
    driver: Callable[..., Driver], tmp_path: pathlib.Path, broken: str, mode: str
) -> None:
    one = driver(mode=mode, enabled=False)
    more, words = saved(tmp_path, away(one.batch)), "experts that had moved"
    file = tmp_path / "weights" / "iter_0000000" / "routepack-placement.json"
    if broken in ("quant_cfg", "file", "torn file"):
        one.cfg["quant_cfg"] = "FP8"
    if broken == "registry":
        one.registry.ACTOR_ENVIRONMENT_REGISTRY = None
    if broken == "file":
        file.unlink()
        words = "saved with one"
    if broken == "torn file":
        file.write_text(file.read_text()[:40])
        words = "routepack-placement.json"
    if broken == "class":
        one.workers.call = lambda name, **_: getattr(object(), name)  # type: ignore[method-assign]
        more["worker_extension_cls_fqn"], words = "mine.Worker", "inherits from routepack.adapters.nemo_rl_worker"
    one.install()
    with pytest.raises(InvalidInput, match=words) as refusal:
        one.policy(**more)
    assert "\n" not in str(refusal.value) and "mode='packing'" not in str(refusal.value)
    assert one.classes == (["mine.Worker"] if broken == "class" else [])
