# SPDX-License-Identifier: Apache-2.0
"""Packages that a CPU machine cannot have: modules in which any name is an empty class. Only what is not installed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
from typing import Any


class Empty(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__module__": self.__name__})


class Finder:
    def __init__(self, roots: tuple[str, ...]) -> None:
        self.roots = roots

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] not in self.roots:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> types.ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def install(names: tuple[str, ...]) -> Any:
    """Behind everything that is installed. Gives what to take off `sys.meta_path` again."""
    finder: Any = Finder(tuple(name for name in names if importlib.util.find_spec(name) is None))
    sys.meta_path.append(finder)
    return finder
