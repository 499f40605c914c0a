# SPDX-License-Identifier: Apache-2.0
"""The routes in data/*: by formula, so that the tests know them without the frameworks."""

from __future__ import annotations

import numpy as np

LAYERS, EXPERTS, TOP_K = 3, 8, 2  #: decoder layers of which the first is dense, experts, experts per token


def tokens_of(i: int) -> int:
    return 9 + 3 * (i % 4) + i // 4


def prompt_of(i: int) -> int:
    return 3 + i % 3


def routes_of(i: int) -> np.ndarray:
    """[t - 1, LAYERS, TOP_K] int64: zeros at layer 0, two different experts elsewhere."""
    t, layer = np.meshgrid(np.arange(tokens_of(i) - 1), np.arange(LAYERS), indexing="ij")
    first = (t * t + 3 * layer + 5 * i) % EXPERTS
    routes = np.stack([first, (first + 1 + (t + layer) % 3) % EXPERTS], axis=2)
    routes[:, 0] = 0
    return routes
