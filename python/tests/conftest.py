# SPDX-License-Identifier: Apache-2.0
"""Shared objects of the Python tests."""

from __future__ import annotations

import csv
import lzma
import os
import pathlib
import signal
from typing import Any

import hypothesis
import numpy as np
import numpy.typing as npt
import pytest

# What a shell starts with & ignores Ctrl-C, and so would every process of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The same cases on every run; HYPOTHESIS_PROFILE=long looks further.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60, database=None)
hypothesis.settings.register_profile("long", deadline=None, max_examples=2000, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT


@pytest.fixture(scope="session")
def gptoss_routes() -> list[tuple[int, npt.NDArray[np.uint8]]]:
    """Real answers: (sample of the example window, ids [tokens, 24, 4])."""
    folder = ROOT / "tests" / "data" / "routes"
    ids = np.frombuffer(lzma.decompress((folder / "gptoss20b-tokens.u8.xz").read_bytes()), dtype=np.uint8)
    ids = ids.reshape(-1, 24, 4)
    answers, begin = [], 0
    with open(folder / "gptoss20b-tokens.csv", encoding="utf-8") as lines:
        for line in csv.DictReader(lines):
            end = begin + int(line["tokens"])
            answers.append((int(line["sample"]), ids[begin:end]))
            begin = end
    assert begin == len(ids) and len(answers) == 24
    return answers


@pytest.fixture(scope="session")
def olmoe_routes() -> npt.NDArray[np.uint8]:
    """One real decode: ids [299, 16, 8] of 64 experts."""
    path = ROOT / "tests" / "data" / "routes" / "olmoe-trace.u8.xz"
    return np.frombuffer(lzma.decompress(path.read_bytes()), dtype=np.uint8).reshape(299, 16, 8)


def bincount(ids: npt.NDArray[Any], experts: int) -> npt.NDArray[np.int64]:
    """What numpy counts: [layers, experts]."""
    return np.stack([np.bincount(ids[:, layer].ravel(), minlength=experts) for layer in range(ids.shape[1])])
