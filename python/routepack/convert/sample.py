# SPDX-License-Identifier: Apache-2.0
"""What every converter yields: the recorded routes of one sample, still in the type and order of the file."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Routes = npt.NDArray[Any]  #: [rows, layers, k] of any integer type, any byte order, any strides


@dataclass(frozen=True)
class Sample:
    """One training sequence of `tokens` tokens, t.

    `routes[j]` is the route of token `first_row + j`; None when the sample has no valid route at all. Rows that are
    all zero or all -1 mean «not recorded»; rows whose `mask` is False are not looked at (padding, copies).
    `where` names file and index for messages, `key` the tensor.
    """

    where: str
    key: str
    tokens: int
    routes: Routes | None
    first_row: int = 0
    mask: npt.NDArray[np.bool_] | None = None
    group: Hashable = None
    id: int | None = None


@dataclass(frozen=True)
class Demand:
    """Summed counts of many tokens without sample identity: counts [layers, experts], int64.

    `tokens` [layers] are the routed tokens of each layer where the file says so.
    """

    where: str
    key: str
    counts: npt.NDArray[np.int64]
    top_k: int | None
    layers: tuple[int, ...] | None = None  #: global layer numbers of the rows of `counts`
