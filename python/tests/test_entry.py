# SPDX-License-Identifier: Apache-2.0
"""The command `routepack` of the package: every subcommand in one place, the C++ ones passed through as they are."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

import routepack
from routepack.__main__ import _PYTHON, main, program

MODULE = [sys.executable, "-m", "routepack"]


def run(*arguments: object, **more: object) -> subprocess.CompletedProcess[str]:
    command = [*MODULE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]


def cpp(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program()), *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def window(root):
    return root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors"


def subcommands(text: str) -> list[str]:
    block = text.split("Subcommands:\n", 1)[1].split("\n\n", 1)[0]
    return [line.split()[0] for line in block.splitlines()]


def test_one_help_has_every_subcommand():
    text = run("--help").stdout
    assert subcommands(text) == [*subcommands(cpp("--help").stdout), *_PYTHON]
    assert "not in this executable" not in text and text == run("-h").stdout
    starts = {re.match(r"  \S+ +", line).end() for line in text.split("Subcommands:\n")[1].split("\n\n")[0].splitlines()}  # type: ignore[union-attr]
    assert len(starts) == 1  # one column


def test_every_subcommand_of_the_help_has_its_own():
    for name in subcommands(run("--help").stdout):
        done = run(name, "--help")
        assert done.returncode == 0 and name in done.stdout and done.stderr == ""


def test_the_version_is_one():
    assert run("--version").stdout == cpp("--version").stdout == f"routepack {routepack.__version__}\n"


def test_results_messages_and_statuses_pass_through(window, root, tmp_path):
    options = ["--dp", 8, "--ep", 8, "--cost", root / "examples" / "gptoss20b.toml", "--effort", "fast"]
    made = run("plan", window, *options, "--cap", 2048, "-o", tmp_path / "p.json", "--json")
    assert made.returncode == 0 and json.loads(made.stdout)["hash"] == routepack.Plan.load(tmp_path / "p.json").hash
    too_small = ["plan", window, *options, "--cap", 16, "-o", tmp_path / "none.json"]
    text = (tmp_path / "p.json").read_text()
    broken = json.loads(text)
    broken["layout"][0][0], broken["layout"][0][1] = [], broken["layout"][0][0] + broken["layout"][0][1]
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    for status, arguments in {
        0: ["verify", window, tmp_path / "p.json"],
        2: ["nosuch"],
        3: too_small,
        4: ["verify", window, tmp_path / "broken.json"],
    }.items():
        here, there = run(*arguments), cpp(*arguments)
        assert here.returncode == there.returncode == status
        assert (here.stdout, here.stderr) == (there.stdout, there.stderr)
    assert run().returncode == cpp().returncode == 2
    assert run("report", tmp_path / "p.json", window, "--json").returncode == 0
    assert run("convert", "nosuch").returncode == 2


def test_as_a_function_it_returns(capfd):
    assert main(["inspect", "nosuch.safetensors"]) == 2
    assert capfd.readouterr().err.startswith("routepack: error: nosuch.safetensors")
    assert main(["--help"]) == 0 and "report" in capfd.readouterr().out


def test_signals_find_the_program_itself(window):
    # Python ignores SIGPIPE; a program that it becomes must not.
    command = f'"{sys.executable}" -m routepack inspect "{window}" --json | true; exit ${{PIPESTATUS[0]}}'
    statuses = {subprocess.run(["bash", "-c", command], check=False, stderr=subprocess.DEVNULL).returncode for _ in range(4)}
    assert statuses <= {0, 2, 128 + signal.SIGPIPE} and "Traceback" not in str(statuses)
    full = subprocess.run(["bash", "-c", f'"{sys.executable}" -m routepack --help >/dev/full'], capture_output=True, text=True, check=False)
    assert full.returncode == 2 and full.stderr.count("\n") == 1 and "cannot write" in full.stderr


def test_a_missing_program_is_said(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("routepack.__main__.program", lambda: tmp_path / "routepack")
    assert main(["plan"]) == 2
    assert capsys.readouterr().err == (
        f"routepack: error: {tmp_path / 'routepack'}: found no program, wanted the C++ command line\n"
    )


def test_a_program_that_cannot_run_is_said(monkeypatch, capsys, tmp_path):
    broken = tmp_path / "routepack"
    broken.write_text("#!/bin/sh\necho a library is missing >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setattr("routepack.__main__.program", lambda: broken)
    assert main(["--help"]) == 2
    assert capsys.readouterr().err == f"routepack: error: {broken}: cannot run: a library is missing\n"
    assert main(["plan"]) == 127


def test_results_hold_no_colour_without_a_terminal(window):
    for arguments in (["--help"], ["inspect", window], ["report", "--help"], ["convert", "--help"]):
        done = run(*arguments, env={**os.environ, "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"})
        assert done.returncode == 0 and "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("name", ["calibrate", "convert", "evaluate", "report"])
def test_an_interrupt_while_it_imports_ends_it_in_silence(name, tmp_path):
    # A numpy that interrupts the process as Ctrl-C would, and then imports as long as it takes.
    (tmp_path / "numpy.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    restored = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    block = restored + "sys.argv[0] = 'routepack'; from routepack.__main__ import main; sys.exit(main(['%s', '--help']))" % name
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", block], env=env, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_interrupts_are_exceptions_again_once_a_subcommand_runs():
    block = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv[0] = 'routepack'; "
        "from routepack.__main__ import main; first = signal.getsignal(signal.SIGINT); main(['evaluate', '--nosuch']); "
        "print(first is signal.default_int_handler, signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    )
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False)
    assert done.stdout == "False True\n" and done.stderr.count("\n") == 1


def test_as_a_library_it_leaves_interrupts_alone():
    block = "import signal; one = signal.getsignal(2); import routepack.__main__; print(signal.getsignal(2) is one)"
    assert subprocess.run([sys.executable, "-c", block], capture_output=True, text=True).stdout == "True\n"
