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
from routepack._files import require_place, write_texts
from routepack.calibrate import calibrate, output
from routepack.calibrate.fit import HINT
from routepack.calibrate.model import MOST_CAPACITY, MOST_LAYERS, MOST_TILE, DenseStage
from routepack.calibrate.records import read_records
from routepack.calibrate.result import Calibration
from routepack.convert.errors import shown


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise routepack.InvalidInput(f"{message} (see routepack calibrate --help)")


def _path(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("found an empty name, wanted a file")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="routepack calibrate",
        description="Fits the costs of the planner to measured times, with intervals, or says what to measure.",
        epilog=f"The fit needs scipy: {HINT} brings it.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("measurements", metavar="MEASUREMENTS", nargs="+", type=_path, help="files of records: .csv or .jsonl")
    add("-o", "--output", metavar="COST", required=True, type=_path, help="cost file (TOML) to write")
    add("--cap", type=int, metavar="C", required=True, help="token cap of the costs")
    add(
        "--timing",
        metavar="FILE",
        type=_path,
        help="timing file (TOML) to write: the same in seconds, for the step simulator",
    )
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
    known = layers.isascii() and layers.isdigit()
    number = 0 if not known else int(layers) if len(layers) < 9 else MOST_LAYERS + 1
    if not name or not name.isprintable() or number < 1:
        raise routepack.InvalidInput(f"--stage: found {shown(text)}, wanted NAME:LAYERS, such as full:24")
    if number > MOST_LAYERS:
        raise routepack.InvalidInput(f"--stage: found {shown(text)}, wanted at most {MOST_LAYERS} layers")
    return DenseStage(name, number)


def _stages(texts: Sequence[str]) -> list[DenseStage]:
    stages = [_stage(text) for text in texts]
    if (layers := sum(stage.layers for stage in stages)) > MOST_LAYERS:
        raise routepack.InvalidInput(f"--stage: found {layers} layers in all, wanted at most {MOST_LAYERS}")
    return stages


def _require_tokens(option: str, number: int, most: int) -> None:
    if not 1 <= number <= most:
        raise routepack.InvalidInput(f"{option}: found {shown(number)}, wanted 1 to {most} tokens")


def _same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:  # one is not there yet
        return os.path.realpath(path) == os.path.realpath(other)


def _require_apart(outputs: Sequence[str], inputs: Sequence[str]) -> None:
    for k, path in enumerate(outputs):
        for other in (*inputs, *outputs[:k]):
            if _same(path, other):
                raise routepack.InvalidInput(f"{path}: found as an output and as another file, wanted different files")


def _run(given: argparse.Namespace) -> tuple[Calibration, list[str]]:
    outputs = [path for path in (given.output, given.timing) if path is not None]
    _require_apart(outputs, given.measurements)
    _require_tokens("--cap", given.cap, MOST_CAPACITY)
    _require_tokens("--tile", given.tile, MOST_TILE)
    stages = None if given.stage is None else _stages(given.stage)
    for path in outputs:
        require_place(Path(path))
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
    write_texts(dict(zip(outputs, texts)))
    return found, outputs


def _text(found: Calibration, written: Sequence[str]) -> str:
    said = "\n".join(_wrapped(note) for note in found.notes)
    wrote = "\n".join(f"  wrote {path}" for path in written)
    return "\n\n".join(part for part in (output.table(found), said, wrote) if part)


def _wrapped(note: str) -> str:
    """Lines within the columns of a terminal, the first indented by 2 and the others by 4."""
    lines, line, indent = [], "", 2
    for word in note.split():
        while (over := indent + _terminal.display_width(f"{line} {word}".strip()) - _terminal.WIDTH) > 0:
            if not line:  # a word wider than a line
                cut = max(1, (len(word) - over) if word.isascii() else (_terminal.WIDTH - indent) // 2)
                line, word = word[:cut], word[cut:]
            lines.append(" " * indent + line)
            line, indent = "", 4
        line = f"{line} {word}".strip()
    return "\n".join([*lines, " " * indent + line])


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: compiled modules turn it into an ImportError of their own."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


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
    except ImportError as error:  # scipy is there and cannot be loaded
        if _interrupted(error):
            return 130
        print(f"routepack calibrate: error: cannot load scipy: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
