# SPDX-License-Identifier: Apache-2.0
"""Windows in a row on a local Ray cluster while counting actors are killed. `make python` and Ray first.

    .venv/bin/python benchmarks/macro/ray_windows.py [--counters 16] [--windows 50] [--kill-every 3] [--json]

Rollout actors draw routes and hand them to the counting actors; the driver plans each window. Every few windows a
counting actor is killed, by SIGKILL or by Ray, before, while or after it is filled, or while its counts are gathered.
Each plan is held against that of the plain package over the same routes. Ends with status 1 unless all are equal.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import signal
import statistics
import sys
import threading
import time
from typing import Any

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # before Ray is imported: addresses are 127.0.0.1
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # by default everything else on the machine goes before
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import numpy as np
import ray

import routepack
from routepack.ray import RayPlanning, Sample

MOMENTS = ("before", "filling", "filled", "gathering")


class Rollouts:
    """Draws routes, keeps them where the trainer will need them (the object store), and has them counted."""

    def __init__(self, counters: list[Any], shape: tuple[int, int, int], tokens: int) -> None:
        self._counters, self._shape, self._tokens = counters, shape, tokens

    def roll(self, window: int, first: int, samples: int) -> list[tuple[int, int, Any]]:
        """(id, tokens, reference of the routes) of each."""
        rng = np.random.default_rng((window, first))
        layers, experts, top_k = self._shape
        made: list[tuple[int, int, Any]] = []
        for k, counter in enumerate(self._counters):
            some = []
            for id in range(first + k, first + samples, len(self._counters)):
                rows = int(np.clip(rng.lognormal(np.log(self._tokens), 0.5), 8, 8 * self._tokens))
                hot = experts * rng.random((rows, layers, 1)) ** 1.5  # low numbers are hot
                ids = (hot.astype(np.int64) + 7 * np.arange(layers)[:, None] + 3 * np.arange(top_k)) % experts
                some.append(Sample(id, ray.put(ids.astype(np.uint8)), rows + 1))
            counter.send(window, some)
            made += [(sample.id, sample.length or 0, sample.routes) for sample in some]
        for counter in self._counters:
            counter.flush(timeout_s=60.0)
        return made

    def pid(self) -> int:
        return os.getpid()

    def references(self) -> int:
        """Objects that this process owns or borrows."""
        return references()


def anonymous_mib(pid: int) -> float:
    """Memory of a process, without what it shares with the object store."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            found = re.search(r"RssAnon:\s*(\d+) kB", file.read())
    except OSError:
        return 0.0
    return int(found.group(1)) / 1024 if found else 0.0


def store_mib(total: float) -> float:
    """What lies in the object store."""
    return (total - float(ray.available_resources().get("object_store_memory", 0.0))) / (1 << 20)


def references() -> int:
    worker = ray._private.worker.global_worker
    return len(worker.core_worker.get_all_reference_counts())


class Killer:
    """Ends counting actors, one at a time."""

    def __init__(self, planning: RayPlanning, rng: random.Random) -> None:
        self._planning, self._rng = planning, rng
        self.kills = 0

    def __call__(self) -> None:
        number = self._rng.randrange(len(self._planning.counters))
        self.kills += 1
        if self.kills % 2:
            state = self._planning.actors(10.0)["counters"][number]
            if state is not None:
                os.kill(state["pid"], signal.SIGKILL)
                return
        ray.kill(self._planning.counters[number]._actors[number], no_restart=False)

    def later(self, delay_s: float) -> threading.Timer:
        timer = threading.Timer(delay_s, self)
        timer.start()
        return timer


class Judge:
    """Plans the same routes with the plain package, in a process of its own."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given

    def hash(self, drawn: list[tuple[int, int, Any]], before: Any) -> str:
        """Of the plan that begins where experts are `before`."""
        counts, report = routepack.count_routes_batch(
            ray.get([routes for _, _, routes in drawn], timeout=60.0),
            experts=self._given.experts,
            lengths=[length for _, length, _ in drawn],
        )
        window = routepack.Window.from_arrays(
            lengths=np.array([length for _, length, _ in drawn], dtype=np.int32),
            counts=counts.astype(np.uint16),
            top_k=self._given.top_k,
            recorded=report.recorded,
        )
        arguments = what_to_plan(self._given)
        where = None
        if before is not None:
            where = routepack.Placement.from_maps(ranks=arguments["topology"].ranks, physical_to_logical=before)
        return routepack.plan(window, current=where, **arguments).hash


def what_to_plan(given: argparse.Namespace) -> dict[str, Any]:
    return {
        "topology": routepack.Topology(dp=8, ep=8),
        "capacity": given.capacity,
        "cost": routepack.CostModel([routepack.Stage("full", alpha=60.0, beta=200.0)]),
        "params": routepack.PlanParams(effort="fast", threads=1, seed=1),
    }


def quantiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    ordered = sorted(values)
    at = {name: ordered[min(len(ordered) - 1, int(q * len(ordered)))] for name, q in (("p90", 0.9), ("p99", 0.99))}
    return {"p50": statistics.median(ordered), **at, "max": ordered[-1]}


def run(given: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(given.seed)
    shape = (given.layers, given.experts, given.top_k)
    total = float(ray.available_resources()["object_store_memory"])
    result: dict[str, Any] = {"windows": 0, "lost": [], "different": [], "recounted": 0, "marked": 0}
    latencies: dict[str, list[float]] = {"all": [], "undisturbed": [], "killed": [], "count": [], "planner": []}
    memory: list[dict[str, float]] = []
    begun = time.perf_counter()
    with RayPlanning(
        **what_to_plan(given),
        experts=given.experts,
        top_k=given.top_k,
        counters=given.counters,
        deadline_s=given.deadline_s,
        grace_s=10.0,
        count_s=given.deadline_s / 2,
        start_s=900.0,
    ) as planning:
        per = len(planning.counters) // given.rollouts
        rollouts = [
            ray.remote(num_cpus=0)(Rollouts).remote(planning.counters[k * per : (k + 1) * per], shape, given.tokens)
            for k in range(given.rollouts)
        ]
        ray.get([worker.pid.remote() for worker in rollouts], timeout=900.0)
        if not planning.wait_ready(900.0):
            raise SystemExit("the actors did not start")
        result["ms_start"] = 1e3 * (time.perf_counter() - begun)
        judge = ray.remote(num_cpus=0)(Judge).remote(given)
        killer = Killer(planning, rng)
        per_worker = given.samples // given.rollouts
        for number in range(given.windows):
            kills = given.kill_every and number % given.kill_every == given.kill_every - 1
            moment = MOMENTS[killer.kills % len(MOMENTS)] if kills else ""
            timer = None
            if moment == "before":
                killer()
            calls = [
                worker.roll.remote(number, k * per_worker, per_worker) for k, worker in enumerate(rollouts)
            ]
            if moment == "filling":
                timer = killer.later(rng.uniform(0.0, 0.1))
            drawn = [one for part in ray.get(calls, timeout=300.0) for one in part]
            if moment == "filled":
                killer()
            source = {id: routes for id, _, routes in drawn}
            before = planning.current
            if moment == "gathering":
                timer = killer.later(rng.uniform(0.0, 0.03))
            start = time.perf_counter()
            future = planning.submit(number, list(source), [length for _, length, _ in drawn], source=source)
            plan = future.result()
            took = 1e3 * (time.perf_counter() - start)
            if timer is not None:
                timer.join()
            metrics = future.metrics
            latencies["all"].append(took)
            latencies["killed" if moment else "undisturbed"].append(took)
            latencies["count"].append(metrics.get("routepack/ms_routes", 0.0))
            latencies["planner"].append(metrics.get("routepack/ms_planner", 0.0))
            result["windows"] += 1
            result["recounted"] += int(metrics.get("routepack/ray_samples_recounted", 0))
            result["marked"] += int(metrics.get("routepack/ray_samples_marked", 0))
            if plan is None:
                result["lost"].append(f"window {number}: {future.fallback}")
                continue
            if plan.hash != ray.get(judge.hash.remote(drawn, before), timeout=900.0):
                result["different"].append(number)
            result["routes_mib"] = sum(
                length * given.layers * given.top_k for _, length, _ in drawn
            ) / (1 << 20)
            del drawn, source, future, plan, calls
            if number % 10 == 9:
                memory.append(measured(planning, rollouts, total))
        result["killed"] = killer.kills
        result["restarts"] = int(metrics["routepack/ray_counter_restarts"])
        planning.wait_ready(120.0)
        until = time.monotonic() + 30.0  # what is released is freed a little later
        while store_mib(total) > 0.5 and time.monotonic() < until:
            time.sleep(0.5)
        memory.append(measured(planning, rollouts, total))
    result["latency_ms"] = {name: quantiles(values) for name, values in latencies.items()}
    result["memory"] = memory
    return result


def measured(planning: RayPlanning, rollouts: list[Any], total: float) -> dict[str, float]:
    """MiB of the driver, the planner, the largest counting and rollout actors, and in the object store."""
    actors = planning.actors(30.0)
    counters = [state for state in actors["counters"] if state is not None]
    pids = ray.get([worker.pid.remote() for worker in rollouts], timeout=60.0)
    held = ray.get([worker.references.remote() for worker in rollouts], timeout=60.0)
    return {
        "driver": anonymous_mib(os.getpid()),
        "planner": anonymous_mib(actors["planner"]) if actors["planner"] else 0.0,
        "counter": max((anonymous_mib(state["pid"]) for state in counters), default=0.0),
        "rollout": max(map(anonymous_mib, pids)),
        "store": store_mib(total),
        "counter_samples": float(sum(state["samples"] for state in counters)),
        "references": float(references()),
        "rollout_references": float(max(held)),
        "driver_objects": float(len(gc.get_objects())),
    }


def show(given: argparse.Namespace, result: dict[str, Any]) -> None:
    print(
        f"{given.counters} counting actors, {given.rollouts} rollout actors, {result['windows']} windows of "
        f"{given.samples} x {given.layers} x {given.experts}, top {given.top_k}, {result['routes_mib']:.1f} MiB of "
        "routes each"
    )
    print(
        f"killed {result['killed']} counting actors, {result['restarts']} noticed; windows lost {len(result['lost'])}, "
        f"other plans than the package's {len(result['different'])}, samples counted again {result['recounted']}, "
        f"marked {result['marked']}"
    )
    for line in result["lost"]:
        print(line)
    for name, text in (
        ("all", "submit to plan"),
        ("undisturbed", "  no actor killed"),
        ("killed", "  an actor killed"),
        ("count", "  of it: gathering counts"),
        ("planner", "  of it: planner"),
    ):
        values = result["latency_ms"][name]
        print(f"{text:26}" + "".join(f"  {q} {value:8.1f} ms" for q, value in values.items()))
    for k, line in enumerate(result["memory"]):
        when = f"after {10 * (k + 1)}" if k + 1 < len(result["memory"]) else "idle"
        print(f"MiB {when:10}" + "".join(f"  {name} {value:.1f}" for name, value in line.items()))


def start_ray(given: argparse.Namespace) -> None:
    """A cluster of this machine alone."""
    for attempt in range(4):
        try:
            ray.init(
                address="local",
                num_cpus=given.cpus,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=given.store_mib << 20,
                log_to_driver=False,
                configure_logging=False,
            )
            return
        except Exception:  # a node has 30 seconds to start, which a busy machine does not always give it
            ray.shutdown()
            if attempt == 3:
                raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name, value in (
        ("counters", 16), ("rollouts", 4), ("windows", 50), ("kill-every", 3), ("samples", 512), ("layers", 24),
        ("experts", 64), ("top-k", 8), ("tokens", 400), ("capacity", 8192), ("seed", 1), ("cpus", 2),
        ("store-mib", 512),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--deadline-s", type=float, default=30.0)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = parser.parse_args()
    start_ray(given)
    try:
        result = run(given)
    finally:
        ray.shutdown()
    if given.json:
        print(json.dumps(result))
    else:
        show(given, result)
    return 1 if result["lost"] or result["different"] or result["marked"] else 0


if __name__ == "__main__":
    sys.exit(main())
