# SPDX-License-Identifier: Apache-2.0
"""The planner's own phases as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from typing import Any

from routepack.report.analysis import Analysis
from routepack.report.recording import search_steps


def trace_events(analysis: Analysis) -> dict[str, Any]:
    """Chrome's trace format: one slice per phase inside one for the whole plan, times in microseconds.

    Phases begin when they did where that was recorded. A plan file alone keeps how long each one took: then they
    follow one another.

    >>> [event["name"] for event in trace_events(routepack.report.analyse(plan, window))["traceEvents"]][2:5]
    ['plan', 'demand', 'place']
    """
    timings = analysis.timings_ms
    about = {"plan": analysis.plan_hash, "window": analysis.fingerprint, "rows": analysis.after.rows}
    about.update(joint=analysis.after.score[0], gap=analysis.gap)
    slices = _recorded(analysis) or _in_turn(analysis)
    total = max([analysis.total_ms or 0.0, *(begin + ms for _, begin, ms in slices)])
    events = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "routepack"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "planner"}},
        _slice("plan", 0.0, total, about),
    ]
    for phase, begin, ms in slices:
        more = analysis.document.get("search", {}) if phase == "search" else {}
        events.append(_slice(phase, begin, ms, {**more, "ms_in_plan": timings.get(phase)}))
    for step in search_steps(analysis.steps):
        events.append({"name": "best", "ph": "C", "ts": 1000.0 * step.ms, "pid": 1, "args": {"joint": step.best}})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"version": analysis.document.get("version", "")}}


def to_json(analysis: Analysis) -> str:
    """The text of the trace file."""
    return json.dumps(trace_events(analysis), indent=1) + "\n"


def _in_turn(analysis: Analysis) -> list[tuple[str, float, float]]:
    """Phase, begin, milliseconds."""
    slices, begin = [], 0.0
    for phase, ms in analysis.timings_ms.items():
        slices.append((phase, begin, ms))
        begin += ms
    return slices


def _recorded(analysis: Analysis) -> list[tuple[str, float, float]]:
    begins = [(step.phase, step.ms) for step in analysis.steps if step.level == 0]
    if not begins:
        return []
    last = begins[-1][1] + analysis.timings_ms.get(begins[-1][0], 0.0)
    ends = [*(ms for _, ms in begins[1:]), max(last, analysis.steps[-1].ms)]
    return [(phase, ms, end - ms) for (phase, ms), end in zip(begins, ends)]


def _slice(name: str, begin_ms: float, ms: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name, "cat": "planner", "ph": "X", "ts": 1000.0 * begin_ms, "dur": 1000.0 * ms, "pid": 1, "tid": 1,
        "args": args,
    }  # fmt: skip
