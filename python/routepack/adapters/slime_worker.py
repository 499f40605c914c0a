# SPDX-License-Identifier: Apache-2.0
"""slime's Megatron training actor, which moves experts. Imported where actors run; needs all that slime's own needs.

`slime.install(Settings(mode="both", …))` makes slime use this class. An actor class of your own inherits from it.
"""

from __future__ import annotations

import importlib
from typing import Any

from routepack.adapters import slime_experts
from routepack.adapters.slime import PLACEMENT, placement_message

_BACKEND = "slime.backends.megatron_utils"
_ACTOR = importlib.import_module(f"{_BACKEND}.actor")

slime_experts.install(
    model=importlib.import_module(f"{_BACKEND}.model"),
    common=importlib.import_module(f"{_BACKEND}.update_weight.common"),
    backuper=importlib.import_module("slime.utils.tensor_backper"),
    tensor=importlib.import_module(f"{_BACKEND}.update_weight.update_weight_from_tensor"),
)


class MovingTrainRayActor(_ACTOR.MegatronTrainRayActor):  # type: ignore[misc, name-defined]
    """slime's actor, which moves experts to the placement that comes with a batch, before its first pass over it."""

    def init(self, args: Any, role: str, *rest: Any, **more: Any) -> Any:
        if role == "actor" and not getattr(args, "debug_rollout_only", False):
            slime_experts.refuse(args)
        start = super().init(args, role, *rest, **more)
        experts = slime_experts.current()
        if experts is not None:  # goes to the rollout manager with the rest
            here = experts.placement
            told: dict[str, Any] = self.train_parallel_config
            told[PLACEMENT] = placement_message(here.physical_to_logical, here.ranks, experts.epoch)
        return start

    def train_actor(self, rollout_id: int, rollout_data: Any, *rest: Any, **more: Any) -> Any:
        carried = rollout_data.pop(PLACEMENT, None)
        if carried is not None:
            slime_experts.move(self, carried)
        return super().train_actor(rollout_id, rollout_data, *rest, **more)
