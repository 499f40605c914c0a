# SPDX-License-Identifier: Apache-2.0
"""`routepack report PLAN WINDOW …`: the only module here that prints."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import routepack
from routepack import _terminal
from routepack.report import images, page, trace, words
from routepack.report.analysis import Analysis, analyse
from routepack.report.recording import load_steps, replan

#: Other plans in one table, the first one and those after it; 12 columns a name at most.
_BESIDE_FIRST, _BESIDE = 2, 4
_NAME = 12


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise routepack.InvalidInput(f"{message} (see routepack report --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="routepack report",
        description="Shows what a plan gains, against what bound, and where: a table here, and files on request.",
        epilog=f"The page needs plotly and the pictures need matplotlib: {page.HINT} brings both.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("plan", metavar="PLAN", help="plan file")
    add("window", metavar="WINDOW", help="window file that the plan was made for")
    add("--against", metavar="PLAN", nargs="+", action="extend", default=[], help="other plans for the same window")
    add("-o", "--output", metavar="HTML", help="page to write: one file that needs no network")
    add("--figures", metavar="DIR", help="folder for the main figures as PNG and SVG")
    add("--trace", metavar="FILE", help="trace of the planner's phases to write, for Perfetto or chrome://tracing")
    add("--replan", action="store_true", help="make the plan once more, to show its search over time")
    add("--progress", metavar="FILE", help="the same from a recording that was saved while planning")
    add("--title", metavar="TEXT", help="title of the page; default the name of the window file")
    add("--json", action="store_true", help="the summary as JSON")
    return parser


def _require_apart(outputs: Sequence[str], inputs: Sequence[str]) -> None:
    for k, output in enumerate(outputs):
        for other in (*inputs, *outputs[:k]):
            if os.path.realpath(output) == os.path.realpath(other):
                raise routepack.InvalidInput(f"{output}: found as an output and as another file, wanted different files")


def _run(given: argparse.Namespace) -> tuple[Analysis, list[str]]:
    outputs = [path for path in (given.output, given.trace) if path is not None]
    inputs = [given.plan, given.window, *given.against, *([given.progress] if given.progress else [])]
    _require_apart(outputs, inputs)
    if given.replan and given.progress is not None:
        raise routepack.InvalidInput("--replan: found together with --progress, wanted one of them")
    steps = [] if given.progress is None else load_steps(Path(given.progress))
    written = []
    with _terminal.Progress() as progress:
        progress.says("reading")
        window, plan = routepack.Window.load(given.window), routepack.Plan.load(given.plan)
        names = _apart([_printable(Path(path).stem) for path in given.against])
        against = [(name, routepack.Plan.load(path)) for name, path in zip(names, given.against)]
        if given.replan:
            plan.evaluate(window)  # a plan of another window says so before any work
            progress.says("planning again")
            steps = replan(plan, window)
        progress.says("adding up loads")
        analysis = analyse(plan, window, against=against, progress=steps, name=Path(given.plan).stem)
        if given.output is not None:
            progress.says(f"writing {given.output}")
            title = _printable(Path(given.window).stem if given.title is None else given.title)
            images.write_text(Path(given.output), page.to_html(analysis, title))
            written.append(given.output)
        if given.figures is not None:
            progress.says(f"drawing into {given.figures}")
            written += [str(path) for path in images.write_images(analysis, Path(given.figures))]
        if given.trace is not None:
            images.write_text(Path(given.trace), trace.to_json(analysis))
            written.append(given.trace)
    return analysis, written


def _apart(names: Sequence[str]) -> list[str]:
    """Names that occur again get a number."""
    apart: list[str] = []
    for name in names:
        number, fresh = 1, name
        while fresh in apart:
            number += 1
            fresh = f"{name} ({number})"
        apart.append(fresh)
    return apart


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _text(analysis: Analysis, written: list[str]) -> str:
    rows = words.comparison(analysis)
    tables = []
    others = list(range(4, len(rows[0])))
    groups = [others[:_BESIDE_FIRST], *(others[k : k + _BESIDE] for k in range(_BESIDE_FIRST, len(others), _BESIDE))]
    for number, group in enumerate(groups):
        part = [[row[c] for c in ([0, *group] if number else [0, 1, 2, 3, *group])] for row in rows]
        part[0] = [_terminal.shortened(name, _NAME) for name in part[0]]
        lines = _terminal.table(part).splitlines()
        lines[0] = _terminal.styled(lines[0], "bold", sys.stdout)
        tables.append("\n".join(f"  {line}" for line in lines))
    said = "\n".join(f"  {note}" for note in words.notes(analysis))
    files = "\n".join(f"  wrote {path}" for path in written)
    return "\n\n".join(part for part in (*tables, said, files) if part)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 with one line on stderr."""
    try:
        given = _parser().parse_args(argv)
        analysis, written = _run(given)
        if given.json:
            text = json.dumps({**analysis.as_dict(), "written": written}, indent=2)
        else:
            text = _text(analysis, written)
        _terminal.output(text)
    except routepack.InternalError as error:
        print(f"routepack report: error: {error}", file=sys.stderr)
        return 1
    except (routepack.Error, OSError, MemoryError) as error:
        message = _printable(" ".join(str(error).splitlines()) or "not enough memory for this input")
        print(f"routepack report: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
