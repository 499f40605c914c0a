# SPDX-License-Identifier: Apache-2.0
"""The layout of a framework that looks at lengths alone: the yardstick of every report."""

from __future__ import annotations

import numpy as np

from routepack.report.problem import Layout, Problem


def first_fit_decreasing(problem: Problem) -> Layout | None:
    """Samples by falling length, each to the first cell that still holds it, in the fewest rows in which that works.

    The same as the «before» of `routepack plan`. None when there is no such layout. Atomic groups stay together.
    """
    items = _items(problem)
    aligned = [sum(problem.aligned[i] for i in item) for item in items]
    order = sorted(range(len(items)), key=lambda k: -aligned[k])
    items, aligned = [items[k] for k in order], [aligned[k] for k in order]
    room = max(1, problem.capacity // problem.cell_multiple * problem.cell_multiple)
    step = problem.row_multiple
    slots = problem.slots
    need = -(-sum(min(a, room) for a in aligned) // (room * slots))
    rows = max(need, problem.min_rows, problem.rows_lower_bound if problem.equal_count else 1)
    for r in range(-(-rows // step) * step, len(items) // slots + 1, step):
        cells = _fill(items, aligned, r * slots, room, problem.max_samples_per_cell)
        if cells is not None:
            return [
                [sorted(i for k in cells[row * slots + slot] for i in items[k]) for slot in range(slots)]
                for row in range(r)
            ]
    return None


def _items(problem: Problem) -> list[list[int]]:
    """What is packed as a unit, by first sample."""
    items: list[list[int]] = []
    of_group: dict[int, list[int]] = {}
    for i in range(len(problem.lengths)):
        group = -1 if problem.atomic is None or i >= len(problem.atomic) else int(problem.atomic[i])
        if group >= 0 and group in of_group:
            of_group[group].append(i)
            continue
        items.append([i])
        if group >= 0:
            of_group[group] = items[-1]
    return items


def _fill(
    items: list[list[int]], aligned: list[int], count: int, room: int, max_samples: int
) -> list[list[int]] | None:
    free = np.full(count, room, dtype=np.int64)
    samples = np.zeros(count, dtype=np.int64)
    cells: list[list[int]] = [[] for _ in range(count)]
    for k, item in enumerate(items):
        if aligned[k] > room:  # longer than any cell: gets its own
            fits = free == room
        else:
            fits = free >= aligned[k]
            if max_samples:
                fits &= samples + len(item) <= max_samples
        c = int(fits.argmax())
        if not fits[c]:
            return None
        cells[c].append(k)
        free[c] = 0 if aligned[k] > room else free[c] - aligned[k]
        samples[c] += len(item)
    return cells if _fill_empty(cells) else None


def _fill_empty(cells: list[list[int]]) -> bool:
    """Every empty cell gets the last item of the cell with the most."""
    for empty in [c for c, cell in enumerate(cells) if not cell]:
        donor = max(range(len(cells)), key=lambda c: (len(cells[c]), c))
        if len(cells[donor]) < 2:
            return False
        cells[empty].append(cells[donor].pop())
    return True
