# SPDX-License-Identifier: Apache-2.0
"""RoutePack on Ray: routes are counted beside the rollouts, a planner actor plans, and a plan is an object reference.

    from routepack.ray import RayPlanning, Sample, in_bundles

    planning = RayPlanning(topology, capacity=8192, cost=cost, experts=128, top_k=8, counters=in_bundles(group))
    planning.counters[3].add("step 7", [Sample(17, routes, length=812), ...])   # in a rollout worker
    future = planning.submit("step 7", ids, lengths)                            # in the driver
    plan = future.result(timeout=5.0)                                           # None: the framework's own packing

- `RayPlanning` is what a driver holds: counting actors, a planner actor, and the steps in the making.
- `Counter` is what a rollout worker holds; it can be pickled. `find_counter` gets one by name.
- `in_bundles` and `on_nodes` say where actors live.
- `SessionPlanner` is a planner actor for the sessions of `routepack.adapters`.

docs/ray.md has set-ups, faults, metrics and limits. Needs Ray (`pip install "routepack[ray]"`).
"""

try:
    import ray as _ray
    import ray.actor as _actor  # the real one: a folder called «ray» on the path has none
except ImportError as error:
    raise ImportError(
        f'routepack.ray: found no Ray, wanted the package ray: pip install "routepack[ray]" brings it ({error})'
    ) from None

from routepack.ray._counter import Added, Counter, find_counter
from routepack.ray._future import RayPlanFuture
from routepack.ray._metrics import METRICS
from routepack.ray._planning import RayPlanning
from routepack.ray._samples import Sample
from routepack.ray._session import SessionPlanner
from routepack.ray._where import in_bundles, on_nodes

del _ray, _actor

__all__ = [
    "METRICS",
    "Added",
    "Counter",
    "RayPlanFuture",
    "RayPlanning",
    "Sample",
    "SessionPlanner",
    "find_counter",
    "in_bundles",
    "on_nodes",
]
