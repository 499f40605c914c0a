# SPDX-License-Identifier: Apache-2.0
"""RoutePack inside training frameworks: plan once on the driver, train on the plan, or train as before.

    from routepack.adapters import Settings, slime
    slime.install(Settings(cost="cost.toml"))

`slime`, `nemo_rl`, `megatron`, `verl` and `areal` are adapters; nothing here imports a framework before it is asked to. What all adapters share:

- `Session` plans a step and hands out its layout for every pass, or says that the framework's own packing is used.
- `Settings` are what a user chooses; `check_settings` knows which settings of a framework RoutePack cannot keep.
- `Step` and `StepWindow` are what an adapter gives, `PlannedStep` is what it gets.
- `Reason` is why a step was not planned, `METRICS` what is logged.

docs/frameworks/README.md has the same for users.
"""

from routepack.adapters._metrics import METRICS
from routepack.adapters._process import PlannerProcess
from routepack.adapters._reasons import FallBack, Reason
from routepack.adapters._routes import RouteCounts
from routepack.adapters._schedule import BadSchedule, Rules, check_placement, check_schedule
from routepack.adapters._session import PlannedStep, Session, Step, StepWindow
from routepack.adapters._settings import Settings
from routepack.adapters._unsafe import RULES, Finding, Rule, check_settings

__all__ = [
    "METRICS",
    "RULES",
    "BadSchedule",
    "FallBack",
    "Finding",
    "PlannedStep",
    "PlannerProcess",
    "Reason",
    "RouteCounts",
    "Rule",
    "Rules",
    "Session",
    "Settings",
    "Step",
    "StepWindow",
    "check_placement",
    "check_schedule",
    "check_settings",
]
