# SPDX-License-Identifier: Apache-2.0
"""examples/calibration/ultraep.py: the arithmetic of its shapes, and that no model sees its own points."""

from __future__ import annotations

import importlib.util
import math
import pathlib
import sys
from types import ModuleType

import pytest

pytest.importorskip("scipy")

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "examples" / "calibration"
MODELS = ("glm-4.5-air", "qwen3-235b-a22b", "deepseek-v3")


@pytest.fixture(scope="module")
def ultraep() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ultraep", FOLDER / "ultraep.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ultraep"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_activated_parameters_are_the_published_ones(ultraep):
    # Model cards: 12B without embedding and head (0.62B), 22B with both (0.62B each), 37B with the head.
    published = dict(zip(MODELS, (12e9 + 0.62e9, 22e9 - 0.62e9, 37e9)))
    for model, activated in published.items():
        work = ultraep.work_of(model, sequence=0)
        assert math.isclose((work.dense + work.routed) / 6.0, activated, rel_tol=0.02)


def test_work_by_hand(ultraep):
    work = ultraep.work_of("qwen3-235b-a22b", sequence=100)
    # 94 layers; queries and output 4096x8192 each, keys and values 4096x512 each, router 4096x128; head 4096x151936.
    weights = 94 * (2 * 33_554_432 + 2 * 2_097_152 + 524_288) + 622_329_856
    # 64 heads of 128: 2*8192 for scores and 2*8192 for sums, over 50 keys, three times with the backward pass.
    assert work.dense == 6.0 * weights + 94 * 3 * (2 * 8192 + 2 * 8192) * 50
    assert work.routed == 6.0 * 94 * 8 * 3 * 4096 * 1536 and work.exchanged == 94 * 8 * 4 * 4096 * 2


def test_the_rule_is_the_line_through_all_points(ultraep):
    a, b = ultraep.line_through(ultraep.points(8192))
    assert round(a, 3) == 1.064 and round(b, 2) == 0.68
    assert math.isclose(ultraep.rule(1.5), a + 0.5 * b, abs_tol=0.005)


def test_times_follow_from_the_figure(ultraep):
    points = ultraep.points(8192)
    assert len(points) == 18 and [p.model for p in points[::6]] == list(MODELS)
    for point in points:
        flop = point.work.dense + point.work.routed
        assert 300e12 < flop / point.seconds < 800e12 and 1.0 <= point.rho < 3.0


def test_a_model_is_predicted_from_the_others(ultraep, monkeypatch):
    seen = []
    fitted = ultraep.fitted
    monkeypatch.setattr(ultraep, "fitted", lambda known: (seen.append({p.model for p in known}), fitted(known))[1])
    rotations = list(ultraep.rotations(8192))
    assert [model for model, *_ in rotations] == list(MODELS)
    assert seen == [set(MODELS) - {model} for model in MODELS]
    for model, found, refused, lines in rotations:
        assert len(lines) == 6 and found.records == 12 and {point.model for point, _ in lines} == {model}
        assert "all_to_all.token" in found.left_out and "as wide as the value" in refused
        for point, errors in lines:
            by_hand = found.seconds("stage.dense.token") * point.work.dense / 1e9
            by_hand += found.seconds("expert.token") * point.work.routed / 1e9 * point.rho
            assert math.isclose(errors.time, by_hand / point.seconds - 1.0, abs_tol=1e-9)
            assert abs(errors.time) < 0.5
