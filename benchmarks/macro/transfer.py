#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed and staging of the data plane on large experts: `transfer --self-test` on threads and under MPI.

Usage: transfer.py BUILD [--runs N] [--ep P] [--edp M] [--layers L] [--experts E] [--hidden H] [--width W] [--moves K]

BUILD is a build folder (build/release). Its routepack runs with threads as ranks; build/mpi/bin/routepack-mpi (Open MPI)
and routepack-mpich (MPICH) run where they and a launcher are found. Speed stands beside a bare copy of the same bytes
through the same transport and staging, without checks, made in the same run: the medians of N runs, with their spread.

Staging is measured, not believed: the state is allocated once and the rest of the process is small, so peak memory of
two runs that differ in `--atomic` alone differs by the staging of all ranks (threads: one process; the bare copy always
stages a layer at a time).

The defaults are two lanes of four experts, 7.1 million parameters each: 57 MB of state per expert and lane.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCHERS = {"routepack-mpi": ["mpirun.openmpi", "mpirun"], "routepack-mpich": ["mpirun.mpich", "mpiexec.mpich"]}


def run_once(command):
    """The report and peak resident bytes of the process tree's largest member."""
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen([str(part) for part in command], stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
        out.seek(0)
        text = out.read()
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {os.waitstatus_to_exitcode(status)}\n{text}")
    return json.loads(text), usage.ru_maxrss * 1024


def measure(name, command, runs):
    results = [run_once(command) for _ in range(runs)]
    reports = [report for report, _ in results]
    if not all(report["verified"] for report in reports):
        sys.exit(f"{name}: not verified")
    speed = [report["gbytes_per_second"] for report in reports]
    share = [100 * report["share_of_bare_copy"] for report in reports]
    print(f"{name:34} {statistics.median(speed):6.2f} GB/s, {statistics.median(share):5.1f} % of a bare copy "
          f"({min(share):.1f} to {max(share):.1f}), {reports[0]['moved_bytes'] / 1e9:.2f} GB in {reports[0]['moves']} moves, "
          f"{reports[0]['expert_bytes'] / 1e6:.0f} MB an expert on all lanes", flush=True)
    return reports[0], statistics.median(peak for _, peak in results)


def launcher_of(executable, ranks):
    for name in LAUNCHERS[executable]:
        if path := shutil.which(name):
            version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            if ("Open MPI" in version or "open-mpi" in version) != (executable == "routepack-mpi"):
                continue
            crowded = ["--oversubscribe"] if executable == "routepack-mpi" and ranks > os.cpu_count() else []
            root = ["--allow-run-as-root"] if executable == "routepack-mpi" and os.geteuid() == 0 else []
            return [path, *root, *crowded, "-n", str(ranks)]
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--mpi", type=pathlib.Path, default=ROOT / "build" / "mpi" / "bin")
    for name, value in (("ep", 2), ("edp", 2), ("layers", 2), ("experts", 4), ("hidden", 2048), ("width", 1152), ("moves", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    ranks = args.ep * args.edp
    routepack = args.build.resolve() / "bin" / "routepack"
    sizes = [f"--{name}={getattr(args, name)}" for name in ("ep", "edp", "layers", "experts", "hidden", "width", "moves")]
    test = ["transfer", "--self-test", "--json", *sizes]

    layer, layer_peak = measure("threads, two-hop", [routepack, *test], args.runs)
    measure("threads, direct", [routepack, *test, "--route=direct"], args.runs)
    measure("threads, read back", [routepack, *test, "--read-back"], args.runs)
    step, step_peak = measure("threads, atomic step", [routepack, *test, "--atomic=step"], args.runs)
    for executable in LAUNCHERS:
        path = args.mpi / executable
        launch = launcher_of(executable, ranks) if path.exists() else None
        if launch is None:
            print(f"{executable}: not found, left out")
            continue
        measure(f"{executable}, {ranks} processes, two-hop", [*launch, path, *test], args.runs)
        measure(f"{executable}, {ranks} processes, direct", [*launch, path, *test, "--route=direct"], args.runs)

    mib = 2**20
    print(f"staging of the busiest rank: layer {layer['staging_bytes'] / mib:.1f} MiB of {layer['staging_promised'] / mib:.1f} "
          f"promised, step {step['staging_bytes'] / mib:.1f} of {step['staging_promised'] / mib:.1f}")
    print(f"peak memory: {layer_peak / mib:.1f} MiB with atomic = layer, {step_peak / mib:.1f} with step, of them "
          f"{layer['state_bytes'] / mib:.1f} MiB state; all ranks' staging adds at most "
          f"{ranks * layer['staging_promised'] / mib:.1f} and {ranks * step['staging_promised'] / mib:.1f} for the engine, "
          f"{ranks * layer['staging_promised'] / mib:.1f} for the bare copy")


if __name__ == "__main__":
    main()
