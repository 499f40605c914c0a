# SPDX-License-Identifier: Apache-2.0
"""What RoutePack relies on in frameworks that PyPI does not have, as data. Tests hold stand-ins and checkouts to it."""

from __future__ import annotations

import inspect
from typing import Any

#: slime at commit 624b824a: slime/ray/rollout.py, slime/utils/dp_schedule.py, slime/backends/megatron_utils/data.py
SLIME: dict[str, Any] = {
    "build_dp_schedule": {
        "parameters": ["args", "train_parallel_config", "total_lengths", "global_batch_size", "rollout_indices"],
        "returns": ["partitions", "micro_batch_indices", "num_microbatches", "global_batch_sizes"],
    },
    "RolloutManager._split_train_data_by_dp": {"parameters": ["self", "data"], "calls": ["build_dp_schedule"]},
    "train_parallel_config": ["dp_size", "cp_size", "vpp_size", "microbatch_group_size_per_vp_stage"],
    #: of the batch that is cut: one entry per sample
    "data": {
        "tokens": "list[int]",
        "response_lengths": "int",
        "rewards": "float",
        "loss_masks": "list[int]",
        "rollout_ids": "int",
        "rollout_mask_sums": "int",
        "rollout_routed_experts": "int32 tensor [tokens - 1, num_layers, k]",
    },
    #: read from args
    "args": [
        "use_dynamic_batch_size", "max_tokens_per_gpu", "global_batch_size", "num_experts", "moe_layer_freq",
        "expert_model_parallel_size", "tensor_model_parallel_size", "expert_tensor_parallel_size",
        "pipeline_model_parallel_size", "allgather_cp",
    ],
    #: of what a rank gets
    "part": ["partition", "micro_batch_indices", "num_microbatches", "global_batch_sizes"],
}  # fmt: skip

#: NeMo RL at commit 7ea279ab: nemo_rl/distributed/batched_data_dict.py, nemo_rl/models/policy/lm_policy.py
NEMO_RL: dict[str, Any] = {
    "BatchedDataDict.shard_by_batch_size": {
        "parameters": [
            "self", "shards", "batch_size", "allow_uneven_shards", "dynamic_batching_args", "sequence_packing_args",
        ],
        "returns": ["shards", "sorted_indices"],
    },
    "BatchedDataDict.select_indices": {"parameters": ["self", "indices"]},
    "Policy._shard_for_train": {"parameters": ["self", "data", "batch_size"], "calls": ["shard_by_batch_size"]},
    "Policy._shard_for_logprob": {"parameters": ["self", "data"], "calls": ["shard_by_batch_size"]},
    "sequence_packing_args": [
        "max_tokens_per_microbatch", "input_key", "input_lengths_key", "algorithm", "sequence_length_pad_multiple",
    ],
    #: attributes of a shard: [chunk][row] spans in the chunk, [chunk][row] padded tokens, [chunk] samples
    "shard": ["micro_batch_indices", "micro_batch_lengths", "elem_counts_per_gb"],
    "data": {
        "input_ids": "int64 [batch, width]",
        "input_lengths": "int [batch]",
        "routed_experts": "int8, int16 or int32 [batch, width, layers, k], -1 where nothing was recorded",
    },
}  # fmt: skip

#: the same: nemo_rl/experience/sync_rollout_actor.py, nemo_rl/data_plane/{column_io,interfaces}.py,
#: nemo_rl/models/policy/tq_policy.py
NEMO_RL_DATA_PLANE: dict[str, Any] = {
    #: the actor that rolls out writes all columns of a batch at once
    "SyncRolloutActor.rollout_to_tq": {"parameters": ["self", "input_batch"], "calls": ["kv_first_write"]},
    "kv_first_write": {
        "parameters": ["final_batch_cpu", "sample_ids", "dp_client", "partition_id"],
        "calls": ["put_samples"],
    },
    #: the driver's client
    "DataPlaneClient.get_samples": {"parameters": ["self", "sample_ids", "partition_id", "select_fields"]},
    #: the driver's policy
    "TQPolicy._logprob_dispatch": {"parameters": ["self", "meta"]},
    "TQPolicy.train_from_meta": {"parameters": ["self", "meta"]},
    "TQPolicy.read_from_dataplane": {"parameters": ["self", "meta", "select_fields"]},
}


def holds(owner: Any, name: str, contract: dict[str, Any]) -> None:
    """A function or method has the parameters, and calls the names, that are written down."""
    function = owner
    for part in name.split("."):
        function = inspect.getattr_static(function, part)
    parameters = list(inspect.signature(function).parameters)
    assert set(contract.get("parameters", [])) <= set(parameters), (name, parameters)
    assert set(contract.get("calls", [])) <= set(function.__code__.co_names), name


def check_slime_schedule(
    schedule: Any, lengths: list[int], *, ranks: int, cap: int, multiple: int = 1, steps: list[set[int]]
) -> None:
    """What slime's `DataIterator` and Megatron's pipelines need of the four lists.

    :param steps: samples of each optimizer step
    """
    partitions, cells, rows, sizes = schedule
    assert len(partitions) == len(cells) == ranks and len(rows) == len(sizes) == len(steps)
    assert all(type(i) is int for partition in partitions for i in partition)
    assert all(n >= 1 and n % multiple == 0 for n in rows)
    for partition, mine in zip(partitions, cells, strict=True):
        assert len(mine) == sum(rows)
        assert [i for cell in mine for i in cell] == list(range(len(partition)))  # read one after the other
    begin = 0
    for number, members in enumerate(steps):
        trained = []
        for partition, mine in zip(partitions, cells, strict=True):
            for cell in mine[begin : begin + rows[number]]:
                assert cell, "a microbatch without samples"
                samples = [partition[i] for i in cell]
                trained += samples
                assert sum(lengths[i] for i in samples) <= cap or len(samples) == 1
        assert sorted(trained) == sorted(members)
        begin += rows[number]
    assert begin == sum(rows)


def check_nemo_shards(
    made: Any, lengths: list[int], *, ranks: int, cap: int, multiple: int, chunk: int
) -> list[list[list[list[int]]]]:
    """What NeMo RL's workers need of shards; the samples as [chunk][rank][row]."""
    shards, order = made
    assert len(shards) == ranks and sorted(order) == list(range(len(lengths)))
    chunks = len(lengths) // chunk
    found: list[list[list[list[int]]]] = [[[] for _ in range(ranks)] for _ in range(chunks)]
    first = 0
    for rank, shard in enumerate(shards):
        count = len(shard["input_lengths"])
        mine = order[first : first + count]
        first += count
        assert [lengths[i] for i in mine] == shard["input_lengths"].tolist()
        assert sum(shard.elem_counts_per_gb) == count and len(shard.elem_counts_per_gb) == chunks
        begin = 0
        for number in range(chunks):
            spans, loads = shard.micro_batch_indices[number], shard.micro_batch_lengths[number]
            assert spans[0][0] == 0 and spans[-1][1] == shard.elem_counts_per_gb[number]
            assert all(a[1] == b[0] for a, b in zip(spans, spans[1:], strict=False))
            for (start, end), load in zip(spans, loads, strict=True):
                samples = mine[begin + start : begin + end]
                assert samples and load == sum(-(-lengths[i] // multiple) * multiple for i in samples) <= cap
                assert all(i // chunk == number for i in samples)
                found[number][rank].append(samples)
            begin += shard.elem_counts_per_gb[number]
    for number in range(chunks):
        assert len({len(rows) for rows in found[number]}) == 1
    return found
