# SPDX-License-Identifier: Apache-2.0
"""routepack transfer: figures of a dry run against sums made here from the maps, refusals, and the self-test."""

import json
import math

import numpy as np
import pytest
import windowkit
from windowkit import run, run_json

LAYERS, EXPERTS, EP = 24, 32, 8
SLOTS = EXPERTS // EP
HIDDEN = WIDTH = 2880  # gpt-oss-20b
FC1, FC2 = 2 * WIDTH * HIDDEN, HIDDEN * WIDTH
STATES, STATE_BYTES, WEIGHT_BYTES, CANARY_BYTES, CHECKSUM_BYTES = 3, 4, 2, 16, 8
EXAMPLE = windowkit.REPOSITORY / "examples/windows/gptoss20b-mmlu-354.safetensors"
COST = windowkit.REPOSITORY / "examples/gptoss20b.toml"


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """The example window: a plan with experts in place, and the placement of one that moves them, also inside ranks."""
    folder = tmp_path_factory.mktemp("plans")
    common = ["plan", EXAMPLE, "--dp", 8, "--ep", EP, "--cap", 2048, "--cost", COST, "--effort", "fast"]
    run(*common, "--placement", "keep", "-o", folder / "before.json")
    run(*common, "--placement", "lpt", "-o", folder / "lpt.json")
    maps = maps_of(folder / "lpt.json")
    for slots in maps[::3]:
        slots[0], slots[1], slots[2] = slots[1], slots[2], slots[0]
    after = {"format": "routepack.placement/1", "ep": EP, "physical_to_logical": maps}
    (folder / "after.json").write_text(json.dumps(after), encoding="utf-8")
    return folder / "before.json", folder / "after.json"


def maps_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["physical_to_logical"]


def lane_ranges(edp, parameters, layers=LAYERS, slots=SLOTS):
    """Megatron's rules with one bucket: {(layer, slot, parameter): [(lane, begin, end)]} in elements of the parameter."""
    registered = [(l, p, i) for l in range(layers) for p in range(len(parameters)) for i in range(slots)]
    starts, at = {}, 0
    for l, p, i in reversed(registered):
        at = -(-at // 64) * 64
        starts[l, i, p] = at
        at += parameters[p]
    unit = math.lcm(edp, 128)
    lane = -(-at // unit) * unit // edp
    ranges = {}
    for (l, i, p), start in starts.items():
        cuts = []
        for k in range(edp):
            begin, end = max(start, k * lane), min(start + parameters[p], (k + 1) * lane)
            if begin < end:
                cuts.append((k, begin - start, end - start))
        ranges[l, i, p] = cuts
    return ranges


def expected(before, after, edp, route, ranks_per_node=None, parameters=(FC1, FC2)):
    """Bytes by class, of every rank, and staging, summed piece by piece from the maps."""
    ranges = lane_ranges(edp, parameters, len(before))
    ranks = EP * edp
    totals = dict.fromkeys(("across_ep", "within_edp", "across_both", "local", "overhead", "between_nodes"), 0)
    out, into, staging, messages = [0] * ranks, [0] * ranks, np.zeros((len(before), ranks), np.int64), 0

    def leg(l, source, target, size, canary=False):
        nonlocal messages
        staging[l, target] += -(-size // 64) * 64
        if source == target:
            totals["local"] += 0 if canary else size
            return
        messages += 1
        totals["overhead"] += CHECKSUM_BYTES + (size if canary else 0)
        if canary:
            return
        same_ep, same_lane = source % EP == target % EP, source // EP == target // EP
        totals["across_ep" if same_lane else "within_edp" if same_ep else "across_both"] += size
        if ranks_per_node and source // ranks_per_node != target // ranks_per_node:
            totals["between_nodes"] += size
        out[source] += size
        into[target] += size

    for l, (old, new) in enumerate(zip(before, after)):
        for e in range(EXPERTS):
            s, t = old.index(e), new.index(e)
            if s == t:
                continue
            p, q = s // SLOTS, t // SLOTS
            for lane in range(edp):
                for elements in parameters:
                    leg(l, lane * EP + p, lane * EP + q, WEIGHT_BYTES * elements)
                leg(l, lane * EP + p, lane * EP + q, CANARY_BYTES, canary=True)
            for parameter in range(len(parameters)):
                for a, begin_a, end_a in ranges[l, s % SLOTS, parameter]:
                    for b, begin_b, end_b in ranges[l, t % SLOTS, parameter]:
                        size = STATE_BYTES * (min(end_a, end_b) - max(begin_a, begin_b))
                        if size <= 0:
                            continue
                        source, between, target = a * EP + p, a * EP + q, b * EP + q
                        for _ in range(STATES):
                            if route == "direct" or a == b or p == q:
                                leg(l, source, target, size)
                            else:
                                leg(l, source, between, size)
                                leg(l, between, target, size)
    return totals, out, into, staging, messages


def spread(values):
    values = list(map(int, values))
    return {"min": min(values), "mean": pytest.approx(sum(values) / len(values)), "max": max(values),
            "max_rank": values.index(max(values))}


@pytest.mark.parametrize("edp, route", [(1, "two-hop"), (5, "two-hop"), (7, "two-hop"), (5, "direct"), (7, "direct")])
def test_bytes_are_those_summed_from_the_maps(plans, edp, route):
    report = run_json("transfer", *plans, "--model", "gpt-oss-20b", "--edp", edp, "--route", route, "--ranks-per-node", 4)
    before, after = map(maps_of, plans)
    totals, out, into, staging, messages = expected(before, after, edp, route, ranks_per_node=4)
    assert totals["across_ep"] > 0 and totals["local"] > 0 and totals["between_nodes"] > 0
    assert edp == 1 or totals["within_edp"] + totals["across_both"] > 0  # lanes that divided the layers would own whole ones
    assert (totals["across_both"] > 0) == (edp > 1 and route == "direct")
    assert report["bytes"] == totals
    assert report["messages"] == messages
    assert report["rank_bytes"] == {"out": spread(out), "in": spread(into)}
    assert report["staging_bytes"] == {"layer": spread(staging.max(axis=0)), "step": spread(staging.sum(axis=0))}


def test_shape_and_moves_are_those_of_the_plans(plans):
    report = run_json("transfer", *plans, "--model", "gpt-oss-20b", "--edp", 2)
    before, after = map(maps_of, plans)
    other_rank = sum(old.index(e) // SLOTS != new.index(e) // SLOTS for old, new in zip(before, after) for e in range(EXPERTS))
    other_slot = sum(old.index(e) != new.index(e) for old, new in zip(before, after) for e in range(EXPERTS)) - other_rank
    assert other_rank > 0
    assert report["moves"] == {"experts": other_rank, "fraction": pytest.approx(other_rank / (LAYERS * EXPERTS)),
                               "local": other_slot, "layers": sum(old != new for old, new in zip(before, after))}
    assert (report["from"], report["to"], report["state"]) == (str(plans[0]), str(plans[1]), "gpt-oss-20b")
    assert report["grid"] == {"ep": EP, "edp": 2, "ranks": 16}
    assert (report["layers"], report["experts"]) == (LAYERS, EXPERTS)
    assert report["expert_bytes"] == (2 * WEIGHT_BYTES + STATES * STATE_BYTES) * (FC1 + FC2)
    assert (report["route"], report["atomic"]) == ("two-hop", "layer")
    assert "seconds" not in report and "between_nodes" not in report["bytes"]


def test_expert_tensor_parallelism_moves_a_share(plans):
    whole, third = (run_json("transfer", *plans, "--model", "gpt-oss-20b", "--edp", 1, "--etp", n) for n in (1, 3))
    assert whole["bytes"]["across_ep"] == 3 * third["bytes"]["across_ep"]
    run("transfer", *plans, "--model", "gpt-oss-20b", "--edp", 1, "--etp", 7, status=2)


def test_small_buckets_move_other_ranges(plans):
    one, many = (run_json("transfer", *plans, "--model", "gpt-oss-20b", "--edp", 2, "--bucket-elements", n) for n in (0, 40_000_000))
    assert one["layout_fingerprint"] != many["layout_fingerprint"]
    assert one["bytes"]["across_ep"] == many["bytes"]["across_ep"]
    assert one["bytes"]["within_edp"] != many["bytes"]["within_edp"]


def test_a_move_to_the_same_placement_takes_nothing(plans):
    report = run_json("transfer", plans[1], plans[1], "--model", "gpt-oss-20b", "--edp", 2, "--link-gbytes", 10)
    assert set(report["bytes"].values()) == {0}
    assert (report["moves"]["experts"], report["moves"]["layers"], report["messages"], report["seconds"]) == (0, 0, 0, 0)


def one_swap(tmp_path, first, second):
    """Placement files of one layer on four ranks of two slots: in order, and with two slots exchanged."""
    maps = list(range(8)), list(range(8))
    maps[1][first], maps[1][second] = maps[1][second], maps[1][first]
    paths = tmp_path / "from.json", tmp_path / "to.json"
    for path, slots in zip(paths, maps):
        path.write_text(json.dumps({"format": "routepack.placement/1", "ep": 4, "physical_to_logical": [slots]}))
    return paths


def layout_file(tmp_path, **changes):
    """The worked example: hidden 16, width 12, fc1 384 and fc2 192 elements, on EP 4 x EDP 2 with two slots."""
    parameters = [{"name": "fc1", "shape": [24, 16]}, {"name": "fc2", "shape": [16, 12]}]
    tensors = [{"name": f"{p}.{kind}", "role": role, "type": type_, "spread": how, "parameter": p}
               for p in ("fc1", "fc2")
               for kind, role, type_, how in (("weight", "weight", "BF16", "replicated"), ("main", "master", "F32", "sharded"),
                                              ("exp_avg", "moment", "F32", "sharded"), ("exp_avg_sq", "moment", "F32", "sharded"))]
    document = {"format": "routepack.grid-layout/1", "ep": 4, "edp": 2, "layers": 1, "slots": 2,
                "parameters": parameters, "tensors": tensors, "megatron": {}, **changes}
    path = tmp_path / "grid.json"
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
    return path


def test_the_worked_example_by_hand(tmp_path):
    # Expert 0 goes from (rank 0, slot 0) to (rank 2, slot 1), expert 5 the other way. Of each, hop 1 takes 384 + 192
    # elements of three states and the weights once per lane; hop 2 takes fc1[0, 192) from one lane to the other.
    report = run_json("transfer", *one_swap(tmp_path, 0, 5), "--layout", layout_file(tmp_path))
    assert report["bytes"]["across_ep"] == 2 * (3 * 4 * (384 + 192) + 2 * 2 * (384 + 192))
    assert report["bytes"]["within_edp"] == 2 * 3 * 4 * 192
    assert report["bytes"]["across_both"] == report["bytes"]["local"] == 0
    assert report["rank_bytes"]["out"]["min"] == 0
    # Between equal local slots nothing changes its lane.
    same = run_json("transfer", *one_swap(tmp_path, 0, 4), "--layout", layout_file(tmp_path))
    assert same["bytes"]["within_edp"] == 0
    assert same["bytes"]["across_ep"] == report["bytes"]["across_ep"]
    # Inside a rank the part that changes its lane still has to travel.
    inside = run_json("transfer", *one_swap(tmp_path, 0, 1), "--layout", layout_file(tmp_path))
    assert (inside["moves"]["experts"], inside["moves"]["local"]) == (0, 2)
    assert inside["bytes"]["across_ep"] == 0
    assert inside["bytes"]["within_edp"] == 2 * 3 * 4 * 192
    assert inside["bytes"]["local"] == 2 * (3 * 4 * (192 + 192) + 2 * 2 * (384 + 192))


def test_the_time_is_that_of_the_busiest_rank_of_each_hop(tmp_path):
    # Expert 4 replaces expert 0 at equal slots: lane 0 holds fc2 of both, lane 1 fc1; both ways at once.
    arguments = ["transfer", *one_swap(tmp_path, 0, 4), "--layout", layout_file(tmp_path)]
    weights, fc1, canary = 2 * (384 + 192), 3 * 4 * 384, 16
    timed = run_json(*arguments, "--link-gbytes", 1)
    assert timed["seconds"] == pytest.approx((weights + fc1 + canary) / 1e9)
    copies = run_json(*arguments, "--link-gbytes", 1, "--memory-gbytes", 2)
    assert copies["seconds"] == pytest.approx((weights + fc1 + canary) / 1e9 + (weights + fc1 + canary) / 2e9)
    # Weights of two parameters, three states of fc1, the canary.
    slow = run_json(*arguments, "--link-gbytes", 1, "--message-us", 10)
    assert slow["seconds"] == pytest.approx(timed["seconds"] + 6 * 10e-6)
    # Ranks 0 and 2 are on different nodes.
    nodes = run_json(*arguments, "--link-gbytes", 1, "--ranks-per-node", 2, "--node-gbytes", 0.5)
    assert nodes["seconds"] == pytest.approx(2 * timed["seconds"])


def test_the_text_says_what_the_json_says(plans):
    arguments = ["transfer", *plans, "--model", "gpt-oss-20b", "--edp", 2, "--link-gbytes", 100, "--ranks-per-node", 8]
    text, report = run(*arguments).stdout, run_json(*arguments)
    for number in (*(report["bytes"][k] for k in ("across_ep", "within_edp", "between_nodes", "local", "overhead")),
                   report["messages"], report["moves"]["experts"]):
        assert f"{number:,}" in text
    assert "time at these rates" in text and "dry run" in text
    assert all(len(line) <= 100 for line in text.splitlines()[1:])


def refused(*arguments, words):
    result = run("transfer", *arguments, status=2)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr, result.stderr


def test_plans_of_different_shapes_are_refused(plans, tmp_path):
    other = tmp_path / "other.json"
    for ep, layers, experts in ((4, LAYERS, EXPERTS), (EP, 3, EXPERTS), (EP, LAYERS, 16)):
        other.write_text(json.dumps({"format": "routepack.placement/1", "ep": ep,
                                     "physical_to_logical": [list(range(experts))] * layers}))
        refused(plans[0], other, "--model", "gpt-oss-20b", "--edp", 2, words=[str(other), str(plans[0])])


@pytest.mark.parametrize("more, words", [
    ([], ["--model", "--layout"]),
    (["--model", "gpt-oss-20b"], ["--edp is missing"]),
    (["--model", "gpt-oss-21b", "--edp", 2], ["gpt-oss-21b", "gpt-oss-20b"]),
    (["--model", "gpt-oss-120b", "--edp", 2], ["gpt-oss-120b", "128", "32"]),
    (["--model", "gpt-oss-20b", "--edp", 0], ["--edp"]),
    (["--model", "gpt-oss-20b", "--edp", "two"], ["--edp", "two"]),
    (["--model", "gpt-oss-20b", "--edp", 5000], ["5000", "32767"]),
    (["--model", "gpt-oss-20b", "--edp", 2, "--route", "three-hop"], ["--route", "two-hop|direct"]),
    (["--model", "gpt-oss-20b", "--edp", 2, "--moves", 3], ["--moves", "--self-test"]),
    (["--model", "gpt-oss-20b", "--edp", 2, "--edp-gbytes", 3], ["--edp-gbytes", "--link-gbytes"]),
    (["--model", "gpt-oss-20b", "--edp", 2, "--link-gbytes", 3, "--node-gbytes", 3], ["--node-gbytes", "--ranks-per-node"]),
    (["--model", "gpt-oss-20b", "--edp", 2, "--link-gbytes", 0], ["--link-gbytes"]),
    (["--model", "gpt-oss-20b", "--edp", 2, "--self-test"], ["--self-test"]),
    (["--layout", "nowhere.json"], ["nowhere.json"]),
    (["--layout", "nowhere.json", "--model", "gpt-oss-20b"], ["--layout", "--model"]),
])  # fmt: skip
def test_wrong_use_is_named(plans, more, words):
    refused(*plans, *more, words=words)


def test_one_file_is_not_enough(plans):
    refused(plans[0], "--model", "gpt-oss-20b", "--edp", 2, words=["FROM", "TO"])
    refused(words=["FROM", "--self-test"])
    refused(plans[0], plans[1].parent / "missing.json", "--model", "gpt-oss-20b", "--edp", 2, words=["missing.json"])


def test_a_layout_of_another_grid_is_refused(plans, tmp_path):
    grid = layout_file(tmp_path)
    refused(*plans, "--layout", grid, words=[str(grid), str(plans[0])])
    refused(*one_swap(tmp_path, 0, 4), "--layout", grid, "--edp", 4, words=["--edp", "4", str(grid)])
    run("transfer", *one_swap(tmp_path, 0, 4), "--layout", grid, "--edp", 2)


@pytest.mark.parametrize("changes, word", [
    ({"format": "routepack.grid-layout/2"}, "version 2"),
    ({"ep": 1}, "ep"),
    ({"tensors": []}, "tensors"),
    ({"tensors": [{"name": "x", "role": "weights", "type": "BF16", "spread": "replicated", "elements": 4}]}, "weights"),
    ({"tensors": [{"name": "x", "role": "moment", "type": "F16", "spread": "sharded", "parameter": "fc1"}]}, "F16"),
    ({"megatron": None}, "megatron"),
    ({"trainer": {"fully_sharded": True}}, "FSDP"),
])  # fmt: skip
def test_a_bad_layout_file_is_refused(tmp_path, changes, word):
    grid = layout_file(tmp_path, **changes)
    refused(*one_swap(tmp_path, 0, 4), "--layout", grid, words=["grid.json", word])
    refused("--self-test", "--layout", grid, words=["grid.json", word])


SELF_TEST = ["transfer", "--self-test", "--timeout-ms", 60_000]


def self_test(*more):
    return run_json(*SELF_TEST, *more)


@pytest.mark.parametrize("more", [
    [], ["--route", "direct"], ["--atomic", "step"], ["--read-back"], ["--seed", 5, "--moves", 1],
    ["--ep", 2, "--edp", 1, "--experts", 2, "--layers", 1], ["--ep", 3, "--edp", 5, "--experts", 9, "--hidden", 17, "--width", 5],
    ["--bucket-elements", 1000], ["--etp", 4],
])  # fmt: skip
def test_the_self_test_verifies(more):
    report = self_test(*more)
    assert report["verified"] is True and "problem" not in report
    asked = dict(zip(more[::2], more[1::2])) if "--read-back" not in more else {}
    assert report["moves"] == int(asked.get("--moves", 4)) + 1
    assert report["backend"] == "threads"
    assert 0 < report["sent_bytes"] <= report["moved_bytes"]
    assert 0 < report["staging_bytes"] == report["staging_promised"]
    assert report["seconds"] > 0 and report["bare_seconds"] > 0 and report["gbytes_per_second"] > 0


def test_the_self_test_on_a_grid_of_eight_by_four():
    report = self_test("--ep", 8, "--edp", 4, "--experts", 16, "--layers", 2, "--moves", 2)
    assert report["verified"] is True
    assert report["grid"] == {"ep": 8, "edp": 4, "ranks": 32}
    assert report["state_bytes"] == 2 * 16 * report["expert_bytes"]


def test_the_self_test_moves_what_a_layout_file_lists(tmp_path):
    grid = layout_file(tmp_path)
    report = self_test("--layout", grid, "--moves", 3)
    assert report["verified"] is True
    assert report["grid"] == {"ep": 4, "edp": 2, "ranks": 8}
    assert (report["layers"], report["experts"]) == (1, 8)
    assert report["expert_bytes"] == (2 * 2 + 12) * (384 + 192)


def test_equal_seeds_move_equal_bytes():
    keys = ("moved_bytes", "sent_bytes", "staging_bytes", "state_bytes")
    first, second, other = (self_test("--seed", seed) for seed in (1, 1, 2))
    assert [first[k] for k in keys] == [second[k] for k in keys]
    assert first["moved_bytes"] != other["moved_bytes"]


def test_the_self_test_prints_a_verdict():
    text = run(*SELF_TEST).stdout
    assert "verified" in text and "of a bare copy" in text and "FAILED" not in text
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("more, words", [
    (["--ep", 1], ["--ep"]),
    (["--ep", 4, "--experts", 18], ["--experts", "18"]),
    (["--ep", 64, "--edp", 8, "--experts", 64], ["512", "256"]),
    (["--moves", 0], ["--moves"]),
    (["--timeout-ms", 0], ["--timeout-ms"]),
    (["--model", "gpt-oss-20b", "--hidden", 3], ["--hidden", "--model"]),
    (["--model", "unknown"], ["unknown", "gpt-oss-20b"]),
    (["--link-gbytes", 4], ["--link-gbytes", "--self-test"]),
    (["--width", 33, "--etp", 2], ["--etp"]),
    (["--experts", 4096, "--layers", 64, "--hidden", 65536, "--width", 8192], ["GB", "state", "--layers"]),
])  # fmt: skip
def test_a_self_test_that_cannot_be_is_refused(more, words):
    refused("--self-test", *more, words=words)


def test_the_manual_names_every_key(plans):
    section = (windowkit.REPOSITORY / "docs/cli.md").read_text(encoding="utf-8").split("## routepack transfer", 1)[1].split("\n## ", 1)[0]
    dry = run_json("transfer", *plans, "--model", "gpt-oss-20b", "--edp", 2, "--link-gbytes", 1, "--ranks-per-node", 8)
    for report in (dry, self_test("--moves", 1)):
        keys = set(report) | {inner for key in ("grid", "moves", "bytes") if isinstance(report.get(key), dict) for inner in report[key]}
        assert [key for key in sorted(keys) if f"`{key}`" not in section] == []
