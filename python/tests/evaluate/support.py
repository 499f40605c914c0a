# SPDX-License-Identifier: Apache-2.0
"""A small scenario, and documents as `routepack compare --json` prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DEVICE = """
name = "D"
peak_tflops = 100.0
memory_gbytes_per_second = 1000.0
[reached]
dense = 0.5
grouped = 0.5
attention = 0.5
linear_attention = 0.5
[links]
near_gbytes_per_second = 100.0
near_reached = 0.5
far_gbytes_per_second = 10.0
far_reached = 0.5
"""

SCENARIO = """
name = "small"
description = "A small one."
model = "olmoe-1b-7b"
device = "device.toml"
cap = 2048

[windows]
lengths = "gsm8k"
prompts = 6
rollouts = 4
steps = 2
seeds = [3]

[topology]
dp = 4
ep = 4
"""


def write_scenario(folder: Path, text: str = SCENARIO, name: str = "scenario.toml") -> Path:
    """A scenario file beside its device file."""
    (folder / "device.toml").write_text(DEVICE, encoding="utf-8")
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def recorded(folder: Path) -> dict[str, dict[str, Any]]:
    """Documents of `routepack compare --json`, by strategy, as they were recorded (data/README.md)."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
