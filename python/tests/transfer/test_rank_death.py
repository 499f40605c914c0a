# SPDX-License-Identifier: Apache-2.0
"""kill -9 of one of four processes in a move over gloo: the others say so in time, and hold whole layers."""

from __future__ import annotations

import json
import os
import signal

import pytest

pytest.importorskip("torch")

from . import dying_jobs, jobs  # noqa: E402
from .processes import run_dying_ranks, run_ranks  # noqa: E402

TIMEOUT_MS = 2500
MOMENTS = ["first message", "middle message", "last message", "first write", "middle write", "last write"]
OFTEN = bool(os.environ.get("ROUTEPACK_LONG"))


@pytest.mark.parametrize("atomic", ["layer", "step"] if OFTEN else ["layer"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_survivors_report_in_time_and_no_layer_is_torn(moment, atomic, tmp_path):
    ranks = dying_jobs.SMALL.ranks
    ends = run_dying_ranks(dying_jobs.move_with_a_death, ranks, moment, atomic, TIMEOUT_MS, str(tmp_path))
    wanted = [-signal.SIGKILL if rank == dying_jobs.VICTIM else 0 for rank in range(ranks)]
    assert ends == wanted, "all ended by themselves"
    survivors = [rank for rank in range(ranks) if rank != dying_jobs.VICTIM]
    reports = [json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in survivors]
    for report in reports:
        assert not report["complete"] and report["what"]
        assert report["wrong"] == [], "every slot holds what the engine says"
        assert set(report["layers"]) <= {"old", "new"}
        assert report["layers"] == reports[0]["layers"] and report["epoch"] == reports[0]["epoch"]
        assert report["silent"] == [dying_jobs.VICTIM] and report["rank"] == dying_jobs.VICTIM
        assert "spent" in report["refuses"]
        assert report["seconds"] < 4 * TIMEOUT_MS / 1000  # twice the timeout is promised; the machine may be busy
    if moment in ("first message", "middle message") or atomic == "step" and "message" in moment:
        assert reports[0]["layers"][-1] == "old"
    if moment == "first message":
        assert set(reports[0]["layers"]) == {"old"}
    if moment == "last write":
        assert set(reports[0]["layers"]) == {"new"}, "nobody's confirmation, but everybody's vote"


def test_a_write_that_fails_again_and_again_leaves_a_torn_layer_that_all_ranks_name():
    shape = dying_jobs.SMALL
    reports = run_ranks(jobs.failing_write, shape.ranks, shape)
    for rank, report in enumerate(reports):
        assert not report["complete"] and report["phase"] == "commit"
        assert report["layers"] == ["new", "torn" if rank == 1 else "new"]
        assert "rank 1: layer 1, expert" in report["what"] and "OSError: no such memory" in report["what"]
        assert "spent" in report["spent"]
