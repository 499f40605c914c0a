# SPDX-License-Identifier: Apache-2.0
"""Fifty windows while counting actors die, lost nodes, and the placement groups of verl. Minutes: ROUTEPACK_LONG=1."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = [
    pytest.mark.skipif("ROUTEPACK_LONG" not in os.environ, reason="long: ROUTEPACK_LONG is not set"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (requirements/ray.txt)"),
]


def test_fifty_windows_in_a_row_lose_nothing_while_counters_die(root):
    script = root / "benchmarks" / "macro" / "ray_windows.py"
    command = [sys.executable, str(script), "--counters", "16", "--windows", "50", "--kill-every", "3", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(result, indent=1))
    assert result["windows"] == 50 and result["lost"] == [] and result["different"] == [] and result["marked"] == 0
    assert result["killed"] == 16 and result["recounted"] > 0
    first, *_, last = result["memory"]
    for who in ("driver", "planner", "counter", "rollout"):
        assert last[who] - first[who] < 16, (who, result["memory"])
    assert last["store"] < 1 and last["counter_samples"] == 0 and last["references"] <= first["references"] + 2
    assert result["latency_ms"]["all"]["max"] < 45_000  # the deadline and the grace of a step


TWO_NODES = """
    import faulthandler, os, signal, sys, time
    sys.path.insert(0, sys.argv[1])
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    import ray
    from ray.cluster_utils import Cluster
    from ray_cluster import add, draw, lengths_of, plain_plan, planning
    from routepack.ray import on_nodes

    def patient(start):
        for attempt in range(4):  # a node has 30 seconds to start, which a busy machine does not always give it
            try:
                return start()
            except Exception:
                if attempt == 3:
                    raise

    def lose(node):
        if sys.argv[2] == "killed":
            cluster.remove_node(node, allow_graceful=False)
            return
        for processes in node.all_processes.values():  # silent: no connection ends
            for process in processes:
                os.kill(process.process.pid, signal.SIGSTOP)

    settings = {"object_store_memory": 128 << 20}
    head = {"num_cpus": 2, "include_dashboard": False, **settings}
    cluster = patient(lambda: Cluster(initialize_head=True, head_node_args=head))
    try:
        far = patient(lambda: cluster.add_node(num_cpus=1, **settings))
        cluster.wait_for_nodes(timeout=120)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        faulthandler.dump_traceback_later(600, exit=True)  # more than all limits below; says where it waits
        near_id = ray.get_runtime_context().get_node_id()
        assert near_id != far.node_id
        routes = draw(2400, seed=1, tokens=(8, 20))  # so many that counts do not travel inside Ray's messages
        source = {id: ray.put(rows) for id, rows in routes.items()}
        with planning(counters=on_nodes([near_id, far.node_id]), source=source, count_s=20.0) as made:
            assert made.wait_ready(300.0)
            add(made, "far", routes)
            gather = made._counters.gather

            def lossy(*arguments, **options):
                gathered = gather(*arguments, **options)
                assert len(gathered.pieces) == 2
                lose(far)  # with the counts that it has just given
                return gathered

            made._counters.gather = lossy
            begun = time.monotonic()
            future = made.submit("far", list(routes), lengths_of(routes), deadline_s=150.0)
            plan = future.result()
            assert plan is not None, (future.fallback, future.metrics)
            assert time.monotonic() - begun < 150.0 + 20.0 + 5.0
            assert plan.hash == plain_plan(routes).hash, future.metrics
            print("recounted", int(future.metrics["routepack/ray_samples_recounted"]))
            print("planners", 1 + int(future.metrics["routepack/planner_restarts"]))
            made._counters.gather = gather
            again = draw(60, seed=2)
            # The actor of the lost node has moved, or its client asks the other one; or it counts for a last second, as
            # the processes of a node outlive it, and what it counted is lost with it.
            add(made, "after", again)
            made.current = None
            rows = {id: ray.put(some) for id, some in again.items()}
            future = made.submit("after", list(again), lengths_of(again), source=rows, deadline_s=60.0)
            plan = future.result()
            assert plan is not None and plan.hash == plain_plan(again).hash, (future.fallback, future.metrics)
            print("ok")
    finally:
        if sys.argv[2] != "killed":
            cluster.remove_node(far, allow_graceful=False)
        ray.shutdown()
        cluster.shutdown()
"""


@pytest.mark.parametrize("lost", ["killed", "silent"])
def test_counts_lost_with_their_node_are_counted_again(root, lost):
    folder = str(root / "python" / "tests" / "on_ray")
    command = [sys.executable, "-c", textwrap.dedent(TWO_NODES), folder, lost]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-3000:]
    lines = done.stdout.splitlines()  # among Ray's own
    assert "ok" in lines and "recounted 1200" in lines and "planners 1" in lines, done.stdout[-3000:]



@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")
def test_a_pool_of_verl_that_is_full_of_workers_has_room_for_counters(cluster):
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
    from ray_cluster import add, draw, lengths_of, plain_plan, planning
    from verl.single_controller.ray import RayResourcePool

    from routepack.ray import in_bundles

    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1)
    groups = pool.get_placement_groups(device_name="cpu")

    class Worker:
        def there(self):
            return True

    workers = [
        cluster.remote(Worker)
        .options(num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(groups[0], k))
        .remote()
        for k in range(2)
    ]
    assert all(cluster.get([worker.there.remote() for worker in workers], timeout=120))
    with planning(counters=in_bundles(groups)) as made:
        routes = draw(40, seed=60)
        add(made, "verl", routes)
        assert made.plan("verl", list(routes), lengths_of(routes)).hash == plain_plan(routes).hash
    cluster.util.remove_placement_group(groups[0])
