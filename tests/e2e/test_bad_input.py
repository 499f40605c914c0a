# SPDX-License-Identifier: Apache-2.0
"""Bad input: the right exit status, one line that names the place, and no trace in the file system."""
import os

import numpy as np
import pytest

import windowkit
from refusals import assert_refused, with_tensors
from windowkit import run

# Topologies.


def test_experts_that_the_ranks_do_not_divide(small):
    assert_refused(small, small.plan_arguments(dp=3, ep=3), 2, "8", "3")


@pytest.mark.parametrize("shards", ["[[0,1],[1,2]]", "[[0],[2]]", "[[0,1],[]]", "[]", "[[0,-1]]", "[[0,1]", "{}", "[[0.5]]"])
def test_shards_that_are_no_partition(small, shards):
    arguments = ["plan", small.window, "-o", small.plan_path, "--cost", small.cost, "--cap", 40, "--ep", 4]
    assert_refused(small, [*arguments, "--shards", shards], 2, "shard")


@pytest.mark.parametrize("grid", [["--dp", 3, "--ep", 2], ["--dp", 4, "--ep", 4, "--tp", 3], ["--dp", 2, "--ep", 4],
                                  ["--dp", 4, "--ep", 2, "--cp", 4], ["--dp", 0, "--ep", 4], ["--dp", 4, "--ep", -4]])
def test_topology_that_megatron_cannot_have(small, grid):
    arguments = ["plan", small.window, "-o", small.plan_path, "--cost", small.cost, "--cap", 40]
    assert_refused(small, [*arguments, *grid], 2)


# Layouts that do not exist.


def test_sample_longer_than_the_cap(small):
    longest = int(small.tensors["lengths"].argmax())
    length = int(small.tensors["lengths"][longest])
    assert_refused(small, small.plan_arguments(cap=length - 1), 3, str(longest), str(length), str(length - 1))


def test_aligned_sample_longer_than_the_cap(small):
    length = int(small.tensors["lengths"].max())
    assert_refused(small, [*small.plan_arguments(cap=length), "--sample-multiple", length + 1], 3, str(length + 1))


def test_fewer_samples_than_cells(small):
    assert_refused(small, small.plan_arguments(dp=16, ep=4), 3, "12", "16")
    assert_refused(small, [*small.plan_arguments(), "--min-rows", 4], 3, "12", ("min-rows", "min_rows"))


def test_equal_count_says_how_many_dummies_are_needed(small):
    tensors = {name: tensor[:9] for name, tensor in small.tensors.items()}
    window = small.write("nine.safetensors", windowkit.safetensors_bytes(tensors, small.metadata))
    arguments = [*small.plan_arguments(window=window), "--equal-count"]
    assert_refused(small, arguments, 3, "3", "dumm", "add-dummies")


def test_constraints_that_exclude_each_other_are_both_named(small):
    per_cell = ("max-samples-per-cell", "max_samples_per_cell")
    arguments = [*small.plan_arguments(cap=4000), "--max-samples-per-cell", 1, "--row-multiple", 2]
    assert_refused(small, arguments, 3, per_cell, ("row-multiple", "row_multiple"))

    atomic = np.full(12, -1, np.int32)
    atomic[[2, 5, 8]] = 4
    window = small.write("atomic.safetensors", with_tensors(small, atomic=atomic))
    arguments = [*small.plan_arguments(window=window, cap=4000), "--max-samples-per-cell", 2]
    assert_refused(small, arguments, 3, per_cell, "atomic")

    tokens = int(small.tensors["lengths"][[2, 5, 8]].sum())
    longest = int(small.tensors["lengths"].max())
    assert longest < tokens
    arguments = small.plan_arguments(window=window, cap=max(longest, tokens - 1))
    assert_refused(small, arguments, 3, "atomic", str(tokens), str(max(longest, tokens - 1)))


def test_rank_tokens_that_no_layout_can_keep(small):
    assert_refused(small, [*small.plan_arguments(), "--max-rank-tokens", 1], 3, ("max-rank-tokens", "max_rank_tokens"))


def test_aggregate_windows_cannot_be_packed(small):
    tensors = {"counts": np.ones((1, 2, 8), np.uint32)}
    metadata = {**small.metadata, "kind": "aggregate"}
    window = small.write("aggregate.safetensors", windowkit.safetensors_bytes(tensors, metadata))
    assert_refused(small, small.plan_arguments(window=window), 2, "aggregate")
    run("inspect", window)


# Cost and parameter files.


@pytest.mark.parametrize("value", ["nan", "inf", "-1.0", '"three"', "true", "[1.0]"])
@pytest.mark.parametrize("key", ["alpha", "beta"])
def test_cost_that_is_no_cost(small, key, value):
    cost = small.write("bad.toml", windowkit.COST.replace(f"{key} = {'1.5' if key == 'alpha' else '2.5'}", f"{key} = {value}"))
    assert_refused(small, small.plan_arguments(cost=cost), 2, "bad.toml", key)


@pytest.mark.parametrize("expert", ["nan", "-1", "-inf", "[1.0, -2.0]", "[1.0]", "[1.0, 1.0, 1.0]", "[1.0, nan]", '"x"'])
def test_expert_weights_that_are_none(small, expert):
    cost = small.write("bad.toml", f"expert = {expert}\n" + windowkit.COST)
    assert_refused(small, small.plan_arguments(cost=cost), 2, ("bad.toml", "cost"), "expert")


@pytest.mark.parametrize("text, word", [
    ("expret = 1.0\n" + windowkit.COST, "expret"), (windowkit.COST + "gamma = 1.0\n", "gamma"),
    (windowkit.COST + "[stages]\n", "stages"), ("stage = 3\n", "stage"), ("[[stage]]\nname = 'a'\nalpha = 1.0\nbeta", "bad.toml"),
    ("\x00", "bad.toml"), ("a = 1\na = 2\n", "bad.toml"),
])  # fmt: skip
def test_cost_file_that_is_malformed(small, text, word):
    cost = small.write("bad.toml", text)
    assert_refused(small, small.plan_arguments(cost=cost), 2, "bad.toml", word)


def test_no_cost_gives_a_template(small):
    arguments = ["plan", small.window, "-o", small.plan_path, "--dp", 4, "--ep", 4, "--cap", 40]
    result = run(*arguments, status=2)
    assert result.stdout == ""
    assert "[[stage]]" in result.stderr and "alpha" in result.stderr
    assert_refused(small, arguments, 2, "--cost", template=True)


@pytest.mark.parametrize("text, word", [
    ("speling = 1\n", "speling"), ("seed = 'x'\n", "seed"), ("seed = -1\n", "seed"), ("sync = 'never'\n", "sync"),
    ("[serach]\n", "serach"), ("[search]\nchains_of_gold = 1\n", "chains_of_gold"), ("= 3", "bad.toml"),
])  # fmt: skip
def test_parameter_file_that_is_malformed(small, text, word):
    params = small.write("bad.toml", text)
    assert_refused(small, [*small.plan_arguments(), "--params", params], 2, "bad.toml", word)


# Files that cannot be.


def test_file_that_is_not_there(small):
    missing = small.folder / "missing"
    assert_refused(small, ["inspect", missing], 2, "missing")
    assert_refused(small, small.plan_arguments(window=missing), 2, "missing")
    assert_refused(small, small.plan_arguments(cost=missing), 2, "missing")
    assert_refused(small, ["score", small.window, missing], 2, "missing")
    assert_refused(small, ["verify", small.window, missing], 2, "missing")
    assert_refused(small, [*small.plan_arguments(), "--current", missing], 2, "missing")
    assert_refused(small, [*small.plan_arguments(), "--params", missing], 2, "missing")


def test_directory_where_a_file_is_wanted(small):
    folder = small.folder / "folder"
    folder.mkdir()
    assert_refused(small, ["inspect", folder], 2, "folder")
    assert_refused(small, small.plan_arguments(window=folder), 2, "folder")
    assert_refused(small, small.plan_arguments(cost=folder), 2, "folder")
    assert_refused(small, ["score", small.window, folder], 2, "folder")
    assert_refused(small, [*small.plan_arguments(), "--params", folder], 2, "folder")
    assert_refused(small, [*small.plan_arguments(), "--placement-out", folder], 2, "folder")
    assert os.listdir(folder) == []


def test_directory_where_the_plan_of_one_window_is_wanted(small):
    folder = small.folder / "folder"
    folder.mkdir()
    assert_refused(small, small.plan_arguments(out=folder), 2, "folder")
    assert os.listdir(folder) == []


@pytest.mark.parametrize("out", ["/dev/full", "/proc/routepack.json", "missing/plan.json", "cost.toml/plan.json"])
def test_output_that_cannot_be_written(small, out):
    out = small.folder / out  # an absolute path stays itself
    assert_refused(small, small.plan_arguments(out=out), 2, str(out))


def test_standard_output_that_is_full(small):
    plan = small.make_plan()
    assert plan["rows"] >= 1
    for arguments in (["inspect", small.window], ["score", small.window, small.plan_path], ["plan", "--help"]):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = run(*arguments, status=2, stdout=full)
        assert len(result.stderr.splitlines()) == 1


def test_placement_that_cannot_be_written_leaves_no_plan_behind(small):
    assert_refused(small, [*small.plan_arguments(), "--placement-out", "/dev/full"], 2, "/dev/full")


def test_several_windows_into_a_file(small):
    other = small.write("other.safetensors", small.window.read_bytes())
    arguments = small.plan_arguments()
    arguments.insert(2, other)
    assert_refused(small, arguments, 2, "plan.json")


# Usage.


@pytest.mark.parametrize("arguments", [
    [], ["dance"], ["plan"], ["score"], ["verify"], ["inspect"], ["inspect", "--dance"], ["plan", "--dp"],
    ["score", "one"], ["score", "one", "two", "three"],
])  # fmt: skip
def test_usage(small, arguments):
    result = run(*arguments, status=2)
    assert result.stdout == ""
    assert result.stderr.startswith("routepack: error: ") or "sage" in result.stderr


@pytest.mark.parametrize("option, value", [
    ("--dp", "four"), ("--ep", "4x"), ("--cap", "0"), ("--cap", "-3"), ("--cap", "1e3"), ("--cap", "99999999999999999999"),
    ("--cap", "94906266"), ("--seed", "-1"), ("--sync", "sometimes"), ("--placement", "best"), ("--threads", "-2"),
    ("--sample-multiple", "0"), ("--min-rows", "0"), ("--oversized", "maybe"), ("--max-rank-tokens", "-1"),
    ("--effort", "hard"), ("--deadline-ms", "-1"), ("--sticky-eps", "-0.1"), ("--sticky-eps", "2"), ("--sticky-eps", "nan"),
    ("--ranks-per-node", "-1"), ("--expert-bytes", "1.5"), ("--optimizer-shards", "0"), ("--weight-bytes", "65"),
])  # fmt: skip
def test_option_with_a_value_that_is_none(small, option, value):
    assert_refused(small, [*small.plan_arguments(), option, value], 2, option)


def test_missing_options_are_named(small):
    arguments = small.plan_arguments()
    for option in ("-o", "--dp", "--ep", "--cap"):
        at = arguments.index(option)
        assert_refused(small, arguments[:at] + arguments[at + 2 :], 2, option)


def test_dp_and_shards_contradict(small):
    assert_refused(small, [*small.plan_arguments(), "--shards", "[[0,1],[2]]"], 2, "shards", "dp")


@pytest.mark.parametrize("command", ["convert", "report", "calibrate", "evaluate"])
def test_commands_of_the_python_package_say_so(small, command):
    result = run(command, status=2)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert command in result.stderr
