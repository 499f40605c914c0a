# SPDX-License-Identifier: Apache-2.0
"""Whether planning made a step longer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from routepack._errors import InvalidInput


@dataclass(frozen=True)
class CriticalPath:
    """From «routes are known» to «training may begin», in milliseconds.

    Two branches leave the moment at which experts have a place: packing goes on, and the model state is prepared and
    moved. Training waits for both.
    """

    planning_ms: float  #: place_ms + pack_ms
    state_ms: float  #: max(place_ms, aux_ms) + actor_ms

    @property
    def makespan_ms(self) -> float:
        """When both branches are done; what admits the step comes on top."""
        return max(self.planning_ms, self.state_ms)

    @property
    def extension_ms(self) -> float:
        """How much earlier training could begin if packing took no time."""
        return max(0.0, self.planning_ms - self.state_ms)

    @property
    def slack_ms(self) -> float:
        """How much longer packing could take without anybody noticing."""
        return max(0.0, self.state_ms - self.planning_ms)

    @property
    def extended(self) -> bool:
        """Whether planning extends the critical path."""
        return self.planning_ms > self.state_ms

    @property
    def metrics(self) -> dict[str, float]:
        """For a dashboard, named like those of a plan."""
        return {
            "routepack/ms_critical_path": self.makespan_ms,
            "routepack/ms_critical_path_extension": self.extension_ms,
        }

    def __str__(self) -> str:
        if self.extended:
            return (
                f"planning extends the step by {self.extension_ms:.1f} ms: "
                f"{self.planning_ms:.1f} ms of planning beside {self.state_ms:.1f} ms of state transfer"
            )
        return (
            f"planning is hidden with {self.slack_ms:.1f} ms to spare: "
            f"{self.planning_ms:.1f} ms of planning beside {self.state_ms:.1f} ms of state transfer"
        )


def critical_path(*, place_ms: float, pack_ms: float, aux_ms: float, actor_ms: float) -> CriticalPath:
    """The paper's equation 20: planning stays hidden while place + pack <= max(place, aux) + actor.

    :param place_ms: until experts have a place, T_LPT
    :param pack_ms: from then until the plan is there, T_pack
    :param aux_ms: whatever else must end before state may be prepared, T_aux; 0 when that has resources of its own
    :param actor_ms: preparing and applying the state of the new placement, T_actor
    :raises InvalidInput: for a time that is negative or no number

    >>> path = critical_path(place_ms=10, pack_ms=200, aux_ms=50, actor_ms=400)
    >>> path.extended, path.slack_ms
    (False, 240.0)
    >>> print(critical_path(place_ms=10, pack_ms=200, aux_ms=0, actor_ms=150))
    planning extends the step by 50.0 ms: 210.0 ms of planning beside 160.0 ms of state transfer
    """
    for name, value in (("place_ms", place_ms), ("pack_ms", pack_ms), ("aux_ms", aux_ms), ("actor_ms", actor_ms)):
        if not (math.isfinite(value) and value >= 0):
            raise InvalidInput(f"{name}: found {value}, wanted 0 or more milliseconds")
    return CriticalPath(float(place_ms + pack_ms), float(max(place_ms, aux_ms) + actor_ms))
