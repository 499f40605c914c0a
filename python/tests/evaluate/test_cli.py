# SPDX-License-Identifier: Apache-2.0
"""`routepack evaluate` through the real command line: files, formats, errors, the same results again."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from evaluate.support import SCENARIO, write_scenario
from routepack.evaluate import cli, document

pytest.importorskip("scipy")


def run(capsys, *arguments, status=0):
    code = cli.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert code == status, err
    if status:
        assert out == "" and err.count("\n") == 1 and err.startswith("routepack evaluate: error: ")
    return out, err


def without_times(value: Any) -> Any:
    """Without the keys whose values differ from run to run."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not k.endswith("_ms") and k not in ("date", "command")}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def test_a_scenario_from_end_to_end(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = write_scenario(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"top\n{document.BEGIN}\n{document.END}\n", encoding="utf-8")
    out, err = run(capsys, path, "-o", tmp_path / "out", "--into", page, "--threads", 1)
    assert err == "" and all(len(line) <= 100 for line in out.splitlines() if not line.startswith("wrote"))
    assert [line.split()[0] for line in out.splitlines()[2:6]] == ["baseline", "lpt", "paper", "routepack"]
    found = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert found["format"] == "routepack.evaluate/1" and found["made"]["command"].startswith("routepack evaluate ")
    (result,) = found["scenarios"]
    assert result["time"] == "simulated" and result["windows"]["windows"] == 2 and result["windows"]["samples_per_step"] == 24
    assert result["expert_bytes"] == 3 * 2048 * 1024 * 14
    strategies = {strategy["name"]: strategy for strategy in result["strategies"]}
    assert strategies["baseline"]["moves"]["all"]["experts"] == 0
    assert strategies["lpt"]["moves"]["all"]["experts"] > 4 * strategies["routepack"]["moves"]["later"]["experts"]
    assert strategies["routepack"]["gain"] > 0 and strategies["routepack"]["metrics"]["gap"] < strategies["lpt"]["metrics"]["gap"]
    for strategy in result["strategies"]:
        assert strategy["moves"]["all"]["seconds"] is not None and 0 < strategy["metrics"]["ep_efficiency"] <= 1
        assert strategy["metrics"]["gap"] >= 0
    names = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file()}
    pictures = {f"figures/{name}.{kind}" for name in ("gains", "cv", "small-steps") for kind in ("png", "svg")}
    assert names == {"results.json", "summary.csv", "steps.csv", "results.md"} | pictures
    assert (tmp_path / "out" / "results.md").read_text(encoding="utf-8").strip() in page.read_text(encoding="utf-8")


def test_the_same_seed_gives_the_same_results(tmp_path, capsys):
    path = write_scenario(tmp_path)
    once, again = (json.loads(run(capsys, path, "--json", "--threads", threads)[0]) for threads in (1, 2))
    assert once != again
    for found in (once, again):
        del found["made"]["machine"]
    assert without_times(once) == without_times(again)
    write_scenario(tmp_path, SCENARIO.replace("[3]", "[4]"))
    other = json.loads(run(capsys, path, "--json")[0])
    assert other["scenarios"][0]["strategies"][0]["throughput"] != once["scenarios"][0]["strategies"][0]["throughput"]


def test_steps_seeds_and_quick_decide_how_many_windows_there_are(tmp_path, capsys):
    path = write_scenario(tmp_path, SCENARIO.replace("[3]", "[3, 4]").replace("steps = 2", "steps = 1"))
    found = json.loads(run(capsys, path, "--steps", 2, "--json")[0])["scenarios"][0]
    assert [(s["seed"], s["step"]) for s in found["strategies"][0]["steps"]] == [(3, 0), (3, 1), (4, 0), (4, 1)]
    later = [s["moved_experts"] for s in found["strategies"][3]["steps"]]
    assert later[2] > later[1]  # a run begins with experts in order
    quick = json.loads(run(capsys, path, "--quick", "--json")[0])["scenarios"][0]
    assert quick["windows"]["windows"] == 1 and quick["windows"]["seeds"] == [3]


DRAWS = SCENARIO.replace('lengths = "gsm8k"\nprompts = 6\nrollouts = 4\n', 'files = ["w.safetensors"]\ndraw = 40\n')


@pytest.fixture
def recorded_window(root, tmp_path):
    source = root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors"
    (tmp_path / "w.safetensors").symlink_to(source)
    return source


def test_recorded_windows_are_drawn_from(recorded_window, tmp_path, capsys):
    path = write_scenario(tmp_path, DRAWS.replace("olmoe-1b-7b", "gpt-oss-20b"))
    found = json.loads(run(capsys, path, "--json")[0])["scenarios"][0]
    tokens = [step["tokens"] for step in found["strategies"][0]["steps"]]
    assert found["windows"]["samples_per_step"] == 40 and len(set(tokens)) == 2 and max(tokens) < 40 * 512
    whole = write_scenario(tmp_path, path.read_text().replace("draw = 40\nsteps = 2\nseeds = [3]\n", "truncate = true\n"))
    whole.write_text(whole.read_text().replace("cap = 2048", "cap = 400"), encoding="utf-8")
    found = json.loads(run(capsys, whole, "--json")[0])["scenarios"][0]
    assert found["windows"]["truncated_samples"] > 100 and "were longer than the cap, cut there" in found["notes"][-1]
    assert found["comparisons"][0]["wilcoxon"]["p"] is None  # one window


def test_csv_and_markdown_go_to_standard_output(tmp_path, capsys):
    path = write_scenario(tmp_path)
    lines = list(csv.DictReader(io.StringIO(run(capsys, path, "--quick", "--csv")[0])))
    assert [line["strategy"] for line in lines] == ["baseline", "lpt", "paper", "routepack"]
    assert "### small" in run(capsys, path, "--quick", "--markdown")[0]


def test_wrong_use_is_said_in_one_line(tmp_path, capsys, recorded_window):
    path = write_scenario(tmp_path)
    assert "see routepack evaluate --help" in run(capsys, status=2)[1]
    assert "--steps" in run(capsys, path, "--steps", 0, status=2)[1]
    assert "not allowed with argument" in run(capsys, path, "--json", "--csv", status=2)[1]
    assert 'name: found "small", the name of' in run(capsys, path, path, status=2)[1]
    assert "page.md: cannot read" in run(capsys, path, "--into", tmp_path / "page.md", status=2)[1]
    write_scenario(tmp_path, SCENARIO.replace("olmoe-1b-7b", "gpt-9"))
    assert '"gpt-9"' in run(capsys, path, status=2)[1]
    write_scenario(tmp_path, SCENARIO.replace("cap = 2048", "cap = 20"))
    assert re.search(r"routepack compare: .*cell holds 20", run(capsys, path, status=2)[1])
    write_scenario(tmp_path, DRAWS.replace("draw = 40", "draw = 400"))
    assert "windows.draw: found 400, wanted at most the 354 samples" in run(capsys, path, status=2)[1]


def test_an_unfit_program_is_said(tmp_path, capsys, monkeypatch):
    path = write_scenario(tmp_path)
    monkeypatch.setattr("routepack.__main__.program", lambda: tmp_path / "gone")
    assert f"{tmp_path / 'gone'}: cannot run: No such file" in run(capsys, path, status=2)[1]
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 7\n")
    silent.chmod(0o755)
    monkeypatch.setattr("routepack.__main__.program", lambda: silent)
    assert "exit status 7 without a word" in run(capsys, path, status=2)[1]


def test_without_scipy_it_says_what_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    assert 'found no scipy, wanted it for the tests: pip install "routepack[evaluate]"' in run(
        capsys, write_scenario(tmp_path), status=2
    )[1]


def test_help_needs_no_optional_package():
    block = "import sys; sys.modules.update(dict.fromkeys(['scipy', 'matplotlib'])); from routepack.__main__ import main; "
    done = subprocess.run([sys.executable, "-c", block + "main(['evaluate', '--help'])"], capture_output=True, text=True)
    assert done.returncode == 0 and "SCENARIO" in done.stdout and done.stderr == ""


def test_no_window_is_left_behind(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    run(capsys, write_scenario(tmp_path), "--quick")
    assert os.listdir(tmp_path / "scratch") == []


def test_every_scenario_of_the_repository_runs(root, capsys, tmp_path):
    files = sorted((root / "scenarios").glob("*.toml"))
    found = json.loads(run(capsys, *files, "--quick", "--steps", 1, "--json")[0])
    assert [result["file"] for result in found["scenarios"]] == [str(path) for path in files]
    assert found["made"]["command"] == f"routepack evaluate {root / 'scenarios'}/*.toml --quick --steps 1"
    assert all(result["time"] == "simulated" for result in found["scenarios"])
