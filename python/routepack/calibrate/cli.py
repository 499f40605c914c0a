# SPDX-License-Identifier: Apache-2.0
"""`routepack calibrate MEASUREMENTS… -o COST --cap C`: the only module here that prints."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import routepack
from routepack import _terminal
from routepack.calibrate import calibrate, output
from routepack.calibrate.fit import HINT
from routepack.calibrate.model import DenseStage
from routepack.calibrate.records import read_records
from routepack.calibrate.result import Calibration
from routepack.convert.errors import shown
from routepack.report.images import write_text


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise routepack.InvalidInput(f"{message} (see routepack calibrate --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="routepack calibrate",
        description="Fits the costs of the planner to measured times, with intervals, or says what to measure.",
        epilog=f"The fit needs scipy: {HINT} brings it.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("measurements", metavar="MEASUREMENTS", nargs="+", help="files of records: .csv or .jsonl")
    add("-o", "--output", metavar="COST", required=True, help="cost file (TOML) to write")
    add("--cap", type=int, metavar="C", required=True, help="token cap of the costs")
    add("--timing", metavar="FILE", help="timing file (TOML) to write: the same in seconds, for the step simulator")
    add(
        "--stage",
        metavar="NAME:LAYERS",
        action="append",
        help="a dense stage and its decoder layers, in order; default those that attention records name",
    )
    add("--tile", type=int, metavar="M", default=1, help="an expert's load counts as the next multiple; default 1")
    add("--without", metavar="TERM", action="append", default=[], help="take a term as 0, such as expert.active")
    add("--keep-wide", action="store_true", help="keep terms whose interval is as wide as their value")
    add("--confidence", type=float, metavar="P", default=0.95, help="of the intervals; default 0.95")
    add(
        "--forward-share",
        type=float,
        metavar="F",
        default=1.0 / 3.0,
        help="share of the forward pass, for the timing file; default 1/3",
    )
    add("--json", action="store_true", help="the result as JSON")
    return parser


def _stage(text: str) -> DenseStage:
    name, _, layers = text.rpartition(":")
    number = int(layers) if layers.isascii() and layers.isdigit() and len(layers) < 8 else 0
    if not name or not name.isprintable() or not 1 <= number < 2**20:
        raise routepack.InvalidInput(f"--stage: found {shown(text)}, wanted NAME:LAYERS, such as full:24")
    return DenseStage(name, number)


def _require_apart(outputs: Sequence[str], inputs: Sequence[str]) -> None:
    for k, path in enumerate(outputs):
        for other in (*inputs, *outputs[:k]):
            if os.path.realpath(path) == os.path.realpath(other):
                raise routepack.InvalidInput(f"{path}: found as an output and as another file, wanted different files")


def _run(given: argparse.Namespace) -> tuple[Calibration, list[str]]:
    outputs = [path for path in (given.output, given.timing) if path is not None]
    _require_apart(outputs, given.measurements)
    stages = None if given.stage is None else [_stage(text) for text in given.stage]
    with _terminal.Progress() as progress:
        progress.says("reading")
        records = read_records(given.measurements)
        progress.says(f"fitting {len(records):,} records")
        found = calibrate(
            records,
            capacity=given.cap,
            stages=stages,
            tile=given.tile,
            without=given.without,
            confidence=given.confidence,
            keep_wide=given.keep_wide,
        )
    texts = [output.cost_toml(found, given.measurements)]
    if given.timing is not None:
        texts.append(output.timing_toml(found, given.measurements, forward_share=given.forward_share))
    routepack.CostModel.parse(texts[0], given.output)  # nothing is written that cannot be read
    for path, text in zip(outputs, texts):
        write_text(Path(path), text)
    return found, outputs


def _text(found: Calibration, written: Sequence[str]) -> str:
    said = "\n".join(f"  {note}" for note in found.notes)
    files = "\n".join(f"  wrote {path}" for path in written)
    return "\n\n".join(part for part in (output.table(found), said, files) if part)


def _document(found: Calibration, written: Sequence[str]) -> dict[str, Any]:
    """Plain JSON: what is not known is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(inner) for inner in value]
        return None if isinstance(value, float) and abs(value) == float("inf") else value

    document: dict[str, Any] = plain({**found.as_dict(), "written": list(written)})
    return document


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0, or 2 with one line on stderr."""
    try:
        given = _parser().parse_args(argv)
        found, written = _run(given)
        _terminal.output(json.dumps(_document(found, written), indent=2) if given.json else _text(found, written))
    except routepack.InternalError as error:
        print(f"routepack calibrate: error: {error}", file=sys.stderr)
        return 1
    except (routepack.Error, OSError, MemoryError) as error:
        message = " ".join(str(error).splitlines()) or "not enough memory for this input"
        print(f"routepack calibrate: error: {message.encode('utf-8', 'replace').decode('utf-8')}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
