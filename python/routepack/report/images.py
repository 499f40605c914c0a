# SPDX-License-Identifier: Apache-2.0
"""The main figures as PNG and SVG files, for papers and chats."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import routepack
from routepack._files import make_folder, write_bytes, write_text
from routepack.report.analysis import Analysis
from routepack.report.charts import AFTER, BEFORE, BOUND, DENSE, EXPERT, around_mean
from routepack.report.figures import over
from routepack.report.page import HINT

__all__ = ["draw", "write_images", "write_text"]

Painter = Callable[[Analysis, Any], None]  #: draws on a matplotlib figure


def write_images(analysis: Analysis, folder: Path) -> list[Path]:
    """Every figure as PNG and SVG; the files written. The folder is made when it is missing.

    :raises InvalidInput: when matplotlib is not installed
    """
    paintings = {name: functools.partial(paint, analysis) for name, paint in _FIGURES.items()}
    return draw(paintings, folder, f"report: found no matplotlib, wanted it for --figures: {HINT}")


def draw(paintings: Mapping[str, Callable[[Any], None]], folder: Path, without: str) -> list[Path]:
    """Paints each on a matplotlib figure and writes it as NAME.png and NAME.svg, whole or not at all.

    :param without: what to say when matplotlib is not installed
    :raises InvalidInput: then
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise routepack.InvalidInput(without) from None
    make_folder(folder)
    written = []
    # A fixed salt and no date: the same plan gives the same bytes.
    look = {"svg.hashsalt": "routepack", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(look), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # names in a script that the font lacks: boxes, but no failure
        for name, paint in paintings.items():
            figure = Figure(figsize=(9.0, 4.2), layout="constrained")
            FigureCanvasAgg(figure)
            paint(figure)
            for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
                path = folder / f"{name}.{kind}"
                image = io.BytesIO()
                figure.savefig(image, format=kind, dpi=150, metadata=metadata)
                write_bytes(path, image.getvalue())
                written.append(path)
    return written


def _score(analysis: Analysis, figure: Any) -> None:
    axes = figure.subplots()
    shown = [f for f in (analysis.before, *analysis.against, analysis.after) if f is not None]
    names = ["before" if f is analysis.before else "after" if f is analysis.after else f.name for f in shown]
    names = [name.replace("$", r"\$") for name in names]
    split = np.array([f.split(analysis.problem.sync) for f in shown])
    at = np.arange(len(shown))
    axes.barh(at, split[:, 0], color=DENSE, label="dense side")
    axes.barh(at, split[:, 1], left=split[:, 0], color=EXPERT, hatch="//", edgecolor="white", label="expert side")
    for y, f in zip(at, shown):
        axes.text(f.score[0], y, f" {f.score[0]:,.1f}", va="center")
    if analysis.bound is not None:
        axes.axvline(analysis.bound, color=BOUND, linestyle="--", label=f"bound {analysis.bound:,.1f}")
    axes.set_yticks(at, names)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("joint objective, lower is better")
    figure.legend(loc="outside upper left", ncols=3, frameon=False)


def _layers(analysis: Analysis, figure: Any) -> None:
    axes = figure.subplots()
    x = np.arange(len(analysis.moved))
    for f, colour, style, label in (
        (analysis.before, BEFORE, "D--", "before"),
        (analysis.after, AFTER, "o-", "after"),
    ):
        if f is not None:
            means = f.loads.sum(axis=3).max(axis=1).sum(axis=0) / f.loads.shape[3]
            peaks = over(f.loads.max(axis=(1, 3)).sum(axis=0), means)
            axes.plot(x, peaks, style, color=colour, label=label, markersize=4)
    least = over(np.array(analysis.least_peaks), analysis.after.demand.sum(axis=1) / analysis.problem.ranks)
    axes.plot(x, least, ":", color=BOUND, label="least that any placement allows")
    _layer_ticks(axes.set_xticks, analysis)
    axes.set_xlabel("MoE layer")
    axes.set_ylabel("busiest rank / mean rank")
    axes.grid(axis="y", color="#e3e8ee")
    figure.legend(loc="outside upper left", ncols=3, frameon=False)


def _rank_loads(analysis: Analysis, figure: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    panels = [f for f in (analysis.before, analysis.after) if f is not None]
    ratios = [over(f.demand, f.demand.mean(axis=1, keepdims=True)) for f in panels]
    least, most, colours = around_mean(max([1.001, *(float(ratio.max()) for ratio in ratios)]))
    blue_to_orange = LinearSegmentedColormap.from_list("around_mean", [tuple(stop) for stop in colours])
    all_axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
    for axes, f, ratio in zip(all_axes, panels, ratios):
        image = axes.imshow(ratio, aspect="auto", cmap=blue_to_orange, vmin=least, vmax=most)
        axes.set_title("before" if f is analysis.before else "after")
        axes.set_xlabel("EP rank")
    _layer_ticks(all_axes[0].set_yticks, analysis)
    all_axes[0].set_ylabel("MoE layer")
    figure.colorbar(image, ax=list(all_axes), label="tokens of the step / layer mean")


def _row_layers(analysis: Analysis, figure: Any) -> None:
    panels = [f for f in (analysis.before, analysis.after) if f is not None]
    most = max([1.001, *(float(f.peak_over_mean.max()) for f in panels)])
    all_axes = np.atleast_1d(figure.subplots(1, len(panels)))
    for axes, f in zip(all_axes, panels):
        image = axes.imshow(f.peak_over_mean, aspect="auto", cmap="cividis", vmin=1.0, vmax=most)
        axes.set_title("before" if f is analysis.before else "after")
        _layer_ticks(axes.set_xticks, analysis)
        axes.set_xlabel("MoE layer")
    all_axes[0].set_ylabel("row")
    figure.colorbar(image, ax=list(all_axes), label="busiest rank / mean rank")


def _layer_ticks(set_ticks: Callable[..., Any], analysis: Analysis) -> None:
    """Names of at most a dozen layers."""
    step = -(-len(analysis.moved) // 12)
    set_ticks(range(0, len(analysis.moved), step), analysis.problem.layer_names[::step])


_FIGURES: dict[str, Painter] = {
    "objective": _score,
    "layers": _layers,
    "rank-loads": _rank_loads,
    "rows-layers": _row_layers,
}
