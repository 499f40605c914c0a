# SPDX-License-Identifier: Apache-2.0
"""The examples of the repository, from a window to a verified plan."""
import json

import pytest

from windowkit import REPOSITORY, run, run_json, score_reference

EXAMPLES = REPOSITORY / "examples"
REAL = {
    "gpt-oss": ("windows/gptoss20b-mmlu-354.safetensors", "gptoss20b.toml", ["--dp", 8, "--ep", 8, "--cap", 2048]),
    "mixtral": ("windows/mixtral-mmlu-512.safetensors", "mixtral8x7b.toml", ["--dp", 4, "--ep", 4, "--cap", 8192]),
}


@pytest.fixture(params=REAL)
def real(request):
    window, cost, arguments = REAL[request.param]
    return EXAMPLES / window, [*arguments, "--cost", EXAMPLES / cost]


def test_plan_is_verified_and_its_numbers_repeat(real, tmp_path):
    window, arguments = real
    path = tmp_path / "plan.json"
    report = run_json("plan", window, "-o", path, *arguments)
    plan = json.loads(path.read_text())
    assert report["score"] == plan["score"]
    assert report["rows"] == plan["rows"] == len(plan["layout"])

    verdict = run_json("verify", window, path)
    assert verdict["accepted"] is True
    assert verdict["violations"] == []
    assert len(verdict["checked"]) > 3
    run("verify", window, path)

    again = run_json("score", window, path)
    assert again["score"] == plan["score"]
    assert again["hash"] == report["hash"]
    for name in ("attention", "expert_peak_sum", "tail_peak", "ep_efficiency", "cv_global", "joint", "gap"):
        assert again["metrics"][name] == plan["metrics"][name] == report["metrics"][name], name
    assert again["bound"]["max_shard"] == plan["bound"]["max_shard"]

    tensors, _ = score_reference.read_safetensors(window)
    wanted = score_reference.score(tensors, plan)
    assert wanted["score"] == plan["score"]
    assert wanted["tail_peak"] == plan["metrics"]["tail_peak"]
    assert wanted["expert_peak_sum"] == plan["metrics"]["expert_peak_sum"]
    assert wanted["lb_any_placement"] <= plan["bound"]["max_shard"] * (1 + 1e-12) <= plan["score"]["max_shard"]
    assert wanted["aligned_tokens"] <= plan["capacity"]


@pytest.mark.parametrize("sync", ["step", "row"])
def test_same_seed_gives_the_same_plan(real, sync, tmp_path):
    window, arguments = real
    hashes = []
    for threads in (1, 1, 2):
        report = run_json(
            "plan", window, "-o", tmp_path / "plan.json", *arguments, "--sync", sync, "--seed", 5, "--threads", threads
        )
        hashes.append(report["hash"])
    assert hashes[0].startswith("xxh3:")
    assert len(set(hashes)) == 1


def test_plan_is_better_than_first_fit_and_moves_are_counted(real, tmp_path):
    window, arguments = real
    path = tmp_path / "plan.json"
    report = run_json("plan", window, "-o", path, *arguments)
    assert report["score"]["max_shard"] < report["baseline"]["score"]["max_shard"]
    assert report["rows"] >= report["rows_lower_bound"]
    plan = json.loads(path.read_text())
    layers, experts, ranks = plan["window"]["layers"], plan["window"]["experts"], plan["topology"]["ep"]
    per_rank = experts // ranks
    moved = sum(
        expert // per_rank != slot // per_rank for row in plan["physical_to_logical"] for slot, expert in enumerate(row)
    )
    assert plan["moves"]["experts"] == moved
    assert plan["moves"]["fraction"] == moved / (layers * experts)

    kept = run_json("plan", window, "-o", tmp_path / "kept.json", *arguments, "--placement", "keep", "--current", path)
    assert kept["moves"]["experts"] == 0
    assert json.loads((tmp_path / "kept.json").read_text())["physical_to_logical"] == plan["physical_to_logical"]


def test_people_see_the_plan_too(real, tmp_path):
    window, arguments = real
    result = run("plan", window, "-o", tmp_path / "plan.json", *arguments)
    assert str(tmp_path / "plan.json") in result.stdout
    assert "efficiency" in result.stdout
    assert run("inspect", window).stdout.strip()
    assert run("score", window, tmp_path / "plan.json").stdout.strip()


def test_inspect_describes_the_window():
    report = run_json("inspect", EXAMPLES / REAL["gpt-oss"][0])
    assert (report["samples"], report["layers"], report["experts"], report["top_k"]) == (354, 24, 32, 4)
    assert report["kind"] == "samples"
    assert report["fingerprint"].startswith("xxh3:") and len(report["fingerprint"]) == 21
