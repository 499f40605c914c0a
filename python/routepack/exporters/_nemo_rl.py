# SPDX-License-Identifier: Apache-2.0
"""NeMo RL: what a `SlicedDataDict` of a data-parallel rank carries with sequence packing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from routepack._core import Plan
from routepack._errors import InvalidInput
from routepack.exporters import _checks


@dataclass
class NemoShard:
    """One rank's part: select `indices` from the batch, then set the other three on what came out."""

    indices: list[int] = field(default_factory=list)  #: samples of the batch, in order of execution
    micro_batch_indices: list[list[list[int]]] = field(default_factory=list)  #: [chunk][row]: [begin, end) in the chunk
    micro_batch_lengths: list[list[int]] = field(default_factory=list)  #: [chunk][row]: padded tokens
    elem_counts_per_gb: list[int] = field(default_factory=list)  #: [chunk]: samples


def nemo_rl(
    plans: Plan | Sequence[Plan],
    *,
    lengths: Any,
    make_sequence_length_divisible_by: int = 1,
    max_tokens_per_microbatch: int | None = None,
) -> list[NemoShard]:
    """One shard per slot, for `Policy._shard_for_train`; one plan per chunk of `train_global_batch_size` samples.

    :param lengths: tokens per sample, a list of them for several plans
    :param make_sequence_length_divisible_by: what each sample is padded to
    :raises InvalidInput: for dummies (NeMo RL takes different counts per rank), a cell over the cap, or chunks of
        different sizes

    >>> plan = Plan.from_json('{"format": "routepack.plan/1", "topology": {"ep": 1, "shards": [[0, 1]]}, "capacity": 9,'
    ...     ' "rows": 2, "physical_to_logical": [[0]], "cost": {"stages": [], "expert": 1.0},'
    ...     ' "layout": [[[3], [0, 4]], [[1], [2]]]}')
    >>> first, second = nemo_rl(plan, lengths=[4, 5, 6, 7, 8], make_sequence_length_divisible_by=4)
    >>> second.indices, second.micro_batch_indices, second.micro_batch_lengths, second.elem_counts_per_gb
    ([0, 4, 2], [[[0, 2], [2, 3]]], [[12, 8]], [3])
    """
    steps = _checks.as_plans(plans, "nemo_rl")
    tokens = [lengths] if isinstance(plans, Plan) else list(lengths)
    if len(tokens) != len(steps):
        raise InvalidInput(f"nemo_rl: found lengths of {len(tokens)} chunks, wanted {len(steps)}")
    shards = [NemoShard() for _ in range(steps[0].num_slots)]
    first = 0
    for number, (step, some) in enumerate(zip(steps, tokens, strict=True)):
        _checks.no_dummies(step, "nemo_rl")
        if step.num_samples != steps[0].num_samples:
            raise _checks.refuse(
                "nemo_rl",
                f"{step.num_samples} samples in chunk {number}",
                f"{steps[0].num_samples}, as in chunk 0",
                "plan chunks of train_global_batch_size samples",
            )
        loads = _checks.capacity(
            step,
            "nemo_rl",
            _checks.lengths_of(step, some, "nemo_rl"),
            max_tokens_per_microbatch,
            sample_multiple=make_sequence_length_divisible_by,
            cell_multiple=1,
        )
        for d, shard in enumerate(shards):
            spans: list[list[int]] = []
            for row in step.layout:
                begin = spans[-1][1] if spans else 0
                spans.append([begin, begin + len(row[d])])
                shard.indices.extend(first + i for i in row[d])
            shard.micro_batch_indices.append(spans)
            shard.micro_batch_lengths.append([row[d] for row in loads])
            shard.elem_counts_per_gb.append(spans[-1][1])
        first += step.num_samples
    return shards
