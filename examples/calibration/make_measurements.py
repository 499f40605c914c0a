#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes kernels.csv and rows.jsonl: SYNTHETIC measurements, from known times with 2 % of noise.

Nothing here was measured. The shapes are those of a model like gpt-oss-20b (24 layers, every other one with a sliding
window, 32 experts, top-4) on 8 EP ranks with 8 cells under a cap of 2,048 tokens.
Usage: make_measurements.py FOLDER
"""

from __future__ import annotations

import json
import math
import pathlib
import random
import sys

LAYERS, RANKS, EXPERTS_PER_RANK, TOP_K, CAP = 24, 8, 4, 4, 2048
STAGE_LAYERS = 12
NOTE = "synthetic"
NOISE = 0.02

# Seconds, as a timing file has them: what a calibration should find again.
TRUE = {
    "expert.token": 5e-7,
    "expert.active": 4e-6,
    "all_to_all.token": 8e-8,
    "all_to_all.fixed": 1.2e-4,
    "stage.sliding.token": 6e-6,
    "stage.sliding.pair": 0.0,
    "stage.full.token": 5e-6,
    "stage.full.pair": 2.3e-9,
    "fixed.row": 4e-3,
    "fixed.step": 0.12,
}


def measured(draw: random.Random, seconds: float) -> float:
    """With noise of the size of a share, in 5 digits, which hide how mathematics libraries differ."""
    return float(f"{seconds * math.exp(draw.gauss(0.0, NOISE)):.5g}")


def lengths(draw: random.Random, tokens: int, longest: int) -> list[int]:
    """Samples that fill a cell."""
    found: list[int] = []
    while (left := tokens - sum(found)) > 0:
        found.append(min(left, draw.randint(max(1, longest // 4), longest)))
    return found


def dense(stage: str, tokens: int, squares: int) -> float:
    return TRUE[f"stage.{stage}.token"] * tokens + TRUE[f"stage.{stage}.pair"] * squares


def layer_loads(draw: random.Random, assignments: int, skew: float, idle: float) -> list[list[int]]:
    """[ranks][experts of a rank] routed tokens: uneven, some experts without any."""
    weights = [
        [0.0 if draw.random() < idle else draw.random() ** skew + 0.02 for _ in range(EXPERTS_PER_RANK)]
        for _ in range(RANKS)
    ]
    weights[draw.randrange(RANKS)][0] += 0.5
    total = sum(map(sum, weights))
    return [[int(assignments * weight / total) for weight in rank] for rank in weights]


def experts(loads: list[list[int]]) -> float:
    return max(TRUE["expert.token"] * sum(rank) + TRUE["expert.active"] * sum(x > 0 for x in rank) for rank in loads)


def kernels(draw: random.Random) -> list[str]:
    lines = [
        "# SYNTHETIC: made by make_measurements.py, nothing was measured",
        "kind,stage,layers,tokens,squares,all_to_all_peak,seconds,note",
    ]
    for stage in ("sliding", "full"):
        for _ in range(24):
            cell = lengths(draw, draw.randint(200, CAP), draw.choice([100, 400, CAP]))
            tokens, squares = sum(cell), sum(t * t for t in cell)
            seconds = measured(draw, dense(stage, tokens, squares) / STAGE_LAYERS)
            lines.append(f"attention,{stage},1,{tokens},{squares},,{seconds},{NOTE}")
    for _ in range(16):
        peak = int(10.0 ** draw.uniform(1.0, 4.3))
        seconds = measured(draw, TRUE["all_to_all.token"] * peak + TRUE["all_to_all.fixed"])
        lines.append(f"all_to_all,,1,,,{peak},{seconds},{NOTE}")
    lines += [f"step,,,,,,{measured(draw, TRUE['fixed.step'])},{NOTE}" for _ in range(6)]
    return lines


def rows(draw: random.Random) -> list[str]:
    lines = []
    for _ in range(24):
        loads = layer_loads(draw, int(10.0 ** draw.uniform(2.0, 4.5)), 3.0, draw.choice([0.0, 0.7, 0.9]))
        lines.append(
            {"kind": "experts", "seconds": measured(draw, experts(loads)), "expert_loads": [loads], "note": NOTE}
        )
    for _ in range(32):
        full = draw.uniform(0.05, 1.0)
        cells = [
            lengths(draw, int(full * draw.randint(CAP // 2, CAP)), draw.choice([100, 400, CAP])) for _ in range(RANKS)
        ]
        tokens, squares = [sum(cell) for cell in cells], [sum(t * t for t in cell) for cell in cells]
        layers = [layer_loads(draw, sum(tokens) * TOP_K, 2.0, 0.0) for _ in range(LAYERS)]
        exchange = sum(max(*map(sum, loads), TOP_K * max(tokens)) for loads in layers)
        seconds = TRUE["fixed.row"] + sum(map(experts, layers))
        seconds += sum(max(map(dense, [stage] * RANKS, tokens, squares)) for stage in ("sliding", "full"))
        seconds += TRUE["all_to_all.token"] * exchange + TRUE["all_to_all.fixed"] * LAYERS
        lines.append({
            "kind": "row", "seconds": measured(draw, seconds), "layers": LAYERS, "tokens": tokens, "squares": squares,
            "expert_peak": sum(max(map(sum, loads)) for loads in layers),
            "active_experts": EXPERTS_PER_RANK * LAYERS,  # in rows every expert has load
            "all_to_all_peak": exchange, "note": NOTE,
        })  # fmt: skip
    return [json.dumps(line) for line in lines]


def main(folder: pathlib.Path) -> None:
    draw = random.Random(20)
    for name, lines in (("kernels.csv", kernels(draw)), ("rows.jsonl", rows(draw))):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
