#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of a comparison is the order in which the samples happen to stand in the window.

Usage: sample_orders.py ROUTEPACK [--orders N]

Shuffles the samples of the gpt-oss window N times (seeds 0 to N - 1) and compares the packers under LPT each time.
Prints the joint objective of each strategy over the orders and how often it was the best.
"""

import argparse
import json
import pathlib
import statistics
import struct
import subprocess
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
WINDOW = ROOT / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors"
OPTIONS = ["--dp", "8", "--ep", "8", "--cap", "2048", "--cost", str(ROOT / "examples" / "gptoss20b.toml"), "--placements", "lpt"]
TYPES = {"I32": "<i4", "U16": "<u2"}


def shuffled(data, seed):
    """The window file with its samples in another order; every tensor has samples first."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    result = bytearray(data)
    order = None
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in tensor["data_offsets"])
        values = np.frombuffer(data[begin:end], TYPES[tensor["dtype"]]).reshape(tensor["shape"])
        if order is None:
            order = np.random.default_rng(seed).permutation(values.shape[0])
        result[begin:end] = values[order].tobytes()
    return bytes(result)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("routepack", type=pathlib.Path)
    parser.add_argument("--orders", type=int, default=60)
    args = parser.parse_args()
    data = WINDOW.read_bytes()
    joint, wins = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "window.safetensors"
        for seed in range(args.orders):
            path.write_bytes(shuffled(data, seed))
            done = subprocess.run([args.routepack.resolve(), "compare", path, *OPTIONS, "--json"], check=True,
                                  capture_output=True)
            ranked = {}
            for entry in json.loads(done.stdout)["windows"][0]["entries"]:
                if entry["placement"] == "lpt" and entry["rank"] is not None:
                    ranked[entry["strategy"]] = entry["joint"]
                    joint.setdefault(entry["strategy"], []).append(entry["joint"])
            best = min(ranked, key=ranked.get)
            wins[best] = wins.get(best, 0) + 1
    for strategy, values in sorted(joint.items(), key=lambda item: statistics.median(item[1])):
        print(f"{strategy:18} median {statistics.median(values):8.1f}  from {min(values):8.1f} to {max(values):8.1f}  "
              f"best in {wins.get(strategy, 0)} of {args.orders}")


if __name__ == "__main__":
    main()
