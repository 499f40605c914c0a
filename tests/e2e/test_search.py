# SPDX-License-Identifier: Apache-2.0
"""The search for a layout from outside: efforts, seeds, threads, deadlines, interruption, its parameters."""
import json
import os
import signal
import subprocess
import time

import numpy as np
import pytest

import windowkit
from refusals import assert_refused
from windowkit import EXECUTABLE, REPOSITORY, run, run_json

GPTOSS = [REPOSITORY / "examples/windows/gptoss20b-mmlu-354.safetensors", "--dp", 8, "--ep", 8, "--cap", 2048,
          "--cost", REPOSITORY / "examples/gptoss20b.toml"]  # fmt: skip
EFFORTS = ("paper", "fast", "default", "quality")
# Few proposals: the way an effort goes, at little cost.
SHORT = "[search]\nproposals-per-sample = 40\n"


@pytest.fixture
def medium(small):
    """48 samples in three rows of two shards."""
    tensors = windowkit.random_window(np.random.default_rng(11), samples=48, layers=3, experts=8, top_k=2, max_length=20)
    small.tensors = tensors
    small.window = small.write("medium.safetensors", windowkit.safetensors_bytes(tensors, small.metadata))
    small.CAP, small.EP = 60, 2
    return small


def search_table(plan):
    return plan["params"]["search"]


@pytest.mark.parametrize("effort", EFFORTS)
def test_every_effort_gives_a_plan_that_verify_accepts(medium, effort):
    plan = medium.make_plan("--effort", effort, "--params", medium.write("short.toml", SHORT))
    assert plan["params"]["effort"] == effort
    assert plan["complete"] is True
    assert plan["search"]["proposals"] > 0
    assert plan["score"]["max_shard"] <= plan["search"]["seed"] * (1 + 1e-12)
    assert run_json("verify", medium.window, medium.plan_path)["accepted"] is True


@pytest.mark.parametrize("effort", ["paper", "fast", "default"])
def test_every_effort_improves_on_its_seed_on_real_routing(tmp_path, effort):
    report = run_json("plan", *GPTOSS, "-o", tmp_path / "plan.json", "--effort", effort, "--placement", "lpt")
    assert report["score"]["max_shard"] < report["search"]["seed"]
    assert report["search"]["ending"] == "budget"
    assert report["search"]["levels"] > 1
    assert 0 < report["search"]["accepted"] < report["search"]["proposals"]


def test_more_effort_proposes_more(medium):
    proposals = [medium.make_plan("--effort", effort)["search"]["proposals"] for effort in ("fast", "default")]
    assert proposals[0] < proposals[1]


@pytest.mark.parametrize("effort", ["paper", "default"])
@pytest.mark.parametrize("sync", ["step", "row"])
def test_the_plan_does_not_depend_on_threads(medium, effort, sync):
    arguments = [*medium.plan_arguments(), "--effort", effort, "--sync", sync, "--seed", 3]
    short = medium.write("short.toml", SHORT)
    hashes = {run_json(*arguments, "--threads", n, "--params", short)["hash"] for n in (1, 2, 3, 8)}
    assert len(hashes) == 1


@pytest.mark.parametrize("table, more", [
    ("guided-share = 0.8\n", []), ("paper-energy = true\n", ["--tp", 2]), ("repack-share = 0.5\n", ["--effort", "paper"]),
    ("block-rows = 1\nguided-share = 0.5\nmean-share = 1.0\n", ["--sync", "row", "--tp", 2]),
    ("block-rows = 0\npopulation = 3\n", []), ("kicks = 5\n", ["--moves", "free"]),
])  # fmt: skip
def test_no_parameter_of_the_search_makes_the_plan_depend_on_threads(tmp_path, table, more):
    params = tmp_path / "search.toml"
    params.write_text("[search]\n" + table)
    arguments = [*GPTOSS, "-o", tmp_path / "plan.json", "--params", params, *more]
    assert len({run_json("plan", *arguments, "--threads", n)["hash"] for n in (1, 2, 8)}) == 1
    assert run_json("verify", GPTOSS[0], tmp_path / "plan.json")["accepted"] is True


def test_another_seed_gives_another_layout(tmp_path):
    layouts = set()
    for seed in range(4):
        path = tmp_path / f"{seed}.json"
        run("plan", *GPTOSS, "-o", path, "--seed", seed, "--effort", "fast")
        layouts.add(json.dumps(json.loads(path.read_text())["layout"]))
    assert len(layouts) > 1


def test_a_short_deadline_gives_a_valid_plan_that_says_whether_it_was_cut(tmp_path):
    path = tmp_path / "plan.json"
    for milliseconds in (1, 3, 10, 30, 100):
        report = run_json("plan", *GPTOSS, "-o", path, "--effort", "quality", "--deadline-ms", milliseconds)
        plan = json.loads(path.read_text())
        assert report["complete"] is plan["complete"] is False  # quality takes seconds
        assert report["search"]["ending"] == "stopped"
        assert plan["rows"] == 7
        assert plan["params"]["deadline_ms"] == milliseconds
        assert run_json("verify", GPTOSS[0], path)["accepted"] is True
    assert "deadline" in run("plan", *GPTOSS, "-o", path, "--effort", "quality", "--deadline-ms", 1).stdout


def test_a_deadline_that_is_long_enough_changes_nothing_but_its_own_parameter(medium):
    free = medium.make_plan("--effort", "fast")
    timed = medium.make_plan("--effort", "fast", "--deadline-ms", 600_000)
    assert timed["complete"] is True
    for key in ("layout", "physical_to_logical", "score", "search", "placing"):
        assert timed[key] == free[key]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_a_long_search_leaves_no_file(tmp_path, number):
    # Levels without end, each of them short: such a search takes many minutes and little memory.
    params = tmp_path / "long.toml"
    params.write_text("[search]\nlevels = 1000000\nproposals-per-sample = 50000000\nmost-proposals = 1000000000000\n")
    out = tmp_path / "out"
    out.mkdir()
    arguments = ["plan", *GPTOSS, "-o", out / "plan.json", "--placement-out", out / "placement.json", "--params", params]
    process = subprocess.Popen([EXECUTABLE, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1.0)
    assert process.poll() is None, "it was to be interrupted while it searches"
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stdout == ""
    assert len(stderr.splitlines()) <= 1
    assert os.listdir(out) == []


def test_the_search_ends_early_on_an_easy_window(small):
    # Everybody alike: every layout is as good as the bound.
    tensors = {"lengths": np.full(16, 8, np.int32), "counts": np.full((16, 2, 8), 2, np.uint16)}
    window = small.write("alike.safetensors", windowkit.safetensors_bytes(tensors, small.metadata))
    report = run_json(*small.plan_arguments(window=window))
    assert report["search"]["ending"] in ("bound reached", "nothing to move")
    assert report["search"]["proposals"] == 0
    assert report["complete"] is True
    assert report["bound"]["gap"] < 1e-4
    assert "easy" in run(*small.plan_arguments(window=window)).stdout


# The table [search].


def test_the_table_search_is_read_and_recorded(medium):
    params = medium.write("search.toml", "effort = 'fast'\n[search]\nlevels = 5\nhot = 0.25\nadaptive-temperatures = false\n")
    plan = medium.make_plan("--params", params)
    assert search_table(plan)["levels"] == plan["search"]["levels"] == 5
    assert search_table(plan)["hot"] == 0.25
    assert search_table(plan)["adaptive_temperatures"] is False
    # What the table leaves open is the effort's.
    fast = search_table(medium.make_plan("--effort", "fast"))
    for key in fast.keys() - {"levels", "hot", "adaptive_temperatures"}:
        assert search_table(plan)[key] == fast[key]


def test_the_table_starts_from_the_effort_of_the_command_line(medium):
    params = medium.write("search.toml", "effort = 'fast'\n[search]\nproposals-per-sample = 7\n")
    plan = medium.make_plan("--params", params, "--effort", "paper")
    assert search_table(plan)["proposals_per_sample"] == 7
    assert search_table(plan)["population"] == 8


def test_the_number_of_proposals_obeys_its_limits(medium):
    def proposals(text):
        return medium.make_plan("--placement", "keep", "--params", medium.write("p.toml", "[search]\n" + text))["search"]["proposals"]

    # Drawn, not all of them are possible moves: priced ones are fewer.
    assert 0 < proposals("proposals-per-sample = 10\n") <= 10 * 48 + 24 * 6 * 4
    few = proposals("proposals-per-sample = 1000000\nmost-proposals = 5000\n")
    assert 0 < few <= 5000 + 24 * 6 * 4
    paper = "proposals-per-sample = 1000000\nmost-proposals = 5000\nblock-rows = 0\npopulation = 4\n"
    assert 0 < proposals(paper) <= 5000 + 24 * 4


@pytest.mark.parametrize("effort", EFFORTS)
def test_dumped_parameters_hold_the_whole_table_and_give_the_same_plan(medium, effort):
    arguments = [*medium.plan_arguments(), "--effort", effort]
    short = medium.write("short.toml", SHORT)
    first = run_json(*arguments, "--params", short)["hash"]
    dumped = run(*arguments, "--params", short, "--dump-params").stdout
    plan = json.loads(medium.plan_path.read_text())
    table = dumped.split("[search]\n")[1]
    assert {line.split(" = ")[0].replace("-", "_") for line in table.splitlines()} == search_table(plan).keys()
    again = run_json("plan", medium.window, "-o", medium.plan_path, "--params", medium.write("dumped.toml", dumped))
    assert again["hash"] == first


@pytest.mark.parametrize("line, words", [
    ("levls = 3", ("levls",)), ("most_proposals = 3", ("most_proposals", "most-proposals")), ("levels = 0", ("levels", "0")),
    ("levels = 1.5", ("levels",)), ("levels = true", ("levels",)), ("seeds = 5000", ("seeds", "4096")),
    ("hot = 0.0", ("hot",)), ("hot = inf", ("hot",)), ("near-share = 1.01", ("near-share", "1.01")),
    ("near-width = -0.1", ("near-width",)), ("paper-energy = 1", ("paper-energy",)), ("guided-share = '0.5'", ("guided-share",)),
    ("tolerance = 2", ("tolerance",)), ("refinements = 0", ("refinements",)),
])  # fmt: skip
def test_a_bad_value_in_the_table_is_refused_with_file_and_line(small, line, words):
    params = small.write("bad.toml", f"seed = 1\n\n[search]\n{line}\n")
    assert_refused(small, [*small.plan_arguments(), "--params", params], 2, "bad.toml:4", *words)


def test_search_must_be_a_table(small):
    params = small.write("bad.toml", "search = 3\n")
    assert_refused(small, [*small.plan_arguments(), "--params", params], 2, "bad.toml:1", "search")
