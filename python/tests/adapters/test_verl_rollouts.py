# SPDX-License-Identifier: Apache-2.0
"""Routes are counted where rollouts end: by verl's own agent-loop workers on Ray, through the real TransferQueue.

One local cluster is started for all tests of this file. Its trainers are verl's, without training ranks.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib.util
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

torch = pytest.importorskip("torch")
for name in ("verl", "ray", "transfer_queue", "transformers", "tokenizers"):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"no {name}: routes were NOT counted in verl's own workers", allow_module_level=True)
try:
    import ray.cloudpickle
    import transfer_queue as tq  # type: ignore[import-untyped]
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine import utils as engine

    from . import verl_rollouts_jobs as jobs
except ImportError as error:
    pytest.skip(f"verl cannot be imported ({error}): its workers counted NO routes", allow_module_level=True)

from on_ray.ray_cluster import local_cluster  # noqa: E402

from routepack import count_routes_batch  # noqa: E402
from routepack.adapters import PlannerProcess, Settings, verl  # noqa: E402
from routepack.adapters._routes import COUNTS  # noqa: E402
from routepack.adapters.verl_rollouts import ROUTES  # noqa: E402

from .batches import COST, PATIENT  # noqa: E402
from .conftest import shared  # noqa: E402
from .verl_rollouts_jobs import DP, EXPERTS, GROUP, LAYERS, PROMPTS, TOP_K  # noqa: E402

SAMPLES = PROMPTS * GROUP
Told = Callable[[], list[str]]
HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[jobs.Site]:
    folder = tmp_path_factory.mktemp("model")
    jobs.write_model(folder)
    (folder / "cost.toml").write_text(COST, encoding="utf-8")
    with contextlib.ExitStack() as until_the_end:
        with jobs.exported(
            VERL_USE_EXTERNAL_MODULES="routepack.adapters.verl_auto",
            ROUTEPACK_COST=str(folder / "cost.toml"),
            HF_HUB_OFFLINE="1",
            PYTHONPATH=os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        ):
            until_the_end.enter_context(local_cluster(cpus=5))  # one each for what TransferQueue starts
        until_the_end.callback(tq.close)
        yield jobs.started(jobs.configuration(folder))


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """The same samples by workers with the hooks and without, each sorted by what was said."""

    stored: Any  #: names of samples in TransferQueue
    stored_plain: Any
    held: Any  #: a batch


@pytest.fixture(scope="module")
def rollouts(site: jobs.Site) -> Rollouts:
    made = Rollouts(
        stored=jobs.Stored(site.config, site.stored).rollout("say"),
        stored_plain=jobs.Stored(site.config, site.stored_plain).rollout("say"),
        held=jobs.Held(site.config, site.held).rollout("say"),
    )
    for meta in (made.stored, made.stored_plain):
        meta.reorder(sorted(range(SAMPLES), key=said(meta).__getitem__))
    made.held.reorder(torch.tensor(sorted(range(SAMPLES), key=said_in(made.held).__getitem__)))
    return made


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    verl.uninstall()


@pytest.fixture
def planning(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> None:
    """The hooks in this process, as on a driver."""
    shared(monkeypatch, planner)
    verl.install(Settings(cost=COST, **PATIENT))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """What this process reads from storage: how many samples, which fields."""
    manager, seen = tq.get_client().storage_manager, []
    original = manager.get_data

    async def get_data(metadata: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((metadata.size, sorted(metadata.field_names)))
        return await original(metadata, *args, **kwargs)

    monkeypatch.setattr(manager, "get_data", get_data)
    return seen


def read(meta: Any, *fields: str) -> Any:
    return tq.kv_batch_get(keys=meta.keys, partition_id=meta.partition_id, select_fields=list(fields) or None)


def said(meta: Any) -> list[list[int]]:
    return [row.tolist() for row in read(meta, "input_ids")["input_ids"].unbind()]


def said_in(batch: Any) -> list[list[int]]:
    tokens, mask = batch.batch["input_ids"], batch.batch["attention_mask"].bool()
    return [row[real].tolist() for row, real in zip(tokens, mask, strict=True)]


def recounted(routes: Any) -> npt.NDArray[np.int64]:
    """What numpy counts in routes [tokens, layers, k] less the last token, as it travels: [layers, 5 + experts]."""
    rows, made = routes.numpy()[:-1], []
    for layer in range(rows.shape[1]):
        recorded = rows[:, layer][rows[:, layer].any(axis=1)]
        counts = np.bincount(recorded.ravel(), minlength=EXPERTS)
        made.append([1, EXPERTS, len(rows), TOP_K, len(recorded), *counts])
    return np.array(made, dtype=np.int64)


def routes_in(batch: Any) -> list[Any]:
    """Of each sample, without padding."""
    mask = batch.batch["attention_mask"].bool()
    return [row[real] for row, real in zip(batch.batch[ROUTES], mask, strict=True)]


# V1: samples are in TransferQueue, and the driver has their names.


def test_counts_lie_in_the_queue_beside_the_routes_that_they_count(rollouts: Rollouts) -> None:
    stored = read(rollouts.stored, COUNTS, ROUTES, "responses")
    counts, routes = list(stored[COUNTS].unbind()), list(stored[ROUTES].unbind())
    assert len(counts) == len(routes) == SAMPLES
    for packed, some, tag in zip(counts, routes, rollouts.stored.tags, strict=True):
        assert len(some) == tag["seq_len"]
        assert packed.dtype == torch.int32 and packed.tolist() == recounted(some).tolist()
    ours, report = count_routes_batch([some[:-1] for some in routes], experts=EXPERTS)
    assert np.array_equal(ours, torch.stack(counts)[..., 5:].numpy())
    assert np.array_equal(report.recorded, torch.stack(counts)[..., 4].numpy())
    lengths = [len(some) for some in stored["responses"].unbind()]
    assert max(lengths) == jobs.ANSWER_WIDTH and len(set(lengths)) > 8
    # Of all kinds: a last token with a route, which no plan counts, and tokens without one.
    assert any(some[-1, 1].any() for some in routes) and any(not some[0, 1].any() for some in routes)


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.usefixtures("planning")
def test_counts_alone_are_read_and_plan_what_routes_plan(
    site: jobs.Site, rollouts: Rollouts, reads: list[tuple[int, list[str]]], warned: Told, padding: int
) -> None:
    """Also where verl fills the batch up: a sample that it makes has a copy of another's counts, and no routes."""
    made = {}
    for field, whole in ((COUNTS, rollouts.stored), (ROUTES, rollouts.stored_plain)):
        batch = whole.select_keys(whole.keys[: SAMPLES - padding])
        metrics: dict[str, Any] = {}
        reads.clear()
        batch = jobs.Stored(site.config)._balance_batch(batch, metrics)
        assert metrics["routepack/fallback"] == 0.0 and metrics["routepack/used"] == 1.0
        assert metrics["routepack/samples_without_routes"] == 0.0 and warned() == []
        assert [size for size, _ in reads] == [1] * bool(padding) + [SAMPLES]  # one: what verl makes copies of
        assert reads[-1] == (SAMPLES, [field])
        added = [bool(tag.get("is_padding")) for tag in batch.tags]
        assert len(added) == SAMPLES and sum(added) == padding
        made[field] = said(batch), [row.tolist() for row in read(batch, verl.CELLS)[verl.CELLS].unbind()]
        if field == COUNTS and padding:
            copied = read(batch.select_keys([key for key, more in zip(batch.keys, added, strict=True) if more]))
            first = recounted(read(whole, ROUTES)[ROUTES].unbind()[0]).tolist()
            assert [packed.tolist() for packed in copied[COUNTS].unbind()] == [first] * padding
            assert not any(some.any() for some in copied[ROUTES].unbind())
    assert made[COUNTS] == made[ROUTES]


@pytest.mark.usefixtures("planning")
def test_workers_cut_what_they_read_as_planned_and_see_no_counts(site: jobs.Site, rollouts: Rollouts) -> None:
    """The whole of the samples as the queue gives it, by verl's own chunks, mini-batches and microbatches."""
    batch = copy.deepcopy(rollouts.stored)
    batch = jobs.Stored(site.config)._balance_batch(batch, {})
    data = read(batch)
    assert COUNTS in data.keys()
    planned = data[verl.CELLS].unbind()
    place = {tuple(row.tolist()): int(cell[0]) for row, cell in zip(data["input_ids"].unbind(), planned, strict=True)}
    seen: list[Any] = []
    for rank in tu.chunk_tensordict(data, DP):
        options: dict[str, Any] = {"mini_batch_size": 16 // DP, "epochs": 1, "dataloader_kwargs": {"shuffle": False}}
        for part in tu.make_iterator(rank, seed=1, **options):
            tu.assign_non_tensor(part, use_dynamic_bsz=True, max_token_len_per_gpu=jobs.CAP, sp_size=1)
            cut, _ = engine.prepare_micro_batches(part, dp_group=None, same_micro_num_in_dp=True)
            for micro in cut:
                assert COUNTS not in micro.keys() and ROUTES in micro.keys()
                rows = [tuple(row.tolist()) for row in micro["input_ids"].unbind()]
                assert sum(map(len, rows)) <= jobs.CAP and len({place[row] for row in rows}) == 1
                seen += rows
    assert sorted(seen) == sorted(place) and len(seen) == SAMPLES


def test_the_queue_answers_for_a_field_that_is_not_there_without_it(rollouts: Rollouts) -> None:
    """What the adapter relies on: neither an error nor a wait, also where only some of the samples have it."""
    assert list(read(rollouts.stored_plain, COUNTS).keys()) == []
    assert list(read(rollouts.stored_plain, COUNTS, "num_turns").keys()) == ["num_turns"]
    keys = rollouts.stored.keys[:4] + rollouts.stored_plain.keys[:4]
    mixed = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=[COUNTS])
    assert list(mixed.keys()) == []


def test_workers_without_the_hooks_give_the_same_samples_without_counts(rollouts: Rollouts) -> None:
    fields = set(read(rollouts.stored).keys())
    assert set(read(rollouts.stored_plain).keys()) | {COUNTS} == fields and COUNTS in fields
    for field in ("input_ids", "response_mask", "position_ids", ROUTES):
        mine, other = (read(meta, field)[field].unbind() for meta in (rollouts.stored, rollouts.stored_plain))
        assert all(torch.equal(a, b) for a, b in zip(mine, other, strict=True)), field


# V0: batches come back from the workers, with the routes.


@pytest.mark.usefixtures("planning")
def test_a_batch_that_comes_back_is_counted_from_its_routes(site: jobs.Site, rollouts: Rollouts) -> None:
    made = []
    for spoiled in (False, True):
        metrics: dict[str, Any] = {}
        batch = copy.deepcopy(rollouts.held)
        if spoiled:
            batch.batch[ROUTES] = torch.randint(1, EXPERTS, batch.batch[ROUTES].shape, dtype=torch.int16)
        trainer = jobs.Held(site.config)
        trainer._balance_batch(batch, metrics)
        assert metrics["routepack/fallback"] == 0.0 and metrics["routepack/used"] == 1.0
        assert COUNTS not in batch.non_tensor_batch
        made.append((said_in(batch), verl._LAYOUTS[trainer].cells.tolist()))
    assert made[0] != made[1]


def test_workers_of_agent_loops_are_shipped_as_without_routepack() -> None:
    """Ray ships actor classes by value, with copies of the methods that they inherit. Hooks are not among them."""
    shipped = {}
    for order in ("before", "installed", "installed twice", "taken out again"):
        if order.startswith("installed"):
            verl.install(Settings(cost=COST))
        if order == "taken out again":
            verl.uninstall()
        shipped[order] = ray.cloudpickle.dumps(AgentLoopWorkerTQ.__ray_metadata__.modified_class)
    assert len(set(shipped.values())) == 1 and b"routepack" not in shipped["installed"]


@pytest.mark.parametrize("trainers", [jobs.Held, jobs.Stored])
def test_a_trainer_that_was_an_actor_class_before_can_be_shipped_with_hooks(trainers: Any) -> None:
    actors = ray.remote(type("Trainer", (trainers,), {}))
    for settings in (None, Settings(cost=COST), Settings(cost=COST, experts=8)):
        if settings is not None:
            verl.install(settings)
        again = type("Again", (trainers,), {"_balance_batch": trainers._balance_batch})  # as Ray copies it
        for cls in (actors.__ray_metadata__.modified_class, again):
            assert ray.cloudpickle.loads(ray.cloudpickle.dumps(cls))
    verl.uninstall()
    assert ray.cloudpickle.dumps(again)
