# SPDX-License-Identifier: Apache-2.0
"""What a plan is worth: strategies on the windows of scenario files, with the paper's tables and tests.

    routepack evaluate scenarios/*.toml -o results

Needs scipy, and matplotlib for pictures (`pip install "routepack[evaluate]"`); both are imported when they are used.
"""

from __future__ import annotations

from routepack.evaluate.cli import evaluate, main
from routepack.evaluate.program import Program
from routepack.evaluate.scenario import Scenario, Strategy, load_scenario

__all__ = ["Program", "Scenario", "Strategy", "evaluate", "load_scenario", "main"]
