# SPDX-License-Identifier: Apache-2.0
"""AReaL: which trajectories go to which rank, and the microbatches there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._core import Plan
from routepack._errors import InvalidInput
from routepack.exporters import _checks


@dataclass(frozen=True, eq=False)
class ArealDispatch:
    """`group_indices` in place of what `_dispatch_tensors` computes, `micro_batches` in place of the worker's own."""

    group_indices: list[list[int]]  #: [D]: items of each rank, in order of execution; N and above are dummies
    micro_batches: list[list[list[int]]]  #: [D][row]: indices into the rank's items, ascending
    loss_weights: npt.NDArray[np.float32]  #: [N + dummies]: 0 for dummies
    dummies: int


def areal(
    plan: Plan,
    *,
    lengths: Any = None,
    max_tokens_per_mb: int | None = None,
    sample_multiple: int | None = None,
    cell_multiple: int | None = None,
    pp_size: int = 1,
    equal_counts: bool = True,
) -> ArealDispatch:
    """For `TrainController` and `allocate_balanced_mbs_synced`; one `ppo_update` mini-batch per plan, items of one sample.

    :param lengths: tokens per sample; with `max_tokens_per_mb` the cap is checked, on aligned lengths
    :param pp_size: with pipelines AReaL wants a multiple of this, and twice as many rows at least
    :param equal_counts: the controller's dispatch wants the same number of items on every rank
    :raises InvalidInput: where AReaL would stop or hang

    >>> plan = Plan.from_json('{"format": "routepack.plan/1", "topology": {"ep": 1, "shards": [[0, 1]]}, "capacity": 9,'
    ...     ' "rows": 2, "dummies": 1, "physical_to_logical": [[0]], "cost": {"stages": [], "expert": 1.0},'
    ...     ' "layout": [[[3, 5], [0, 4]], [[1], [2]]]}')
    >>> dispatch = areal(plan)
    >>> dispatch.group_indices, dispatch.micro_batches
    ([[3, 5, 1], [0, 4, 2]], [[[0, 1], [2]], [[0, 1], [2]]])
    """
    if equal_counts:
        _checks.equal_counts(plan, "areal")
    if pp_size > 1:
        _checks.row_count(plan, "areal", multiple=pp_size, least=2 * pp_size)
    if max_tokens_per_mb is not None:
        if lengths is None:
            raise InvalidInput("areal: found max_tokens_per_mb without lengths, wanted both")
        tokens = _checks.lengths_of(plan, lengths, "areal")
        _checks.capacity(
            plan, "areal", tokens, max_tokens_per_mb, sample_multiple=sample_multiple, cell_multiple=cell_multiple
        )
    micro_batches: list[list[list[int]]] = []
    for d in range(plan.num_slots):
        begin = 0
        micro_batches.append([])
        for row in plan.layout:
            micro_batches[-1].append(list(range(begin, begin + len(row[d]))))
            begin += len(row[d])
    return ArealDispatch(
        group_indices=[_checks.sample_order(plan, d) for d in range(plan.num_slots)],
        micro_batches=micro_batches,
        loss_weights=_checks.loss_weights(plan),
        dummies=plan.dummies,
    )
