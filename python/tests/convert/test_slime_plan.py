# SPDX-License-Identifier: Apache-2.0
"""The packing that slime used becomes a plan that can be scored; the dump is from slime's own code."""

import json
import pathlib

import numpy as np
import pytest

import routepack
from convert.framework_routes import EXPERTS, tokens_of
from routepack.convert import Options, convert, slime_plan, slime_train

torch = pytest.importorskip("torch")
DATA = pathlib.Path(__file__).parent / "data"
DUMP = DATA / "slime_train_7.pt"
COST = routepack.CostModel([routepack.Stage("full", 1.5, 2.5)], 1.0)


def options(step):
    return Options(experts=EXPERTS, layers=(1, 2), steps=(step,), rollout=DATA / "slime_rollout_7.pt")


def plan_of(step, **more):
    window = convert("slime-train", [DUMP], options(step)).window
    how = slime_plan.PlanOptions(ep=4, cost=COST, **more)
    value = slime_plan.plan(
        DUMP,
        options(step),
        how,
        lengths=np.asarray(window.lengths).tolist(),
        layers=2,
        experts=EXPERTS,
        fingerprint=window.fingerprint,
    )
    return window, value


@pytest.mark.parametrize("step", [0, 1])
def test_the_layout_is_that_of_the_dump(step):
    dump = torch.load(DUMP, weights_only=True)
    _, value = plan_of(step)
    start = sum(dump["dp_shards"][0]["num_microbatches"][:step])
    for shard in dump["dp_shards"]:
        for r, row in enumerate(value["layout"]):
            cell = shard["micro_batch_indices"][start + r]
            wanted = [shard["partition"][i] for i in cell]
            assert [4 * step + i for i in row[shard["data_parallel_rank"]]] == wanted
    assert sorted(i for row in value["layout"] for cell in row for i in cell) == list(range(4))
    assert value["rows"] == len(value["layout"]) == dump["dp_shards"][0]["num_microbatches"][step]
    assert value["capacity"] == max(
        sum(tokens_of(4 * step + i) for i in cell) for row in value["layout"] for cell in row
    )


@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("more", [{}, {"shards": [[1], [0]]}, {"cap": 24}, {"cap": 10}])
def test_the_plan_is_verified_and_scored_by_routepack(tmp_path, step, more):
    window, value = plan_of(step, **more)
    slime_plan.save(value, tmp_path / "p.json")
    plan = routepack.Plan.load(tmp_path / "p.json")
    broken = [rule for rule, _ in plan.verify(window)]
    if more.get("cap") == 10 and any(len(cell) > 1 for row in value["layout"] for cell in row):
        assert broken  # slime's cells hold more than this cap
        return
    assert broken == []
    assert all(component > 0 for component in plan.evaluate(window))


def test_a_window_of_other_samples_is_refused():
    how = slime_plan.PlanOptions(ep=4, cost=COST)
    with pytest.raises(routepack.InvalidInput, match="as in the window"):
        slime_plan.plan(DUMP, options(0), how, lengths=[1, 2], layers=2, experts=8, fingerprint=None)


@pytest.mark.parametrize(
    ("more", "message"),
    [({"ep": 3}, "divisor of 8"), ({"shards": [[0, 0]]}, "once each"), ({"shards": [[0], [1], []]}, "once each")],
)
def test_impossible_topologies_are_refused(more, message):
    how = slime_plan.PlanOptions(**{"ep": 4, "cost": COST, **more})
    with pytest.raises(routepack.InvalidInput, match=message):
        slime_plan.plan(DUMP, options(0), how, lengths=[1] * 4, layers=2, experts=8, fingerprint=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format_version=1), "format_version: found 1, wanted 2"),
        (lambda d: d.update(dp_shards=[]), "one entry per rank"),
        (lambda d: d["dp_shards"][1].update(data_parallel_rank=0), "once each"),
        (lambda d: d["dp_shards"][1].update(num_microbatches=[9, 9]), "other numbers|cells"),
        (lambda d: d["dp_shards"][0]["partition"].__setitem__(0, d["dp_shards"][1]["partition"][0]), "on two ranks"),
        (lambda d: d["dp_shards"][0]["micro_batch_indices"].__setitem__(0, [99]), "no exact cover"),
        (lambda d: d["dp_shards"][0]["micro_batch_indices"].pop(), "found .* cells"),
        (lambda d: d["dp_shards"][0].update(partition=None), "partition"),
    ],
)
def test_contradicting_schedules_are_refused(change, message):
    dump = torch.load(DUMP, weights_only=True)
    change(dump)
    with pytest.raises(routepack.FormatError, match=message):
        slime_train.schedule(dump, "dump")


def test_a_plan_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(routepack.IoError):
        slime_plan.save({"a": 1}, tmp_path / "no" / "p.json")
    (tmp_path / "p.json").write_text("old")
    slime_plan.save({"a": 1}, tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]


def test_a_rollout_dump_of_another_rollout_is_refused(tmp_path):
    rollout = torch.load(DATA / "slime_rollout_7.pt", weights_only=True)
    rollout["samples"][2]["tokens"] = [1, 2, 3]
    torch.save(rollout, tmp_path / "r.pt")
    wrong = Options(experts=EXPERTS, steps=(0,), rollout=tmp_path / "r.pt")
    with pytest.raises(routepack.FormatError, match="another rollout"):
        convert("slime-train", [DUMP], wrong)
