# SPDX-License-Identifier: Apache-2.0
"""Planning beside a job: early placements, deadlines, cancelling, memory from step to step, and what it cost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import routepack

TOPOLOGY = routepack.Topology(dp=8, ep=8)
FAST = routepack.PlanParams(effort="fast")
# Minutes of search, unless somebody ends it.
ENDLESS = routepack.PlanParams(search=routepack.SearchParams(proposals_per_sample=1 << 30, most_proposals=1 << 40))


@pytest.fixture(scope="module")
def window(root):
    return routepack.Window.load(root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors")


@pytest.fixture(scope="module")
def cost(root):
    return routepack.CostModel.load(root / "examples" / "gptoss20b.toml")


@pytest.fixture
def planner(cost):
    with routepack.Planner(TOPOLOGY, capacity=2048, cost=cost, params=FAST) as made:
        yield made
        made.close(cancel=True)


def test_a_planner_plans_what_plan_plans(planner, window, cost):
    future = planner.submit(window)
    plan = future.result()
    alone = routepack.plan(window, TOPOLOGY, capacity=2048, cost=cost, params=FAST)
    assert plan.hash == alone.hash and plan.complete
    assert future.done() and not future.running() and not future.cancelled() and future.exception() is None
    assert planner.last is future


def test_each_step_begins_where_the_one_before_ended(planner, window, cost):
    first, second = planner.submit(window), planner.submit(window)
    assert second.result().moves["experts"] < first.result().moves["experts"]
    again = routepack.plan(window, TOPOLOGY, capacity=2048, cost=cost, params=FAST, current=first.result())
    assert second.result().hash == again.hash
    assert planner.current == second.result().placement


def test_where_experts_are_can_be_said(planner, window, cost):
    first = planner.submit(window).result()
    elsewhere = planner.submit(window, current=routepack.Placement.identity(layers=24, experts=32, ranks=8))
    assert elsewhere.result().hash == first.hash
    planner.current = None
    assert planner.submit(window).result().hash == first.hash
    planner.current = first
    assert planner.current == first.placement
    with pytest.raises(routepack.InvalidInput, match="current: found int"):
        planner.submit(window, current=3)


def test_options_can_differ_for_one_step(planner, window, cost):
    wide = planner.submit(window, capacity=4096, topology=routepack.Topology(dp=16, ep=8)).result()
    assert wide.capacity == 4096 and wide.num_slots == 16
    other = routepack.CostModel([routepack.Stage("full", alpha=1.0)])
    assert planner.submit(window, cost=other, params=routepack.PlanParams(placement="keep")).result().moves["experts"] == 0
    assert planner.submit(window).result().capacity == 2048


def test_the_placement_is_there_while_packing_still_runs(planner, window):
    params = routepack.PlanParams(two_batches=True, search=ENDLESS.search)
    future = planner.submit(window, params=params)
    early = future.placement
    assert future.placed and future.running() and not future.done()
    plan = future.result(timeout=0.05)
    assert plan.placing.first_batch == early
    assert set(future.timings_ms) == {"queued", "place", "pack"}


def test_a_deadline_gives_the_best_plan_that_is_valid_then(planner, window):
    future = planner.submit(window, params=ENDLESS)
    begun = time.perf_counter()
    plan = future.result(timeout=0.3)
    assert time.perf_counter() - begun < 5
    assert not plan.complete and plan.verify(window) == [] and plan.search.ending == "stopped"
    nothing = planner.submit(window, params=ENDLESS).result(timeout=0)
    assert not nothing.complete and nothing.verify(window) == []


def test_a_deadline_that_is_not_reached_changes_nothing(planner, window):
    assert planner.submit(window).result(timeout=600).complete


def test_who_waits_behind_others_is_not_cut(planner, window):
    running, waiting = planner.submit(window, params=ENDLESS), planner.submit(window)
    running.placement  # it runs
    with pytest.raises(concurrent.futures.TimeoutError):
        waiting.result(timeout=0.02)
    running.cut()
    assert waiting.result().complete and not running.result().complete


def test_cancelling_is_prompt_and_moves_no_experts(planner, window):
    future, behind = planner.submit(window, params=ENDLESS), planner.submit(window, params=ENDLESS)
    future.placement
    begun = time.perf_counter()
    assert behind.cancel() and future.cancel() and future.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    with pytest.raises(concurrent.futures.CancelledError):
        behind.placement
    planner.close()
    assert time.perf_counter() - begun < 5
    assert planner.current is None and planner.last is None


def test_a_plan_that_is_there_cannot_be_cancelled(planner, window):
    future = planner.submit(window)
    future.result()
    assert not future.cancel() and not future.cancelled()


def test_an_exception_of_the_worker_reaches_the_caller(planner, window):
    planner.submit(window).result()
    for wrong, kind in (({"capacity": 10}, routepack.InfeasibleError), ({"topology": routepack.Topology(dp=4, ep=4)}, routepack.InvalidInput)):
        future = planner.submit(window, **wrong)
        with pytest.raises(kind):
            future.result()
        with pytest.raises(kind):
            future.placement
        assert isinstance(future.exception(), kind) and not future.placed
    assert planner.submit(window).result().complete, "the planner lives on"


def test_an_exception_of_the_callback_reaches_the_caller(window, cost):
    def progress(now: routepack.Progress) -> None:
        if now.level == 2:
            raise LookupError("no more")

    with routepack.Planner(TOPOLOGY, capacity=2048, cost=cost, params=FAST, progress=progress) as planner:
        with pytest.raises(LookupError, match="no more"):
            planner.submit(window).result()


def test_futures_can_be_awaited(planner, window):
    async def steps() -> tuple[routepack.Placement, routepack.Plan, routepack.Plan]:
        future = planner.submit(window)
        placement = await asyncio.wrap_future(future.placement_future)
        first = await future
        cut = planner.submit(window, params=ENDLESS)
        asyncio.get_running_loop().call_later(0.1, cut.cut)
        return placement, first, await cut

    placement, first, second = asyncio.run(steps())
    assert placement.layers == 24 and first.complete and not second.complete


def test_an_await_that_is_cancelled_ends_the_plan(planner, window):
    future = planner.submit(window, params=ENDLESS)

    async def impatient() -> None:
        await asyncio.wait_for(future, timeout=0.1)

    with pytest.raises((asyncio.TimeoutError, TimeoutError)):
        asyncio.run(impatient())
    assert future.cancelled()


def test_futures_work_with_the_tools_of_the_standard_library(planner, window):
    futures = [planner.submit(window) for _ in range(3)]
    called = []
    futures[2].add_done_callback(called.append)
    done, pending = concurrent.futures.wait(futures)
    assert len(done) == 3 and not pending and called == [futures[2]]
    assert {f.result().complete for f in concurrent.futures.as_completed(futures)} == {True}
    cancelled = planner.submit(window, params=ENDLESS)
    cancelled.cancel()
    assert concurrent.futures.wait([cancelled]).done == {cancelled}


def test_many_threads_may_submit(planner, window):
    futures: list[routepack.PlanFuture] = []
    threads = [threading.Thread(target=lambda: futures.append(planner.submit(window))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(future.result().verify(window) == [] for future in futures)
    assert len(futures) == 8 and planner.current is not None


def test_a_closed_planner_takes_no_more(window, cost):
    with routepack.Planner(TOPOLOGY, capacity=2048, cost=cost, params=FAST) as planner:
        future = planner.submit(window)
    assert future.done()
    planner.close()
    with pytest.raises(routepack.Error, match="closed"):
        planner.submit(window)


def test_an_exception_in_the_block_cancels(window, cost):
    with pytest.raises(KeyError):
        with routepack.Planner(TOPOLOGY, capacity=2048, cost=cost, params=ENDLESS) as planner:
            future = planner.submit(window)
            raise KeyError
    assert future.cancelled()


def test_nothing_of_a_step_stays(cost, window):
    counts = np.array(window.counts)
    mine = routepack.Window.from_arrays(lengths=window.lengths, counts=counts, top_k=4)
    kept = weakref.ref(counts)
    planner = routepack.Planner(TOPOLOGY, capacity=2048, cost=cost, params=FAST)
    future = planner.submit(mine)
    future.result()
    planner.close()
    del mine, counts
    gc.collect()
    assert kept() is None, "a plan does not keep its window"
    gone = weakref.ref(planner)
    del planner
    gc.collect()
    assert gone() is None


def test_a_planner_survives_a_fork(planner, window):
    first = planner.submit(window)
    first.result()
    unfinished = planner.submit(window, params=ENDLESS)
    unfinished.placement
    child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                unfinished.result()
            except routepack.Error as error:
                status = 0 if "another process" in str(error) else 2
            if planner.submit(window).result().verify(window) != []:
                status = 3
            planner.close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    unfinished.cancel()


# The critical path, equation 20


@given(*(st.floats(0, 1e6) for _ in range(4)))
def test_planning_is_hidden_exactly_when_equation_20_holds(place, pack, aux, actor):
    path = routepack.critical_path(place_ms=place, pack_ms=pack, aux_ms=aux, actor_ms=actor)
    assert path.extended == (not place + pack <= max(place, aux) + actor)
    assert path.extended == (path.extension_ms > 0)
    assert path.makespan_ms == max(path.planning_ms, path.state_ms)
    assert min(path.slack_ms, path.extension_ms) == 0
    assert path.makespan_ms - path.extension_ms == pytest.approx(path.state_ms, abs=1e-9 * (1 + path.makespan_ms))


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_times_are_times(wrong):
    with pytest.raises(routepack.InvalidInput, match="aux_ms: found"):
        routepack.critical_path(place_ms=1, pack_ms=1, aux_ms=wrong, actor_ms=1)


def test_the_planner_answers_for_its_own_step(planner, window):
    with pytest.raises(routepack.Error, match="no step"):
        planner.critical_path(aux_ms=0, actor_ms=1)
    future = planner.submit(window)
    plan = future.result()
    hidden = planner.critical_path(aux_ms=0, actor_ms=1e6)
    assert not hidden.extended and "hidden" in str(hidden)
    shown = planner.critical_path(aux_ms=0, actor_ms=0, future=future)
    assert shown.extended and shown.extension_ms == pytest.approx(future.timings_ms["pack"])
    assert shown.planning_ms == pytest.approx(sum(future.timings_ms.values()))
    assert shown.planning_ms >= plan.timings_ms["total"]
    assert set(shown.metrics) == {"routepack/ms_critical_path", "routepack/ms_critical_path_extension"}
    unfinished = planner.submit(window, params=ENDLESS)
    with pytest.raises(routepack.Error, match="not there yet"):
        planner.critical_path(aux_ms=0, actor_ms=0, future=unfinished)
    unfinished.cancel()


# What the trainer measured


def test_what_is_as_planned_is_not_worth_a_warning(planner, window, recwarn):
    plan = planner.submit(window).result()
    loads = plan.rank_loads(window)
    assert loads.shape == (plan.num_rows, 1, 24, 8)
    for measured, row in ((loads, None), (loads[:, 0], None), (loads[1], 1), (loads[1, 0], 1)):
        seen = planner.observe(measured, row=row)
        assert seen.as_planned and seen.largest == 0 and seen.count == 0
    assert planner.observe(loads).measured_efficiency == pytest.approx(plan.metrics["routepack/ep_efficiency"])
    assert not recwarn.list


def test_a_rank_that_got_too_much_is_named(planner, window):
    plan = planner.submit(window).result()
    measured = plan.rank_loads(window).astype(np.int32)
    measured[2, 0, 7, 3] *= 2
    measured[0, 0, 1, 1] += int(0.3 * measured[0, 0, 1].mean())
    with pytest.warns(routepack.RoutePackWarning, match=r"row 2, shard 0, layer 7, rank 3: measured \d+ .* \(and 1 more\)$"):
        seen = planner.observe(measured)
    assert seen.count == 2 and [d.rank for d in seen.deviations] == [3, 1] and not seen.as_planned
    assert seen.measured_efficiency < seen.predicted_efficiency
    assert seen.metrics["routepack/measured_deviations"] == 2.0
    with pytest.warns(routepack.RoutePackWarning, match="row 2, shard 0, layer 7, rank 3"):
        planner.observe(measured[2, 0], row=2)
    assert planner.observe(measured, tolerance=10.0).as_planned


def test_measurements_of_the_wrong_shape_are_refused(planner, window):
    with pytest.raises(routepack.Error, match="no step"):
        planner.observe(np.zeros((1, 1, 1, 1), dtype=np.int64))
    plan = planner.submit(window).result()
    loads = plan.rank_loads(window)
    for wrong, row, message in (
        (loads[:-1], None, "tokens_per_rank: found shape"),
        (loads[0], None, "rows, shards, layers, ranks"),
        (loads.astype(np.float64), None, "float64"),
        (-loads - 1, None, "wanted 0 or more"),
        (loads[0], plan.num_rows, "row: found"),
    ):
        with pytest.raises(routepack.InvalidInput, match=message):
            planner.observe(wrong, row=row)
    with pytest.raises(routepack.InvalidInput, match="tolerance"):
        planner.observe(loads, tolerance=-1)
