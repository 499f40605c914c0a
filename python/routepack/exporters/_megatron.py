# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM: what `get_groups_and_subsamples` of a packing scheduler returns."""

from __future__ import annotations

from typing import Any

from routepack._core import Plan
from routepack._errors import InvalidInput
from routepack.exporters import _checks


def megatron(
    plan: Plan,
    *,
    cp_size: int = 1,
    lengths: Any = None,
    max_seqlen_per_dp_cp_rank: int | None = None,
    microbatch_group_size_per_vp_stage: int | None = None,
    max_num_seqs: int | None = None,
) -> list[list[list[int]]]:
    """`groups[row][rank]`, the samples of each rank of the data- and context-parallel group.

    A slot's context-parallel ranks are neighbours and share its samples. Without dynamic context parallelism.

    :param lengths: padded tokens per sample, as the scheduler sees them; with `max_seqlen_per_dp_cp_rank` the cap of
        `cp_size` times that is checked
    :raises InvalidInput: for dummies (Megatron takes different counts per rank), a cell over the cap or with more than
        `max_num_seqs` samples, or a row count that interleaved pipelines do not take

    >>> plan = Plan.from_json('{"format": "routepack.plan/1", "topology": {"ep": 1, "shards": [[0, 1]]}, "capacity": 9,'
    ...     ' "rows": 2, "physical_to_logical": [[0]], "cost": {"stages": [], "expert": 1.0},'
    ...     ' "layout": [[[3], [0, 4]], [[1], [2]]]}')
    >>> megatron(plan)
    [[[3], [0, 4]], [[1], [2]]]
    >>> megatron(plan, cp_size=2)
    [[[3], [3], [0, 4], [0, 4]], [[1], [1], [2], [2]]]
    """
    if cp_size < 1:
        raise InvalidInput(f"megatron: found cp_size {cp_size}, wanted 1 or more")
    _checks.no_dummies(plan, "megatron")
    _checks.row_count(plan, "megatron", multiple=microbatch_group_size_per_vp_stage or 1)
    _checks.samples_per_cell(plan, "megatron", max_num_seqs)
    if max_seqlen_per_dp_cp_rank is not None:
        if lengths is None:
            raise InvalidInput("megatron: found max_seqlen_per_dp_cp_rank without lengths, wanted both")
        tokens = _checks.lengths_of(plan, lengths, "megatron")
        _checks.capacity(plan, "megatron", tokens, max_seqlen_per_dp_cp_rank * cp_size)
    return [[list(cell) for cell in row for _ in range(cp_size)] for row in plan.layout]
