# SPDX-License-Identifier: Apache-2.0
"""Processes that plan one step together: who carries their messages.

    from routepack.team import TorchTeam

    team = TorchTeam(torch.distributed.new_group(backend="gloo"), patience_s=10)
    plan = routepack.plan(window, topology, capacity=8192, cost=cost, team=team, on_lost="alone")

All ranks make the same calls in the same order and get the plan of one process. `TorchTeam` needs torch, `Mpi4pyTeam`
needs mpi4py; both are imported when they are asked for. Anything with the members of `Communicator` will do.
"""

import importlib
from typing import TYPE_CHECKING, Any

from routepack._core import load_window, share_window
from routepack._errors import PeerLost
from routepack.team.communicator import Communicator, SelfTeam

if TYPE_CHECKING:
    from routepack.team.mpi4py_team import Mpi4pyTeam
    from routepack.team.torch_team import TorchTeam

__all__ = ["Communicator", "Mpi4pyTeam", "PeerLost", "SelfTeam", "TorchTeam", "load_window", "share_window"]

# What imports an optional package, and where it is.
_LATE = {"Mpi4pyTeam": "mpi4py_team", "TorchTeam": "torch_team"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
