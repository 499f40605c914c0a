#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What moves buy: joint objective, efficiency, gap and share moved of every way to place experts.

Usage: placement_quality.py ROUTEPACK [--folder DIR] [--steps 20] [--part tables|seeds|steps|tinymoe]

tables: keep, LPT, sticky at three tolerances and joint with budgets, from the identity, on real windows and presets.
seeds:  ling-3.0-tiny, seeds 1 to 5: sticky, joint with 0.10·L·E moves more, free.
steps:  drifting windows in order, the placement carried along: fresh LPT, sticky, joint, joint with free moves.
tinymoe: the same on eight windows of a real GRPO run of a small model (tests/data/tinymoe_grpo).
"""

import argparse
import lzma
import pathlib
import subprocess
import tempfile

import windows

WAYS = [
    ("keep", ["--placement", "keep"]),
    ("lpt", ["--placement", "lpt"]),
    ("sticky 2 %", ["--placement", "sticky", "--sticky-eps", "0.02", "--moves", "free"]),
    ("sticky 1 %", ["--placement", "sticky", "--sticky-eps", "0.01", "--moves", "free"]),
    ("sticky 0.3 %", ["--placement", "sticky", "--sticky-eps", "0.003", "--moves", "free"]),
    ("joint 2 %", ["--moves", "0.02"]),
    ("joint 5 %", ["--moves", "0.05"]),
    ("joint 10 %", ["--moves", "0.10"]),
    ("joint", []),
    ("joint free", ["--moves", "free"]),
]


def line(name, result):
    times = result["timings_ms"]
    print(f"  {name:22} joint {result['score']['max_shard']:10.2f}  eff {result['metrics']['ep_efficiency']:.4f}  "
          f"gap {100 * (result['bound']['gap'] or 0):6.2f} %  moved {100 * result['moves']['fraction']:5.1f} %  "
          f"{times['total'] - times['load']:7.1f} ms", flush=True)


def tables(routepack, folder, out):
    for case in windows.cases(routepack, folder):
        if "4096" in case.name:
            continue
        print(f"\n{case.name}, from the identity")
        for name, more in WAYS:
            line(name, windows.plan(routepack, case, "--threads", "1", *more, out=out))


def seeds(routepack, folder, out):
    for seed in range(1, 6):
        window = windows.generated(routepack, folder, f"tiny-seed-{seed}", "--model", "ling-3.0-tiny", "--lengths", "gsm8k",
                                   "--prompts", "64", "--rollouts", "8", "--seed", str(seed))
        case = windows.Case("tiny", window, windows.options(8, 8, 8192, windows.cost_file(folder, "tiny")))
        print(f"\nling-3.0-tiny, 64 x 8, gsm8k, seed {seed}")
        sticky = windows.plan(routepack, case, "--placement", "sticky", "--moves", "free", "--threads", "1", out=out)
        line("sticky 1 %", sticky)
        share = sticky["moves"]["fraction"] + 0.10
        more = windows.plan(routepack, case, "--moves", f"{share:.6f}", "--threads", "1", out=out)
        line("joint, 10 % more", more)
        free = windows.plan(routepack, case, "--moves", "free", "--threads", "1", out=out)
        line("joint free", free)
        joint = [result["score"]["max_shard"] for result in (sticky, more, free)]
        print(f"  10 % more moves give {100 * (joint[0] - joint[1]) / (joint[0] - joint[2]):.0f} % of what free moves add")


def carried(routepack, folder, out, files, options):
    """Plans the windows in order for every way, each from the placement that the way left; means over all but the first."""
    ways = [("keep", ["--placement", "keep"]), ("fresh LPT", ["--placement", "lpt"]), ("sticky", ["--placement", "sticky"]),
            ("joint", []), ("joint free", ["--moves", "free"])]
    for name, more in ways:
        current = []
        gap, efficiency, moved = [], [], []
        for file in files:
            first = ["--placement", "lpt"] if name == "keep" and not current else more
            result = windows.plan(routepack, windows.Case(name, file, options), *first, *current, out=out)
            kept = folder / "current.json"
            out.replace(kept)
            current = ["--current", str(kept)]
            gap.append(result["bound"]["gap"])
            efficiency.append(result["metrics"]["ep_efficiency"])
            moved.append(result["moves"]["fraction"])
        count = len(files) - 1
        print(f"  {name:12} gap {100 * sum(gap[1:]) / count:.3f} %  eff {sum(efficiency[1:]) / count:.4f}  "
              f"moved {100 * sum(moved[1:]) / count:.2f} % (most in one step {100 * max(moved[1:]):.2f} %)", flush=True)


def steps(routepack, folder, out, count):
    run = folder / f"drift-{count}"
    if not run.exists():
        subprocess.run([routepack, "generate", "--model", "ling-3.0-tiny", "--lengths", "gsm8k", "--prompts", "64", "--rollouts",
                        "8", "--seed", "1", "--steps", str(count), "-o", run], check=True, capture_output=True)
    print(f"\n{count} drifting windows of ling-3.0-tiny, placement carried along; means over steps 2 to {count}")
    carried(routepack, folder, out, sorted(run.glob("*.safetensors")),
            windows.options(8, 8, 8192, windows.cost_file(folder, "tiny")))


def tinymoe(routepack, folder, out):
    files = []
    for packed in sorted((windows.ROOT / "tests" / "data" / "tinymoe_grpo").glob("*.xz")):
        files.append(folder / packed.stem)
        files[-1].write_bytes(lzma.decompress(packed.read_bytes()))
    print("\n8 windows of tinymoe_grpo (steps 0, 1, 6, 7, 12, 13, 18, 19), placement carried along; means over all but the first")
    carried(routepack, folder, out, files, windows.options(8, 8, 4096, windows.cost_file(folder, "tiny")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("routepack", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "routepack-bench")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--part", choices=["tables", "seeds", "steps", "tinymoe"])
    args = parser.parse_args()
    routepack = args.routepack.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    out = args.folder / "plan.json"
    if args.part in (None, "tables"):
        tables(routepack, args.folder, out)
    if args.part in (None, "seeds"):
        seeds(routepack, args.folder, out)
    if args.part in (None, "steps"):
        steps(routepack, args.folder, out, args.steps)
    if args.part in (None, "tinymoe"):
        tinymoe(routepack, args.folder, out)


if __name__ == "__main__":
    main()
