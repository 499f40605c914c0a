#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time per phase and memory against the number of samples, at the same number of samples per cell.

Usage: scale.py ROUTEPACK [--folder DIR] [--samples 512 2048 8192 32768 65536] [--effort default] [--placement joint]

ling-3.0-tiny (23 layers, 128 experts), gsm8k lengths, 16 slots in 2 shards of 8 ranks, cap 8192: about 20 samples a cell.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

import windows


def measured(command):
    """Standard output of a command and its peak memory in MiB."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{command}: exit status {status}")
    return json.loads(text), usage.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("routepack", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "routepack-bench")
    parser.add_argument("--samples", type=int, nargs="+", default=[512, 2048, 8192, 32768, 65536])
    parser.add_argument("--effort", default="default")
    parser.add_argument("--placement", default="joint")
    args = parser.parse_args()
    routepack = args.routepack.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    cost = windows.cost_file(args.folder, "tiny")
    print(f"effort {args.effort}, placement {args.placement}")
    for samples in args.samples:
        window = windows.generated(routepack, args.folder, f"scale-{samples}", "--model", "ling-3.0-tiny", "--lengths",
                                   "gsm8k", "--prompts", str(samples // 8), "--rollouts", "8", "--seed", "1")
        result, memory = measured([str(routepack), "plan", str(window), *windows.options(16, 8, 8192, cost), "-o",
                                   str(args.folder / "plan.json"), "--effort", args.effort, "--placement", args.placement,
                                   "--json"])
        times = result["timings_ms"]
        phases = "  ".join(f"{name} {ms:.1f}" for name, ms in times.items())
        print(f"N {samples:6}  {result['rows']:4} rows  gap {100 * result['bound']['gap']:.2f} %  {memory:7.0f} MiB  ms: {phases}",
              flush=True)


if __name__ == "__main__":
    main()
