# SPDX-License-Identifier: Apache-2.0
"""Teams of processes over gloo on the loopback: the plan of one process, and a name for who is lost."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("torch")

from transfer.processes import run_dying_ranks, run_ranks  # noqa: E402

import routepack  # noqa: E402

from . import dying_jobs, jobs, steps  # noqa: E402
from .verdicts import check_survivors  # noqa: E402

OFTEN = bool(os.environ.get("ROUTEPACK_LONG"))


@pytest.fixture(scope="module")
def alone():
    return steps.plan()


@pytest.mark.parametrize(("ranks", "threads"), [(2, 1), (4, 2)])
def test_processes_make_the_plan_of_one(alone, ranks, threads):
    second = steps.plan(current=alone)
    for made in run_ranks(jobs.plan_twice, ranks, threads, timeout=60):
        assert made == [alone.hash, second.hash]


def test_groups_within_the_world_are_teams(alone):
    made = run_ranks(jobs.plan_in_half, 4, timeout=60)
    assert [(rank, ranks) for rank, ranks, _ in made] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert made[0] == [0, 2, alone.hash] and made[2][2] == alone.hash
    assert made[1][2] == made[3][2] == steps.plan(params=routepack.PlanParams(effort="fast", seed=1)).hash


def test_messages_of_all_lengths_arrive(alone):
    sizes = [[0, 0, 0], [1, 2, 3], [2039, 2040, 2041], [0, 100_000, 5], [2048, 0, 4097], [1_000_003, 7, 2_000_000]]
    assert run_ranks(jobs.gather, 3, sizes, timeout=60) == [True] * 3


def test_a_planner_shares_a_step_while_its_job_uses_other_groups(alone):
    assert run_ranks(jobs.plan_in_the_background, 2, timeout=60) == [[alone.hash]] * 2


def test_what_is_no_team_is_refused():
    first, second = run_ranks(jobs.refusals, 2, timeout=60)
    assert [text.split(":")[0] for text in first] == ["patience_s"] * 2
    assert [text.split(":")[0] for text in second] == ["patience_s", "patience_s", "group"]


KILLED = [(0, "demand", "raise"), (1, "level 2", "raise"), (2, "level 5", "alone")]
STOPPED = [(1, "place", "raise"), (0, "level 3", "alone")]
if OFTEN:
    KILLED += [(r, m, o) for r in (0, 1, 2) for m in ("place", "loads", "rows", "seed", "search", "level 1") for o in ("raise", "alone")]
    STOPPED += [(r, m, o) for r in (0, 1, 2) for m in ("demand", "rows", "level 1") for o in ("raise", "alone")]


@pytest.mark.parametrize(("victim", "moment", "on_lost"), KILLED)
def test_survivors_of_a_killed_rank_name_it_at_once(victim, moment, on_lost, alone, tmp_path):
    # Far more patience than the survivors need: a connection that ends is noticed without it.
    ends = run_dying_ranks(dying_jobs.plan_with_a_loss, 3, 3, victim, moment, "kill", on_lost, 30.0, str(tmp_path), timeout=60)
    assert ends == [-signal.SIGKILL if rank == victim else 0 for rank in range(3)]
    check_survivors(dying_jobs.reports_in(tmp_path), victim, on_lost, alone, 1.0)


@pytest.mark.parametrize(("victim", "moment", "on_lost"), STOPPED)
def test_survivors_of_a_stopped_rank_name_it_in_time_and_so_does_it_when_it_comes_back(victim, moment, on_lost, alone, tmp_path):
    ends = run_dying_ranks(dying_jobs.plan_with_a_loss, 3, 3, victim, moment, "stop", on_lost, 4.0, str(tmp_path), timeout=60)
    assert ends == [0, 0, 0]
    reports = dying_jobs.reports_in(tmp_path)
    check_survivors(reports, victim, on_lost, alone, 4.0)
    if on_lost == "raise":
        assert reports[victim]["lost"] == victim and "silent" in reports[victim]["what"], reports[victim]
    else:
        assert reports[victim]["hash"] == alone.hash


def test_ctrl_c_in_one_rank_is_told_to_the_others(alone, tmp_path):
    ends = run_dying_ranks(dying_jobs.plan_with_a_loss, 3, 3, 1, "level 3", "interrupt", "raise", 30.0, str(tmp_path), timeout=60)
    assert ends == [0, 0, 0]
    reports = dying_jobs.reports_in(tmp_path)
    assert reports[1]["error"] == "KeyboardInterrupt"
    for rank in (0, 2):
        assert reports[rank]["lost"] == 1 and "KeyboardInterrupt" in reports[rank]["what"], reports[rank]
        assert reports[rank]["seconds"] < 15


def test_ctrl_c_ends_a_wait_and_is_told_to_who_comes_late(tmp_path):
    assert run_dying_ranks(dying_jobs.plan_interrupted_in_a_wait, 2, str(tmp_path), timeout=60) == [0, 0]
    waiting, late = (dying_jobs.reports_in(tmp_path)[rank] for rank in (0, 1))
    assert waiting["error"] == "KeyboardInterrupt"
    assert late["lost"] == 0 and "it left: KeyboardInterrupt" in late["what"], late
    assert late["seconds"] < 20
