#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Windows in parts, planned by 1, 2, … MPI ranks: time per phase, bytes sent by rank 0, memory of a rank.

Usage: team.py ROUTEPACK ROUTEPACK_MPI [--folder DIR] [--samples 8192 65536 262144] [--ranks 1 2] [--effort fast]

qwen3-30b-a3b (48 layers, 128 experts), gsm8k lengths, 16 parts, 64 slots in 8 shards of 8 ranks, cap 8192, one thread a
rank. Windows stay in the folder for the next time. The plan must be the same for any number of ranks.
"""

import argparse
import json
import pathlib
import re
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parents[2]


def parts(routepack, folder, samples):
    """The manifest of a window, generated unless it is there."""
    manifest = folder / f"parts-{samples}" / "manifest.json"
    if not manifest.exists():
        subprocess.run([routepack, "generate", "--model", "qwen3-30b-a3b", "--lengths", "gsm8k", "--prompts",
                        str(samples // 8), "--rollouts", "8", "--seed", "1", "--parts", "16", "-o", manifest.parent],
                       check=True, stdout=subprocess.DEVNULL)
    return manifest


def planned(mpi, ranks, manifest, effort, output):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), "/usr/bin/time", "-f", "rank %M kB",
               mpi, "plan", manifest, "--dp", "64", "--ep", "8", "--cap", "8192", "--cost",
               HERE / "examples" / "gptoss20b.toml", "--effort", effort, "--threads", "1", "-o", output, "--json"]
    done = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True)
    memory = max(int(kilobytes) for kilobytes in re.findall(r"rank (\d+) kB", done.stderr))
    return json.loads(done.stdout), memory / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("routepack", type=pathlib.Path)
    parser.add_argument("routepack_mpi", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "routepack-bench")
    parser.add_argument("--samples", type=int, nargs="+", default=[8192, 65536, 262144])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--effort", default="fast")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for samples in args.samples:
        manifest = parts(args.routepack.resolve(), args.folder, samples)
        hashes = set()
        for ranks in args.ranks:
            result, memory = planned(args.routepack_mpi.resolve(), ranks, manifest, args.effort,
                                     args.folder / "plan.json")
            hashes.add(result["hash"])
            phases = "  ".join(f"{name} {ms:.0f}" for name, ms in result["timings_ms"].items())
            sent = "  ".join(f"{name} {count}" for name, count in result.get("sent_bytes", {}).items() if count)
            print(f"N {samples:6}  {ranks} ranks  {result['rows']} rows  gap {100 * result['bound']['gap']:.2f} %  "
                  f"{memory:6.0f} MiB  ms: {phases}\n    sent by rank 0: {sent}", flush=True)
        if len(hashes) != 1:
            raise SystemExit(f"{samples} samples: different plans, {hashes}")


if __name__ == "__main__":
    main()
