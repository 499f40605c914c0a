# SPDX-License-Identifier: Apache-2.0
"""Finding what an adapter hooks into, by what is there and never by a version number."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
import runpy
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from routepack._errors import InvalidInput

_LOG = logging.getLogger("routepack")


def module_of(framework: str, name: str) -> Any:
    """A module of a framework. @raises InvalidInput when it cannot be imported"""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InvalidInput(f"{framework}: {name} cannot be imported ({error}); install the framework first") from error


def plain_class(cls: Any) -> Any:
    """The class behind a Ray actor class, on which methods can be replaced; any other class as it is."""
    return getattr(getattr(cls, "__ray_metadata__", None), "modified_class", cls)


def need_function(framework: str, owner: Any, name: str, parameters: Sequence[str], *, calls: str = "") -> Any:
    """A function or method that has these parameters, and calls `calls`: the one inside, where others are wrapped
    around it, as Ray does with the methods of actors.

    :raises InvalidInput: naming what is missing
    """
    where = f"{framework}: {getattr(owner, '__name__', owner)}.{name}"
    function = inspect.getattr_static(owner, name, None)
    if callable(function):
        function = inspect.unwrap(function)
    if not isinstance(function, types.FunctionType):
        raise InvalidInput(f"{where}: not found; this version has another hook, and RoutePack stays off")
    has = list(inspect.signature(function).parameters)
    missing = [parameter for parameter in parameters if parameter not in has]
    if missing:
        raise InvalidInput(f"{where}: found parameters {', '.join(has)}, wanted also {', '.join(missing)}")
    if calls and calls not in function.__code__.co_names:
        raise InvalidInput(f"{where}: found no call of {calls}, wanted one; RoutePack stays off")
    return function


def with_global(function: Any, name: str, value: Any) -> Callable[..., Any]:
    """The same function, for which one name of its module means something else.

    Ray ships actor classes by value: in the actor the function's module is not the one that can be imported there, and
    replacing the name in that one would change nothing.
    """
    made = types.FunctionType(
        function.__code__,
        {**function.__globals__, name: value},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


@contextlib.contextmanager
def or_nothing(uninstall: Callable[[], object], *, switched_off: bool = False) -> Iterator[None]:
    """An installation that fails half-way leaves no hook behind.

    :param switched_off: a hook that is missing is one line of the log, since the framework is to run as it is
    """
    try:
        yield
    except BaseException as error:
        uninstall()
        if not (switched_off and isinstance(error, InvalidInput)):
            raise
        _LOG.warning("routepack: switched off; checkpoints with moved experts are not looked for: %s", error)


_ABSENT = object()


class Replaced:
    """What an adapter has replaced in this process: attributes of modules and classes, entries of dictionaries."""

    def __init__(self) -> None:
        self._were: list[tuple[Any, Any, Any]] = []  # owner, name, what was there

    def put(self, owner: Any, name: Any, value: Any) -> None:
        """Puts a value in the place of what is there, or where nothing was."""
        table = owner if isinstance(owner, dict) else vars(owner)
        self._were.append((owner, name, table.get(name, _ABSENT)))
        _set(owner, name, value)

    def has(self, owner: Any, name: Any = None) -> bool:
        """Whether something of an owner is replaced; whether that is, when a name is given."""
        return any(known is owner and name in (None, at) for known, at, _ in self._were)

    def put_back(self) -> None:
        """Everything is as it was, the last first."""
        while self._were:
            _set(*self._were.pop())

    def __bool__(self) -> bool:
        return bool(self._were)


def _set(owner: Any, name: Any, value: Any) -> None:
    if isinstance(owner, dict):
        if value is _ABSENT:
            del owner[name]
        else:
            owner[name] = value
    elif value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def run_script(install: Callable[[], object], usage: str) -> None:
    """`python -m routepack.adapters.X script.py arguments`: installs, then runs the script as if it were alone."""
    if len(sys.argv) < 2:
        raise SystemExit(usage)
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.realpath(script)))  # as Python does; the framework may lie beside it
    install()
    runpy.run_path(script, run_name="__main__")
