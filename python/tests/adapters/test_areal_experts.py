# SPDX-License-Identifier: Apache-2.0
"""Experts move inside AReaL's Megatron engines: asked by AReaL's own controller through its RPC servers, trained on,
sent to the rollout engine, exported, loaded and saved, on four processes over gloo, EP 2 × EDP 2. And what the
controller's and the workers' halves do in AReaL's shapes, where there is no AReaL."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pathlib
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from transfer.processes import run_ranks  # noqa: E402

from routepack import InvalidInput, Placement  # noqa: E402
from routepack.adapters import PlannerProcess, Reason, Settings, areal, areal_experts, areal_mover  # noqa: E402
from routepack.transfer.checkpoint import save_placement  # noqa: E402

from . import areal_experts_jobs as jobs  # noqa: E402
from .conftest import shared  # noqa: E402
from .experts_jobs import COST  # noqa: E402

AREAL = importlib.util.find_spec("areal") is not None
MBRIDGE = importlib.util.find_spec("mbridge") is not None
HOME = Placement.identity(layers=2, experts=8, ranks=2)
AWAY = Placement.from_maps(ranks=2, physical_to_logical=np.tile(np.arange(8, dtype=np.int32)[::-1], (2, 1)))


def need_areal() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of all the packages for GPUs that Megatron does without
        pytest.importorskip("megatron.core", reason="no Megatron-Core: experts did NOT move in the real thing")
    if not AREAL:
        pytest.skip("no AReaL: experts did NOT move in the real thing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("areal")


@pytest.fixture(scope="module")
def trained(folder: pathlib.Path) -> dict[str, Any]:
    """By actors that stay, by actors that move, and by actors that train on plans and move; on the first rank."""
    need_areal()
    made: dict[str, Any] = run_ranks(jobs.train, jobs.RANKS, str(folder))[0]
    return made


@pytest.fixture(scope="module")
def resumed(folder: pathlib.Path, trained: dict[str, Any]) -> dict[str, Any]:
    (folder / "done").unlink()
    made: dict[str, Any] = run_ranks(jobs.resume, jobs.RANKS, str(folder))[0]
    return made


def test_moved_actors_send_the_weights_of_actors_that_stay(trained: dict[str, Any]) -> None:
    placements = trained["placements"]
    assert placements[0] == HOME.physical_to_logical.tolist()
    assert all(one != other for one, other in zip(placements, placements[1:], strict=False)), "nothing moved"
    tensors = 2 * 8 * 3 + 2 + 1  # of two layers: experts and router; the embedding
    assert trained["exports"] in (0, jobs.STEPS)
    syncs, exports = 2 * jobs.STEPS + 1, trained["exports"] + bool(trained["exports"])
    assert trained["compared"] == tensors * (syncs + exports)


def test_a_hook_that_is_missing_on_one_rank_is_seen(trained: dict[str, Any]) -> None:
    assert trained["missed"] == ["weight sync", *["export"] * MBRIDGE]


def test_plans_pack_and_move_together(trained: dict[str, Any]) -> None:
    assert trained["metrics"]["routepack/fallback"] == 0.0 and trained["metrics"]["routepack/fallbacks"] == 0.0
    assert trained["metrics"]["routepack/steps"] == jobs.STEPS and trained["metrics"]["routepack/used"] == 1.0
    assert trained["packed"] != HOME.physical_to_logical.tolist()


def test_workers_say_through_their_servers_whether_they_have_the_hook(trained: dict[str, Any]) -> None:
    assert trained["asked"] == ""
    assert "EngineCallError" in trained["refused"] and areal.HOOK in trained["refused"]
    assert "does not have method" in trained["refused"]


def test_a_reference_model_has_no_experts_that_move(trained: dict[str, Any]) -> None:
    assert trained["reference"] == []  # its log-probs were compared in the job


@pytest.mark.skipif(not MBRIDGE, reason="no mbridge: AReaL's export to Hugging Face did NOT run with moved experts")
def test_hugging_face_gets_and_gives_experts_by_their_numbers(trained: dict[str, Any]) -> None:
    assert trained["exports"] == jobs.STEPS
    # Formats that stack all experts of a layer: out, and in again, for which experts go home.
    assert trained["stacked"] == (2 * 2 + 2 + 1) + (2 * 8 * 3 + 2 + 1)


def test_fresh_workers_go_on_where_the_checkpoint_has_experts(resumed: dict[str, Any]) -> None:
    assert resumed["kept"] == jobs.STEPS - 1 and resumed["epoch"] == jobs.STEPS


def test_a_move_that_is_refused_leaves_a_step_with_one_warning(resumed: dict[str, Any]) -> None:
    assert resumed["metrics"]["routepack/fallback"] == Reason.PLACEMENT
    assert len(resumed["warnings"]) == 1 and "no bytes today" in resumed["warnings"][0]
    assert resumed["stayed"] and resumed["moved"] and resumed["followed"]


def test_lost_experts_and_a_lost_placement_end_the_job(resumed: dict[str, Any]) -> None:
    assert resumed["torn"].startswith("ExpertsLost") and "a layer is torn" in resumed["torn"]
    assert "found no file, wanted the placement" in resumed["missing"]


class Controller:
    """As much of AReaL's as a mover asks: all workers are called, the first of each data-parallel rank gets data."""

    def __init__(self) -> None:
        self.parallel_strategy = types.SimpleNamespace(dp_size=2)
        self.workers_is_dp_head = [True, False, True, False]
        self.where, self.epoch, self.asked = [HOME, HOME], 0, []  # type: ignore[var-annotated]
        self.says: Any = ""

    def _call_workers(self, method: str, arguments: Any, more: Any, rpc_meta: Any) -> list[Any]:
        (what, message) = ([split[0] for split in arguments][i] for i in (0, 1))
        assert method == areal_experts.METHOD and all(len(split) == 2 for split in arguments) and not more
        self.asked.append(what)
        if isinstance(self.says, Exception):
            raise self.says
        if what == "move":
            placement, self.epoch, _ = areal_experts.placement_of(message)
            self.where = self.where if self.says else [placement, placement]
        said = [areal_experts.message_of(p.physical_to_logical, p.ranks, self.epoch, self.says) for p in self.where]
        return [said[0], None, said[1], None]


class Session:
    """As much of a session as a mover tells."""

    def __init__(self) -> None:
        self.current: Any = None
        self.epoch, self.metrics, self.told = 0, {}, []  # type: ignore[var-annotated]

    def resume(self, maps: Any, epoch: int, *, keep_plan: bool = False) -> None:
        self.current, self.epoch = maps, epoch
        self.told.append(("resume", maps.tolist(), epoch, keep_plan))

    def not_moved(self, text: str) -> None:
        self.told.append(("not moved", text))


@pytest.fixture
def asked() -> tuple[Controller, Any, Any]:
    controller, session = Controller(), Session()
    return controller, areal_mover.Mover(controller, lambda call, *a, **k: call(*a, **k)), session


def test_all_workers_move_in_one_call_when_their_model_is_next(asked: Any) -> None:
    controller, mover, session = asked
    mover.follow(session, "window")
    assert session.told == [("resume", HOME.physical_to_logical.tolist(), 0, False)]
    mover.note(AWAY, 1)
    mover.follow(session, "window")  # another pass
    assert controller.asked == ["attach"]
    mover.move(session)
    mover.move(session)
    assert controller.asked == ["attach", "move"] and controller.where == [AWAY, AWAY]
    assert mover.placement == AWAY and mover.epoch == 1 and len(session.told) == 1
    session.epoch, session.current = 1, AWAY.physical_to_logical
    mover.follow(session, "next")
    assert len(session.told) == 1
    mover.note(HOME, 2)
    mover.follow(session, "one more")  # whose plan was never needed: nothing is moved to it
    mover.move(session)
    assert controller.asked == ["attach", "move"]


def test_a_failed_move_is_told_and_the_next_window_starts_from_where_experts_are(asked: Any) -> None:
    controller, mover, session = asked
    mover.follow(session, "window")
    mover.note(AWAY, 1)
    session.epoch, session.current, session.told = 1, AWAY.physical_to_logical, []
    controller.says = "no bytes today"
    mover.move(session)
    assert session.told == [("not moved", "no bytes today"), ("resume", HOME.physical_to_logical.tolist(), 1, True)]
    controller.says = ""
    controller.where, controller.epoch = [AWAY, AWAY], 7  # a checkpoint was loaded
    mover.ask()
    mover.follow(session, "window")
    assert session.told[-1] == ("resume", AWAY.physical_to_logical.tolist(), 7, False)


@pytest.mark.parametrize("how", ["raises", "disagrees"])
def test_workers_of_which_nobody_knows_end_the_job(asked: Any, how: str) -> None:
    controller, mover, session = asked
    mover.note(AWAY, 1)
    if how == "raises":
        controller.says = RuntimeError("EngineCallError")
    else:
        controller.says, controller.where = "half", [HOME, AWAY]
    with pytest.raises(areal_mover.ExpertsLost, match="start the job again"):
        mover.move(session)


def test_a_plan_of_other_layers_is_refused(asked: Any) -> None:
    taller = Placement.identity(layers=3, experts=8, ranks=2)
    with pytest.raises(InvalidInput, match=r"found a placement of \[3, 8, 2\].*areal.counts_of"):
        asked[1].note(taller, 1)


def configuration(**more: Any) -> Any:
    values = {
        "ppo_n_minibatches": 2, "is_critic": False, "optimizer": object(), "_version": "v1", "backend": "megatron:d4e2",
        "use_lora": False, "weight_update_mode": "xccl", "megatron": types.SimpleNamespace(),
    }  # fmt: skip
    return types.SimpleNamespace(**{**values, **more})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"backend": "fsdp:d4"}, "found backend fsdp:d4"),
    ({"backend": "archon:d4e2"}, "found backend archon:d4e2"),
    ({"use_lora": True}, "found use_lora"),
    ({"megatron": types.SimpleNamespace(use_custom_fsdp=True)}, "found use_custom_fsdp"),
    ({"weight_update_mode": "awex"}, "found weight_update_mode awex"),
    ({"_version": "v2"}, "found _version v2"),
]


@pytest.mark.parametrize(("change", "text"), REFUSED)
def test_what_cannot_move_is_refused_by_the_settings_name(change: dict[str, Any], text: str) -> None:
    areal_mover.refuse(types.SimpleNamespace(config=configuration()), True)
    with pytest.raises(InvalidInput, match=text):
        areal_mover.refuse(types.SimpleNamespace(config=configuration(**change)), True)
    with pytest.raises(InvalidInput, match="found scheduling_spec.cmd without the hook"):
        areal_mover.refuse(types.SimpleNamespace(config=configuration()), False)


def test_only_the_policy_that_trains_is_asked() -> None:
    assert areal_mover.trains(configuration())
    for change in ({"optimizer": None}, {"is_critic": True}, {"ppo_n_minibatches": None}):
        assert not areal_mover.trains(configuration(**change))


class Weights(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self, name: str) -> None:
        super().__init__()
        self.__dict__["_name"] = name

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        yield self.__dict__["_name"], torch.zeros(1)


def engine(**more: Any) -> Any:
    values = {
        "config": types.SimpleNamespace(use_lora=False), "optimizer": object(), "bridge_cls": "mbridge",
        "model": Weights("module.module.decoder.layers.0.mlp.experts.linear_fc1.weight0"),
        "_update_bucket_expert_weights_from_distributed": None,
    }  # fmt: skip
    made = types.SimpleNamespace(**{**values, **more})
    return made


def test_engines_that_cannot_move_say_why() -> None:
    areal_experts.refuse(engine())
    sequential = Weights("module.module.decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight")
    for made, text in (
        (types.SimpleNamespace(), "is not Megatron's"),
        (engine(config=types.SimpleNamespace(use_lora=True)), "found use_lora"),
        (engine(optimizer=None), "found no optimizer"),
        (engine(model=sequential), "found SequentialMLP"),
    ):
        with pytest.raises(InvalidInput, match=text):
            areal_experts.serve(made, "attach")
    with pytest.raises(
        InvalidInput, match=r"found megatron.bridge_type nothing, wanted one of mbridge, megatron-bridge"
    ):
        areal_experts._bridge_names(engine(bridge_cls="nothing"))
    with pytest.raises(InvalidInput, match="wanted attach before where"):
        areal_experts.serve(engine(), "where")


def test_a_placement_travels_as_one_text() -> None:
    message = areal_experts.message_of(AWAY.physical_to_logical, 2, 5, "why")
    assert isinstance(message, str) and json.loads(message)["epoch"] == 5
    assert areal_experts.placement_of(message) == (AWAY, 5, "why")


def test_controllers_that_cannot_move_are_refused_before_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    need_areal()
    from . import test_areal as real

    areal.install(Settings(cost=COST, mode="both"))
    try:
        spec = real.actor_configuration().scheduling_spec
        for change, text in REFUSED[:-1]:
            controller = real.controller_of()
            controller.config = configuration(scheduling_spec=spec, **change)
            with pytest.raises(InvalidInput, match=text):
                controller.initialize(role="actor", ft_spec=None)
        gateway = object.__new__(real.actors.PPOActorControllerV2)
        gateway.config = configuration(_version="v2")
        with pytest.raises(InvalidInput, match="found _version v2"):
            gateway.initialize(role="actor")
    finally:
        areal.uninstall()
    assert "routepack" not in real.controllers.TrainController.initialize.__module__
    with pytest.raises(InvalidInput, match="wanted none: workers say where experts are"):
        areal.install(Settings(cost=COST, mode="both", current="here.json"))
    areal.uninstall()


@pytest.mark.parametrize("settings", [{}, {"enabled": False, "mode": "both"}])
def test_optimizer_state_of_experts_that_moved_is_not_loaded_by_workers_that_do_not_know(
    settings: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    need_areal()
    from . import test_areal as real

    kept, away = tmp_path / "kept", tmp_path / "away"
    for folder, placement in ((kept, HOME), (away, AWAY)):
        folder.mkdir()
        save_placement(folder, placement, 3)
    seen: list[str] = []
    areal.install(Settings(cost=COST, **settings))
    try:
        controller = real.controller_of()
        controller._custom_function_call = lambda method, meta: seen.append(f"{method} {meta.path}")
        meta = importlib.import_module("areal.api.io_struct").SaveLoadMeta
        with pytest.raises(InvalidInput, match="found experts that had moved .* wanted mode='placement' or 'both'"):
            controller.load(meta(str(away), "dcp", True))
        controller.load(meta(str(away), "dcp", False))  # weights are named by expert
        controller.load(meta(str(kept), "dcp", True))
    finally:
        areal.uninstall()
    assert seen == [f"load {away}", f"load {kept}"]


def test_a_controller_made_before_install_trains_without_moves(
    planner: PlannerProcess, monkeypatch: pytest.MonkeyPatch, warned: Any
) -> None:
    need_areal()
    from . import test_areal as real

    rtensor = importlib.import_module("areal.infra.rpc.rtensor")
    rtensor.set_backend(real.Local())
    controller = real.controller_of()
    shared(monkeypatch, planner)
    areal.install(Settings(cost=COST, mode="both"))
    areal.install_worker()
    try:
        real.step(controller, real.trajectories())
        session: Any = areal.session()
        assert session.metrics["routepack/fallback"] == Reason.PLACEMENT
        (text,) = warned()
        assert "wanted areal.install before the trainer is made" in text
    finally:
        areal.uninstall()
        rtensor.set_backend(None)
