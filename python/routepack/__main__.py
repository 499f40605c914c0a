# SPDX-License-Identifier: Apache-2.0
"""`routepack SUBCOMMAND …` of the Python package, also as `python -m routepack`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

_USAGE = """usage: routepack convert KIND IN... -o WINDOW

subcommands of the Python package:
  convert   count recorded routes into a window (routepack convert --help)

plan, score, verify, inspect, compare and generate are subcommands of the C++ command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["convert"]:
        from routepack.convert import main as convert

        return convert(arguments[1:])
    if arguments[:1] in (["--help"], ["-h"]):
        print(_USAGE)
        return 0
    if arguments[:1] == ["--version"]:
        from routepack import __version__

        print(f"routepack {__version__}")
        return 0
    found = f'"{arguments[0]}"' if arguments else "no subcommand"
    print(f"routepack: found {found}, wanted convert; the others are in the C++ command line", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
