#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Free runs with RoutePack and without, seeds 0 to 4, from one policy of the start: does planning change what is learnt?

    python examples/tiny_moe_rl/seeds.py FOLDER --steps 150

Runs whose logs are in the folder already are not made again. Prints a table, and ends with status 1 unless the mean
rewards differ by less than two standard errors.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np

SEEDS = (0, 1, 2, 3, 4)  # fixed before any of them was run
TRAIN = pathlib.Path(__file__).with_name("train.py")


def log_of(folder: pathlib.Path, seed: int, planned: bool, steps: int, rest: list[str]) -> list[dict[str, Any]]:
    """The lines of one run."""
    path = folder / f"seed{seed}-{'with' if planned else 'without'}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if len(lines) < steps:
        path.unlink(missing_ok=True)
        command = [sys.executable, str(TRAIN), "--seed", str(seed), "--steps", str(steps), "--log", str(path)]
        command += ["--start", str(folder / "start.pt"), *rest]
        command += [] if planned else ["--without-routepack"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:steps]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=150)
    options, rest = parser.parse_known_args()  # what is left goes to train.py
    options.folder.mkdir(parents=True, exist_ok=True)
    rewards: dict[bool, list[float]] = {True: [], False: []}
    busiest = {True: 0, False: 0}
    print("| seed | mean reward with | without | last fifth with | without | as predicted |")
    print("|---|---|---|---|---|---|")
    for seed in SEEDS:
        logs = {planned: log_of(options.folder, seed, planned, options.steps, rest) for planned in (True, False)}
        shown = [str(seed)]
        for part in (slice(None), slice(-(options.steps // 5 or 1), None)):
            for planned in (True, False):
                mean = float(np.mean([now["reward"] for now in logs[planned][part]]))
                shown.append(f"{mean:.3f}")
                if part == slice(None):
                    rewards[planned].append(mean)
                    busiest[planned] += sum(now["busiest"] for now in logs[planned])
        exact = sum(now["as_predicted"] for log in logs.values() for now in log)
        print(f"| {' | '.join(shown)} | {exact} of {2 * options.steps} |", flush=True)
    found = {planned: np.array(values) for planned, values in rewards.items()}
    difference = float(found[True].mean() - found[False].mean())
    error = float(np.sqrt(sum(values.var(ddof=1) / len(values) for values in found.values())))
    paired = found[True] - found[False]
    print(
        f"\nmean reward {found[True].mean():.4f} with, {found[False].mean():.4f} without: they differ by {difference:+.4f}, "
        f"{abs(difference) / error:.2f} standard errors of {error:.4f}; seed by seed {paired.mean():+.4f} "
        f"± {paired.std(ddof=1) / len(paired) ** 0.5:.4f}.\n"
        f"Work of the busiest ranks {busiest[True] / busiest[False] - 1:+.1%}."
    )
    return 0 if abs(difference) < 2 * error else 1


if __name__ == "__main__":
    sys.exit(main())
