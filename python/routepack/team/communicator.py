# SPDX-License-Identifier: Apache-2.0
"""What planning asks of a network, and the smallest team."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Communicator(Protocol):
    """One member of a team. Called in the thread that called `plan` (a `Planner` has a thread of its own).

    A plan is some hundred calls of `all_gather`, of some bytes to some kilobytes each; while it runs, nobody else uses
    the team.

    >>> isinstance(SelfTeam(), Communicator)
    True
    """

    @property
    def rank(self) -> int:
        """0 to ranks - 1."""

    @property
    def ranks(self) -> int:
        """Members of the team."""

    def all_gather(self, mine: bytes) -> list[bytes]:
        """What every member gave to its call, by rank. Waits for the slowest member, but not for ever.

        :raises PeerLost: naming a member that is gone or silent; whatever else it raises ends planning and comes out
            of `plan`
        """


class SelfTeam:
    """A team of one: planning in a team is then planning alone.

    >>> SelfTeam().all_gather(b"what I have")
    [b'what I have']
    """

    @property
    def rank(self) -> int:
        return 0

    @property
    def ranks(self) -> int:
        return 1

    def all_gather(self, mine: bytes) -> list[bytes]:
        return [mine]
