# SPDX-License-Identifier: Apache-2.0
"""The column of microbatches goes to workers that all obey it, or to none: asked by verl's own trainers, on real ranks
with verl's own cut."""

from __future__ import annotations

import importlib.util
import logging
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("verl") is None:
    pytest.skip("no verl: the adapter was NOT run against the real thing", allow_module_level=True)
try:
    import torch.distributed as dist
    from verl.workers import engine_workers
    from verl.workers.engine import utils as engine

    from . import test_verl as base
except ImportError as error:
    pytest.skip(f"verl cannot be imported ({error}): the adapter was NOT run against it", allow_module_level=True)

from transfer.processes import run_ranks  # noqa: E402

from routepack import InvalidInput  # noqa: E402
from routepack.adapters import FallBack, PlannerProcess, Reason, verl, verl_cells, verl_worker  # noqa: E402

from .conftest import shared  # noqa: E402

BATCH, DP = base.BATCH, base.DP
Told = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    verl.uninstall()


class Asked(base.Group):
    """A worker group that answers as told, and counts."""

    def __init__(self, answer: Any = None) -> None:
        super().__init__()
        self.answer = answer
        self.asked = 0

    def routepack_obeys(self) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return [""] * DP if self.answer is None else self.answer


class Elsewhere(Exception):
    """What Ray makes of an error in a worker: the trace of it, and that at the end."""

    def __str__(self) -> str:
        return "ray::WorkerDict.actor_routepack_obeys()\n  File …\nAttributeError: no attribute 'routepack_obeys'\n\n"


@pytest.fixture(scope="module")
def own() -> base.Group:
    """A step without RoutePack."""
    group = base.Group()
    base.step(base.trainer_of(group))
    return group


NOT_ALL = [
    (["", "", "node-7: it is verl's own", ""], "rank 2, node-7: it is verl's own"),
    ([""] * 3 + ["a", "b"], "rank 3, a"),
    ([None] * DP, "rank 0, None"),
    ([], "has no workers"),
    (Elsewhere(), "AttributeError: no attribute 'routepack_obeys'"),
    (RuntimeError(), "RuntimeError"),
]


@pytest.mark.parametrize(("answer", "text"), NOT_ALL)
def test_a_worker_that_does_not_obey_leaves_every_step_to_verl(
    monkeypatch: pytest.MonkeyPatch,
    planner: PlannerProcess,
    warned: Told,
    own: base.Group,
    answer: Any,
    text: str,
) -> None:
    shared(monkeypatch, planner)
    verl.install(base.settings())
    group = Asked(answer)
    trainer = base.trainer_of(group)
    for number in (1, 2):
        group.cells.clear()
        batch, metrics = base.step(trainer)
        assert group.cells == own.cells and verl.CELLS not in batch.batch
        assert metrics["routepack/fallback"] == Reason.UNSUPPORTED and metrics["routepack/fallbacks"] == number
        (said,) = warned()
        assert "workers without hooks: " in said and f"{text}; wanted VERL_USE_EXTERNAL" in said and "\n" not in said
    assert group.asked == (2 if isinstance(answer, Exception) else 1)
    if isinstance(answer, Exception):  # an error of one call, and the job goes on with plans
        group.answer = None
        _, metrics = base.step(trainer)
        assert metrics["routepack/fallback"] == 0.0 and metrics["routepack/passes"] == 4.0


def test_workers_without_any_method_leave_every_step_to_verl(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told, own: base.Group
) -> None:
    shared(monkeypatch, planner)
    verl.install(base.settings())
    group = Asked()
    monkeypatch.setattr(group, "routepack_obeys", None)
    _, metrics = base.step(base.trainer_of(group))
    assert group.cells == own.cells and metrics["routepack/fallback"] == Reason.UNSUPPORTED
    assert "Asked has no method routepack_obeys" in warned()[0]


def test_all_workers_are_asked_once_a_job(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, own: base.Group
) -> None:
    shared(monkeypatch, planner)
    verl.install(base.settings())
    group = Asked()
    trainer = base.trainer_of(group)
    for _ in range(3):
        group.cells.clear()
        _, metrics = base.step(trainer)
        assert group.cells != own.cells and metrics["routepack/passes"] == 4.0
    assert group.asked == 1
    other = Asked()  # other workers, as after a restart
    trainer.actor_rollout_wg = other
    base.step(trainer)
    assert (group.asked, other.asked) == (1, 1)


def test_nobody_is_asked_who_gets_no_column(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> None:
    shared(monkeypatch, planner)
    moved = base.settings(mode="placement", on_placement=lambda placement, epoch: None)
    for chosen in (moved, base.settings(enabled=False)):
        verl.install(chosen)
        group = Asked([])
        base.step(base.trainer_of(group))
        assert group.asked == 0


@pytest.mark.parametrize("stored", [False, True])
def test_each_group_with_processes_of_its_own_is_asked(stored: bool) -> None:
    """V1's critic reads whatever of a sample is stored; V0 gives it no column."""
    actor, reference, critic = (types.SimpleNamespace(_workers=[object()], asked=0) for _ in range(3))
    colocated = types.SimpleNamespace(_workers=list(actor._workers))  # without the method: need not be asked
    groups: list[Any] = [actor, reference, critic]
    for group in groups:

        def obeys(group: Any = group) -> list[str]:
            group.asked += 1
            return [""]

        group.routepack_obeys = obeys
    source: Any = verl._Stored(None) if stored else verl._Held()
    trainer = type("Trainer", (), {})()
    trainer.actor_rollout_wg, trainer.ref_policy_wg, trainer.critic_wg = actor, colocated, critic
    verl_cells.need_all(trainer, source.groups)
    assert [group.asked for group in groups] == [1, 0, int(stored)]
    trainer.ref_policy_wg, critic.routepack_obeys = reference, lambda: ["no"]
    if stored:
        with pytest.raises(FallBack, match="rank 0, no"):
            verl_cells.need_all(trainer, source.groups)
    else:
        verl_cells.need_all(trainer, source.groups)
    assert reference.asked == 1


def test_names_of_workers_without_hooks_get_no_column(
    monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess, warned: Told
) -> None:
    """V1: nothing is stored, and the order is verl's."""
    shared(monkeypatch, planner)
    orders = []
    for chosen in (base.settings(enabled=False), base.settings()):
        store = base.Store(base.batch_of())
        trainer = base.stored_trainer(Asked(["no"] * DP), store, chosen)
        metrics: dict[str, Any] = {}
        meta = trainer._balance_batch(base.names_of(store), metrics)
        orders.append(list(meta.keys))
        trainer._update_actor(meta, metrics)
        assert not any(verl.CELLS in row for row in store.rows.values())
        verl.uninstall()
    assert orders[0] == orders[1] and metrics["routepack/fallback"] == Reason.UNSUPPORTED and len(warned()) == 1


def test_workers_say_of_their_own_process_whether_it_has_the_hook() -> None:
    worker: Any = object.__new__(engine_workers.ActorRolloutRefWorker)
    critic: Any = object.__new__(engine_workers.TrainingWorker)
    verl_worker.install_methods(engine_workers)
    assert "rearrange_micro_batches is verl's own" in worker.routepack_obeys()
    verl.install_worker(engine)
    assert worker.routepack_obeys() == ""
    assert critic.routepack_obeys() == ""
    verl.uninstall()
    assert not hasattr(worker, "routepack_obeys") and not hasattr(critic, "routepack_obeys")


def test_a_hook_that_is_refused_is_told_where_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loud for what packing needs, also where nothing moves."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    from routepack.adapters import verl_auto

    told: list[tuple[int, str]] = []
    monkeypatch.setattr(verl_auto._LOG, "log", lambda level, text, module, error: told.append((level, module)))

    def refuse(module: Any) -> None:
        raise InvalidInput("another verl")

    names = (verl_cells.MODULE, verl_worker.METHODS, "verl.utils.checkpoint.megatron_checkpoint_manager")
    for name in names:
        verl_auto._quietly(refuse, types.ModuleType(name))
    assert told == list(zip((logging.WARNING, logging.WARNING, logging.INFO), names, strict=True))


def cut(rank: int, hooked: list[int], careless: bool) -> Any:
    """What a rank makes of its samples: by the column when all are asked and say yes; as verl does else."""
    from tensordict import TensorDict
    from verl.utils import device, seqlen_balancing
    from verl.utils import tensordict_utils as tu

    named: Any = device, seqlen_balancing
    for module in named:
        module.get_device_name = lambda: "cpu"
    if rank in hooked:
        verl.install_worker(engine)

    def all_say() -> list[str]:
        said: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(said, verl_cells.routepack_obeys(None))
        return said

    trainer = type("Trainer", (), {"actor_rollout_wg": types.SimpleNamespace(routepack_obeys=all_say)})()
    lengths = [[4, 4, 8], [3, 3, 3]][rank]
    made: dict[str, Any] = {
        "input_ids": torch.nested.as_nested_tensor([torch.arange(n) for n in lengths], layout=torch.jagged),
        verl.CELLS: torch.tensor([[0, 0, 2, 9], [0, 0, 2, 9], [1, 0, 2, 9]]),
    }
    refusal = ""
    try:
        verl_cells.need_all(trainer)
    except FallBack as error:
        refusal = str(error)
        if not careless:
            del made[verl.CELLS]
    data = TensorDict(made, batch_size=3)
    tu.assign_non_tensor(data, use_dynamic_bsz=True, max_token_len_per_gpu=9, sp_size=1)
    rows, _ = engine.prepare_micro_batches(data, dp_group=dist.group.WORLD, same_micro_num_in_dp=True)
    return refusal, [[len(ids) for ids in row["input_ids"].unbind()] for row in rows]


@pytest.mark.parametrize("hooked", [[0, 1], [0], [1], []])
def test_ranks_of_which_some_have_the_hook_do_not_wait_for_each_other(hooked: list[int]) -> None:
    """verl's own cut over gloo."""
    (said, first), (again, second) = run_ranks(cut, 2, hooked, False, timeout=120.0)
    assert said == again and len(first) == len(second)
    assert sorted(n for row in first for n in row) == [4, 4, 8]
    assert ([first, second] == [[[4, 4], [8]], [[3, 3], [3]]]) == (said == "") == (hooked == [0, 1])
    if hooked != [0, 1]:
        assert f"rank {1 - hooked[0] if hooked else 0}, " in said


def test_with_the_column_they_would() -> None:
    """So that the test above can fail: two collectives of different sizes, or kinds, never end well."""
    with pytest.raises(AssertionError):
        made = run_ranks(cut, 2, [1], True, timeout=8.0)
        assert len(made[0][1]) == len(made[1][1]) and made[0][1] == [[4, 4], [8]]
