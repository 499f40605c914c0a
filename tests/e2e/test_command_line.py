# SPDX-License-Identifier: Apache-2.0
"""What the command line promises beside planning itself."""
import json
import os

import numpy as np
import pytest

import windowkit
from windowkit import run, run_json

PLAN_KEYS = {
    "plan", "hash", "score", "metrics", "bound", "moves", "rows", "rows_lower_bound", "rows_certified", "timings_ms",
    "baseline",
}  # fmt: skip


def test_help_teaches_by_example():
    for command in ("plan", "score", "verify", "inspect", "simulate"):
        result = run(command, "--help")
        assert f"routepack {command} " in result.stdout
        assert "xample" in result.stdout
        assert result.stderr == ""
    overview = run("--help").stdout
    for command in ("plan", "score", "verify", "inspect", "simulate", "convert", "report", "calibrate", "evaluate"):
        assert command in overview
    assert "Python" in overview


def test_version():
    assert run("--version").stdout.strip()


def test_json_of_every_command(small):
    report = run_json(*small.plan_arguments())
    assert PLAN_KEYS <= report.keys()
    assert report["plan"] == str(small.plan_path)
    assert report["score"].keys() == {"max_shard", "total", "worst_row"}
    assert {"score", "metrics"} <= report["baseline"].keys()
    assert {"hash", "score", "metrics", "bound", "rows"} <= run_json("score", small.window, small.plan_path).keys()
    assert run_json("verify", small.window, small.plan_path)["accepted"] is True
    inspected = run_json("inspect", small.window)
    assert {"samples", "layers", "experts", "top_k", "kind", "fingerprint", "tokens"} <= inspected.keys()
    assert inspected["samples"] == 12


def test_plan_file_has_every_key_of_the_format(small):
    plan = small.make_plan()
    assert plan["format"] == "routepack.plan/1"
    assert plan["window"] == {**plan["window"], "samples": 12, "layers": 2, "experts": 8}
    assert plan["window"]["fingerprint"] == run_json("inspect", small.window)["fingerprint"]
    assert plan["topology"]["ep"] == 4 and plan["topology"]["shards"] == [[0, 1, 2, 3]]
    assert plan["capacity"] == small.CAP
    assert plan["complete"] is True and plan["sync"] == "step" and plan["seed"] == 0
    assert plan["constraints"]["sample_multiple"] == 1
    assert plan["rows"] == len(plan["layout"]) >= plan["rows_lower_bound"]
    assert plan["rows_certified"] == (plan["rows"] == plan["rows_lower_bound"])
    assert sorted(i for row in plan["layout"] for cell in row for i in cell) == list(range(12))
    for name in ("cv_global", "cv_global_before", "expert_peak_sum", "tail_peak", "ep_efficiency", "attention", "joint", "gap"):
        assert name in plan["metrics"], name
    assert plan["metrics"]["joint"] == plan["score"]["max_shard"]
    assert plan["bound"]["gap"] == pytest.approx(plan["score"]["max_shard"] / plan["bound"]["max_shard"] - 1)
    assert plan["params"] and plan["timings_ms"] and plan["version"]
    assert {"experts", "fraction"} <= plan["moves"].keys()


def test_plan_takes_no_more_rows_than_first_fit(small):
    # 159 tokens in four cells of 40: tight, and packing by falling length alone does it in one row.
    report = run_json(*small.plan_arguments())
    assert report["rows"] == report["rows_lower_bound"] == 1


def test_megatron_grid_gives_its_shards(small):
    run(*small.plan_arguments(dp=4, ep=2))
    shards = json.loads(small.plan_path.read_text())["topology"]["shards"]
    assert shards == [[0, 1], [2, 3]]
    run(*small.plan_arguments(dp=4, ep=4), "--tp", 2)
    assert json.loads(small.plan_path.read_text())["topology"]["shards"] == [[0, 1], [2, 3]]
    run(*small.plan_arguments(dp=4, ep=2), "--etp", 2)
    assert json.loads(small.plan_path.read_text())["topology"]["shards"] == [[0, 1, 2, 3]]
    run(*small.plan_arguments(dp=2, ep=4), "--cp", 2, "--pp", 3)
    plan = json.loads(small.plan_path.read_text())
    assert plan["topology"]["shards"] == [[0, 1]] and plan["rows"] >= 3


def test_explicit_shards(small):
    arguments = ["plan", small.window, "-o", small.plan_path, "--cost", small.cost, "--cap", 40, "--ep", 4]
    run(*arguments, "--shards", "[[0,2],[1]]")
    assert json.loads(small.plan_path.read_text())["topology"]["shards"] == [[0, 2], [1]]


def test_plan_hash_ignores_time_threads_and_version_only(small):
    plan = small.make_plan()
    first = run_json("score", small.window, small.plan_path)["hash"]

    def hash_with(**changes):
        path = small.write("changed.json", {**plan, **changes})
        return run_json("score", small.window, path)["hash"]

    assert hash_with() == first
    assert hash_with(timings_ms={"all": 1e9}, version="99", params={**plan["params"], "threads": 77}) == first
    assert hash_with(seed=1, params={**plan["params"], "seed": 1}) != first


def test_several_windows_go_into_a_directory_in_order(small):
    (small.folder / "w").mkdir()
    paths = []
    for step in range(3):
        tensors = windowkit.random_window(
            np.random.default_rng(step), samples=12, layers=2, experts=8, top_k=2, max_length=20
        )
        paths.append(small.write(f"w/step{step}.safetensors", windowkit.safetensors_bytes(tensors, small.metadata)))
    folder = small.folder / "plans"
    arguments = small.plan_arguments(window=paths[0], out=folder)
    report = run_json(*arguments[:2], *paths[1:], *arguments[2:])
    assert len(report["plans"]) == 3
    assert sorted(os.listdir(folder)) == sorted(os.path.basename(entry["plan"]) for entry in report["plans"])
    previous = None
    for window, entry in zip(paths, report["plans"]):
        assert run_json("verify", window, entry["plan"])["accepted"] is True
        plan = json.load(open(entry["plan"], encoding="utf-8"))
        if previous is not None:  # moves count from the plan before
            moved = 0
            for old, new in zip(previous["physical_to_logical"], plan["physical_to_logical"]):
                moved += sum(old.index(e) // 2 != slot // 2 for slot, e in enumerate(new))
            assert plan["moves"]["experts"] == moved
        previous = plan


def test_placement_file_is_a_current_placement(small):
    placement = small.out / "placement.json"
    run(*small.plan_arguments(), "--placement-out", placement)
    content = json.loads(placement.read_text())
    plan = json.loads(small.plan_path.read_text())
    assert content["format"] == "routepack.placement/1"
    assert content["ep"] == 4
    assert content["physical_to_logical"] == plan["physical_to_logical"]
    assert content["fingerprint"].startswith("xxh3:")
    report = run_json(*small.plan_arguments(), "--placement", "keep", "--current", placement)
    assert report["moves"]["experts"] == 0
    assert json.loads(small.plan_path.read_text())["physical_to_logical"] == plan["physical_to_logical"]


def test_dumped_parameters_give_the_same_plan(small):
    arguments = [*small.plan_arguments(), "--sample-multiple", 2, "--sync", "row", "--seed", 9, "--min-rows", 2]
    first = run_json(*arguments)["hash"]
    dump = run(*arguments, "--dump-params").stdout
    params = small.write("params.toml", dump)
    again = small.out / "again.json"
    report = run_json("plan", small.window, "-o", again, "--params", params)
    assert report["hash"] == first
    assert run(*["plan", small.window, "-o", again, "--params", params], "--dump-params").stdout == dump


def test_command_line_wins_over_the_parameter_file(small):
    params = small.write("params.toml", "seed = 5\nsync = 'row'\n")
    run(*small.plan_arguments(), "--params", params, "--seed", 6)
    plan = json.loads(small.plan_path.read_text())
    assert plan["seed"] == 6
    assert plan["sync"] == "row"


def test_fingerprint_does_not_depend_on_file_layout_or_dtype(small):
    wanted = run_json("inspect", small.window)["fingerprint"]
    counts = small.tensors["counts"]
    for dtype in (np.uint32, np.int32, np.uint16):
        tensors = {"counts": counts.astype(dtype), "recorded": small.tensors["recorded"], "lengths": small.tensors["lengths"]}
        path = small.write("other.safetensors", windowkit.safetensors_bytes(tensors, {**small.metadata, "model": "x"}))
        assert run_json("inspect", path)["fingerprint"] == wanted
    widened = {**small.tensors, "recorded": np.repeat(small.tensors["recorded"][:, None], 2, axis=1)}
    path = small.write("other.safetensors", windowkit.safetensors_bytes(widened, small.metadata))
    assert run_json("inspect", path)["fingerprint"] == wanted
    grouped = {**small.tensors, "groups": np.zeros(12, np.int32)}
    path = small.write("other.safetensors", windowkit.safetensors_bytes(grouped, small.metadata))
    assert run_json("inspect", path)["fingerprint"] == wanted
    atomic = {**small.tensors, "atomic": np.full(12, -1, np.int32)}
    path = small.write("other.safetensors", windowkit.safetensors_bytes(atomic, small.metadata))
    assert run_json("inspect", path)["fingerprint"] != wanted


def test_dummies_fill_up_equal_counts(small):
    tensors = {name: tensor[:9] for name, tensor in small.tensors.items()}
    window = small.write("nine.safetensors", windowkit.safetensors_bytes(tensors, small.metadata))
    run(*small.plan_arguments(window=window), "--equal-count", "--add-dummies")
    plan = json.loads(small.plan_path.read_text())
    assert plan["dummies"] == 3
    assert sorted(i for row in plan["layout"] for cell in row for i in cell) == list(range(12))
    assert {sum(len(row[d]) for row in plan["layout"]) for d in range(4)} == {3}
    assert plan["window"]["samples"] == 9
    assert run_json("verify", window, small.plan_path)["accepted"] is True
    wanted = windowkit.score_reference.score(tensors, plan)
    assert run_json("score", window, small.plan_path)["score"] == plan["score"] == wanted["score"]


def test_oversized_sample_gets_its_own_cell(small):
    lengths = small.tensors["lengths"]
    cap = int(np.sort(lengths)[-2])
    longest = int(lengths.argmax())
    assert lengths[longest] > cap
    run(*small.plan_arguments(cap=cap), "--oversized", "own-cell")
    plan = json.loads(small.plan_path.read_text())
    assert [longest] in [cell for row in plan["layout"] for cell in row]
    assert run_json("verify", small.window, small.plan_path)["accepted"] is True


def test_an_existing_plan_is_replaced_and_symbolic_links_are_followed(small):
    target = small.out / "target.json"
    target.write_text("old")
    small.plan_path.symlink_to(target)
    run(*small.plan_arguments())
    assert small.plan_path.is_symlink()
    assert json.loads(target.read_text())["format"] == "routepack.plan/1"
    assert sorted(os.listdir(small.out)) == ["plan.json", "target.json"]


def test_plan_can_be_written_to_a_pipe(small):
    result = run(*small.plan_arguments(out="/dev/stdout"))
    assert '"routepack.plan/1"' in result.stdout


def test_keys_that_a_reader_does_not_know_are_ignored(small):
    plan = small.make_plan()
    path = small.write("more.json", {**plan, "from_the_future": {"x": [1]}, "topology": {**plan["topology"], "y": 1}})
    assert run_json("score", small.window, path)["score"] == plan["score"]
    assert run_json("verify", small.window, path)["accepted"] is True
