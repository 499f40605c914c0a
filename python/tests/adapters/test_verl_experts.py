# SPDX-License-Identifier: Apache-2.0
"""Experts of verl's workers move: asked and told by its trainer, followed by weight sync, checkpoints and copies.

The driver's part runs everywhere, in verl's shapes. The workers' part needs verl, mbridge and Megatron-Core: four
processes over gloo, EP 2 × EDP 2, are started once for all tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transfer.processes import run_ranks  # noqa: E402

from routepack import InvalidInput, Placement  # noqa: E402
from routepack.adapters import PlannerProcess, Reason, Settings, verl, verl_experts, verl_worker  # noqa: E402
from routepack.transfer.checkpoint import placement_path  # noqa: E402

from .batches import PATIENT, Batch  # noqa: E402
from .conftest import shared  # noqa: E402

#: so that it pays to move experts
COST = 'expert = 100.0\n\n[[stage]]\nname = "full"\nalpha = 1.0\nbeta = 1.0\n'
RANKS = 4
LONG = bool(os.environ.get("ROUTEPACK_LONG"))
BATCH = Batch()
HOME = Placement.identity(layers=2, experts=8, ranks=2)
SWAPPED = Placement.from_maps(ranks=2, physical_to_logical=HOME.physical_to_logical[:, ::-1].copy())
Told = Callable[[], list[str]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each rank found; one after the other in the same processes."""
    for name in ("verl", "mbridge", "megatron", "safetensors"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"no {name}: experts did NOT move in verl's own workers")
    from . import bridge_source
    from . import verl_experts_jobs as jobs

    checkout = bool(os.environ.get(bridge_source.FOLDER))  # else in its shapes
    return run_ranks(jobs.everything, RANKS, str(tmp_path_factory.mktemp("verl")), checkout)


def test_a_rollout_engine_gets_the_same_weights_wherever_experts_are(ranks: Any) -> None:
    """After each move and each step, name by name and bit by bit; so does a saved model, and a reference model and the
    actor of before give their log-probabilities."""
    for rank in ranks:
        assert rank["moved"]["compared"] == 51 and rank["moved"]["differ"] > 0  # without the names it would not


def test_an_engine_with_megatron_bridge_sends_the_same_too(ranks: Any) -> None:
    assert all(rank["other bridge"] >= 2 * 8 * 2 for rank in ranks)


def test_a_fresh_actor_goes_on_from_a_checkpoint_under_its_placement(ranks: Any) -> None:
    for rank in ranks:
        for how in ("resumed", "resumed without asking", "resumed by name"):
            assert rank[how] == {"epoch": 2, "saved": 51}


def test_a_checkpoint_with_names_is_loaded_with_another_expert_parallel_size(ranks: Any) -> None:
    assert all(rank["on other ranks"] == [0, -1] for rank in ranks)


def test_what_cannot_move_says_why_and_a_lost_placement_is_loud(ranks: Any) -> None:
    for rank in ranks:
        lora, qat, frozen, lost = rank["refused"]
        assert "LoRA" in lora and "qat.enable" in qat and "without an optimizer" in frozen
        assert "found no file, wanted the placement" in lost


def test_verls_trainer_moves_all_ranks_and_trains_as_without(ranks: Any) -> None:
    driven, own = ranks[0]["driven"], ranks[0]["own"]
    home, first, second, third = (
        HOME.physical_to_logical.tolist(),
        *(step["where"][0] for step in driven["steps"]),
    )
    for step in driven["steps"]:
        assert len(step["where"]) == RANKS and all(where == step["where"][0] for where in step["where"])
    assert first[0] != home and third[0] != first[0]
    assert [first[1], second[1], third[1]] == [1, 2, 3] and driven["epoch"] == 3
    for step, other in zip(driven["steps"], own["steps"], strict=True):
        assert step["loss"] == pytest.approx(other["loss"], rel=1e-5)
        for made in (step, other):
            assert sorted(i for rank in made["cells"] for cell in rank for i in cell) == list(range(24))
            assert len({len(rank) for rank in made["cells"]}) == 1
        assert step["cells"] != other["cells"]  # also of the step whose experts did not move


def test_a_move_that_a_rank_refuses_leaves_a_step_on_its_layout_with_one_warning(ranks: Any) -> None:
    first, second, third = ranks[0]["driven"]["steps"]
    assert second["where"][0][0] == first["where"][0][0]
    assert second["metrics"]["routepack/fallback"] == Reason.PLACEMENT and second["metrics"]["routepack/used"] == 1.0
    assert third["metrics"]["routepack/fallback"] == 0.0 and third["metrics"]["routepack/ms_moves"] > 0.0
    assert [len(said) for said in ranks[0]["driven"]["warnings"]] == [0, 1, 0]
    assert "no bytes today" in ranks[0]["driven"]["warnings"][1][0]


@pytest.mark.parametrize("hooks", [True, pytest.param(False, marks=pytest.mark.skipif(not LONG, reason="long"))])
def test_calls_reach_verls_workers_on_ray_and_failures_come_back(hooks: bool) -> None:
    """By verl's own worker group, with colocated workers, as processes of their own."""
    for name in ("verl", "ray"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"no {name}: no call went through verl's worker group")
    script = pathlib.Path(__file__).with_name("verl_ray_workers.py")
    done = subprocess.run(
        [sys.executable, str(script), *(["hooks"] if hooks else [])], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.strip().splitlines()[-1])
    heard = said["moves"]
    if not hooks:
        assert len(heard) == 1 and "wanted VERL_USE_EXTERNAL_MODULES" in heard[0]
        assert [text[-1] for text in said["cuts"]] == ["'"] * 3 and "no attribute 'routepack_obeys'" in said["cuts"][0]
        return
    all_do, without_hook, without_method = said["cuts"]
    assert all_do == "" and "rank 1, " in without_hook and "rearrange_micro_batches is verl's own" in without_hook
    assert "no attribute 'routepack_obeys'" in without_method and "\n" not in without_method
    start, moved, stayed, torn = heard
    assert start is True and moved == [True, 1, []]
    assert stayed == [True, 2, ["no room", [SWAPPED.physical_to_logical.tolist(), 2]]]
    assert "RuntimeError" in torn and "layer 1 is torn" in torn


# The driver, in verl's shapes.


def get_seqlen_balanced_partitions(samples: int) -> list[int]:
    return list(range(samples))


class Rows:
    """`DataProto` as far as the adapter asks."""

    def __init__(self) -> None:
        lengths, width = BATCH.lengths(), max(BATCH.lengths())
        mask = torch.zeros(BATCH.samples, width, dtype=torch.long)
        routes = torch.zeros(BATCH.samples, width, BATCH.layers, BATCH.top_k, dtype=torch.int16)
        for i, (length, ids) in enumerate(zip(lengths, BATCH.routes(), strict=True)):
            mask[i, :length] = 1
            routes[i, : length - 1] = torch.from_numpy(ids).to(torch.int16)
        self.batch = {"attention_mask": mask, "input_ids": mask.cumsum(1), "routed_experts": routes}
        self.non_tensor_batch: dict[str, Any] = {}
        self.order = list(range(BATCH.samples))

    def reorder(self, order: Any) -> None:
        self.batch = {name: rows[order] for name, rows in self.batch.items()}
        self.order = order.tolist()


class Group:
    """A worker group; each method answers for all ranks."""

    def __init__(self, move: Callable[[Any, int], Any] | None = None, **answers: Any) -> None:
        self._dispatch_info = {"actor": list(range(RANKS))}
        self.at: tuple[Placement, int] = (HOME, 0)
        self.calls: list[str] = []
        self.asked = 0
        self._move = move
        for name, answer in answers.items():
            setattr(self, name, answer)

    def routepack_obeys(self) -> list[str]:
        self.asked += 1
        return [""] * RANKS

    def routepack_placement(self, attach: bool = True) -> list[Any]:
        self.calls.append("attach" if attach else "ask")
        return [(*self.at, "")] * RANKS

    def routepack_move(self, placement: Placement, epoch: int) -> list[Any]:
        self.calls.append("move")
        if self._move is not None:
            made: list[Any] = self._move(placement, epoch)
            return made
        self.at = (placement, epoch)
        return [(placement, epoch, "")] * RANKS


class Trainer:
    """verl's trainer as far as it is hooked."""

    def __init__(self, group: Any, **actor: Any) -> None:
        megatron = {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1, "tensor_model_parallel_size": 1}
        self.config: Any = types.SimpleNamespace(
            actor_rollout_ref=types.SimpleNamespace(
                model={},
                rollout={"n": 4},
                actor=types.SimpleNamespace(
                    strategy="megatron",
                    ppo_mini_batch_size=BATCH.samples // 4,
                    ppo_max_token_len_per_gpu=128,
                    use_dynamic_bsz=True,
                    megatron=megatron,
                ),
            )
        )
        vars(self.config.actor_rollout_ref.actor).update(actor)
        self.actor_rollout_wg = group
        self.loaded = False

    def _load_checkpoint(self) -> None:
        self.loaded = True

    def _balance_batch(self, batch: Any, metrics: Any) -> None:
        batch.reorder(torch.tensor(get_seqlen_balanced_partitions(BATCH.samples)))

    def _compute_old_log_prob(self, batch: Any) -> None: ...

    def _compute_ref_log_prob(self, batch: Any) -> None: ...

    def _update_actor(self, batch: Any) -> None: ...


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    verl.uninstall()


def hooked(group: Any, mode: str = "both", *, settings: dict[str, Any] | None = None, **actor: Any) -> Any:
    cls = type("Trainer", (Trainer,), dict(vars(Trainer)))
    chosen = Settings(cost=COST, mode=mode, experts=BATCH.experts, **PATIENT, **(settings or {}))
    verl.install_trainer(cls, chosen)
    return cls(group, **actor)


def balanced(trainer: Any) -> tuple[Rows, dict[str, Any]]:
    rows = Rows()
    metrics: dict[str, Any] = {}
    trainer._balance_batch(rows, metrics)
    return rows, metrics


def test_the_driver_asks_plans_from_there_and_tells_all_workers(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess
) -> None:
    shared(monkeypatch, planner)
    group = Group()
    trainer = hooked(group)
    trainer._load_checkpoint()
    assert group.calls == ["attach"] and trainer.loaded
    group.at = (SWAPPED, 6)  # as after a checkpoint was loaded
    rows, metrics = balanced(trainer)
    assert group.calls == ["attach", "attach", "move"] and group.at[1] == 7
    assert metrics["routepack/fallback"] == 0.0 and metrics["routepack/ms_moves"] >= 0.0
    assert 0.0 < metrics["routepack/moved_fraction"] < 0.9  # sticky: counted from home it would be nearly all of them
    assert rows.order != list(range(BATCH.samples))
    session: Any = verl.session_of(trainer)
    assert session.epoch == 7 and np.array_equal(session.current, group.at[0].physical_to_logical)


def test_a_plan_that_keeps_experts_calls_nobody(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> None:
    shared(monkeypatch, planner)
    group = Group()
    trainer = hooked(group)
    first, _ = balanced(trainer)
    for _ in range(3):  # the same batch: sooner or later it is where it wants to be
        _, metrics = balanced(trainer)
    assert metrics["routepack/moved_experts"] == 0.0 and metrics["routepack/fallback"] == 0.0
    assert group.calls[-1] == "attach" and group.calls[:2] == ["attach", "move"]


def test_placement_alone_moves_and_leaves_the_order(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> None:
    shared(monkeypatch, planner)
    group = Group()
    rows, metrics = balanced(hooked(group, "placement"))
    assert group.calls == ["attach", "move"] and group.asked == 0 and metrics["routepack/fallback"] == 0.0
    assert rows.order == list(range(BATCH.samples))


def test_a_move_that_failed_whole_is_warned_about_and_followed(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    shared(monkeypatch, planner)
    group = Group(lambda placement, epoch: [(HOME, epoch, "no room")] * RANKS)
    trainer = hooked(group)
    rows, metrics = balanced(trainer)
    assert metrics["routepack/fallback"] == Reason.PLACEMENT and metrics["routepack/used"] == 1.0
    assert rows.order != list(range(BATCH.samples))  # the layout is in use
    assert len(said := warned()) == 1 and "experts were not moved" in said[0] and "no room" in said[0]
    session: Any = verl.session_of(trainer)
    assert np.array_equal(session.current, HOME.physical_to_logical)


def torn(placement: Any, epoch: int) -> Any:
    raise RuntimeError("layer 3 is torn")


def broken(placement: Any, epoch: int) -> Any:
    raise AttributeError("in routepack_move\nAttributeError: 'NoneType' object has no attribute 'moves'")


@pytest.mark.parametrize(
    ("move", "text"),
    [
        (torn, "layer 3 is torn"),
        (broken, "^in routepack_move"),
        (lambda placement, epoch: [(placement, epoch, "")] * 3 + [(SWAPPED, epoch, "")], "ranks disagree"),
        (lambda placement, epoch: [(placement, epoch, "")] * 3 + [(placement, epoch, "no room")], "ranks disagree"),
        (lambda placement, epoch: [(SWAPPED, epoch, "")] * RANKS, "found experts at epoch"),
    ],
)
def test_a_move_after_which_training_cannot_go_on_ends_the_job(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, move: Any, text: str
) -> None:
    shared(monkeypatch, planner)
    trainer = hooked(Group(move))
    with pytest.raises(Exception, match=text):
        balanced(trainer)


def test_a_plan_that_fails_moves_nothing(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    shared(monkeypatch, planner)
    group = Group()
    rows, metrics = balanced(hooked(group, shuffle=True))
    assert metrics["routepack/fallback"] == Reason.UNSUPPORTED and group.calls == ["attach"] and len(warned()) == 1
    group = Group()
    group.at = (Placement.identity(layers=3, experts=8, ranks=2), 0)  # another number of layers than routes have
    rows, metrics = balanced(hooked(group))
    assert metrics["routepack/fallback"] > Reason.OFF and group.calls == ["attach"]
    assert rows.order == list(range(BATCH.samples)) and len(warned()) == 1


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (types.SimpleNamespace(_dispatch_info={}), "has no method routepack_placement"),
        (Group(routepack_placement=lambda: [(None, 0, "rank 0: no experts here")] * RANKS), "no experts here"),
        (Group(routepack_placement=lambda: [(HOME, 0, "")] * 3 + [(HOME, 1, "")]), "ranks disagree"),
        (Group(routepack_placement=lambda: []), "no worker said"),
    ],
)
def test_workers_that_cannot_move_end_the_start(group: Any, text: str) -> None:
    trainer = hooked(group)
    with pytest.raises((InvalidInput, verl_experts.RanksDisagree), match=text):
        trainer._load_checkpoint()
    assert not trainer.loaded


def test_workers_without_hooks_end_the_start_with_what_is_missing() -> None:
    def call() -> Any:
        raise AttributeError("'ActorRolloutRefWorker' object has no attribute 'routepack_placement'")

    with pytest.raises(InvalidInput, match="VERL_USE_EXTERNAL_MODULES"):
        hooked(Group(routepack_placement=call))._load_checkpoint()


def test_a_mover_of_the_user_keeps_the_adapter_out(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> None:
    shared(monkeypatch, planner)
    moved: list[int] = []
    group = Group()
    trainer = hooked(group, settings={"on_placement": lambda placement, epoch: moved.append(epoch)})
    trainer._load_checkpoint()
    balanced(trainer)
    assert moved == [1] and group.calls == [] and group.asked == 1


def test_packing_alone_moves_nothing_and_knows_of_a_checkpoint_that_did(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess
) -> None:
    shared(monkeypatch, planner)
    group = Group()
    group.at = (SWAPPED, 3)
    trainer = hooked(group, "packing")
    trainer._load_checkpoint()
    _, metrics = balanced(trainer)
    assert group.calls == ["ask"] and metrics["routepack/fallback"] == 0.0
    session: Any = verl.session_of(trainer)
    assert np.array_equal(session.current, SWAPPED.physical_to_logical)
    knows_nothing = types.SimpleNamespace(
        _dispatch_info={"actor": list(range(RANKS))}, routepack_obeys=lambda: [""] * RANKS
    )
    nobody = hooked(knows_nothing, "packing")
    nobody._load_checkpoint()
    assert balanced(nobody)[1]["routepack/fallback"] == 0.0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"actor": {"strategy": "fsdp2"}}, "actor.strategy=fsdp2"),
        ({"actor": {"strategy": "veomni"}}, "wanted megatron"),
        ({"model": {"lora_rank": 8}}, "model.lora_rank=8"),
        ({"model": {"lora": {"rank": 8}}}, "model.lora.rank=8"),
        ({"model": {"lora_adapter_path": "a"}}, "lora_adapter_path"),
        ({"actor": {"strategy": "megatron", "megatron": {"use_megatron_fsdp": True}}}, "use_megatron_fsdp"),
        ({"actor": {"strategy": "megatron", "megatron": {"qat": {"enable": True}}}}, "qat.enable"),
        ({"rollout": {"checkpoint_engine": {"backend": "delta_sharded"}}}, "delta_sharded compares"),
    ],
)
def test_what_cannot_move_is_refused_by_the_settings_name(change: dict[str, Any], text: str) -> None:
    config = {"actor": {"strategy": "megatron"}, "model": {"lora_rank": 0}, "rollout": {}, **change}
    with pytest.raises(InvalidInput, match=text):
        verl_worker.refuse_settings(config)
    verl_worker.refuse_settings({"actor": {"strategy": "megatron", "megatron": {}}, "model": {}})


def test_a_checkpoint_with_moved_experts_is_refused_where_quantizers_number_them(tmp_path: pathlib.Path) -> None:
    """Of a trainer that moves nothing as well: its settings are not asked."""
    pytest.importorskip("megatron.core", reason="no Megatron-Core: NOT run")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model[0].weight_quantizer = torch.nn.Identity()
    manager = types.SimpleNamespace(model=[model], optimizer=object(), vanilla_bridge=True)
    verl_worker._restore(manager, str(tmp_path))  # made without RoutePack
    SWAPPED.save(placement_path(tmp_path))
    with pytest.raises(InvalidInput, match="found quantizers"):
        verl_worker._restore(manager, str(tmp_path))


def test_another_verl_is_refused_by_what_is_missing() -> None:
    class MegatronCheckpointManager:
        def load_checkpoint(self, local_path: str) -> None: ...

    module = types.SimpleNamespace(
        MegatronCheckpointManager=MegatronCheckpointManager,
        get_optimizer_dist_checkpoint_path=lambda checkpoint_path: "",
    )
    with pytest.raises(InvalidInput, match="_build_optimizer_state_dict: not found"):
        verl_worker.install_checkpoints(module)
    with pytest.raises(InvalidInput, match="init_model: not found"):
        verl_worker.install_methods(types.SimpleNamespace(ActorRolloutRefWorker=type("W", (), {})))
    cls = type(
        "Trainer", (Trainer,), {name: value for name, value in vars(Trainer).items() if name != "_load_checkpoint"}
    )
    bare = type("Bare", (), {name: value for name, value in vars(cls).items() if not name.startswith("__")})
    with pytest.raises(InvalidInput, match="_load_checkpoint: not found"):
        verl.install_trainer(bare, Settings(cost=COST, mode="both"))
    verl.install_trainer(bare, Settings(cost=COST))


def test_the_module_that_verl_imports_ends_a_start_with_wrong_settings_or_moves_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROUTEPACK_COST", COST)
    finders = list(sys.meta_path)
    try:
        from routepack.adapters import verl_auto

        other = types.ModuleType("verl.trainer.ppo.ray_trainer")
        other.RayPPOTrainer = type("RayPPOTrainer", (), {})  # type: ignore[attr-defined]

        def hook(module: Any) -> None:
            verl.install_trainer(module.RayPPOTrainer)

        verl_auto._quietly(hook, other)
        monkeypatch.setenv("ROUTEPACK_MODE", "both")
        verl_auto._quietly(hook, other)  # as workers import it
        with pytest.raises(InvalidInput, match="_balance_batch"):
            other.RayPPOTrainer()
        for name, wrong in (("MODE", "bogus"), ("DEADLINE_MS", "soon"), ("EFFORT", "turbo")):
            monkeypatch.setenv("ROUTEPACK_MODE", "packing")
            monkeypatch.setenv(f"ROUTEPACK_{name}", wrong)
            verl.uninstall()
            other.RayPPOTrainer()
            verl_auto._quietly(hook, other)
            with pytest.raises(InvalidInput, match=f"{name.lower()}: found '{wrong}'"):
                other.RayPPOTrainer()
            monkeypatch.delenv(f"ROUTEPACK_{name}")
    finally:
        sys.meta_path[:] = finders


# Names in mbridge, in its shapes.


class Bridge:
    """mbridge's Bridge as far as it counts experts: exports one by one or in a stack, loads the same."""

    mpu = types.SimpleNamespace(ep_rank=1)
    stacked = True

    def __init__(self) -> None:
        self.buffer: dict[str, dict[int, Any]] = {}

    def _weight_name_mapping_mcore_local_to_global(self, model: Any, consider_ep: bool = True) -> dict[str, str]:
        first = 4 * self.mpu.ep_rank if consider_ep else 0
        return {f"decoder.layers.0.mlp.experts.linear_fc1.weight{i}": name(first + i) for i in range(4)}

    def _weight_to_hf_format(self, mcore_weights_name: str, mcore_weights: Any) -> tuple[list[str], list[Any]]:
        key, number = mcore_weights_name.split(".weight")
        if not self.stacked or "experts" not in key:
            return [f"hf.{mcore_weights_name}"], [mcore_weights]
        held = self.buffer.setdefault(key, {})
        held[int(number)] = mcore_weights
        if len(held) < 8:
            return [], []
        del self.buffer[key]
        return [key], [[held[e] for e in range(8)]]

    def _weight_to_mcore_format(self, mcore_weights_name: str, hf_weights: list[Any]) -> Any:
        if not self.stacked:
            return hf_weights[0]
        return hf_weights[0][int(mcore_weights_name.split(".weight")[-1]) + 4 * self.mpu.ep_rank]

    def export_weights(self, models: Any) -> Iterator[tuple[str, Any]]:
        for slot in range(8):
            yield from zip(*self._weight_to_hf_format(name(slot), models[0].held[slot]), strict=True)

    def save_weights(self, models: Any, path: str) -> dict[str, Any]:
        return dict(self.export_weights(models))

    def load_weights(self, models: Any, weights: Any) -> dict[str, Any]:
        """@returns what goes into each local parameter"""
        named = self._weight_name_mapping_mcore_local_to_global(models[0])
        if self.stacked:
            return {local: self._weight_to_mcore_format(local, [weights]) for local in named}
        return {local: self._weight_to_mcore_format(local, [weights[to]]) for local, to in named.items()}


def name(number: int) -> str:
    return f"decoder.layers.3.mlp.experts.linear_fc1.weight{number}"


@pytest.fixture
def mbridge(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[type, Any]]:
    """The hooked class, and a model that holds expert e as e in the slot that a placement says."""
    from routepack.adapters import _mbridge, experts
    from routepack.transfer import ExpertNames

    cls = type("Bridge", (Bridge,), dict(vars(Bridge)))
    model = torch.nn.Module()
    maps = np.array([[5, 0, 7, 2, 1, 6, 3, 4]], dtype=np.int32)
    shown = Placement.from_maps(ranks=2, physical_to_logical=maps)
    model.held = maps[0].tolist()
    names = ExpertNames(shown, layers=[3])
    known = types.SimpleNamespace(
        placement=shown, shown=shown, logical_name=lambda text: names.to_logical(text, everywhere=True)
    )
    monkeypatch.setattr(experts, "of_model", lambda chunks: known if chunks[0] is model else None)
    _mbridge.uninstall()
    _mbridge.install(bridge=cls)
    yield cls, model
    _mbridge.uninstall()


@pytest.mark.parametrize("stacked", [False, True])
def test_mbridge_says_experts_on_the_way_out_and_in(mbridge: Any, stacked: bool) -> None:
    cls, model = mbridge
    bridge = cls()
    bridge.stacked = stacked
    wanted: dict[str, Any] = {"decoder.layers.3.mlp.experts.linear_fc1": list(range(8))}
    if not stacked:
        wanted = {f"hf.{name(e)}": e for e in range(8)}
    assert dict(bridge.export_weights([model])) == bridge.save_weights([model], "") == wanted
    weights: Any = list(range(8)) if stacked else {name(e): e for e in range(8)}
    assert list(bridge.load_weights([model], weights).values()) == model.held[4:]  # of the second rank's slots
    other = types.SimpleNamespace(held=list(range(8)))  # a model at home, that was never attached
    assert dict(bridge.export_weights([other])) == wanted
    assert list(bridge.load_weights([other], weights).values()) == [4, 5, 6, 7]
    assert not {key for key in vars(bridge) if key.startswith("_weight")}


def test_an_export_that_nobody_finished_leaves_nothing_behind(mbridge: Any) -> None:
    cls, model = mbridge
    bridge = cls()
    bridge.stacked = False
    begun = bridge.export_weights([model])
    next(begun)
    later = bridge.export_weights([model])
    next(later)
    begun.close()
    assert dict(later) == {f"hf.{name(e)}": e for e in range(8) if e != model.held[0]}
    assert not {key for key in vars(bridge) if key.startswith("_weight")}
