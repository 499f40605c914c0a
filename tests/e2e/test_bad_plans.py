# SPDX-License-Identifier: Apache-2.0
"""Plans and placements that are malformed, for another window, or break a rule."""
import numpy as np
import pytest

import windowkit
from refusals import assert_refused, with_tensors
from windowkit import run

# Plans.


@pytest.mark.parametrize("contents, word", [
    ("", ""), ("{", ""), ("[]", ""), ("{}", "format"), ('{"format": "routepack.plan/2"}', "2"),
    ('{"format": 3}', "format"), ("[" * 100_000, ""), ('{"format": "routepack.plan/1"}', ""), ("\xff\xfe", ""),
])  # fmt: skip
def test_plan_that_is_malformed(small, contents, word):
    path = small.write("bad.json", contents.encode("latin-1"))
    for command in ("score", "verify"):
        assert_refused(small, [command, small.window, path], 2, "bad.json", word)


@pytest.mark.parametrize("key, value", [
    ("capacity", "many"), ("capacity", 0), ("capacity", -1), ("capacity", 1.5), ("capacity", 10**30), ("rows", "2"),
    ("layout", 3), ("layout", [[["a"]]]), ("layout", [[[10**12]]]), ("physical_to_logical", {}),
    ("physical_to_logical", [[0.5]]), ("cost", {"stages": [{"name": "a", "alpha": -1.0, "beta": 0.0}]}),
    ("cost", 4), ("topology", {"ep": 4}), ("topology", {"ep": "4", "shards": [[0]]}), ("sync", "never"),
])  # fmt: skip
def test_plan_with_a_value_of_the_wrong_kind(small, key, value):
    plan = {**small.make_plan(), key: value}
    path = small.write("bad.json", plan)
    assert_refused(small, ["score", small.window, path], 2, "bad.json", ("alpha", "shards", "ep", key))


@pytest.mark.parametrize("key", ["format", "topology", "capacity", "rows", "physical_to_logical", "layout", "cost"])
def test_plan_without_a_key_that_scoring_needs(small, key):
    plan = small.make_plan()
    del plan[key]
    path = small.write("bad.json", plan)
    for command in ("score", "verify"):
        assert_refused(small, [command, small.window, path], 2, "bad.json", key)


def test_plan_for_another_window(small):
    plan = small.write("good.json", small.make_plan())
    small.tensors["lengths"][0] += 1
    other = small.write("other.safetensors", with_tensors(small))
    for command in ("score", "verify"):
        assert_refused(small, [command, other, plan], 2, "good.json", "window")


def drop_a_sample(plan):
    fullest = max((cell for row in plan["layout"] for cell in row), key=len)
    assert len(fullest) > 1
    fullest.pop()


def repeat_a_sample(plan):
    plan["layout"][0][0].append(plan["layout"][0][1][0])


def empty_a_cell(plan):
    plan["layout"][0][1] += plan["layout"][0][0]
    plan["layout"][0][0] = []


def repeat_an_expert(plan):
    plan["physical_to_logical"][0][0] = plan["physical_to_logical"][0][1]


def forget_a_slot(plan):
    plan["layout"][0].pop()


def name_a_sample_that_is_not_there(plan):
    plan["layout"][0][0][0] = 12


def break_the_shards(plan):
    plan["topology"]["shards"] = [[0, 1, 2, 2]]


BREAKS_SHAPE = [drop_a_sample, repeat_a_sample, empty_a_cell, repeat_an_expert, forget_a_slot,
                name_a_sample_that_is_not_there, break_the_shards]  # fmt: skip


def lower_the_cap(plan):
    plan["capacity"] = 19  # two rows of four cells cannot hold the 159 tokens


def say_another_score(plan):
    plan["score"]["total"] *= 1 + 1e-9


def say_another_metric(plan):
    plan["metrics"]["tail_peak"] += 1


def say_another_bound(plan):
    plan["bound"]["max_shard"] *= 1.01


def say_other_moves(plan):
    plan["moves"]["fraction"] = 0.987


def say_other_rows(plan):
    plan["rows"] += 1


def ask_for_more_rows(plan):
    plan["constraints"]["min_rows"] = plan["rows"] + 1


def ask_for_another_multiple_of_rows(plan):
    plan["constraints"]["row_multiple"] = plan["rows"] + 1


def ask_for_single_samples(plan):
    plan["constraints"]["max_samples_per_cell"] = 1


def ask_for_few_rank_tokens(plan):
    plan["constraints"]["max_rank_tokens"] = plan["metrics"]["tail_peak"] - 1


def ask_for_large_samples(plan):
    plan["constraints"]["sample_multiple"] = plan["capacity"] + 1


def ask_for_large_cells(plan):
    plan["constraints"]["cell_multiple"] = plan["capacity"] + 1


BREAKS_RULE = [lower_the_cap, say_another_score, say_another_metric, say_another_bound, say_other_moves, say_other_rows,
               ask_for_more_rows, ask_for_another_multiple_of_rows, ask_for_single_samples, ask_for_few_rank_tokens,
               ask_for_large_samples, ask_for_large_cells]  # fmt: skip


@pytest.mark.parametrize("change", BREAKS_SHAPE + BREAKS_RULE, ids=lambda change: change.__name__)
def test_verify_refuses_a_plan_that_breaks_a_rule(small, change):
    plan = small.make_plan()
    for row in plan["layout"]:
        assert all(row)
    change(plan)
    path = small.write("broken.json", plan)
    verdict = windowkit.run_json("verify", small.window, path, status=4)
    assert verdict["accepted"] is False
    assert verdict["violations"]
    for violation in verdict["violations"]:
        assert violation["rule"] and violation["message"] and "\n" not in violation["message"]
    run("verify", small.window, path, status=4)


@pytest.mark.parametrize("change", BREAKS_SHAPE, ids=lambda change: change.__name__)
def test_score_refuses_a_plan_that_breaks_a_rule(small, change):
    plan = small.make_plan()
    change(plan)
    path = small.write("broken.json", plan)
    assert_refused(small, ["score", small.window, path], 2, "broken.json")


def test_verify_refuses_split_atomic_groups(small):
    plan = small.make_plan()
    first, second = plan["layout"][0][0][0], plan["layout"][0][1][0]
    atomic = np.full(12, -1, np.int32)
    atomic[[first, second]] = 0
    window = small.write("atomic.safetensors", with_tensors(small, atomic=atomic))
    del plan["window"]
    verdict = windowkit.run_json("verify", window, small.write("broken.json", plan), status=4)
    assert any("atomic" in violation["rule"] + violation["message"] for violation in verdict["violations"])


@pytest.mark.parametrize("contents, word", [
    ("{}", ""), ("not json", ""), ('{"format": "routepack.placement/1", "ep": 4, "physical_to_logical": [[0,0]]}', ""),
    ('{"format": "routepack.placement/1", "ep": 4, "layers": 1, "physical_to_logical": [[0,1,2,3,4,5,6,7]]}', "layer"),
    ('{"format": "routepack.window/1", "ep": 4, "physical_to_logical": []}', "format"),
])  # fmt: skip
def test_current_placement_that_does_not_fit(small, contents, word):
    path = small.write("current.json", contents)
    assert_refused(small, [*small.plan_arguments(), "--current", path], 2, "current.json", word)
