# SPDX-License-Identifier: Apache-2.0
"""verl: a permutation of the batch, and a column that says which microbatch each sample belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._core import Plan
from routepack._errors import InvalidInput
from routepack.exporters import _checks


@dataclass(frozen=True, eq=False)
class VerlBatch:
    """Reorder the batch by `permutation`, and attach the columns, which are in the new order.

    verl cuts what comes out into D equal chunks, one per data-parallel rank. Indices of N and above in the permutation
    are dummies: append that many samples of one token with a loss mask of zeros before reordering.
    """

    permutation: npt.NDArray[np.int64]  #: [N + dummies]
    cell_ids: npt.NDArray[np.int64]  #: [N + dummies]: the row in which each sample trains
    loss_weights: npt.NDArray[np.float32]  #: [N + dummies]: 0 for dummies
    dummies: int
    num_micro_batches: int  #: on every rank

    def micro_batches(self, rank: int, ranks: int) -> list[list[int]]:
        """What a rank makes of its chunk in `prepare_micro_batches`: local indices, row by row."""
        size = len(self.cell_ids) // ranks
        mine = self.cell_ids[rank * size : (rank + 1) * size]
        return [np.flatnonzero(mine == r).tolist() for r in range(self.num_micro_batches)]


def verl(
    plan: Plan,
    *,
    lengths: Any = None,
    max_token_len: int | None = None,
    sample_multiple: int | None = None,
    num_batches_divided_by: int = 1,
    min_num_micro_batch: int = 1,
) -> VerlBatch:
    """For `_balance_batch` and `prepare_micro_batches`; one PPO mini-batch per plan.

    :param lengths: tokens per sample; with `max_token_len` (of a GPU, times sequence or context parallelism) the cap is
        checked, on lengths padded to `sample_multiple`
    :param num_batches_divided_by: with interleaved pipelines, what the number of microbatches is a multiple of
    :raises InvalidInput: for slots with different numbers of samples, a cell over the cap, or a wrong row count

    >>> plan = Plan.from_json('{"format": "routepack.plan/1", "topology": {"ep": 1, "shards": [[0, 1]]}, "capacity": 9,'
    ...     ' "rows": 2, "dummies": 1, "physical_to_logical": [[0]], "cost": {"stages": [], "expert": 1.0},'
    ...     ' "layout": [[[3, 5], [0, 4]], [[1], [2]]]}')
    >>> batch = verl(plan)
    >>> batch.permutation.tolist(), batch.cell_ids.tolist(), batch.loss_weights.tolist()
    ([3, 5, 1, 0, 4, 2], [0, 0, 1, 0, 0, 1], [1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    >>> batch.micro_batches(rank=1, ranks=2)
    [[0, 1], [2]]
    """
    _checks.equal_counts(plan, "verl")
    _checks.row_count(plan, "verl", multiple=num_batches_divided_by, least=min_num_micro_batch)
    if max_token_len is not None:
        if lengths is None:
            raise InvalidInput("verl: found max_token_len without lengths, wanted both")
        tokens = _checks.lengths_of(plan, lengths, "verl")
        _checks.capacity(plan, "verl", tokens, max_token_len, sample_multiple=sample_multiple)
    order = [i for d in range(plan.num_slots) for i in _checks.sample_order(plan, d)]
    permutation = np.array(order, dtype=np.int64)
    return VerlBatch(
        permutation=permutation,
        cell_ids=plan.rows.astype(np.int64)[permutation],
        loss_weights=_checks.loss_weights(plan)[permutation],
        dummies=plan.dummies,
        num_micro_batches=plan.num_rows,
    )
