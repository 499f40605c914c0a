# SPDX-License-Identifier: Apache-2.0
"""What the tests of teams plan."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

import routepack

ROOT = pathlib.Path(__file__).resolve().parents[3]
TOPOLOGY = routepack.Topology(dp=8, ep=8)
FAST = routepack.PlanParams(effort="fast", threads=1)
# Minutes of search, unless somebody ends it.
ENDLESS = routepack.PlanParams(
    search=routepack.SearchParams(proposals_per_sample=1 << 20, most_proposals=1 << 40, levels=4096), threads=1
)


def window() -> routepack.Window:
    return routepack.Window.load(ROOT / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors")


def other_window() -> routepack.Window:
    """Of the same shape, with other counts."""
    like = window()
    return routepack.Window.from_arrays(lengths=like.lengths, counts=np.ascontiguousarray(like.counts[:, ::-1]), top_k=4)


def cost() -> routepack.CostModel:
    return routepack.CostModel.load(ROOT / "examples" / "gptoss20b.toml")


def plan(of: routepack.Window | None = None, **options: Any) -> routepack.Plan:
    options = {"topology": TOPOLOGY, "capacity": 2048, "cost": cost(), "params": FAST} | options
    return routepack.plan(window() if of is None else of, options.pop("topology"), **options)
