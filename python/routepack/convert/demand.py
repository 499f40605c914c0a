# SPDX-License-Identifier: Apache-2.0
"""Summed demand: windows of kind «aggregate», which know experts and no samples."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

import routepack
from routepack.convert import layers
from routepack.convert.errors import FormatError, InvalidInput, shown
from routepack.convert.options import MAX_SIZE, Options
from routepack.convert.report import Report
from routepack.convert.sample import Demand


def aggregate(demands: Iterable[Demand], options: Options, where: str) -> tuple[routepack.Window, Report]:
    """Sums demands over files and makes a window of kind «aggregate», counts [1, layers, experts]."""
    total: npt.NDArray[np.int64] | None = None
    top_k, numbers, first = options.top_k, None, ""
    for demand in demands:
        at = f"{demand.where}, {demand.key}"
        if top_k is None:
            top_k = demand.top_k
        if demand.top_k is not None and demand.top_k != top_k:
            raise FormatError(f"{at}: found top_k {demand.top_k}, wanted {top_k}")
        if total is None:
            total, numbers, first = np.zeros_like(demand.counts), demand.layers, demand.where
        if demand.counts.shape != total.shape or demand.layers != numbers:
            raise FormatError(
                f"{at}: found {_spelled(demand.counts, demand.layers)}, "
                f"wanted {_spelled(total, numbers)}, as in {first}"
            )
        total += demand.counts
    if total is None:
        raise FormatError(f"{where}: found no record, wanted at least one")
    if top_k is None:
        raise InvalidInput("option top_k: found nothing, wanted the number of experts per token")
    total, numbers, dense = _moe_rows(total, numbers, options, where)
    if total.max() > MAX_SIZE:
        raise FormatError(
            f"{where}: found {total.max()} tokens on one expert, wanted at most {MAX_SIZE}; convert fewer steps"
        )
    rows, rest = np.divmod(total.sum(axis=1), top_k)
    exact = not rest.any() and int(rows.max()) <= MAX_SIZE  # stat_approx modes do not count whole tokens
    window = routepack.Window.from_arrays(
        lengths=None,
        counts=total.astype(np.uint32)[None],
        top_k=top_k,
        recorded=rows.astype(np.int32)[None] if exact else None,
        layers=None if numbers is None else list(numbers),
        model=options.model,
        kind="aggregate",
    )
    report = Report(
        kind="aggregate",
        samples=1,
        tokens=int(rows.max()),
        layers=total.shape[0],
        experts=total.shape[1],
        top_k=top_k,
        recorded=int(rows.sum()),
        missing=0,
        without_routes=0,
        dense_layers=dense,
    )
    return window, report


def _spelled(counts: npt.NDArray[np.int64], numbers: tuple[int, ...] | None) -> str:
    named = "" if numbers is None else f" ({shown(list(numbers), 40)})"
    return f"{counts.shape[0]} layers{named} of {counts.shape[1]} experts"


def _moe_rows(
    total: npt.NDArray[np.int64], numbers: tuple[int, ...] | None, options: Options, where: str
) -> tuple[npt.NDArray[np.int64], tuple[int, ...] | None, int]:
    seen = total.sum(axis=1)
    if options.layers is not None:
        if numbers is not None:
            lacking = sorted(set(options.layers) - set(numbers))
            if lacking:
                raise FormatError(
                    f"{where}: found no record of layer {lacking[0]}, wanted layers {shown(list(options.layers))}"
                )
            picked: tuple[int, ...] | None = tuple(numbers.index(number) for number in options.layers)
        else:
            picked = layers.columns(len(total), options, where)
        if picked is not None:
            total, seen = total[list(picked)], seen[list(picked)]
        layers.refuse_empty(seen, options.layers, where)
        return total, options.layers, 0
    if numbers is None:
        layers.columns(len(total), options, where)
    dense = layers.leading_dense(seen, where)
    if numbers is None and (dense > 0 or len(total) == options.num_layers):
        numbers = tuple(range(len(total)))
    return total[dense:], None if numbers is None else numbers[dense:], dense
