# SPDX-License-Identifier: Apache-2.0
"""Memory over big windows and many plans. Minutes: only with HYPOTHESIS_PROFILE=long, as `make check-long` sets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "long", reason="only in make check-long")

BIG = """
import json, resource, sys
import numpy as np
import routepack

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

# The file's bytes in this process's own memory, as a trainer has them.
with open(sys.argv[1], "rb") as file:
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size))
    arrays = {}
    for name, dtype in (("lengths", np.int32), ("recorded", np.int32), ("counts", np.uint16)):
        begin, end = header[name]["data_offsets"]
        file.seek(8 + size + begin)
        arrays[name] = np.fromfile(file, dtype=dtype, count=(end - begin) // np.dtype(dtype).itemsize).reshape(header[name]["shape"])
before = peak()
window = routepack.Window.from_arrays(**arrays, top_k=8)
made = peak()
cost = routepack.CostModel([routepack.Stage("full", alpha=60.0, beta=200.0)])
plan = routepack.plan(window, routepack.Topology(dp=32, ep=8), capacity=8192, cost=cost, params=routepack.PlanParams(effort="fast"))
planned = peak()
assert np.shares_memory(window.counts, arrays["counts"]) and plan.rank_loads(window).sum() > 0
print(json.dumps({"bytes": arrays["counts"].nbytes, "window": made - before, "plan": planned - made, "loads": peak() - planned}))
"""


def test_the_counts_of_a_large_window_are_never_copied(root, tmp_path):
    path = tmp_path / "big.safetensors"
    make = [sys.executable, str(root / "tests" / "support" / "make_big_window.py"), str(path), "8192", "48", "512", "8"]
    subprocess.run(make, check=True)
    done = subprocess.run([sys.executable, "-c", BIG, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout)
    print(grown)
    assert grown["bytes"] > 390_000_000
    assert grown["window"] < grown["bytes"] / 50, grown
    assert grown["plan"] + grown["loads"] < grown["bytes"] / 3, grown


MANY = """
import gc, os
import numpy as np
import routepack

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

cost = routepack.CostModel([routepack.Stage("full", alpha=1.0, beta=2.0)])
rng = np.random.default_rng(0)

def one():
    lengths = rng.integers(1, 20, 12).astype(np.int32)
    counts = np.zeros((12, 2, 4), dtype=np.uint16)
    counts[:, :, 0] = lengths[:, None]
    window = routepack.Window.from_arrays(lengths=lengths, counts=counts, top_k=1)
    plan = routepack.plan(window, routepack.Topology(dp=2, ep=2), capacity=40, cost=cost, params=routepack.PlanParams(effort="fast"),
                          progress=lambda now: None, placed=lambda where: None)
    return plan.hash, plan.metrics, plan.placing, plan.rows, plan.physical_to_logical, plan.rank_loads(window)

def failed():
    window = routepack.Window.from_arrays(lengths=np.array([50], dtype=np.int32), counts=np.array([[[50]]], dtype=np.uint16), top_k=1)
    try:
        routepack.plan(window, routepack.Topology(dp=1, ep=1), capacity=40, cost=cost)
    except routepack.InfeasibleError:
        pass

for _ in range(500):
    one(), failed()
before = resident()
for _ in range(10_000):
    one(), failed()
print(resident() - before)
"""


def test_ten_thousand_plans_leave_nothing_behind():
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert int(done.stdout) < 5_000_000
