# SPDX-License-Identifier: Apache-2.0
"""The rules of a schedule: sound ones pass, and every way to break one is seen."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routepack import Constraints
from routepack.adapters import RULES, BadSchedule, Rules, check_placement, check_schedule, check_settings

Cells = list[list[list[int]]]


@st.composite
def sound(draw: st.DrawFn) -> tuple[Cells, list[int], Rules]:
    rows, slots = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 4), min_size=rows * slots, max_size=rows * slots))
    ids = draw(st.permutations(range(sum(sizes))))
    lengths = draw(st.lists(st.integers(1, 40), min_size=len(ids), max_size=len(ids)))
    multiple = draw(st.sampled_from([1, 4]))
    left = iter(ids)
    cells = [[[next(left) for _ in range(sizes[r * slots + d])] for d in range(slots)] for r in range(rows)]
    fullest = max(sum(-(-lengths[i] // multiple) * multiple for i in cell) for row in cells for cell in row)
    return cells, lengths, Rules(slots=slots, capacity=fullest, sample_multiple=multiple)


@given(sound())
def test_sound_schedules_pass_and_one_token_less_does_not(case: tuple[Cells, list[int], Rules]) -> None:
    cells, lengths, rules = case
    check_schedule(cells, lengths, rules)
    with pytest.raises(BadSchedule, match="aligned tokens"):
        check_schedule(cells, lengths, dataclasses.replace(rules, capacity=rules.capacity - 1))


@given(sound(), st.data())
def test_a_sample_moved_doubled_or_lost_is_seen(case: tuple[Cells, list[int], Rules], data: st.DataObject) -> None:
    cells, lengths, rules = case
    rules = dataclasses.replace(rules, capacity=10**6)
    broken = copy.deepcopy(cells)
    row = data.draw(st.sampled_from(broken))
    cell = data.draw(st.sampled_from(row))
    how = data.draw(st.sampled_from(["double", "lose", "unknown", "negative", "word", "drop a cell", "add a cell"]))
    if how == "double":
        cell.append(cell[0])
    elif how == "lose":
        cell.pop()
    elif how in ("unknown", "negative", "word"):
        cell[0] = {"unknown": len(lengths), "negative": -1, "word": "0"}[how]  # type: ignore[call-overload]
    elif how == "drop a cell":
        row.remove(cell)
    else:
        row.append([])
    with pytest.raises(BadSchedule):
        check_schedule(broken, lengths, rules)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_multiple": 2}, "rows: found 1, wanted 1 or more and a multiple of 2"),
        ({"min_rows": 2}, "rows: found 1, wanted 2 or more"),
        ({"max_samples_per_cell": 1}, "row 0, slot 1: found 2 samples, wanted at most 1"),
        ({"equal_count": True}, "slot 1: found 2 samples, wanted 1"),
        ({"cell_multiple": 16}, "row 0, slot 0: found 16 aligned tokens, wanted at most 12"),
        ({"slots": 3}, "row 0: found 2 cells, wanted 3"),
    ],
)
def test_what_a_framework_asks_for_is_kept(change: dict[str, Any], message: str) -> None:
    rules = Rules(slots=2, capacity=12)
    check_schedule([[[0], [1, 2]]], [10, 5, 6], rules)
    with pytest.raises(BadSchedule, match=message):
        check_schedule([[[0], [1, 2]]], [10, 5, 6], dataclasses.replace(rules, **change))


def test_a_long_sample_may_be_alone_and_no_more() -> None:
    rules = Rules.of(Constraints(oversized="own-cell"), slots=1, capacity=5)
    check_schedule([[[0]], [[1]]], [9, 2], rules)
    with pytest.raises(BadSchedule, match="found 11 aligned tokens"):
        check_schedule([[[0, 1]]], [9, 2], rules)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([[0, 1, 2, 3]], "found shape"),
        ([[0, 1, 2, 3], [0, 1, 1, 3]], "layer 1: wanted every expert once"),
        ([[0, 1, 2, 3], [3, 2, 1, 0]], "layer 1: found experts that move"),
    ],
)
def test_a_placement_has_every_expert_once_and_may_have_to_stay(found: list[list[int]], message: str) -> None:
    here = np.tile(np.arange(4, dtype=np.int32), (2, 1))
    check_placement(here, layers=2, experts=4, unchanged=here)
    with pytest.raises(BadSchedule, match=message):
        check_placement(np.array(found, dtype=np.int32), layers=2, experts=4, unchanged=here)


HARMLESS: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "no coefficient": lambda: {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.0},
    "no balancing": lambda: {"moe_router_load_balancing_type": "none", "moe_aux_loss_coeff": 0.01},
    "per token": lambda: {"moe_z_loss_coeff": 0.001, "calculate_per_token_loss": True},
}


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("framework", ["slime", "nemo_rl", "megatron", "verl", "areal"])
def test_harmless_settings_are_not_mentioned(framework: str, name: str) -> None:
    assert check_settings(framework, HARMLESS[name]()) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.setting)
def test_every_rule_finds_what_it_says_and_can_be_accepted(rule: Any) -> None:
    config: dict[str, Any] = {}
    for condition in rule.when:
        value: Any = {"is": condition.value, "in": (condition.value or (0,))[0], "positive": 0.5, "set": "x.y"}.get(
            condition.test
        )
        where = config
        *folders, name = condition.path.split(".")
        for folder in folders:
            where = where.setdefault(folder, {})
        where[name] = value
    for framework in rule.frameworks:
        found = [finding for finding in check_settings(framework, config) if finding.setting == rule.setting]
        assert len(found) == 1 and found[0].refuse == rule.refuse and rule.why in found[0].text
        assert all(f.setting != rule.setting for f in check_settings(framework, config, allow=[rule.setting]))
    assert check_settings("another", config) == []
