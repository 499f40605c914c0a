# SPDX-License-Identifier: Apache-2.0
"""What a step logs. Names stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

METRICS: Mapping[str, str] = {
    "routepack/fallback": "0: the plan is used; else the number of a `Reason`: the framework's own packing",
    "routepack/used": "1 when the framework trains on the plan's layout",
    "routepack/passes": "passes over the window that used this plan so far (log-probs, training)",
    "routepack/steps": "steps since the start",
    "routepack/fallbacks": "steps since the start that ran on the framework's own packing",
    "routepack/planner_restarts": "planner processes that had to be started again",
    "routepack/windows": "optimizer steps planned together in this step",
    "routepack/samples_without_routes": "samples that came without routes",
    "routepack/ms_routes": "counting routes and building windows, milliseconds",
    "routepack/ms_planner": "from the request to the plan, milliseconds",
    "routepack/ms_check": "reading and checking the plan, milliseconds",
    "routepack/ms_moves": "in `on_placement`, or in the adapter's calls to workers that move experts, milliseconds",
    "routepack/ms_adapter": "all that RoutePack added to the step, milliseconds",
}
"""Of the adapters. With a plan come the metrics of the plan (docs/python.md); of several windows their means."""


def mean_metrics(plans: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What all plans have, averaged.

    >>> mean_metrics([{"a": 1.0, "b": 2.0}, {"a": 3.0}])
    {'a': 2.0}
    """
    if not plans:
        return {}
    names = [name for name in plans[0] if all(name in plan for plan in plans)]
    return {name: sum(plan[name] for plan in plans) / len(plans) for name in names}
