# SPDX-License-Identifier: Apache-2.0
"""The C++ command line, as a function from arguments to JSON."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import routepack


class Program:
    """The `routepack` executable at a path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def json(self, *arguments: str) -> dict[str, Any]:
        """What `routepack ARGUMENTS --json` prints.

        :raises Error: with the line that the program said
        """
        command = [str(self.path), *arguments, "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        except OSError as error:
            raise routepack.IoError(f"{self.path}: cannot run: {error.strerror}") from None
        if done.returncode != 0:
            said = [line.partition("error: ")[2] for line in done.stderr.splitlines() if "error: " in line]
            why = said[-1] if said else f"exit status {done.returncode} without a word"
            raise routepack.Error(f"routepack {arguments[0]}: {why}")
        try:
            document = json.loads(done.stdout, parse_constant=_refuse)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise routepack.Error(f"routepack {arguments[0]}: found no JSON, wanted a document of this version")
        return document


def _refuse(constant: str) -> float:
    """NaN and Infinity are no JSON."""
    raise ValueError(constant)
