# SPDX-License-Identifier: Apache-2.0
"""What a user of an adapter chooses."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from routepack._core import CostModel, Placement
from routepack._errors import InvalidInput

MODES = ("packing", "placement", "both")
MOST_EXPERTS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Settings:
    """Options of an adapter. All can be pickled if the callbacks can, as they may travel to a driver process.

    >>> Settings.from_mapping({"cost": "cost.toml", "deadline_ms": "500"}).deadline_ms
    500
    """

    cost: str = ""  #: path of a cost file (docs/formats.md), or its text
    mode: str = "packing"  #: 'packing', 'placement' (experts move, the framework packs) or 'both'
    enabled: bool = True  #: False: the framework's own packing, without a warning
    deadline_ms: int = 1000  #: the search ends with the best plan so far
    grace_ms: int = 1000  #: so much later the planner is ended, and the step runs without a plan
    start_ms: int = 30000  #: a planner that is not there by then is ended too
    effort: str = "default"  #: of the search: 'fast', 'default', 'quality', 'paper'
    seed: int = 0
    threads: int = 0  #: of the planner; 0: one per core
    experts: int = 0  #: routed experts per layer; 0: as the framework's configuration says
    current: str = ""  #: placement file that says where experts are at the start; empty: expert e in slot e
    allow: tuple[str, ...] = ()  #: settings of the framework that are refused otherwise, by name
    max_missing: float = 0.5  #: share of samples that may come without routes; above 5 % there is a warning, once
    on_placement: Callable[[Placement, int], object] | None = None
    """Moves experts to a placement and gets its epoch, where the adapter does not do it itself. Returns when they are
    there, or raises before anything has moved: then the step runs as before."""
    on_metrics: Callable[[Mapping[str, float], int], object] | None = None
    """Gets the metrics of every step, and its number."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidInput(f"mode: found {self.mode!r}, wanted one of {', '.join(MODES)}")
        for name in ("deadline_ms", "grace_ms", "start_ms"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name}: found {getattr(self, name)}, wanted 1 or more milliseconds")
        if not 0 <= self.experts <= MOST_EXPERTS:
            raise InvalidInput(f"experts: found {self.experts}, wanted 1 to {MOST_EXPERTS}, or 0")
        if not 0.0 <= self.max_missing <= 1.0:
            raise InvalidInput(f"max_missing: found {self.max_missing}, wanted a share from 0 to 1")

    @property
    def moves_itself(self) -> bool:
        """Whether an adapter that can move experts has to: no `on_placement` does it."""
        return self.enabled and self.mode != "packing" and self.on_placement is None

    def need_mover(self) -> None:
        """For a session, which does not move experts itself. @raises InvalidInput"""
        if self.moves_itself:
            raise InvalidInput(f"mode: found {self.mode!r} without on_placement, wanted what moves the experts")

    def cost_model(self) -> CostModel:
        """The cost file, read. @raises InvalidInput"""
        if not self.cost:
            raise InvalidInput("cost: found none, wanted the path of a cost file, see docs/formats.md")
        return CostModel.parse(self.cost) if "\n" in self.cost else CostModel.load(self.cost)

    def with_cost_text(self) -> Settings:
        """The same with the cost file read, for a process that may not see it."""
        if not self.cost or "\n" in self.cost:
            return self
        return dataclasses.replace(self, cost=self.cost_model().to_toml() + "\n")

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> Settings:
        """From words and numbers, as a configuration file or the environment has them."""
        known = {field.name: field for field in dataclasses.fields(Settings)}
        made: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise InvalidInput(f"routepack: found option {name!r}, wanted one of {', '.join(sorted(known))}")
            made[name] = _converted(name, value, known[name].default)
        return Settings(**made)

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
        """ROUTEPACK_COST, ROUTEPACK_MODE and so on; ROUTEPACK_ENABLED=0 switches off."""
        source = os.environ if environment is None else environment
        names = [field.name for field in dataclasses.fields(Settings) if not field.name.startswith("on_")]
        found = {name: source[f"ROUTEPACK_{name.upper()}"] for name in names if f"ROUTEPACK_{name.upper()}" in source}
        return Settings.from_mapping(found)


def _converted(name: str, value: Any, default: Any) -> Any:
    if not isinstance(value, str):
        return tuple(value) if name == "allow" else value
    try:
        if isinstance(default, bool):
            return {"0": False, "1": True, "false": False, "true": True}[value.lower()]
        if isinstance(default, (int, float)):
            return type(default)(value)
    except (KeyError, ValueError):
        raise InvalidInput(f"{name}: found {value!r}, wanted a {type(default).__name__}") from None
    if isinstance(default, tuple):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value
