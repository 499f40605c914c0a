# SPDX-License-Identifier: Apache-2.0
"""One way to warn."""

from __future__ import annotations

import contextlib
import logging
import warnings

from routepack._errors import RoutePackWarning

_LOG = logging.getLogger("routepack")


def warn(text: str) -> None:
    """A `RoutePackWarning`, of whoever called what calls this. Never raises."""
    try:
        warnings.warn(text, RoutePackWarning, stacklevel=4)
    except Warning:  # -W error must not end a step
        with contextlib.suppress(Exception):
            _LOG.warning("%s", text)
