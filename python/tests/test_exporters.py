# SPDX-License-Identifier: Apache-2.0
"""Layouts in the shapes that frameworks recorded, and refusals that say what to change."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import routepack
from routepack.exporters import areal, megatron, nemo_rl, slime, verl


def plan_of(layout: list[list[list[int]]], **more: Any) -> routepack.Plan:
    document = {
        "format": "routepack.plan/1",
        "topology": {"ep": 1, "shards": [list(range(len(layout[0])))]},
        "capacity": 100,
        "cost": {"stages": [], "expert": 1.0},
        "rows": len(layout),
        "physical_to_logical": [[0]],
        "layout": layout,
        **more,
    }
    return routepack.Plan.from_json(json.dumps(document))


#: 7 samples on 2 slots, 2 rows
UNEVEN = [[[3], [0, 4]], [[1, 6], [2, 5]]]
#: 5 samples and a dummy
WITH_DUMMY = [[[3, 5], [0, 4]], [[1], [2]]]


@st.composite
def layouts(draw: st.DrawFn) -> list[list[list[int]]]:
    rows, slots = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 3), min_size=rows * slots, max_size=rows * slots))
    order = iter(draw(st.permutations(range(sum(sizes)))))
    return [[[next(order) for _ in range(sizes[r * slots + d])] for d in range(slots)] for r in range(rows)]


# slime


def test_slime_gets_what_its_own_scheduler_returned():
    torch = pytest.importorskip("torch")
    dump = torch.load(pathlib.Path(__file__).parent / "convert" / "data" / "slime_train_7.pt", weights_only=True)
    shards = sorted(dump["dp_shards"], key=lambda shard: shard["data_parallel_rank"])
    counts = [int(n) for n in shards[0]["num_microbatches"]]
    plans, positions, first = [], [], 0
    for step in range(len(counts)):
        cells = [
            [[int(shard["partition"][i]) for i in shard["micro_batch_indices"][first + r]] for shard in shards]
            for r in range(counts[step])
        ]
        here = sorted(i for row in cells for cell in row for i in cell)
        plans.append(plan_of([[[here.index(i) for i in cell] for cell in row] for row in cells]))
        positions.append(here)
        first += counts[step]
    partitions, micro_batch_indices, num_microbatches, global_batch_sizes = slime(plans, positions=positions)
    assert partitions == [[int(i) for i in shard["partition"]] for shard in shards]
    assert micro_batch_indices == [[[int(i) for i in cell] for cell in s["micro_batch_indices"]] for s in shards]
    assert num_microbatches == counts
    assert global_batch_sizes == [int(n) for n in shards[0]["global_batch_sizes"]]


@given(st.lists(layouts(), min_size=1, max_size=3).filter(lambda many: len({len(one[0]) for one in many}) == 1))
def test_what_slime_promises_of_a_schedule_holds(many):
    schedule = slime([plan_of(layout) for layout in many])
    total = sum(len(cell) for layout in many for row in layout for cell in row)
    assert sorted(i for part in schedule.partitions for i in part) == list(range(total))
    for part, cells in zip(schedule.partitions, schedule.micro_batch_indices, strict=True):
        assert [i for cell in cells for i in cell] == list(range(len(part)))
        assert len(cells) == sum(schedule.num_microbatches)


def test_slime_counts_rollouts_not_samples():
    assert slime(plan_of(UNEVEN), rollout_ids=[0, 0, 1, 1, 2, 2, 2]).global_batch_sizes == [3]


def test_slime_gives_a_long_sample_its_own_cell_and_refuses_other_full_ones():
    lengths = np.array([10, 10, 10, 99, 10, 10, 10])
    assert slime(plan_of(UNEVEN), lengths=lengths, max_tokens_per_gpu=20).num_microbatches == [2]
    with pytest.raises(routepack.InvalidInput, match=r"slime: found 20 aligned tokens in row 0, slot 1, wanted at most 19; plan with capacity=19$"):
        slime(plan_of(UNEVEN), lengths=lengths, max_tokens_per_gpu=19)
    assert slime(plan_of(UNEVEN), lengths=lengths, max_tokens_per_gpu=10, cp_size=2).num_microbatches == [2]


def test_slime_refuses_what_it_cannot_use():
    with pytest.raises(routepack.InvalidInput, match="slime: found 1 dummy samples, wanted real ones alone; .*add_dummies"):
        slime(plan_of(WITH_DUMMY, dummies=1))
    with pytest.raises(routepack.InvalidInput, match=r"slime: found 2 rows, wanted a multiple of 4; plan with Constraints\(row_multiple=4\)"):
        slime(plan_of(UNEVEN), microbatch_group_size_per_vp_stage=4)
    with pytest.raises(routepack.InvalidInput, match="slime: found 3 slots in step 1, wanted 2"):
        slime([plan_of(UNEVEN), plan_of([[[0], [1], [2]]])])
    with pytest.raises(routepack.InvalidInput, match="found no plan"):
        slime([])
    with pytest.raises(routepack.InvalidInput, match="found 3 positions of a step, wanted 7"):
        slime(plan_of(UNEVEN), positions=[[0, 1, 2]])
    with pytest.raises(routepack.InvalidInput, match="without lengths"):
        slime(plan_of(UNEVEN), max_tokens_per_gpu=10)
    with pytest.raises(routepack.InvalidInput, match=r"found lengths of shape \[3\], wanted \[7\]"):
        slime(plan_of(UNEVEN), max_tokens_per_gpu=10, lengths=[1, 2, 3])


# Megatron


@given(layouts(), st.integers(1, 3))
def test_megatron_ranks_of_a_slot_share_its_samples(layout, cp_size):
    groups = megatron(plan_of(layout), cp_size=cp_size)
    assert len(groups) == len(layout)
    for row, group in zip(layout, groups, strict=True):
        assert len(group) == len(row) * cp_size
        assert [group[rank] for rank in range(len(group))] == [row[rank // cp_size] for rank in range(len(group))]
    everything = {i for group in groups for cell in group for i in cell}  # Megatron asserts that none is missing
    assert len(everything) == sum(len(cell) for row in layout for cell in row)


def test_megatron_refuses_what_it_cannot_use():
    lengths = [10] * 7
    assert megatron(plan_of(UNEVEN), lengths=lengths, max_seqlen_per_dp_cp_rank=10, cp_size=2)
    with pytest.raises(routepack.InvalidInput, match="megatron: found 20 aligned tokens in row 0, slot 1, wanted at most 19"):
        megatron(plan_of(UNEVEN), lengths=lengths, max_seqlen_per_dp_cp_rank=19)
    with pytest.raises(routepack.InvalidInput, match=r"found 2 samples in row 0, slot 1, wanted at most 1; plan with Constraints\(max_samples_per_cell=1\)"):
        megatron(plan_of(UNEVEN), max_num_seqs=1)
    with pytest.raises(routepack.InvalidInput, match="row_multiple=3"):
        megatron(plan_of(UNEVEN), microbatch_group_size_per_vp_stage=3)
    with pytest.raises(routepack.InvalidInput, match="dummy"):
        megatron(plan_of(WITH_DUMMY, dummies=1))
    with pytest.raises(routepack.InvalidInput, match="cp_size 0"):
        megatron(plan_of(UNEVEN), cp_size=0)


# NeMo RL


@given(layouts(), st.integers(1, 8))
def test_nemo_shards_tile_their_samples_with_padded_lengths(layout, multiple):
    total = sum(len(cell) for row in layout for cell in row)
    lengths = np.arange(1, total + 1) * 3
    padded = -(-lengths // multiple) * multiple
    shards = nemo_rl(plan_of(layout), lengths=lengths, make_sequence_length_divisible_by=multiple)
    assert sorted(i for shard in shards for i in shard.indices) == list(range(total))
    for d, shard in enumerate(shards):
        ((spans,), (loads,), (count,)) = shard.micro_batch_indices, shard.micro_batch_lengths, shard.elem_counts_per_gb
        assert spans[0][0] == 0 and spans[-1][1] == count == len(shard.indices)
        assert all(one[1] == two[0] for one, two in zip(spans, spans[1:], strict=False))
        for r, (begin, end) in enumerate(spans):
            assert shard.indices[begin:end] == layout[r][d]
            assert loads[r] == padded[layout[r][d]].sum()


def test_nemo_spans_begin_anew_in_every_chunk():
    two = plan_of([[[0], [1]], [[2], [3]]])
    first, second = nemo_rl([two, two], lengths=[[4, 4, 4, 4], [1, 2, 3, 4]])
    assert first.indices == [0, 2, 4, 6] and second.indices == [1, 3, 5, 7]
    assert first.micro_batch_indices == [[[0, 1], [1, 2]], [[0, 1], [1, 2]]]
    assert first.micro_batch_lengths == [[4, 4], [1, 3]] and first.elem_counts_per_gb == [2, 2]


def test_nemo_refuses_what_it_cannot_use():
    with pytest.raises(
        routepack.InvalidInput,
        match=r"nemo_rl: found 16 aligned tokens in row 0, slot 1, wanted at most 15; plan with capacity=15, "
        r"constraints=Constraints\(sample_multiple=8, cell_multiple=1\)",
    ):
        nemo_rl(plan_of(UNEVEN), lengths=[5] * 7, make_sequence_length_divisible_by=8, max_tokens_per_microbatch=15)
    with pytest.raises(routepack.InvalidInput, match="found 4 samples in chunk 1, wanted 7"):
        nemo_rl([plan_of(UNEVEN), plan_of([[[0], [1]], [[2], [3]]])], lengths=[[1] * 7, [1] * 4])
    with pytest.raises(routepack.InvalidInput, match="dummy"):
        nemo_rl(plan_of(WITH_DUMMY, dummies=1), lengths=[1] * 5)


# verl


def test_verl_cuts_the_permuted_batch_into_equal_chunks():
    layout = [[[3], [0, 4]], [[1, 6], [2]]]
    batch = verl(plan_of(layout + [[[5], [7]]], ))
    assert batch.permutation.tolist() == [3, 1, 6, 5, 0, 4, 2, 7] and batch.permutation.dtype == np.int64
    assert batch.cell_ids.tolist() == [0, 1, 1, 2, 0, 0, 1, 2] and batch.num_micro_batches == 3
    assert (batch.loss_weights == 1).all() and batch.dummies == 0
    for d in range(2):
        chunk = batch.permutation[4 * d : 4 * d + 4]
        assert [chunk[cell].tolist() for cell in batch.micro_batches(d, 2)] == [row[d] for row in [*layout, [[5], [7]]]]


def test_verl_dummies_have_no_say_in_the_loss():
    batch = verl(plan_of(WITH_DUMMY, dummies=1), lengths=[10] * 5, max_token_len=20)
    assert batch.dummies == 1 and batch.loss_weights[batch.permutation == 5].tolist() == [0.0]
    assert batch.loss_weights.sum() == 5


def test_verl_refuses_what_it_cannot_use():
    with pytest.raises(
        routepack.InvalidInput,
        match=r"verl: found 3 samples on slot 0 and 4 on slot 1, wanted equal counts; plan with "
        r"Constraints\(equal_count=True, add_dummies=True\)",
    ):
        verl(plan_of(UNEVEN))
    with pytest.raises(routepack.InvalidInput, match=r"plan with Constraints\(equal_count=True\)$"):
        verl(plan_of([[[0], [1, 2, 3]]]))
    with pytest.raises(routepack.InvalidInput, match="min_rows=3"):
        verl(plan_of([[[0], [1]]]), min_num_micro_batch=3)
    with pytest.raises(routepack.InvalidInput, match="found 32 aligned tokens"):
        verl(plan_of(WITH_DUMMY, dummies=1), lengths=[10] * 5, max_token_len=31, sample_multiple=16)


# AReaL


def test_areal_microbatches_are_what_its_workers_would_sort_them_into():
    dispatch = areal(plan_of(WITH_DUMMY, dummies=1))
    assert dispatch.group_indices == [[3, 5, 1], [0, 4, 2]]
    for d, cells in enumerate(dispatch.micro_batches):
        assert cells == sorted(sorted(cell) for cell in cells)
        assert [[dispatch.group_indices[d][i] for i in cell] for cell in cells] == [row[d] for row in WITH_DUMMY]
    assert dispatch.loss_weights.tolist() == [1, 1, 1, 1, 1, 0] and dispatch.dummies == 1


def test_areal_refuses_what_it_cannot_use():
    with pytest.raises(routepack.InvalidInput, match="areal: found 3 samples on slot 0 and 4 on slot 1"):
        areal(plan_of(UNEVEN))
    assert areal(plan_of(UNEVEN), equal_counts=False).group_indices == [[3, 1, 6], [0, 4, 2, 5]]
    with pytest.raises(routepack.InvalidInput, match="found 2 rows, wanted at least 4"):
        areal(plan_of(UNEVEN), equal_counts=False, pp_size=2)
    with pytest.raises(routepack.InvalidInput, match="found 256 aligned tokens"):
        areal(plan_of(UNEVEN), equal_counts=False, lengths=[9] * 7, max_tokens_per_mb=100, cell_multiple=256)
    with pytest.raises(routepack.InvalidInput, match="multiples 0 and 1"):
        areal(plan_of(UNEVEN), equal_counts=False, lengths=[9] * 7, max_tokens_per_mb=100, sample_multiple=0)


# All of them, on real plans


def test_a_plan_made_for_a_framework_is_one_that_it_takes(root):
    window = routepack.Window.load(root / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors")
    cost = routepack.CostModel.load(root / "examples" / "gptoss20b.toml")
    constraints = routepack.Constraints(equal_count=True, add_dummies=True, sample_multiple=16, row_multiple=2, min_rows=4)
    params = routepack.PlanParams(effort="fast")
    topology = routepack.Topology(dp=8, ep=8)
    plan = routepack.plan(window, topology, capacity=4096, cost=cost, constraints=constraints, params=params)
    assert plan.dummies == -window.samples % 8 and plan.verify(window) == []
    batch = verl(plan, lengths=window.lengths, max_token_len=4096, num_batches_divided_by=2)
    assert sorted(batch.permutation.tolist()) == list(range(window.samples + plan.dummies))
    dispatch = areal(plan, lengths=window.lengths, max_tokens_per_mb=4096, pp_size=2)
    assert len(dispatch.group_indices) == 8
    free = routepack.Constraints(sample_multiple=16)
    plan = routepack.plan(window, topology, capacity=4096, cost=cost, constraints=free, params=params)
    assert len(slime(plan, lengths=window.lengths, max_tokens_per_gpu=4096).partitions) == 8
    assert len(megatron(plan, lengths=window.lengths, max_seqlen_per_dp_cp_rank=4096)) == plan.num_rows
    shards = nemo_rl(plan, lengths=window.lengths, make_sequence_length_divisible_by=16, max_tokens_per_microbatch=4096)
    assert sum(shard.elem_counts_per_gb[0] for shard in shards) == window.samples
