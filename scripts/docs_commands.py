#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands that README.md and docs/*.md show, so that what a reader copies works.

Fenced blocks marked `sh` are run in order, each with `bash -euo pipefail`, in a scratch copy of the examples that is
fresh for every file, with build/release/bin first on PATH. Blocks marked otherwise (`console`, `text`) are not run.
Usage: scripts/docs_commands.py [FILE.md ...]
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "release" / "bin"
SECONDS_PER_BLOCK = 120


def blocks(text: str):
    """Line number and contents of each block marked `sh`."""
    for match in re.finditer(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start()) + 2, match.group(1)


def run_file(path: pathlib.Path) -> tuple[int, list[str]]:
    """Runs the blocks of one file; how many there were, and what failed."""
    ran, failures = 0, []
    with tempfile.TemporaryDirectory(prefix="routepack-docs-") as scratch:
        shutil.copytree(ROOT / "examples", pathlib.Path(scratch) / "examples")
        env = {
            "PATH": f"{BIN}:{os.defpath}:/usr/bin:/bin",
            "HOME": scratch,
            "LC_ALL": "C.UTF-8",
        }
        for line, script in blocks(path.read_text(encoding="utf-8")):
            ran += 1
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=scratch, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=SECONDS_PER_BLOCK, check=False,
            )
            if done.returncode != 0:
                failures.append(f"{path.relative_to(ROOT)}:{line}: exit status {done.returncode}\n{script}{done.stderr}")
                break  # later blocks build on earlier ones
    return ran, failures


def main(arguments: list[str]) -> int:
    if not (BIN / "routepack").exists():
        print(f"docs: {BIN / 'routepack'} is missing; run `make build` first", file=sys.stderr)
        return 1
    files = [pathlib.Path(a).resolve() for a in arguments] or [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    total, failures = 0, []
    for path in files:
        ran, failed = run_file(path)
        total += ran
        failures += failed
        print(f"docs: {path.relative_to(ROOT)}: {ran} blocks" + (" FAILED" if failed else ""))
    for failure in failures:
        print(failure, file=sys.stderr)
    if not arguments and total == 0:
        print("docs: no block marked `sh` was found", file=sys.stderr)
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
