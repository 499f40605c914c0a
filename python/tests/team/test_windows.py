# SPDX-License-Identifier: Apache-2.0
"""Windows that the members of a team hold together: counts stay where they are."""

from __future__ import annotations

import json

import numpy as np
import pytest

import routepack
from routepack.team import SelfTeam, load_window, share_window

from . import steps
from .thread_team import run_threads


def cut(window, first, end):
    """Samples first to end - 1 as a window of their own."""
    return routepack.Window.from_arrays(
        lengths=np.ascontiguousarray(window.lengths[first:end]), counts=np.ascontiguousarray(window.counts[first:end]),
        top_k=window.top_k, recorded=None if window.recorded is None else np.ascontiguousarray(window.recorded[first:end]))


def pieces(count):
    whole = steps.window()
    edges = [whole.samples * k // count for k in range(count + 1)]
    return [cut(whole, first, end) for first, end in zip(edges, edges[1:], strict=False)]


def manifest_of(folder, windows):
    """A manifest written by hand, as rollout hosts do that never see each other's files."""
    parts = []
    for k, window in enumerate(windows):
        window.save(folder / f"host{k}.safetensors")
        parts.append({"path": f"host{k}.safetensors", "samples": window.samples, "fingerprint": window.fingerprint})
    path = folder / "window.json"
    path.write_text(json.dumps({"format": "routepack.manifest/1", "parts": parts}))
    return path


def plan(window, **options):
    return routepack.plan(window, steps.TOPOLOGY, capacity=2048, cost=steps.cost(),
                          params=routepack.PlanParams(effort="fast", threads=1), **options)


@pytest.mark.parametrize("ranks", [2, 3])
def test_members_that_counted_their_own_samples_plan_as_one_process(tmp_path, ranks):
    parts = pieces(ranks)
    wanted = plan(routepack.Window.load(manifest_of(tmp_path, parts)))

    def member(team):
        window = share_window(parts[team.rank], team)
        assert window.samples == sum(part.samples for part in parts)
        return plan(window, team=team)

    assert {end.get().hash for end in run_threads(ranks, member)} == {wanted.hash}


def test_a_manifest_is_read_in_shares(tmp_path):
    path = manifest_of(tmp_path, pieces(4))
    wanted = plan(routepack.Window.load(path))
    made = run_threads(2, lambda team: plan(load_window(path, team), team=team))
    assert {end.get().hash for end in made} == {wanted.hash}


def test_a_window_of_a_team_cannot_be_planned_without_it():
    parts = pieces(2)
    for end in run_threads(2, lambda team: plan(share_window(parts[team.rank], team))):
        with pytest.raises(routepack.InvalidInput, match="counts"):
            end.get()


@pytest.mark.filterwarnings("ignore::routepack.RoutePackWarning")
def test_who_is_left_alone_with_a_part_of_the_counts_says_so():
    parts = pieces(3)

    def member(team):
        window = share_window(parts[team.rank], team)
        if team.rank == 1:
            raise RuntimeError("this host burns")
        return plan(window, team=team, on_lost="alone")

    ends = run_threads(3, member, patience_s=1.0)
    for rank in (0, 2):
        with pytest.raises(routepack.InvalidInput, match="counts"):
            ends[rank].get()


def test_windows_that_do_not_go_together_are_refused_in_all_members():
    one = pieces(2)[0]
    other = routepack.Window.from_arrays(lengths=np.array([4], dtype=np.int32), top_k=1,
                                         counts=np.array([[[3, 1]]], dtype=np.uint16))
    messages = set()
    for end in run_threads(2, lambda team: share_window([one, other][team.rank], team)):
        with pytest.raises(routepack.InvalidInput, match="window of rank 1: layers") as caught:
            end.get()
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_a_missing_part_is_named_in_all_members(tmp_path):
    path = manifest_of(tmp_path, pieces(3))
    (tmp_path / "host1.safetensors").unlink()
    for end in run_threads(2, lambda team: load_window(path, team)):
        with pytest.raises(routepack.InvalidInput, match=r"host1\.safetensors"):
            end.get()


def test_a_team_of_one_shares_with_nobody():
    one = pieces(1)[0]
    assert share_window(one, SelfTeam()).samples == one.samples


class Mute:
    rank, ranks = 0, 2

    def all_gather(self, mine):
        raise RuntimeError("no cable")


def test_what_a_carrier_raises_comes_out():
    with pytest.raises(RuntimeError, match="no cable"):
        share_window(pieces(1)[0], Mute())
