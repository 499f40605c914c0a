# SPDX-License-Identifier: Apache-2.0
"""routepack-mpi plan: ranks that plan together come to the plan of one process; a lost rank is named in time."""

import json
import os
import pathlib
import subprocess

import pytest

import launch

ROUTEPACK = pathlib.Path(os.environ.get("ROUTEPACK_BIN", launch.ROOT / "build" / "release" / "bin" / "routepack"))
WINDOW = launch.ROOT / "examples" / "windows" / "gptoss20b-mmlu-354.safetensors"
OPTIONS = ["--dp", 8, "--ep", 8, "--cap", 2048, "--cost", launch.ROOT / "examples" / "gptoss20b.toml"]


def arguments(plan, *more):
    return ["plan", WINDOW, *OPTIONS, "-o", plan, *more]


def plan_hash(plan):
    shown = subprocess.run([ROUTEPACK, "score", WINDOW, plan, "--json"], check=True, capture_output=True, text=True)
    return json.loads(shown.stdout)["hash"]


def planned_alone(folder, *more):
    path = folder / "alone.json"
    subprocess.run([ROUTEPACK, *map(str, arguments(path, *more))], check=True, capture_output=True)
    return plan_hash(path)


@pytest.mark.parametrize("effort", ["default", "paper"])
def test_any_number_of_ranks_and_threads_comes_to_the_same_plan(flavour, effort, tmp_path):
    alone = planned_alone(tmp_path, "--effort", effort, "--seed", 3)
    for ranks, threads in ((1, 2), (2, 1), (4, 2)):
        path = tmp_path / f"{ranks}.json"
        more = ["--effort", effort, "--seed", 3, "--threads", threads]
        job = launch.launch(flavour, ranks, [launch.program("routepack", flavour), *arguments(path, *more)], timeout=120)
        job.check()
        assert plan_hash(path) == alone, f"{ranks} ranks of {threads} threads"
        assert job.stdout.count("rows") > 0 and job.stdout.count("plan: ") == 1


def test_what_is_wrong_is_said_once(flavour, tmp_path):
    argv = [launch.program("routepack", flavour), *arguments(tmp_path / "x.json", "--effort", "frantic")]
    job = launch.launch(flavour, 3, argv, timeout=60)
    assert job.returncode == 2
    assert job.stderr.count("routepack: error:") == 1 and "--effort" in job.stderr
    assert not (tmp_path / "x.json").exists()


def test_what_goes_wrong_on_rank_0_alone_is_the_status_of_the_job(flavour, tmp_path):
    argv = [launch.program("routepack", flavour), *arguments(tmp_path / "missing" / "x.json", "--effort", "fast")]
    job = launch.launch(flavour, 3, argv, timeout=60)
    assert job.returncode == 2 and job.leftovers == []
    assert job.stderr.count("routepack: error:") == 1 and "missing/x.json" in job.stderr


SIGNALLED = """\
rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
if [ "$rank" = 1 ]; then (sleep 2; kill -TERM $$) & fi
exec "$@"
"""


def test_a_rank_that_is_told_to_end_leaves_no_plan_that_looks_like_one(flavour, tmp_path):
    """Whichever rank it is: a scheduler may end one host."""
    (tmp_path / "long.toml").write_text("[search]\nproposals-per-sample = 100000000\n")
    (tmp_path / "rank.sh").write_text(SIGNALLED)
    plan = tmp_path / "plan.json"
    argv = ["sh", tmp_path / "rank.sh", launch.program("routepack", flavour),
            *arguments(plan, "--params", tmp_path / "long.toml", "--threads", 1)]  # fmt: skip
    job = launch.launch(flavour, 3, argv, timeout=60)
    assert job.returncode not in (None, 0) and not plan.exists(), job.stderr


SMALL = ["--dp", 4, "--ep", 4, "--cap", 16384, "--effort", "fast", "--seed", 3, *OPTIONS[-2:]]


@pytest.fixture
def in_parts(tmp_path):
    """A manifest of five parts."""
    run([ROUTEPACK, "generate", "--model", "gpt-oss-20b", "--prompts", 10, "--rollouts", 4, "--parts", 5,
         "-o", tmp_path / "window"])  # fmt: skip
    return tmp_path / "window" / "manifest.json"


def run(argv):
    return subprocess.run([*map(str, argv)], check=True, capture_output=True, text=True).stdout


def hash_in_parts(manifest, plan):
    return json.loads(run([ROUTEPACK, "score", manifest, plan, "--json"]))["hash"]


def test_a_window_in_parts_is_planned_by_ranks_as_by_one_process(flavour, in_parts, tmp_path):
    alone = tmp_path / "alone.json"
    run([ROUTEPACK, "plan", in_parts, *SMALL, "-o", alone])
    for ranks in (2, 3, 6):  # of six one has nothing to read
        plan = tmp_path / f"{ranks}.json"
        argv = [launch.program("routepack", flavour), "plan", in_parts, *SMALL, "-o", plan]
        launch.launch(flavour, ranks, argv, timeout=120).check()
        assert hash_in_parts(in_parts, plan) == hash_in_parts(in_parts, alone), f"{ranks} ranks"


def on_hosts_of_their_own(flavour, tmp_path, argv):
    """A command line for ranks that stand in folders r0, r1, …"""
    variable = {"openmpi": "OMPI_COMM_WORLD_RANK", "mpich": "PMI_RANK"}[flavour]
    return ["/bin/sh", "-c", f'cd "$0/r${variable}" && exec "$@"', tmp_path, *argv]


def test_no_rank_needs_to_see_all_parts(flavour, in_parts, tmp_path):
    for rank in range(3):
        (tmp_path / f"r{rank}").mkdir()
    for part, rank in enumerate((2, 0, 2, 1, 1)):
        name = f"part-{part:04}.safetensors"
        (tmp_path / f"r{rank}" / name).write_bytes((in_parts.parent / name).read_bytes())
    (tmp_path / "r0" / "manifest.json").write_bytes(in_parts.read_bytes())  # the first rank's is enough
    alone, plan = tmp_path / "alone.json", tmp_path / "plan.json"
    run([ROUTEPACK, "plan", in_parts, *SMALL, "-o", alone])
    argv = [launch.program("routepack", flavour), "plan", "manifest.json", *SMALL, "-o", plan]
    launch.launch(flavour, 3, on_hosts_of_their_own(flavour, tmp_path, argv), timeout=120).check()
    assert hash_in_parts(in_parts, plan) == hash_in_parts(in_parts, alone)

    plan.unlink()
    (tmp_path / "r1" / "part-0003.safetensors").unlink()
    job = launch.launch(flavour, 3, on_hosts_of_their_own(flavour, tmp_path, argv), timeout=120)
    assert job.returncode not in (None, 0) and job.leftovers == []
    said = 'routepack: error: manifest.json: parts[3]: path: found "part-0003.safetensors" on none of the 3 ranks'
    assert job.stderr.count("routepack: error:") == job.stderr.count(said) == 1, job.stderr
    assert not plan.exists()


def check(flavour, ranks, folder, victim, phase):
    folder.mkdir()
    argv = [launch.program("plan_check", flavour), folder, victim, phase]
    job = launch.launch(flavour, ranks, argv, recovery=victim >= 0, timeout=120)
    return job, {int(p.stem.split("-")[1]): json.loads(p.read_text()) for p in folder.glob("rank-*.json")}


PHASES = ["demand", "level 1", "level 20", "refine", "check"]
if os.environ.get("ROUTEPACK_LONG"):
    PHASES += ["place", "loads", "rows", "seed", "search", "level 2", "level 10"]


ALONE = {}


@pytest.fixture
def alone(flavour, tmp_path):
    """What one rank comes to; made once."""
    if flavour not in ALONE:
        job, reports = check(flavour, 1, tmp_path / "alone", -1, "none")
        job.check()
        assert reports[0]["hash"]
        ALONE[flavour] = reports[0]
    return ALONE[flavour]


@pytest.mark.parametrize("phase", PHASES)
def test_survivors_of_a_rank_killed_in_any_phase_name_it_in_time_or_have_the_plan(flavour, phase, alone, tmp_path):
    plan = alone["hash"]
    victim = PHASES.index(phase) % 3
    job, reports = check(flavour, 3, tmp_path / "killed", victim, phase)
    assert job.leftovers == []
    assert victim not in reports
    survivors = {0, 1, 2} - {victim}
    assert sorted(reports) == sorted(survivors)
    for report in reports.values():
        assert report["ok"], report["what"]
        assert report["seconds"] < 20
        if phase == "check":  # all had the plan by then
            assert report["hash"] == plan
        elif report["hash"]:  # nothing was asked of the others any more
            assert phase == "refine" and report["hash"] == plan
        else:
            assert report["lost"] == victim, report["error"]


def test_what_travels_is_what_was_found(flavour, alone, tmp_path):
    """Two ranks tell each other about as much; a rank alone tells nobody anything."""
    job, both = check(flavour, 2, tmp_path / "both", -1, "none")
    job.check()
    assert alone["sent_bytes"] == 0
    assert both[0]["hash"] == both[1]["hash"] == alone["hash"]
    assert 0.5 < both[0]["sent_bytes"] / both[1]["sent_bytes"] < 2
