# SPDX-License-Identifier: Apache-2.0
"""NeMo RL's data plane: routes are counted in the actor that rolls out, so that the driver need not read them to plan.

What it counts is a column beside `routed_experts`, a few kilobytes of each sample instead of megabytes.
Source: nemo_rl/experience/sync_rollout_actor.py, nemo_rl/data_plane/column_io.py at commit 7ea279ab.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from routepack.adapters._experts import experts_of
from routepack.adapters._hooks import Replaced, need_function, plain_class, with_global
from routepack.adapters._routes import COUNTS, pack_counts
from routepack.adapters._unsafe import look_up

_LOG = logging.getLogger("routepack")
ROUTES = "routed_experts"
_WRITE = "kv_first_write"


def install(replaced: Replaced, module: Any, experts: int = 0) -> None:
    """On the driver, before the actor is made: its class, which Ray ships by value, counts.

    :param replaced: keeps what was there
    :param module: nemo_rl.experience.sync_rollout_actor
    :param experts: routed experts per layer; 0: as the configuration of the model says, where the actor runs
    :raises InvalidInput: when this NeMo RL has no such hook
    """
    actor = plain_class(getattr(module, "SyncRolloutActor", None))
    original = need_function("nemo_rl", actor, "rollout_to_tq", ["self", "input_batch"], calls=_WRITE)

    # Shipped by value as well, so that an environment without RoutePack is none the worse.
    @functools.wraps(original)
    def rollout_to_tq(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("_ray_trace_ctx", None)  # with tracing on, for a wrapper of Ray's that this one replaces
        try:
            from routepack.adapters.nemo_rl_rollouts import counting

            run = counting(original, self, experts)
        except Exception:
            run = original
        return run(self, *args, **kwargs)

    replaced.put(actor, "rollout_to_tq", rollout_to_tq)


def counting(original: Any, actor: Any, experts: int) -> Any:
    """In the actor: `rollout_to_tq` that writes counts with the other columns. @raises FallBack"""
    known = experts or experts_of(str(look_up(actor.master_config, "policy.model_name")))
    return with_global(original, _WRITE, writing(original.__globals__[_WRITE], known))


def writing(original: Any, experts: int) -> Any:
    """`kv_first_write` that adds the column. `fields` of what it returns are as before: workers read those."""

    @functools.wraps(original)
    def kv_first_write(final_batch_cpu: Any, *args: Any, **kwargs: Any) -> Any:
        add_counts(final_batch_cpu, experts)
        meta = original(final_batch_cpu, *args, **kwargs)
        if COUNTS in (meta.fields or ()):
            meta.fields.remove(COUNTS)
        return meta

    return kv_first_write


def add_counts(batch: Any, experts: int) -> None:
    """Counts `routed_experts` [samples, width, layers, k] of a batch into a column of its own. Never raises."""
    try:
        if ROUTES in batch:
            import torch

            routes, lengths = batch[ROUTES], batch["input_lengths"].tolist()
            counts = pack_counts([routes[i, :tokens] for i, tokens in enumerate(lengths)], experts=experts)
            batch[COUNTS] = torch.from_numpy(counts)
    except Exception as error:  # the driver will read the routes, and say what is wrong
        _LOG.debug("routepack: routes of a batch were not counted: %s", error)
