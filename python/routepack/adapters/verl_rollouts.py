# SPDX-License-Identifier: Apache-2.0
"""verl: routes are counted in the workers of the agent loop, so that the driver need not read them to plan.

What they count is a field of each sample beside `routed_experts`, a few kilobytes instead of megabytes. The V1 trainer
has it in TransferQueue, as a tensor; the V0 trainer in its batches, as bytes in `non_tensor_batch`, until it has planned.
Source: verl/experimental/agent_loop/agent_loop.py, verl/trainer/ppo/v1/agent_loop_tq.py of verl 0.9.1.
"""

from __future__ import annotations

import contextvars
import functools
import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack.adapters._experts import experts_of
from routepack.adapters._hooks import Replaced, module_of, need_function
from routepack.adapters._reasons import FallBack
from routepack.adapters._routes import no_counts, pack_counts
from routepack.adapters._settings import Settings
from routepack.adapters._unsafe import look_up

_LOG = logging.getLogger("routepack")
MODULE = "verl.experimental.agent_loop.agent_loop"
COUNTS = "routepack_counts"
ROUTES = "routed_experts"

#: of the agent loop that runs in this context; 0: nothing is counted
_EXPERTS: contextvars.ContextVar[int] = contextvars.ContextVar("routepack_verl_experts", default=0)
_REPLACED = Replaced()


def install(module: Any = None, settings: Settings | None = None) -> None:
    """In a worker of the agent loop: routes are counted when a rollout ends; twice takes the new settings.

    :param module: instead of verl.experimental.agent_loop.agent_loop
    :param settings: None: from the environment (ROUTEPACK_ENABLED, ROUTEPACK_EXPERTS)
    :raises InvalidInput: when this verl has no such hooks, or a setting is wrong
    """
    chosen = settings or Settings.from_environment()
    owner = module or module_of("verl", MODULE)
    uninstall()
    need_function(
        "verl",
        owner.AgentLoopWorker,
        "_run_agent_loop",
        ["self", "sampling_params", "trajectory"],
        calls="_agent_loop_postprocess",
    )
    if not chosen.enabled:
        return
    _REPLACED.put(owner.AgentLoopWorker, "_run_agent_loop", _counting(owner.AgentLoopWorker._run_agent_loop, chosen))
    if hasattr(owner.AgentLoopOutput, "as_dict"):  # what workers put into TransferQueue
        _REPLACED.put(owner.AgentLoopOutput, "as_dict", _adding(owner.AgentLoopOutput.as_dict))


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


def _counting(original: Any, settings: Settings) -> Any:
    @functools.wraps(original)
    async def _run_agent_loop(self: Any, sampling_params: Any, trajectory: Any, *args: Any, **kwargs: Any) -> Any:
        experts = 0 if trajectory["validate"] else _experts_of(self, settings)
        token = _EXPERTS.set(experts)
        try:
            made = await original(self, sampling_params, trajectory, *args, **kwargs)
        finally:
            _EXPERTS.reset(token)
        # Workers that have put their fields into TransferQueue make None.
        if experts and getattr(made, ROUTES, None) is not None:
            begin, tokens = span_of(made.attention_mask[0])
            made.extra_fields[COUNTS] = counts_of(made.routed_experts[0, begin : begin + tokens - 1], experts).tobytes()
        return made

    return _run_agent_loop


def span_of(mask: Any) -> tuple[int, int]:
    """The first real token of a sample, and how many there are: prompts are padded on the left, answers on the right.

    :param mask: attention mask [width]
    """
    real = mask.bool()
    return int(real.int().argmax()), int(real.sum())


def _adding(original: Any) -> Any:
    @functools.wraps(original)
    def as_dict(self: Any) -> Any:
        fields = original(self)
        experts = _EXPERTS.get()
        if experts and fields.get(ROUTES) is not None:
            import torch

            fields[COUNTS] = torch.from_numpy(counts_of(fields[ROUTES][:-1], experts))  # no engine routes the last token
        return fields

    return as_dict


def _experts_of(worker: Any, settings: Settings) -> int:
    return settings.experts or _experts_at(str(look_up(worker.config, "actor_rollout_ref.model.path")))


@functools.cache
def _experts_at(path: str) -> int:
    try:
        return experts_of(path)
    except FallBack as error:
        _LOG.info("routepack: routes are not counted where rollouts end: %s", error)
        return 0
