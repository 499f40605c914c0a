# SPDX-License-Identifier: Apache-2.0
"""Where actors live: scheduling strategies of Ray, one per actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from routepack._errors import InvalidInput


def in_bundles(groups: Any, bundles: Sequence[int] | None = None, *, per_bundle: int = 1) -> list[Any]:
    """Actors inside the bundles of a placement group, or of several (a verl pool has one group per node).

    They ask for no CPU unless told so, and so fit into a group that is full; they end with the group.

    :param bundles: numbers of bundles in each group; None: all
    """
    several = list(groups) if isinstance(groups, (list, tuple)) else [groups]
    made = []
    for group in several:
        count = int(group.bundle_count)
        for bundle in range(count) if bundles is None else bundles:
            if not 0 <= bundle < count:
                raise InvalidInput(f"bundles: found {bundle}, wanted 0 to {count - 1}")
            made += [
                PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=bundle)
            ] * per_bundle
    return made


def on_nodes(nodes: Sequence[str] | None = None, *, per_node: int = 1, soft: bool = True) -> list[Any]:
    """Actors on nodes, by their ids in Ray; None: every node that is alive.

    :param soft: an actor whose node is lost starts again on another one, instead of never
    """
    if nodes is None:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    return [NodeAffinitySchedulingStrategy(node_id=node, soft=soft) for node in nodes for _ in range(per_node)]


def here() -> Any:
    """On the caller's node, while it is there."""
    return NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=True)


def asked_for(strategy: Any, num_cpus: float) -> dict[str, Any]:
    """Options of an actor that shall live where the strategy says.

    Ray puts an actor that asks for nothing on any node, whatever a soft strategy says (ray 2.60,
    `ClusterResourceScheduler::GetBestSchedulableNode`). One byte of memory is something, and every node has it. Bundles
    of placement groups need not have any; there Ray itself asks for a share of the bundle.
    """
    asked: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": 0, "scheduling_strategy": strategy}
    bundled = strategy in (None, "DEFAULT") or isinstance(strategy, PlacementGroupSchedulingStrategy)
    if not num_cpus and not bundled:
        asked["memory"] = 1
    return asked


def strategies(where: int | Sequence[Any]) -> list[Any]:
    """One per actor. A number of actors is spread over the nodes, and stays out of the caller's placement group."""
    made = ["SPREAD"] * where if isinstance(where, int) else list(where)
    if not made:
        raise InvalidInput("counters: found none, wanted 1 or more")
    return made
