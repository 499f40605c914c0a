# SPDX-License-Identifier: Apache-2.0
"""Plans as pages, pictures and traces.

    import routepack.report
    analysis = routepack.report.analyse(plan, window)
    routepack.report.write_html(analysis, "report.html")

The page needs plotly and the pictures need matplotlib (`pip install "routepack[report]"`); both are imported when they
are used. The numbers need neither.
"""

from __future__ import annotations

import os
from pathlib import Path

from routepack.report.analysis import Analysis, analyse
from routepack.report.figures import Figures
from routepack.report.images import write_images as _write_images
from routepack.report.images import write_text as _write_text
from routepack.report.page import to_html
from routepack.report.recording import Recording, Step, replan
from routepack.report.trace import to_json as _trace_json
from routepack.report.trace import trace_events

__all__ = [
    "Analysis",
    "Figures",
    "Recording",
    "Step",
    "analyse",
    "replan",
    "to_html",
    "trace_events",
    "write_html",
    "write_images",
    "write_trace",
]


def write_html(analysis: Analysis, path: str | os.PathLike[str], *, title: str = "RoutePack report") -> None:
    """One self-contained page, written whole or not at all.

    >>> write_html(analyse(plan, window), "report.html", title="step 7")
    """
    _write_text(Path(path), to_html(analysis, title))


def write_images(analysis: Analysis, folder: str | os.PathLike[str]) -> list[Path]:
    """The main figures as PNG and SVG; the files written.

    >>> sorted({path.suffix for path in write_images(analyse(plan, window), "figures")})
    ['.png', '.svg']
    """
    return _write_images(analysis, Path(folder))


def write_trace(analysis: Analysis, path: str | os.PathLike[str]) -> None:
    """The planner's phases in Chrome's trace format.

    >>> write_trace(analyse(plan, window), "trace.json")
    """
    _write_text(Path(path), _trace_json(analysis))
