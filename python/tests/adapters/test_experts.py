# SPDX-License-Identifier: Apache-2.0
"""Experts that move while a Megatron-Core trainer runs: planned by its scheduler's adapter, moved on all ranks,
trained on, saved, resumed, copied and exported. Four processes over gloo, EP 2 × EDP 2."""

from __future__ import annotations

import functools
import os
import pathlib
import pickle
import types
import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of all the packages for GPUs that Megatron does without
    pytest.importorskip("megatron.core", reason="no Megatron-Core: experts did NOT move in the real thing")

from transfer.processes import RankFailed, run_ranks  # noqa: E402

from routepack import InvalidInput, Placement  # noqa: E402
from routepack.adapters import Reason, experts, megatron  # noqa: E402
from routepack.transfer import relabel  # noqa: E402

from . import experts_jobs as jobs  # noqa: E402

RANKS, STEPS = 4, 3
CHECKOUT = bool(os.environ.get("ROUTEPACK_MEGATRON_CHECKOUT"))
LONG = bool(os.environ.get("ROUTEPACK_LONG"))
REAL = pytest.param(
    True,
    marks=pytest.mark.skipif(not CHECKOUT, reason="no checkout: the scheduler is one in the shape of Megatron's own"),
)


@functools.cache
def own(checkout: bool = False) -> list[Any]:
    """Without RoutePack."""
    return run_ranks(jobs.train, RANKS, jobs.VARIANT, "", STEPS, checkout)


@pytest.mark.parametrize("mode", ["placement", "both"])
@pytest.mark.parametrize("checkout", [False, REAL])
def test_training_with_moves_is_training_without_them(mode: str, checkout: bool) -> None:
    wanted, found = own(checkout), run_ranks(jobs.train, RANKS, jobs.VARIANT, mode, STEPS, checkout)
    home = np.broadcast_to(np.arange(jobs.VARIANT.experts), found[0]["maps"].shape)
    assert (found[0]["maps"] != home).any(), "nothing moved, so that nothing was tried"
    assert all(rank["epoch"] == STEPS and np.array_equal(rank["maps"], found[0]["maps"]) for rank in found)
    assert found[0]["metrics"]["routepack/fallback"] == 0.0 and found[0]["metrics"]["routepack/fallbacks"] == 0.0
    cells = [[step["cells"] for step in rank["steps"]] for rank in found]
    assert (cells == [[step["cells"] for step in rank["steps"]] for rank in wanted]) == (mode == "placement")
    for rank, twin in zip(found, wanted, strict=True):
        for step, other in zip(rank["steps"], twin["steps"], strict=True):
            assert step["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert rank["state"].keys() == twin["state"].keys()
        for name, value in twin["state"].items():
            if mode == "placement":  # the same cells: the same sums in the same order
                assert np.array_equal(rank["state"][name], value), name
            else:
                assert np.abs(rank["state"][name] - value).max() <= 2e-6 * np.abs(value).max(), name
        # An exporter sees the same weights under the same names.
        moved, stayed = rank["exported"], twin["exported"]
        assert moved.keys() == stayed.keys() and sum(".local_experts." in name for name in moved) == 2 * 8 * 2
        assert all(np.abs(moved[name] - stayed[name]).max() <= 2e-6 * np.abs(stayed[name]).max() for name in stayed)
        if mode == "placement":
            assert all(np.array_equal(moved[name], stayed[name]) for name in stayed)
    moments = next(value for name, value in own(checkout)[0]["state"].items() if name.endswith("exp_avg"))
    assert np.abs(moments).max() > 0.0


def test_a_reference_copy_gives_its_log_probs_under_every_later_placement() -> None:
    assert run_ranks(jobs.copies, RANKS, "")[0]["tags"] == ["ref", "actor"]


def test_a_copy_whose_dispatchers_do_not_follow_is_seen() -> None:
    with pytest.raises(RankFailed, match="the reference gives other log-probabilities"):
        run_ranks(jobs.copies, RANKS, "dispatchers")


CASES = [("dp_reshardable", True)]
if LONG:
    CASES += [("dp_reshardable", False), ("fully_reshardable", True), ("fully_reshardable", False)]


@pytest.mark.parametrize(("kind", "exact"), CASES)
def test_fresh_processes_go_on_from_a_checkpoint_after_moves(kind: str, exact: bool, tmp_path: pathlib.Path) -> None:
    folder, variant = str(tmp_path / "iter_0000002"), jobs.VARIANT if exact else jobs.HALF
    before = run_ranks(jobs.save, RANKS, folder, variant, kind, 2, STEPS)
    after = run_ranks(jobs.resume, RANKS, folder, variant, kind, 2, STEPS, True)
    assert before[0]["epoch"] == 2 and (before[0]["maps"] != np.arange(8)).any()
    for one, other in zip(after, before, strict=True):
        assert one["epoch"] == other["epoch"] and np.array_equal(one["maps"], other["maps"])
        assert one["steps"] == other["steps"]  # the same plans, the same losses to the last bit
        for name, value in other["state"].items():
            assert np.array_equal(one["state"][name], value), name
    if kind == "fully_reshardable":  # named by expert throughout: right under any placement
        home = run_ranks(jobs.resume, RANKS, folder, variant, kind, 2, 2, False)
        start = run_ranks(jobs.resume, RANKS, folder, variant, kind, 2, 2, True)
        assert home[0]["epoch"] == 0 and start[0]["epoch"] == 2
        assert all(np.array_equal(home[0]["state"][name], value) for name, value in start[0]["state"].items())
    elif exact:
        for blind, lost, left in run_ranks(jobs.refused, RANKS, folder, kind):
            assert "in the order of another placement" in blind and "restore(checkpoint)" in blind
            assert "found no file, wanted the placement" in lost
            assert "found no stamp" in left and "which an earlier save has left here" in left


def test_epochs_go_forward_and_a_model_nobody_attached_to_falls_back() -> None:
    said = run_ranks(jobs.moves, RANKS)
    assert all(some[:4] == said[0][:4] for some in said)
    assert "found another placement of epoch 3, wanted 4 or later" in said[0][0]
    assert "found epoch 2" in said[0][1] and "found epoch 1" in said[0][2] and "found [3, 8, 2]" in said[0][3]
    assert any("wanted megatron.attach(model_chunks, optimizer)" in text for text in said[0][4:])


def test_a_move_that_is_refused_leaves_a_step_on_its_layout_with_one_warning() -> None:
    ranks = run_ranks(jobs.stage_that_cannot, RANKS)
    assert all(rank["stayed"] and rank["moved"] and rank["cells"] for rank in ranks)
    assert ranks[0]["metrics"]["routepack/fallback"] == Reason.PLACEMENT
    assert len(ranks[0]["warnings"]) == 1 and "no bytes today" in ranks[0]["warnings"][0]
    assert not any(rank["warnings"] for rank in ranks[1:])


def test_a_layer_that_one_rank_could_not_write_ends_the_job_on_all_of_them() -> None:
    said = run_ranks(jobs.torn, RANKS)
    assert all("the device is gone" in text and text.startswith("the move failed in commit") for text in said), said


def test_stages_of_a_pipeline_move_their_own_layers_and_agree_on_what_holds() -> None:
    for rank in run_ranks(jobs.stages, RANKS):
        assert rank["numbers"] == [1, 2, 3, 4]
        assert rank["said"][0] == rank["said"][2] == "" and "no bytes today" in rank["said"][1]


def test_what_another_stage_says_reaches_a_driver_in_another_process() -> None:
    said = pickle.loads(pickle.dumps(experts.OtherStageFailed("no bytes today", True)))
    assert isinstance(said, experts.OtherStageFailed) and said.usable
    assert str(said) == "on another pipeline stage: no bytes today"


def test_attach_comes_after_install() -> None:
    with pytest.raises(InvalidInput, match="wanted megatron.install"):
        megatron.attach([], None)


def entry(key: str, shape: tuple[int, ...], offset: tuple[int, ...]) -> Any:
    return types.SimpleNamespace(key=key, global_shape=shape, global_offset=offset)


def test_sharded_names_say_the_expert_and_not_the_slot() -> None:
    table = Placement.from_maps(ranks=2, physical_to_logical=np.array([[2, 0, 3, 1]], dtype=np.int32))
    experts = table.physical_to_logical[0].tolist()
    made = relabel.relabelled(
        {
            "axis": entry("m.experts.experts.linear_fc2.weight", (5, 4, 8, 6), (1, 2, 0, 3)),
            "key": entry("m.experts.experts.2.linear_fc2.weight", (5, 8, 6), (1, 0, 0)),
        },
        "m.experts.", 1, experts,
    )  # fmt: skip
    assert made["axis"].global_offset == (1, 3, 0, 3) and made["axis"].key == "m.experts.experts.linear_fc2.weight"
    assert made["key"].key == "m.experts.experts.3.linear_fc2.weight" and made["key"].global_offset == (1, 0, 0)
    with pytest.raises(InvalidInput, match="wanted 4 on axis 1"):
        relabel.relabelled({"w": entry("m.experts.experts.w", (4, 6), (0, 0))}, "m.experts.", 1, experts)
    with pytest.raises(InvalidInput, match="found no method sharded_state_dict"):
        relabel.install(types.SimpleNamespace(), lambda: experts)


def test_slot_order_is_recognised_by_megatrons_keys() -> None:
    physical = [{"a": [entry("chained_1.optimizer.distributed.dp_group_idx_0.gbuf_idx_0", (1,), (0,))]}]
    assert relabel.in_slot_order(physical)
    assert not relabel.in_slot_order({"a": entry("optimizer.state.exp_avg.decoder.layers.w", (1,), (0,)), "b": 3})
