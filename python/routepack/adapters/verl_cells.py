# SPDX-License-Identifier: Apache-2.0
"""verl's workers cut a batch into the plan's microbatches: the column that says how, who obeys it, and who was asked.

Whether a pass is cut by the column is agreed among the ranks, in one all-reduce of the hook. A rank without the hook
would be in another collective of verl's own cut at that moment, and both would wait for ever. So the driver gives the
column to nobody unless all worker processes have said that they have the hook.
Source: verl/workers/engine/utils.py, verl/single_controller/base/decorator.py of verl 0.9.1.
"""

from __future__ import annotations

import functools
import platform
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._errors import InvalidInput
from routepack.adapters._hooks import module_of
from routepack.adapters._reasons import FallBack, Reason, one_line
from routepack.adapters._routes import COUNTS

MODULE, FUNCTION = "verl.workers.engine.utils", "rearrange_micro_batches"
#: int64 [N, 4]: microbatch, counted over all mini-batches; first one and number of those of its mini-batch; cap
CELLS = "routepack_cells"
OBEYS = "routepack_obeys"  #: method of a worker group
GROUPS = ("actor_rollout_wg", "ref_policy_wg")  #: of a trainer: who gets batches with the column

_HOOKED = "routepack_cells"
#: of each trainer: the worker groups that were asked, and why the column is not for them
_SAID: weakref.WeakKeyDictionary[Any, tuple[list[Any], str]] = weakref.WeakKeyDictionary()


def rearranging(original: Any) -> Any:
    """`rearrange_micro_batches` that makes the microbatches of the column when there is one."""

    @functools.wraps(original)
    def rearrange_micro_batches(batch: Any, max_token_len: int, *args: Any, **kwargs: Any) -> Any:
        if COUNTS in batch.keys():
            batch.pop(COUNTS)  # only the driver reads it
        if CELLS not in batch.keys():
            return original(batch, max_token_len, *args, **kwargs)
        column = rows_of(batch.pop(CELLS)).cpu().numpy()
        cells = cells_of(column, max_token_len, kwargs.get("num_batches_divided_by") or 1)
        # All ranks have the column, and all of them must agree: verl's own cut asks the group too.
        if not _agreed(cells is not None and not args, kwargs.get("dp_group")):
            return original(batch, max_token_len, *args, **kwargs)
        assert cells is not None
        select = module_of("verl", "verl.utils.tensordict_utils").index_select_tensor_dict
        return [select(batch, cell) for cell in cells], cells

    setattr(rearrange_micro_batches, _HOOKED, True)
    return rearrange_micro_batches


def rows_of(field: Any) -> Any:
    """A field with rows of one shape, also from TransferQueue, which gives every field as a ragged one."""
    import torch

    return torch.stack(list(field.unbind())) if field.is_nested else field


def cells_of(column: npt.NDArray[np.int64], max_token_len: int, divided_by: int) -> list[list[int]] | None:
    """Positions of the samples of each microbatch, or None when these samples are not whole mini-batches of the plan.

    >>> column = np.array([[1, 0, 2, 9], [0, 0, 2, 9], [1, 0, 2, 9]])
    >>> cells_of(column, 9, 1), cells_of(column[:1], 9, 1), cells_of(column, 8, 1)
    ([[1], [0, 2]], None, None)
    """
    if column.ndim != 2 or column.shape[1] != 4 or not len(column) or max_token_len < column[:, 3].max():
        return None  # this pass has limits of its own
    wanted = sorted({int(first) + i for first, rows in np.unique(column[:, 1:3], axis=0) for i in range(int(rows))})
    if sorted(set(column[:, 0].tolist())) != wanted or len(wanted) % divided_by:
        return None
    return [np.flatnonzero(column[:, 0] == cell).tolist() for cell in wanted]


def no_cells(samples: int) -> npt.NDArray[np.int64]:
    """A column in the place of one that nobody may obey any more.

    >>> cells_of(no_cells(3), 9, 1) is None
    True
    """
    return np.full((samples, 4), -1, dtype=np.int64)


def _agreed(mine: bool, group: Any) -> bool:
    import torch
    import torch.distributed as dist

    if group is None or not dist.is_initialized():
        return mine
    answer = torch.tensor([int(mine)], device=module_of("verl", "verl.utils.device").get_device_name())
    dist.all_reduce(answer, op=dist.ReduceOp.MIN, group=group)
    return bool(answer.item())


def routepack_obeys(self: Any) -> str:
    """Of a worker: why its process would not cut a batch by the column; empty: it would."""
    try:
        function = getattr(module_of("verl", MODULE), FUNCTION)
    except (InvalidInput, AttributeError) as error:
        return f"{platform.node()}: {one_line(error)}"
    return "" if getattr(function, _HOOKED, False) else f"{platform.node()}: {MODULE}.{FUNCTION} is verl's own"


def need_all(trainer: Any, names: Sequence[str] = GROUPS) -> None:
    """Unless all workers that get batches with the column obey it, there is no plan. Asks until they have answered.

    :param names: of the trainer's worker groups; those that share processes are asked once
    :raises FallBack: naming who does not
    """
    groups: list[Any] = []
    for name in names:
        group = getattr(trainer, name, None)
        if group is not None and not any(_same_processes(group, other) for other in groups):
            groups.append(group)
    known = _SAID.get(trainer)
    if known is None or len(known[0]) != len(groups) or any(a is not b for a, b in zip(known[0], groups, strict=True)):
        said, lasts = next((one for group in groups if (one := _refusal(group))[0]), ("", True))
        if lasts:
            _SAID[trainer] = groups, said
    else:
        said = known[1]
    if said:
        raise FallBack(
            Reason.UNSUPPORTED,
            f"workers without hooks: {said}; wanted VERL_USE_EXTERNAL_MODULES=routepack.adapters.verl_auto in the "
            "environment of all processes, before workers are made",
        )


def _same_processes(group: Any, other: Any) -> bool:
    workers = getattr(group, "_workers", None)
    return group is other or (bool(workers) and workers == getattr(other, "_workers", None))


def _refusal(group: Any) -> tuple[str, bool]:
    """Why not all workers of a group obey, or nothing when they do; and whether that lasts: an error of the call may
    not."""
    call = getattr(group, OBEYS, None)
    if not callable(call):
        return f"{type(group).__name__} has no method {OBEYS}", True
    try:
        said = list(call())
    except Exception as error:  # also workers without the method, in what Ray makes of that
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        return one_line(lines[-1]), False
    if not said:
        return f"{type(group).__name__} has no workers", True
    for rank, text in enumerate(said):
        if text != "":
            return f"rank {rank}, {one_line(text)}", True
    return "", True


__all__ = ["CELLS", "GROUPS", "MODULE", "OBEYS", "cells_of", "need_all", "no_cells", "rearranging", "rows_of"]
