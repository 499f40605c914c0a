# SPDX-License-Identifier: Apache-2.0
"""NeMo RL's data plane: routes are counted where rollouts end, and the driver plans without reading them."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from routepack.adapters import PlannerProcess, Reason, Settings, nemo_rl  # noqa: E402
from routepack.adapters.nemo_rl_moves import Where  # noqa: E402

from . import checkouts, contracts, nemo_like, nemo_rollouts_like  # noqa: E402
from .batches import COST, PATIENT, Batch  # noqa: E402
from .conftest import shared  # noqa: E402
from .nemo_jobs import columns, config, like  # noqa: E402

Told = Callable[[], list[str]]
RANKS, CAP, MULTIPLE = 4, 128, 4
COUNTS, ROUTES = ["routepack_counts"], ["routed_experts"]


class Plane:
    """NeMo RL on recorded shapes with RoutePack put into it: an actor, a queue, and policies that cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batch = Batch()
        self.cfg = config(self.batch)
        self.module = like()
        self.client = nemo_rollouts_like.Client()
        self.steps: list[Any] = []  #: what planners were asked
        step_of = nemo_rl.step_of

        def recorded(*given: Any) -> Any:
            self.steps.append(step_of(*given))
            return self.steps[-1]

        monkeypatch.setattr(nemo_rl, "step_of", recorded)
        own: Any = nemo_rollouts_like.TQPolicy
        self.policy_class: Any = type("TQPolicy", (own,), {**vars(own), "batch": self.module.BatchedDataDict})
        #: what `nemo_rl.experience.sync_rollout_actor` is
        self.rollouts = types.SimpleNamespace(SyncRolloutActor=nemo_rollouts_like.SyncRolloutActor)
        for name, module in {
            "models.policy.lm_policy": self.module,
            "distributed.batched_data_dict": self.module,
            "models.policy.tq_policy": types.SimpleNamespace(TQPolicy=self.policy_class),
            "distributed.ray_actor_environment_registry": None,
            "distributed.worker_groups": None,
            "experience.sync_rollout_actor": self.rollouts,
        }.items():
            monkeypatch.setitem(sys.modules, f"nemo_rl.{name}", module)

    def install(self, **settings: Any) -> None:
        nemo_rl.install(Settings(**{"cost": COST, "experts": self.batch.experts, **PATIENT, **settings}))

    def actor(self) -> Any:
        master = types.SimpleNamespace(policy=self.cfg)
        return self.rollouts.SyncRolloutActor(master, self.client)

    def roll_out(self, actor: Any = None, **changes: Any) -> Any:
        """What the driver hears of a batch in the queue."""
        made = {name: some for name, some in {**columns(self.batch), **changes}.items() if some is not None}
        return (actor or self.actor()).rollout_to_tq(made, partition_id="train")[0]

    def policy(self, **changes: Any) -> Any:
        return self.policy_class({**self.cfg, **changes}, RANKS, self.client)

    def passes(self, meta: Any, policy: Any = None) -> list[Any]:
        """Log-probs, then training, as one policy cuts them."""
        policy = policy or self.policy()
        return [plain(policy._logprob_dispatch(meta)), plain(policy.train_from_meta(meta)["cut"])]

    def raw_passes(self, meta: Any) -> list[Any]:
        """The same from raw routes: another policy, and a queue without counts."""
        counted = {name: row.pop(COUNTS[0], None) for name, row in self.client.rows.items()}
        made = self.passes(meta)
        for name, some in counted.items():
            if some is not None:
                self.client.rows[name][COUNTS[0]] = some
        self.client.reads.clear()
        return made


    def asked(self) -> Any:
        """Counts [samples, layers, experts] of the last step, over its windows."""
        return np.stack([some.counts for window in self.steps[-1].windows for some in window.routes])


def plain(made: Any) -> Any:
    shards, order = made
    return [[s["idx"], s.micro_batch_indices, s.micro_batch_lengths, s.elem_counts_per_gb] for s in shards], order


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch, planner: PlannerProcess) -> Iterator[Plane]:
    shared(monkeypatch, planner)
    yield Plane(monkeypatch)
    nemo_rl.uninstall()


def counted_by_numpy(batch: Batch) -> Any:
    """[samples, layers, experts] and [samples, layers]; rows of -1 and, in the dense layer, of zeros count nothing."""
    counts = np.zeros((batch.samples, batch.layers, batch.experts), dtype=np.int64)
    counts[:, 1:] = batch.counts()
    recorded = np.array([[0, n - 1, n - 1] for n in batch.lengths()])
    return counts, recorded


def test_the_shapes_are_as_recorded(plane: Plane) -> None:
    owner = types.SimpleNamespace(
        SyncRolloutActor=nemo_rollouts_like.SyncRolloutActor, kv_first_write=nemo_rollouts_like.kv_first_write,
        DataPlaneClient=nemo_rollouts_like.Client, TQPolicy=nemo_rollouts_like.TQPolicy,
    )  # fmt: skip
    for name, contract in contracts.NEMO_RL_DATA_PLANE.items():
        contracts.holds(owner, name, contract)


def test_the_actor_writes_what_numpy_counts(plane: Plane) -> None:
    plane.install()
    written = plane.client.column(plane.roll_out(), COUNTS[0])
    counts, recorded = counted_by_numpy(plane.batch)
    assert written.dtype == torch.int32 and written.shape == (32, 3, 5 + 8)
    assert (written[..., 5:].numpy() == counts).all() and (written[..., 4].numpy() == recorded).all()
    assert written[..., 2].tolist() == [[n] * 3 for n in plane.batch.lengths()]


def test_the_driver_reads_counts_and_no_routes(plane: Plane, warned: Told) -> None:
    plane.install()
    meta = plane.roll_out()
    policy = plane.policy()
    made = plane.passes(meta, policy)
    assert plane.client.reads == [COUNTS]  # for both passes
    assert (plane.asked() == counted_by_numpy(plane.batch)[0]).all() and plane.steps[-1].top_k == 2
    assert made == plane.raw_passes(meta) and warned() == []
    assert nemo_rl.session_of(policy).metrics["routepack/used"] == 1
    for cut, chunk in ((policy._logprob_dispatch(meta), 32), (policy.train_from_meta(meta)["cut"], 16)):
        contracts.check_nemo_shards(cut, plane.batch.lengths(), ranks=RANKS, cap=CAP, multiple=MULTIPLE, chunk=chunk)


def test_the_plan_is_none_of_the_frameworks(plane: Plane) -> None:
    meta = plane.roll_out()
    own = plane.passes(meta)
    assert plane.client.reads == []
    plane.install()
    meta = plane.roll_out()
    made = plane.passes(meta)
    assert all(one != other for one, other in zip(own, made, strict=True))


def test_counts_are_those_of_the_samples_that_are_named(plane: Plane, warned: Told) -> None:
    """Dynamic sampling leaves some out, and may order them anew."""
    plane.install()
    meta = plane.roll_out()
    kept = list(range(31, -1, -2))
    fewer = dataclasses.replace(
        meta,
        sample_ids=[meta.sample_ids[i] for i in kept],
        sequence_lengths=[meta.sequence_lengths[i] for i in kept],
    )
    made = plane.passes(fewer)
    assert plane.client.reads == [COUNTS] and warned() == []
    assert (plane.asked() == counted_by_numpy(plane.batch)[0][kept]).all()
    assert made == plane.raw_passes(fewer)


def _without(column: Any) -> Any:
    return None


def _of_other_experts(column: Any) -> Any:
    return torch.cat([column, torch.zeros(3, 1, dtype=torch.int32)], dim=1)


def _of_other_rows(column: Any) -> Any:
    column[:, 2] += 1
    return column


def _corrupted(column: Any) -> Any:
    column[1, 7] += 1
    return column


def _of_another_form(column: Any) -> Any:
    column[:, 0] += 1
    return column


def _of_fewer_layers(column: Any) -> Any:
    return column[:2]


SPOILED: dict[str, tuple[Callable[[Any], Any], list[int]]] = {
    "none has it": (_without, list(range(32))),
    "one has it not": (_without, [5]),
    "of other experts": (_of_other_experts, list(range(32))),
    "of other rows": (_of_other_rows, [31]),
    "one count is another": (_corrupted, [7]),
    "of another form": (_of_another_form, list(range(32))),
    "of fewer layers": (_of_fewer_layers, [3]),
    "of other integers": (lambda column: column.long(), list(range(32))),
    "of fractions": (lambda column: column.float(), list(range(32))),
    "flat": (lambda column: column.flatten(), list(range(32))),
}


@pytest.mark.parametrize("how", SPOILED)
def test_counts_that_are_missing_or_wrong_leave_it_to_the_routes(plane: Plane, warned: Told, how: str) -> None:
    plane.install()
    meta = plane.roll_out()
    raw = plane.raw_passes(meta)
    spoil, samples = SPOILED[how]
    for i in samples:
        row = plane.client.rows[meta.sample_ids[i]]
        changed = spoil(row.pop(COUNTS[0]))
        if changed is not None:
            row[COUNTS[0]] = changed
    assert plane.passes(meta) == raw and warned() == []
    assert plane.client.reads == [COUNTS, ROUTES]


def test_a_queue_that_raises_leaves_it_to_the_routes(
    plane: Plane, warned: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane.install()
    meta = plane.roll_out()
    raw = plane.raw_passes(meta)
    read = plane.client.get_samples

    def refusing(**wanted: Any) -> Any:
        if wanted["select_fields"] == COUNTS:
            raise RuntimeError("the controller is busy")
        return read(**wanted)

    monkeypatch.setattr(plane.client, "get_samples", refusing)
    assert plane.passes(meta) == raw and warned() == [] and plane.client.reads == [ROUTES]


def test_batches_of_actors_with_and_without_it_are_read_raw(plane: Plane, warned: Told) -> None:
    """As dynamic sampling joins them."""
    first = plane.roll_out()
    plane.install()
    actor = plane.actor()
    actor.rolled_out = 1
    meta = first.concat(plane.roll_out(actor))
    made = plane.passes(meta)
    assert plane.client.reads == [COUNTS, ROUTES] and warned() == []
    plane.client.reads.clear()
    again = plane.roll_out(actor).concat(plane.roll_out(actor))
    assert plane.passes(again) == made and plane.client.reads == [COUNTS]


def test_without_router_replay_nothing_is_asked(plane: Plane, warned: Told) -> None:
    plane.install()
    meta = plane.roll_out()
    policy = plane.policy(router_replay={"enabled": False})
    plane.passes(meta, policy)
    assert plane.client.reads == [] and len(warned()) == 1
    assert nemo_rl.session_of(policy).metrics["routepack/fallback"] == Reason.NO_ROUTES


def moving(layers: tuple[int, ...], batch: Batch) -> Any:
    """Workers that say which layers have experts, where they are at home."""
    maps = np.tile(np.arange(batch.experts, dtype=np.int32), (len(layers), 1))
    return types.SimpleNamespace(here=Where(maps, 2, 0, layers=layers), torn=None, failed="")


def test_dense_layers_are_left_out_where_workers_say_which(plane: Plane, warned: Told) -> None:
    plane.install()
    meta = plane.roll_out()
    makings = []
    for _ in range(2):
        policy = plane.policy()
        nemo_rl._MOVERS[policy] = moving((2, 3), plane.batch)
        makings.append(plane.passes(meta, policy))
        assert plane.client.reads.pop(0) == COUNTS and (plane.asked() == plane.batch.counts()).all()
        for row in plane.client.rows.values():
            row.pop(COUNTS[0], None)
    assert plane.client.reads == [ROUTES] and makings[0] == makings[1] and warned() == []


def test_layers_that_routes_do_not_have_are_refused_from_counts_too(plane: Plane, warned: Told) -> None:
    plane.install()
    meta = plane.roll_out()
    policy = plane.policy()
    nemo_rl._MOVERS[policy] = moving((3, 4), plane.batch)
    plane.passes(meta, policy)
    assert nemo_rl.session_of(policy).metrics["routepack/fallback"] == Reason.BAD_INPUT
    assert "found 3 layers" in warned()[0] and plane.client.reads == [COUNTS]


def test_what_the_actor_answers_is_as_before(plane: Plane) -> None:
    before = plane.roll_out()
    own = {name: dict(row) for name, row in plane.client.rows.items()}
    plane.install()
    assert plane.roll_out() == before and COUNTS[0] not in before.fields
    for name, row in plane.client.rows.items():
        row.pop(COUNTS[0])
        assert row.keys() == own[name].keys() and all(torch.equal(some, own[name][key]) for key, some in row.items())


@pytest.mark.parametrize(
    "change",
    [
        {"routed_experts": None},
        {"routed_experts": torch.full((32, 90, 3, 2), 9, dtype=torch.int8)},
        {"routed_experts": torch.zeros(32, 90, 6, dtype=torch.int8)},
        {"routed_experts": torch.zeros(32, 90, 3, 2)},
    ],
    ids=["no routes", "unknown expert", "flat", "fractions"],
)
def test_routes_that_cannot_be_counted_are_written_as_they_are(plane: Plane, change: dict[str, Any]) -> None:
    before = plane.roll_out(**change)
    own = {name: set(row) for name, row in plane.client.rows.items()}
    plane.install()
    assert plane.roll_out(**change) == before
    assert {name: set(row) for name, row in plane.client.rows.items()} == own


def test_an_actor_without_routepack_writes_what_it_wrote(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    plane.install()
    with monkeypatch.context() as environment:
        environment.setitem(sys.modules, "routepack.adapters.nemo_rl_rollouts", None)
        meta = plane.roll_out()
    assert all(COUNTS[0] not in row for row in plane.client.rows.values())
    plane.passes(meta)
    assert plane.client.reads == [COUNTS, ROUTES]


def test_an_actor_that_does_not_know_how_many_experts_writes_what_it_wrote(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    plane.install(experts=0)
    plane.roll_out()
    assert all(COUNTS[0] not in row for row in plane.client.rows.values())


def test_the_number_of_experts_is_that_of_the_model(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"of/8-experts": types.SimpleNamespace(num_experts=8)}
    configs = types.SimpleNamespace(from_pretrained=lambda name, **_: known[name])
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoConfig=configs))
    plane.cfg["model_name"] = "of/8-experts"
    plane.install(experts=0)
    meta = plane.roll_out()
    assert plane.client.column(meta, COUNTS[0])[0, 0, 1] == 8
    plane.passes(meta)
    assert plane.client.reads == [COUNTS]


def test_a_rollout_that_fails_fails_once(plane: Plane) -> None:
    plane.install()
    actor = plane.actor()
    with pytest.raises(ValueError, match="found no prompts"):
        actor.rollout_to_tq(None, partition_id="train")
    assert actor.rolled_out == 1


def test_taking_out_leaves_the_class_as_it_was(plane: Plane) -> None:
    actor = plane.rollouts.SyncRolloutActor
    before = dict(vars(actor))
    plane.install()
    plane.install(experts=4)
    assert vars(actor)["rollout_to_tq"] is not before["rollout_to_tq"]
    nemo_rl.uninstall()
    assert dict(vars(actor)) == before


def test_a_class_that_ray_has_wrapped_is_left_as_it_was(plane: Plane) -> None:
    """Ray makes a subclass of an actor's class, and ships that one."""
    inner = type("Class", (nemo_rollouts_like.SyncRolloutActor,), {})
    plane.rollouts.SyncRolloutActor = types.SimpleNamespace(
        __ray_metadata__=types.SimpleNamespace(modified_class=inner)
    )
    plane.install()
    assert "rollout_to_tq" in vars(inner)
    meta = plane.roll_out(inner(types.SimpleNamespace(policy=plane.cfg), plane.client))
    assert plane.client.column(meta, COUNTS[0]).shape == (32, 3, 13)
    nemo_rl.uninstall()
    assert "rollout_to_tq" not in vars(inner)


def test_what_ray_adds_to_a_call_stays_with_ray(plane: Plane) -> None:
    """Ray puts the context of a trace into calls of actors, and takes it out again in what it wraps around methods."""
    own = nemo_rollouts_like.SyncRolloutActor.rollout_to_tq

    @functools.wraps(own)
    def traced(self: Any, *args: Any, _ray_trace_ctx: Any = None, **kwargs: Any) -> Any:
        return own(self, *args, **kwargs)

    plane.rollouts.SyncRolloutActor = type("Class", (nemo_rollouts_like.SyncRolloutActor,), {"rollout_to_tq": traced})
    plane.install()
    meta = plane.actor().rollout_to_tq(columns(plane.batch), partition_id="train", _ray_trace_ctx={"trace": "1"})[0]
    assert plane.client.column(meta, COUNTS[0]).shape == (32, 3, 13)


def test_switched_off_there_is_no_hook(plane: Plane) -> None:
    before = dict(vars(plane.rollouts.SyncRolloutActor))
    plane.install(enabled=False)
    assert dict(vars(plane.rollouts.SyncRolloutActor)) == before
    meta = plane.roll_out()
    plane.passes(meta)
    assert plane.client.reads == []


def _writing_otherwise(self: Any, input_batch: Any, *, partition_id: str) -> None:
    return None


@pytest.mark.parametrize("how", ["no module", "no class", "no method", "another write"])
def test_a_nemo_rl_without_the_hook_is_told_and_planned_all_the_same(
    plane: Plane, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, how: str, warned: Told
) -> None:
    meta = plane.roll_out()
    if how == "no module":
        monkeypatch.setitem(sys.modules, "nemo_rl.experience.sync_rollout_actor", None)
    elif how == "no class":
        del plane.rollouts.SyncRolloutActor
    else:
        method = {} if how == "no method" else {"rollout_to_tq": _writing_otherwise}
        plane.rollouts.SyncRolloutActor = type("SyncRolloutActor", (), method)
    log = nemo_rl._LOG  # AReaL, which other tests import, configures logging anew and replaces the root of all loggers
    monkeypatch.setattr(log, "disabled", False)
    monkeypatch.setattr(log, "handlers", [caplog.handler])
    monkeypatch.setattr(log, "level", logging.INFO)
    log._cache.clear()  # of levels
    plane.install()
    assert "counted on the driver" in caplog.text
    plane.passes(meta)
    assert plane.client.reads == [COUNTS, ROUTES] and warned() == []


HERE = pathlib.Path(__file__).resolve().parent
SITE = """
import os, sys, typing, importlib.util
import typing_extensions
typing.TypedDict = typing_extensions.TypedDict  # NeMo RL is written for a Python where these are the same
spec = importlib.util.spec_from_file_location("tests_adapters", {init!r}, submodule_search_locations=[{here!r}])
sys.modules["tests_adapters"] = importlib.util.module_from_spec(spec)
class BeforeNemo:
    def find_spec(self, name, path=None, target=None):
        if name == "nemo_rl":
            sys.meta_path.remove(self)
            import transformers.audio_utils, transformers.video_utils  # would take empty packages for real ones
            import empty_packages
            try:
                import torch.utils.tensorboard
            except ImportError:
                sys.modules["torch.utils.tensorboard"] = empty_packages.Empty("torch.utils.tensorboard")
            empty_packages.install({empty!r})
class WithoutRoutepack:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "routepack":
            raise ModuleNotFoundError("No module named 'routepack'", name=name)
sys.meta_path.insert(0, BeforeNemo())
if "TESTS_WITHOUT_ROUTEPACK" in os.environ:
    sys.meta_path.insert(0, WithoutRoutepack())
"""
EMPTY = (*checkouts.POLICY_NEEDS, *checkouts.WITHOUT_NEMO_NEEDS, "soundfile", "decord", "absl")


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What NeMo RL's own classes did, with Ray, TransferQueue, two actors and a policy."""
    checkout = checkouts.folder(checkouts.NEMO_RL)
    for name in ("ray", "transformers", "tensordict", "transfer_queue"):
        pytest.importorskip(name, reason=f"NeMo RL's data plane needs {name}: this test did NOT run")
    folder = tmp_path_factory.mktemp("nemo_rl_rollouts")
    site = SITE.format(init=str(HERE / "__init__.py"), here=str(HERE), empty=EMPTY)
    (folder / "sitecustomize.py").write_text(site)
    paths = [folder, HERE.parent / "on_ray", checkout]
    said = checkouts.run_job("nemo_rl_rollouts_job.py", str(folder), paths=paths)
    assert "RoutePackWarning" not in said and "own packing is used" not in said
    made = json.loads((folder / "result.json").read_text())
    for how in ("with", "without"):
        made[how]["arrays"] = dict(np.load(folder / f"{how}.npz"))
    return made


def fields_read(passes: Any) -> list[list[str]]:
    return [fields for fields, _, _ in passes["reads"]]


def test_the_data_plane_of_a_checkout_is_as_recorded(heard: Any) -> None:
    assert heard["held"] == list(contracts.NEMO_RL_DATA_PLANE)


def test_the_actor_of_a_checkout_writes_what_numpy_counts(heard: Any) -> None:
    """It is a Ray actor, and the hook came with its class. Routes are those that NeMo RL put together of two turns."""
    arrays, lengths, batch = heard["with"]["arrays"], heard["with"]["lengths"], Batch()
    routes, counts = arrays["routes"], arrays["counts"]
    assert counts.dtype == np.int32 and counts.shape == (batch.samples, batch.layers, 5 + batch.experts)
    assert len(set(lengths)) > 10 and (routes == -1).all(axis=(2, 3)).any()
    assert any("environment" in roles for roles in heard["with"]["roles"])
    for i, length in enumerate(lengths):
        for layer in range(batch.layers):
            rows = routes[i, :length, layer]
            rows = rows[(rows != -1).any(axis=1) & (rows != 0).any(axis=1)]
            head = [1, batch.experts, length, batch.top_k, len(rows)]
            assert counts[i, layer].tolist() == head + np.bincount(rows.ravel(), minlength=batch.experts).tolist()


def test_the_policy_of_a_checkout_plans_from_counts_alone(heard: Any) -> None:
    with_counts, raw = heard["with"], heard["without"]
    assert fields_read(with_counts) == [COUNTS]  # once for three passes
    assert with_counts["reads"][0][1] == 32 * 3 * 13 * 4
    assert with_counts["shards"] == raw["shards"] and with_counts["lengths"] == raw["lengths"]
    metrics = with_counts["metrics"]
    assert metrics["routepack/used"] == 1 and metrics["routepack/passes"] == 3 and metrics["routepack/windows"] == 2
    for parts, chunk in zip(with_counts["shards"], (32, 32, 16), strict=True):
        shards = []
        for part in parts:
            assert "routepack_counts" not in part["fields"]
            lengths = [with_counts["lengths"][i] for i in part["samples"]]
            shard = nemo_like.SlicedDataDict({"input_lengths": torch.tensor(lengths)})
            for name in contracts.NEMO_RL["shard"]:
                setattr(shard, name, part[name])
            shards.append(shard)
        order = [i for part in parts for i in part["samples"]]
        contracts.check_nemo_shards(
            (shards, order), with_counts["lengths"], ranks=RANKS, cap=heard["cap"], multiple=MULTIPLE, chunk=chunk
        )


def test_an_actor_of_a_checkout_without_routepack_writes_what_it_wrote(heard: Any) -> None:
    made, other = heard["without"], heard["with"]
    assert made["stored"] == "not there" and other["stored"] == "there"
    assert fields_read(made) == [COUNTS, ROUTES]
    for name in ("fields", "lengths", "carry", "generation"):
        assert made[name] == other[name], name
    for name in ("routes", "input_ids"):
        assert (made["arrays"][name] == other["arrays"][name]).all(), name


def test_batches_of_both_actors_of_a_checkout_are_read_raw(heard: Any) -> None:
    assert fields_read(heard["both"]) == [COUNTS, ROUTES]
    assert heard["both"]["metrics"]["routepack/used"] == 1 and heard["both"]["metrics"]["routepack/windows"] == 4


def test_what_the_driver_of_a_checkout_reads_besides_is_as_before(heard: Any) -> None:
    assert heard["with"]["content"] == heard["without"]["content"]
    assert heard["with"]["roles"] == heard["without"]["roles"] and len(heard["with"]["roles"]) == 32


def test_the_end_of_a_step_of_a_checkout_drops_the_counts(heard: Any) -> None:
    assert "there" not in heard["with"]["after"].values() and heard["with"]["after"].keys() == {*COUNTS, *ROUTES}


def test_taking_out_leaves_the_actor_of_a_checkout_as_it_was(heard: Any) -> None:
    assert heard["left as it was"]
