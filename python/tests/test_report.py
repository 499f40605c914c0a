# SPDX-License-Identifier: Apache-2.0
"""Reports: their numbers are those of the C++ scorer, their page needs no network, their text fits a terminal."""

from __future__ import annotations

import doctest
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

import routepack
import routepack.report
from routepack import _terminal
from routepack.report import cli, page
from routepack.report.charts import rank_loads, row_layer_peaks, score_bars
from routepack.report.first_fit import first_fit_decreasing
from routepack.report.problem import current_maps, read_document, read_problem
from routepack.report.recording import load_steps

FAST = routepack.PlanParams(effort="fast", seed=3)


@pytest.fixture(scope="module")
def window_path(root):
    return root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors"


@pytest.fixture(scope="module")
def window(window_path):
    return routepack.Window.load(window_path)


@pytest.fixture(scope="module")
def cost(root):
    return routepack.CostModel.load(root / "examples" / "gptoss20b.toml")


@pytest.fixture(scope="module")
def plan(window, cost):
    return routepack.plan(window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=FAST)


@pytest.fixture(scope="module")
def plan_path(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan.save(path)
    return path


@pytest.fixture(scope="module")
def analysis(plan, window):
    return routepack.report.analyse(plan, window)


def small_window(samples: int = 61, **more: object) -> routepack.Window:
    """Skewed routing, and padding that counts."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(3, 90, samples).astype(np.int32)
    heat = rng.dirichlet(np.full(8, 0.4), size=3)
    drawn = np.stack([[rng.multinomial(2 * t, heat[l]) for l in range(3)] for t in lengths])
    counts = np.minimum(drawn, lengths[:, None, None]).astype(np.uint16)
    return routepack.Window.from_arrays(lengths=lengths, counts=counts, top_k=2, **more)  # type: ignore[arg-type]


PADS = np.arange(24, dtype=np.uint32).reshape(3, 8) * 9000
GROUPS = np.array([k // 2 if k < 20 else -1 for k in range(61)], dtype=np.int32)
CASES = {
    "two shards": (dict(), routepack.Topology(dp=4, ep=2), dict(), "step"),
    "rows meet": (dict(), routepack.Topology(dp=4, ep=2), dict(), "row"),
    "unequal shards": (dict(), routepack.Topology.from_shards(ep=4, shards=[[0, 2, 3], [1]]), dict(), "step"),
    "padding": (dict(pad_counts=PADS), routepack.Topology(dp=4, ep=4), dict(sample_multiple=4, cell_multiple=16), "step"),
    "dummies": (dict(), routepack.Topology(dp=4, ep=2), dict(equal_count=True, add_dummies=True), "step"),
    "atomic groups": (dict(atomic=GROUPS), routepack.Topology(dp=2, ep=2), dict(max_samples_per_cell=9), "step"),
    "longer than the cap": (dict(), routepack.Topology(dp=2, ep=2), dict(oversized="own-cell", row_multiple=3), "step"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_figure_is_the_one_that_cpp_gives(case):
    arrays, topology, rules, sync = CASES[case]
    window = small_window(**arrays)
    cost = routepack.CostModel(
        [routepack.Stage("a", alpha=3.0, beta=0.7), routepack.Stage("b", alpha=0.1, beta=11.0)], [1.0, 0.3, 2.2]
    )
    capacity = 80 if "oversized" in rules else 256
    plan = routepack.plan(
        window, topology, capacity=capacity, cost=cost, constraints=routepack.Constraints(**rules), params=FAST, sync=sync
    )
    analysis = routepack.report.analyse(plan, window)
    metrics = read_document(plan)["metrics"]
    assert analysis.after.score == plan.score
    for name, value in analysis.after.metrics().items():
        assert value == metrics[name], name
    assert analysis.before_cv == metrics["cv_global_before"]
    assert analysis.gap == plan.gap
    assert int(analysis.moved.sum()) == plan.moves["experts"] and analysis.fraction_moved == plan.moves["fraction"]
    assert sum(analysis.after.split(sync)) == pytest.approx(plan.score[0], rel=1e-12)


def test_without_a_plan_is_what_the_command_line_says(window_path, root, tmp_path):
    program = os.environ.get("ROUTEPACK_BIN")
    if program is None:
        pytest.skip("ROUTEPACK_BIN does not name the command line")
    for options in (["--dp", "8", "--ep", "8"], ["--dp", "8", "--ep", "4", "--cell-multiple", "64", "--min-rows", "9"]):
        command = [program, "plan", str(window_path), *options, "--cap", "2048", "--effort", "fast", "--json"]
        command += ["--cost", str(root / "examples" / "gptoss20b.toml"), "-o", str(tmp_path / "p.json")]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        window, plan = routepack.Window.load(window_path), routepack.Plan.load(tmp_path / "p.json")
        found = routepack.report.analyse(plan, window).as_dict()
        assert found["before"]["score"] == said["baseline"]["score"] and found["before"]["rows"] == said["baseline"]["rows"]
        assert found["before"]["metrics"] == said["baseline"]["metrics"]
        assert found["replication_needed_layers"] == said["replication_needed_layers"]
        assert {key: said["metrics"][key] for key in found["after"]["metrics"]} == found["after"]["metrics"]


def test_first_fit_by_hand():
    window = routepack.Window.from_arrays(
        lengths=np.array([5, 9, 4, 6, 3], dtype=np.int32), counts=np.full((5, 1, 2), 1, dtype=np.uint16), top_k=2
    )
    cost = routepack.CostModel([routepack.Stage("a", alpha=1.0)])
    plan = routepack.plan(window, routepack.Topology(dp=2, ep=2), capacity=10, cost=cost, params=FAST)
    # By falling length 9, 6, 5, 4, 3 (samples 1 3 0 2 4) into four cells of ten: 9 | 6 4 | 5 3 | nothing, and the empty
    # cell gets the last sample of the last of the fullest.
    assert first_fit_decreasing(read_problem(read_document(plan), window)) == [[[1], [2, 3]], [[0], [4]]]


def test_the_placement_before_comes_back_from_the_cycles(window, cost, plan):
    rng = np.random.default_rng(1)
    maps = np.stack([rng.permutation(32) for _ in range(24)]).astype(np.int32)
    current = routepack.Placement.from_maps(ranks=8, physical_to_logical=maps)
    moved = routepack.plan(
        window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=FAST, current=current
    )
    found, known = current_maps(read_document(moved))
    assert known and (found == maps).all()
    silent = read_document(moved)
    del silent["moves"]["cycles"]
    found, known = current_maps(silent)
    assert not known and (found == np.arange(32)).all()
    with pytest.raises(routepack.InvalidInput, match="cycles"):
        current_maps({**silent, "moves": {"cycles": [[[0, 1], [1, 2]]] * 24}})


def test_a_plan_that_says_nothing_of_itself_is_shown_all_the_same(plan, window, window_path, tmp_path):
    pytest.importorskip("plotly")
    wanted = ("format", "topology", "capacity", "cost", "rows", "physical_to_logical", "layout")
    document = json.loads(plan.to_json())
    (tmp_path / "bare.json").write_text(json.dumps({key: document[key] for key in wanted}))
    bare = routepack.Plan.load(tmp_path / "bare.json")
    analysis = routepack.report.analyse(bare, window)
    assert analysis.bound is None and analysis.gap is None and not analysis.current_known
    assert len(charts_of(page.to_html(analysis, "bare"))) == 13  # without search and phases
    assert [e["name"] for e in routepack.report.trace_events(analysis)["traceEvents"] if e["ph"] == "X"] == ["plan"]
    assert cli.main([str(tmp_path / "bare.json"), str(window_path)]) == 0


def test_without_a_first_fit_the_plan_stands_alone(plan, window, monkeypatch, tmp_path):
    pytest.importorskip("plotly")
    monkeypatch.setattr("routepack.report.analysis.first_fit_decreasing", lambda problem: None)
    analysis = routepack.report.analyse(plan, window)
    assert analysis.before is None and analysis.closed_share is None and analysis.as_dict()["before"] is None
    assert len(rank_loads(analysis)) == 1 and "finds no layout" in page.to_html(analysis, "alone")
    assert {len(row) for row in routepack.report.words.comparison(analysis)} == {4}


def test_a_window_without_routes_divides_by_nothing(cost):
    window = routepack.Window.from_arrays(
        lengths=np.array([4, 4, 3, 2], dtype=np.int32), counts=np.zeros((4, 2, 4), dtype=np.uint16), top_k=1
    )
    plan = routepack.plan(window, routepack.Topology(dp=2, ep=2), capacity=8, cost=cost, params=FAST)
    with np.errstate(all="raise"):
        analysis = routepack.report.analyse(plan, window)
        assert analysis.after.ep_efficiency == 1.0 and analysis.after.cv_global == 0.0
        assert (analysis.after.peak_over_mean == 1.0).all()
        assert rank_loads(analysis)[0][1]["data"][0]["z"] == [[1.0, 1.0], [1.0, 1.0]]


def test_pictures_show_the_loads(analysis, plan, window):
    demand = np.asarray(window.counts, dtype=np.int64).sum(axis=0)
    placed = np.take_along_axis(demand, plan.physical_to_logical, axis=1).reshape(24, 8, 4).sum(axis=2)
    (_, before), (_, after) = rank_loads(analysis)
    np.testing.assert_allclose(after["data"][0]["z"], placed / placed.mean(axis=1, keepdims=True), atol=5e-5)
    plain = demand.reshape(24, 8, 4).sum(axis=2)
    np.testing.assert_allclose(before["data"][0]["z"], plain / plain.mean(axis=1, keepdims=True), atol=5e-5)
    assert before["data"][0]["zmax"] == after["data"][0]["zmax"] >= np.max(before["data"][0]["z"]) - 1e-4
    (_, rows_before), (_, rows_after) = row_layer_peaks(analysis)
    assert np.shape(rows_after["data"][0]["z"]) == (plan.num_rows, 24) and np.min(rows_after["data"][0]["z"]) >= 1.0
    dense, expert, bound = score_bars(analysis)["data"]
    assert f"{plan.bound:,.1f}" in bound["name"]
    assert dense["x"][-1] + expert["x"][-1] == pytest.approx(plan.score[0], rel=1e-6)


def test_the_moves_of_the_ranks_add_up(analysis, plan):
    assert (analysis.moved_in.sum(axis=1) == analysis.moved).all()
    assert (analysis.moved_out.sum(axis=0) == analysis.moved_in.sum(axis=0)).all()  # ranks hold what they held
    assert int(analysis.moved.sum()) == plan.moves["experts"]


def charts_of(text: str) -> list[dict[str, object]]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    charts = json.loads(found.group(1))
    assert isinstance(charts, list)
    return charts


def test_the_page_holds_everything_and_asks_no_network(analysis):
    pytest.importorskip("plotly")
    text = page.to_html(analysis, "a step")
    assert "default-src 'none'" in text
    shell = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"(?:src|href)\s*=|url\(|@import|https?:", shell)
    numbers = [int(n) for n in re.findall(r'data-chart="(\d+)"', text)]
    assert numbers == list(range(len(charts_of(text)))) and len(numbers) == 15
    for word in ("Rank loads", "Busiest rank of every row", "Cells", "Moves", "time per phase", "1,743.2"):
        assert word in text


def test_names_from_files_cannot_end_the_script(plan, cost):
    pytest.importorskip("plotly")
    evil = '</script><img src=x onerror="alert(1)">'
    window = small_window(model=evil)
    made = routepack.plan(window, routepack.Topology(dp=4, ep=2), capacity=256, cost=cost, params=FAST)
    analysis = routepack.report.analyse(made, window, against=[(evil, made)])
    text = page.to_html(analysis, evil)
    assert "<img" not in text.split("<script>", 1)[0]
    assert any(evil in json.dumps(chart).replace('\\"', '"') for chart in charts_of(text))


def test_a_trace_has_every_phase_one_after_another(analysis, plan):
    events = [e for e in routepack.report.trace_events(analysis)["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in events[1:]] == [name for name in plan.timings_ms if name != "total"]
    end = 0.0
    for event in events[1:]:
        assert event["ts"] == pytest.approx(end)
        end = event["ts"] + event["dur"]
    assert events[0]["name"] == "plan" and events[0]["dur"] >= end * (1 - 1e-12)


def test_pictures_are_png_and_svg_and_repeat(analysis, tmp_path):
    pytest.importorskip("matplotlib")
    first = routepack.report.write_images(analysis, tmp_path / "new" / "a")
    second = routepack.report.write_images(analysis, tmp_path / "b")
    assert len(first) == 8 == len(set(first)) == len(list((tmp_path / "b").iterdir()))
    for one, other in zip(first, second):
        assert one.read_bytes() == other.read_bytes()
        if one.suffix == ".png":
            assert one.read_bytes().startswith(b"\x89PNG")
        else:
            assert xml.etree.ElementTree.parse(one).getroot().tag.endswith("svg")


def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "routepack.report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]


def test_the_command_writes_all_and_says_so_in_100_columns(plan_path, window_path, plan, tmp_path):
    pytest.importorskip("plotly")
    others = [plan_path] * 7
    done = run(
        plan_path, window_path, "--against", *others, "-o", tmp_path / "r.html", "--trace", tmp_path / "t.json"
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    assert "\x1b" not in done.stdout and f"{plan.score[0]:,.2f}" in done.stdout
    lines = [line for line in done.stdout.splitlines() if not line.startswith("  wrote ")]
    assert max(map(_terminal.display_width, lines)) <= 100
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.html", "t.json"]


def test_the_command_speaks_json(plan_path, window_path, plan):
    done = run(plan_path, window_path, "--json", "--against", plan_path)
    said = json.loads(done.stdout)
    assert said["plan"] == plan.hash and said["after"]["score"]["max_shard"] == plan.score[0]
    assert said["bound"]["gap"] == plan.gap and said["against"][0]["metrics"]["joint"] == plan.score[0]


def test_numbers_need_no_optional_package_and_files_say_which(plan_path, window_path, tmp_path):
    code = (
        "import sys\n"
        "for name in ('plotly', 'matplotlib', 'rich'): sys.modules[name] = None\n"
        "from routepack.report.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )

    def without(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, str(plan_path), str(window_path), *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert without().returncode == 0
    for option, package in (("-o", "plotly"), ("--figures", "matplotlib")):
        done = without(option, str(tmp_path / "out"))
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.count("\n") == 1 and package in done.stderr and 'pip install "routepack[report]"' in done.stderr
    assert not list(tmp_path.iterdir())


def broken(plan: routepack.Plan, path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({**json.loads(plan.to_json()), **changes}))
    return path


def test_wrong_input_is_one_line_and_status_2(plan, plan_path, window_path, root, tmp_path, capsys):
    other_cap = broken(plan, tmp_path / "cap.json", capacity=4096)
    twice = [[[0]] * 8] * plan.num_rows
    cases = [
        ((plan_path, root / "examples" / "windows" / "mixtral-mmlu-512.safetensors"), "window"),
        ((broken(plan, tmp_path / "twice.json", layout=twice), window_path), "sample"),
        ((tmp_path / "none.json", window_path), "none.json"),
        ((plan_path, window_path, "--against", other_cap), "capacity"),
        ((plan_path, window_path, "-o", plan_path), "different files"),
        ((plan_path, window_path, "-o", tmp_path / "no" / "folder.html"), "folder.html"),
        ((plan_path,), "WINDOW"),
        ((plan_path, window_path, "--nosuch"), "--nosuch"),
    ]
    for arguments, word in cases:
        assert cli.main([str(argument) for argument in arguments]) == 2, arguments
        said = capsys.readouterr()
        assert said.out == "" and said.err.startswith("routepack report: error: ")
        assert said.err.count("\n") == 1 and word in said.err


def test_a_recorded_search_is_drawn_over_time(window, cost, tmp_path):
    recording = routepack.report.Recording()
    made = routepack.plan(
        window, routepack.Topology(dp=8, ep=8), capacity=2048, cost=cost, params=FAST, progress=recording
    )
    analysis = routepack.report.analyse(made, window, progress=recording.steps)
    chart = routepack.report.charts.search(analysis)
    assert chart is not None
    line = chart["data"][0]
    assert line["x"] == sorted(line["x"]) and len(line["x"]) == sum(step.level > 0 for step in recording.steps) > 3
    assert min(line["y"]) >= round(made.score[0], 4) - 1e-3
    events = routepack.report.trace_events(analysis)["traceEvents"]
    phases = [e for e in events if e["ph"] == "X"][1:]
    assert [e["name"] for e in phases] == [step.phase for step in recording.steps if step.level == 0]
    assert sum(e["ph"] == "C" for e in events) == len(line["x"])
    recording.save(tmp_path / "steps.jsonl")
    assert load_steps(tmp_path / "steps.jsonl") == recording.steps
    assert "Infinity" not in (tmp_path / "steps.jsonl").read_text() and recording.steps[0].best == float("inf")


def test_a_plan_is_made_again_to_see_its_search(plan, window, window_path, cost, tmp_path):
    assert any(step.level > 0 for step in routepack.report.replan(plan, window))
    cut = broken(plan, tmp_path / "cut.json", complete=False)
    done = run(cut, window_path, "--replan")
    assert done.returncode == 2 and "deadline" in done.stderr and done.stderr.count("\n") == 1
    silent = json.loads(plan.to_json())
    del silent["params"]
    (tmp_path / "silent.json").write_text(json.dumps(silent))
    with pytest.raises(routepack.InvalidInput, match="params"):
        routepack.report.replan(routepack.Plan.load(tmp_path / "silent.json"), window)


def test_a_recording_that_is_none_names_its_line(plan_path, window_path, tmp_path):
    bad = tmp_path / "steps.jsonl"
    bad.write_text('{"ms": 1, "phase": "search", "level": 1, "proposals": 3, "best": 2.5}\n{"ms": 1}\n')
    done = run(plan_path, window_path, "--progress", bad)
    assert done.returncode == 2 and "line 2" in done.stderr and done.stderr.count("\n") == 1


def on_a_terminal(command: list[str], **env: str) -> tuple[str, int]:
    """What `command` prints when both its streams are a terminal."""
    ours, theirs = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env={**clean, "TERM": "xterm", **env})
    os.close(theirs)
    text = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        text += piece
    os.close(ours)
    return text.decode("utf-8"), process.wait()


def test_colour_is_for_terminals_that_do_not_forbid_it(plan_path, window_path):
    command = [sys.executable, "-m", "routepack.report", str(plan_path), str(window_path)]
    text, status = on_a_terminal(command)
    assert status == 0 and "\x1b[1m" in text and "joint objective" in text
    text, status = on_a_terminal(command, NO_COLOR="1")
    assert status == 0 and not re.search(r"\x1b\[[\d;]*m", re.sub(r"\x1b\[0m", "", text)) and "joint objective" in text
    text, status = on_a_terminal(command, TERM="dumb")
    assert status == 0 and "\x1b" not in text


def test_a_closed_pipe_is_no_traceback(plan_path, window_path):
    command = f'{sys.executable} -m routepack.report "{plan_path}" "{window_path}" | true; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2)
    assert done.stderr in ("", "routepack report: error: standard output: cannot write: Broken pipe\n")
    full = subprocess.run(
        ["bash", "-c", f'{sys.executable} -m routepack.report "{plan_path}" "{window_path}" >/dev/full'],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert full.returncode == 2 and full.stderr.count("\n") == 1 and "cannot write" in full.stderr


@pytest.mark.parametrize("module", [_terminal, routepack.report.words])
def test_the_examples_of_the_docstrings_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.skipif("ROUTEPACK_LONG" not in os.environ, reason="long: ROUTEPACK_LONG is not set")
@pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is not installed")
def test_a_browser_draws_every_figure_without_a_network(analysis, tmp_path):
    routepack.report.write_html(analysis, tmp_path / "r.html", title="a step")
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1920,9000", "--virtual-time-budget=20000"]
    command += ["--dump-dom", (tmp_path / "r.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.count('data-drawn="1"') == len(charts_of(page.to_html(analysis, "a step")))
    assert "Refused to" not in done.stderr
