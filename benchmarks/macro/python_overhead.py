# SPDX-License-Identifier: Apache-2.0
"""What the Python path costs beyond the C++ call, per plan and per call. `make python` first.

    .venv/bin/python benchmarks/macro/python_overhead.py [--samples 512] [--layers 24] [--experts 128] [--plans 40]

Each plan is timed outside (the call) and inside (the C++ planner's own phases), so noise of the search cancels. What is
left is arguments, the thread that plans, the record with the window's fingerprint, and the object that comes back.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

import numpy as np

import routepack
from routepack.exporters import slime, verl


def draw(samples: int, layers: int, experts: int, top_k: int) -> routepack.Window:
    """Skewed counts that sum to what they must."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6.0, 0.6, samples), 64, 4096).astype(np.int32)
    shares = rng.gamma(2.0, size=(layers, experts)) + 0.2
    steps = np.cumsum(np.minimum(shares / shares.sum(axis=1, keepdims=True), 0.9 / top_k), axis=1)
    steps /= steps[:, -1:]
    edges = np.rint(steps[None] * (top_k * lengths[:, None, None]))
    counts = np.diff(edges, axis=2, prepend=0.0).astype(np.uint16)
    return routepack.Window.from_arrays(lengths=lengths, counts=counts, top_k=top_k)


def microseconds(call: Callable[[], object], times: int = 2000) -> float:
    """Median of `times` calls."""
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(took)


def describe(name: str, values: list[float]) -> None:
    ordered = sorted(values)
    print(f"{name:46} median {statistics.median(values):8.3f} ms, 90 % below {ordered[int(0.9 * len(ordered))]:8.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, value in (("samples", 512), ("layers", 24), ("experts", 128), ("top-k", 8), ("plans", 40)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    window = draw(given.samples, given.layers, given.experts, given.top_k)
    cost = routepack.CostModel([routepack.Stage("full", alpha=60.0, beta=200.0)])
    topology = routepack.Topology(dp=8, ep=8)
    params = routepack.PlanParams(effort="fast")
    print(f"{window}, {window.counts.nbytes / 1e6:.1f} MB of counts")

    total, outside, fingerprints = [], [], []
    for _ in range(given.plans):
        begin = time.perf_counter()
        plan = routepack.plan(window, topology, capacity=8192, cost=cost, params=params)
        took = 1e3 * (time.perf_counter() - begin)
        total.append(plan.timings_ms["total"])
        outside.append(took - plan.timings_ms["total"])
        begin = time.perf_counter()
        window.fingerprint
        fingerprints.append(1e3 * (time.perf_counter() - begin))
    describe("C++ planner", total)
    describe("call beyond it, fingerprint included", outside)
    describe("fingerprint of the window alone", fingerprints)
    describe("Python path", [out - print_ for out, print_ in zip(outside, fingerprints, strict=True)])

    beside = []
    with routepack.Planner(topology, capacity=8192, cost=cost, params=params) as planner:
        for _ in range(given.plans):
            time.sleep(0.02)  # a step apart: what the planner does after a result is nobody's wait
            begin = time.perf_counter()
            plan = planner.submit(window, current=plan).result()
            beside.append(1e3 * (time.perf_counter() - begin) - plan.timings_ms["total"])

        async def awaited() -> None:
            await planner.submit(window, current=plan)

        describe("submit and result beyond the C++ planner", beside)
        asyncio.run(awaited())

    equal = routepack.Constraints(equal_count=True, add_dummies=True)
    even = routepack.plan(window, topology, capacity=8192, cost=cost, params=params, constraints=equal)
    for name, call in (
        ("plan.metrics", lambda: plan.metrics),
        ("critical_path", lambda: routepack.critical_path(place_ms=1, pack_ms=2, aux_ms=3, actor_ms=4)),
        ("plan.rows", lambda: plan.rows),
        ("plan.physical_to_logical", lambda: plan.physical_to_logical),
        ("slime(plan)", lambda: slime(plan)),
        ("verl(plan)", lambda: verl(even)),
    ):
        print(f"{name:46} median {microseconds(call):8.1f} us")


if __name__ == "__main__":
    main()
