# SPDX-License-Identifier: Apache-2.0
"""Names of slots and of experts, and placements beside checkpoints."""

from __future__ import annotations

import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from routepack import InvalidInput, Placement
from routepack.transfer import (
    ExpertNames,
    PlacementMismatch,
    by_expert,
    load_placement,
    placement_path,
    save_placement,
    stack_to_logical,
    stack_to_physical,
    stamp,
    to_identity,
)

# Layer 3: slots 0 to 5 hold experts 4 0 5 1 3 2; layer 5: 1 0 3 2 5 4. Two ranks of three slots.
MAPS = np.array([[4, 0, 5, 1, 3, 2], [1, 0, 3, 2, 5, 4]], dtype=np.int32)
PLACEMENT = Placement.from_maps(ranks=2, physical_to_logical=MAPS)
NAMES = ExpertNames(PLACEMENT, layers=[3, 5])


@st.composite
def placements(draw) -> Placement:
    ranks, slots, layers = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    maps = [draw(st.permutations(range(ranks * slots))) for _ in range(layers)]
    return Placement.from_maps(ranks=ranks, physical_to_logical=np.array(maps, dtype=np.int32))


@pytest.mark.parametrize(
    "physical, logical",
    [
        ("decoder.layers.3.mlp.experts.linear_fc1.weight2", "decoder.layers.3.mlp.experts.linear_fc1.weight2"),
        ("decoder.layers.3.mlp.experts.linear_fc1.weight0", "decoder.layers.3.mlp.experts.linear_fc1.weight1"),
        ("decoder.layers.5.mlp.experts.linear_fc2.weight2", "decoder.layers.5.mlp.experts.linear_fc2.weight4"),
        ("decoder.layers.3.mlp.experts.linear_fc2.bias1", "decoder.layers.3.mlp.experts.linear_fc2.bias3"),
        ("decoder.layers.3.mlp.experts.linear_fc1._extra_state1", "decoder.layers.3.mlp.experts.linear_fc1._extra_state3"),
        ("layers.3.mlp.experts.linear_fc1.to_wrap.weight0", "layers.3.mlp.experts.linear_fc1.to_wrap.weight1"),
        (
            "module.decoder.layers.5.mlp.experts.local_experts.0.linear_fc1.weight",
            "module.decoder.layers.5.mlp.experts.local_experts.2.linear_fc1.weight",
        ),
        (
            "optimizer.state.exp_avg.decoder.layers.3.mlp.experts.linear_fc1.weight1",
            "optimizer.state.exp_avg.decoder.layers.3.mlp.experts.linear_fc1.weight3",
        ),
    ],
)
def test_names_of_megatron_count_the_slots_of_a_rank(physical, logical):
    assert NAMES.to_logical(physical, ep_rank=1) == logical
    assert NAMES.to_physical(logical, ep_rank=1) == physical


@pytest.mark.parametrize(
    "physical, logical",
    [
        ("model.layers.3.mlp.experts.0.gate_proj.weight", "model.layers.3.mlp.experts.4.gate_proj.weight"),
        ("model.layers.5.block_sparse_moe.experts.3.w1.weight", "model.layers.5.block_sparse_moe.experts.2.w1.weight"),
    ],
)
def test_names_of_hugging_face_count_over_all_ranks(physical, logical):
    assert NAMES.to_logical(physical) == logical
    assert NAMES.to_physical(logical) == physical


@pytest.mark.parametrize(
    "name",
    [
        "decoder.layers.3.mlp.router.weight",
        "decoder.layers.3.mlp.router.expert_bias",
        "decoder.layers.3.mlp.shared_experts.linear_fc1.weight",
        "model.layers.3.mlp.shared_experts.0.gate_proj.weight",
        "decoder.layers.0.mlp.linear_fc1.weight",
        "mtp.layers.0.transformer_layer.mlp.experts.linear_fc1.weight0",
        "decoder.layers.3.mlp.experts.linear_fc1._extra_state",
        "embedding.word_embeddings.weight",
    ],
)
def test_other_names_stay(name):
    assert NAMES.to_logical(name, ep_rank=0) == name
    assert NAMES.to_physical(name, ep_rank=0) == name
    assert NAMES.holds(name, ep_rank=0)


def test_layers_without_placement_stay_when_that_is_said():
    name = "model.layers.61.mlp.experts.3.up_proj.weight"
    with pytest.raises(InvalidInput, match=r"found layer 61, wanted one that the placement covers: \[3, 5\]"):
        NAMES.to_logical(name)
    assert ExpertNames(PLACEMENT, layers=[3, 5], unplaced=[61]).to_logical(name) == name


@pytest.mark.parametrize(
    "name, ep_rank, message",
    [
        ("decoder.layers.3.mlp.experts.linear_fc1.weight3", 0, "found slot 3, wanted 0 to 2 on a rank"),
        ("decoder.layers.3.mlp.experts.linear_fc1.weight0", None, "found EP rank None, wanted 0 to 1"),
        ("decoder.layers.3.mlp.experts.linear_fc1.weight0", 2, "found EP rank 2, wanted 0 to 1"),
        ("model.layers.3.mlp.experts.6.gate_proj.weight", None, "found slot 6, wanted 0 to 5"),
        ("mlp.experts.1.gate_proj.weight", None, "found no layer number"),
        ("decoder.layers.3.mlp.experts.linear_fc1.weight", 0, "a tensor of several experts"),
        ("decoder.layers.3.mlp.experts.weight1", 0, "a tensor of several experts"),
        ("model.layers.3.mlp.experts.gate_up_proj", 0, "a tensor of several experts"),
    ],
)
def test_names_that_cannot_be_meant_are_refused(name, ep_rank, message):
    with pytest.raises(InvalidInput, match=message) as error:
        NAMES.to_logical(name, ep_rank=ep_rank)
    assert name in str(error.value)


def test_an_expert_of_another_rank_has_no_name_here():
    name = "decoder.layers.3.mlp.experts.linear_fc1.weight4"
    with pytest.raises(InvalidInput, match="found EP rank 1, wanted 0, which holds expert 4"):
        NAMES.to_physical(name, ep_rank=1)
    assert NAMES.holds(name, ep_rank=0) and not NAMES.holds(name, ep_rank=1)
    with pytest.raises(InvalidInput, match="found expert 6"):
        NAMES.holds("decoder.layers.3.mlp.experts.linear_fc1.weight6", ep_rank=0)


@pytest.mark.parametrize("layers, message", [([1], "found 1 numbers, wanted 2"), ([4, 4], "found 4 twice")])
def test_layer_numbers_are_one_per_row(layers, message):
    with pytest.raises(InvalidInput, match=message):
        ExpertNames(PLACEMENT, layers=layers)
    with pytest.raises(InvalidInput, match="found 3 twice"):
        ExpertNames(PLACEMENT, layers=[3, 5], unplaced=[3])


@hypothesis.given(placements())
def test_the_ranks_together_export_every_expert_once_and_read_it_back(placement):
    names = ExpertNames(placement)
    slots = placement.experts // placement.ranks
    exported: dict[str, int] = {}
    for p in range(placement.ranks):
        state = {"router.weight": -1}
        for layer, row in enumerate(placement.physical_to_logical.tolist()):
            for i in range(slots):
                state[f"layers.{layer}.experts.linear_fc1.weight{i}"] = row[p * slots + i]
            assert names.experts_of(layer, p) == row[p * slots : (p + 1) * slots]
        exported.update(names.to_logical_state(state, ep_rank=p))
        assert names.to_physical_state(names.to_logical_state(state, ep_rank=p), ep_rank=p) == state
    wanted = {"router.weight": -1}
    for layer in range(placement.layers):
        wanted.update({f"layers.{layer}.experts.linear_fc1.weight{e}": e for e in range(placement.experts)})
    assert exported == wanted
    parts = [names.to_physical_state(exported, ep_rank=p) for p in range(placement.ranks)]
    assert sum(len(part) for part in parts) == placement.layers * placement.experts + placement.ranks


@hypothesis.given(placements())
def test_stacks_come_back_and_agree_with_names(placement):
    names = ExpertNames(placement)
    for row, experts in enumerate(placement.physical_to_logical.tolist()):
        physical = np.array(experts)[:, None] * 10 + np.arange(2)
        logical = stack_to_logical(physical, placement, row)
        assert logical[:, 0].tolist() == [10 * e for e in range(placement.experts)]
        assert (stack_to_physical(logical, placement, row) == physical).all()
        for v, value in enumerate(physical[:, 0]):
            assert names.to_logical(f"layers.{row}.experts.{v}.w1") == f"layers.{row}.experts.{value // 10}.w1"


def test_stacks_of_another_size_are_refused():
    with pytest.raises(InvalidInput, match=r"found shape \[3\], wanted \[6, …\]"):
        stack_to_logical(np.zeros(3), PLACEMENT, 0)
    with pytest.raises(InvalidInput, match="found row 2, wanted 0 to 1"):
        stack_to_logical(np.zeros(6), PLACEMENT, 2)


def test_torch_stacks_are_new_tensors():
    torch = pytest.importorskip("torch")
    stack = torch.arange(12.0).view(6, 2)
    logical = stack_to_logical(stack, PLACEMENT, 0)
    assert logical[:, 0].tolist() == [2.0, 6.0, 10.0, 8.0, 0.0, 4.0]
    logical.zero_()
    assert stack.sum() == 66.0


def test_two_names_never_become_one():
    clash = ["layers.3.experts.0.w1", "model.layers.3.experts.0.w1"]
    assert len(set(NAMES.logical_map(clash).values())) == 2
    state = {"layers.3.experts.linear_fc1.weight0": 1, "layers.3.experts.linear_fc1.weight1": 2}
    assert NAMES.to_logical_state(state, ep_rank=0) == {
        "layers.3.experts.linear_fc1.weight4": 1,
        "layers.3.experts.linear_fc1.weight0": 2,
    }


@pytest.mark.parametrize(
    "parts, message",
    [
        ([(0, "a"), (0, "b")], "found expert 0 twice"),
        ([(0, "a"), (2, "b")], "found expert 2, wanted each of 0 to 1"),
        ([(1, "a")], "found no expert 0"),
        ([(-1, "a"), (0, "b")], "found expert -1,"),
    ],
)
def test_grouped_layouts_need_every_expert_once(parts, message):
    with pytest.raises(InvalidInput, match=message):
        by_expert(parts, experts=2)


def test_identity_has_the_same_shape():
    back = to_identity(PLACEMENT)
    assert (back.layers, back.experts, back.ranks) == (2, 6, 2)
    names = ExpertNames(back, layers=[3, 5])
    assert names.experts_of(5, 1) == [3, 4, 5]


def test_a_placement_is_saved_inside_a_folder_or_beside_a_file(tmp_path):
    assert save_placement(tmp_path, PLACEMENT, 4) == tmp_path / "routepack-placement.json"
    saved = load_placement(tmp_path, stamped=stamp(PLACEMENT, 4), shape=to_identity(PLACEMENT))
    assert saved == (PLACEMENT, 4)
    file = tmp_path / "model.pt"
    file.write_bytes(b"weights")
    assert save_placement(file, PLACEMENT, 0) == tmp_path / "model.pt.routepack-placement.json"
    assert load_placement(file).placement == PLACEMENT
    assert Placement.load(placement_path(file)) == PLACEMENT


def test_a_checkpoint_does_not_load_without_its_own_placement(tmp_path):
    with pytest.raises(PlacementMismatch, match="found no file, wanted the placement under which"):
        load_placement(tmp_path)
    path = save_placement(tmp_path, PLACEMENT, 4)
    with pytest.raises(PlacementMismatch, match="found epoch 4, wanted 5, as in the checkpoint"):
        load_placement(tmp_path, stamped=stamp(PLACEMENT, 5))
    with pytest.raises(PlacementMismatch, match="found fingerprint xxh3:.*, wanted xxh3:"):
        load_placement(tmp_path, stamped=stamp(to_identity(PLACEMENT), 4))
    with pytest.raises(PlacementMismatch, match="found a stamp without epoch"):
        load_placement(tmp_path, stamped={"fingerprint": PLACEMENT.fingerprint})
    with pytest.raises(PlacementMismatch, match=r"found \[2, 6, 2\] layers, experts and ranks, wanted \[2, 6, 3\]"):
        load_placement(tmp_path, shape=Placement.identity(layers=2, experts=6, ranks=3))
    content = json.loads(path.read_text(encoding="utf-8"))
    for key in ("fingerprint", "epoch"):
        path.write_text(json.dumps({k: v for k, v in content.items() if k != key}), encoding="utf-8")
        with pytest.raises(PlacementMismatch, match=f"found no {key}"):
            load_placement(tmp_path)
    content["physical_to_logical"][0].reverse()
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(PlacementMismatch, match="fingerprint"):
        load_placement(tmp_path)
    path.write_text(json.dumps(content)[:40], encoding="utf-8")
    with pytest.raises(PlacementMismatch):
        load_placement(tmp_path)
    assert issubclass(PlacementMismatch, ValueError)
