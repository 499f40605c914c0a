#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the search finds in how much time, with LPT placement, beside every strategy of `routepack compare`.

Usage: search_quality.py ROUTEPACK [--folder DIR] [--threads 1 2] [--only NAME]

One block per window: joint objective, efficiency and gap to the bound of every strategy; then of our planner at each effort
and, searching with the quality effort, at each deadline. Deadlines count from the call: aggregation, rows and seeds
included. `search` is the time of the search alone.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import windows

DEADLINES_MS = [5, 20, 50, 100, 300, 1000, 3000]


def rivals(routepack, case):
    done = subprocess.run([routepack, "compare", case.window, *case.options, "--placements", "lpt", "--effort", "fast",
                           "--baseline", "lpt/areal-ffd", "--json"], check=True, capture_output=True)
    return json.loads(done.stdout)["windows"][0]["entries"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("routepack", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "routepack-bench")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    routepack = args.routepack.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    out = args.folder / "plan.json"

    for case in windows.cases(routepack, args.folder):
        if args.only not in case.name:
            continue
        print(f"\n{case.name}: {' '.join(str(option) for option in case.options)}")
        for entry in rivals(routepack, case):
            if entry["strategy"] == "routepack" or entry.get("joint") is None:
                continue
            note = "" if not entry["marks"] else "  " + ",".join(entry["marks"])
            print(f"  {entry['strategy']:26} joint {entry['joint']:10.2f}  eff {entry['ep_efficiency']:.4f}  "
                  f"gap {100 * entry['gap']:6.2f} %  {entry['rows']:4} rows{note}")
        for threads in args.threads:
            runs = [(effort, ["--effort", effort]) for effort in ("paper", "fast", "default", "quality")]
            runs += [(f"{ms} ms", ["--effort", "quality", "--deadline-ms", str(ms)]) for ms in DEADLINES_MS]
            for name, more in runs:
                result = windows.plan(routepack, case, "--placement", "lpt", "--threads", str(threads), *more, out=out)
                times = result["timings_ms"]
                total = times["total"] - times["load"]
                print(f"  routepack {name:8} {threads} thr.   joint {result['score']['max_shard']:10.2f}  "
                      f"eff {result['metrics']['ep_efficiency']:.4f}  gap {100 * (result['bound']['gap'] or 0):6.2f} %  "
                      f"{result['rows']:4} rows  {total:8.1f} ms, search {times['search']:8.1f} ms, "
                      f"{result['search']['proposals']:>11,} proposals", flush=True)


if __name__ == "__main__":
    main()
