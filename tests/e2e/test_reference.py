# SPDX-License-Identifier: Apache-2.0
"""`routepack score` against the numpy reference, to the last bit."""
import json

import numpy as np
import pytest

import windowkit
from windowkit import REPOSITORY, run_json, score_reference

GOLDEN = REPOSITORY / "tests/data/golden"


def close(found, wanted):
    return abs(found - wanted) <= 1e-12 * abs(wanted)


def assert_same_figures(found, wanted):
    assert found["score"] == wanted["score"]
    metrics = found["metrics"]
    assert metrics["expert_peak_sum"] == wanted["expert_peak_sum"]
    assert metrics["tail_peak"] == wanted["tail_peak"]
    assert metrics["joint"] == wanted["score"]["max_shard"]
    for name in ("attention", "ep_efficiency", "cv_global"):
        assert close(metrics[name], wanted[name]), name
    bound = found["bound"]["max_shard"]
    assert bound >= wanted["lb_any_placement"] * (1 - 1e-12)
    assert bound <= wanted["score"]["max_shard"] * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_random_windows_and_plans(seed, tmp_path):
    rng = np.random.default_rng(1000 + seed)
    ranks = int(rng.integers(1, 6))
    experts = ranks * int(rng.integers(1, 5))
    slots = int(rng.integers(1, 6))
    rows = int(rng.integers(1, 5))
    top_k = int(rng.integers(1, min(experts, 4) + 1))
    tensors = windowkit.random_window(
        rng,
        samples=rows * slots + int(rng.integers(0, 12)),
        layers=int(rng.integers(1, 5)),
        experts=experts,
        top_k=top_k,
        recorded=[None, "samples", "layers"][seed % 3],
        padding=seed % 2 == 0,
    )
    plan = windowkit.random_plan(
        rng,
        tensors,
        ranks=ranks,
        slots=slots,
        rows=rows,
        sync=["step", "row"][seed % 2 ^ seed // 2 % 2],
        sample_multiple=int(rng.integers(1, 9)),
        cell_multiple=int(rng.integers(1, 17)),
    )
    window_path, plan_path = tmp_path / "window.safetensors", tmp_path / "plan.json"
    window_path.write_bytes(windowkit.safetensors_bytes(tensors, windowkit.metadata(top_k)))
    plan_path.write_text(json.dumps(plan))
    assert_same_figures(run_json("score", window_path, plan_path), score_reference.score(tensors, plan))
    assert run_json("verify", window_path, plan_path)["accepted"] is True


@pytest.mark.parametrize("name", ["hand", "two_shards", "two_shards_row"])
def test_golden_cases(name):
    window, plan = GOLDEN / f"{name}.safetensors", GOLDEN / f"{name}.plan.json"
    tensors, _ = score_reference.read_safetensors(window)
    wanted = score_reference.score(tensors, json.loads(plan.read_text()))
    expected = json.loads((GOLDEN / f"{name}.expected.json").read_text())
    for found, golden in zip(wanted["score"].values(), expected.pop("score")):
        assert close(found, golden)
    for key, golden in expected.items():
        assert close(wanted[key], golden), key
    assert_same_figures(run_json("score", window, plan), wanted)
