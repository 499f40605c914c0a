# SPDX-License-Identifier: Apache-2.0
"""The figures of a report as plotly.js understands them: plain dictionaries, made without plotly."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from routepack.report.analysis import ENDINGS, Analysis
from routepack.report.figures import Figures, over
from routepack.report.recording import search_steps

Chart = dict[str, Any]

#: Okabe and Ito's palette, which every kind of colour vision tells apart. Before is also hatched or dashed.
BEFORE, AFTER, BOUND, INK = "#D55E00", "#0072B2", "#000000", "#1f2933"
DENSE, EXPERT = "#56B4E9", "#E69F00"
OTHERS = ["#009E73", "#CC79A7", "#F0E442"]
FROM_MEAN = "Cividis"


def around_mean(most: float) -> tuple[float, float, list[list[Any]]]:
    """Least and most of a scale that is white at 1, blue below and orange above, and its colours."""
    least = max(0.0, 2.0 - most)
    middle = (1.0 - least) / (most - least)
    below, above = middle / 2, (1.0 + middle) / 2
    colours = [[0.0, "#2166ac"], [below, "#92c5de"], [middle, "#f7f7f7"], [above, "#fdb863"], [1.0, "#b35806"]]
    return least, most, colours


def score_bars(analysis: Analysis) -> Chart:
    """The objective of every plan, split into its two sides, and the bound that none goes below."""
    shown = [f for f in (analysis.before, *analysis.against, analysis.after) if f is not None]
    names = [_bar_name(analysis, figures) for figures in shown]
    dense, expert = zip(*(figures.split(analysis.problem.sync) for figures in shown))
    traces = [
        _bars(dense, names, "dense side (attention)", DENSE, "h"),
        {**_bars(expert, names, "expert side", EXPERT, "h"), "marker": _hatched(EXPERT)},
    ]
    totals = [figures.score[0] for figures in shown]
    notes = [
        {"x": total, "y": name, "text": f"<b>{total:,.1f}</b>", "showarrow": False, "xanchor": "left", "xshift": 6}
        for total, name in zip(totals, names)
    ]
    shapes = []
    if analysis.bound is not None:
        shapes.append(_line("v", analysis.bound, "dash"))
        traces.append({  # for the legend alone: the line itself crosses the whole figure
            "type": "scatter", "mode": "lines", "name": f"bound {analysis.bound:,.1f}: no plan goes below", "x": [None],
            "y": [names[0]], "line": {"color": BOUND, "dash": "dash", "width": 2},
        })  # fmt: skip
    layout = _layout(x="joint objective, lower is better", legend=True)
    layout["xaxis"]["range"] = [0, 1.14 * max([*totals, analysis.bound or 0.0])]
    layout["yaxis"].update(autorange="reversed", automargin=True)
    layout.update(barmode="stack", annotations=notes, shapes=shapes)
    return {"data": traces, "layout": layout}


def layer_peaks(analysis: Analysis) -> Chart:
    """Per layer, what the busiest rank of each row costs against perfectly even ranks, and the least over the step."""
    x = analysis.problem.layer_names
    traces = []
    others = [(f, OTHERS[k % len(OTHERS)], "dashdot", "square") for k, f in enumerate(analysis.against)]
    *before, after = _pair(analysis)
    for figures, colour, dash, symbol in [*before, *others, after]:
        peaks = figures.loads.max(axis=(1, 3)).sum(axis=0)
        means = figures.loads.sum(axis=3).max(axis=1).sum(axis=0) / figures.loads.shape[3]
        traces.append({
            "type": "scatter", "mode": "lines+markers", "name": _bar_name(analysis, figures), "x": x,
            "y": _rounded(over(peaks, means)), "line": {"color": colour, "dash": dash, "width": 2.5},
            "marker": {"symbol": symbol, "size": 7},
            "hovertemplate": "layer %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
        })  # fmt: skip
    means = analysis.after.demand.sum(axis=1) / analysis.problem.ranks
    traces.append({
        "type": "scatter", "mode": "lines", "name": "least that any placement allows", "x": x,
        "y": _rounded(over(np.array(analysis.least_peaks), means)), "line": {"color": BOUND, "dash": "dot", "width": 2},
        "hovertemplate": "layer %{x}: %{y:.3f}<extra>%{fullData.name}</extra>",
    })  # fmt: skip
    layout = _layout(x="MoE layer", y="busiest rank / mean rank", legend=True)
    layout["xaxis"]["type"] = "category"
    return {"data": traces, "layout": layout}


def rank_loads(analysis: Analysis) -> list[tuple[str, Chart]]:
    """Layers × ranks: tokens of the whole step over the layer's mean, before and after on one scale."""
    panels = [(figures, over(figures.demand, figures.demand.mean(axis=1, keepdims=True))) for figures, *_ in _pair(analysis)]
    least, most, colours = around_mean(max([1.001, *(float(z.max()) for _, z in panels)]))
    made = []
    for figures, z in panels:
        hover = "layer %{y}, rank %{x}: %{z:.3f} of the mean<extra></extra>"
        ranks = [str(p) for p in range(analysis.problem.ranks)]
        heat = _heat(z, ranks, analysis.problem.layer_names, colours, (least, most), hover)
        made.append((_title(analysis, figures), _heat_chart(heat, "EP rank", "MoE layer")))
    return made


def row_layer_peaks(analysis: Analysis) -> list[tuple[str, Chart]]:
    """Rows × layers: the busiest rank over the mean rank, before and after on one scale."""
    pair = [figures for figures, *_ in _pair(analysis)]
    most = max([1.001, *(float(figures.peak_over_mean.max()) for figures in pair)])
    made = []
    for figures in pair:
        hover = "row %{y}, layer %{x}: %{z:.3f}<extra></extra>"
        rows = [str(r) for r in range(figures.rows)]
        heat = _heat(figures.peak_over_mean, analysis.problem.layer_names, rows, FROM_MEAN, (1.0, most), hover)
        made.append((_title(analysis, figures), _heat_chart(heat, "MoE layer", "row")))
    return made


def cells(analysis: Analysis) -> list[tuple[str, Chart]]:
    """Rows × slots: tokens over the cap, and dense work over the heaviest cell's."""
    pair = [figures for figures, *_ in _pair(analysis)]
    heaviest = max(float(figures.work.max()) for figures in pair) or 1.0
    made = []
    for what, unit in (("tokens", "the cap"), ("attention work", "the heaviest cell")):
        for figures in pair:
            z = figures.tokens / analysis.problem.capacity if what == "tokens" else figures.work / heaviest
            hover = f"row %{{y}}, slot %{{x}}: %{{z:.3f}} of {unit}<br>%{{customdata}} samples<extra></extra>"
            slots = [str(d) for d in range(figures.tokens.shape[1])]
            heat = _heat(z, slots, [str(r) for r in range(figures.rows)], FROM_MEAN, (0.0, max(1.0, float(z.max()))), hover)
            heat["customdata"] = figures.samples.tolist()
            made.append((f"{what} over {unit}, {_title(analysis, figures)}", _heat_chart(heat, "data-parallel slot", "row")))
    return made


def row_costs(analysis: Analysis) -> Chart:
    """What every row costs, on the slowest shard."""
    traces = []
    for figures, colour, *_ in _pair(analysis):
        bars = _bars(figures.joint.max(axis=1), [str(r) for r in range(figures.rows)], _bar_name(analysis, figures), colour, "v")
        traces.append({**bars, "marker": _hatched(colour)} if figures is analysis.before else bars)
    layout = _layout(x="row", y="cost of the row", legend=True)
    layout["barmode"] = "group"
    layout["xaxis"]["type"] = "category"
    return {"data": traces, "layout": layout}


def moves_per_layer(analysis: Analysis) -> Chart:
    """Experts of each layer that change rank."""
    bars = _bars(analysis.moved, analysis.problem.layer_names, "experts that change rank", AFTER, "v")
    layout = _layout(x="MoE layer", y="experts moved")
    layout["xaxis"]["type"] = "category"
    return {"data": [bars], "layout": layout}


def moves_per_rank(analysis: Analysis) -> Chart:
    """Experts that each rank takes in and gives away, over all layers."""
    ranks = [str(p) for p in range(analysis.problem.ranks)]
    arriving = _bars(analysis.moved_in.sum(axis=0), ranks, "arriving", AFTER, "v")
    leaving = {**_bars(analysis.moved_out.sum(axis=0), ranks, "leaving", BEFORE, "v"), "marker": _hatched(BEFORE)}
    layout = _layout(x="EP rank", y="experts, all layers", legend=True)
    layout["barmode"] = "group"
    layout["xaxis"]["type"] = "category"
    return {"data": [arriving, leaving], "layout": layout}


def search(analysis: Analysis) -> Chart | None:
    """From first fit over the best seed to the plan; per temperature where that was recorded."""
    report = analysis.document.get("search")
    if not isinstance(report, dict) or "seed" not in report:
        return None
    traces: list[Chart] = []
    steps = search_steps(analysis.steps)
    if steps:
        traces.append({
            "type": "scatter", "mode": "lines+markers", "name": "best so far", "marker": {"size": 4},
            "line": {"color": AFTER, "width": 2.5, "shape": "hv"}, "x": _rounded([step.ms for step in steps]),
            "y": _rounded([step.best for step in steps]), "customdata": [[step.phase, step.proposals] for step in steps],
            "hovertemplate": "%{x:,.1f} ms: %{y:,.2f}<br>%{customdata[0]}, %{customdata[1]:,} moves tried<extra></extra>",
        })  # fmt: skip
        layout = _layout(x="milliseconds since planning began", y="joint objective, best so far")
    else:
        points = [("first fit", analysis.before.score[0])] if analysis.before else []
        points += [("best seed", float(report["seed"])), ("plan", analysis.after.score[0])]
        traces.append({
            "type": "scatter", "mode": "lines+markers+text", "name": "joint objective", "cliponaxis": False,
            "x": [name for name, _ in points], "y": [value for _, value in points],
            "text": [f"{value:,.1f}" for _, value in points], "textposition": "top center",
            "line": {"color": AFTER, "width": 2.5}, "marker": {"size": 10},
        })  # fmt: skip
        layout = _layout(y="joint objective")
    if analysis.bound is not None:
        layout["shapes"] = [_line("h", analysis.bound, "dash")]
        layout["annotations"] = [{
            "x": 0.5, "xref": "paper", "y": analysis.bound, "text": f"bound {analysis.bound:,.1f}", "showarrow": False,
            "xanchor": "center", "yanchor": "bottom",
        }]  # fmt: skip
    return {"data": traces, "layout": layout}


def search_words(analysis: Analysis) -> str:
    """What the search did, in a sentence."""
    report = analysis.document.get("search")
    if not isinstance(report, dict):
        return "The plan file says nothing about its search."
    ending = ENDINGS.get(str(report.get("ending")), str(report.get("ending")))
    tried, made = int(report.get("proposals", 0)), int(report.get("accepted", 0))
    return f"{int(report.get('seeds', 0))} seeds, {tried:,} moves tried, {made:,} made; the search {ending}."


def phases(analysis: Analysis) -> Chart | None:
    """Time of each phase of planning."""
    timings = analysis.timings_ms
    if not timings:
        return None
    bars = _bars(list(timings.values()), list(timings), "ms", AFTER, "h")
    bars.update(text=[f"{ms:,.1f}" for ms in timings.values()], textposition="outside", cliponaxis=False)
    layout = _layout(x="milliseconds")
    layout["yaxis"].update(autorange="reversed", automargin=True)
    layout["margin"]["r"] = 60
    return {"data": [bars], "layout": layout}


def _pair(analysis: Analysis) -> list[tuple[Figures, str, str, str]]:
    """Before, where there is one, and after, each with colour, dash and symbol."""
    after = (analysis.after, AFTER, "solid", "circle")
    return [after] if analysis.before is None else [(analysis.before, BEFORE, "dash", "diamond"), after]


def _bar_name(analysis: Analysis, figures: Figures) -> str:
    if figures is analysis.before:
        return "before (first fit)"
    return "after (this plan)" if figures is analysis.after else figures.name


def _title(analysis: Analysis, figures: Figures) -> str:
    return "before" if figures is analysis.before else "after"


def _rounded(values: Any, digits: int = 4) -> list[Any]:
    rounded: list[Any] = np.round(np.asarray(values, dtype=np.float64), digits).tolist()
    return rounded


def _bars(values: Any, names: list[str], label: str, colour: str, way: str) -> Chart:
    along, across = _rounded(values), names
    x, y = (along, across) if way == "h" else (across, along)
    value = "%{x:,.2f}" if way == "h" else "%{y:,.2f}"
    hover = f"%{{{'y' if way == 'h' else 'x'}}}: {value}<extra>{label}</extra>"
    return {
        "type": "bar", "orientation": way, "name": label, "x": x, "y": y, "marker": {"color": colour},
        "hovertemplate": hover,
    }  # fmt: skip


def _hatched(colour: str) -> Chart:
    lines = {"shape": "/", "fillmode": "overlay", "fgcolor": "#ffffff", "fgopacity": 0.6, "size": 7, "solidity": 0.25}
    return {"color": colour, "pattern": lines}


def _heat(
    z: npt.NDArray[Any], x: list[str], y: list[str], colours: Any, span: tuple[float, float], hover: str
) -> Chart:
    return {
        "type": "heatmap", "z": _rounded(z), "x": x, "y": y, "colorscale": colours, "zmin": span[0], "zmax": span[1],
        "hovertemplate": hover, "colorbar": {"thickness": 12, "len": 1.0, "outlinewidth": 0}, "xgap": 1, "ygap": 1,
    }  # fmt: skip


def _heat_chart(heat: Chart, x: str, y: str) -> Chart:
    layout = _layout(x=x, y=y)
    for axis in ("xaxis", "yaxis"):
        layout[axis].update(type="category", showgrid=False)
    layout["yaxis"]["autorange"] = "reversed"
    return {"data": [heat], "layout": layout}


def _line(way: str, at: float, dash: str) -> Chart:
    ends = {"x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper"}
    if way == "h":
        ends = {"y0": at, "y1": at, "x0": 0, "x1": 1, "xref": "paper"}
    return {"type": "line", "line": {"color": BOUND, "dash": dash, "width": 2}, **ends}


def _layout(x: str = "", y: str = "", legend: bool = False) -> Chart:
    def axis(title: str) -> Chart:
        return {"title": {"text": title, "standoff": 8, "font": {"size": 13}}, "gridcolor": "#e3e8ee", "zerolinecolor": "#cbd2d9", "automargin": True}

    return {
        "xaxis": axis(x), "yaxis": axis(y), "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        "margin": {"l": 56, "r": 16, "t": 48 if legend else 34, "b": 44},
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 13, "color": INK},
        "paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff", "autosize": True,
        "hoverlabel": {"font": {"size": 13}},
    }  # fmt: skip
