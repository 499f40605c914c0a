# SPDX-License-Identifier: Apache-2.0
"""Imported by verl in all of its processes when VERL_USE_EXTERNAL_MODULES names it: installs `routepack.adapters.verl`.

verl is being imported itself at that moment, and most of its processes need no hook. Each hook therefore waits for the
module it goes into. One that does not fit leaves verl as it is, with a warning. Where experts are to move, or a setting
is wrong, the process that makes a trainer is told by an exception.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from routepack._errors import Error, InvalidInput
from routepack.adapters import Settings, verl, verl_cells, verl_rollouts, verl_worker

_LOG = logging.getLogger("routepack")


class _Waiting(importlib.abc.MetaPathFinder):
    """Calls a function with a module once it has been imported."""

    def __init__(self, hooks: dict[str, Callable[[Any], object]]) -> None:
        self.hooks = hooks

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        spec = importlib.util.find_spec(name)  # this finder has forgotten the name by now
        if spec is None or spec.loader is None:
            return None
        run: Callable[[Any], None] = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            _quietly(hook, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _quietly(hook: Callable[[Any], object], module: Any) -> None:
    name = module.__name__
    try:
        hook(module)
    except Exception as error:  # a training job goes on without plans
        if isinstance(error, Error) and name in verl.TRAINERS and _moves():
            trainer = getattr(module, verl.TRAINERS[name], None)
            if trainer is None:
                raise
            verl.refuse_trainer(trainer, error)  # rollout workers, too, import its module
        optional = name == verl_rollouts.MODULE or (
            name in verl_worker.HOOKS and name != verl_worker.METHODS and not _moves()
        )
        level = logging.INFO if optional else logging.WARNING
        _LOG.log(level, "routepack: stays off in %s: %s", name, error)


def _moves() -> bool:
    """Whether experts are to move. Nobody knows what wrong settings want: then, too."""
    try:
        return Settings.from_environment().moves_itself
    except InvalidInput:
        return True


def wait() -> None:
    """Installs in what is imported already, and waits for the rest."""
    hooks: dict[str, Callable[[Any], object]] = {
        verl_cells.MODULE: verl.install_worker,
        verl.HELD: lambda module: verl.install_trainer(module.RayPPOTrainer),
        verl.STORED: lambda module: verl.install_trainer(module.PPOTrainer, queue=module.tq),
        verl_rollouts.MODULE: verl_rollouts.install,
        **verl_worker.HOOKS,  # in workers, whatever the mode: the driver says whether experts move
    }
    for name in [name for name in hooks if name in sys.modules]:
        _quietly(hooks.pop(name), sys.modules[name])
    sys.meta_path.insert(0, _Waiting(hooks))


wait()
