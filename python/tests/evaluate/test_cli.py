# SPDX-License-Identifier: Apache-2.0
"""`routepack evaluate` through the real command line: files, formats, errors, the same results again."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from evaluate.support import SCENARIO, write_scenario
from routepack import _terminal
from routepack.__main__ import program
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


def test_where_results_go_is_looked_at_before_anything_is_computed(tmp_path, capsys, monkeypatch):
    path = write_scenario(tmp_path)
    monkeypatch.setattr("routepack.__main__.program", lambda: tmp_path / "gone")  # nothing can be computed
    for option in ("-o", "--into"):
        assert f"argument {option}" in run(capsys, path, option, "", status=2)[1]
    out = tmp_path / "out"
    out.mkdir()
    (out / "figures").touch()
    assert f"{out / 'figures'}: found a file, wanted a folder" in run(capsys, path, "-o", out, status=2)[1]
    (out / "figures").unlink()
    (out / "summary.csv").mkdir()
    assert f"{out / 'summary.csv'}: found a directory, wanted a file" in run(capsys, path, "-o", out, status=2)[1]
    assert f"{path}: found a file, wanted a folder" in run(capsys, path, "-o", path / "out", status=2)[1]


def test_line_ends_outside_the_marks_stay(tmp_path):
    page = tmp_path / "page.md"
    page.write_bytes(f"top\r\n{document.BEGIN}\r\nold\r\n{document.END}\r\nlast\nline\r\n".encode())
    made = document.put_between_marks(page, "a\nb\n")
    assert made == f"top\r\n{document.BEGIN}\r\n\r\na\r\nb\r\n\r\n{document.END}\r\nlast\nline\r\n"


def answers(folder, text):
    """A program that answers compare with `text`, and everything else as the real one."""
    (folder / "answer.json").write_text(text)
    fake = folder / "fake"
    real = program()
    fake.write_text(f'#!/bin/sh\n[ "$1" = compare ] && exec cat "{folder}/answer.json"\nexec "{real}" "$@"\n')
    fake.chmod(0o755)
    return lambda: fake


def test_an_answer_for_other_windows_is_refused(tmp_path, capsys, monkeypatch, root):
    path = write_scenario(tmp_path)
    data = next(iter(sorted((root / "python" / "tests" / "evaluate" / "data").glob("*.json"))))
    for text, said in (
        ('{"windows": []}', "found 0 steps in the answer of compare, wanted one for each of 2 windows"),
        ('{"strategies": []}', "found an answer of compare without what is read from it"),
        ('{"windows": [{"placements": [], "entries": []}]}', "found an answer of compare without what is read from it"),
        ('{"windows": NaN}', "found no JSON"),
        ("[" * 100_000, "found no JSON"),
        (data.read_text(), "scenario.toml: strategy "),
    ):
        monkeypatch.setattr("routepack.__main__.program", answers(tmp_path, text))
        assert said in run(capsys, path, status=2)[1]


def test_what_is_no_number_is_never_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli, "evaluate", lambda *_, **__: {"scenarios": [], "x": float("inf")})
    said = run(capsys, write_scenario(tmp_path), "--json", status=2)[1]
    assert "found a figure that is no finite number, wanted JSON" in said


def test_long_names_keep_the_table_within_100_columns(tmp_path, capsys):
    strategies = "".join(
        f'[[strategies]]\nname = "{name}"\nplacement = "{placement}"\npacker = "routepack"\neffort = "fast"\n'
        for name, placement in (("窓" * 20, "identity"), ("b" * 40, "lpt"))
    )
    text = SCENARIO.replace('"small"', f'"{"a" * 40}"') + strategies
    out, err = run(capsys, write_scenario(tmp_path, text), "--quick")
    assert err == "" and max(map(_terminal.display_width, out.splitlines())) <= 100
    assert "…" in out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_window_behind(tmp_path, number):
    scratch, slow = tmp_path / "scratch", tmp_path / "slow"
    scratch.mkdir()
    slow.write_text('#!/bin/sh\n[ "$1" = compare ] && exec sleep 60\nexec "' + str(program()) + '" "$@"\n')
    slow.chmod(0o755)
    block = (
        "import pathlib, signal, sys; import routepack.__main__ as m; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        "m.program = lambda: pathlib.Path(sys.argv[1]); sys.exit(m.main(['evaluate', sys.argv[2]]))"
    )
    command = [sys.executable, "-c", block, str(slow), str(write_scenario(tmp_path))]
    process = subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(scratch)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 60
    while not list(scratch.rglob("*.safetensors")) and time.monotonic() < end:
        time.sleep(0.02)
    assert os.listdir(scratch) != []
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (128 + number, "", "") and os.listdir(scratch) == []


def test_handlers_are_as_they_were(tmp_path, capsys):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    run(capsys, tmp_path / "gone.toml", status=2)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


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
