# SPDX-License-Identifier: Apache-2.0
"""Options of a plan as plain values, since the compiled classes cannot be pickled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack._core import Constraints, CostModel, Placement, Plan, PlanParams, Progress, SearchParams, Topology
from routepack._errors import InvalidInput


@dataclass(frozen=True)
class PlainOptions:
    """The arguments of `routepack.plan_many`, but for the windows and where experts are."""

    ranks: int
    shards: list[list[int]]
    pipeline_stages: int
    capacity: int
    cost: str
    constraints: dict[str, Any]
    params: dict[str, Any]
    search: dict[str, Any] | None
    sync: str = "step"
    progress: Callable[[Progress], object] | None = None

    @staticmethod
    def of(
        topology: Topology,
        capacity: int,
        cost: CostModel,
        constraints: Constraints | None,
        params: PlanParams | None,
        *,
        sync: str = "step",
        progress: Callable[[Progress], object] | None = None,
    ) -> PlainOptions:
        values = (params or PlanParams()).as_dict()
        search = values.pop("search", None)
        return PlainOptions(
            topology.ranks,
            [list(shard) for shard in topology.shards],
            topology.pipeline_stages,
            int(capacity),
            cost.to_toml(),
            (constraints or Constraints()).as_dict(),
            values,
            None if search is None else search.as_dict(),
            sync,
            progress,
        )

    def arguments(self) -> dict[str, Any]:
        """What `plan_many` takes, `progress` left out."""
        search = None if self.search is None else SearchParams(**self.search)
        return {
            "topology": Topology.from_shards(self.ranks, self.shards, self.pipeline_stages),
            "capacity": self.capacity,
            "cost": CostModel.parse(self.cost),
            "constraints": Constraints(**self.constraints),
            "params": PlanParams(**self.params, search=search),
            "sync": self.sync,
        }


def placement_map(where: Placement | Plan | npt.NDArray[np.int32] | None) -> npt.NDArray[np.int32] | None:
    """Physical to logical [L, E], as a copy; None: expert e in slot e."""
    if where is None:
        return None
    if isinstance(where, (Placement, Plan)):
        return np.array(where.physical_to_logical, dtype=np.int32)
    if not isinstance(where, np.ndarray) or where.ndim != 2:
        found = type(where).__name__
        raise InvalidInput(f"current: found {found}, wanted a Placement, a Plan, an array [layers, slots] or None")
    return np.array(where, dtype=np.int32)
