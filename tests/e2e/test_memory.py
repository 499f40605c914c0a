# SPDX-License-Identifier: Apache-2.0
"""A large window is used where it lies in the page cache, and made in pieces: no second copy."""
import os
import subprocess
import sys

import pytest

from windowkit import EXECUTABLE, REPOSITORY, run_json

# A process starts with the peak of the one that started it, so a bare interpreter starts it and not the test runner.
MEASURE = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(usage.ru_maxrss * 1024, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def peak_bytes(*arguments):
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", MEASURE, EXECUTABLE, *map(str, arguments)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, timeout=300, encoding="utf-8",
    )
    return int(result.stderr.splitlines()[-1])


@pytest.mark.memory
def test_inspect_of_a_large_window_stays_below_1_3_times_the_file(tmp_path):
    path = tmp_path / "big.safetensors"
    maker = REPOSITORY / "tests/support/make_big_window.py"
    subprocess.run([sys.executable, maker, path, "8192", "23", "128", "8"], check=True)
    size = os.path.getsize(path)
    assert size > 8192 * 23 * 128 * 2
    assert peak_bytes("inspect", path) < 1.3 * size + 20e6
    report = run_json("inspect", path)
    assert (report["samples"], report["layers"], report["experts"], report["top_k"]) == (8192, 23, 128, 8)


@pytest.mark.memory
def test_generate_streams_a_window_larger_than_its_memory(tmp_path):
    path = tmp_path / "window.safetensors"
    peak = peak_bytes(
        "generate", "--model", "qwen3-30b-a3b", "--rollouts", "4", "--answers-only", "--prompts", "2000", "-o", path
    )
    size = os.path.getsize(path)
    assert size > 2000 * 4 * 48 * 128 * 2
    assert peak < size / 2
