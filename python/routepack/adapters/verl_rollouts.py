# SPDX-License-Identifier: Apache-2.0
"""verl's V1 trainer: routes are counted in workers of the agent loop, so that the driver need not read them to plan.

What they count is a field of each sample in TransferQueue beside `routed_experts`, kilobytes instead of megabytes.
The V0 trainer has the routes themselves in its batches, and counts them there.

Hooks go into classes that Ray never copies. It does copy the methods of workers when it makes actor classes of them,
and ships the copies by value once they are not what the module has.
Source: verl/experimental/agent_loop/agent_loop.py, verl/trainer/ppo/v1/agent_loop_tq.py of verl 0.9.1.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack.adapters._experts import experts_of
from routepack.adapters._hooks import Replaced, module_of, need_function
from routepack.adapters._routes import COUNTS, no_counts, pack_counts
from routepack.adapters._settings import Settings
from routepack.adapters._unsafe import look_up

_LOG = logging.getLogger("routepack")
MODULE = "verl.experimental.agent_loop.agent_loop"
ROUTES = "routed_experts"

_REPLACED = Replaced()
#: path of the model whose agent loops run in this process
_MODEL: list[str] = []


def install(module: Any = None, settings: Settings | None = None) -> None:
    """In a worker of the agent loop: routes are counted when a rollout ends; twice takes the new settings.

    :param module: instead of verl.experimental.agent_loop.agent_loop
    :param settings: None: from the environment (ROUTEPACK_ENABLED, ROUTEPACK_EXPERTS)
    :raises Error: when this verl has no such hooks, or a setting is wrong
    """
    chosen = settings or Settings.from_environment()
    owner = module or module_of("verl", MODULE)
    uninstall()
    loop: Any = getattr(owner, "AgentLoopBase", None)
    output: Any = getattr(owner, "AgentLoopOutput", None)
    need_function("verl", output, "as_dict", ["self"], calls="new_zeros")  # one row of routes for each token
    need_function("verl", loop, "__init__", ["self", "trainer_config"])
    if chosen.enabled:
        _REPLACED.put(loop, "__init__", _noting(loop.__init__))
        _REPLACED.put(output, "as_dict", _adding(output.as_dict, chosen))


def uninstall() -> None:
    """Takes the hooks of this process out again."""
    _REPLACED.put_back()


def counts_of(routes: Any, experts: int) -> npt.NDArray[np.int32]:
    """`pack_counts` of one sample; where that raises, the driver will read the routes, and say what is wrong."""
    try:
        made: npt.NDArray[np.int32] = pack_counts([routes], experts=experts)[0]
        return made
    except Exception as error:
        _LOG.debug("routepack: routes of a sample were not counted: %s", error)
        return no_counts(routes, experts=experts)


def _noting(original: Any) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, trainer_config: Any, *args: Any, **kwargs: Any) -> None:
        original(self, trainer_config, *args, **kwargs)
        with contextlib.suppress(Exception):
            _MODEL[:] = [str(look_up(trainer_config.config, "actor_rollout_ref.model.path"))]

    return __init__


def _adding(original: Any, settings: Settings) -> Any:
    @functools.wraps(original)
    def as_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        fields = original(self, *args, **kwargs)
        try:
            experts = settings.experts or (_experts_at(_MODEL[0]) if _MODEL else 0)
            if experts and fields.get(ROUTES) is not None:
                import torch

                # No engine routes the last token.
                fields[COUNTS] = torch.from_numpy(counts_of(fields[ROUTES][:-1], experts))
        except Exception as error:  # a rollout goes on
            _LOG.debug("routepack: routes of a sample were not counted: %s", error)
        return fields

    return as_dict


@functools.cache
def _experts_at(path: str) -> int:
    try:
        return experts_of(path)
    except Exception as error:
        _LOG.info("routepack: routes are not counted where rollouts end: %s", error)
        return 0
