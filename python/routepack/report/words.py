# SPDX-License-Identifier: Apache-2.0
"""The figures of a summary, as people write them: for the page and for the terminal."""

from __future__ import annotations

from routepack.report.analysis import Analysis
from routepack.report.figures import Figures


def change(before: float, after: float) -> str:
    """`after` against `before` in per cent.

    >>> change(200.0, 150.0), change(0.0, 1.0)
    ('-25.0 %', '')
    """
    return "" if before == 0.0 else f"{100.0 * (after / before - 1.0):+.1f} %"


def comparison(analysis: Analysis) -> list[list[str]]:
    """Rows of a table: what, before, after, change, then every plan that this one stands against."""
    before, after, others = analysis.before, analysis.after, analysis.against

    def line(name: str, digits: int, figure: str) -> list[str]:
        def of(figures: Figures) -> float:
            if figures is before and figure == "cv_global":
                return analysis.before_cv
            metrics = {**figures.metrics(), "worst_row": figures.score[2], "rows": figures.rows}
            return float(metrics[figure])

        shown = ["", f"{of(after):,.{digits}f}", ""]
        if before is not None:
            shown = [f"{of(before):,.{digits}f}", shown[1], change(of(before), of(after))]
        return [name, *shown, *(f"{of(other):,.{digits}f}" for other in others)]

    return [
        ["", "before", "after", "change", *(other.name for other in others)],
        line("joint objective", 2, "joint"),
        line("worst row", 2, "worst_row"),
        line("attention, sum over rows", 2, "attention"),
        line("expert-parallel efficiency", 4, "ep_efficiency"),
        line("busiest rank, summed over rows and layers", 0, "expert_peak_sum"),
        line("busiest rank of any row and layer", 0, "tail_peak"),
        line("spread of rank loads over the step (cv)", 4, "cv_global"),
        line("rows", 0, "rows"),
    ]


def notes(analysis: Analysis) -> list[str]:
    """One sentence each: the bound, the rows, the moves, the time, and what «before» means."""
    said = []
    if analysis.bound is not None and analysis.gap is not None:
        said.append(
            f"No placement and packing goes below {analysis.bound:,.2f}: "
            f"this plan is {100.0 * analysis.gap:.2f}\u00a0% above it."
        )
    if analysis.closed_share is not None:
        said.append(f"Of what could be gained, {100.0 * analysis.closed_share:.0f} % is gained.")
    if "rows_certified" in analysis.document:
        least = analysis.document.get("rows_lower_bound", analysis.after.rows)
        certified = "no layout has fewer" if analysis.document["rows_certified"] else f"at least {least} are needed"
        said.append(f"{analysis.after.rows} rows: {certified}.")
    moved, experts = int(analysis.moved.sum()), len(analysis.moved) * analysis.problem.counts.shape[2]
    size = analysis.document.get("moves", {}).get("bytes")
    said.append(
        f"{moved:,} of {experts:,} experts change rank ({100.0 * analysis.fraction_moved:.1f} %"
        + (f", {size:,} bytes)." if size else ").")
    )
    if analysis.hot_layers:
        said.append(
            f"In {analysis.hot_layers} of {len(analysis.moved)} layers one expert alone is hotter than a fair share: "
            "only copies of it would help."
        )
    if analysis.total_ms is not None:
        said.append(f"Planned in {analysis.total_ms:,.1f} ms.")
    if not analysis.document.get("complete", True):
        said.append("A deadline cut this plan short: it is valid, but another run may differ.")
    where = "where they are now" if analysis.current_known else "in the order of their numbers"
    said.append(
        f"Before: experts {where}, samples by length alone (first fit)."
        if analysis.before is not None
        else "Before: first fit by length finds no layout here."
    )
    return said
