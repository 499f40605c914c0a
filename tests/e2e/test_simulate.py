# SPDX-License-Identifier: Apache-2.0
"""routepack simulate, and what compare says with a device."""
import csv
import io
import json
import signal
import subprocess
import time

import pytest

from test_model_cost import CONFIG
from windowkit import EXECUTABLE, REPOSITORY, run, run_json

WINDOW = REPOSITORY / "examples/windows/gptoss20b-mmlu-354.safetensors"
DEVICE = ["--device", REPOSITORY / "examples/devices/h20.toml"]
SIZES = ["--dp", 8, "--ep", 8, "--cap", 2048, "--model", "gpt-oss-20b", *DEVICE, "--effort", "fast"]
PARTS = (
    "dense", "experts", "exchange", "fixed", "wait_dispatch", "wait_combine", "wait_pipeline", "wait_shards",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("simulate")


@pytest.fixture(scope="module")
def plan(folder):
    path = folder / "plan.json"
    run("plan", WINDOW, *SIZES, "--placement", "lpt", "-o", path)
    return path


@pytest.fixture(scope="module")
def simulated(plan):
    return run_json("simulate", WINDOW, plan, *DEVICE)


def timing_file(path, stages=(("full", 24, 0.0, 0.0),), expert=0.0, **fixed):
    lines = ["[expert]", f"token = {expert!r}", "[fixed]", *(f"{key} = {value!r}" for key, value in fixed.items())]
    for name, layers, token, pair in stages:
        lines += ["[[stage]]", f'name = "{name}"', f"layers = {layers}", f"token = {token!r}", f"pair = {pair!r}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_text_is_for_people_and_stays_within_100_columns(plan, simulated):
    text = run("simulate", WINDOW, plan, *DEVICE).stdout
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith("NVIDIA H20: 7 rows of 8 slots, 1 shard, 1 pipeline stage, 25 layers\n")
    assert f"step {simulated['seconds']:.3f} s, {int(simulated['tokens_per_second']):,} tokens/s" in text
    for words in ("dense side", "waiting for busier ranks", "who others wait for most", "EP rank", "admission"):
        assert words in text


def test_json_has_the_account_of_every_device(plan, simulated):
    rows = json.loads(plan.read_text(encoding="utf-8"))["rows"]
    assert simulated["format"] == "routepack.simulate/1"
    assert simulated["on"] == "NVIDIA H20"
    assert simulated["tokens"] == run_json("inspect", WINDOW)["tokens"]
    assert simulated["tokens_per_second"] == pytest.approx(simulated["tokens"] / simulated["seconds"])
    assert len(simulated["shard_ends"]) == 1
    devices = simulated["devices"]
    assert [(d["stage"], d["shard"], d["place"]) for d in devices] == [(0, 0, place) for place in range(8)]
    for device in devices:
        assert sum(device[part] for part in PARTS) == pytest.approx(simulated["seconds"], rel=1e-9)
    waited = simulated["waited_for"]
    assert {name: len(seconds) for name, seconds in waited.items()} == {
        "by_slot": 8, "by_rank": 8, "by_layer": 25, "by_row": rows}  # fmt: skip
    waiting = sum(d["wait_dispatch"] + d["wait_combine"] for d in devices)
    for parts in (("by_slot", "by_rank"), ("by_layer",), ("by_row",)):
        assert sum(sum(waited[part]) for part in parts) == pytest.approx(waiting)


def test_admission_is_that_of_the_paper(plan):
    timings = json.loads(plan.read_text(encoding="utf-8"))["timings_ms"]
    more = ["--aux-ms", 40, "--actor-ms", 30, "--admit-ms", 2]
    found = run_json("simulate", WINDOW, plan, *DEVICE, *more)["admission"]
    place = (timings.get("demand", 0.0) + timings.get("place", 0.0)) / 1e3
    pack = sum(ms for phase, ms in timings.items() if phase not in ("load", "demand", "place", "total")) / 1e3
    assert found["place"] == pytest.approx(place)
    assert found["pack"] == pytest.approx(pack)
    assert (found["other"], found["state"], found["admit"]) == (0.04, 0.03, 0.002)
    branches = found["place"] + found["pack"], max(found["place"], 0.04) + 0.03
    assert found["target"] == pytest.approx(max(branches) + 0.002)
    assert found["exposed"] == pytest.approx(max(0.0, branches[0] - branches[1]))
    assert "hidden" in run("simulate", WINDOW, plan, *DEVICE, "--actor-ms", 1e6).stdout
    assert " late" in run("simulate", WINDOW, plan, *DEVICE, "--actor-ms", 0).stdout


def test_state_moves_from_where_the_experts_were(plan):
    def seconds(*more):
        return run_json("simulate", WINDOW, plan, *DEVICE, *more)["admission"]["state"]

    assert seconds("--current", plan) == 0
    from_order = seconds()
    assert from_order > 0
    assert seconds("--expert-bytes", 2 * 14 * 3 * 2880 * 2880) == pytest.approx(2 * from_order)
    assert seconds("--ranks-per-node", 1) > from_order


def test_the_trace_has_one_track_per_device(plan, simulated, folder):
    path = folder / "step.trace.json"
    assert run_json("simulate", WINDOW, plan, *DEVICE, "--trace", path) == simulated
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    work = [event for event in events if event["ph"] == "X"]
    tracks = {(event["pid"], event["tid"]) for event in work}
    assert len(tracks) == 8
    named = [(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert sorted(named) == sorted(tracks)
    for track in tracks:
        now = 0.0
        for event in (e for e in work if (e["pid"], e["tid"]) == track):
            assert event["ts"] == pytest.approx(now, abs=0.003)
            now = event["ts"] + event["dur"]
        assert now == pytest.approx(1e6 * simulated["seconds"], abs=0.003)
    assert {"full", "sliding", "head", "experts", "dispatch", "combine", "reduce", "optimizer", "wait"} == {
        event["name"] for event in work}  # fmt: skip
    run("simulate", WINDOW, plan, *DEVICE, "--trace", path, "--trace-rows", 1)
    less = [e for e in json.loads(path.read_text(encoding="utf-8"))["traceEvents"] if e["ph"] == "X"]
    assert {e["args"].get("row") for e in less} == {0, None}
    assert less == [e for e in work if e["args"].get("row", 0) == 0]


def test_a_timing_file_takes_the_place_of_device_and_model(plan, folder):
    timing = timing_file(folder / "timing.toml", row=0.5, layer=0.25, step=3.0)
    result = run_json("simulate", WINDOW, plan, "--timing", timing)
    assert result["on"] == str(timing)
    assert result["seconds"] == pytest.approx(7 * (0.5 + 24 * 0.25) + 3.0)
    assert all(device["fixed"] == pytest.approx(result["seconds"]) for device in result["devices"])
    text = run("simulate", WINDOW, plan, "--timing", timing.name, cwd=folder).stdout
    assert text.startswith("timing.toml: 7 rows")
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("sync", ["step", "row"])
def test_a_timing_of_the_cost_takes_what_the_plan_was_chosen_for(small, sync):
    run(*small.plan_arguments(ep=2), "--sync", sync)
    made = json.loads(small.plan_path.read_text(encoding="utf-8"))
    assert len(made["topology"]["shards"]) == 2
    unit = 1e-3
    stages = [("window", 1, 3 * unit, 0.0), ("full", 1, 1.5 * unit, 2.5 * unit / small.CAP)]
    timing = timing_file(small.folder / "timing.toml", stages, expert=unit)
    found = run_json("simulate", small.window, small.plan_path, "--timing", timing)
    assert found["seconds"] == pytest.approx(made["score"]["max_shard"] * small.CAP * unit, rel=1e-9)


def test_pipelines_have_devices_for_every_stage(folder):
    path = folder / "pipeline.json"
    run("plan", WINDOW, *SIZES, "--pp", 2, "--row-multiple", 2, "-o", path)
    plain = run_json("simulate", WINDOW, path, *DEVICE)
    assert [d["stage"] for d in plain["devices"]] == [0] * 8 + [1] * 8
    assert all(d["wait_pipeline"] > 0 for d in plain["devices"])
    interleaved = run_json("simulate", WINDOW, path, *DEVICE, "--chunks", 2)
    assert interleaved["seconds"] != plain["seconds"]
    assert "2 pipeline stages" in run("simulate", WINDOW, path, *DEVICE).stdout
    odd = folder / "odd.json"
    run("plan", WINDOW, *SIZES, "--pp", 2, "-o", odd)
    assert json.loads(odd.read_text(encoding="utf-8"))["rows"] == 7
    (line,) = run("simulate", WINDOW, odd, *DEVICE, "--chunks", 2, status=2).stderr.splitlines()
    assert "7 rows" in line and "--row-multiple 2" in line


def test_recomputation_takes_longer(plan, simulated):
    found = run_json("simulate", WINDOW, plan, *DEVICE, "--recompute")
    assert 1.2 * simulated["seconds"] < found["seconds"] < 1.4 * simulated["seconds"]


def test_wrong_use_and_bad_files_are_refused_in_one_line(plan, folder):
    timing = timing_file(folder / "right.toml")
    three = timing_file(folder / "three.toml", [("full", 3, 1.0, 0.0)])
    bad = folder / "bad.toml"
    bad.write_text("[expert]\ntoken = -1\n", encoding="utf-8")
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    mixtral = REPOSITORY / "examples/windows/mixtral-mmlu-512.safetensors"
    before = sorted(path.name for path in folder.iterdir())
    for arguments, words in (
        ([WINDOW, plan], ("--device", "--timing")),
        ([WINDOW, plan, *DEVICE, "--timing", timing], ("--device", "--timing")),
        ([WINDOW, plan, *DEVICE, "--model", "gpt-oss-20b", "--model-config", config], ("--model-config", "exclude")),
        ([WINDOW, plan, *DEVICE, "--model", "mixtral-8x7b"], (str(WINDOW), "32 experts", "8 experts")),
        ([WINDOW, plan, *DEVICE, "--model", "gpt-oss-20"], ("gpt-oss-20b",)),
        ([WINDOW, plan, *DEVICE, "--model-config", config], (str(WINDOW), "8 experts")),
        ([WINDOW, plan, "--device", folder / "none.toml"], ("none.toml",)),
        ([WINDOW, plan, "--timing", folder / "none.toml"], ("none.toml",)),
        ([WINDOW, plan, "--timing", bad], ("bad.toml:2", "token", "-1")),
        ([WINDOW, plan, "--timing", three], ("3 MoE layers", "24")),
        ([WINDOW, folder / "none.json", *DEVICE], ("none.json",)),
        ([folder / "none.safetensors", plan, *DEVICE], ("none.safetensors",)),
        ([mixtral, plan, "--timing", timing], ("plan.json", "another window")),
        ([WINDOW, plan, *DEVICE, "--trace", folder / "nowhere" / "step.json"], ("nowhere",)),
        ([WINDOW, plan, *DEVICE, "--trace", folder], (str(folder),)),
        ([WINDOW, plan, *DEVICE, "--trace-rows", 2], ("--trace",)),
        ([WINDOW, plan, *DEVICE, "--chunks", 2], ("2 chunks",)),
        ([WINDOW, plan, *DEVICE, "--tile", 0], ("--tile", '"0"')),
        ([WINDOW, plan, *DEVICE, "--current", folder / "none.json", "--trace", folder / "new.json"], ("none.json",)),
    ):
        result = run("simulate", *arguments, status=2)
        assert result.stdout == "", arguments
        (line,) = result.stderr.splitlines()
        assert line.startswith("routepack: error: ")
        for word in words:
            assert word in line
    assert sorted(path.name for path in folder.iterdir()) == before


def test_compare_says_what_simulate_says(plan, simulated):
    arguments = [WINDOW, *SIZES, "--placements", "identity,lpt", "--strategies", "areal-ffd,routepack"]
    window = run_json("compare", *arguments, "--baseline", "lpt/routepack")["windows"][0]
    seconds = {(e["placement"], e["strategy"]): e["simulated"]["seconds"] for e in window["entries"]}
    assert seconds["lpt", "routepack"] == simulated["seconds"]
    assert seconds["lpt", "routepack"] == min(seconds.values())
    for entry in window["entries"]:
        assert entry["simulated"]["tokens_per_second"] == pytest.approx(
            simulated["tokens"] / entry["simulated"]["seconds"])  # fmt: skip
    moves = {use["placement"]: use["moves"]["seconds"] for use in window["placements"]}
    assert moves["identity"] == 0
    assert moves["lpt"] == run_json("simulate", WINDOW, plan, *DEVICE)["admission"]["state"]


def test_compare_simulates_every_entry_with_a_layout(small):
    config = small.write("config.json", CONFIG)
    longest = int(small.tensors["lengths"].max())
    sizes = [small.window, "--dp", small.DP, "--ep", small.EP, "--cap", longest - 1, "--model-config", config]
    entries = run_json("compare", *sizes, *DEVICE)["windows"][0]["entries"]
    without = [e for e in entries if "no-layout" in e["marks"]]
    assert 0 < len(without) < len(entries)
    for entry in entries:
        assert ("simulated" in entry) == (entry not in without)
        assert entry in without or entry["simulated"]["seconds"] > 0
    lines = list(csv.DictReader(io.StringIO(run("compare", *sizes, *DEVICE, "--csv").stdout)))
    for line, entry in zip(lines, entries, strict=True):
        assert (line["placement"], line["strategy"]) == (entry["placement"], entry["strategy"])
        found = line["simulated_seconds"]
        assert float(found) == entry["simulated"]["seconds"] if "simulated" in entry else found == ""
    text = run("compare", *sizes, *DEVICE, cwd=small.folder).stdout
    assert "step ms" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("/")) <= 100
    assert "step ms" not in run("compare", *sizes).stdout
    assert all("simulated" not in e for e in run_json("compare", *sizes)["windows"][0]["entries"])


def test_compare_takes_timing_files_and_recomputation(tmp_path):
    timing = tmp_path / "timing.toml"
    timing.write_text("[expert]\ntoken = 1e-9\n[[stage]]\nname = 'full'\nlayers = 24\ntoken = 1e-7\npair = 1e-12\n"
                      "[fixed]\nstep = 2.0\n", encoding="utf-8")  # fmt: skip
    common = ["compare", WINDOW, "--dp", 8, "--ep", 8, "--cap", 2048, "--model", "gpt-oss-20b", "--strategies", "dp-local-ffd",
              "--placements", "identity", "--json"]  # fmt: skip

    def seconds(*more):
        return run_json(*common, *more)["windows"][0]["entries"][0]["simulated"]["seconds"]

    assert 2.0 < seconds("--timing", timing) < 2.5
    plain = seconds(*DEVICE)
    assert seconds(*DEVICE, "--recompute") > 1.2 * plain
    assert seconds(*DEVICE, "--tile", 1) < plain
    for more in (["--recompute"], ["--recompute", "--timing", timing]):
        refused = run(*common, *more, status=2)
        assert len(refused.stderr.splitlines()) == 1 or refused.stderr.count("error:") == 1
        assert "--recompute" in refused.stderr


@pytest.mark.parametrize("target", ["plan", "window", "device"])
def test_a_trace_does_not_replace_an_input(plan, target, tmp_path):
    files = {"plan": tmp_path / "plan.json", "window": tmp_path / "window.safetensors", "device": tmp_path / "h20.toml"}
    for path, source in zip(files.values(), (plan, WINDOW, DEVICE[1]), strict=True):
        path.write_bytes(source.read_bytes())
    before = files[target].read_bytes()
    refused = run("simulate", files["window"], files["plan"], "--device", files["device"], "--trace", files[target], status=2)
    assert "found as an output and as the input" in refused.stderr
    assert files[target].read_bytes() == before


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_trace_leaves_nothing_behind(folder, signal_number, tmp_path):
    """A trace through a pipe that is not read on: the program is in the middle of it for certain."""
    long_plan = tmp_path / "plan.json"
    run("plan", WINDOW, *[1024 if size == 2048 else size for size in SIZES], "-o", long_plan)
    out = tmp_path / "traces"
    out.mkdir()
    for delay in (0.0, 0.01, 0.02, 0.04):
        job = subprocess.Popen([EXECUTABLE, "simulate", WINDOW, long_plan, *map(str, DEVICE), "--trace", out / "t.json"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        time.sleep(delay)
        job.send_signal(signal_number)
        status = job.wait(30)
        assert status in (0, 130, -signal_number)  # before main() a signal ends a process as it likes
        assert {p.name for p in out.iterdir()} <= {"t.json"}


@pytest.mark.parametrize("sizes", [["--tp", 3], ["--cp", 7], ["--tp", 2, "--etp", 4], ["--etp", 3, "--tp", 2]])
def test_sizes_that_contradict_the_plan_are_refused(plan, sizes):
    refused = run("simulate", WINDOW, plan, *DEVICE, *sizes, status=2)
    assert "wanted slots x tp x cp = ranks x etp" in refused.stderr


def test_sizes_that_give_the_shards_of_the_plan_are_taken(plan):
    one = run_json("simulate", WINDOW, plan, *DEVICE)
    assert run_json("simulate", WINDOW, plan, *DEVICE, "--tp", 1, "--cp", 1)["seconds"] == one["seconds"]
    assert run_json("simulate", WINDOW, plan, *DEVICE, "--tp", 2, "--etp", 2)["seconds"] < one["seconds"]


def test_what_a_timing_file_says_is_not_said_again(plan, tmp_path):
    for option in (["--model", "nosuch"], ["--tp", 2], ["--tile", 64], ["--recompute"]):
        refused = run("simulate", WINDOW, plan, "--timing", tmp_path / "t.toml", *option, status=2)
        assert f"{option[0]} and --timing exclude each other" in refused.stderr


@pytest.mark.parametrize("ms", [-5, 1e308])
def test_planning_times_out_of_range_are_refused(plan, ms, tmp_path):
    text = json.loads(plan.read_text(encoding="utf-8"))
    text["timings_ms"]["place"] = ms
    changed = tmp_path / "plan.json"
    changed.write_text(json.dumps(text), encoding="utf-8")
    assert "timings_ms.place" in run("simulate", WINDOW, changed, *DEVICE, status=2).stderr


def test_names_of_devices_stay_in_their_line(plan, tmp_path):
    device = tmp_path / "device.toml"
    device.write_text(DEVICE[1].read_text(encoding="utf-8").replace('"NVIDIA H20"', r'"a\nb\u001b[31m' + "x" * 200 + '"'),
                      encoding="utf-8")  # fmt: skip
    text = run("simulate", WINDOW, plan, "--device", device).stdout
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100
