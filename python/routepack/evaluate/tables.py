# SPDX-License-Identifier: Apache-2.0
"""Results as tables, in the shape of the paper's tables 3 and 4 and figure 7: lists of rows, the first one the head."""

from __future__ import annotations

from typing import Any

from routepack.evaluate.scenario import PACKING
from routepack.evaluate.words import MINUS, NONE, amount, bytes_of, percent, probability, share

Table = list[list[str]]

_METRICS = {
    "expert_peak_sum": "EP peak sum",
    "tail_peak": "tail peak",
    "attention": "attention",
    "joint": "joint",
}


def by_name(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The strategies of a scenario."""
    return {strategy["name"]: strategy for strategy in result["strategies"]}


def published_gain(result: dict[str, Any], name: str) -> str:
    """The paper's gain of a strategy over its baseline."""
    gain = (result["published"] or {"gains": {}})["gains"].get(name)
    if gain is None:
        return NONE
    least, most = gain
    return percent(least) if least == most else f"{percent(least)} to {percent(most)}"


def unit(result: dict[str, Any]) -> str:
    return "tokens/s" if result["time"] == "simulated" else "tokens per unit of the objective"


def throughput(result: dict[str, Any]) -> Table:
    """The paper's table 3."""
    published = result["published"]
    head = ["strategy", f"{unit(result)}, mean ± sd", "10th percentile", "gain", "gain, moves not hidden"]
    rows = [head + (["gain in the paper", "tokens/s in the paper"] if published else [])]
    for strategy in result["strategies"]:
        name, spread = strategy["name"], strategy["throughput"]
        base = name == result["baseline"]
        row = [name, f"{amount(spread['mean'])} ± {amount(spread['sd'])}", amount(spread["p10"])]
        row += [NONE if base else percent(strategy["gain"]), NONE if base else percent(strategy["gain_with_moves"])]
        if published:
            measured, p10 = published["throughput"].get(name), published["p10"].get(name)
            text = NONE if measured is None else f"{amount(measured[0])} ± {amount(measured[1])}"
            row += [published_gain(result, name), text if p10 is None else f"{text}, 10th percentile {amount(p10)}"]
        rows.append(row)
    return rows


def tests(result: dict[str, Any]) -> Table:
    """Whether strategies differ. Both p values are adjusted."""
    head = ["pair", "gain of means", "median gain of a step", "faster on", "Wilcoxon p", "Mann–Whitney p"]
    rows = [head]
    windows = result["windows"]["windows"]
    for pair in result["comparisons"]:
        rows.append(
            [
                f"{pair['before']} → {pair['after']}",
                percent(pair["gain"]),
                percent(pair["paired_gain"]),
                f"{pair['wins']} of {windows}",
                probability(pair["wilcoxon"]["adjusted"]),
                probability(pair["mann_whitney"]["adjusted"]),
            ]
        )
    return rows


def packing(result: dict[str, Any]) -> Table:
    """The paper's table 4."""
    ours, published = result["packing"], (result["published"] or {"packing": {}, "ep_efficiency": None})
    before, after = ours["strategies"]
    head = ["", *(_METRICS[metric] for metric in PACKING), "EP balance efficiency"]
    changes = [percent(ours[metric]) for metric in PACKING]
    rows = [head, [f"{before} → {after}", *changes, _arrow(ours["ep_efficiency"])]]
    if published["packing"] or published["ep_efficiency"]:
        theirs = [percent(published["packing"].get(metric)) for metric in PACKING]
        rows.append(["the paper", *theirs, _arrow(published["ep_efficiency"])])
    return rows


def _arrow(pair: list[float] | None) -> str:
    return NONE if pair is None else f"{pair[0]:.3f} → {pair[1]:.3f}"


def balance(result: dict[str, Any]) -> Table:
    """The paper's figure 7, and what is left of rows, objective and its bound."""
    rows = [["strategy", "CV of ranks, mean ± sd", "EP balance efficiency", "joint", "above the bound", "rows"]]
    for strategy in result["strategies"]:
        metrics = strategy["metrics"]
        cv = metrics["cv_global"]
        rows.append(
            [
                strategy["name"],
                f"{amount(cv['mean'])} ± {amount(cv['sd'])}",
                f"{metrics['ep_efficiency']:.3f}",
                amount(metrics["joint"]),
                percent(metrics["gap"]),
                amount(metrics["rows"]),
            ]
        )
    return rows


def moves(result: dict[str, Any]) -> Table:
    """What each strategy costs: experts that move, and planning."""
    head = ["strategy", "moved, first step", "later", "bytes per rank, later", "on the links, later"]
    rows = [[*head, "planning", "admission (eq. 19)", "extended by packing (eq. 20)"]]
    for strategy in result["strategies"]:
        first, later, planning = strategy["moves"]["first"], strategy["moves"]["later"], strategy["planning"]
        shown = later or first
        rows.append(
            [
                strategy["name"],
                share(first["fraction"] if first else None),
                share(later["fraction"] if later else None),
                bytes_of(shown["bytes_per_rank"]),
                _ms(None if shown["seconds"] is None else 1e3 * shown["seconds"]),
                _ms(planning["planning_ms"]),
                _ms(planning["admission_ms"]),
                _ms(planning["extension_ms"]),
            ]
        )
    return rows


def _ms(value: float | None) -> str:
    return NONE if value is None else f"{amount(value)} ms"


def overview(results: list[dict[str, Any]]) -> Table:
    """One line for each scenario: gains over its baseline. With the moves in brackets where nothing hides them."""
    names = list(dict.fromkeys(name for result in results for name in by_name(result) if name != result["baseline"]))
    rows = [["scenario", *(f"{name} (moves not hidden)" for name in names), "the paper"]]
    for result in results:
        row = [result["name"]]
        for name in names:
            strategy = by_name(result).get(name)
            if strategy is None or name == result["baseline"]:
                row.append(NONE)
            else:
                row.append(f"{percent(strategy['gain'])} ({percent(strategy['gain_with_moves'])})")
        said = [f"{name} {published_gain(result, name)}" for name in names]
        rows.append([*row, ", ".join(text for text in said if not text.endswith(NONE)) or NONE])
    return rows


def terminal(result: dict[str, Any]) -> Table:
    """What fits 100 columns."""
    rows = [["", unit(result).split(" per ")[0], "sd", "10th pct", "gain", "with moves", "p", "moved", "planning"]]
    p = {c["after"]: c["wilcoxon"]["adjusted"] for c in result["comparisons"] if c["before"] == result["baseline"]}
    for strategy in result["strategies"]:
        spread, base = strategy["throughput"], strategy["name"] == result["baseline"]
        rows.append(
            [
                strategy["name"],
                amount(spread["mean"]),
                amount(spread["sd"]),
                amount(spread["p10"]),
                "" if base else percent(strategy["gain"]),
                "" if base else percent(strategy["gain_with_moves"]),
                "" if base else probability(p.get(strategy["name"])),
                share(strategy["moves"]["all"]["fraction"]),
                _ms(strategy["planning"]["planning_ms"]),
            ]
        )
    return rows


def difference_to_paper(result: dict[str, Any]) -> list[str]:
    """Our gain minus the paper's, in points, for strategies with a published gain."""
    if result["published"] is None:
        return []
    said = []
    for name, (least, most) in result["published"]["gains"].items():
        ours = by_name(result)[name]["gain"]
        if least <= ours <= most:
            said.append(f"{name}: inside the paper's range")
            continue
        nearest = least if ours < least else most
        points = 100 * (ours - nearest)
        said.append(f"{name}: {'+' if points > 0 else MINUS}{abs(points):.1f} points")
    return said
