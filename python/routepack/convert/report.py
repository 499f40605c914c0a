# SPDX-License-Identifier: Apache-2.0
"""What a conversion found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """What was read and what was not there."""

    kind: str  #: samples or aggregate
    samples: int
    tokens: int
    layers: int
    experts: int
    top_k: int
    recorded: int  #: recorded (token, layer) pairs
    missing: int  #: (token, layer) pairs without a recorded route, the never routed last tokens included
    without_routes: int  #: samples that have no recorded route at all
    dense_layers: int  #: leading layers left out because no sample has a route there
