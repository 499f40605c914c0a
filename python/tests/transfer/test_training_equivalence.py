# SPDX-License-Identifier: Apache-2.0
"""The model computes the same, wherever its experts lie: EP 4 × EDP 2, eight processes over gloo, trained on text."""

from __future__ import annotations

import os
import re
import shutil

import pytest

pytest.importorskip("torch")

from routepack import Placement  # noqa: E402
from routepack.transfer import ExpertNames, placement_path, save_placement  # noqa: E402

from . import jobs  # noqa: E402
from .moe import Shape  # noqa: E402
from .processes import RankFailed, run_ranks  # noqa: E402
from .trainer import state_tensors  # noqa: E402

FAST, EXACT = Shape(), Shape(exact=True)
MOVERS = sorted(jobs.MOVERS)
# The oracle is the tests' own way of moving: the long ones need it only where something is wrong with the engine.
OFTEN = bool(os.environ.get("ROUTEPACK_LONG"))
LONG = MOVERS if OFTEN else ["engine"]
STEPS = 52


@pytest.mark.parametrize("mover", MOVERS)
@pytest.mark.parametrize("shape", [FAST, EXACT], ids=["bf16", "fp32"])
def test_state_comes_through_moves_to_the_last_bit_and_in_place(shape, mover):
    held = run_ranks(jobs.moves_only, shape.ranks, shape, mover, 6)
    assert held[0] == held[1] != held[shape.ep], "equal on all EP ranks, different on the lanes"
    assert len({0, *held[0]}) > 3, "lanes should cut through tensors, and hold none of some"


@pytest.mark.parametrize("mover", LONG)
@pytest.mark.parametrize("shape, steps", [(FAST, STEPS), (EXACT, STEPS if OFTEN else 12)], ids=["bf16", "fp32"])
def test_every_step_does_what_the_unpermuted_model_does(shape, steps, mover, record_property):
    report = run_ranks(jobs.stepwise, shape.ranks, shape, mover, steps)[0]
    record_property("report", report)
    figures = [f"{name} {value:.4g}" for name, value in report.items() if isinstance(value, float)]
    print(f"\n{mover}: {', '.join(figures)}")
    assert len(report["losses"]) == steps
    assert sum(report["losses"][-5:]) < 0.8 * sum(report["losses"][:5]) or steps < STEPS, "nothing was learnt"
    if mover == "engine":
        # 3/4 of the experts leave their rank: weights on both lanes, moments and masters once, or twice with hop 2.
        sizes = {t.name: t.elements * t.dtype.itemsize for t in state_tensors(shape) if t.spread != "equal"}
        most = 2.0 * shape.layers * shape.experts * sum(sizes.values())
        assert 0.3 * most < report["sent_bytes"] < most


@pytest.mark.parametrize("mover", LONG)
def test_a_free_run_agrees_to_the_last_bit(mover):
    reports = run_ranks(jobs.free_run, EXACT.ranks, EXACT, mover, STEPS)
    assert len({report["digest"] for report in reports}) == 1
    losses = [sum(report["losses"][step] for report in reports) for step in range(STEPS)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5]), "nothing was learnt"


@pytest.mark.parametrize("mover", LONG)
def test_a_checkpoint_resumes_under_another_placement(mover, tmp_path):
    whole = run_ranks(jobs.train_and_save, EXACT.ranks, EXACT, mover, 16, 8, str(tmp_path))
    assert len(set(whole)) == 1
    assert run_ranks(jobs.resume, EXACT.ranks, EXACT, mover, 16, 8, str(tmp_path)) == whole
    forgotten = run_ranks(jobs.resume, EXACT.ranks, EXACT, mover, 16, 8, str(tmp_path), True)
    assert forgotten[0] != whole[0], "a checkpoint in the order of slots needs its placement"


def test_a_checkpoint_without_its_placement_is_refused(tmp_path):
    run_ranks(jobs.train_and_save, EXACT.ranks, EXACT, "oracle", 3, 1, str(tmp_path))
    path = placement_path(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    save_placement(other, jobs.random_placement(EXACT, 70, 0), 1)
    shutil.copy(placement_path(other), path)
    with pytest.raises(RankFailed, match="PlacementMismatch.*as in the checkpoint"):
        run_ranks(jobs.resume, EXACT.ranks, EXACT, "oracle", 3, 1, str(tmp_path))
    path.unlink()
    with pytest.raises(RankFailed, match="PlacementMismatch.*found no file"):
        run_ranks(jobs.resume, EXACT.ranks, EXACT, "oracle", 3, 1, str(tmp_path))


@pytest.mark.parametrize("mover", LONG)
def test_exported_names_say_which_expert_it_is(mover):
    ranks = run_ranks(jobs.exported, FAST.ranks, FAST, mover)
    placement = Placement.from_maps(ranks=FAST.ep, physical_to_logical=ranks[0]["maps"])
    names = ExpertNames(placement)
    found = {}
    for rank in ranks:
        state = names.to_logical_state(rank["physical"], ep_rank=rank["ep_rank"])
        assert names.to_physical_state(state, ep_rank=rank["ep_rank"]).keys() == rank["physical"].keys()
        found.update(state)
    assert len(found) == FAST.layers * FAST.experts * 2
    for name, stack in ranks[0]["logical"].items():
        for layer in range(FAST.layers):
            for e in range(FAST.experts):
                given = found[f"decoder.layers.{layer}.mlp.experts.linear_{name}.weight{e}"]
                assert (given.reshape(-1) == stack[layer, e]).all()


REFUSED = {
    "a gradient": r"rank 2: layer 0, local slot \d: the gradient of «fc2» is not zero",
    "steps": "the optimizer steps differs between ranks",
    "the epoch asked for": "the epoch asked for is 6 on rank . and 7 on rank 1",
    "maps": "the placement asked for differs between ranks",
    "offloaded": "rank 1: .*(offloaded|host|released)",
    "a stale epoch": "the epoch now is 4 on rank 2 and 5 on rank .",
    "the layout": "the layout differs between ranks",
    "the placement before": "the placement before differs between ranks|its canary says",
    "staging": "rank 2: the move needs .* bytes of staging, the limit is 100",
}


def test_what_one_rank_does_wrong_is_refused_by_all_and_moves_nothing():
    said = run_ranks(jobs.refusals, EXACT.ranks, EXACT)
    assert said[0].keys() == REFUSED.keys()
    for what, pattern in REFUSED.items():
        assert {ranks[what] for ranks in said} == {said[0][what]}, "all ranks give the same reason"
        assert re.search(pattern, said[0][what]), said[0][what]


@pytest.mark.parametrize("mover", LONG)
@pytest.mark.parametrize("sabotage", jobs.SABOTAGE)
@pytest.mark.parametrize("job, shape", [(jobs.stepwise, FAST), (jobs.free_run, EXACT)], ids=["stepwise", "free-run"])
def test_sabotage_is_seen(job, shape, sabotage, mover):
    with pytest.raises(RankFailed) as failure:
        run_ranks(job, shape.ranks, shape, mover, 4, sabotage)
    assert failure.value.kind == "Mismatch"
    # Moments only show in what the optimizer does; the rest in what experts compute.
    what = "exp_avg|weight|master" if sabotage == "moments" else "outputs|losses"
    failure.match(rf"step \d.*: .*({what})")
