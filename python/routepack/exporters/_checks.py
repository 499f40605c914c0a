# SPDX-License-Identifier: Apache-2.0
"""What frameworks ask of a layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._arrays import host_array
from routepack._core import Plan
from routepack._errors import InvalidInput


def refuse(framework: str, found: str, wanted: str, remedy: str) -> InvalidInput:
    """One line: what was found and wanted, and what to change."""
    return InvalidInput(f"{framework}: found {found}, wanted {wanted}; {remedy}")


def as_plans(plans: Plan | Sequence[Plan], framework: str) -> list[Plan]:
    """One plan per optimizer step, on the same number of slots."""
    steps = [plans] if isinstance(plans, Plan) else list(plans)
    if not steps:
        raise InvalidInput(f"{framework}: found no plan, wanted one per optimizer step")
    for number, step in enumerate(steps):
        if step.num_slots != steps[0].num_slots:
            raise refuse(
                framework,
                f"{step.num_slots} slots in step {number}",
                f"{steps[0].num_slots}, as in step 0",
                "plan all steps for one topology",
            )
    return steps


def no_dummies(plan: Plan, framework: str) -> None:
    """For frameworks that take any number of samples per rank."""
    if plan.dummies:
        raise refuse(
            framework,
            f"{plan.dummies} dummy samples",
            "real ones alone",
            f"{framework} takes different counts per rank: plan without Constraints.add_dummies",
        )


def equal_counts(plan: Plan, framework: str) -> int:
    """Samples per slot, on every slot the same."""
    counts = np.bincount(plan.slots, minlength=plan.num_slots)
    if (counts != counts[0]).any():
        other = int(np.flatnonzero(counts != counts[0])[0])
        total = plan.num_samples + plan.dummies
        remedy = "plan with Constraints(equal_count=True)"
        if total % plan.num_slots:
            remedy = "plan with Constraints(equal_count=True, add_dummies=True)"
        raise refuse(
            framework, f"{counts[0]} samples on slot 0 and {counts[other]} on slot {other}", "equal counts", remedy
        )
    return int(counts[0])


def row_count(plan: Plan, framework: str, *, multiple: int = 1, least: int = 1) -> None:
    """What pipelines ask of the number of rows."""
    if multiple < 1 or least < 1:
        raise InvalidInput(f"{framework}: found a multiple of {multiple} and at least {least} rows, wanted 1 or more")
    if plan.num_rows % multiple:
        raise refuse(
            framework,
            f"{plan.num_rows} rows",
            f"a multiple of {multiple}",
            f"plan with Constraints(row_multiple={multiple})",
        )
    if plan.num_rows < least:
        raise refuse(
            framework, f"{plan.num_rows} rows", f"at least {least}", f"plan with Constraints(min_rows={least})"
        )


def samples_per_cell(plan: Plan, framework: str, most: int | None) -> None:
    """The longest list of samples in a cell."""
    if most is None:
        return
    for r, row in enumerate(plan.layout):
        for d, cell in enumerate(row):
            if len(cell) > most:
                raise refuse(
                    framework,
                    f"{len(cell)} samples in row {r}, slot {d}",
                    f"at most {most}",
                    f"plan with Constraints(max_samples_per_cell={most})",
                )


def lengths_of(plan: Plan, lengths: Any, framework: str) -> npt.NDArray[np.int64]:
    """Tokens of every sample, dummies included."""
    given = host_array(lengths, "lengths")
    if given.shape != (plan.num_samples,):
        raise InvalidInput(f"{framework}: found lengths of shape {list(given.shape)}, wanted [{plan.num_samples}]")
    return np.concatenate([given.astype(np.int64), np.ones(plan.dummies, dtype=np.int64)])


def capacity(
    plan: Plan,
    framework: str,
    tokens: npt.NDArray[np.int64],
    cap: int | None,
    *,
    sample_multiple: int | None = None,
    cell_multiple: int | None = None,
    alone: bool = False,
) -> list[list[int]]:
    """Aligned tokens of every cell, [R][D], each within the cap.

    :param sample_multiple: what each sample is padded to; None: as planned
    :param cell_multiple: what each cell is padded to; None: as planned
    :param alone: one sample over the cap may have its own cell
    """
    align = plan.constraints.sample_multiple if sample_multiple is None else sample_multiple
    whole = plan.constraints.cell_multiple if cell_multiple is None else cell_multiple
    if align < 1 or whole < 1:
        raise InvalidInput(f"{framework}: found multiples {align} and {whole}, wanted 1 or more")
    padded = -(-tokens // align) * align
    cells: list[list[int]] = []
    for r, row in enumerate(plan.layout):
        cells.append([])
        for d, cell in enumerate(row):
            load = int(-(-int(padded[cell].sum()) // whole) * whole)
            cells[-1].append(load)
            if cap is not None and load > cap and not (alone and len(cell) == 1):
                changes = f"capacity={cap}"
                if (align, whole) != (plan.constraints.sample_multiple, plan.constraints.cell_multiple):
                    changes += f", constraints=Constraints(sample_multiple={align}, cell_multiple={whole})"
                raise refuse(
                    framework, f"{load} aligned tokens in row {r}, slot {d}", f"at most {cap}", f"plan with {changes}"
                )
    return cells


def loss_weights(plan: Plan) -> npt.NDArray[np.float32]:
    """1 for every sample and 0 for every dummy, [N + dummies]."""
    weights = np.ones(plan.num_samples + plan.dummies, dtype=np.float32)
    weights[plan.num_samples :] = 0.0
    return weights


def sample_order(plan: Plan, slot: int) -> list[int]:
    """The samples of a slot, row by row."""
    return [i for row in plan.layout for i in row[slot]]
