# SPDX-License-Identifier: Apache-2.0
"""Metrics for dashboards: stable names, plain numbers, all of them documented."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import routepack

#: Renaming one breaks people's dashboards.
NAMES = {
    "attention", "bound", "bound_fixed_placement", "complete", "cv_global", "cv_global_before", "dummies",
    "ep_efficiency", "expert_peak_sum", "gap", "joint", "moved_bytes", "moved_experts", "moved_fraction", "moved_local", "ms_check",
    "ms_demand", "ms_loads", "ms_place", "ms_refine", "ms_rows", "ms_search", "ms_seed", "ms_total", "rows",
    "rows_lower_bound", "search_accepted", "search_proposals", "search_seed", "tail_peak", "total", "worst_row",
}  # fmt: skip


@pytest.fixture(scope="module")
def plan(root):
    window = routepack.Window.load(root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors")
    cost = routepack.CostModel.load(root / "examples" / "gptoss20b.toml")
    params = routepack.PlanParams(effort="fast")
    return routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=params)


def test_names_are_stable_and_values_are_plain_floats(plan):
    assert set(plan.metrics) == {f"routepack/{name}" for name in NAMES}
    assert all(type(name) is str and type(value) is float for name, value in plan.metrics.items())
    assert all(re.fullmatch(r"[a-z0-9_/]+", name) for name in plan.metrics), "what MLflow and TensorBoard take"
    json.dumps(plan.metrics, allow_nan=False)


def test_they_are_the_plans_own_figures(plan):
    metrics = plan.metrics
    written = json.loads(plan.to_json())
    for name, value in written["metrics"].items():
        assert metrics[f"routepack/{name}"] == value
    assert metrics["routepack/joint"] == plan.score[0] and metrics["routepack/total"] == plan.score[1]
    assert metrics["routepack/bound"] == plan.bound and metrics["routepack/rows"] == plan.num_rows
    assert metrics["routepack/moved_experts"] == plan.moves["experts"]
    assert metrics["routepack/ms_total"] == plan.timings_ms["total"]
    assert metrics["routepack/ms_total"] >= 0.99 * sum(v for n, v in plan.timings_ms.items() if n != "total")
    assert metrics["routepack/search_proposals"] == plan.search.proposals


def test_every_name_is_documented(root):
    text = (root / "docs" / "python.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"`{name}`" in text, name


def test_a_plan_that_was_read_has_them_too(plan):
    again = routepack.Plan.from_json(plan.to_json())
    assert again.metrics["routepack/ep_efficiency"] == plan.metrics["routepack/ep_efficiency"]
    assert np.isfinite(list(again.metrics.values())).all()
