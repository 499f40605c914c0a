# SPDX-License-Identifier: Apache-2.0
"""Where experts go: budgets are kept, moves are listed as they are, and more freedom never costs."""
import itertools
import json

import numpy as np
import pytest

import windowkit
from refusals import assert_refused
from windowkit import run, run_json

LAYERS, EXPERTS, RANKS = 4, 16, 4
BYTES = 1000


@pytest.fixture
def skewed(small):
    """40 samples whose hot experts are neighbours; in the first layer one of them is more than a rank should have."""
    rng = np.random.default_rng(23)
    popularity = np.sort(rng.pareto(np.array([[1.5], [4.0], [4.0], [9.0]]), (LAYERS, EXPERTS)) + 0.2, axis=1)
    lengths = rng.integers(4, 24, 40, dtype=np.int32)
    counts = np.zeros((40, LAYERS, EXPERTS), np.uint16)
    for i, l in itertools.product(range(40), range(LAYERS)):
        weights = popularity[l] * rng.gamma(2.0, 1.0, EXPERTS)
        counts[i, l] = rng.multinomial(2 * lengths[i], weights / weights.sum())
    counts = np.minimum(counts, lengths[:, None, None]).astype(np.uint16)
    small.tensors = {"lengths": lengths, "counts": counts}
    small.window = small.write("skewed.safetensors", windowkit.safetensors_bytes(small.tensors, small.metadata))
    small.CAP, small.EP = 64, RANKS
    small.cost = small.write("cost.toml", "expert = 20.0\n" + windowkit.COST)
    return small


def identity():
    return [list(range(EXPERTS)) for _ in range(LAYERS)]


def traffic(before, after):
    """Experts that change rank, and how many come to and leave each rank."""
    per_rank = EXPERTS // RANKS
    into, out = [0] * RANKS, [0] * RANKS
    for old, new in zip(before, after):
        assert sorted(old) == sorted(new)
        for slot, expert in enumerate(new):
            was = old.index(expert) // per_rank
            if was != slot // per_rank:
                into[slot // per_rank] += 1
                out[was] += 1
    return sum(into), into, out


def cycled(before, cycles):
    """The maps that the cycles make: who is in slots[k] goes to slots[k + 1]."""
    after = [list(layer) for layer in before]
    for layer, of_layer in enumerate(cycles):
        for slots in of_layer:
            assert len(slots) == len(set(slots)) > 1
            for source, target in zip(slots, slots[1:] + slots[:1]):
                after[layer][target] = before[layer][source]
    return after


def peaks_over_mean(skewed, maps):
    """max/mean of the rank loads over the whole window, per layer."""
    demand = skewed.tensors["counts"].astype(np.int64).sum(axis=0)
    return [demand[l][maps[l]].reshape(RANKS, -1).sum(axis=1).max() * RANKS / demand[l].sum() for l in range(LAYERS)]


def current_file(skewed, seed):
    rng = np.random.default_rng(seed)
    maps = [[int(e) for e in rng.permutation(EXPERTS)] for _ in range(LAYERS)]
    return maps, skewed.write("current.json", {"format": "routepack.placement/1", "ep": RANKS, "physical_to_logical": maps})


@pytest.mark.parametrize("mode", ["keep", "lpt", "sticky", "joint"])
def test_every_placement_gives_a_plan_that_verify_accepts(skewed, mode):
    plan = skewed.make_plan("--placement", mode)
    assert plan["params"]["placement"] == mode
    assert (plan["moves"]["experts"] == 0) == (mode == "keep")
    assert run_json("verify", skewed.window, skewed.plan_path)["accepted"] is True


@pytest.mark.parametrize("mode", ["lpt", "sticky", "joint"])
def test_the_cycles_turn_the_current_placement_into_the_new_one(skewed, mode):
    before, path = current_file(skewed, 5)
    plan = skewed.make_plan("--placement", mode, "--moves", "free", "--current", path, "--expert-bytes", BYTES)
    moves = plan["moves"]
    assert cycled(before, moves["cycles"]) == plan["physical_to_logical"]
    experts, into, out = traffic(before, plan["physical_to_logical"])
    assert moves["experts"] == experts > 0
    assert moves["bytes"] == experts * BYTES
    assert moves["bytes_in"] == [n * BYTES for n in into]
    assert moves["bytes_out"] == [n * BYTES for n in out]
    assert 0 <= moves["same_index"] <= experts
    assert moves["between_nodes"] == 0  # one node


def test_moves_between_nodes_are_counted(skewed):
    plan = skewed.make_plan("--moves", "free", "--ranks-per-node", 2)
    between = 0
    for layer in plan["physical_to_logical"]:
        between += sum(expert // 8 != slot // 8 for slot, expert in enumerate(layer))
    assert plan["moves"]["between_nodes"] == between > 0


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("mode", ["sticky", "joint"])
def test_a_share_of_all_experts_is_kept(skewed, mode, share):
    before, path = current_file(skewed, 6)
    plan = skewed.make_plan("--placement", mode, "--moves", share, "--current", path)
    experts, _, _ = traffic(before, plan["physical_to_logical"])
    assert experts <= share * LAYERS * EXPERTS + 1e-9
    assert (experts == 0) == (share == 0)


@pytest.mark.parametrize("limit, experts", [("0B", 0), ("999B", 0), ("1000B", 1), ("2KB", 2), ("2047B", 2), ("3KiB", 3),
                                            ("0.004MB", 4), ("1GB", 10**6)])  # fmt: skip
@pytest.mark.parametrize("mode", ["sticky", "joint"])
def test_bytes_into_and_out_of_every_rank_are_kept(skewed, mode, limit, experts):
    before, path = current_file(skewed, 7)
    plan = skewed.make_plan("--placement", mode, "--moves", limit, "--expert-bytes", BYTES, "--current", path)
    _, into, out = traffic(before, plan["physical_to_logical"])
    assert max(into + out) <= experts
    assert (max(into + out) == 0) == (experts == 0)


def test_all_limits_hold_together(skewed):
    arguments = ["--expert-bytes", BYTES, "--moves", "0.2", "--moves", "3KB", "--moves", "price:0.001,0.002", "--moves", "free"]
    plan = skewed.make_plan(*arguments)
    experts, into, out = traffic(identity(), plan["physical_to_logical"])
    assert 0 < experts <= 0.2 * LAYERS * EXPERTS
    assert max(into + out) <= 3
    assert plan["params"]["moves"] == "0.2 3KB price:0.001,0.002 free"
    # The same in one text, on the command line and in a parameter file.
    text = "0.2 3KB price:0.001,0.002 free"
    quoted = skewed.make_plan("--expert-bytes", BYTES, "--moves", text)
    assert quoted["physical_to_logical"] == plan["physical_to_logical"]
    params = skewed.write("params.toml", f'moves = "{text}"\nexpert-bytes = {BYTES}\n')
    assert skewed.make_plan("--params", params)["physical_to_logical"] == plan["physical_to_logical"]


def test_a_value_of_moves_does_not_swallow_what_follows(skewed):
    arguments = skewed.plan_arguments()
    run("plan", "--moves", "0.1", *arguments[1:])
    assert json.loads(skewed.plan_path.read_text())["params"]["moves"] == "0.1"


def test_a_price_makes_moves_fewer(skewed):
    moved = [skewed.make_plan("--moves", moves)["moves"]["experts"] for moves in ("free", "price:1", "price:1000000")]
    assert moved[0] > moved[1] > moved[2] == 0


def test_a_dearer_price_between_nodes_keeps_experts_in_their_node(skewed):
    arguments = ["--ranks-per-node", 2, "--moves"]
    same = skewed.make_plan(*arguments, "price:0.1")["moves"]
    dear = skewed.make_plan(*arguments, "price:0.1,1000000")["moves"]
    assert same["between_nodes"] > 0
    assert dear["between_nodes"] == 0 < dear["experts"]


def test_without_a_word_about_moves_they_are_frugal(skewed):
    frugal = skewed.make_plan()
    free = skewed.make_plan("--moves", "free")
    assert 0 < frugal["moves"]["experts"] < free["moves"]["experts"]
    kept = skewed.make_plan("--placement", "keep")
    # Each moved expert has to bring 3 % of the bound / (L*E); the objective of packing alone may differ a little.
    saved = kept["score"]["max_shard"] - frugal["score"]["max_shard"]
    assert saved > 0.03 * frugal["bound"]["max_shard"] * frugal["moves"]["fraction"]


@pytest.mark.parametrize("moves", ["some", "-0.1", "1.1", "nan", "5%", "MB", "1.5", "0x10", "-3MB", "1e3MB", "200TB", "1..5MB",
                                   "9999999GB", "price:", "price:-1", "price:2,1", "price:1,2,3", "price:nan", "price:inf",
                                   "price:1e101", "free,0.1", "price:x"])  # fmt: skip
def test_a_bad_value_of_moves_is_refused_in_one_line(small, moves):
    assert_refused(small, [*small.plan_arguments(), f"--moves={moves}", "--expert-bytes", 5], 2, "moves", moves)


def test_a_limit_in_bytes_needs_bytes(small):
    assert_refused(small, [*small.plan_arguments(), "--moves", "2MB"], 2, "bytes")
    run(*small.plan_arguments(), "--moves", "2MB", "--expert-bytes", 1)
    run(*small.plan_arguments(), "--moves", "2MB", "--model", "gpt-oss-20b")


@pytest.mark.parametrize("moves", ["free", "0.3", "3KB", "price:0.01"])
def test_two_batches_list_the_first_and_keep_the_budget_together(skewed, moves):
    plan = skewed.make_plan("--two-batches", "--moves", moves, "--expert-bytes", BYTES)
    first = plan["first_batch"]["physical_to_logical"]
    sticky = skewed.make_plan("--placement", "sticky", "--moves", moves, "--expert-bytes", BYTES)
    if moves != "free":  # then it begins with LPT
        assert first == sticky["physical_to_logical"]
    one, into_one, out_one = traffic(identity(), first)
    two, into_two, out_two = traffic(first, plan["physical_to_logical"])
    assert one > 0
    if moves == "0.3":
        assert one + two <= 0.3 * LAYERS * EXPERTS
    if moves == "3KB":
        assert max(a + b for a, b in zip(into_one + out_one, into_two + out_two)) <= 3
    # The moves of the plan are those of both batches together.
    assert cycled(identity(), plan["moves"]["cycles"]) == plan["physical_to_logical"]
    assert "first_batch" not in skewed.make_plan("--moves", moves, "--expert-bytes", BYTES)


def two_windows(skewed):
    half = {name: tensor[:24] for name, tensor in skewed.tensors.items()}
    rest = {name: tensor[10:] for name, tensor in skewed.tensors.items()}
    return [skewed.write(f"{name}.safetensors", windowkit.safetensors_bytes(tensors, skewed.metadata))
            for name, tensors in (("one", half), ("two", rest))]  # fmt: skip


def test_one_placement_serves_all_windows(skewed):
    windows = two_windows(skewed)
    folder = skewed.folder / "plans"
    arguments = skewed.plan_arguments(window=windows[0], out=folder)
    report = run_json(*arguments[:2], windows[1], *arguments[2:], "--one-placement", "--placement-out", skewed.out / "p.json")
    plans = [json.loads((folder / f"{name}.plan.json").read_text()) for name in ("one", "two")]
    assert len(report["plans"]) == 2
    assert plans[0]["physical_to_logical"] == plans[1]["physical_to_logical"]
    assert plans[0]["moves"] == plans[1]["moves"] and plans[0]["moves"]["experts"] > 0
    assert json.loads((skewed.out / "p.json").read_text())["physical_to_logical"] == plans[0]["physical_to_logical"]
    for window, name in zip(windows, ("one", "two")):
        assert run_json("verify", window, folder / f"{name}.plan.json")["accepted"] is True
    # One after the other, the second moves on from the first.
    run(*arguments[:2], windows[1], *arguments[2:], "--moves", "free")
    apart = [json.loads((folder / f"{name}.plan.json").read_text()) for name in ("one", "two")]
    assert apart[0]["physical_to_logical"] != apart[1]["physical_to_logical"]


def test_one_window_without_a_layout_leaves_no_plan_of_any(skewed):
    windows = two_windows(skewed)
    few = {name: tensor[:3] for name, tensor in skewed.tensors.items()}
    windows.append(skewed.write("three.safetensors", windowkit.safetensors_bytes(few, skewed.metadata)))
    folder = skewed.folder / "plans"
    arguments = skewed.plan_arguments(window=windows[0], out=folder)
    run(*arguments[:2], *windows[1:], *arguments[2:], "--one-placement", status=3)
    assert list(folder.iterdir()) == []


def test_windows_of_another_shape_cannot_share_a_placement(skewed):
    other = windowkit.random_window(np.random.default_rng(1), samples=12, layers=2, experts=8, top_k=2)
    path = skewed.write("other.safetensors", windowkit.safetensors_bytes(other, skewed.metadata))
    folder = skewed.folder / "plans"
    arguments = skewed.plan_arguments(out=folder)
    result = run(*arguments[:2], path, *arguments[2:], "--one-placement", status=2)
    assert len(result.stderr.splitlines()) == 1 and "layers" in result.stderr


# What an expert weighs.


def test_a_preset_gives_the_bytes_of_an_expert(skewed):
    def bytes_of_one(*more):
        moves = skewed.make_plan("--model", "gpt-oss-20b", "--moves", "free", *more)["moves"]
        assert moves["bytes"] == sum(moves["bytes_in"]) == sum(moves["bytes_out"])
        return moves["bytes"] // moves["experts"]

    parameters = 3 * 2880 * 2880
    assert bytes_of_one() == 14 * parameters
    assert bytes_of_one("--optimizer-shards", 8) == 2 * parameters + 12 * parameters // 8
    assert bytes_of_one("--weight-bytes", 1, "--optimizer-bytes", 8) == 9 * parameters


def test_bytes_are_said_once_and_of_a_known_model(small):
    assert_refused(small, [*small.plan_arguments(), "--model", "gpt-oss-20b", "--expert-bytes", 5], 2, "expert_bytes", "model")
    assert_refused(small, [*small.plan_arguments(), "--model", "gpt-oss-21b"], 2, "gpt-oss-21b", "gpt-oss-20b")


# Sticky and joint.


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.1, 0.5])
def test_sticky_stops_within_its_epsilon_and_says_why_where_it_does_not(skewed, epsilon):
    plan = skewed.make_plan("--placement", "sticky", "--sticky-eps", epsilon, "--moves", "free")
    before = peaks_over_mean(skewed, identity())
    after = peaks_over_mean(skewed, plan["physical_to_logical"])
    assert len(plan["placing"]["layers"]) == LAYERS
    for l, reason in enumerate(plan["placing"]["layers"]):
        assert after[l] <= before[l]
        if reason == "balanced":
            assert before[l] > 1 + epsilon >= after[l] - 4 / skewed.tensors["counts"].sum()
        if reason == "kept":
            assert plan["physical_to_logical"][l] == identity()[l]
        if reason == "hot expert":
            assert after[l] > 1 + epsilon
        assert reason != "budget"
    if epsilon == 0.1:
        assert {"balanced", "hot expert"} <= set(plan["placing"]["layers"])
    assert plan["placing"]["swaps_needed"] <= plan["placing"]["sticky_swaps"]
    assert plan["moves"]["experts"] <= 2 * plan["placing"]["sticky_swaps"]
    assert plan["placing"]["row_aware_swaps"] == 0


def test_sticky_moves_nobody_when_experts_are_balanced(skewed):
    arguments = ["--placement", "sticky", "--sticky-eps", 0.05, "--moves", "free"]
    first = skewed.make_plan(*arguments)
    kept = skewed.write("first.json", first)
    second = skewed.make_plan(*arguments, "--current", kept)
    settled = [reason in ("balanced", "kept") for reason in first["placing"]["layers"]]
    assert any(settled)
    for l in range(LAYERS):
        if settled[l]:
            assert second["physical_to_logical"][l] == first["physical_to_logical"][l]
            assert second["placing"]["layers"][l] == "kept"


def test_sticky_moves_fewer_than_lpt_for_about_the_same_balance(skewed):
    arguments = ["--moves", "free", "--sticky-eps", 0.02]
    sticky = skewed.make_plan("--placement", "sticky", *arguments)
    lpt = skewed.make_plan("--placement", "lpt")
    assert 0 < sticky["moves"]["experts"] < lpt["moves"]["experts"]
    balance = zip(peaks_over_mean(skewed, sticky["physical_to_logical"]), peaks_over_mean(skewed, lpt["physical_to_logical"]))
    for by_sticky, by_lpt in balance:
        assert by_sticky <= 1.02 * by_lpt + 1e-9


def test_a_budget_is_named_where_it_is_the_limit(skewed):
    plan = skewed.make_plan("--placement", "sticky", "--moves", "0.04")
    assert "budget" in plan["placing"]["layers"]
    assert "budget" in run(*skewed.plan_arguments(), "--placement", "sticky", "--moves", "0.04").stdout


@pytest.mark.parametrize("moves", [None, "0.05", "0.2", "2KB", "price:0.5"])
@pytest.mark.parametrize("seed", [0, 1])
def test_joint_is_never_worse_than_sticky_with_the_same_budget_and_seed(skewed, moves, seed):
    arguments = ["--seed", seed, "--expert-bytes", BYTES, *(["--moves", moves] if moves else [])]
    joint = skewed.make_plan("--placement", "joint", *arguments)
    sticky = skewed.make_plan("--placement", "sticky", *arguments)
    assert joint["score"]["max_shard"] <= sticky["score"]["max_shard"] * (1 + 1e-12)


@pytest.mark.parametrize("sync", ["step", "row"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_joint_with_free_moves_is_never_worse_than_lpt(skewed, seed, sync):
    arguments = ["--seed", seed, "--moves", "free", "--sync", sync, "--tp", 2]
    joint = skewed.make_plan("--placement", "joint", *arguments)
    lpt = skewed.make_plan("--placement", "lpt", *arguments)
    assert joint["topology"]["shards"] == [[0, 1], [2, 3]]
    assert joint["score"]["max_shard"] <= lpt["score"]["max_shard"] * (1 + 1e-12)
    assert joint["moves"]["experts"] <= lpt["moves"]["experts"] + 2 * joint["placing"]["row_aware_swaps"]


@pytest.mark.parametrize("mode, moves", [("sticky", "0.2"), ("joint", "0.2"), ("joint", "free"), ("joint", "2KB")])
def test_the_placement_does_not_depend_on_threads(skewed, mode, moves):
    arguments = [*skewed.plan_arguments(), "--placement", mode, "--moves", moves, "--expert-bytes", BYTES]
    assert len({run_json(*arguments, "--threads", n)["hash"] for n in (1, 2, 3, 8)}) == 1


@pytest.mark.parametrize("mode", ["keep", "lpt"])
def test_a_budget_is_refused_where_the_placement_knows_none(skewed, mode):
    assert_refused(skewed, [*skewed.plan_arguments(), "--placement", mode, "--moves", "0.05"], 2, "exclude each other", mode)


@pytest.mark.parametrize("stray", ["price:0.01", "0.05", "200MB", "free"])
def test_a_value_of_moves_in_the_place_of_a_window_is_named(skewed, stray):
    assert_refused(skewed, [*skewed.plan_arguments(), stray], 2, stray, "--moves before each value")
