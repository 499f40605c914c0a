# SPDX-License-Identifier: Apache-2.0
"""What a user of an adapter chooses."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from routepack._core import CostModel, Placement, PlanParams
from routepack._errors import InvalidInput
from routepack.adapters._warning import warn

MODES = ("packing", "placement", "both")
MOST_EXPERTS = 1 << 16
LONGEST_MS = 1_000_000_000
_PREFIX = "ROUTEPACK_"
_FUNCTIONS = ("on_placement", "on_metrics")
_SWITCH = {"0": False, "false": False, "no": False, "off": False, "1": True, "true": True, "yes": True, "on": True}
_FOUND: dict[str, Callable[..., Any] | InvalidInput] = {}  # of this process: modules run once, also those that fail


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
        found = _FOUND.get(self.name)
        if found is None:
            found = _FOUND[self.name] = self._found()
        if isinstance(found, InvalidInput):
            raise found
        return found

    def _found(self) -> Callable[..., Any] | InvalidInput:
        module, _, function = self.name.partition(":")
        try:
            found = getattr(importlib.import_module(module), function)
        except (Exception, SystemExit) as error:
            return InvalidInput(f"{self.name}: cannot be imported ({type(error).__name__}: {error})")
        if not callable(found):
            return InvalidInput(f"{self.name}: found a {type(found).__name__}, wanted a function")
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
        _expect_kind("enabled", self.enabled, True)
        if not self.enabled:
            return  # nothing else has to be right to switch off
        for field in dataclasses.fields(Settings):
            value = _expect_kind(field.name, getattr(self, field.name), field.default)
            object.__setattr__(self, field.name, value)
        if self.mode not in MODES:
            raise InvalidInput(f"mode: found {self.mode!r}, wanted one of {', '.join(MODES)}")
        for name in ("deadline_ms", "grace_ms", "start_ms"):
            if not 1 <= getattr(self, name) <= LONGEST_MS:
                raise InvalidInput(f"{name}: found {getattr(self, name)}, wanted 1 to {LONGEST_MS} milliseconds")
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
            deadline_ms=self.deadline_ms,
            threads=self.threads,
            seed=self.seed,
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
        """The cost file, read. @raises Error"""
        if not self.cost:
            raise InvalidInput("cost: found none, wanted the path of a cost file, see docs/formats.md")
        return CostModel.parse(self.cost) if "\n" in self.cost else CostModel.load(self.cost)

    def with_cost_text(self) -> Settings:
        """The same with the cost file read, for a process that may not see it."""
        if not self.enabled or not self.cost or "\n" in self.cost:
            return self
        return dataclasses.replace(self, cost=self.cost_model().to_toml() + "\n")

    def check(self) -> CostModel | None:
        """What the settings name is there, in this process: the cost file, which is returned unless they are off, and
        functions. @raises Error"""
        if not self.enabled:
            return None
        for name, error in self._missing_functions().items():
            raise InvalidInput(f"{name}: {error}")
        return self.cost_model()

    def without_missing_functions(self) -> Settings:
        """The same without functions that are named and not there, which would be told again at every step."""
        gone: dict[str, Any] = dict.fromkeys(self._missing_functions())
        return dataclasses.replace(self, **gone) if gone else self

    def _missing_functions(self) -> dict[str, InvalidInput]:
        missing = {}
        for name in _FUNCTIONS:
            given = getattr(self, name)
            if isinstance(given, Named):
                try:
                    given.find()
                except InvalidInput as error:
                    missing[name] = error
        return missing

    @staticmethod
    def from_mapping(values: Mapping[str, Any]) -> Settings:
        """From words and numbers, as a configuration file or the environment has them; None stands for the default.
        When `enabled` is off nothing else is looked at."""
        known = {field.name: field for field in dataclasses.fields(Settings)}
        if _converted("enabled", values.get("enabled", True), True) is False:
            return Settings(enabled=False)
        made: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise InvalidInput(f"routepack: found option {name!r}, wanted one of {', '.join(sorted(known))}")
            if value is not None:
                made[name] = _converted(name, value, known[name].default)
        return Settings(**made)

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
        """ROUTEPACK_COST, ROUTEPACK_MODE and so on; ROUTEPACK_ENABLED=0 switches off. A name that is nearly one of
        these, and is none, is warned about."""
        source = os.environ if environment is None else environment
        names = {field.name.upper(): field.name for field in dataclasses.fields(Settings)}
        given = {name.removeprefix(_PREFIX): value for name, value in source.items() if name.startswith(_PREFIX)}
        made = Settings.from_mapping({names[name]: value for name, value in given.items() if name in names})
        for odd in sorted(given.keys() - names.keys()) if made.enabled else ():
            for near in difflib.get_close_matches(odd, names, n=1, cutoff=0.8):
                warn(f"{_PREFIX}{odd}: not known, is {_PREFIX}{near} meant?")
        return made


def _expect_kind(name: str, value: Any, default: Any) -> Any:
    """The value, as plain Python has it. @raises InvalidInput"""
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        wanted = "True or False"
    elif isinstance(default, int):
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return int(value)
        wanted = "an integer"
    elif isinstance(default, float):
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            return float(value)
        wanted = "a number"
    elif isinstance(default, str):
        if isinstance(value, str):
            return value
        wanted = "a string"
    elif isinstance(default, tuple):
        if isinstance(value, tuple) and all(isinstance(one, str) for one in value):
            return value
        wanted = "a tuple of names"
    else:
        if value is None or callable(value):
            return value
        wanted = "a function"
    raise InvalidInput(f"{name}: found {value!r}, wanted {wanted}")


def _converted(name: str, value: Any, default: Any) -> Any:
    if not isinstance(value, str):
        return tuple(value) if name == "allow" and isinstance(value, Sequence) else value
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
            return Named(value.strip()) if value.strip() else None
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error}") from None
    return value
