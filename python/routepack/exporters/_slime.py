# SPDX-License-Identifier: Apache-2.0
"""slime: what `build_dp_schedule` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from routepack._core import Plan
from routepack._errors import InvalidInput
from routepack.exporters import _checks


class SlimeSchedule(NamedTuple):
    """slime's schedule: a tuple of four, in slime's order."""

    partitions: list[list[int]]  #: [D]: positions of each rank's samples, in order of execution
    micro_batch_indices: list[list[list[int]]]  #: [D][microbatch]: indices into the rank's partition
    num_microbatches: list[int]  #: [steps], the same on every rank
    global_batch_sizes: list[int]  #: [steps]: rollouts


def slime(
    plans: Plan | Sequence[Plan],
    *,
    lengths: Any = None,
    max_tokens_per_gpu: int | None = None,
    cp_size: int = 1,
    microbatch_group_size_per_vp_stage: int = 1,
    positions: Sequence[Sequence[int]] | None = None,
    rollout_ids: Sequence[int] | None = None,
) -> SlimeSchedule:
    """The schedule of one rollout batch, one plan per optimizer step, for `RolloutManager._split_train_data_by_dp`.

    :param lengths: tokens per sample, a list of them for several plans; with `max_tokens_per_gpu` the cap is checked
    :param microbatch_group_size_per_vp_stage: with interleaved pipelines, what the rows of a step are a multiple of
    :param positions: for each step where its samples are in the rollout data; None: one step after the other
    :param rollout_ids: rollout of each position; None: every sample is one
    :raises InvalidInput: for dummies (slime takes different counts per rank), a cell over the cap, or a wrong row count

    >>> plan = Plan.from_json('{"format": "routepack.plan/1", "topology": {"ep": 1, "shards": [[0, 1]]}, "capacity": 9,'
    ...     ' "rows": 2, "physical_to_logical": [[0]], "cost": {"stages": [], "expert": 1.0},'
    ...     ' "layout": [[[3], [0, 4]], [[1], [2]]]}')
    >>> slime(plan).partitions, slime(plan).micro_batch_indices
    ([[3, 1], [0, 4, 2]], [[[0], [1]], [[0, 1], [2]]])
    >>> slime(plan).num_microbatches, slime(plan).global_batch_sizes
    ([2], [5])
    """
    steps = _checks.as_plans(plans, "slime")
    tokens = [lengths] if isinstance(plans, Plan) else (lengths if lengths is not None else [None] * len(steps))
    if positions is None:
        positions, first = [], 0
        for step in steps:
            positions.append(range(first, first + step.num_samples))
            first += step.num_samples
    if len(tokens) != len(steps) or len(positions) != len(steps):
        raise InvalidInput(
            f"slime: found lengths of {len(tokens)} and positions of {len(positions)} steps, wanted {len(steps)}"
        )
    if max_tokens_per_gpu is not None and any(some is None for some in tokens):
        raise InvalidInput("slime: found max_tokens_per_gpu without lengths, wanted both")
    slots = steps[0].num_slots
    schedule = SlimeSchedule([[] for _ in range(slots)], [[] for _ in range(slots)], [], [])
    for step, some, where in zip(steps, tokens, positions, strict=True):
        _checks.no_dummies(step, "slime")
        _checks.row_count(step, "slime", multiple=microbatch_group_size_per_vp_stage)
        if len(where) != step.num_samples:
            raise InvalidInput(f"slime: found {len(where)} positions of a step, wanted {step.num_samples}")
        if max_tokens_per_gpu is not None:
            # slime pads neither samples nor cells when it packs, and gives a long sample its own cell
            _checks.capacity(
                step, "slime", _checks.lengths_of(step, some, "slime"), max_tokens_per_gpu * cp_size,
                sample_multiple=1, cell_multiple=1, alone=True,
            )  # fmt: skip
        for row in step.layout:
            for d, cell in enumerate(row):
                begin = len(schedule.partitions[d])
                schedule.partitions[d].extend(int(where[i]) for i in cell)
                schedule.micro_batch_indices[d].append(list(range(begin, begin + len(cell))))
        schedule.num_microbatches.append(step.num_rows)
        rollouts = len(where) if rollout_ids is None else len({rollout_ids[i] for i in where})
        schedule.global_batch_sizes.append(rollouts)
    return schedule
