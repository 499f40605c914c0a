# SPDX-License-Identifier: Apache-2.0
"""What ranks of a gloo world do in the tests of teams."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

import routepack
from routepack.team import TorchTeam

from . import steps


def plan_twice(rank: int, threads: int) -> list[Any]:
    """Over a group of its own, with collectives of the default group between, and then from where the first led."""
    team = TorchTeam(dist.new_group(backend="gloo"), patience_s=60)
    params = routepack.PlanParams(effort="fast", threads=threads)
    first = steps.plan(team=team, params=params)
    dist.barrier()
    second = steps.plan(team=team, params=params, current=first)
    return [first.hash, second.hash]


def plan_in_half(rank: int) -> list[Any]:
    """Two teams, of the even and of the odd ranks, whose ranks are not those of the world."""
    groups = [dist.new_group([0, 2], backend="gloo"), dist.new_group([1, 3], backend="gloo")]
    team = TorchTeam(groups[rank % 2], patience_s=60)
    plan = steps.plan(team=team, params=routepack.PlanParams(effort="fast", threads=1, seed=rank % 2))
    return [team.rank, team.ranks, plan.hash]


def gather(rank: int, sizes: list[list[int]]) -> bool:
    """Messages of many lengths, short, just within a first message, and long."""
    team = TorchTeam(patience_s=60)
    for number, lengths in enumerate(sizes):
        given = [bytes([r, number % 251]) * (length // 2) + b"x" * (length % 2) for r, length in enumerate(lengths)]
        assert team.all_gather(given[rank]) == given
    return True


def plan_in_the_background(rank: int) -> list[Any]:
    team = TorchTeam(dist.new_group(backend="gloo"), patience_s=60)
    with routepack.Planner(steps.TOPOLOGY, capacity=2048, cost=steps.cost(), params=steps.FAST, team=team) as planner:
        future = planner.submit(steps.window())
        dist.barrier()  # of another group, in another thread
        return [future.result().hash]


def refusals(rank: int) -> list[str]:
    said = []
    for wrong in ({"patience_s": 0.0}, {"patience_s": float("inf")}):
        try:
            TorchTeam(**wrong)
        except routepack.InvalidInput as error:
            said.append(str(error))
    group = dist.new_group([0], backend="gloo")
    try:
        TorchTeam(group)
    except routepack.InvalidInput as error:
        said.append(str(error))
    return said
