# SPDX-License-Identifier: Apache-2.0
"""What the reports of survivors must say."""

from __future__ import annotations

from typing import Any

import routepack


def check_survivors(
    reports: dict[int, dict[str, Any]], victim: int, on_lost: str, alone: routepack.Plan, patience_s: float
) -> None:
    survivors = [report for rank, report in sorted(reports.items()) if rank != victim]
    assert len(survivors) == 2
    for report in survivors:
        if on_lost == "raise":
            assert report["error"] == "PeerLost" and report["lost"] == victim, report
        else:
            assert report["hash"] == alone.hash and report["complete"], report
            assert len(report["said"]) == 1 and f"rank {victim} is lost" in report["said"][0], report
            assert report["again"]["hash"] == alone.hash and report["again"]["seconds"] < report["seconds"] + 10
            assert f"rank {victim} is lost" in report["again"]["said"][0]
        assert report["seconds"] < 3 * patience_s + 15  # the machine may be busy
