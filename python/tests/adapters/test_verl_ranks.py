# SPDX-License-Identifier: Apache-2.0
"""verl's workers use the plan's microbatches on all ranks or on none. Needs torch, and not verl."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from transfer.processes import run_ranks  # noqa: E402

from routepack.adapters import verl_cells  # noqa: E402

COLUMN = np.array([[0, 0, 2, 9], [1, 0, 2, 9], [1, 0, 2, 9]])


def job(rank: int, broken: list[int], divided_by: int) -> Any:
    verl_cells.module_of = lambda *_: types.SimpleNamespace(  # type: ignore[assignment]
        get_device_name=lambda: "cpu", index_select_tensor_dict=lambda batch, cell: cell
    )
    column = COLUMN[1:] if rank in broken else COLUMN
    batch = {verl_cells.CELLS: torch.from_numpy(column), "input_ids": torch.arange(len(column))}
    rearrange = verl_cells.rearranging(lambda batch, cap, **_: ("verl's", sorted(batch)))
    return rearrange(batch, 9, dp_group=dist.group.WORLD, num_batches_divided_by=divided_by)


def test_all_ranks_have_whole_mini_batches() -> None:
    assert run_ranks(job, 2, [], 2) == [([[0], [1, 2]], [[0], [1, 2]])] * 2


@pytest.mark.parametrize(("broken", "divided_by"), [([1], 1), ([0], 1), ([0, 1], 1), ([], 4)])
def test_one_rank_has_not(broken: list[int], divided_by: int) -> None:
    # The column is gone: verl's own cut would not know what it is.
    assert run_ranks(job, 2, broken, divided_by) == [("verl's", ["input_ids"])] * 2


def test_without_a_column_nothing_is_asked() -> None:
    rearrange = verl_cells.rearranging(lambda batch, cap, **_: "verl's")
    assert rearrange({"input_ids": None}, 9, dp_group="not a group") == "verl's"
