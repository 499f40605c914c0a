# SPDX-License-Identifier: Apache-2.0
"""`routepack SUBCOMMAND …` of the Python package, also as `python -m routepack`.

Those of _PYTHON are Python; every other subcommand is the C++ command line that the package carries.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from routepack import _signals
from routepack._terminal import output

_PYTHON = {
    "calibrate": "Fit the costs to measured times",
    "convert": "Count recorded routes into a window",
    "evaluate": "Run strategies on scenarios: throughput, tests, tables",
    "report": "Show what a plan gains: page, pictures, trace",
}


def program() -> Path:
    """The C++ command line that was installed with the package."""
    spec = importlib.util.find_spec("routepack._core")
    folder = Path(spec.origin if spec is not None and spec.origin else __file__).parent
    return folder / "bin" / "routepack"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns the exit status.

    Without `argv`, as a program, one of the C++ command line takes this process over: signals and standard streams are
    its own.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with _signals.leaving():
            subcommand = _subcommand(arguments[0] if arguments else "")
        if subcommand is not None:
            return subcommand(arguments[1:])
        if not os.access(program(), os.X_OK):
            print(f"routepack: error: {program()}: found no program, wanted the C++ command line", file=sys.stderr)
            return 2
        if arguments[:1] in (["--help"], ["-h"]):
            output(_help())
            return 0
        command = [str(program()), *arguments]
        if argv is not None:
            return subprocess.run(command, check=False).returncode
        for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and an ignored signal stays ignored
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.execv(command[0], command)
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as error:  # the program cannot run here, and has said why
        said = " ".join(str(error.stderr).split())
        print(f"routepack: error: {program()}: cannot run: {said}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"routepack: error: {error}", file=sys.stderr)
        return 2


def _subcommand(name: str) -> Callable[[Sequence[str]], int] | None:
    """The main of a subcommand in Python, with all that it imports; None for those of C++."""
    if name == "calibrate":
        from routepack.calibrate.cli import main as calibrate

        return calibrate
    if name == "convert":
        from routepack.convert.cli import main as convert

        return convert
    if name == "evaluate":
        from routepack.evaluate.cli import main as evaluate

        return evaluate
    if name == "report":
        from routepack.report.cli import main as report

        return report
    return None


def _help() -> str:
    """The help of the C++ command line with the subcommands of the package among the others."""
    done = subprocess.run([str(program()), "--help"], check=True, capture_output=True, text=True)
    lines = done.stdout.rstrip().splitlines()
    lines = [line for line in lines if not line.startswith("With the Python package")]
    begin = lines.index("Subcommands:") + 1
    end = begin + lines[begin:].index("")
    column = lines[begin].index(lines[begin].split()[1], 2)
    lines[end:end] = [f"  {name}".ljust(column) + words for name, words in _PYTHON.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
