# SPDX-License-Identifier: Apache-2.0
"""`routepack evaluate SCENARIO …`: the only module here that prints."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import shlex
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import routepack
from routepack import _terminal
from routepack._files import make_folder, require_folder, require_writable, write_text
from routepack._signals import Stopped, leaving, stops
from routepack.evaluate import document, figures, statistics, tables
from routepack.evaluate.measurements import measure
from routepack.evaluate.program import Program
from routepack.evaluate.results import FORMAT, scenario_results
from routepack.evaluate.scenario import MOST_STEPS, Scenario, load_scenario
from routepack.evaluate.toml import HINT
from routepack.evaluate.windows import WindowFolder

_TEXTS = ("results.json", "summary.csv", "steps.csv", "results.md")
_NAME = 12  #: columns that a name has at least

class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise routepack.InvalidInput(f"{message} (see routepack evaluate --help)")


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= MOST_STEPS:
        raise ValueError
    return value


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError
    return text


_count.__name__ = f"whole number from 1 to {MOST_STEPS}"  # what argparse calls it
_path.__name__ = "path"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="routepack evaluate",
        description="Runs strategies on the windows of scenarios and shows throughput, balance, moves and planning.",
        epilog=f"The tests need scipy and the pictures matplotlib: {HINT} brings both. docs/evaluate.md has the keys.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("scenarios", metavar="SCENARIO", nargs="+", help="scenario files (TOML)")
    said = "folder for results.json, tables (CSV, Markdown) and pictures"
    add("-o", "--output", metavar="DIR", type=_path, help=said)
    add("--into", metavar="FILE", type=_path, help="Markdown file that gets the tables between its marks")
    add("--steps", metavar="N", type=_count, help="steps of each seed, whatever the scenarios say")
    add("--quick", action="store_true", help="few and small windows: to see whether it runs, not what comes out")
    add("--threads", metavar="N", type=_count, help="worker threads (default: one per core)")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="all results as JSON")
    shown.add_argument("--csv", action="store_true", help="one line for each scenario and strategy")
    shown.add_argument("--markdown", action="store_true", help="all tables as Markdown")
    return parser


def _scenarios(given: argparse.Namespace) -> list[Scenario]:
    scenarios: list[Scenario] = []
    for name in given.scenarios:
        scenario = load_scenario(Path(name))
        for other in scenarios:
            if other.name == scenario.name:
                raise routepack.InvalidInput(
                    f'{scenario.path}: name: found "{scenario.name}", the name of {other.path} too, wanted another'
                )
        scenarios.append(scenario)
    if given.quick:
        scenarios = [scenario.quick() for scenario in scenarios]
    return scenarios if given.steps is None else [scenario.with_steps(given.steps) for scenario in scenarios]


def evaluate(
    scenarios: Sequence[Scenario], program: Program, *, threads: int, command: str, says: Callable[[str], None]
) -> dict[str, Any]:
    """Runs scenarios one after the other; the document that `--json` prints."""
    begin = time.monotonic()
    results = []
    of_windows = [(scenario.model, scenario.windows) for scenario in scenarios]
    with contextlib.ExitStack() as stack:
        folders: dict[object, tempfile.TemporaryDirectory[str]] = {}
        made_in: dict[object, WindowFolder] = {}
        for number, (scenario, windows) in enumerate(zip(scenarios, of_windows)):
            if windows not in folders:
                folders[windows] = tempfile.TemporaryDirectory(prefix="routepack-evaluate-")
                stack.enter_context(folders[windows])
                made_in[windows] = WindowFolder(Path(folders[windows].name), program)
            results.append(scenario_results(measure(scenario, made_in[windows], program, threads, says)))
            if windows not in of_windows[number + 1 :]:
                folders[windows].cleanup()  # windows are large, and nobody wants these again
    made = {
        "version": routepack.__version__,
        "command": command,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "machine": _machine(threads),
        "wall_ms": 1e3 * (time.monotonic() - begin),
    }
    return {"format": FORMAT, "made": made, "scenarios": results}


def _machine(threads: int) -> str:
    """For people: the processor, how many cores, how many threads planned."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    cores = os.cpu_count() or 1
    return f"{name}, {cores} core{'s' if cores > 1 else ''}, {threads} planning thread{'s' if threads > 1 else ''}"


def _command(given: argparse.Namespace) -> str:
    """What gives the same figures: scenarios and what changes them. A whole folder is shown as one."""
    shown: list[str] = []
    for name in given.scenarios:
        folder = Path(name).parent
        whole = {str(path) for path in folder.glob("*.toml")} <= {str(Path(other)) for other in given.scenarios}
        text = f"{shlex.quote(str(folder))}/*.toml" if whole else shlex.quote(name)
        shown += [text] if text not in shown else []
    more = ["--quick"] if given.quick else []
    return " ".join(["routepack evaluate", *shown, *more, *([f"--steps {given.steps}"] if given.steps else [])])


def _run(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from routepack.__main__ import program

    with leaving():
        statistics.require_scipy()
        if given.output is not None:
            figures.require_matplotlib()
    scenarios = _scenarios(given)
    if given.into is not None:
        document.put_between_marks(Path(given.into), "")  # says what is wrong before any work
    if given.output is not None:
        _require_output(Path(given.output))
    threads = given.threads or os.cpu_count() or 1
    written: list[str] = []
    with _terminal.Progress() as progress:
        command = Program(program())
        found = evaluate(scenarios, command, threads=threads, command=_command(given), says=progress.says)
        if given.output is not None:
            progress.says(f"writing {given.output}")
            written += _write(found, Path(given.output))
        if given.into is not None:
            path = Path(given.into)
            write_text(path, document.put_between_marks(path, document.to_markdown(found)))
            written.append(given.into)
    return found, written


def _require_output(folder: Path) -> None:
    """Nothing is computed that cannot be written."""
    for inner in (folder, folder / "figures"):
        require_folder(inner)
    for name in _TEXTS:
        require_writable(folder / name)


def _json(found: dict[str, Any]) -> str:
    try:
        return json.dumps(found, indent=2, allow_nan=False)
    except ValueError:
        raise routepack.Error("results: found a figure that is no finite number, wanted JSON") from None


def _write(found: dict[str, Any], folder: Path) -> list[str]:
    texts = (_json(found) + "\n", document.summary_csv(found), document.steps_csv(found), document.to_markdown(found))
    make_folder(folder)
    written = []
    for name, text in zip(_TEXTS, texts):
        write_text(folder / name, text)
        written.append(str(folder / name))
    return written + [str(path) for path in figures.write_figures(found, folder / "figures")]


def _text(found: dict[str, Any], written: Sequence[str]) -> str:
    parts = []
    for result in found["scenarios"]:
        device, steps = result["device"] or "no device", result["windows"]["windows"]
        head = f"{result['name']}: {result['model']}, {device}, cap {result['cap']:,}, {steps} steps"
        lines = _table(tables.terminal(result)).splitlines()
        notes = [line for note in result["notes"] for line in _wrapped(f"note: {note}", _terminal.WIDTH - 2)]
        heads = [_terminal.styled(line, "bold", sys.stdout) for line in _wrapped(head, _terminal.WIDTH)]
        parts.append("\n".join([*heads, *(f"  {line}" for line in (*lines, *notes))]))
    simulated = all(result["time"] == "simulated" for result in found["scenarios"])
    time_said = "tokens/s: simulated" if simulated else "tokens: per unit of the objective"
    parts.append(f"{time_said}; with moves: not hidden; p: Wilcoxon, adjusted; moved: experts a step")
    if written:
        parts.append(f"wrote {written[0]}" + (f" and {len(written) - 1} more files" if len(written) > 1 else ""))
    return "\n\n".join(parts)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ", break_on_hyphens=False)


def _table(rows: tables.Table) -> str:
    """Names get what the figures leave of the columns, and end in front where that is too little."""
    others = [max(_terminal.display_width(row[c]) for row in rows) for c in range(1, len(rows[0]))]
    left = max(_NAME, _terminal.WIDTH - 2 - sum(2 + width for width in others))
    return _terminal.table([[_terminal.shortened(row[0], left), *row[1:]] for row in rows])


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 with one line on stderr; 128 and the number of the signal that stopped it."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        given = _parser().parse_args(arguments)
        with stops():
            found, written = _run(given)
        if given.json:
            text = _json(found)
        elif given.csv:
            text = document.summary_csv(found).rstrip()
        elif given.markdown:
            text = document.to_markdown(found).rstrip()
        else:
            text = _text(found, written)
        _terminal.output(text)
    except routepack.InternalError as error:
        print(f"routepack evaluate: error: {error}", file=sys.stderr)
        return 1
    except (routepack.Error, OSError, MemoryError) as error:
        message = " ".join(str(error).splitlines()) or "not enough memory for this input"
        print(f"routepack evaluate: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Stopped as stopped:
        return 128 + stopped.number
    return 0
