# SPDX-License-Identifier: Apache-2.0
"""Plans from Python: the same as from the command line, and everything about them."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert plan.moves["experts"] == pytest.approx(plan.moves["fraction"] * 24 * 32)
    assert {"place", "rows", "total"} <= set(plan.timings_ms) and min(plan.timings_ms.values()) >= 0.0
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


CPP = r"""
#include <cstdio>
#include <variant>

#include "routepack/plan_file.h"
#include "routepack/routepack.h"

int main(int, char** arguments) {
  using namespace routepack;
  const Window window = Window::load(arguments[1]);
  const CostModel cost = CostModel::load(arguments[2]);
  const Instance instance(window, Topology::megatron({.dp = 8, .ep = 8}), cost, 2048);
  for (const bool other : {false, true}) {
    PlanParams params;
    params.seed = other ? 5 : 0;
    params.two_batches = other;
    const auto made = std::get<Plan>(make_plan(instance, params));
    std::puts(plan_hash(to_json(make_record(instance, params, made))).c_str());
  }
}
"""


def test_cpp_and_python_plan_the_same(plan, window, cost, root, tmp_path):
    program = os.environ.get("ROUTEPACK_BIN")
    library = pathlib.Path(program or "").parents[1] / "libroutepack.a" if program else None
    if library is None or not library.exists() or shutil.which("g++") is None:
        pytest.skip("no C++ library beside the command line that ROUTEPACK_BIN names")
    (tmp_path / "plan.cc").write_text(CPP, encoding="utf-8")
    compiler = ["g++", "-std=c++20", f"-I{root / 'include'}", str(tmp_path / "plan.cc"), "-o", str(tmp_path / "plan"), str(library)]
    subprocess.run([*compiler, "-ltomlplusplus", "-lxxhash", "-lhwy", "-lpthread"], check=True, capture_output=True)
    files = [root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors", root / "examples" / "gptoss20b.toml"]
    done = subprocess.run([str(tmp_path / "plan"), *map(str, files)], check=True, capture_output=True, text=True)
    params = routepack.PlanParams(seed=5, two_batches=True)
    other = routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=params)
    assert done.stdout.split() == [plan.hash, other.hash]


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


# Everything that is known about a plan


def test_the_search_and_the_placing_say_what_they_did(plan, window):
    assert plan.search.ending in ("budget", "bound reached") and plan.search.accepted <= plan.search.proposals
    assert plan.search.seed >= plan.score[0] and plan.search.levels > 0 and plan.search.seeds > 0
    assert len(plan.placing.layers) == 24 and set(plan.placing.layers) <= {"kept", "balanced", "hot expert", "budget", "no swap helps"}
    assert plan.placing.swaps_needed <= plan.placing.sticky_swaps and plan.placing.first_batch is None
    assert plan.row_scores.shape == (plan.num_rows, 1) and plan.row_scores.sum() == pytest.approx(plan.score[1])
    assert plan.bounds.any_placement == plan.bound <= plan.bounds.fixed_placement <= plan.score[0]
    assert (plan.bounds.least_peak <= plan.bounds.placed_peak).all() and (plan.bounds.rank_mean <= plan.bounds.least_peak).all()
    assert plan.bounds.layers_that_need_replication == (plan.bounds.copies_needed > 0).sum()
    assert isinstance(plan.rows_because, str) and plan.ranks == 8 and plan.num_samples == window.samples


def test_the_cycles_lead_from_where_experts_were_to_where_they_are(plan):
    maps = np.tile(np.arange(32), (24, 1))
    for layer, slots in plan.placing.cycles:
        maps[layer, slots[1:] + slots[:1]] = maps[layer, slots]
    assert (maps == plan.physical_to_logical).all()
    assert plan.params is not None and plan.params.model == "gpt-oss-20b", "the window says so"
    assert plan.placing.bytes_in.sum() == 14 * 3 * 2880 * 2880 * plan.moves["experts"]


def test_bytes_are_counted_where_an_expert_has_a_weight(window, cost):
    params = routepack.PlanParams(effort="fast", expert_bytes=1000, two_batches=True, ranks_per_node=4)
    made = routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=params)
    moved = made.moves["experts"]
    assert made.placing.bytes_in.sum() == made.placing.bytes_out.sum() == made.moves["bytes"] == 1000 * moved > 0
    assert 0 < made.placing.between_nodes <= moved and 0 <= made.placing.same_index <= moved
    assert made.placing.first_batch.layers == 24
    again = routepack.Plan.from_json(made.to_json())
    assert again.placing.first_batch == made.placing.first_batch and again.placing.cycles == made.placing.cycles
    assert again.placing.bytes_out.tolist() == made.placing.bytes_out.tolist()


def test_a_plan_that_was_read_knows_what_its_file_says(plan, window):
    again = routepack.Plan.from_json(plan.to_json(), "somewhere")
    assert again.search.proposals == plan.search.proposals and again.search.ending == plan.search.ending
    assert again.placing.layers == plan.placing.layers and again.placing.sticky_swaps == plan.placing.sticky_swaps
    assert again.bounds is None and again.row_scores is None and again.rows_because is None
    document = json.loads(plan.to_json())
    for key, value in (("search", {"ending": "never"}), ("placing", 3), ("moves", None)):
        broken = {**document, key: value}
        if value is None:
            del broken[key]
        read = routepack.Plan.from_json(json.dumps(broken))
        assert (read.search if key == "search" else read.placing) is None
    with pytest.raises(routepack.FormatError, match="somewhere"):
        routepack.Plan.from_json("{}", "somewhere")


def test_loads_are_those_that_the_score_sees(plan, window):
    loads = plan.rank_loads(window)
    assert loads.dtype == np.int64 and loads.sum() == window.counts.sum(dtype=np.int64)
    rank_of = plan.placement.rank_of
    for r, layer in ((0, 0), (plan.num_rows - 1, 23)):
        inside = window.counts[plan.rows == r, layer].sum(axis=0, dtype=np.int64)
        assert loads[r, 0, layer].tolist() == np.bincount(rank_of[layer], weights=inside, minlength=8).tolist()
    assert loads.max() == plan.metrics["routepack/tail_peak"]
    assert loads.max(axis=(1, 3)).sum() == plan.metrics["routepack/expert_peak_sum"]
    other = routepack.Window.from_arrays(lengths=window.lengths[:9], counts=np.array(window.counts[:9]), top_k=4)
    with pytest.raises(routepack.InvalidInput, match="another window"):
        plan.rank_loads(other)


def test_padding_is_load_too(cost):
    counts = np.array([[[3, 1]], [[0, 5]]], dtype=np.uint16)
    padding = np.array([[1 << 16, 3 << 16]], dtype=np.uint32)
    window = routepack.Window.from_arrays(
        lengths=np.array([4, 5], dtype=np.int32), counts=counts, top_k=1, pad_counts=padding
    )
    constraints = routepack.Constraints(sample_multiple=8)
    made = routepack.plan(window, routepack.Topology(dp=2, ep=2), capacity=8, cost=cost, constraints=constraints,
                          params=routepack.PlanParams(placement="keep"))  # fmt: skip
    assert made.rank_loads(window).tolist() == [[[[3 + 7, 6 + 21]]]]


def test_plans_travel_between_processes(plan):
    again = pickle.loads(pickle.dumps(plan))
    assert again.hash == plan.hash and again.layout == plan.layout
    assert pickle.loads(pickle.dumps(plan.placement)) == plan.placement


# Several steps, one placement


def test_steps_of_one_batch_share_a_placement(window, cost, root, tmp_path):
    half = window.samples // 2
    parts = [
        routepack.Window.from_arrays(lengths=np.array(window.lengths[share]), counts=np.array(window.counts[share]), top_k=4)
        for share in (slice(0, half), slice(half, None))
    ]
    options: dict[str, Any] = {"capacity": 2048, "cost": cost, "params": routepack.PlanParams(effort="fast")}
    plans = routepack.plan_many(parts, routepack.Topology(dp=8, ep=8), **options)
    assert plans[0].placement == plans[1].placement
    assert [plan.verify(part) for plan, part in zip(plans, parts, strict=True)] == [[], []]
    assert routepack.plan_many([], routepack.Topology(dp=8, ep=8), **options) == []
    program = os.environ.get("ROUTEPACK_BIN")
    if program is None:
        pytest.skip("ROUTEPACK_BIN does not name the command line")
    names = [str(tmp_path / f"{name}.safetensors") for name in "ab"]
    for part, name in zip(parts, names, strict=True):
        part.save(name)
    subprocess.run([program, "plan", *names, "-o", str(tmp_path / "plans"), "--one-placement", "--dp", "8", "--ep", "8",
                    "--cap", "2048", "--effort", "fast", "--cost", str(root / "examples" / "gptoss20b.toml")],
                   check=True, capture_output=True)  # fmt: skip
    files = [tmp_path / "plans" / f"{name}.plan.json" for name in "ab"]
    assert [routepack.Plan.load(file).hash for file in files] == [plan.hash for plan in plans]


def test_steps_that_disagree_are_refused(window, cost):
    other = routepack.Window.from_arrays(lengths=np.array([4], dtype=np.int32), counts=np.array([[[4, 4]]], dtype=np.uint16), top_k=2)
    with pytest.raises(routepack.InvalidInput, match="found 24 layers of 32 experts|wanted"):
        routepack.plan_many([window, other], routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost)


# While it plans


ENDLESS = routepack.PlanParams(search=routepack.SearchParams(proposals_per_sample=1 << 30, most_proposals=1 << 40))


def test_progress_is_told_and_changes_nothing(plan, window, cost):
    seen: list[tuple[str, int, int, float, float, float, int]] = []
    threads = set()

    def progress(now: routepack.Progress) -> None:
        threads.add(threading.get_ident())
        seen.append((now.phase, now.level, now.levels, now.best, now.gap, now.acceptance, now.proposals))

    placements = []
    watched = routepack.plan(
        window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, progress=progress, placed=placements.append
    )
    assert watched.hash == plan.hash and threads == {threading.get_ident()}
    phases = list(dict.fromkeys(phase for phase, *_ in seen))
    assert phases == ["demand", "place", "loads", "rows", "seed", "search", "refine", "check"]
    levels = [entry for entry in seen if entry[0] == "search" and entry[1] > 0]
    assert len(levels) >= 2 and all(one[6] <= two[6] and one[3] >= two[3] for one, two in zip(levels, levels[1:], strict=False))
    assert all(0 <= acceptance <= 1 and gap >= 0 for *_, gap, acceptance, _ in levels)
    assert len(placements) == 1 and placements[0].layers == 24
    begins = {entry[0]: entry for entry in reversed(seen) if entry[1] == 0}
    for phase in ("demand", "place", "loads", "rows", "seed"):
        assert begins[phase][3] == begins[phase][4] == math.inf, "there is no layout yet"
    assert begins["refine"][3] == levels[-1][3] < math.inf and begins["refine"][4] == levels[-1][4]


def test_a_callback_ends_the_search_with_a_valid_plan(window, cost):
    def enough(now: routepack.Progress) -> bool:
        return now.level < 2

    made = routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, progress=enough)
    assert not made.complete and made.verify(window) == [] and made.search.levels <= 3
    never = routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, progress=lambda now: False)
    assert not never.complete and never.verify(window) == []


@pytest.mark.parametrize("where", ["progress", "placed"])
@pytest.mark.parametrize("thread", [False, True])
def test_an_exception_of_a_callback_comes_out(window, cost, where, thread):
    caught: list[BaseException] = []

    def work() -> None:
        def fail(_: object) -> None:
            raise LookupError("mine")

        try:
            routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=ENDLESS, **{where: fail})
        except LookupError as error:
            caught.append(error)

    if thread:
        other = threading.Thread(target=work)
        other.start()
        other.join()
    else:
        work()
    assert len(caught) == 1 and str(caught[0]) == "mine"


def test_what_cannot_be_called_is_refused(window, cost):
    for name in ("progress", "placed"):
        with pytest.raises(TypeError, match=f"{name}: found 3, wanted a callable or None"):
            routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, **{name: 3})
    with pytest.raises(TypeError, match="current: found 3, wanted a Placement, a Plan or None"):
        routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, current=3)


def test_a_control_ends_a_plan_of_another_thread(window, cost):
    for act, outcome in (("cut", "plan"), ("cancel", "cancelled")):
        control = routepack.PlanControl()
        timer = threading.Timer(0.2, getattr(control, act))
        timer.start()
        try:
            made = routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=ENDLESS, control=control)
            assert outcome == "plan" and not made.complete and made.verify(window) == []
        except routepack.Cancelled:
            assert outcome == "cancelled" and control.cancelled
        timer.join()
        with pytest.raises(routepack.InvalidInput, match="control: found one that ended another plan"):
            routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, control=control)


def test_a_deadline_cuts_the_search(window, cost):
    params = routepack.PlanParams(search=ENDLESS.search, deadline_ms=100)
    made = routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=params)
    assert not made.complete and made.search.ending == "stopped" and made.verify(window) == []


def test_other_threads_go_on_while_it_plans(window, cost):
    params = routepack.PlanParams(search=ENDLESS.search, deadline_ms=300, threads=1)
    planning = threading.Thread(
        target=lambda: routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=params)
    )
    planning.start()
    turns = 0
    while planning.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 20


INTERRUPTED = """
import signal, sys, threading, time
import routepack
window = routepack.Window.load(sys.argv[1])
cost = routepack.CostModel([routepack.Stage("full", alpha=60.0, beta=200.0)])
params = routepack.PlanParams(search=routepack.SearchParams(proposals_per_sample=1 << 30, most_proposals=1 << 40))
sent = []
def interrupt():
    time.sleep(0.3)
    sent.append(time.perf_counter())
    signal.raise_signal(signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=params)
except KeyboardInterrupt:
    print(time.perf_counter() - sent[0])
"""


def test_control_c_stops_it(root):
    window = root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors"
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, str(window)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert 0 <= float(done.stdout) < 5, "without the signal it would plan for hours"


def test_other_signals_find_their_handlers(window, cost):
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        params = routepack.PlanParams(search=ENDLESS.search, deadline_ms=300)
        routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=params)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == [1]


def hash_of_a_plan(path: str, cost_file: str) -> str:
    cost = routepack.CostModel.load(cost_file)
    return routepack.plan(routepack.Window.load(path), routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost).hash


def test_it_survives_a_fork(plan, window, cost, root):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:  # the parent's window, and its plan, in the child
            made = routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost)
            os.write(writer, f"{made.hash} {plan.verify(window)}".encode())
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 1000).decode() == f"{plan.hash} []"
    os.close(reader)
    os.close(writer)
    context = multiprocessing.get_context("fork")
    path, cost_file = root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors", root / "examples" / "gptoss20b.toml"
    with context.Pool(2) as pool:
        assert pool.starmap(hash_of_a_plan, [(str(path), str(cost_file))] * 2) == [plan.hash] * 2


# Whatever comes


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    samples, layers = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    ranks = draw(st.sampled_from([1, 2, 4]))
    experts, dp = ranks * draw(st.integers(1, 3)), ranks * draw(st.integers(1, 2))
    top_k = draw(st.integers(1, min(2, experts)))
    lengths = np.array(draw(st.lists(st.integers(1, 30), min_size=samples, max_size=samples)), dtype=np.int32)
    seed = draw(st.integers(0, 2**31))
    chance = np.random.default_rng(seed)
    counts = np.zeros((samples, layers, experts), dtype=draw(st.sampled_from([np.uint16, np.uint32])))
    for i in range(samples):
        for layer in range(layers):
            for _ in range(int(lengths[i])):
                counts[i, layer, chance.choice(experts, top_k, replace=False)] += 1
    return {
        "window": {"lengths": lengths, "counts": counts, "top_k": top_k},
        "topology": {"dp": dp, "ep": ranks},
        "capacity": draw(st.integers(1, 80)),
        "constraints": draw(st.sampled_from([{}, {"sample_multiple": 4}, {"equal_count": True, "add_dummies": True}, {"row_multiple": 2}, {"max_samples_per_cell": 2}])),
        "params": {"placement": draw(st.sampled_from(["keep", "lpt", "sticky", "joint"])), "seed": seed, "effort": "fast"},
    }


@given(problems())
def test_valid_windows_give_valid_plans_or_a_reason(problem):
    window = routepack.Window.from_arrays(**problem["window"])
    cost = routepack.CostModel([routepack.Stage("a", alpha=1.0, beta=2.0)])
    try:
        made = routepack.plan(
            window,
            routepack.Topology(**problem["topology"]),
            capacity=problem["capacity"],
            cost=cost,
            constraints=routepack.Constraints(**problem["constraints"]),
            params=routepack.PlanParams(**problem["params"]),
        )
    except routepack.InfeasibleError as error:
        assert error.reason and error.remedy
        return
    assert made.verify(window) == [] and made.complete and made.evaluate(window) == made.score
    assert made.rank_loads(window).sum() == window.counts.sum()


SPOILERS: dict[str, Any] = {
    "counts": [
        lambda counts: counts.astype(np.float32),
        lambda counts: counts.astype(np.int64),
        lambda counts: counts[0],
        lambda counts: counts + 10_000,
        lambda counts: counts.astype(np.int32) - 40_000,
        lambda counts: np.concatenate([counts, counts], axis=2)[:, :, ::-1],
        lambda counts: counts[:0],
        lambda counts: "counts",
        lambda counts: None,
    ],
    "lengths": [
        lambda lengths: lengths * 0,
        lambda lengths: -lengths,
        lambda lengths: lengths[:-1],
        lambda lengths: lengths.astype(np.int64),
        lambda lengths: lengths.reshape(-1, 1),
        lambda lengths: None,
    ],
    "top_k": [lambda k: 0, lambda k: -1, lambda k: 1000, lambda k: "2", lambda k: 1 << 70],
}


@given(problems(), st.data())
def test_invalid_windows_give_a_clear_exception(problem, data):
    arrays = dict(problem["window"])
    name = data.draw(st.sampled_from(sorted(SPOILERS)))
    spoiled = data.draw(st.sampled_from(SPOILERS[name]))
    arrays[name] = spoiled(arrays[name])
    with pytest.raises((routepack.InvalidInput, TypeError)) as caught:
        routepack.Window.from_arrays(**arrays)
    assert isinstance(caught.value, TypeError) or ("found" in str(caught.value) and "\n" not in str(caught.value))


@given(problems(), st.data())
def test_invalid_requests_give_a_clear_exception(problem, data):
    window = routepack.Window.from_arrays(**problem["window"])
    request: dict[str, Any] = {
        "topology": routepack.Topology(**problem["topology"]),
        "capacity": problem["capacity"],
        "cost": routepack.CostModel([routepack.Stage("a", alpha=1.0)]),
    }
    ranks = problem["topology"]["ep"]
    wrong = data.draw(
        st.sampled_from(
            [
                {"capacity": 0},
                {"capacity": -5},
                {"capacity": 1 << 62},
                {"capacity": 2.5},
                {"cost": routepack.CostModel([routepack.Stage("a", alpha=1.0)], expert=[1.0] * (window.layers + 1))},
                {"topology": routepack.Topology(dp=window.experts + 1, ep=window.experts + 1)},
                {"current": routepack.Placement.identity(layers=window.layers + 1, experts=window.experts, ranks=ranks)},
                {"params": routepack.PlanParams(moves="soon")},
                {"params": routepack.PlanParams(moves="10MB")},
                {"params": routepack.PlanParams(model="none such")},
                {"constraints": 3},
                {"sync": "never"},
                {"window": None},
            ]
        )
    )
    with pytest.raises((routepack.InvalidInput, routepack.InfeasibleError, TypeError)) as caught:
        routepack.plan(**{"window": window, **request, **wrong})
    assert str(caught.value)


def test_an_aggregate_has_nothing_to_pack(cost):
    demand = routepack.Window.from_arrays(lengths=None, counts=np.array([[[4, 4]]], dtype=np.uint32), top_k=1, kind="aggregate")
    with pytest.raises(routepack.InvalidInput, match="aggregate"):
        routepack.plan(demand, routepack.Topology(dp=2, ep=2), capacity=8, cost=cost)
