# SPDX-License-Identifier: Apache-2.0
"""Which samples train together, and where experts live: with RoutePack, and without.

One rank plans and tells all the others: no two ranks ever disagree about the number of microbatches.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

import routepack
from grpo import Rollout
from model import Shape
from parallel import Grid

Layout = list[list[list[int]]]  # [row][slot], the samples
Loads = npt.NDArray[np.int64]  # [R, G, L, P], routed tokens


@dataclasses.dataclass
class Schedule:
    """What all ranks train by. A row is one microbatch on every slot."""

    layout: Layout
    placement: routepack.Placement
    predicted: Loads  # what the ranks will get
    figures: dict[str, Any]  # for the report; complete on rank 0


def loads_of(
    layout: Layout, counts: npt.NDArray[Any], rank_of: npt.NDArray[Any], shards: list[list[int]], ranks: int
) -> Loads:
    """Routed tokens [R, G, L, P] of a layout under a placement.

    :param counts: [N, L, E], tokens of each sample that each expert gets
    :param rank_of: [L, E], the rank of each expert
    """
    on_rank = (rank_of[:, :, None] == np.arange(ranks)).astype(np.int64)  # [L, E, P]
    per_sample = np.einsum("nle,lep->nlp", counts.astype(np.int64), on_rank)
    cells_of = [[[i for slot in shard for i in cells[slot]] for shard in shards] for cells in layout]
    return np.array([[per_sample[ids].sum(0) for ids in row] for row in cells_of], dtype=np.int64)


def efficiency(loads: Loads) -> float:
    """Mean rank over busiest rank, over all rows, shards and layers: 1 is perfect."""
    return float(loads.mean(-1).sum() / max(1, loads.max(-1).sum()))


def plain_layout(lengths: Sequence[int], slots: int, capacity: int) -> Layout:
    """What a trainer without a planner does: longest sample first, to the cell with the fewest tokens; one more row
    until all cells keep to the cap."""
    if max(lengths) > capacity:
        raise ValueError(f"found a sample of {max(lengths)} tokens, wanted {capacity} at most; raise --capacity")
    rows = -(-sum(lengths) // (slots * capacity))
    while True:
        cells: list[list[int]] = [[] for _ in range(rows * slots)]
        tokens = [0] * len(cells)
        for sample in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            lightest = min(range(len(cells)), key=tokens.__getitem__)
            cells[lightest].append(sample)
            tokens[lightest] += lengths[sample]
        if max(tokens) <= capacity:
            return [cells[row * slots : (row + 1) * slots] for row in range(rows)]
        rows += 1


def cost_of(shape: Shape, capacity: int) -> routepack.CostModel:
    """In units of one routed token at one layer, 6 · hidden · width operations of an expert. Only ratios matter."""
    unit = 6 * shape.hidden * shape.width
    projections = capacity * shape.layers * 8 * shape.hidden**2 / unit
    scores = capacity**2 * shape.layers * 4 * shape.hidden / unit
    return routepack.CostModel([routepack.Stage("attention", alpha=projections, beta=scores)])


class Planning:
    """Plans one step after another. `begin` once counts are known, `finish` when training wants to begin; what is done
    in between hides the planning."""

    def __init__(self, shape: Shape, grid: Grid, capacity: int, deadline: float, enabled: bool) -> None:
        self.grid, self.capacity, self.deadline, self.enabled = grid, capacity, deadline, enabled
        self.identity = routepack.Placement.identity(layers=shape.layers, experts=shape.experts, ranks=grid.ep)
        self.shards = routepack.Topology(dp=grid.ranks, ep=grid.ep).shards
        self.top_k = shape.top_k
        self.future: routepack.PlanFuture | None = None
        self.failure: Exception | None = None
        self.planner: routepack.Planner | None = None
        if enabled and grid.rank == 0:
            self.planner = routepack.Planner(
                routepack.Topology(dp=grid.ranks, ep=grid.ep),
                capacity=capacity,
                cost=cost_of(shape, capacity),
                # Sticky moves may run while packing goes on; moves that suit the rows come in a second batch. A quarter
                # of the experts at most: of 48, a few percent would be next to none.
                params=routepack.PlanParams(two_batches=True, moves="0.25", effort="fast", threads=1),
            )

    def begin(self, mine: Sequence[Rollout], ids: Sequence[int], current: routepack.Placement) -> None:
        """Collective. Counts travel to rank 0, routes do not."""
        part = (list(ids), [r.length for r in mine], self._count(mine), [r.group for r in mine])
        parts: list[Any] | None = [None] * self.grid.ranks if self.grid.rank == 0 else None
        dist.gather_object(part, parts)
        self.current, self.began = current, time.perf_counter()
        if parts is None:
            return
        order = np.argsort(np.concatenate([np.array(p[0], dtype=np.int64) for p in parts]))
        self.lengths = np.concatenate([np.array(p[1], dtype=np.int32) for p in parts])[order]
        self.counts = np.concatenate([p[2] for p in parts])[order]
        if self.planner is not None:
            groups = np.concatenate([np.array(p[3], dtype=np.int32) for p in parts])[order]
            self.future, self.failure = None, None
            try:
                self.window = routepack.Window.from_arrays(
                    lengths=self.lengths, counts=self.counts, groups=groups, top_k=self.top_k
                )
                self.future = self.planner.submit(self.window, current=current)
            except Exception as error:  # whatever it is, it must not end the training
                self.failure = error

    def finish(self, move: Callable[[routepack.Placement], int]) -> Schedule:
        """Collective. Moves experts with `move`, which runs on all ranks, and says how to train."""
        aux = time.perf_counter() - self.began
        moving, sent, waited = 0.0, 0, 0.0
        if self.enabled:
            # First batch: final as soon as experts have a place. Packing goes on meanwhile, in the planner's thread.
            for ask in (self._placement, self._whole_plan):
                asked = time.perf_counter()
                placement = self._tell(ask() if self.grid.rank == 0 else None)
                waited += time.perf_counter() - asked
                began = time.perf_counter()
                sent += move(placement)
                moving += time.perf_counter() - began
                self.current = placement
        schedule = self._tell(self._schedule(aux, moving, waited) if self.grid.rank == 0 else None)
        schedule.figures["sent_bytes"] = sent
        return schedule

    def _count(self, mine: Sequence[Rollout]) -> npt.NDArray[np.uint32]:
        """[N, L, E], how many tokens of each answer each expert gets."""
        if not mine:
            return np.zeros((0, self.identity.layers, self.identity.experts), dtype=np.uint32)
        routes = [rollout.routes for rollout in mine]
        return routepack.count_routes_batch(routes, experts=self.identity.experts, threads=1)[0]

    def _placement(self) -> routepack.Placement:
        try:
            assert self.future is not None
            return self.future.placement_future.result(timeout=self.deadline)
        except Exception:  # said when the plan is asked for
            return self.current

    def _whole_plan(self) -> routepack.Placement:
        """The plan, or what is done without one: the step runs anyway, with experts where they are."""
        self.plan: routepack.Plan | None = None
        try:
            if self.future is None:
                raise self.failure or RuntimeError("nothing was submitted")
            self.plan = self.future.result(timeout=self.deadline)
            return self.plan.placement
        except Exception as error:
            print(f"no plan for this step, plain packing instead: {error}", file=sys.stderr)
            return self.current

    def _schedule(self, aux: float, moving: float, waited: float) -> Schedule:
        before = self._plain(self.identity)
        if not self.enabled or self.plan is None:
            made = self._plain(self.current)
            made.figures = {"planned": False}
        else:
            assert self.planner is not None
            made = Schedule(self.plan.layout, self.plan.placement, self.plan.rank_loads(self.window), {})
            path = self.planner.critical_path(aux_ms=1e3 * aux, actor_ms=1e3 * moving, future=self.future)
            made.figures = {
                "planned": True,
                "complete": self.plan.complete,
                "plan_ms": path.planning_ms,
                "hidden": not path.extended,
                "slack_ms": path.slack_ms - path.extension_ms,
                "waited_ms": 1e3 * waited,
                "move_ms": 1e3 * moving,
                "moved_experts": int(self.plan.metrics["routepack/moved_experts"]),
            }
        made.figures |= {
            "rows": len(made.layout),
            "rows_before": len(before.layout),
            "efficiency_before": efficiency(before.predicted),
            "efficiency": efficiency(made.predicted),
            "busiest_before": int(before.predicted.max(-1).sum()),
            "busiest": int(made.predicted.max(-1).sum()),
        }
        return made

    def _plain(self, placement: routepack.Placement) -> Schedule:
        layout = plain_layout(self.lengths.tolist(), self.grid.ranks, self.capacity)
        loads = loads_of(layout, self.counts, placement.rank_of, self.shards, self.grid.ep)
        return Schedule(layout, placement, loads, {})

    def observe(self, schedule: Schedule, received: Loads) -> None:
        """Rank 0 says so when ranks did not get what the plan says."""
        if self.planner is not None and schedule.figures["planned"]:
            self.planner.observe(received, future=self.future)

    def close(self) -> None:
        if self.planner is not None:
            self.planner.close(cancel=True)

    def _tell(self, what: Any) -> Any:
        box = [what]
        dist.broadcast_object_list(box, src=0)
        return box[0]
