# SPDX-License-Identifier: Apache-2.0
"""A rank of an MPI job that plans: `mpi_job.py FOLDER VICTIM MOMENT HOW ON_LOST PATIENCE`, run by
test_mpi4py_team.py."""

from __future__ import annotations

import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from mpi4py import MPI  # noqa: E402

from routepack.team import Mpi4pyTeam  # noqa: E402
from team import dying_jobs, steps  # noqa: E402


def main(folder: str, victim: int, moment: str, how: str, on_lost: str, patience_s: float) -> None:
    comm = MPI.COMM_WORLD
    team = Mpi4pyTeam(comm, patience_s=patience_s)
    sizes = [[0] * comm.size, [2039 + r for r in range(comm.size)], [100_000 * r for r in range(comm.size)]]
    for lengths in sizes:
        given = [bytes([r]) * length for r, length in enumerate(lengths)]
        assert team.all_gather(given[comm.rank]) == given
    progress = dying_jobs.end_at(moment, how, folder, comm.rank) if comm.rank == victim else None
    report = dying_jobs.planned(team, progress=progress, on_lost=on_lost, params=steps.FAST)
    if victim >= 0 and on_lost == "alone" and comm.rank != victim:
        report["again"] = dying_jobs.planned(team, on_lost=on_lost)
    dying_jobs.report_to(folder, comm.rank, report)
    if how == "stop" and comm.rank == (victim + 1) % comm.size:
        dying_jobs.wake(folder, comm.size - 1)
    if victim >= 0:
        while len(dying_jobs.reports_in(folder)) < comm.size - (how == "kill"):
            time.sleep(0.02)  # a launcher may end the others when one ends
        os._exit(0)  # MPI_Finalize would wait for the dead


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:6], float(sys.argv[6]))
