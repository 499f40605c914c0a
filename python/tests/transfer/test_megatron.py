# SPDX-License-Identifier: Apache-2.0
"""The real Megatron-Core where it runs without a GPU: MoE layers with replay, flat buffers, distributed optimizer."""

from __future__ import annotations

import re
import types
import warnings

import hypothesis
import hypothesis.strategies as st
import pytest

torch = pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of all the packages for GPUs that Megatron does without
    pytest.importorskip("megatron.core")

from routepack.transfer import ExpertParameter, ExpertTensor, GridLayout, MegatronBuffers  # noqa: E402

from . import megatron_jobs, megatron_training  # noqa: E402
from .megatron_model import Variant  # noqa: E402
from .optimizer import FlatBuffer  # noqa: E402
from .processes import RankFailed, run_ranks  # noqa: E402

PLACEMENTS = [[3, 6, 0, 5, 7, 2, 1, 4], [7, 6, 5, 4, 3, 2, 1, 0], [1, 0, 2, 3, 4, 5, 6, 7]]


def test_permuted_columns_give_what_the_identity_gives_and_replay_stays_logical():
    run_ranks(megatron_jobs.layer_under_placements, 4, PLACEMENTS, True)


def test_a_dispatcher_without_its_columns_is_seen():
    with pytest.raises(RankFailed, match="outputs differ"):
        run_ranks(megatron_jobs.layer_under_placements, 4, PLACEMENTS, False)


VARIANTS = {
    "bf16": Variant(),
    "fp32": Variant(exact=True),
    "buckets, late gathers": Variant(bucket_elements=1000, overlap_gather=True),
    "every lane has all": Variant(distributed=False),
    "named as by Transformer Engine": Variant(grouped=True, bucket_elements=1000),
}
STATES = {"exp_avg", "exp_avg_sq", "step"}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_model_that_is_moved_at_every_step_trains_as_one_that_is_not(variant):
    ranks = run_ranks(megatron_training.train_and_move, 4, variant, 3)
    words = {name.split(".weight.")[1] for name in ranks[0]["tensors"] if ".weight." in name}
    assert words == (STATES if variant.exact else STATES | {"master"})
    assert ranks[0]["lanes"] == (2 if variant.bucket_elements else 1)


@pytest.mark.parametrize(
    "sabotage, seen",
    [("moments", "exp_avg.*found"), ("dispatcher", "outputs"), ("gather", "differs between lanes")],
)
def test_sabotage_of_the_adapter_is_seen(sabotage, seen):
    variant = Variant(bucket_elements=1000, overlap_gather=True) if sabotage == "gather" else Variant()
    with pytest.raises(RankFailed, match=seen):
        run_ranks(megatron_training.train_and_move, 4, variant, 3, sabotage)


REFUSED = {
    "fsdp": "FSDP",
    "not wrapped": "expert_parallel_buffers.*DistributedDataParallel",
    "offloaded optimizer": "optimizer_cpu_offload",
    "quantized": "rank 1: layer 1, slot 0, linear_fc1.weight: found Quantized",
    "hyper-parameters": "hyper-parameters of linear_fc1.weight that differ",
    "attached twice": "wrapped already",
    "gradients": "the move failed in prepare: rank .: layer ., local slot .: the gradient of .* is not zero",
    "replay": "replay",
    "replay backward": "replay",
    "offloaded buffers": "rank 1: .*(offload|released|host)",
    "another shape": "the placement is for 3 layers",
    "detached away from home": "to_identity",
}


def test_what_cannot_be_moved_is_refused_with_its_reason():
    said = run_ranks(megatron_training.refusals, 4, Variant())
    assert said[0].keys() == REFUSED.keys()
    for what, pattern in REFUSED.items():
        assert re.search(pattern, said[0][what]), f"{what}: {said[0][what]}"
    for what in ("quantized", "gradients", "replay", "offloaded buffers"):
        assert {ranks[what] for ranks in said} == {said[0][what]}


def test_without_expert_parallelism_there_is_nowhere_to_move_to():
    assert "expert_model_parallel_size above 1" in run_ranks(megatron_training.without_expert_parallelism, 2)[0]


def real_buffer(parameters, lanes, bucket, high=False):
    """Megatron's own buffer of these parameters for a data-parallel group of that size."""
    from megatron.core.distributed import DistributedDataParallelConfig, param_and_grad_buffer

    group = types.SimpleNamespace(size=lambda: lanes, rank=lambda: 0)
    groups = types.SimpleNamespace(tp=group, dp_cp=group)
    names = {parameter: str(i) for i, parameter in enumerate(parameters)}
    config = DistributedDataParallelConfig(use_distributed_optimizer=True, pad_buckets_for_high_nccl_busbw=high)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "current_device", lambda: "cpu")
        patch.setattr(param_and_grad_buffer, "log_on_each_pipeline_stage", lambda *_, **__: None)
        made = param_and_grad_buffer._ParamAndGradBuffer(
            config, torch.float32, torch.float32, parameters, group, bucket, names, 1.0, list(range(len(names))), False,
            groups,
        )  # fmt: skip
    return made, group


def real_ranges(buffer, group, lane):
    """What a lane owns of each parameter, by Megatron's own optimizer."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    group.rank = lambda: lane
    (buckets,) = DistributedOptimizer._build_gbuf_range_map(buffer).values()
    return {p: (r["param"].start, r["param"].end) for bucket in buckets for p, r in bucket["param_map"].items()}


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    shapes=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=2), min_size=1, max_size=4),
    layers=st.integers(1, 4),
    slots=st.integers(1, 5),
    lanes=st.integers(1, 9),
    bucket=st.none() | st.integers(1, 9000),
    registration=st.sampled_from(["grouped", "sequential"]),
    high=st.booleans(),
    chunks=st.integers(1, 2),
)
def test_layouts_are_those_of_megatrons_buffers(shapes, layers, slots, lanes, bucket, registration, high, chunks):
    count = len(shapes)
    parameters = [ExpertParameter(f"p{i}", shape) for i, shape in enumerate(shapes)]
    tensors = [ExpertTensor(p.name, "weight", "F32", "replicated", p.elements, i) for i, p in enumerate(parameters)]
    split = [layers] if chunks == 1 or layers == 1 else [layers - layers // 2, layers // 2]
    owners = [list(range(sum(split[:i]), sum(split[: i + 1]))) for i in range(len(split))]
    buffers = MegatronBuffers(
        registration=registration,
        bucket_elements=bucket,
        high_bus_bandwidth=high,
        chunks=owners if len(owners) > 1 else [],
    )
    layout = GridLayout.megatron(
        ep=2, edp=lanes, layers=layers, slots=slots, parameters=parameters, tensors=tensors, buffers=buffers
    )
    for chunk in owners:
        order = [(layer, slot, i) for layer in chunk for i in range(count) for slot in range(slots)]
        if registration == "sequential":
            order.sort()
        real = {at: torch.nn.Parameter(torch.empty(shapes[at[2]])) for at in order}
        buffer, group = real_buffer(list(real.values()), lanes, bucket, high)
        owned = [real_ranges(buffer, group, lane) for lane in range(lanes)]
        for at, parameter in real.items():
            wanted = [(lane, *owned[lane][parameter]) for lane in range(lanes) if parameter in owned[lane]]
            assert layout.lanes_of(*at) == sorted(wanted, key=lambda part: part[1])


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    sizes=st.lists(st.integers(1, 700), min_size=1, max_size=24),
    lanes=st.integers(1, 9),
    bucket=st.none() | st.integers(1, 3000),
)
def test_the_optimizer_of_these_tests_lays_out_as_megatron_does(sizes, lanes, bucket):
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    buffer, group = real_buffer(parameters, lanes, bucket)
    ours = FlatBuffer(sizes, lanes=lanes, lane=0, group=None, dtype=torch.float32, bucket_elements=bucket)
    assert ours.buckets == buffer.bucket_indices
    spans = [(span.begin, span.end, span.bucket) for span in ours.spans]
    assert spans == [buffer.param_index_map[parameter] for parameter in parameters]
    for lane in range(lanes):
        mine = [ours.lane_range(i, lane) for i in range(len(sizes))]
        assert real_ranges(buffer, group, lane) == {
            parameter: held for parameter, held in zip(parameters, mine, strict=True) if held != (0, 0)
        }
