# SPDX-License-Identifier: Apache-2.0
"""RoutePack: where experts live and which samples train together, for one optimizer step of a mixture-of-experts model.

    import routepack
    window = routepack.Window.load("window.safetensors")
    plan = routepack.plan(
        window,
        routepack.Topology(dp=8, ep=8),
        capacity=2048,
        cost=routepack.CostModel.load("cost.toml"),
    )
    plan.save("plan.json")
"""

from routepack import _signals as _signals  # first: Ctrl-C may come while the others are imported
from routepack._core import (
    Bounds,
    Constraints,
    CostModel,
    Placement,
    PlacementReport,
    Plan,
    PlanControl,
    PlanParams,
    Progress,
    SearchParams,
    SearchReport,
    Stage,
    Topology,
    Window,
    plan,
    plan_many,
)
from routepack._core import version as __version__
from routepack._critical_path import CriticalPath, critical_path
from routepack._errors import (
    Cancelled,
    Error,
    FormatError,
    InfeasibleError,
    InternalError,
    InvalidInput,
    IoError,
    PeerLost,
    RoutePackWarning,
)
from routepack._future import PlanFuture
from routepack._observation import Deviation, Observation, compare_loads
from routepack._planner import Planner
from routepack._replay import (
    CountReport,
    WindowBuilder,
    count_routes,
    count_routes_batch,
    count_routes_report,
    join_segments,
    join_windows,
    routes_from_bytes,
)

__all__ = [
    "Bounds",
    "Cancelled",
    "Constraints",
    "CostModel",
    "CountReport",
    "CriticalPath",
    "Deviation",
    "Error",
    "FormatError",
    "InfeasibleError",
    "InternalError",
    "InvalidInput",
    "IoError",
    "Observation",
    "PeerLost",
    "Placement",
    "PlacementReport",
    "Plan",
    "PlanControl",
    "PlanFuture",
    "PlanParams",
    "Planner",
    "Progress",
    "RoutePackWarning",
    "SearchParams",
    "SearchReport",
    "Stage",
    "Topology",
    "Window",
    "WindowBuilder",
    "__version__",
    "compare_loads",
    "count_routes",
    "count_routes_batch",
    "count_routes_report",
    "critical_path",
    "join_segments",
    "join_windows",
    "plan",
    "plan_many",
    "routes_from_bytes",
]
