# SPDX-License-Identifier: Apache-2.0
"""A local cluster and samples for the tests of routepack.ray, and for benchmarks/macro/ray_windows.py.

The folder of these tests is not called «ray»: its parent is on the path of tests and of Ray's workers, where it would
stand for the real one.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import routepack

LAYERS, EXPERTS, TOP_K, CAPACITY = 4, 16, 2, 2048
TOPOLOGY = routepack.Topology(dp=4, ep=4)
COST = routepack.CostModel([routepack.Stage("full", alpha=60.0, beta=200.0)])
FAST = routepack.PlanParams(effort="fast", threads=1, seed=3)
# Minutes of search, unless somebody ends it.
ENDLESS = routepack.PlanParams(
    threads=1, search=routepack.SearchParams(proposals_per_sample=1 << 30, most_proposals=1 << 40)
)

Routes = npt.NDArray[np.uint8]


@contextlib.contextmanager
def local_cluster(*, cpus: int = 2, store_mb: int = 256) -> Iterator[Any]:
    """Ray on this machine, on the loopback device alone; all that was started ends with the block."""
    settings = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # of a single machine: addresses are 127.0.0.1
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # 15 by default, behind everything else on a busy machine
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    import ray
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # in case that Ray was imported before

    if ray.is_initialized():
        raise RuntimeError("found a running Ray, wanted to start one")
    for attempt in range(4):
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=store_mb << 20,
                log_to_driver=False,
                configure_logging=False,
                namespace="tests",
            )
            break
        except Exception:  # a node has 30 seconds to start, which a busy machine does not always give it
            ray.shutdown()
            if attempt == 3:
                raise
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    try:
        yield ray
    finally:
        ray.shutdown()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def draw(samples: int, seed: int, *, tokens: tuple[int, int] = (40, 400)) -> dict[int, Routes]:
    """Routes [tokens - 1, layers, k] by id, some experts hotter than others; ids in no order."""
    rng = np.random.default_rng(seed)
    weights = rng.gamma(1.0, size=(LAYERS, EXPERTS)) + 0.05
    made = {}
    for id in rng.permutation(10 * samples)[:samples]:
        rows = int(rng.integers(*tokens)) - 1
        # The k largest of weighted noise: distinct experts.
        noise = rng.random((rows, LAYERS, EXPERTS)) ** (1.0 / weights)
        made[int(id)] = np.argsort(-noise, axis=2)[:, :, :TOP_K].astype(np.uint8)
    return made


def lengths_of(routes: dict[int, Routes]) -> list[int]:
    """The last sampled token was never routed."""
    return [len(rows) + 1 for rows in routes.values()]


def plain_window(routes: dict[int, Routes], without: tuple[int, ...] = ()) -> routepack.Window:
    """What the plain package makes of the same samples, in the same order; `without` counts nothing for some."""
    counts, report = routepack.count_routes_batch(list(routes.values()), experts=EXPERTS, lengths=lengths_of(routes))
    recorded = report.recorded.copy()
    for place, id in enumerate(routes):
        if id in without:
            counts[place], recorded[place] = 0, 0
    return routepack.Window.from_arrays(
        lengths=np.array(lengths_of(routes), dtype=np.int32),
        counts=counts.astype(np.uint16),
        top_k=TOP_K,
        recorded=recorded,
        ids=np.array(list(routes), dtype=np.int64),
    )


def plain_plan(
    routes: dict[int, Routes], *, current: Any = None, without: tuple[int, ...] = (), **options: Any
) -> routepack.Plan:
    return routepack.plan(
        plain_window(routes, without),
        TOPOLOGY,
        capacity=CAPACITY,
        cost=COST,
        params=options.pop("params", FAST),
        current=current,
        **options,
    )


def planning(**options: Any) -> Any:
    """`RayPlanning` for these samples, with patience for a busy machine."""
    from routepack.ray import RayPlanning

    chosen: dict[str, Any] = {
        "capacity": CAPACITY,
        "cost": COST,
        "experts": EXPERTS,
        "top_k": TOP_K,
        "params": FAST,
        "deadline_s": 60.0,
        "grace_s": 20.0,
        "count_s": 30.0,
        "start_s": 120.0,
    }
    return RayPlanning(TOPOLOGY, **{**chosen, **options})


def add(made: Any, window: Any, routes: dict[int, Routes], *, counters: int | None = None) -> None:
    """What rollout workers do: every counter gets its share."""
    from routepack.ray import Sample

    clients = made.counters[:counters]
    for k, client in enumerate(clients):
        share = [Sample(id, rows, len(rows) + 1) for id, rows in list(routes.items())[k :: len(clients)]]
        done = client.add(window, share, timeout_s=60.0)
        assert done.counted == len(share) and not done.refused and not done.lost, done


def gone(pid: int, timeout_s: float = 30.0) -> bool:
    """Whether a process ends by then."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        try:
            state = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.05)
    return False
