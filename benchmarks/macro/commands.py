#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times whole commands on whole windows: median wall time, CPU time and peak memory of the process.

Usage: commands.py ROUTEPACK [--runs N] [--big-window PATH]

The two real windows of examples/ are always measured. With --big-window a window of 65,536 samples x 23 layers x 128
experts is written to PATH (about 390 MB, seed 1) unless it is there, and measured too.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIG_COST = 'expert = 1.0\n[[stage]]\nname = "full"\nalpha = 60.0\nbeta = 200.0\n'


def run_once(command):
    """Wall seconds, CPU seconds and peak resident MiB of one run; the run must succeed."""
    started = time.perf_counter()
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - started
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {os.waitstatus_to_exitcode(status)}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure(name, command, runs):
    samples = [run_once(command) for _ in range(runs)]
    wall, cpu, peak = (statistics.median(column) for column in zip(*samples))
    print(f"{name:34} {wall * 1e3:10.1f} ms wall {cpu * 1e3:10.1f} ms cpu {peak:8.1f} MiB peak", flush=True)


def measure_window(routepack, label, window, options, runs, folder):
    plan = folder / f"{label}.plan.json"
    measure(f"{label} inspect", [routepack, "inspect", window], runs)
    measure(f"{label} plan", [routepack, "plan", window, "-o", plan, *options], runs)
    measure(f"{label} score", [routepack, "score", window, plan], runs)
    measure(f"{label} verify", [routepack, "verify", window, plan], runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("routepack", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--big-window", type=pathlib.Path)
    args = parser.parse_args()
    routepack = args.routepack.resolve()
    windows = ROOT / "examples" / "windows"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        measure_window(routepack, "gptoss20b-mmlu-354", windows / "gptoss20b-mmlu-354.safetensors",
                       ["--dp", 8, "--ep", 8, "--cap", 2048, "--cost", ROOT / "examples" / "gptoss20b.toml"],
                       args.runs, folder)
        measure_window(routepack, "mixtral-mmlu-512", windows / "mixtral-mmlu-512.safetensors",
                       ["--dp", 4, "--ep", 4, "--cap", 8192, "--cost", ROOT / "examples" / "mixtral8x7b.toml"],
                       args.runs, folder)
        if args.big_window:
            if not args.big_window.exists():
                subprocess.run(["/usr/bin/python3", ROOT / "tests" / "support" / "make_big_window.py", args.big_window,
                                "65536", "23", "128", "8", "--seed", "1"], check=True)
            print(f"big window: {args.big_window.stat().st_size / 2**20:.1f} MiB on disk")
            cost = folder / "big.toml"
            cost.write_text(BIG_COST)
            measure_window(routepack, "65536x23x128", args.big_window,
                           ["--dp", 16, "--ep", 8, "--cap", 8192, "--cost", cost], args.runs, folder)


if __name__ == "__main__":
    main()
