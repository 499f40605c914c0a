# SPDX-License-Identifier: Apache-2.0
"""Teams of MPI ranks through mpi4py, under the launchers of Open MPI and MPICH, where both are there."""

from __future__ import annotations

import functools
import importlib.util
import os
import pathlib
import shutil
import sys

import pytest

pytest.importorskip("mpi4py", reason="no mpi4py, which requirements/mpi.txt pins: teams over MPI are not tested")

from . import dying_jobs, steps  # noqa: E402
from .verdicts import check_survivors  # noqa: E402

OFTEN = bool(os.environ.get("ROUTEPACK_LONG"))


def _launch():
    """tests/mpi/launch.py, which knows the launchers."""
    spec = importlib.util.spec_from_file_location("launch", steps.ROOT / "tests" / "mpi" / "launch.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["launch"] = module
    spec.loader.exec_module(module)
    return module


launch = _launch()
FLAVOURS = [flavour for flavour, launcher in launch.LAUNCHERS.items() if shutil.which(launcher)]
pytestmark = pytest.mark.skipif(not FLAVOURS, reason="no launcher of an MPI: teams over MPI are not tested")


@pytest.fixture(scope="module")
def alone():
    return steps.plan()


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    """mpi4py's module for MPICH asks for the library by the name that MPICHs agreed on; Debian's has another."""
    folder = tmp_path_factory.mktemp("mpich")
    library = next(iter(pathlib.Path("/usr/lib").glob("*/libmpich.so.12")), None)
    if library is not None:
        (folder / "libmpi.so.12").symlink_to(library)
    return {
        "openmpi": {"MPI4PY_MPIABI": "openmpi"},
        "mpich": {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"},
    }


@pytest.fixture
def run(variables):
    return functools.partial(_run, variables)


def _run(variables, flavour, ranks, folder, victim=-1, moment="none", how="none", on_lost="raise", patience_s=60.0):
    script = pathlib.Path(__file__).with_name("mpi_job.py")
    argv = [sys.executable, script, folder, victim, moment, how, on_lost, patience_s]
    job = launch.launch(flavour, ranks, argv, recovery=victim >= 0, timeout=60, env=variables[flavour])
    return job, dying_jobs.reports_in(folder)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("ranks", [1, 3] if not OFTEN else [1, 2, 3, 4])
def test_ranks_make_the_plan_of_one_process(run, flavour, ranks, alone, tmp_path):
    job, reports = run(flavour, ranks, tmp_path)
    job.check()
    assert [reports[rank]["hash"] for rank in range(ranks)] == [alone.hash] * ranks


# One of each where time is short: both ways to be lost, both launchers.
LOSSES = [("mpich", "kill", 1, "level 2", "raise"), ("openmpi", "stop", 0, "place", "alone")]
if OFTEN:
    moments = ("demand", "level 2", "level 4")
    LOSSES = [(f, h, r, m, o) for f in FLAVOURS for h in ("kill", "stop") for r in (0, 1, 2) for m in moments for o in ("raise", "alone")]


@pytest.mark.parametrize(("flavour", "how", "victim", "moment", "on_lost"), [loss for loss in LOSSES if loss[0] in FLAVOURS])
def test_survivors_of_a_lost_rank_name_it_in_time(run, flavour, how, victim, moment, on_lost, alone, tmp_path):
    job, reports = run(flavour, 3, tmp_path, victim, moment, how, on_lost, 4.0)
    assert job.returncode is not None and job.leftovers == [], f"{job.stdout}{job.stderr}"
    check_survivors(reports, victim, on_lost, alone, 4.0)
    if how == "stop" and on_lost == "alone":
        assert reports[victim]["hash"] == alone.hash
