# SPDX-License-Identifier: Apache-2.0
"""What the command line says to people: lines that fit, a progress line where one can be drawn, warnings, places."""
import fcntl
import json
import os
import pty
import struct
import subprocess
import termios

import pytest

import windowkit
from refusals import assert_refused
from windowkit import REPOSITORY, run, run_json

WINDOWS = {
    "gptoss20b-mmlu-354": ["--dp", 8, "--ep", 8, "--cap", 2048, "--cost", "examples/gptoss20b.toml"],
    "mixtral-mmlu-512": ["--dp", 4, "--ep", 4, "--cap", 8192, "--cost", "examples/mixtral8x7b.toml"],
}
COLUMNS = 100


def from_the_root(*arguments):
    return run(*arguments, cwd=REPOSITORY)


def on_a_terminal(*arguments, columns=120, **environment):
    """What a terminal gets from standard error; standard output goes elsewhere."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm", **environment}
    process = subprocess.Popen(
        [windowkit.EXECUTABLE, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=theirs, env=env, cwd=REPOSITORY
    )
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
    assert process.wait() == 0
    return text.decode("utf-8")


# Lines that fit.


@pytest.mark.parametrize("name", WINDOWS)
def test_text_for_people_keeps_within_100_columns(name, tmp_path):
    window, plan = f"examples/windows/{name}.safetensors", tmp_path / "p.json"
    options = WINDOWS[name]
    made = from_the_root("plan", window, "-o", plan, *options, "--moves", "0.02", "--moves", "9GB", "--moves", "price:0.5,0.7")
    texts = [made.stdout, from_the_root("inspect", window).stdout, from_the_root("score", window, plan).stdout,
             from_the_root("verify", window, plan).stdout]  # fmt: skip
    lines = [line for text in texts for line in text.splitlines() if str(tmp_path) not in line]
    assert len(lines) > 50
    assert [line for line in lines if len(line) > COLUMNS] == []


def test_a_long_file_name_has_a_line_of_its_own(small):
    folder = small.folder / ("long-" * 30)
    folder.mkdir()
    window = folder / "w.safetensors"
    window.write_bytes(small.window.read_bytes())
    lines = run(*small.plan_arguments(window=window)).stdout.splitlines()
    assert lines[0] == f"{window}:" and lines[1].startswith("  12 samples, ")


# The progress line.


def plan_example(tmp_path):
    return ["plan", "examples/windows/gptoss20b-mmlu-354.safetensors", "-o", tmp_path / "p.json", *WINDOWS["gptoss20b-mmlu-354"]]


@pytest.mark.parametrize("columns", [40, 120])
def test_a_terminal_sees_progress_on_one_line(tmp_path, columns):
    text = on_a_terminal(*plan_example(tmp_path), columns=columns)
    said = [line for line in text.split("\r\x1b[K") if line]
    assert any(line.startswith("planning: level ") for line in said)
    assert max(map(len, said)) < columns and "\n" not in text
    assert text.endswith("\r\x1b[K"), "the line is empty again at the end"


def test_a_dumb_terminal_sees_none(tmp_path):
    assert on_a_terminal(*plan_example(tmp_path), TERM="dumb") == ""
    window = "examples/windows/gptoss20b-mmlu-354.safetensors"
    options = [*WINDOWS["gptoss20b-mmlu-354"], "--strategies", "areal-ffd", "--baseline", "areal-ffd"]
    assert on_a_terminal("compare", window, *options, TERM="dumb") == ""
    assert "comparing: " in on_a_terminal("compare", window, *options)


# What limited the moves.


def test_limits_say_how_much_of_them_was_used(small):
    small.make_plan("--placement", "keep")
    text = run(*small.plan_arguments(), "--moves", "0.13", "--expert-bytes", 1000, "--moves", "1KB", "--moves", "price:0").stdout
    moves = json.loads(small.plan_path.read_text())["moves"]
    busiest = max(moves["bytes_in"] + moves["bytes_out"])
    assert f"  limit: {moves['experts']} of 2 experts moved" in text  # 0.13 of 16
    assert f"  limit: {busiest:,} of 1,000 bytes into or out of the busiest rank" in text
    assert moves["experts"] == 2 and text.count("used up") == 2
    loose = run(*small.plan_arguments(), "--moves", "0.99", "--expert-bytes", 1000, "--moves", "1GB").stdout
    assert "of 15 experts moved" in loose and "of 1,000,000,000 bytes" in loose and "used up" not in loose


def test_the_price_in_effect_is_said(small):
    frugal = run_json(*small.plan_arguments())["moves"]["limits"]
    assert frugal["experts"] == 16 and frugal["price"] == frugal["price_between_nodes"] > 0 and "rank_bytes" not in frugal
    text = run(*small.plan_arguments()).stdout
    assert f"has to bring {frugal['price']:.4g} of the joint objective (the default; --moves says otherwise)" in " ".join(text.split())
    priced = " ".join(run(*small.plan_arguments(), "--moves", "price:0.25,0.5").stdout.split())
    assert "has to bring 0.25 of the joint objective, 0.5 to another node (from --moves)" in priced
    rated = run(*small.plan_arguments(), "--model", "gpt-oss-20b", "--link-gbytes", 50, "--tflops", 400).stdout
    assert "(from --link-gbytes and --tflops)" in " ".join(rated.split())
    free = run(*small.plan_arguments(), "--moves", "free").stdout
    assert "price:" not in free and "limit:" not in free
    assert "limits" not in run_json(*small.plan_arguments(), "--placement", "lpt")["moves"]


# What an expert weighs.


@pytest.mark.parametrize("text, size", [("66MB", 66_000_000), ("1.5KiB", 1536), ("7", 7), ("0", 0)])
def test_sizes_are_read_as_in_moves(small, text, size):
    assert small.make_plan("--expert-bytes", text)["params"]["expert_bytes"] == size
    for value in (json.dumps(text), *([text] if text.isdigit() else [])):
        params = small.write("params.toml", f"expert-bytes = {value}\n")
        assert small.make_plan("--params", params)["params"]["expert_bytes"] == size
    assert f"expert-bytes = {size}\n" in run("plan", "--expert-bytes", text, "--dump-params").stdout


@pytest.mark.parametrize("text", ["-1", "66TB", "MB", "1.5", "1e3MB", "9999999GB", "66 MB", "1125899906842625"])
def test_sizes_that_are_none_are_refused(small, text):
    assert_refused(small, [*small.plan_arguments(), f"--expert-bytes={text}"], 2, f'--expert-bytes: found "{text}"')
    params = small.write("params.toml", f'\nexpert-bytes = "{text}"\n')
    assert_refused(small, [*small.plan_arguments(), "--params", params], 2, f'params.toml:2: expert-bytes: found "{text}"')


def named(small, model):
    contents = windowkit.safetensors_bytes(small.tensors, {**small.metadata, "model": model})
    return small.plan_arguments(window=small.write("named.safetensors", contents))


def test_the_window_names_the_model(small):
    parameters = 3 * 2880 * 2880
    run(*named(small, "openai/gpt-oss-20b"), "--moves", "free")
    plan = json.loads(small.plan_path.read_text())
    assert plan["params"]["model"] == "gpt-oss-20b"
    assert plan["moves"]["bytes"] == 14 * parameters * plan["moves"]["experts"] > 0
    assert run_json("verify", small.folder / "named.safetensors", small.plan_path)["accepted"] is True
    assert "as gpt-oss-20b does" in " ".join(run(*named(small, "openai/gpt-oss-20b")).stdout.split())
    for model, more in (("my-own", []), ("openai/gpt-oss-20b", ["--expert-bytes", 5])):
        assert run(*named(small, model), *more).stderr == ""
        assert json.loads(small.plan_path.read_text())["params"]["model"] == ""


def warnings_of(arguments):
    lines = run(*arguments).stderr.splitlines()
    assert all(line.startswith("routepack: warning: ") for line in lines)
    return lines


def test_a_model_that_the_window_contradicts_is_a_warning(small):
    (line,) = warnings_of([*named(small, "openai/gpt-oss-20b"), "--model", "olmoe-1b-7b"])
    assert "--model olmoe-1b-7b" in line and "named.safetensors says it is of openai/gpt-oss-20b" in line
    assert warnings_of([*named(small, "openai/gpt-oss-20b"), "--model", "gpt-oss-20b"]) == []
    assert warnings_of([*named(small, "my-own"), "--model", "olmoe-1b-7b"]) == []


# Options that change nothing.


@pytest.mark.parametrize("options, words", [
    (["--placement", "keep", "--sticky-eps", 0.2], ["--sticky-eps", "--placement keep"]),
    (["--placement", "lpt", "--sticky-eps", 0.2], ["--sticky-eps", "--placement lpt"]),
    (["--placement", "sticky", "--two-batches"], ["--two-batches", "--placement sticky"]),
    (["--placement", "keep", "--two-batches"], ["--two-batches", "--placement keep"]),
    (["--placement", "lpt", "--model", "gpt-oss-20b", "--link-gbytes", 50, "--tflops", 400], ["--tflops", "--placement lpt"]),
    (["--optimizer-shards", 4], ["--optimizer-shards", "without --model", "names no known model"]),
    (["--weight-bytes", 1, "--expert-bytes", 5], ["--weight-bytes", "with --expert-bytes"]),
])  # fmt: skip
def test_an_option_without_effect_is_a_warning(small, options, words):
    (line,) = warnings_of([*small.plan_arguments(), *options])
    assert "no effect" in line and all(word in line for word in words), line
    assert json.loads(small.plan_path.read_text())["format"] == "routepack.plan/1"
    json.loads(run(*small.plan_arguments(), *options, "--json").stdout)


def test_options_with_an_effect_are_no_warning(small):
    for options in (["--sticky-eps", 0.2], ["--two-batches"], ["--placement", "sticky", "--sticky-eps", 0.2],
                    ["--model", "gpt-oss-20b", "--optimizer-shards", 4], ["--placement", "keep"]):  # fmt: skip
        assert warnings_of([*small.plan_arguments(), *options]) == []


@pytest.mark.parametrize("ranks", [3, 5, 6])
def test_nodes_that_cut_through_a_communicator_are_refused(small, ranks):
    assert_refused(small, [*small.plan_arguments(), "--ranks-per-node", ranks], 2, f"found {ranks}, wanted a divisor or a multiple of the 4")


@pytest.mark.parametrize("ranks", [0, 1, 2, 4, 8])
def test_nodes_that_hold_whole_communicators_are_fine(small, ranks):
    assert warnings_of([*small.plan_arguments(), "--ranks-per-node", ranks]) == []


# Places in cost files.


@pytest.mark.parametrize("text, where, key", [
    ("expert = 1e200\n", ":1: ", "expert"),
    ("expert = 1.0\n[[stage]]\nalpha = 1.0\nbeta = 1e200\n", ":4: ", "stage[0].beta"),
    ("expert = [\n1.0,\n-1.0]\n", ":3: ", "expert[1]"),
    ("expert = 1.0\n[[stage]]\nalpa = 1.0\n", ":3: ", "alpa"),
    ("expert = \n", ":1:", "invalid TOML"),
    ("expert = [1.0, 2.0, 3.0]\n", ": ", "found 3 weights, wanted one number or 2"),
])  # fmt: skip
def test_a_bad_cost_names_its_file_and_line(small, text, where, key):
    cost = small.write("bad.toml", text)
    assert_refused(small, small.plan_arguments(cost=cost), 2, f"bad.toml{where}", key)
