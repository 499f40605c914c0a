# SPDX-License-Identifier: Apache-2.0
"""What the records cannot tell is refused: which terms, why, and what to measure."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")

from calibrate.synthetic import CAP, STAGES, TRUE, World  # noqa: E402
from routepack import InvalidInput  # noqa: E402
from routepack.calibrate import DenseStage, Problem, Record, Unidentifiable, calibrate  # noqa: E402


def refused(records: list[Record], **given: object) -> tuple[Problem, ...]:
    with pytest.raises(Unidentifiable) as caught:
        calibrate(records, **{"capacity": CAP, "stages": STAGES, **given})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value) and str(caught.value).startswith("the records cannot identify ")
    return caught.value.problems


def test_all_that_is_open_is_said_at_once():
    problems = refused(without_kind("step", "all_to_all"))
    assert [p.terms for p in problems] == [("fixed.step",), ("all_to_all.fixed", "fixed.row")]


def without_kind(*kinds: str, noise: float = 0.0) -> list[Record]:
    return [record for record in World(1, noise=noise).records() if record.kind not in kinds]


def test_a_term_that_no_record_touches():
    (problem,) = refused(without_kind("step"))
    assert problem.terms == ("fixed.step",) and problem.reason == "no record depends on it"
    assert problem.remedy.startswith("step records") and "--without fixed.step" in problem.remedy
    found = calibrate(without_kind("step"), capacity=CAP, stages=STAGES, without=["fixed.step"])
    assert found.left_out == ("fixed.step",) and found.seconds("fixed.step") == 0.0


def test_the_unit_cannot_be_left_out_and_the_remedy_does_not_say_so():
    problems = {p.terms: p for p in refused(without_kind("row", "experts"))}
    assert "--without" not in problems[("expert.token",)].remedy and "--without" in problems[("fixed.row",)].remedy
    with pytest.raises(InvalidInput, match=r"^without: found expert\.token, wanted another term"):
        calibrate(without_kind(), capacity=CAP, stages=STAGES, without=["expert.token"])
    with pytest.raises(InvalidInput, match=r"^without: found expert\.token"):
        calibrate(without_kind(), capacity=CAP, stages=STAGES, without=["expert"])


def test_constants_of_rows_that_all_have_as_many_layers():
    problems = refused(without_kind("all_to_all"))
    (problem,) = [p for p in problems if "all_to_all.fixed" in p.terms]
    assert problem.terms == ("all_to_all.fixed", "fixed.row")
    assert "are constant in all 24 records" in problem.reason and "condition number" in problem.reason
    assert problem.remedy.startswith("all_to_all records")


def test_two_stages_with_the_same_regressors():
    (problem,) = refused(without_kind("attention"))
    assert problem.terms == ("stage.sliding.token", "stage.sliding.pair", "stage.full.token", "stage.full.pair")
    assert problem.reason == "their stages have the same cells in all 24 rows, so that nothing tells which is which"
    assert "attention records of stage sliding" in problem.remedy and "stage full" in problem.remedy
    (problem,) = refused(without_kind("attention"), without=["stage.sliding.pair", "stage.full.pair"])
    assert problem.terms == ("stage.sliding.token", "stage.full.token")


def test_records_of_one_stage_tell_it_from_another():
    one = [record for record in World(1).records(rows=60) if record.stage != "full"]
    found = calibrate(one, capacity=CAP, stages=STAGES)
    assert abs(found.seconds("stage.full.pair") / TRUE["stage.full.pair"] - 1.0) < 1e-9


def test_a_stage_whose_cells_all_hold_samples_of_one_length():
    records = [
        replace(record, squares=(128.0 * record.tokens[0],), tokens=(128.0 * (record.tokens[0] // 128 + 1),))
        if record.kind == "attention" and record.tokens
        else record
        for record in without_kind("row")
    ]
    records = [replace(r, squares=(128.0 * r.tokens[0],)) if r.kind == "attention" and r.tokens else r for r in records]
    problems = refused(records, without=["fixed.row"])
    assert [p.terms for p in problems] == [
        ("stage.sliding.token", "stage.sliding.pair"),
        ("stage.full.token", "stage.full.pair"),
    ]
    assert "keep one ratio in all 24 records" in problems[0].reason and "many short samples" in problems[0].remedy


def test_one_cell_measured_again_and_again():
    same = [
        replace(record, tokens=(512.0,), squares=(512.0 * 300,)) if record.kind == "attention" else record
        for record in without_kind("row")
    ]
    assert "are constant in all" in refused(same, without=["fixed.row"])[0].reason


def test_a_term_that_follows_from_two_others():
    records = [r for r in World(1, true={**TRUE, "expert.active": 0.0}).records() if r.kind == "experts"]
    rows = [
        Record(
            "row",
            4e-6 * a + 5e-7 * b + 2e-7 * (2 * a + 3 * b),
            tokens=(float(a),),
            squares=(float(a * a),),
            expert_peak=float(b),
            active_experts=1.0,
            layers=3,
            all_to_all_peak=float(2 * a + 3 * b),
        )
        for a, b in ((x, y) for x in (10, 70, 500) for y in (20, 90, 400))
    ]
    left_out = ["stage.full.pair", "all_to_all.fixed", "fixed", "expert.active"]
    (problem,) = refused(rows, stages=[DenseStage("full", 3)], without=left_out)
    assert problem.terms == ("expert.token", "all_to_all.token", "stage.full.token")
    assert "follow from one another" in problem.reason
    calibrate([*rows, *records], capacity=CAP, stages=[DenseStage("full", 3)], without=left_out, keep_wide=True)


def test_fewer_records_than_terms():
    records = World(1).records(rows=2, attention=2, experts=1, exchanges=1, steps=1)
    (problem,) = refused(records)
    assert problem.reason == "found 9 records for 10 terms, wanted at least 11" and set(problem.terms) == set(TRUE)


def test_as_many_records_as_terms_leave_nothing_to_judge_by():
    records = World(1).records(rows=2, attention=2, experts=2, exchanges=1, steps=1)
    (problem,) = refused(records)
    assert problem.reason == "found 10 records for 10 terms, wanted at least 11"


def test_one_record_that_nothing_checks():
    (problem,) = refused(World(1, noise=0.01).records(steps=1))
    assert problem.terms == ("fixed.step",) and problem.reason == "one record alone decides it (step 118)"


@pytest.mark.parametrize("factor", [1e6, 100.0, 10.0, 0.1, 0.01, 1e-5])
@pytest.mark.parametrize("kind", ["attention", "experts", "all_to_all", "row", "step"])
def test_a_time_that_is_far_off_is_named_whichever_way_and_however_far(kind: str, factor: float):
    records = World(1, noise=0.01).records()
    at = [k for k, record in enumerate(records) if record.kind == kind][3]
    records[at] = replace(records[at], seconds=records[at].seconds * factor)
    with pytest.raises(InvalidInput) as caught:
        calibrate(records, capacity=CAP, stages=STAGES)
    start = "found times that differ from the fit by more than 4 times: "
    assert str(caught.value).startswith(f"{start}{kind} {at} ({records[at].seconds:.4g} s, fit ")
    assert str(caught.value).endswith(" s); wanted none: measure them again or remove them")
    assert str(caught.value).count(" s, fit ") == 1
    calibrate(records[:at] + records[at + 1 :], capacity=CAP, stages=STAGES)


def test_many_times_that_are_far_off_are_counted():
    records = World(1, noise=0.01).records(experts=200)
    far = [k for k, record in enumerate(records) if record.kind == "experts"][:25]
    for k in far:
        records[k] = replace(records[k], seconds=1e4 * records[k].seconds)
    with pytest.raises(InvalidInput, match="by more than 4 times: .*, 5 more; wanted none") as caught:
        calibrate(records, capacity=CAP, stages=STAGES)
    assert str(caught.value).count(" s, fit ") == 20 and "\n" not in str(caught.value)


def test_an_interval_as_wide_as_the_value():
    records = [*World(1, noise=0.02).records(steps=0), Record("step", 0.045), Record("step", 0.055)]
    problems = refused(records)
    assert [p.terms for p in problems] == [("fixed.step",)]
    assert "as wide as the value" in problems[0].reason and problems[0].remedy == "step records, three or more"
    kept = calibrate(records, capacity=CAP, stages=STAGES, keep_wide=True)
    assert any(note.startswith("Uncertain: fixed.step: ") for note in kept.notes) and kept.seconds("fixed.step") > 0.0


def test_noise_that_drowns_a_term():
    problems = refused(World(4, noise=0.5).records(rows=4, attention=4, experts=4, exchanges=4, steps=4))
    assert problems and all("as wide as the value" in p.reason for p in problems)


def test_a_term_near_zero_that_could_not_matter_is_kept():
    found = calibrate(World(1, noise=0.02).records(), capacity=CAP, stages=STAGES)
    pair = next(term for term in found.terms if term.name == "stage.sliding.pair")
    assert pair.low == 0.0 < pair.high and pair.high - pair.low >= pair.value


def test_a_routed_token_that_takes_no_time_is_no_unit():
    records = World(1, true={**TRUE, "expert.token": 0.0}).records()
    with pytest.raises(InvalidInput, match=r"^expert\.token: found 0 s as the best fit"):
        calibrate(records, capacity=CAP, stages=STAGES, keep_wide=True)


def test_records_that_lose_all_their_terms():
    with pytest.raises(InvalidInput, match=r"^step 118: values: found only zeros for the terms that are kept"):
        calibrate(World(1).records(), capacity=CAP, stages=STAGES, without=["fixed.step"])


def hide_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed."""
    monkeypatch.setattr("builtins.__import__", refusing(ModuleNotFoundError("No module named 'scipy'", name="scipy")))


def refusing(raised: BaseException) -> Any:
    """An __import__ to which scipy raises."""
    load = builtins.__import__

    def wrapped(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("scipy"):
            raise raised
        return load(name, *rest, **named)

    return wrapped


Change = Callable[[Record], Record]


@pytest.mark.parametrize(
    "kind, change, message",
    [
        ("row", lambda r: replace(r, tokens=None, squares=None), "tokens: found none, wanted Σt of every cell"),
        (
            "row",
            lambda r: replace(r, squares=None),
            "squares: found none, wanted Σt² of every cell, or stage.sliding.pair",
        ),
        (
            "row",
            lambda r: replace(r, expert_loads=None),
            "loads: found none, wanted loads, expert_loads or expert_peak",
        ),
        (
            "row",
            lambda r: replace(r, expert_loads=None, loads=np.ones((3, 4))),
            "active_experts: found none, wanted expert_loads or active_experts, or expert.active left out",
        ),
        (
            "row",
            lambda r: replace(r, expert_loads=None, expert_peak=9.0, active_experts=4.0),
            "all_to_all_peak: found none, wanted sent and received, or all_to_all_peak, or all_to_all.token left out",
        ),
        (
            "row",
            lambda r: replace(r, tokens=r.tokens[:3], squares=r.squares[:3]),
            "tokens: found 3 cells over 4 ranks, so that nobody knows who sends",
        ),
        (
            "row",
            lambda r: replace(r, expert_loads=None, expert_peak=9.0, active_experts=4.0, all_to_all_peak=9.0),
            "layers: found none, wanted the number of MoE layers, or all_to_all.fixed left out",
        ),
        (
            "attention",
            lambda r: replace(r, stage="kda"),
            "stage: found 'kda', wanted one that was declared: sliding, full",
        ),
    ],
)
def test_a_record_that_lacks_what_a_kept_term_needs(kind: str, change: Change, message: str):
    records = World(1).records()
    at = next(k for k, record in enumerate(records) if record.kind == kind)
    records[at] = change(records[at])
    with pytest.raises(InvalidInput) as caught:
        calibrate(records, capacity=CAP, stages=STAGES)
    assert str(caught.value).startswith(f"{records[at].where}: {message}")


def test_loads_of_ranks_cannot_be_rounded_to_tiles():
    records = World(1).records()
    records[0] = replace(records[0], expert_loads=None, loads=np.ones((3, 4)), active_experts=4.0)
    calibrate(records, capacity=CAP, stages=STAGES, keep_wide=True)
    with pytest.raises(
        InvalidInput, match="^row 0: loads: found loads of ranks, wanted expert_loads, to round them up"
    ):
        calibrate(records, capacity=CAP, stages=STAGES, tile=64)


def test_stages_without_a_declaration_are_those_of_the_records():
    records = World(1).records()
    whole = [replace(r, layers=2, seconds=2 * r.seconds) if r.stage == "sliding" else r for r in records]
    found = calibrate(whole, capacity=CAP)
    assert found.stages == (DenseStage("sliding", 2), DenseStage("full", 1))
    assert found.notes[0].startswith("Stages and their decoder layers, from the records: sliding (2), full (1)")
    mixed = [replace(r, layers=k % 2 + 1) if r.stage == "sliding" else r for k, r in enumerate(records)]
    with pytest.raises(
        InvalidInput, match=r"layers: found \d, wanted \d as in attention 24, or --stage sliding:LAYERS"
    ):
        calibrate(mixed, capacity=CAP)
    rows = [r for r in records if r.kind == "row"]
    with pytest.raises(Unidentifiable) as caught:
        calibrate(rows, capacity=CAP)
    assert "fixed.row" in str(caught.value)
    found = calibrate([*rows, *World(2).records(rows=0, attention=0, steps=0)], capacity=CAP, without=["fixed.step"],
                      keep_wide=True)  # fmt: skip
    assert found.stages == (DenseStage("dense", 3),)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"capacity": 0}, "capacity: found 0, wanted 1 to 94906265 tokens"),
        ({"capacity": 94906266}, "capacity: found 94906266, wanted 1 to 94906265 tokens"),
        ({"tile": 0}, "tile: found 0, wanted"),
        ({"tile": 2**20 + 1}, "tile: found 1048577, wanted 1 to 1048576 tokens"),
        ({"stages": [STAGES[0], DenseStage("full", 10001)]}, "stage 'full': found 10001 layers, wanted at most 10000"),
        ({"stages": [STAGES[0], DenseStage("full", 9999)]}, "stages: found 10001 layers, wanted at most 10000"),
        ({"confidence": 1.0}, "confidence: found 1.0, wanted a number between 0 and 1"),
        ({"confidence": float("nan")}, "confidence: found nan, wanted"),
        ({"without": ["expert.tokens"]}, "without: found 'expert.tokens', wanted one of expert.token, expert.active"),
        ({"stages": [*STAGES, DenseStage("full", 2)]}, "stage 'full': found twice, wanted every name once"),
        ({"stages": [DenseStage("full", 0)]}, "stage 'full': found 0 layers, wanted 1 or more"),
    ],
)
def test_options_out_of_range(given: dict[str, object], message: str):
    with pytest.raises(InvalidInput) as caught:
        calibrate(World(1).records(), **{"capacity": CAP, "stages": STAGES, **given})  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)
    with pytest.raises(InvalidInput, match="^records: found none"):
        calibrate([], capacity=1)


def test_a_missing_scipy_is_one_line(monkeypatch):
    hide_scipy(monkeypatch)
    with pytest.raises(InvalidInput, match=r"^calibrate: found no scipy, wanted it for the fit: pip install"):
        calibrate(World(1).records(), capacity=CAP, stages=STAGES)
