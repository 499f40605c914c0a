# SPDX-License-Identifier: Apache-2.0
"""A calibration as cost file, timing file, and table."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence

import routepack
from routepack import _terminal
from routepack.calibrate.model import ACTIVE, EXCHANGE, EXCHANGE_FIXED, EXPERT, MOST_SECONDS, ROW, STEP
from routepack.calibrate.result import Calibration, Estimate, Residuals


def _span(found: Estimate, digits: int = 4) -> str:
    return f"{found.value:.{digits}g} [{found.low:.{digits}g}, {found.high:.{digits}g}]"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _head(found: Calibration, sources: Sequence[str], date: datetime.date | None) -> list[str]:
    kinds = ", ".join(f"{r.records} {r.kind}" for r in found.residuals[1:])
    day = (datetime.datetime.now(datetime.timezone.utc).date() if date is None else date).isoformat()
    lines = [
        f"Made by routepack calibrate {routepack.__version__} on {day}, from {found.records} records: {kinds}.",
        *(f"Read from {source}" for source in sources),
        *(_residual(r) for r in found.residuals),
        *found.notes,
    ]
    if found.left_out:
        lines.append(f"Left out, taken as 0: {', '.join(found.left_out)}")
    return lines


def _residual(r: Residuals) -> str:
    squared = "" if r.r_squared is None else f", R² {r.r_squared:.4f}"
    return (
        f"Residuals, {r.kind}: rms {r.rms:.3g} s, {100 * r.rms_relative:.2f} % relative, worst {100 * r.worst:+.1f} % "
        f"({r.worst_at}){squared}"
    )


def _commented(lines: Sequence[str]) -> str:
    return "".join(f"# {_printable(line)}\n" for line in lines)


def cost_toml(found: Calibration, sources: Sequence[str] = (), date: datetime.date | None = None) -> str:
    """A cost file; comments hold intervals, residuals, sources and date (today without one).

    >>> from routepack.calibrate import Record, calibrate
    >>> records = [Record("experts", 1e-6 * peak, expert_peak=peak) for peak in (100.0, 200.0, 400.0)]
    >>> found = calibrate(records, capacity=2048, without=["expert.active", "all_to_all", "fixed"])
    >>> routepack.CostModel.parse(cost_toml(found)) == found.cost
    True
    """
    level = f"{100 * found.confidence:g} %"
    unit = next(term for term in found.terms if term.name == EXPERT)
    lines = _head(found, sources, date)
    lines += [
        f"For a cap of {found.capacity} tokens; {level} intervals",
        f"Unit: one routed token on the busiest rank, {_span(unit)} s",
        *(f"{cost.name} {_span(cost)}" for cost in found.costs),
    ]
    return f"{_commented(lines)}\n{found.cost.to_toml()}"


def timing_toml(
    found: Calibration,
    sources: Sequence[str] = (),
    date: datetime.date | None = None,
    *,
    forward_share: float = 1.0 / 3.0,
) -> str:
    """The same in seconds, for the simulator of steps.

    >>> from routepack.calibrate import Record, calibrate
    >>> records = [Record("experts", 1e-6 * peak, expert_peak=peak) for peak in (100.0, 200.0, 400.0)]
    >>> records += [Record("attention", 5e-6 * t, stage="full", layers=1, tokens=(t,)) for t in (10.0, 20.0)]
    >>> left_out = ["expert.active", "all_to_all", "fixed", "stage.full.pair"]
    >>> found = calibrate(records, capacity=2048, without=left_out)
    >>> "forward_share = 0.25" in timing_toml(found, forward_share=0.25)
    True

    :raises InvalidInput: for a forward share outside [0, 1], for a term that is longer than the simulator takes, and
        without a dense stage
    """
    if not found.stages:
        raise routepack.InvalidInput(
            "timing file: found no dense stage, wanted attention or row records, or --stage NAME:LAYERS"
        )
    if not 0.0 <= forward_share <= 1.0:
        raise routepack.InvalidInput(f"forward share: found {forward_share}, wanted a number from 0 to 1")
    for term in found.terms:
        if not term.value <= MOST_SECONDS:
            raise routepack.InvalidInput(
                f"timing file: {term.name}: found {term.value:.4g} s, wanted at most {MOST_SECONDS:g} s"
            )
    intervals = {term.name: term for term in found.terms}

    def entry(key: str, name: str) -> str:
        note = "left out" if name not in intervals else f"{_span(intervals[name])} s"
        return f"{key} = {_number(found.seconds(name))}  # {_printable(note)}\n"

    text = _commented([*_head(found, sources, date), f"{100 * found.confidence:g} % intervals"])
    text += f"\ntile = {found.tile}\n\n[expert]\n{entry('token', EXPERT)}{entry('active', ACTIVE)}"
    text += f"\n[all_to_all]\n{entry('token', EXCHANGE)}{entry('fixed', EXCHANGE_FIXED)}"
    for stage in found.stages:
        name = json.dumps(stage.name, ensure_ascii=False).replace("\x7f", "\\u007f")
        text += f"\n[[stage]]\nname = {name}\nlayers = {stage.layers}\n"
        text += entry("token", stage.token) + entry("pair", stage.pair)
    text += f"\n[fixed]\n{entry('row', ROW)}{entry('step', STEP)}forward_share = {_number(forward_share)}\n"
    return text


def _number(value: float) -> str:
    return repr(float(value))


def table(found: Calibration) -> str:
    """For people: terms, costs, residuals, notes."""
    level = f"{100 * found.confidence:g} %"
    terms = [["seconds", "value", f"{level} from", "to"]]
    for name in found.left_out:
        terms.append([_terminal.shortened(name, 40), "0", "left out", ""])
    for term in found.terms:
        terms.append([_terminal.shortened(term.name, 40), *(f"{x:.4g}" for x in (term.value, term.low, term.high))])
    terms[1:] = terms[1 + len(found.left_out) :] + terms[1 : 1 + len(found.left_out)]
    costs = [[f"cost, cap {found.capacity}", "value", f"{level} from", "to"]]
    for cost in found.costs:
        costs.append([_terminal.shortened(cost.name, 40), *(f"{x:.5g}" for x in (cost.value, cost.low, cost.high))])
    errors = [["time against fit", "records", "rms s", "rms", "worst", "R²", "worst at"]]
    for r in found.residuals:
        squared = "" if r.r_squared is None else f"{r.r_squared:.4f}"
        at = _terminal.shortened(r.worst_at, 34)
        rms, worst = f"{100 * r.rms_relative:.2f} %", f"{100 * r.worst:+.1f} %"
        errors.append([r.kind, str(r.records), f"{r.rms:.3g}", rms, worst, squared, at])
    parts = [_terminal.table(part) for part in (terms, costs, errors) if len(part) > 1]
    return "\n\n".join(["\n".join(f"  {line}" for line in part.splitlines()) for part in parts])
