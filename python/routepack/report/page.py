# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML file that needs no network: plotly.js and all data are inside."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import routepack
from routepack.report import charts, words
from routepack.report.analysis import Analysis
from routepack.report.charts import Chart

HINT = 'pip install "routepack[report]"'

_STYLE = Path(__file__).with_name("page.css")

# Draws every <figure data-chart>; those below the fold when they come near.
_SCRIPT = """
const charts = JSON.parse(document.getElementById("charts").textContent);
const config = {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"]};
const draw = (box) => {
  const chart = charts[box.dataset.chart];
  Plotly.newPlot(box, chart.data, chart.layout, config).then(() => { box.dataset.drawn = "1"; });
};
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
}, {rootMargin: "800px"});
document.querySelectorAll("[data-chart]").forEach((box) => seen.observe(box));
"""


class _Page:
    """Sections and the charts that they show."""

    def __init__(self) -> None:
        self.charts: list[Chart] = []
        self.parts: list[str] = []

    def chart(self, chart: Chart, height: int, label: str) -> str:
        self.charts.append(chart)
        number = len(self.charts) - 1
        return (
            f'<div class="chart" role="img" aria-label="{html.escape(label)}" data-chart="{number}" '
            f'style="height:{height}px"></div>'
        )

    def section(self, title: str, text: str, panels: list[tuple[str, Chart]], height: int, columns: int = 2) -> None:
        shown = "".join(
            f"<figure><figcaption>{html.escape(caption)}</figcaption>{self.chart(chart, height, f'{title}: {caption}')}"
            f"</figure>"
            for caption, chart in panels
        )
        self.parts.append(
            f"<section><h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>"
            f'<div class="panels c{columns}">{shown}</div></section>'
        )


def to_html(analysis: Analysis, title: str) -> str:
    """The whole page.

    :raises InvalidInput: when plotly, which brings plotly.js, is not installed

    >>> to_html(routepack.report.analyse(plan, window), title="step 7").startswith("<!DOCTYPE html>")
    True
    """
    library = _plotly_js()
    page = _Page()
    summary = _summary(page, analysis, title)
    _sections(page, analysis)
    body = "".join(page.parts)
    data = json.dumps(page.charts, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":  # nothing in it may end the script element
        data = data.replace(character, f"\\u{ord(character):04x}")
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)} · RoutePack</title><style>{_STYLE.read_text(encoding='utf-8')}</style></head>\n"
        f"<body>{summary}{body}"
        f"<footer>RoutePack {html.escape(str(routepack.__version__))} · plan {html.escape(analysis.plan_hash)} · window "
        f"{html.escape(analysis.fingerprint)}</footer>\n"
        f'<script type="application/json" id="charts">{data}</script>\n<script>{library}</script>\n'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def _plotly_js() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise routepack.InvalidInput(f"report: found no plotly, wanted it for the page: {HINT}") from None
    return str(get_plotlyjs())


def _tiles(analysis: Analysis) -> str:
    before, after = analysis.before, analysis.after
    made: list[tuple[str, str, str]] = []
    if before is None:
        made.append(("joint objective", f"{after.score[0]:,.1f}", "no first fit to compare with"))
    else:
        gain = 100.0 * (1.0 - after.score[0] / before.score[0]) if before.score[0] else 0.0
        made.append(("lower joint objective", f"{gain:.1f} %", f"{before.score[0]:,.1f} → {after.score[0]:,.1f}"))
    if analysis.gap is not None and analysis.bound is not None:
        made.append(("above the bound", f"{100.0 * analysis.gap:.2f} %", f"no plan goes below {analysis.bound:,.1f}"))
    was = "" if before is None else f"before {before.ep_efficiency:.3f}; 1 is even"
    made.append(("expert-parallel efficiency", f"{after.ep_efficiency:.3f}", was))
    if before is not None and before.tail_peak:
        less = words.change(before.tail_peak, after.tail_peak).replace("-", "−")
        made.append(("busiest rank of any row", less, f"{before.tail_peak:,} → {after.tail_peak:,} tokens"))
    moved, experts = int(analysis.moved.sum()), len(analysis.moved) * analysis.problem.counts.shape[2]
    made.append(("experts change rank", f"{100.0 * analysis.fraction_moved:.1f} %", f"{moved:,} of {experts:,}"))
    if analysis.total_ms is not None:
        made.append(("to plan", f"{analysis.total_ms:,.0f} ms", f"{after.rows} rows of {after.tokens.shape[1]} cells"))
    return "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(name)}</span><small>{html.escape(small)}</small>'
        f"</div>"
        for name, value, small in made
    )


def _summary(page: _Page, analysis: Analysis, title: str) -> str:
    problem = analysis.problem
    real = len(problem.counts)
    facts = [
        analysis.model,
        f"{real:,} samples",
        f"{int(problem.lengths[:real].sum()):,} tokens",
        f"{problem.counts.shape[1]} MoE layers of {problem.counts.shape[2]} experts",
        f"{problem.slots} slots in {len(problem.shards)} shard{'s' if len(problem.shards) > 1 else ''}",
        f"{problem.ranks} EP ranks",
        f"cap {problem.capacity:,}",
    ]
    rows = words.comparison(analysis)
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    lines = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>' + "".join(f"<td>{html.escape(c)}</td>" for c in row[1:]) + "</tr>"
        for row in rows[1:]
    )
    said = "".join(f"<li>{html.escape(note)}</li>" for note in words.notes(analysis))
    bars = page.chart(charts.score_bars(analysis), 300, "joint objective of every plan, and the bound")
    peaks = page.chart(charts.layer_peaks(analysis), 310, "busiest rank over mean rank, per layer")
    return (
        f"<header><h1>{html.escape(title)}</h1><p>{html.escape(' · '.join(f for f in facts if f))}</p></header>"
        f'<main class="summary"><div class="tiles">{_tiles(analysis)}</div>'
        f'<div class="panels c2"><figure><figcaption>What was gained, against what no plan can beat</figcaption>{bars}</figure>'
        f'<figure class="scroll"><figcaption>In figures</figcaption><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></figure></div>"
        f'<div class="panels wide"><figure><figcaption>How uneven the ranks are: the busiest one over the mean, all rows of a '
        f"layer together (1 is even)</figcaption>{peaks}</figure>"
        f"<figure><figcaption>In words</figcaption><ul>{said}</ul></figure></div></main>"
    )


def _sections(page: _Page, analysis: Analysis) -> None:
    rows, layers = max(f.rows for f in (analysis.after, analysis.before or analysis.after)), len(analysis.moved)
    page.section(
        "Rank loads of every layer",
        "Routed tokens of the whole step over the mean of the layer. Orange ranks hold the others up, blue ones wait.",
        charts.rank_loads(analysis), _tall(layers),
    )  # fmt: skip
    page.section(
        "Busiest rank of every row and layer",
        "Tokens of the busiest rank over the mean rank: what each synchronised microbatch pays. Dark is even.",
        charts.row_layer_peaks(analysis), _tall(rows),
    )  # fmt: skip
    page.section("Cost of every row", "Dense and expert side together, slowest shard.", [("", charts.row_costs(analysis))], 300, 1)
    page.section(
        "Cells",
        "One cell is what one data-parallel slot trains in one row. In a row, cells of equal attention work wait least.",
        charts.cells(analysis), _tall(rows),
    )  # fmt: skip
    page.section(
        "Moves", "Experts whose rank changes between before and after.",
        [("per layer", charts.moves_per_layer(analysis)), ("per rank", charts.moves_per_rank(analysis))], 300,
    )  # fmt: skip
    found: list[tuple[str, Any]] = [("search", charts.search(analysis)), ("time per phase", charts.phases(analysis))]
    shown = [(name, chart) for name, chart in found if chart is not None]
    if shown:
        page.section("How the planner got there", charts.search_words(analysis), shown, 320)


def _tall(lines: int) -> int:
    return max(260, min(900, 90 + 18 * lines))
