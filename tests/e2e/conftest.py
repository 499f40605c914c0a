# SPDX-License-Identifier: Apache-2.0
import json
import os
import signal

import numpy as np
import pytest

import windowkit


def pytest_configure(config):
    # What a shell starts with & ignores Ctrl-C, and so would every process of the tests.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "memory: measures or limits memory, which a sanitizer multiplies")


@pytest.fixture(autouse=True, scope="session")
def the_executable_is_there():
    assert os.access(windowkit.EXECUTABLE, os.X_OK), f"{windowkit.EXECUTABLE}: build it, or set ROUTEPACK_BIN"


class Small:
    """A valid window of 12 samples, 2 layers and 8 experts, a cost file, and a directory for outputs."""

    DP, EP, CAP = 4, 4, 40

    def __init__(self, folder):
        self.folder = folder
        self.tensors = windowkit.random_window(
            np.random.default_rng(7), samples=12, layers=2, experts=8, top_k=2, max_length=20
        )
        self.tensors["counts"] = self.tensors["counts"].astype(np.uint16)
        self.tensors["lengths"][:] += 1
        self.metadata = windowkit.metadata(2)
        self.out = folder / "out"
        self.out.mkdir()
        self.window = self.write("window.safetensors", windowkit.safetensors_bytes(self.tensors, self.metadata))
        self.cost = self.write("cost.toml", windowkit.COST)
        self.plan_path = self.out / "plan.json"

    def write(self, name, contents):
        path = self.folder / name
        if isinstance(contents, bytes):
            path.write_bytes(contents)
        else:
            path.write_text(contents if isinstance(contents, str) else json.dumps(contents), encoding="utf-8")
        return path

    def plan_arguments(self, window=None, out=None, cost=None, cap=None, dp=None, ep=None):
        return [
            *("plan", window or self.window, "-o", out or self.plan_path, "--cost", cost or self.cost),
            *("--cap", cap or self.CAP, "--dp", dp or self.DP, "--ep", ep or self.EP),
        ]

    def make_plan(self, *more):
        """Plans the window and returns the plan file as a dictionary."""
        windowkit.run(*self.plan_arguments(), *more)
        return json.loads(self.plan_path.read_text(encoding="utf-8"))


@pytest.fixture
def small(tmp_path):
    return Small(tmp_path)
