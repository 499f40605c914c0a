# SPDX-License-Identifier: Apache-2.0
"""Plans from Python: the same as from the command line, and everything about them."""

from __future__ import annotations

import json
import os
import subprocess
import threading

import numpy as np
import pytest

import routepack


@pytest.fixture(scope="module")
def window(root):
    return routepack.Window.load(root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors")


@pytest.fixture(scope="module")
def cost(root):
    return routepack.CostModel.load(root / "examples" / "gptoss20b.toml")


@pytest.fixture(scope="module")
def plan(window, cost):
    return routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost)


def test_a_plan_is_sound_and_has_its_figures(plan, window):
    assert plan.verify(window) == []
    assert plan.evaluate(window) == plan.score
    assert plan.physical_to_logical.shape == (24, 32) and plan.physical_to_logical.dtype == np.int32
    assert (np.sort(plan.physical_to_logical, axis=1) == np.arange(32)).all()
    assert plan.num_slots == 8 and plan.num_rows == len(plan.layout)
    for r, row in enumerate(plan.layout):
        for d, cell in enumerate(row):
            assert cell and (plan.rows[cell] == r).all() and (plan.slots[cell] == d).all()
            assert window.lengths[cell].sum() <= plan.capacity
    assert plan.bound is not None and plan.bound <= plan.score[0]
    assert {"ep_efficiency", "cv_global", "joint"} <= set(plan.metrics)
    assert plan.moves["experts"] == pytest.approx(plan.moves["fraction"] * 24 * 32)
    assert {"place", "rows"} <= set(plan.timings_ms) and min(plan.timings_ms.values()) >= 0.0
    assert "above the bound" in repr(plan)


def test_a_plan_file_comes_back(plan, window, tmp_path):
    plan.save(tmp_path / "plan.json")
    again = routepack.Plan.load(tmp_path / "plan.json")
    assert again.hash == plan.hash and again.layout == plan.layout
    assert json.loads(plan.to_json())["format"] == "routepack.plan/1"
    assert again.placement == plan.placement == routepack.Placement.load(tmp_path / "plan.json")


def test_python_and_the_command_line_plan_the_same(plan, root, tmp_path):
    program = os.environ.get("ROUTEPACK_BIN")
    if program is None:
        pytest.skip("ROUTEPACK_BIN does not name the command line")
    output = tmp_path / "plan.json"
    window = root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors"
    options = ["--dp", "8", "--ep", "8", "--cap", "2048", "--cost", str(root / "examples" / "gptoss20b.toml")]
    subprocess.run([program, "plan", str(window), "-o", str(output), *options], check=True, capture_output=True)
    assert routepack.Plan.load(output).hash == plan.hash


def test_the_current_placement_is_kept_when_asked(plan, window, cost):
    params = routepack.PlanParams(placement="keep")
    topology = routepack.Topology(dp=8, ep=8)
    for current in (plan, plan.placement):
        kept = routepack.plan(window, topology, capacity=2048, cost=cost, params=params, current=current)
        assert kept.placement == plan.placement and kept.moves["experts"] == 0


def test_no_layout_is_an_error_that_says_what_would_help(window, cost):
    with pytest.raises(routepack.InfeasibleError, match="no layout: .*; what would help: ") as caught:
        routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=10, cost=cost)
    assert caught.value.reason and caught.value.remedy


def test_contradictions_are_refused(window, cost):
    with pytest.raises(routepack.InvalidInput):
        routepack.plan(window, routepack.Topology(dp=8, ep=5), capacity=2048, cost=cost)
    with pytest.raises(routepack.InvalidInput, match='sync: found "never"'):
        routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, sync="never")


def test_two_plans_may_run_at_once(plan, window, cost):
    hashes = []

    def work() -> None:
        hashes.append(routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost).hash)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hashes == [plan.hash, plan.hash]


def test_options_come_from_the_one_list():
    constraints = routepack.Constraints(sample_multiple=8, equal_count=True)
    assert constraints.sample_multiple == 8 and constraints.as_dict()["equal_count"] is True
    constraints.sample_multiple = 16
    assert constraints != routepack.Constraints() and constraints.sample_multiple == 16
    assert routepack.Constraints(**constraints.as_dict()) == constraints
    assert repr(routepack.PlanParams(seed=3)).startswith("PlanParams(") and "seed=3" in repr(routepack.PlanParams(seed=3))
    with pytest.raises(routepack.InvalidInput, match="sample_multiple: found 0, wanted an integer from 1 to"):
        routepack.Constraints(sample_multiple=0)
    with pytest.raises(routepack.InvalidInput, match="equal_count: found 1, wanted True or False"):
        routepack.Constraints(equal_count=1)
    with pytest.raises(routepack.InvalidInput, match="seed: found True"):
        routepack.PlanParams(seed=True)
    with pytest.raises(routepack.InvalidInput, match="placement: found 'best', wanted "):
        routepack.PlanParams(placement="best")
    with pytest.raises(TypeError, match="Constraints: unknown option rows"):
        routepack.Constraints(rows=3)


def test_the_search_has_options_of_its_own():
    assert routepack.PlanParams().search is None
    params = routepack.PlanParams(search=routepack.SearchParams(levels=3, hot=0.5))
    assert params.search is not None and params.search.levels == 3 and params.search.hot == 0.5
    assert params != routepack.PlanParams() and routepack.PlanParams(**params.as_dict()) == params
    with pytest.raises(routepack.InvalidInput, match="levels: found 0, wanted an integer from 1 to"):
        routepack.SearchParams(levels=0)
    with pytest.raises(routepack.InvalidInput, match="near_share: found 2.0, wanted a number from 0"):
        routepack.SearchParams(near_share=2.0)
    with pytest.raises(routepack.InvalidInput, match="search: found 'fast', wanted SearchParams or None"):
        routepack.PlanParams(search="fast")


def test_placements_are_arrays(tmp_path):
    maps = np.array([[2, 0, 1, 3]], dtype=np.int32)
    placement = routepack.Placement.from_maps(ranks=2, physical_to_logical=maps)
    assert placement.physical_to_logical.tolist() == maps.tolist()
    assert placement.logical_to_physical.tolist() == [[1, 2, 0, 3]] and placement.rank_of.tolist() == [[0, 1, 0, 1]]
    placement.save(tmp_path / "p.json", epoch=3)
    assert routepack.Placement.load(tmp_path / "p.json") == placement
    for wrong, message in (([[0, 0, 1, 2]], "permutation|twice"), ([[0, 1, 2]], "divide|2"), ([[0, -1, 1, 2]], "found -1")):
        with pytest.raises(routepack.InvalidInput, match=message):
            routepack.Placement.from_maps(ranks=2, physical_to_logical=np.array(wrong, dtype=np.int32))


def test_topologies_and_costs():
    assert routepack.Topology.from_shards(4, [[0, 2], [1, 3]]).shards == [[0, 2], [1, 3]]
    with pytest.raises(routepack.InvalidInput, match="found slot -1"):
        routepack.Topology.from_shards(4, [[0, -1]])
    stages = [routepack.Stage("kda", alpha=100.0), routepack.Stage("mla", alpha=60.0, beta=200.0)]
    cost = routepack.CostModel(stages, expert=[1.0, 2.0])
    assert cost.stages == stages and cost.expert == [1.0, 2.0]
    assert routepack.CostModel.parse(cost.to_toml()) == cost
    with pytest.raises(routepack.InvalidInput):
        routepack.CostModel([routepack.Stage("a", alpha=-1.0)])
