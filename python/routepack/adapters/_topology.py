# SPDX-License-Identifier: Apache-2.0
"""Parallel sizes of a framework as a topology."""

from __future__ import annotations

from routepack._core import Topology


def topology_of_sizes(*, dp: int, ep: int = 1, tp: int = 1, cp: int = 1, etp: int = 1, pp: int = 1) -> Topology:
    """By Megatron's rule. Without expert parallelism every data-parallel slot has all experts, over however many ranks
    a sample is split.

    :param dp: data-parallel slots of dense layers
    :raises InvalidInput: when a data-parallel slot would be part of two groups of experts

    >>> topology_of_sizes(dp=4, cp=2).slots, topology_of_sizes(dp=4, ep=2, cp=2).ranks
    (4, 2)
    """
    if ep == 1 and tp * cp % etp == 0:
        return Topology.from_shards(1, [[slot] for slot in range(dp)], pp)
    return Topology(dp=dp, ep=ep, tp=tp, cp=cp, etp=etp, pp=pp)
