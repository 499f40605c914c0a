# SPDX-License-Identifier: Apache-2.0
"""What a shell, a disk or a second process may do to a run: one line on stderr and a status, never a signal."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import windowkit
from refusals import assert_refused, snapshot
from windowkit import EXECUTABLE, run

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run_in_shell(command, **extra):
    return subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, **extra)


def test_closed_or_full_standard_error(small):
    for redirect in ("2>&-", "2>/dev/full", "<&- >&- 2>&-"):
        assert run_in_shell(f"{EXECUTABLE} inspect {small.folder}/nothing {redirect}").returncode == 2


def test_closed_descriptors_do_not_become_output_files(small):
    arguments = " ".join(str(argument) for argument in small.plan_arguments())
    done = run_in_shell(f"{EXECUTABLE} {arguments} <&- >&- 2>&-")
    assert done.returncode == 2  # the report could not be printed
    windowkit.run("verify", small.window, small.plan_path)


@pytest.mark.parametrize("output", ["window.safetensors", "cost.toml"])
def test_an_input_is_never_overwritten(small, output):
    path = small.folder / output
    before = path.read_bytes()
    assert_refused(small, small.plan_arguments(out=path), 2, output)
    assert_refused(small, [*small.plan_arguments(), "--placement-out", path], 2, output)
    assert path.read_bytes() == before


def test_two_outputs_in_one_place(small):
    assert_refused(small, [*small.plan_arguments(), "--placement-out", small.plan_path], 2, "plan.json")


def test_the_current_plan_may_be_replaced(small):
    small.make_plan()
    run(*small.plan_arguments(), "--current", small.plan_path)


def test_a_pipe_without_a_reader(small):
    pipe = small.folder / "pipe"
    os.mkfifo(pipe)
    assert_refused(small, small.plan_arguments(out=pipe), 2, "pipe")


def test_neither_file_appears_when_the_plan_has_no_valid_name(small):
    arguments = small.plan_arguments(out=small.out / ("x" * 256))
    assert_refused(small, [*arguments, "--placement-out", small.out / "placement.json"], 2, "xxx")


@pytest.mark.memory
def test_little_memory_is_said_in_one_line(small):
    plan = small.make_plan()
    plan["layout"][0][0] = plan["layout"][0][0] * 400_000
    small.plan_path.write_text(windowkit.json.dumps(plan))
    for limit in range(12_000, 60_000, 6_000):
        done = run_in_shell(f"ulimit -v {limit}; {EXECUTABLE} score {small.window} {small.plan_path}")
        assert done.returncode in (2, 127), (limit, done)  # 127: not even the loader had enough
        if done.returncode == 2:
            assert done.stderr.decode().count("\n") == 1


def test_a_window_that_shrinks_while_it_is_read(tmp_path):
    path = tmp_path / "shrinks.safetensors"
    script = ROOT / "tests" / "support" / "make_big_window.py"
    subprocess.run([sys.executable, script, path, "4096", "23", "128", "8", "--seed", "1"], check=True)
    for delay in (0.002, 0.005, 0.01, 0.02):
        copy = tmp_path / "copy.safetensors"
        copy.write_bytes(path.read_bytes())
        process = subprocess.Popen([EXECUTABLE, "inspect", copy], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(delay)
        os.truncate(copy, 8192)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode in (0, 2), process.returncode  # 0: it had finished reading
        assert stderr.decode().count("\n") == (1 if process.returncode else 0)


def test_interrupting_a_plan_writes_nothing(small, tmp_path):
    path = tmp_path / "big.safetensors"
    script = ROOT / "tests" / "support" / "make_big_window.py"
    subprocess.run([sys.executable, script, path, "8192", "8", "64", "4", "--seed", "1"], check=True)
    arguments = [str(a) for a in small.plan_arguments(window=path, cap=4096, dp=8, ep=8)]
    for number in (signal.SIGINT, signal.SIGTERM):
        small.plan_path.unlink(missing_ok=True)
        process = subprocess.Popen([EXECUTABLE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=60)
        # -number: it came before the handler was there; 0: it came when the plan was written already.
        assert process.returncode in (130, -number, 0)
        assert snapshot(small.out).keys() == ({"plan.json"} if process.returncode == 0 else set())


def test_huge_costs_are_refused(small):
    for text in ("expert = 1e304\n", '[[stage]]\nname = "x"\nalpha = 1e308\nbeta = 1e308\n'):
        cost = small.write("huge.toml", text)
        assert_refused(small, small.plan_arguments(cost=cost), 2, "huge.toml", "1e+100")


def test_huge_padding_load_is_refused(small):
    small.tensors["pad_counts"] = np.full((2, 8), 2**32 - 1, np.uint32)
    path = small.write("pads.safetensors", windowkit.safetensors_bytes(small.tensors, small.metadata))
    arguments = small.plan_arguments(window=path, cap=94906265)
    assert_refused(small, [*arguments, "--cell-multiple", "94906265"], 2, "pads.safetensors", "pad_counts")


def test_a_flag_takes_true_or_false(small):
    off = small.write("params.toml", "equal-count = true\nadd-dummies = true\n")
    report = windowkit.json.loads(
        run(*small.plan_arguments(dp=8), "--params", off, "--equal-count=false", "--add-dummies=false", "--json").stdout)
    assert "dummies" not in report
    assert_refused(small, [*small.plan_arguments(), "--equal-count=banana"], 2, "--equal-count", "banana")


def test_dumped_parameters_keep_odd_file_names(small):
    odd = small.folder / "c\x7f.toml"
    odd.write_bytes(small.cost.read_bytes())
    dumped = run("plan", "--dump-params", "--cost", odd).stdout
    params = small.write("dumped.toml", dumped)
    assert run("plan", "--dump-params", "--params", params).stdout == dumped


def test_an_unknown_subcommand_is_named():
    assert "dance" in run("dance", status=2).stderr


def test_samples_longer_than_any_cell_stand_alone_whatever_the_cell_multiple(small):
    arguments = small.plan_arguments(cap=8, dp=4)
    run(*arguments, "--cell-multiple", 16, "--oversized", "own-cell")
    run("verify", small.window, small.plan_path)


def test_the_largest_length_is_scored(tmp_path, small):
    tensors = {"lengths": np.array([94906265], np.int32), "counts": np.zeros((1, 1, 1), np.uint16)}
    path = small.write("long.safetensors", windowkit.safetensors_bytes(tensors, windowkit.metadata(1)))
    run(*small.plan_arguments(window=path, cap=94906265, dp=1, ep=1))
    run("score", path, small.plan_path)


def test_a_bad_current_plan_leaves_no_folder(small):
    folder = small.folder / "plans"
    other = small.write("other.safetensors", small.window.read_bytes())
    arguments = small.plan_arguments(out=folder)
    arguments.insert(2, other)
    assert run(*arguments, "--current", small.cost, status=2).stderr.count("\n") == 1
    assert not folder.exists()


def test_following_the_advice_on_rank_tokens_ends_in_a_plan(small):
    limit = "1"
    for _ in range(4):
        arguments = [EXECUTABLE, *map(str, small.plan_arguments()), "--max-rank-tokens", limit]
        done = subprocess.run(arguments, capture_output=True, timeout=60, encoding="utf-8")
        if done.returncode == 0:
            return
        limit = done.stderr.split("what would help: --max-rank-tokens ")[1].split()[0].strip(",")
    pytest.fail(f"still refused: {done.stderr}")
