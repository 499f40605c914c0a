# SPDX-License-Identifier: Apache-2.0
"""The transport on MPI, and routepack-mpi ping. The ranks judge (transport_check.cc) and write files; this reads them."""

import json
import re

import pytest

import launch


def check(flavour, ranks, mode, folder, **options):
    job = launch.launch(flavour, ranks, [launch.program("transport_check", flavour), folder, mode], timeout=120, **options)
    reports = {int(p.stem.split("-")[1]): json.loads(p.read_text()) for p in folder.glob("rank-*.json")}
    return job, reports


def all_well(reports, ranks):
    assert sorted(reports) == ranks
    assert [r["what"] for r in reports.values() if not r["ok"]] == []


@pytest.mark.parametrize("tcp", [False, True], ids=["shared memory", "tcp"])
def test_ranks_exchange_messages_of_all_sizes_and_floods_of_notes(flavour, tcp, tmp_path):
    job, reports = check(flavour, 3, "exchange", tmp_path, tcp=tcp)
    all_well(reports, [0, 1, 2])
    if (flavour, tcp) == ("mpich", True) and any(report.get("stuck") for report in reports.values()):
        # MPICH before 4.2 over UCX and TCP may never come back from MPI_Finalize (mpi_transport.cc): noticed, ended.
        assert job.returncode not in (None, 0) and job.leftovers == []
        return
    job.check()
    assert {"openmpi": "Open MPI", "mpich": "MPICH"}[flavour] in reports[0]["library"]


def test_a_message_of_another_size_is_refused(flavour, tmp_path):
    job, reports = check(flavour, 2, "mismatch", tmp_path)
    all_well(reports, [0, 1])
    job.check()


def test_a_receive_that_nobody_answers_does_not_keep_a_rank_from_ending(flavour, tmp_path):
    job, reports = check(flavour, 2, "abandon", tmp_path, recovery=True)
    all_well(reports, [0, 1])
    assert job.returncode is not None and job.leftovers == []


@pytest.mark.parametrize("tcp", [False, True], ids=["shared memory", "tcp"])
def test_survivors_of_a_killed_rank_go_on(flavour, tcp, tmp_path):
    job, reports = check(flavour, 3, "kill", tmp_path, recovery=True, tcp=tcp)
    assert job.leftovers == []
    if any(report.get("stuck") for report in reports.values()):
        # Open MPI over TCP never came back from MPI_Test: noticed, said, ended. The other one may miss it.
        assert (flavour, tcp, sorted(reports)) == ("openmpi", True, [0, 1])
        return
    all_well(reports, [0, 1])
    for report in reports.values():
        seen = report["dead_rank"]
        assert seen["receive big"] != "done" and seen["receive small"] != "done" and seen["send big"] != "done"


def test_a_call_that_does_not_come_back_is_noticed(flavour, tmp_path):
    job, reports = check(flavour, 1, "stuck", tmp_path)
    all_well(reports, [0])
    job.check()


def test_a_job_that_lost_a_rank_ends_as_a_failure_by_default(flavour, tmp_path):
    job, reports = check(flavour, 3, "kill", tmp_path)
    assert job.returncode not in (None, 0)
    assert 2 not in reports
    assert job.leftovers == []


def test_ping_prints_a_row_for_every_pair(flavour):
    job = launch.launch(flavour, 3, [launch.program("routepack", flavour), "ping", "--bytes", 100_000], timeout=120).check()
    rows = re.findall(r"^\s*(\d)\s+(\d)\s+[\d.]+\s+[\d.]+$", job.stdout, re.MULTILINE)
    assert rows == [(str(a), str(b)) for a in range(3) for b in range(3) if a != b]


def test_wrong_use_is_said_once(flavour):
    job = launch.launch(flavour, 2, [launch.program("routepack", flavour), "ping", "--bytes", "-1"], timeout=60)
    assert job.returncode == 2
    assert job.stderr.count("routepack: error:") == 1 and "--bytes" in job.stderr
