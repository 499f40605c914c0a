# SPDX-License-Identifier: Apache-2.0
"""slime's training actors know where experts are: names, kept copies, weight sync, checkpoints, and the way of a
placement from the rollout manager to every rank. The same on slime's own code when ROUTEPACK_SLIME_CHECKOUT names it."""

from __future__ import annotations

import argparse
import os
import pathlib
import pickle
import types
import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("megatron.core", reason="no Megatron-Core: experts did NOT move in the real thing")

from transfer.processes import RankFailed, run_ranks  # noqa: E402

from routepack import InvalidInput, Placement  # noqa: E402
from routepack.adapters import PlannerProcess, Reason, Settings, slime, slime_experts  # noqa: E402
from routepack.transfer.checkpoint import STAMP, save_placement, stamp  # noqa: E402

from . import checkouts, slime_experts_jobs, slime_jobs  # noqa: E402
from .batches import PATIENT, Batch  # noqa: E402
from .conftest import shared  # noqa: E402
from .experts_jobs import COST  # noqa: E402

REAL = pytest.param(
    True,
    marks=pytest.mark.skipif(
        not os.environ.get(checkouts.SLIME), reason=f"{checkouts.SLIME} names no checkout: NOT run on slime's own code"
    ),
)


@pytest.mark.parametrize("checkout", [False, REAL])
def test_an_actor_that_moves_gives_the_engine_the_weights_of_one_that_stays(checkout: bool) -> None:
    made = run_ranks(slime_experts_jobs.train_and_sync, 4, checkout)
    assert made[0]["tags"] == ["actor", "old_actor", "ref"]
    assert all(one["compared"] == made[0]["compared"] >= 3 * 2 * 8 * 2 for one in made)


MISSING = ["common", "backuper", "tensor"] if os.environ.get("ROUTEPACK_LONG") else ["backuper"]


@pytest.mark.parametrize("missing", MISSING)
def test_a_hook_that_is_missing_is_seen(missing: str) -> None:
    with pytest.raises(RankFailed):
        run_ranks(slime_experts_jobs.train_and_sync, 4, False, missing)


class Manager(slime_jobs.slime_like.RolloutManager):
    """What slime's own does besides: each rank's data goes through one more function before it is shipped."""

    def _split_train_data_by_dp(self, data: dict[str, Any]) -> list[dict[str, Any]]:
        lengths = [len(tokens) for tokens in data["tokens"]]
        partitions, indices, rows, sizes = build_dp_schedule(
            self.args, self.train_parallel_config, lengths, global_batch_size=self.args.global_batch_size,
            rollout_indices=data["rollout_ids"],
        )  # fmt: skip
        parts = []
        for partition, cells in zip(partitions, indices, strict=True):
            part = {"partition": partition, "micro_batch_indices": cells, "num_microbatches": rows}
            tensorize_rollout_data_for_training(part)
            parts.append(part | {"global_batch_sizes": sizes})
        return parts


build_dp_schedule = slime_jobs.slime_like.build_dp_schedule


def tensorize_rollout_data_for_training(rollout_data: dict[str, Any]) -> None:
    rollout_data["tensorized"] = True


class RayTrainGroup:
    def __init__(self, role: str, actor_cls: Any = None, args: Any = None) -> None:
        self.role, self._actor_cls, self.args = role, actor_cls, args

    def _allocate_gpus_for_actor(self) -> Any:
        return self._actor_cls


def manager_of(told: Any, **more: Any) -> tuple[Any, Batch]:
    batch = Batch()
    owner = type("RolloutManager", (Manager,), dict(vars(Manager)))
    module = types.SimpleNamespace(RolloutManager=owner, build_dp_schedule=build_dp_schedule)
    group = types.SimpleNamespace(RayTrainGroup=type("RayTrainGroup", (RayTrainGroup,), dict(vars(RayTrainGroup))))
    slime.install(Settings(cost=COST, mode="both", **PATIENT, **more), module=module, group_module=group)
    parallel = dict(slime_jobs.PARALLEL)
    if told is not None:
        parallel[slime.PLACEMENT] = told  # type: ignore[assignment]
    return owner(slime_jobs.arguments(batch), parallel), batch


def test_a_placement_travels_with_the_data_of_every_rank(
    planner: PlannerProcess, monkeypatch: pytest.MonkeyPatch, warned: Any
) -> None:
    shared(monkeypatch, planner)
    batch = Batch()
    home = Placement.identity(layers=batch.layers - 1, experts=batch.experts, ranks=2)
    manager, batch = manager_of(slime.placement_message(home.physical_to_logical, 2, 6))
    parts = manager._split_train_data_by_dp(slime_jobs.data_of(batch))
    session = slime.session_of(manager)
    assert warned() == [] and session.metrics["routepack/fallback"] == 0.0
    messages = [pickle.loads(pickle.dumps(part))[slime.PLACEMENT] for part in parts]
    placement, epoch = slime.placement_of(messages[0])
    assert epoch == 7 and placement == session.last_plans[0].placement and placement != home
    assert all(np.array_equal(message["maps"], messages[0]["maps"]) for message in messages)
    again = manager._split_train_data_by_dp(slime_jobs.data_of(batch))
    assert slime.placement_of(again[0][slime.PLACEMENT])[1] == 8
    # Actors that were made again, from a checkpoint, say where they are.
    other = slime.placement_message(placement.physical_to_logical[:, ::-1], 2, 3)
    manager.train_parallel_config = {**manager.train_parallel_config, slime.PLACEMENT: other}
    last = manager._split_train_data_by_dp(slime_jobs.data_of(batch))
    assert slime.placement_of(last[0][slime.PLACEMENT])[1] == 4


def test_the_manager_plans_on_from_where_experts_stayed(
    planner: PlannerProcess, monkeypatch: pytest.MonkeyPatch, warned: Any
) -> None:
    shared(monkeypatch, planner)
    batch = Batch()
    home = Placement.identity(layers=batch.layers - 1, experts=batch.experts, ranks=2)
    manager, batch = manager_of(slime.placement_message(home.physical_to_logical, 2, 6))
    first = manager._split_train_data_by_dp(slime_jobs.data_of(batch))
    wanted, _ = slime.placement_of(first[0][slime.PLACEMENT])
    session = slime.session_of(manager)

    def say(epoch: int) -> None:
        config = {**manager.train_parallel_config}
        config[slime.PLACEMENT] = slime.placement_message(home.physical_to_logical, 2, epoch, "a rank is silent")
        manager.train_parallel_config = pickle.loads(pickle.dumps(config))

    say(7)
    again = manager._split_train_data_by_dp(slime_jobs.data_of(batch))
    (text,) = warned()
    assert "experts were not moved" in text and "a rank is silent" in text
    placement, epoch = slime.placement_of(again[0][slime.PLACEMENT])
    assert epoch == 8 and placement == wanted != home  # the same plan, as it begins at the same place
    assert session.metrics["routepack/fallbacks"] == 1.0
    say(7)  # heard of too late: epoch 8 is on its way, and the next plan begins there
    third = manager._split_train_data_by_dp(slime_jobs.data_of(batch))
    after, epoch = slime.placement_of(third[0][slime.PLACEMENT])
    assert epoch == 9 and after != placement
    assert np.count_nonzero(after.physical_to_logical != placement.physical_to_logical) < np.count_nonzero(
        after.physical_to_logical != home.physical_to_logical
    )


def test_an_actor_whose_move_failed_tells_the_manager() -> None:
    home = Placement.identity(layers=2, experts=4, ranks=2)
    told: list[Any] = []
    remote = types.SimpleNamespace(remote=told.append)
    manager = types.SimpleNamespace(set_train_parallel_config=remote)
    failing = types.SimpleNamespace(
        placement=home, epoch=5, try_move=lambda placement, epoch: "a rank is silent", on_move=lambda listener: None
    )
    wanted = slime.placement_message(home.physical_to_logical[:, ::-1], 2, 5)
    slime_experts.use(failing)  # type: ignore[arg-type]
    try:
        for rank in range(2):
            actor = types.SimpleNamespace(
                _active_model_tag=slime_experts.TRAINED,
                args=argparse.Namespace(rank=rank),
                train_parallel_config={"dp_size": 2},
                rollout_manager=manager,
            )
            slime_experts.move(actor, wanted)
            assert actor.train_parallel_config[slime.PLACEMENT]["failed"] == "a rank is silent"
    finally:
        slime_experts.use(None)
    (config,) = told
    placement, epoch = slime.placement_of(config[slime.PLACEMENT])
    assert config["dp_size"] == 2 and placement == home and epoch == 5


@pytest.mark.parametrize("told", [None, slime.placement_message([range(8)] * 2, 4, 0)])
def test_actors_that_cannot_move_leave_the_step_to_slime(
    told: Any, planner: PlannerProcess, monkeypatch: pytest.MonkeyPatch, warned: Any
) -> None:
    shared(monkeypatch, planner)
    manager, batch = manager_of(told)
    parts = manager._split_train_data_by_dp(slime_jobs.data_of(batch))
    assert not any(slime.PLACEMENT in part for part in parts)
    assert slime.session_of(manager).metrics["routepack/fallback"] == Reason.PLACEMENT
    (text,) = warned()
    assert ("said nothing of experts" if told is None else "as training actors have them") in text


def test_a_manager_without_a_way_for_placements_is_refused() -> None:
    module = slime_jobs.like()
    with pytest.raises(InvalidInput, match="a placement cannot travel with the rollout data"):
        slime.install(Settings(cost=COST, mode="both"), module=module)
    slime.install(Settings(cost=COST, mode="both", on_placement=print), module=module)
    slime.uninstall(module=module)


class Moving:
    """Stands for MovingTrainRayActor, whose module needs slime."""


class Own(Moving):
    pass


def group_of(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Modules with a manager and a group of actors, fresh."""
    worker: Any = types.ModuleType("slime_worker")
    worker.MovingTrainRayActor = Moving
    monkeypatch.setitem(__import__("sys").modules, "routepack.adapters.slime_worker", worker)
    owner = type("RolloutManager", (Manager,), dict(vars(Manager)))
    module = types.SimpleNamespace(RolloutManager=owner, build_dp_schedule=build_dp_schedule)
    return module, types.SimpleNamespace(
        RayTrainGroup=type("RayTrainGroup", (RayTrainGroup,), dict(vars(RayTrainGroup)))
    )


def test_groups_of_actors_use_the_class_that_moves_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    module, group = group_of(monkeypatch)
    slime.install(Settings(cost=COST, mode="placement"), module=module, group_module=group)
    slime.install(Settings(cost=COST, mode="placement"), module=module, group_module=group)
    made = group.RayTrainGroup
    assert made("actor")._allocate_gpus_for_actor() is Moving and made("critic")._allocate_gpus_for_actor() is None
    assert made("actor", Own)._allocate_gpus_for_actor() is Own
    with pytest.raises(InvalidInput, match="must inherit from"):
        made("actor", dict)._allocate_gpus_for_actor()
    for settings in (Settings(cost=COST), Settings(cost=COST, mode="both", on_placement=print)):
        slime.install(settings, module=module, group_module=group)  # another time, with other settings
        assert made("actor", dict)._allocate_gpus_for_actor() is dict
    slime.uninstall(module=module, group_module=group)
    assert made("actor")._allocate_gpus_for_actor() is None


@pytest.mark.parametrize(
    "settings",
    [Settings(cost=COST), Settings(cost=COST, enabled=False), Settings(cost=COST, mode="both", enabled=False)],
)
def test_a_checkpoint_whose_experts_had_moved_has_actors_that_know_it_in_every_mode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, settings: Settings
) -> None:
    module, group = group_of(monkeypatch)
    slime.install(settings, module=module, group_module=group)
    home = Placement.identity(layers=2, experts=4, ranks=2)
    away = Placement.from_maps(ranks=2, physical_to_logical=home.physical_to_logical[:, ::-1].copy())
    for number, placement in ((10, home), (20, away), (30, away)):
        (tmp_path / f"iter_{number:07d}").mkdir()
        save_placement(tmp_path / f"iter_{number:07d}", placement, 3)
        torch.save({STAMP: stamp(placement, 3)}, tmp_path / f"iter_{number:07d}" / "common.pt")
    (tmp_path / "iter_0000030" / "routepack-placement.json").unlink()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")

    def chosen(role: str = "actor", own: Any = None, **more: Any) -> Any:
        args = {"load": str(tmp_path), "ckpt_step": None, "no_load_optim": False, "finetune": False, **more}
        return group.RayTrainGroup(role, own, argparse.Namespace(**args))._allocate_gpus_for_actor()

    try:
        assert chosen() is Moving and chosen(ckpt_step=30) is Moving and chosen(own=Own) is Own
        assert chosen(ckpt_step=10) is chosen(no_load_optim=True) is chosen(finetune=True) is chosen("critic") is None
        assert chosen(load=None) is chosen(load=str(tmp_path / "none")) is None
        with pytest.raises(InvalidInput, match=r"iter_0000020.*had moved.*must inherit from"):
            chosen(own=dict)
        with pytest.raises(InvalidInput, match=r"iter_0000020.*had moved.*not to be had.*wanted full$"):
            chosen(update_weight_mode="delta")
    finally:
        slime.uninstall(module=module, group_module=group)


def test_what_cannot_move_is_refused_by_the_settings_name() -> None:
    slime_experts.refuse(argparse.Namespace(update_weight_mode="full", ckpt_format="torch_dist"))
    for name, value in (("update_weight_mode", "delta"), ("ckpt_format", "torch"), ("train_backend", "fsdp")):
        with pytest.raises(InvalidInput, match=value):
            slime_experts.refuse(argparse.Namespace(**{name: value}))


def test_checkpoints_lie_where_megatrons_loop_looks_for_them(tmp_path: pathlib.Path) -> None:
    folder = slime_experts.checkpoint_folder
    assert folder(None) is None and folder(tmp_path) is None
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20\n")
    assert folder(tmp_path) == tmp_path / "iter_0000020" and folder(str(tmp_path), 7) == tmp_path / "iter_0000007"
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    assert folder(tmp_path) == tmp_path / "release"
    whole = tmp_path / "iter_0000003"
    whole.mkdir()
    (whole / "metadata.json").write_text("{}")
    assert folder(whole) == whole


def test_a_load_with_optimizer_state_asks_for_the_placement_first(tmp_path: pathlib.Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    said: list[Any] = []
    args = argparse.Namespace(load=str(tmp_path), ckpt_step=None, no_load_optim=False, finetune=False)
    model: Any = types.ModuleType("model")
    exec(  # functions with the globals of their module, as slime's have
        "def setup_model_and_optimizer(args, role='actor'): return [1], None, None\n"
        "def load_checkpoint(ddp_model, optimizer, scheduler): said.append('load')\n",
        vars(model),
    )
    model.said, model.get_args = said, lambda: args
    slime_experts.install(model=model)
    try:
        slime_experts.use(types.SimpleNamespace(restore=said.append, on_move=lambda _: None))  # type: ignore[arg-type]
        model.load_checkpoint([], "optimizer", None)
        model.load_checkpoint([], None, None)
        args.no_load_optim = True
        model.load_checkpoint([], "optimizer", None)
        assert said == [tmp_path / "iter_0000020", "load", "load", "load"]
        assert model.setup_model_and_optimizer(args, "critic") == ([1], None, None)
    finally:
        slime_experts.uninstall()
