# SPDX-License-Identifier: Apache-2.0
"""What a user of an adapter chooses."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import numbers
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from routepack._core import CostModel, Placement, PlanParams
from routepack._errors import InvalidInput, RoutePackWarning

MODES = ("packing", "placement", "both")
MOST_EXPERTS = 1 << 16
_PREFIX = "ROUTEPACK_"
_SWITCH = {"0": False, "false": False, "no": False, "off": False, "1": True, "true": True, "yes": True, "on": True}


@dataclasses.dataclass(frozen=True)
class Named:
    """A function by its name, `module:function`. It is imported in the process that calls it, and not before."""

    name: str

    def __post_init__(self) -> None:
        module, _, function = self.name.partition(":")
        if not module or not function:
            raise InvalidInput(f"found {self.name!r}, wanted module:function")

    def find(self) -> Callable[..., Any]:
        """The function. @raises InvalidInput"""
        module, _, function = self.name.partition(":")
        try:
            found = getattr(importlib.import_module(module), function)
        except Exception as error:
            raise InvalidInput(f"{self.name}: cannot be imported ({type(error).__name__}: {error})") from error
        if not callable(found):
            raise InvalidInput(f"{self.name}: found a {type(found).__name__}, wanted a function")
        made: Callable[..., Any] = found
        return made

    def __call__(self, *args: Any) -> Any:
        return self.find()(*args)


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
        for field in dataclasses.fields(self):
            _expect_kind(field.name, getattr(self, field.name), field.default)
        if not self.enabled:
            return  # nothing else has to be right to switch off
        if self.mode not in MODES:
            raise InvalidInput(f"mode: found {self.mode!r}, wanted one of {', '.join(MODES)}")
        for name in ("deadline_ms", "grace_ms", "start_ms"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name}: found {getattr(self, name)}, wanted 1 or more milliseconds")
        if not 0 <= self.experts <= MOST_EXPERTS:
            raise InvalidInput(f"experts: found {self.experts}, wanted 1 to {MOST_EXPERTS}, or 0")
        if not 0.0 <= self.max_missing <= 1.0:
            raise InvalidInput(f"max_missing: found {self.max_missing}, wanted a share from 0 to 1")
        self.params("keep")

    def params(self, placement: str) -> PlanParams:
        """Of the search. @raises InvalidInput"""
        return PlanParams(
            placement=placement,
            effort=self.effort,
            deadline_ms=int(self.deadline_ms),
            threads=int(self.threads),
            seed=int(self.seed),
        )

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
        if not self.enabled or not self.cost or "\n" in self.cost:
            return self
        return dataclasses.replace(self, cost=self.cost_model().to_toml() + "\n")

    def check(self) -> None:
        """What the settings name is there, in this process: the cost file, functions. @raises InvalidInput"""
        if not self.enabled:
            return
        self.cost_model()
        for name in ("on_placement", "on_metrics"):
            given = getattr(self, name)
            if isinstance(given, Named):
                try:
                    given.find()
                except InvalidInput as error:
                    raise InvalidInput(f"{name}: {error}") from error

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> Settings:
        """From words and numbers, as a configuration file or the environment has them. What is wrong in them does not
        matter when `enabled` is off."""
        known = {field.name: field for field in dataclasses.fields(Settings)}
        enabled = _converted("enabled", values.get("enabled", True), True)
        made: dict[str, Any] = {}
        for name, value in values.items():
            try:
                if name not in known:
                    raise InvalidInput(f"routepack: found option {name!r}, wanted one of {', '.join(sorted(known))}")
                made[name] = _converted(name, value, known[name].default)
            except InvalidInput:
                if enabled:
                    raise
        return Settings(**made)

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
        """ROUTEPACK_COST, ROUTEPACK_MODE and so on; ROUTEPACK_ENABLED=0 switches off. A name that is nearly one of
        these, and is none, is warned about."""
        source = os.environ if environment is None else environment
        names = {field.name.upper(): field.name for field in dataclasses.fields(Settings)}
        given = {name.removeprefix(_PREFIX): value for name, value in source.items() if name.startswith(_PREFIX)}
        for odd in sorted(given.keys() - names.keys()):
            for near in difflib.get_close_matches(odd, names, n=1, cutoff=0.75):
                text = f"{_PREFIX}{odd}: not known, is {_PREFIX}{near} meant?"
                warnings.warn(text, RoutePackWarning, stacklevel=2)
        return Settings.from_mapping({names[name]: value for name, value in given.items() if name in names})


def _expect_kind(name: str, value: Any, default: Any) -> None:
    """@raises InvalidInput"""
    if isinstance(default, bool):
        fine, wanted = isinstance(value, bool), "True or False"
    elif isinstance(default, int):
        fine, wanted = isinstance(value, numbers.Integral) and not isinstance(value, bool), "an integer"
    elif isinstance(default, float):
        fine, wanted = isinstance(value, numbers.Real) and not isinstance(value, bool), "a number"
    elif isinstance(default, str):
        fine, wanted = isinstance(value, str), "a string"
    elif isinstance(default, tuple):
        fine, wanted = isinstance(value, tuple) and all(isinstance(one, str) for one in value), "a tuple of names"
    else:
        fine, wanted = value is None or callable(value), "a function"
    if not fine:
        raise InvalidInput(f"{name}: found {value!r}, wanted {wanted}")


def _converted(name: str, value: Any, default: Any) -> Any:
    if not isinstance(value, str):
        return tuple(value) if name == "allow" and isinstance(value, (list, set, frozenset)) else value
    try:
        if isinstance(default, bool):
            return _SWITCH[value.strip().lower()]
        if isinstance(default, (int, float)):
            return type(default)(value)
    except (KeyError, ValueError):
        kind = "0 or 1" if isinstance(default, bool) else "an integer" if isinstance(default, int) else "a number"
        raise InvalidInput(f"{name}: found {value!r}, wanted {kind}") from None
    if isinstance(default, tuple):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if default is None:
        try:
            return Named(value)
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error}") from None
    return value
