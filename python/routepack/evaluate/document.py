# SPDX-License-Identifier: Apache-2.0
"""Results as Markdown and CSV, and Markdown put between the marks of another file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import routepack
from routepack.evaluate import tables
from routepack.evaluate.words import amount, markdown

_FIGURES = ("rows", "joint", "attention", "expert_peak_sum", "tail_peak", "ep_efficiency", "gap")
BEGIN, END = "<!-- routepack evaluate: begin -->", "<!-- routepack evaluate: end -->"


def to_markdown(document: dict[str, Any]) -> str:
    """All tables of all scenarios, each with the command that reruns it."""
    made = document["made"]
    seconds = f"{made['wall_ms'] / 1000:,.0f} s"
    parts = [
        f"Made on {made['date']} with routepack {made['version']} in {seconds} on {made['machine']}:",
        f"```console\n$ {made['command']}\n```",
        "Gains over the baseline of the scenario:",
        markdown(tables.overview(document["scenarios"])),
    ]
    for result in document["scenarios"]:
        parts += _section(result)
    return "\n\n".join(parts) + "\n"


def _section(result: dict[str, Any]) -> list[str]:
    windows, topology = result["windows"], result["topology"]
    sizes = " ".join(f"{name} {size}" for name, size in topology.items() if name != "shards" and size > 1)
    shards = f"{topology['shards']} EDP shard{'s' if topology['shards'] > 1 else ''}"
    facts = [
        result["model"],
        result["device"] or "no device",
        f"{sizes or 'one rank'} ({shards})",
        f"cap {result['cap']:,}",
        f"{windows['windows']} steps of {windows['samples_per_step']:,.0f} samples",
        f"{windows['tokens_per_step']:,.0f} tokens a step",
    ]
    parts = [
        f"### {result['name']}",
        result["description"],
        "; ".join(facts) + ".",
        f"```console\n$ routepack evaluate {result['file']}\n```",
        markdown(tables.throughput(result)),
    ]
    if tables.difference_to_paper(result):
        less = ", ".join(tables.difference_to_paper(result))
        parts.append(f"Ours less the paper's: {less}. Source: {result['published']['source']}.")
    parts.append(markdown(tables.tests(result)))
    if result["packing"] is not None:
        before, after = result["packing"]["strategies"]
        parts.append(f"Packing alone, from {before} to {after}, mean change over steps:")
        parts.append(markdown(tables.packing(result)))
    parts += [markdown(tables.balance(result)), markdown(tables.moves(result))]
    if result["notes"]:
        parts.append("\n".join(f"- {note}" for note in result["notes"]))
    return parts


def put_between_marks(path: Path, text: str) -> str:
    """The file at `path` with `text` between its marks.

    :raises IoError: when it cannot be read
    :raises FormatError: unless it has both marks, once, in order
    """
    try:
        old = path.read_bytes().decode("utf-8")  # line ends as they are
    except OSError as error:
        raise routepack.IoError(f"{path}: cannot read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise routepack.FormatError(f"{path}: found no UTF-8 text, wanted Markdown") from None
    if old.count(BEGIN) != 1 or old.count(END) != 1 or old.index(BEGIN) > old.index(END):
        raise routepack.FormatError(f"{path}: found no pair of marks, wanted {BEGIN} and then {END}")
    before, after = old[: old.index(BEGIN)], old[old.index(END) :]
    between = f"{BEGIN}\n\n{text.strip()}\n\n"
    if old[len(before) + len(BEGIN) :].startswith("\r\n"):
        between = between.replace("\n", "\r\n")
    return before + between + after


def _csv(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def summary_csv(document: dict[str, Any]) -> str:
    """A line for each scenario and strategy."""
    spreads = ("throughput", "throughput_with_moves")
    head = ["scenario", "strategy", "time"]
    head += [f"{spread}_{key}" for spread in spreads for key in ("mean", "sd", "p10")]
    head += ["gain", "gain_with_moves", *_FIGURES]
    head += ["cv_global_mean", "cv_global_sd", "moved_fraction", "bytes_per_rank", "move_seconds"]
    head += ["place_ms", "planning_ms", "admission_ms", "extension_ms"]
    rows: list[list[Any]] = [head]
    for result in document["scenarios"]:
        for s in result["strategies"]:
            row = [result["name"], s["name"], result["time"]]
            row += [(s[spread] or {}).get(key) for spread in spreads for key in ("mean", "sd", "p10")]
            row += [s["gain"], s["gain_with_moves"]]
            row += [s["metrics"][key] for key in _FIGURES]
            row += [s["metrics"]["cv_global"]["mean"], s["metrics"]["cv_global"]["sd"]]
            row += [s["moves"]["all"][key] for key in ("fraction", "bytes_per_rank", "seconds")]
            row += [s["planning"][key] for key in ("place_ms", "planning_ms", "admission_ms", "extension_ms")]
            rows.append(row)
    return _csv(rows)


def steps_csv(document: dict[str, Any]) -> str:
    """A line for each scenario, strategy and step."""
    keys = list(document["scenarios"][0]["strategies"][0]["steps"][0])
    rows: list[list[Any]] = [["scenario", "strategy", *keys]]
    for result in document["scenarios"]:
        for strategy in result["strategies"]:
            rows += [[result["name"], strategy["name"], *(step[key] for key in keys)] for step in strategy["steps"]]
    return _csv(rows)
