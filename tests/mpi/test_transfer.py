# SPDX-License-Identifier: Apache-2.0
"""Moves under MPI: exact, and when a rank is killed, never called done by those who live on.

What happened is read from the reports of the ranks, never from the launcher's status, which says nothing under recovery.
"""

import json
import os

import pytest

import launch

TIMEOUT_MS = 700
# Small messages travel at once; large ones wait for the receiver, who may be dead by then.
SIZES = {"small": 16, "large": 200}
LONG = bool(os.environ.get("ROUTEPACK_LONG"))


def run(folder, flavour, ranks, *arguments, **options):
    folder.mkdir(parents=True, exist_ok=True)
    job = launch.launch(flavour, ranks, [launch.program("transfer_check", flavour), folder, *arguments], **options)
    reports = {int(path.stem.split("-")[1]): json.loads(path.read_text()) for path in folder.glob("report-*.json")}
    assert not list(folder.glob("*.part"))
    return job, reports


def test_random_moves_of_every_kind_of_state_are_exact_and_lead_back(tmp_path, flavour):
    ep, edp = 4, 2
    ranks = ep * edp
    job, reports = run(tmp_path, flavour, ranks, "exact", ep, edp, timeout=120)
    assert sorted(reports) == list(range(ranks)), job.stderr
    assert [report.get("what") for report in reports.values()] == [None] * ranks
    assert all(report["ok"] and report["moves"] >= 50 for report in reports.values())
    assert sum(report["bytes"] for report in reports.values()) > 1_000_000
    job.check()


@pytest.fixture(scope="module")
def messages_of(tmp_path_factory):
    """How many messages a rank sends in the move in which others are killed."""
    known = {}

    def count(flavour, size, rank):
        if (flavour, size) not in known:
            folder = tmp_path_factory.mktemp("count")
            job, reports = run(folder, flavour, 3, "kill", 3, 1, SIZES[size], 0, -1, 20_000, timeout=60)
            job.check()
            assert all(report["complete"] and report["untrue"] == "" for report in reports.values())
            known[flavour, size] = {rank: report["messages"] for rank, report in reports.items()}
        return known[flavour, size][rank]

    return count


def kill(folder, flavour, size, victim, index):
    """The job and its reports. On a busy machine a healthy rank may be slower than the timeout: then once more, patiently."""
    for timeout_ms in (TIMEOUT_MS, 6 * TIMEOUT_MS):
        job, reports = run(folder / f"in-{timeout_ms}-ms", flavour, 3, "kill", 3, 1, SIZES[size], victim, index, timeout_ms,
                           recovery=True, timeout=90)
        if all(set(report.get("silent", [])) <= {victim} for report in reports.values()):
            break
    return job, reports


def check_survivors(job, reports, victim):
    assert victim not in reports, "it sent fewer messages than that"
    assert sorted(reports) == sorted(set(range(3)) - {victim}), (job.returncode, job.stderr)
    for report in reports.values():
        assert "what" not in report, report
        assert report["untrue"] == ""
        assert set(report["layers"]) <= {"old", "new"}
        assert report["seconds"] < 60 * TIMEOUT_MS / 1000 + 10  # no more than a hang would be
        if report["complete"]:
            # The victim had said that all is written, and so had the others.
            assert all(set(other["layers"]) == {"new"} for other in reports.values())
        else:
            assert victim in report["silent"]
            assert report["failure"]["what"]
    assert len({tuple(report["layers"]) for report in reports.values()}) == 1
    if not any(report["complete"] for report in reports.values()):
        assert all(report["silent"] == [victim] and report["failure"]["rank"] == victim for report in reports.values())
    assert job.returncode is not None, "the job did not end"
    assert job.leftovers == []


def cases():
    for size in SIZES:
        for victim in range(3):
            for where in ["first", "middle", "last"]:
                # Three of the nine for large messages: each rank, each place. Who dies last costs all others a time-out.
                some = [(0, "last"), (1, "middle"), (2, "first")]
                if LONG or (victim, where) in some or (size == "small" and where != "last"):
                    yield size, victim, where


@pytest.mark.parametrize(("size", "victim", "where"), cases())
def test_a_killed_rank_leaves_survivors_that_agree_and_never_call_done_what_is_not(
    tmp_path, messages_of, flavour, size, victim, where
):
    count = messages_of(flavour, size, victim)
    index = {"first": 0, "middle": count // 2, "last": count - 1}[where]
    check_survivors(*kill(tmp_path, flavour, size, victim, index), victim)


@pytest.mark.skipif(not LONG, reason="every index takes long: ROUTEPACK_LONG=1")
@pytest.mark.parametrize("victim", range(3))
def test_a_rank_killed_at_any_message_leaves_survivors_that_agree(tmp_path, messages_of, flavour, victim):
    count = messages_of(flavour, "small", victim)
    for index in range(count):
        check_survivors(*kill(tmp_path / f"at-{index}", flavour, "small", victim, index), victim)


def test_a_job_launched_as_usual_ends_with_a_failure_when_a_rank_is_killed(tmp_path, messages_of, flavour):
    index = messages_of(flavour, "small", 1) // 2
    job, reports = run(tmp_path / "reports", flavour, 3, "kill", 3, 1, SIZES["small"], 1, index, TIMEOUT_MS, timeout=60)
    assert job.returncode not in (None, 0)
    assert job.leftovers == []
    assert 1 not in reports
    assert not any(report["complete"] for report in reports.values())
