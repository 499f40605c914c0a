# SPDX-License-Identifier: Apache-2.0
"""The pictures: gains and spread of rank loads over scenarios, and the steps of each scenario."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import routepack
from routepack.evaluate import tables
from routepack.evaluate.toml import HINT
from routepack.report.charts import AFTER, BEFORE, DENSE, EXPERT, OTHERS
from routepack.report.images import draw

#: Strategies in order: the baseline, and those after it.
_COLOURS = (BEFORE, EXPERT, DENSE, AFTER, *OTHERS)
_MARKERS = "Dsvo^P*X"
_WITHOUT = f"evaluate: found no matplotlib, wanted it for the pictures of -o: {HINT}"
_HATCHES = ("", "//", "\\\\", "..", "xx", "oo")


def write_figures(document: dict[str, Any], folder: Path) -> list[Path]:
    """gains, cv, and NAME-steps for each scenario, as PNG and SVG; the files written.

    :raises InvalidInput: when matplotlib is not installed
    """
    results = document["scenarios"]
    paintings: dict[str, Callable[[Any], None]] = {
        "gains": functools.partial(_gains, results),
        "cv": functools.partial(_cv, results),
    }
    for result in results:
        paintings[f"{result['name']}-steps"] = functools.partial(_steps, result)
    return draw(paintings, folder, _WITHOUT)


def require_matplotlib() -> None:
    """:raises InvalidInput: when it is not installed"""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise routepack.InvalidInput(_WITHOUT) from None


def _names(results: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in tables.by_name(result)))


def _text(name: str) -> str:
    return name.replace("$", r"\$")


def _bars(axes: Any, results: list[dict[str, Any]], names: list[str], of: Callable[[dict[str, Any], str], Any]) -> None:
    """Groups of bars with whiskers: `of` gives mean and sd, or None."""
    width = 0.8 / len(names)
    order = _names(results)
    for k, name in enumerate(names):
        shown = [(x, of(result, name)) for x, result in enumerate(results)]
        at = [x + (k - (len(names) - 1) / 2) * width for x, value in shown if value is not None]
        means, deviations = np.array([value for _, value in shown if value is not None]).reshape(-1, 2).T
        c = order.index(name)  # a strategy looks the same in every picture
        look = {"color": _COLOURS[c % len(_COLOURS)], "hatch": _HATCHES[c % len(_HATCHES)], "edgecolor": "white"}
        axes.bar(at, means, width, label=_text(name), **look)
        axes.errorbar(at, means, deviations, fmt="none", ecolor="black", elinewidth=0.8, capsize=2)
    turned = {"rotation": 90, "fontsize": 8} if len(results) > 2 else {}
    axes.set_xticks(range(len(results)), [_text(result["name"]) for result in results], **turned)


def _gain_of_steps(result: dict[str, Any], name: str) -> tuple[float, float] | None:
    """Mean and sd over steps of the gain over the baseline on the same step, in percent."""
    strategy = tables.by_name(result).get(name)
    if strategy is None or name == result["baseline"]:
        return None
    base = tables.by_name(result)[result["baseline"]]["steps"]
    gains = [100 * (a["throughput"] / b["throughput"] - 1) for a, b in zip(strategy["steps"], base)]
    return float(np.mean(gains)), float(np.std(gains, ddof=1)) if len(gains) > 1 else 0.0


def _gains(results: list[dict[str, Any]], figure: Any) -> None:
    axes = figure.subplots()
    bases = {result["baseline"] for result in results}
    names = [name for name in _names(results) if name not in bases or len(bases) > 1]
    _bars(axes, results, names, _gain_of_steps)
    for x, result in enumerate(results):
        for least, most in (result["published"] or {"gains": {}})["gains"].values():
            axes.plot([x - 0.42, x + 0.42], [100 * least] * 2, ":", color="black", linewidth=1)
            axes.plot([x - 0.42, x + 0.42], [100 * most] * 2, ":", color="black", linewidth=1)
    if any(result["published"] and result["published"]["gains"] for result in results):
        axes.plot([], [], ":", color="black", label="gains in the paper")
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_ylabel("gain of a step over the baseline, %")
    figure.legend(loc="outside upper left", ncols=5, frameon=False)


def _cv(results: list[dict[str, Any]], figure: Any) -> None:
    """The paper's figure 7: before on the left; after on the right, on a scale of its own."""
    before, after = figure.subplots(1, 2)

    def of(result: dict[str, Any], name: str) -> tuple[float, float] | None:
        strategy = tables.by_name(result).get(name)
        cv = None if strategy is None else strategy["metrics"]["cv_global"]
        return None if cv is None else (cv["mean"], cv["sd"])

    placements: dict[str, str] = {}  # strategies of one placement and effort share it: the first one stands for them
    for result in results:
        for strategy in result["strategies"]:
            placements.setdefault(strategy["placement"], strategy["name"])
    stay = [name for placement, name in placements.items() if placement in ("identity", "keep")]
    move = [name for placement, name in placements.items() if placement not in ("identity", "keep")]
    for axes, names, title in ((before, stay, "experts in order"), (after, move, "experts placed")):
        if names:
            _bars(axes, results, names, of)
        axes.set_title(title)
        axes.set_ylim(bottom=0)
    before.set_ylabel("CV of the ranks' loads, mean over layers")
    figure.legend(loc="outside upper left", ncols=5, frameon=False)


def _steps(result: dict[str, Any], figure: Any) -> None:
    speed, moved = figure.subplots(1, 2, width_ratios=(3, 2))
    for k, strategy in enumerate(result["strategies"]):
        look = {"color": _COLOURS[k % len(_COLOURS)], "markersize": 4}
        style = f"{_MARKERS[k % len(_MARKERS)]}-"
        steps = strategy["steps"]
        x = range(len(steps))
        speed.plot(x, [step["throughput"] for step in steps], style, label=_text(strategy["name"]), **look)
        moved.plot(x, [100 * step["moved_fraction"] for step in steps], style, **look)
    speed.set_ylabel(tables.unit(result))
    moved.set_ylabel("experts that change rank, %")
    for axes in (speed, moved):
        axes.set_xlabel("step")
        axes.grid(axis="y", color="#e3e8ee")
        axes.xaxis.get_major_locator().set_params(integer=True)
    moved.set_ylim(bottom=0)
    figure.legend(loc="outside upper left", ncols=5, frameon=False)
