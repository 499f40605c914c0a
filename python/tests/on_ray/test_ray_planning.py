# SPDX-License-Identifier: Apache-2.0
"""Planning on a real local Ray cluster: the plans of the plain package, futures, odd input, two jobs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from .ray_cluster import (
    CAPACITY,
    COST,
    ENDLESS,
    EXPERTS,
    FAST,
    TOP_K,
    TOPOLOGY,
    add,
    draw,
    lengths_of,
    plain_plan,
    plain_window,
    planning,
)

import routepack
from routepack.adapters import Reason


def test_plans_are_those_of_the_plain_package_step_after_step(ready):
    current = None
    for step in range(3):
        routes = draw(60, seed=step)
        add(ready, ("equal", step), routes)
        future = ready.submit(("equal", step), list(routes), lengths_of(routes))
        plan = future.result()
        alone = plain_plan(routes, current=current)
        assert plan.hash == alone.hash and plan.verify(plain_window(routes)) == []
        assert np.array_equal(ready.current, alone.physical_to_logical)
        assert future.done() and future.fallback is None and future.placement() == alone.placement
        metrics = future.metrics
        assert metrics["routepack/fallback"] == 0 and metrics["routepack/used"] == 1
        assert metrics["routepack/joint"] == alone.metrics["routepack/joint"]
        assert metrics["routepack/samples_without_routes"] == metrics["routepack/ray_counters_lost"] == 0
        assert set(future.timings_ms) == {"queued", "count", "place", "pack"}
        current = alone


def test_a_plan_is_an_object_reference_for_whoever_trains(ready, cluster):
    routes = draw(40, seed=10)
    add(ready, "by reference", routes)
    reference = ready.submit("by reference", list(routes), lengths_of(routes)).ref()

    def hash_of(plan):
        return plan.hash

    elsewhere = cluster.remote(num_cpus=0)(hash_of).remote(reference)
    assert cluster.get(elsewhere, timeout=60) == plain_plan(routes).hash


def test_all_options_of_a_plan_arrive(ready):
    routes = draw(40, seed=11)
    search = routepack.SearchParams(levels=3, proposals_per_sample=50)
    params = routepack.PlanParams(seed=9, threads=1, search=search, placement="sticky", two_batches=False)
    constraints = routepack.Constraints(row_multiple=2, sample_multiple=8)
    topology = routepack.Topology.from_shards(2, [[0, 1], [3, 2]])
    cost = routepack.CostModel([routepack.Stage("full", 3.0, 5.0), routepack.Stage("linear", 2.0)], expert=[1, 2, 3, 4])
    start = routepack.Placement.from_maps(
        ranks=2, physical_to_logical=np.tile(np.arange(EXPERTS, dtype=np.int32)[::-1], (4, 1)).copy()
    )
    add(ready, "options", routes)
    options = {"params": params, "constraints": constraints, "cost": cost, "capacity": 4096}
    groups = [k // 4 for k in range(len(routes))]
    future = ready.submit(
        "options", list(routes), lengths_of(routes), groups=groups, current=start, topology=topology, **options
    )
    made, alone = future.result(), routepack.plan(plain_window(routes), topology, current=start, **options)
    assert made.hash == alone.hash and made.num_rows % 2 == 0


def test_samples_come_in_the_order_of_the_driver_and_others_are_left_out(ready):
    routes = draw(50, seed=12)
    add(ready, "order", routes)
    some = dict(sorted(routes.items())[5:45])
    future = ready.submit("order", list(some), lengths_of(some))
    assert future.result().hash == plain_plan(some).hash
    assert future.metrics["routepack/ray_samples_unused"] == 10


def test_a_window_can_be_planned_in_pieces(ready):
    routes = draw(60, seed=13)
    add(ready, "pool", routes)
    first, rest = dict(list(routes.items())[:30]), dict(list(routes.items())[30:])
    assert ready.plan("pool", list(first), lengths_of(first), keep_others=True).hash == plain_plan(first).hash
    ready.current = None
    assert ready.plan("pool", list(rest), lengths_of(rest)).hash == plain_plan(rest).hash


def test_samples_that_are_counted_already_are_taken(ready):
    routes = draw(40, seed=14)
    half, rest = dict(list(routes.items())[:20]), dict(list(routes.items())[20:])
    added = ready.counters[0].add_window("counted", plain_window(half))
    assert added.counted == 20 and not added.refused
    add(ready, "counted", rest)
    assert ready.plan("counted", list(routes), lengths_of(routes)).hash == plain_plan(routes).hash
    with pytest.raises(routepack.InvalidInput, match="without ids"):
        counts = np.ones((1, 1, 1), dtype=np.uint16)
        lengths = np.array([1], dtype=np.int32)
        ready.counters[0].add_window("x", routepack.Window.from_arrays(lengths=lengths, counts=counts, top_k=1))


def test_routes_behind_object_references_are_counted(ready, cluster):
    from routepack.ray import Sample

    routes = draw(40, seed=15)
    samples = [Sample(id, cluster.put(rows), len(rows) + 1) for id, rows in routes.items()]
    client = ready.counters[1]
    client.send("references", samples[:20])
    client.send("references", samples[20:])
    assert client.flush().counted == 40 and client.flush().counted == 0
    assert ready.plan("references", list(routes), lengths_of(routes)).hash == plain_plan(routes).hash


def test_rollout_workers_in_full_bundles_have_counters_beside_them(cluster):
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from routepack.ray import Sample, in_bundles

    class Rollouts:
        def __init__(self, counter):
            self.counter = counter

        def roll(self, window, routes):
            added = self.counter.add(window, [Sample(id, rows, len(rows) + 1) for id, rows in routes.items()])
            return added.counted

    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="PACK")  # every CPU there is
    assert group.wait(60)
    try:
        with planning(counters=in_bundles(group)) as made:
            workers = [
                cluster.remote(Rollouts)
                .options(
                    num_cpus=1,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=k),
                )
                .remote(made.counters[k])
                for k in range(2)
            ]
            routes = draw(40, seed=16)
            halves = [dict(list(routes.items())[k::2]) for k in range(2)]
            calls = [worker.roll.remote("full", half) for worker, half in zip(workers, halves, strict=True)]
            assert cluster.get(calls, timeout=120) == [20, 20]
            assert made.plan("full", list(routes), lengths_of(routes)).hash == plain_plan(routes).hash
            assert cluster.available_resources().get("CPU", 0) == 0
    finally:
        remove_placement_group(group)


def test_a_deadline_gives_the_best_plan_that_is_valid_then(ready):
    routes = draw(60, seed=17)
    add(ready, "deadline", routes)
    begun = time.monotonic()
    plan = ready.submit("deadline", list(routes), lengths_of(routes), params=ENDLESS, deadline_s=1.0).result()
    assert time.monotonic() - begun < 15
    assert not plan.complete and plan.search.ending == "stopped" and plan.verify(plain_window(routes)) == []


def test_a_timeout_and_progress_and_the_early_placement(ready):
    routes = draw(60, seed=18)
    add(ready, "early", routes)
    future = ready.submit("early", list(routes), lengths_of(routes), params=ENDLESS)
    early = future.placement(timeout=30)
    assert isinstance(early, routepack.Placement) and future.running() and not future.done()
    until = time.monotonic() + 30
    while (seen := future.progress()) is None or seen["phase"] != "search":
        assert time.monotonic() < until
    assert {"level", "levels", "best", "gap", "proposals"} < set(seen) and future.placement(timeout=0.1) == early
    with pytest.raises(concurrent.futures.TimeoutError, match="waits behind others"):
        behind = ready.submit("early", list(routes), lengths_of(routes))
        behind.result(timeout=0.05)
    assert behind.placement(timeout=0.05) is None and behind.progress() is None
    plan = future.result(timeout=0.1)
    assert not plan.complete and plan.verify(plain_window(routes)) == []
    with pytest.warns(routepack.RoutePackWarning, match="60 of 60 samples have no routes"):
        assert behind.result() is None  # the window was over


def test_cancelling_moves_no_experts(ready):
    routes = draw(60, seed=19)
    add(ready, "cancel", routes)
    future = ready.submit("cancel", list(routes), lengths_of(routes), params=ENDLESS)
    behind = ready.submit("cancel", list(routes), lengths_of(routes))
    assert future.placement(timeout=30) is not None
    begun = time.monotonic()
    assert behind.cancel() and future.cancel() and future.cancelled()
    for cancelled in (future, behind):
        with pytest.raises(concurrent.futures.CancelledError):
            cancelled.result()
    assert time.monotonic() - begun < 15 and ready.current is None and not future.cancel()
    routes = draw(30, seed=20)
    add(ready, "after", routes)
    assert ready.plan("after", list(routes), lengths_of(routes)).hash == plain_plan(routes).hash


def test_a_plan_can_be_awaited(ready):
    routes = draw(30, seed=21)
    add(ready, "awaited", routes)

    async def step():
        return await ready.submit("awaited", list(routes), lengths_of(routes))

    assert asyncio.run(step()).hash == plain_plan(routes).hash


def test_windows_are_released_and_what_comes_late_opens_none(ready):
    routes = draw(30, seed=22)
    for step in range(12):
        add(ready, ("released", step), routes)
        assert ready.plan(("released", step), list(routes), lengths_of(routes)) is not None
    states = ready.actors()["counters"]
    assert [state["samples"] for state in states] == [0, 0, 0] and all(state["windows"] == 0 for state in states)
    from routepack.ray import Sample

    late = ready.counters[0].add(("released", 3), [Sample(id, rows) for id, rows in routes.items()])
    assert late.counted == 0 and set(late.refused.values()) == {"its window is over"} and len(late.refused) == 30


def test_odd_samples_are_refused_one_by_one(ready):
    from routepack.ray import Sample

    routes = draw(20, seed=23)
    client = ready.counters[0]
    good = [Sample(id, rows, len(rows) + 1) for id, rows in routes.items()]
    bad = [
        Sample(10_001, np.full((4, 4, 2), 200, dtype=np.uint8)),  # no such expert
        Sample(10_002, np.zeros((4, 4), dtype=np.uint8)),  # no layers
        Sample(10_003, np.ones((4, 3, 2), dtype=np.uint8), 4),  # other layers
        Sample(10_004, next(iter(routes.values())), 2),  # more rows than tokens
    ]
    added = client.add("odd", [bad[0], *good, *bad[1:]])
    assert added.counted == 20 and set(added.refused) == {10_001, 10_002, 10_003, 10_004}
    assert "layer" in added.refused[10_001] and "\n" not in added.refused[10_001]
    future = ready.submit("odd", list(routes), lengths_of(routes))
    assert future.result().hash == plain_plan(routes).hash


def test_a_sample_that_comes_twice_counts_once(ready):
    from routepack.ray import Sample

    routes = draw(30, seed=24)
    add(ready, "twice", {id: rows[: len(rows) // 2] for id, rows in routes.items()})  # as far as they were
    add(ready, "twice", routes, counters=1)  # now they are complete, on another actor
    client = ready.counters[0]
    client.add("twice", [Sample(id, rows, len(rows) + 1) for id, rows in list(routes.items())[:5]])
    future = ready.submit("twice", list(routes), lengths_of(routes))
    assert future.result().hash == plain_plan(routes).hash
    assert future.metrics["routepack/ray_samples_duplicate"] >= 15


def test_unknown_ids_count_as_samples_without_routes(ready):
    routes = draw(30, seed=25)
    known, unknown = dict(list(routes.items())[:20]), tuple(list(routes)[20:])
    add(ready, "unknown", known, counters=1)  # the other two actors have no samples
    future = ready.submit("unknown", list(routes), lengths_of(routes))
    assert future.result().hash == plain_plan(routes, without=unknown).hash
    assert future.metrics["routepack/samples_without_routes"] == future.metrics["routepack/ray_samples_marked"] == 10


def test_a_step_without_samples_or_routes_has_no_plan_and_one_reason(ready):
    with pytest.warns(routepack.RoutePackWarning, match="framework's own packing is used: a step without samples"):
        future = ready.submit("empty", [], [])
        assert future.result() is None and future.fallback.reason == Reason.UNSUPPORTED
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told already
        assert future.result() is None and future.ref() is None and future.loads() is None
    with pytest.warns(routepack.RoutePackWarning, match="3 of 3 samples have no routes"):
        future = ready.submit("nothing", [1, 2, 3], [10, 10, 10])
        assert future.result() is None
    assert future.metrics["routepack/fallback"] == Reason.NO_ROUTES and future.metrics["routepack/used"] == 0
    routes = draw(10, seed=26)
    add(ready, "infeasible", routes)
    with pytest.warns(routepack.RoutePackWarning, match="what would help"):
        future = ready.submit("infeasible", list(routes), lengths_of(routes), capacity=20)
        assert future.result() is None and future.fallback.reason == Reason.INFEASIBLE


@pytest.mark.parametrize(
    ("ids", "lengths", "message"),
    [
        ([1, 2, 1], [5, 5, 5], "ids: found 1 twice, wanted each sample once"),
        ([1, 2], [5], "lengths: found 1, wanted 2, one per id"),
        ([1, 2], None, "lengths: found none"),
        ([1, 2], [5, 0], "lengths: found 0, wanted 1 or more tokens"),
    ],
)
def test_a_step_that_contradicts_itself_is_refused_at_once(ready, ids, lengths, message):
    with pytest.raises(routepack.InvalidInput, match=message):
        ready.submit("wrong", ids, lengths)


def test_two_jobs_on_one_cluster_do_not_meet(ready, cluster):
    from routepack.ray import find_counter

    first, second = draw(30, seed=27), draw(30, seed=28)
    with planning(counters=1, name="job", predict=True) as other:
        with pytest.raises(routepack.InvalidInput, match="name: found 'job', which another job on this cluster uses"):
            planning(counters=1, name="job")
        add(ready, "same name", first)
        found = find_counter("job")
        from routepack.ray import Sample

        assert found.add("same name", [Sample(id, rows, len(rows) + 1) for id, rows in second.items()]).counted == 30
        futures = [
            made.submit("same name", list(routes), lengths_of(routes))
            for made, routes in ((ready, first), (other, second))
        ]
        assert futures[0].result().hash == plain_plan(first).hash
        plan = futures[1].result()
        assert plan.hash == plain_plan(second).hash
        assert np.array_equal(futures[1].loads(), plan.rank_loads(plain_window(second)))
        assert routepack.compare_loads(futures[1].loads(), plan.rank_loads(plain_window(second))).as_planned
    with pytest.raises(routepack.Error, match="closed"):
        other.submit("same name", list(second), lengths_of(second))
    with pytest.raises(routepack.InvalidInput, match="found no counters of 'nobody'"):
        find_counter("nobody")


def test_a_session_of_the_adapters_plans_on_an_actor(cluster):
    from routepack.adapters import RouteCounts, Session, Settings, Step, StepWindow
    from routepack.ray import SessionPlanner

    routes = draw(40, seed=29)
    settings = Settings(cost=COST.to_toml(), effort="fast", threads=1, deadline_ms=60_000, grace_ms=20_000)
    session = Session(settings, framework="test", planner=SessionPlanner())
    try:
        counted = RouteCounts(experts=EXPERTS).of(list(routes.values()), lengths=lengths_of(routes))
        window = StepWindow(np.array(lengths_of(routes), dtype=np.int32), counted)
        step = Step([window, window], top_k=TOP_K, topology=TOPOLOGY, capacity=CAPACITY)
        made = session.run(lambda: step, lambda planned: [one.plan.hash for one in planned])
    finally:
        session.close()
    params = routepack.PlanParams(placement="keep", effort="fast", threads=1, deadline_ms=60_000)
    assert made == [plain_plan(routes, params=params).hash] * 2
    assert session.metrics["routepack/fallback"] == 0 and session.metrics["routepack/planner_restarts"] == 0


def test_actors_without_a_core_ask_for_something_since_ray_puts_others_anywhere():
    pytest.importorskip("ray", reason="Ray is not installed (requirements/ray.txt)")
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from routepack.ray import on_nodes
    from routepack.ray._where import asked_for

    for strategy in ("SPREAD", *on_nodes(["0" * 56])):
        asked = asked_for(strategy, 0.0)
        assert asked == {"num_cpus": 0.0, "num_gpus": 0, "scheduling_strategy": strategy, "memory": 1}
        assert "memory" not in asked_for(strategy, 0.5)
    for strategy in (None, "DEFAULT", PlacementGroupSchedulingStrategy(placement_group=None)):
        assert "memory" not in asked_for(strategy, 0.0)  # a bundle may have none


def test_values_out_of_range_are_refused(cluster):
    for wrong, message in (
        ({"deadline_s": 0}, "deadline_s: found 0"),
        ({"grace_s": -1}, "grace_s: found -1"),
        ({"max_missing": 2.0}, "max_missing: found 2.0"),
        ({"counters": []}, "counters: found none"),
        ({"experts": 0}, "experts: found 0"),
    ):
        with pytest.raises(routepack.InvalidInput, match=message):
            planning(**wrong)


WITHOUT_RAY = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name == "ray" or name.startswith("ray."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
import routepack, routepack.adapters
assert "ray" not in sys.modules
try:
    import routepack.ray
except ImportError as error:
    print(error)
"""


def test_without_ray_there_is_one_clear_error_and_everything_else_works():
    done = subprocess.run([sys.executable, "-c", WITHOUT_RAY], capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 1
    assert 'found no Ray, wanted the package ray: pip install "routepack[ray]"' in done.stdout
