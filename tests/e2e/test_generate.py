# SPDX-License-Identifier: Apache-2.0
"""routepack generate, from the command line to the bytes of the file."""
import json
import os
import signal
import struct
import subprocess
import time

import numpy as np
import pytest

from windowkit import COST, EXECUTABLE, run, run_json

SMALL = ["generate", "--model", "gpt-oss-20b", "--prompts", "4", "--rollouts", "2"]


def read(path):
    """Header and tensors of a window file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    types = {"U16": "<u2", "I32": "<i4"}
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
    return header["__metadata__"], tensors


def test_a_window_is_complete_and_says_what_it_is(tmp_path):
    path = tmp_path / "window.safetensors"
    made = run_json(*SMALL, "--seed", "3", "-o", path)
    metadata, tensors = read(path)
    assert metadata["note"] == "synthetic"
    assert metadata["seed"] == "3"
    assert metadata["model"] == "gpt-oss-20b"
    assert metadata["recipe"] == "routepack.generate/1"
    assert (tensors["recorded"] == tensors["lengths"]).all()
    assert tensors["groups"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (tensors["counts"].sum(axis=2, dtype=np.int64) == 4 * tensors["lengths"][:, None]).all()
    assert (tensors["counts"].max(axis=(1, 2)) <= tensors["lengths"]).all()
    assert made["tokens"] == tensors["lengths"].sum()
    assert made["fingerprint"] == run_json("inspect", path)["fingerprint"]
    assert made["domain"] == metadata["domain"]


def test_the_same_arguments_give_the_same_bytes_with_any_number_of_threads(tmp_path):
    for threads in ("1", "2", "5"):
        run(*SMALL, "--threads", threads, "-o", tmp_path / threads)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes() == (tmp_path / "5").read_bytes()
    run(*SMALL, "--seed", "1", "-o", tmp_path / "other")
    assert (tmp_path / "1").read_bytes() != (tmp_path / "other").read_bytes()


def test_steps_go_into_a_folder_and_each_is_what_step_alone_makes(tmp_path):
    made = run_json(*SMALL, "--steps", "3", "-o", tmp_path / "run")
    assert [os.path.basename(w["window"]) for w in made["windows"]] == [f"step-000{i}.safetensors" for i in range(3)]
    assert sorted(os.listdir(tmp_path / "run")) == [f"step-000{i}.safetensors" for i in range(3)]
    assert len({w["fingerprint"] for w in made["windows"]}) == 3
    alone = run_json(*SMALL, "--step", "2", "-o", tmp_path / "alone")
    assert alone["fingerprint"] == made["windows"][2]["fingerprint"]


@pytest.mark.parametrize("lengths", ["gsm8k", "math", "reasoning", "agentic", "mixed"])
def test_every_length_profile_makes_windows_that_can_be_planned(tmp_path, lengths):
    window, cost = tmp_path / "window.safetensors", tmp_path / "cost.toml"
    run("generate", "--model", "olmoe-1b-7b", "--lengths", lengths, "--prompts", "8", "--rollouts", "4", "-o", window)
    cost.write_text('[[stage]]\nname = "mha"\nalpha = 1.0\nbeta = 1.0\n', encoding="utf-8")
    run("plan", window, "-o", tmp_path / "plan.json", "--cost", cost, "--dp", "4", "--ep", "4", "--cap", "40960")
    run("verify", window, tmp_path / "plan.json")


def test_the_list_of_models_marks_what_is_not_calibrated():
    models = {m["name"]: m for m in run_json("generate", "--list-models")["models"]}
    assert models["gpt-oss-20b"]["calibrated"] and not models["deepseek-v3"]["calibrated"]
    assert models["ling-3.0-flash"]["widths_inferred"]
    assert models["deepseek-v3"]["moe_layers"] == 58
    assert {"gpt-oss-20b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "kimi-k2", "glm-4.5", "ling-3.0-tiny",
            "ling-3.0-flash"} <= set(models)  # fmt: skip
    text = run("generate", "--list-models").stdout
    assert "uncalibrated" in text and "inferred 2560 x 768" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "arguments, named",
    [
        (["-o", "w"], "--model"),
        (["--model", "gpt-oss-20b"], "--output"),
        (["--model", "gpt-2", "-o", "w"], "gpt-2"),
        (["--model", "gpt-oss-20b", "--domain", "law", "-o", "w"], "law"),
        (["--model", "gpt-oss-20b", "--lengths", "short", "-o", "w"], "gsm8k|math|reasoning|agentic|mixed"),
        (["--model", "gpt-oss-20b", "--prompts", "0", "-o", "w"], "--prompts"),
        (["--model", "gpt-oss-20b", "--seed", "x", "-o", "w"], "--seed"),
        (["--model", "gpt-oss-20b", "--prompts", "2000000000", "--rollouts", "64", "-o", "w"], "prompts x rollouts"),
    ],
)
def test_wrong_use_is_one_line_and_leaves_no_file(tmp_path, arguments, named):
    result = run("generate", *arguments, status=2, cwd=tmp_path)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert named in result.stderr
    assert os.listdir(tmp_path) == []


def test_an_interrupt_ends_the_work_and_leaves_no_file(tmp_path):
    command = [EXECUTABLE, "generate", "--model", "qwen3-30b-a3b", "--prompts", "100000", "-o", tmp_path / "window"]
    with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, encoding="utf-8") as process:
        deadline = time.monotonic() + 60
        while not os.listdir(tmp_path):  # the temporary file: generation has begun
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        message = process.stderr.read()
    assert process.returncode == 130
    assert len(message.splitlines()) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("lengths, cap", [("gsm8k", 8192), ("math", 8192), ("reasoning", 32768), ("agentic", 32768),
                                          ("mixed", 32768)])  # fmt: skip
def test_the_rows_of_generated_windows_are_certified(tmp_path, lengths, cap):
    # Rows depend on lengths alone, and those do not depend on the model.
    window, plan, cost = tmp_path / "w.safetensors", tmp_path / "plan.json", tmp_path / "cost.toml"
    cost.write_text(COST)
    run("generate", "--model", "mixtral-8x7b", "--lengths", lengths, "--seed", 1, "-o", window)
    arguments = ["plan", window, "-o", plan, "--dp", 8, "--ep", 8, "--cap", cap, "--cost", cost]
    report = run_json(*arguments)
    assert report["rows"] == report["rows_lower_bound"]
    assert report["rows_certified"]
    run("verify", window, plan)
