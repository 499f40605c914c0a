# SPDX-License-Identifier: Apache-2.0
"""Actors that are killed, stopped or never heard of again, on a real local Ray cluster."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import threading
import time

import numpy as np
import pytest
from .ray_cluster import ENDLESS, add, draw, gone, lengths_of, plain_plan, planning

import routepack
from routepack.adapters import Reason


def counter_pids(made):
    return [state["pid"] for state in made.actors(60.0)["counters"]]


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)


def test_samples_of_a_dead_counter_are_marked_without_a_source(ready):
    routes = draw(60, seed=40)
    add(ready, "marked", routes)
    lost = tuple(list(routes)[1::3])  # the share of the second of three
    kill(counter_pids(ready)[1])
    future = ready.submit("marked", list(routes), lengths_of(routes))
    assert future.result().hash == plain_plan(routes, without=lost).hash
    metrics = future.metrics
    assert metrics["routepack/ray_samples_marked"] == metrics["routepack/samples_without_routes"] == 20
    assert metrics["routepack/ray_counters_lost"] == 1 and metrics["routepack/ray_samples_recounted"] == 0
    assert metrics["routepack/fallback"] == 0


def test_samples_of_a_dead_counter_are_counted_again_from_surviving_references(ready, cluster):
    routes = draw(60, seed=41)
    add(ready, "again", routes)
    handle = ready.counters[2]._actors[2]
    pid = counter_pids(ready)[2]
    cluster.kill(handle, no_restart=False)
    assert gone(pid)
    source = {id: cluster.put(rows) for id, rows in routes.items()}
    future = ready.submit("again", list(routes), lengths_of(routes), source=source)
    assert future.result().hash == plain_plan(routes).hash
    metrics = future.metrics
    assert metrics["routepack/ray_samples_recounted"] == 20 and metrics["routepack/ray_samples_marked"] == 0
    assert metrics["routepack/ray_counters_lost"] == 1 and metrics["routepack/ms_ray_recount"] > 0


def test_a_source_is_asked_for_what_is_missing_and_may_not_know_all(ready):
    from routepack.ray import Sample

    routes = draw(60, seed=42)
    add(ready, "asked", {id: rows for k, (id, rows) in enumerate(routes.items()) if k >= 12})
    asked = []

    def source(ids):
        asked.extend(ids)
        return [Sample(id, routes[id]) if id != ids[3] else None for id in ids]

    future = ready.submit("asked", list(routes), lengths_of(routes), source=source)
    assert future.result().hash == plain_plan(routes, without=(asked[3],)).hash
    assert asked == list(routes)[:12]
    assert future.metrics["routepack/ray_samples_recounted"] == 11
    assert future.metrics["routepack/ray_samples_marked"] == 1


def test_a_source_that_raises_or_hangs_costs_its_samples_and_some_time(ready):
    routes = draw(40, seed=43)
    unknown = tuple(list(routes)[30:])
    known = {id: rows for id, rows in routes.items() if id not in unknown}
    release = threading.Event()

    def raises(ids):
        raise KeyError("the store is gone")

    def hangs(ids):
        release.wait(60)
        return []

    for number, source in enumerate((raises, hangs)):
        ready.current = None
        add(ready, ("source", number), known)
        begun = time.monotonic()
        future = ready.submit(("source", number), list(routes), lengths_of(routes), source=source, deadline_s=1.5)
        assert future.result().verify is not None and time.monotonic() - begun < 20
        assert future.metrics["routepack/ray_samples_marked"] == 10
        if source is raises:
            assert future.result().hash == plain_plan(routes, without=unknown).hash
    release.set()


def test_what_is_added_while_a_counter_is_dead_goes_to_another_one_and_it_comes_back(ready):
    pids = counter_pids(ready)
    kill(pids[0])
    routes = draw(30, seed=44)
    add(ready, "elsewhere", routes, counters=1)  # the client of the dead one
    future = ready.submit("elsewhere", list(routes), lengths_of(routes))
    assert future.result().hash == plain_plan(routes).hash
    assert ready.wait_ready(120.0)
    again = counter_pids(ready)
    assert again[0] not in (None, pids[0]) and again[1:] == pids[1:]


def test_a_stopped_counter_is_noticed_and_replaced(cluster):
    routes = draw(40, seed=45)
    source = {id: cluster.put(rows) for id, rows in routes.items()}
    with planning(counters=2, source=source, count_s=1.5) as made:
        assert made.wait_ready(120.0)
        add(made, "stopped", routes)
        pid = counter_pids(made)[0]
        os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        future = made.submit("stopped", list(routes), lengths_of(routes))
        assert future.result().hash == plain_plan(routes).hash
        assert time.monotonic() - begun < 30
        assert future.metrics["routepack/ray_counters_lost"] == 1
        assert future.metrics["routepack/ray_samples_recounted"] == 20
        assert future.metrics["routepack/ray_counter_restarts"] == 1
        os.kill(pid, signal.SIGCONT)  # otherwise Ray ends it some seconds later
        assert gone(pid, 60.0)


def test_parts_whose_objects_are_lost_are_counted_again(ready, cluster, monkeypatch):
    class Owner:  # its objects die with it, as those of a node do
        def own(self, part):
            import ray

            return [ray.put(part)], os.getpid()

    routes = draw(60, seed=46)
    add(ready, "lost part", routes)
    gather = ready._counters.gather

    def lossy(*arguments, **options):
        gathered = gather(*arguments, **options)
        owner = cluster.remote(num_cpus=0)(Owner).remote()
        [part], pid = cluster.get(owner.own.remote(gathered.pieces[0].part), timeout=60)
        gathered.pieces[0].part = part
        kill(pid)
        time.sleep(1.0)  # until that is known
        return gathered

    monkeypatch.setattr(ready._counters, "gather", lossy)
    future = ready.submit("lost part", list(routes), lengths_of(routes), source=routes)
    assert future.result().hash == plain_plan(routes).hash
    metrics = future.metrics
    assert metrics["routepack/ray_samples_recounted"] == 20 and metrics["routepack/ray_samples_marked"] == 0
    assert metrics["routepack/samples_without_routes"] == 0


def test_a_planner_killed_while_planning_costs_that_step_alone(ready):
    routes, after = draw(40, seed=47), draw(40, seed=48)
    add(ready, "killed", routes)
    future = ready.submit("killed", list(routes), lengths_of(routes), params=ENDLESS)
    assert future.placement(timeout=30) is not None
    restarts = future.metrics.get("routepack/planner_restarts", 0)
    kill(ready.actors()["planner"])
    with pytest.warns(routepack.RoutePackWarning, match="framework's own packing is used: the planner died") as told:
        assert future.result() is None and future.result() is None
    assert len(told) == 1 and future.fallback.reason == Reason.PLANNER_DIED
    assert future.metrics["routepack/fallback"] == Reason.PLANNER_DIED and ready.current is None
    add(ready, "next", after)
    future = ready.submit("next", list(after), lengths_of(after))
    assert future.result().hash == plain_plan(after).hash
    assert future.metrics["routepack/planner_restarts"] == restarts + 1


def test_a_planner_that_died_between_two_steps_is_replaced_in_time(ready):
    kill(ready.actors()["planner"])
    routes = draw(40, seed=49)
    add(ready, "between", routes)
    assert ready.plan("between", list(routes), lengths_of(routes)).hash == plain_plan(routes).hash


def test_a_planner_that_does_not_answer_is_ended(cluster):
    routes = draw(40, seed=50)
    with planning(counters=1, deadline_s=1.5, grace_s=1.0) as made:
        assert made.wait_ready(120.0)
        add(made, "late", routes)
        future = made.submit("late", list(routes), lengths_of(routes), params=ENDLESS)
        assert future.placement(timeout=30) is not None
        pid = made.actors()["planner"]
        os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.warns(routepack.RoutePackWarning, match="did not answer within"):
            assert future.result() is None
        assert time.monotonic() - begun < 15 and future.fallback.reason == Reason.DEADLINE
        add(made, "after", routes)
        future = made.submit("after", list(routes), lengths_of(routes), deadline_s=60.0)
        assert future.result().hash == plain_plan(routes).hash
        os.kill(pid, signal.SIGCONT)  # it was killed: this is for the case that it was not
        assert gone(pid, 60.0)


def test_a_planner_whose_connection_breaks_is_asked_once_more(cluster, monkeypatch):
    def sockets(*arguments):
        return subprocess.run(["ss", *arguments], capture_output=True, text=True, check=False).stdout

    if shutil.which("ss") is None or os.geteuid() != 0:
        pytest.skip("ending a connection of others needs ss and root")
    routes = draw(40, seed=54)
    with planning(counters=1) as made:
        assert made.wait_ready(120.0)
        asked = []
        is_there = made._planner._is_there
        monkeypatch.setattr(made._planner, "_is_there", lambda *all: (asked.append(is_there(*all)), asked[-1])[1])
        add(made, "broken", routes)
        future = made.submit("broken", list(routes), lengths_of(routes), params=ENDLESS)
        assert future.placement(timeout=30) is not None
        pid = made.actors()["planner"]
        ports = re.findall(rf":(\d+) .*pid={pid},", sockets("-Htlnp"))
        killed = "".join(sockets("-HK", "dst", "127.0.0.1", "dport", "=", f":{port}") for port in ports)
        if not killed:
            pytest.skip("this kernel does not end connections for ss")
        until = time.monotonic() + 30
        while not asked and time.monotonic() < until:
            time.sleep(0.05)
        future.cut()
        assert future.result() is not None and asked == [True]
        assert made.actors()["planner"] == pid and future.metrics["routepack/planner_restarts"] == 0
        made.current = None
        add(made, "after", routes)
        assert made.plan("after", list(routes), lengths_of(routes)).hash == plain_plan(routes).hash


def test_a_progress_callback_that_raises_is_the_planners_failure(cluster):
    def raises(now):
        raise ValueError("no")

    routes = draw(30, seed=51)
    with planning(counters=1, progress=raises) as made:
        add(made, "raises", routes)
        with pytest.warns(routepack.RoutePackWarning, match="the planner raised ValueError: no"):
            future = made.submit("raises", list(routes), lengths_of(routes))
            assert future.result() is None
        assert future.fallback.reason == Reason.PLANNER_ERROR
        assert future.metrics["routepack/planner_restarts"] == 0


def test_nothing_hangs_when_every_actor_is_gone_for_good(cluster):
    routes = draw(30, seed=52)
    with planning(counters=2, deadline_s=5.0) as made:
        assert made.wait_ready(120.0)
        add(made, "gone", routes)
        for client in made.counters[:1]:
            for handle in client._actors:
                cluster.kill(handle)  # no restart
        from routepack.ray import Sample

        begun = time.monotonic()
        added = made.counters[0].add("gone", [Sample(1, np.zeros((2, 4, 2), dtype=np.uint8))], timeout_s=1.0)
        assert added.lost == 1 and added.counted == 0
        with pytest.warns(routepack.RoutePackWarning, match="30 of 30 samples have no routes; 2 of 2 counting actors"):
            assert made.plan("gone", list(routes), lengths_of(routes), source=routes) is None
        assert time.monotonic() - begun < 30


def test_faults_leave_no_objects_behind_even_without_the_garbage_collector(ready):
    from ray._private.worker import global_worker

    def held():
        return len(global_worker.core_worker.get_all_reference_counts())

    routes = draw(60, seed=53)
    gc.collect()
    before = held()
    gc.disable()
    try:
        futures = []
        for step, victim in enumerate(("counter", "planner")):
            add(ready, ("objects", step), routes)
            options = {} if victim == "counter" else {"params": ENDLESS}
            if victim == "counter":
                kill(counter_pids(ready)[0])
            futures.append(
                ready.submit(("objects", step), list(routes), lengths_of(routes), source=dict(routes), **options)
            )
            if victim == "planner":
                assert futures[-1].placement(timeout=30) is not None
                kill(ready.actors()["planner"])
                with pytest.warns(routepack.RoutePackWarning, match="the planner died"):
                    assert futures[-1].result() is None
            else:
                assert futures[-1].result() is not None
        until = time.monotonic() + 30
        # The first future has its plan and two objects more; each actor may have been asked whether it is there.
        while held() > before + 3 + 4 and time.monotonic() < until:
            time.sleep(0.1)
        assert held() <= before + 3 + 4
    finally:
        gc.enable()
