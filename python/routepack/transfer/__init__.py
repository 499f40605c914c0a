# SPDX-License-Identifier: Apache-2.0
"""Experts that change their slots between two optimizer steps: what a trainer in Python needs for it.

    from routepack.transfer import megatron

    experts = megatron.attach(model_chunks, optimizer)
    experts.move(plan.placement)

Layouts, schedules, names and placements beside checkpoints need nothing but numpy; `PhysicalDispatch`, `to_physical`,
`TorchMover` and the module `megatron` import torch when they are asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from routepack._core import (
    ExpertParameter,
    ExpertTensor,
    GridLayout,
    LayerSchedule,
    LinkTraffic,
    MegatronBuffers,
    RankLoad,
    TrafficForecast,
    TrainerFacts,
    TransferEngine,
    TransferFailure,
    TransferOutcome,
    forecast_traffic,
    schedule_moves,
)
from routepack.transfer.checkpoint import (
    PlacementMismatch,
    SavedPlacement,
    load_placement,
    placement_path,
    save_placement,
    stamp,
)
from routepack.transfer.names import ExpertNames, by_expert, stack_to_logical, stack_to_physical, to_identity
from routepack.transfer.postbox import PeerLost, Postbox, StorePostbox

if TYPE_CHECKING:
    from routepack.transfer import megatron
    from routepack.transfer.dispatch import PhysicalDispatch, to_physical
    from routepack.transfer.torch_mover import RankState, TorchMover

__all__ = [
    "ExpertNames",
    "ExpertParameter",
    "ExpertTensor",
    "GridLayout",
    "LayerSchedule",
    "LinkTraffic",
    "MegatronBuffers",
    "PeerLost",
    "PhysicalDispatch",
    "PlacementMismatch",
    "Postbox",
    "RankLoad",
    "RankState",
    "SavedPlacement",
    "StorePostbox",
    "TorchMover",
    "TrafficForecast",
    "TrainerFacts",
    "TransferEngine",
    "TransferFailure",
    "TransferOutcome",
    "by_expert",
    "forecast_traffic",
    "load_placement",
    "megatron",
    "placement_path",
    "save_placement",
    "schedule_moves",
    "stack_to_logical",
    "stack_to_physical",
    "stamp",
    "to_identity",
    "to_physical",
]

# What imports torch, and where it is.
_LATE = {
    "PhysicalDispatch": "dispatch",
    "RankState": "torch_mover",
    "TorchMover": "torch_mover",
    "megatron": "megatron",
    "to_physical": "dispatch",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_LATE[name]}")
    return module if name == _LATE[name] else getattr(module, name)
