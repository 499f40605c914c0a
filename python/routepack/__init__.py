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

from routepack._core import (
    Constraints,
    CostModel,
    Placement,
    Plan,
    PlanParams,
    SearchParams,
    Stage,
    Topology,
    Window,
    plan,
)
from routepack._core import version as __version__
from routepack._errors import (
    Cancelled,
    Error,
    FormatError,
    InfeasibleError,
    InternalError,
    InvalidInput,
    IoError,
)
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
    "Cancelled",
    "Constraints",
    "CostModel",
    "CountReport",
    "Error",
    "FormatError",
    "InfeasibleError",
    "InternalError",
    "InvalidInput",
    "IoError",
    "Placement",
    "Plan",
    "PlanParams",
    "SearchParams",
    "Stage",
    "Topology",
    "Window",
    "WindowBuilder",
    "__version__",
    "count_routes",
    "count_routes_batch",
    "count_routes_report",
    "join_segments",
    "join_windows",
    "plan",
    "routes_from_bytes",
]
