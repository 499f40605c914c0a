# SPDX-License-Identifier: Apache-2.0
"""Which columns of a file's layer axis are MoE layers.

Engines send every decoder layer with zeros for the dense ones (SGLang, vLLM, slime), or MoE layers only (AReaL, NeMo
RL). Told the numbers of the MoE layers, both forms are recognised by the length of the axis. Not told, every column is
counted, and columns that hold nothing in any sample are dropped only where they come first, as in every model whose
dense layers lead; a hole behind a recorded layer is far more likely a capture that failed, and is refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from routepack.convert.errors import FormatError
from routepack.convert.options import Options


def columns(axis: int, options: Options, where: str) -> tuple[int, ...] | None:
    """Columns to count of a layer axis of length `axis`; None = all. Raises FormatError when it fits neither form."""
    wanted = options.layers
    if wanted is None:
        if options.num_layers is not None and axis != options.num_layers:
            raise FormatError(f"{where}: found {axis} layers, wanted {options.num_layers} (num_layers)")
        return None
    if options.num_layers is not None:
        if axis == options.num_layers:
            return wanted
    elif axis > wanted[-1] and axis > len(wanted):
        return wanted
    if axis == len(wanted):
        return None
    every = f"{options.num_layers}" if options.num_layers is not None else f"at least {wanted[-1] + 1}"
    raise FormatError(f"{where}: found {axis} layers, wanted {len(wanted)} MoE layers or {every} with the dense ones")


def leading_dense(recorded: npt.NDArray[np.int64], where: str) -> int:
    """How many leading layers hold nothing in any sample; `recorded` [layers] are rows summed over the samples."""
    empty = recorded == 0
    if empty.all():
        raise FormatError(f"{where}: found no recorded route in any layer of any sample, wanted routes")
    dense = int(np.argmin(empty))
    holes = np.flatnonzero(empty[dense:]) + dense
    if holes.size:
        listed = ", ".join(map(str, holes[:8])) + (", …" if holes.size > 8 else "")
        raise FormatError(
            f"{where}: found no recorded route at layers {listed} in any sample; name the MoE layers if these are "
            "dense, else they were not captured"
        )
    return dense


def refuse_empty(recorded: npt.NDArray[np.int64], numbers: tuple[int, ...], where: str) -> None:
    """A layer that the caller calls MoE must hold something in some sample."""
    holes = np.flatnonzero(recorded == 0)
    if holes.size:
        listed = ", ".join(str(numbers[i]) for i in holes[:8]) + (", …" if holes.size > 8 else "")
        raise FormatError(f"{where}: found no recorded route at MoE layers {listed} in any sample: not captured")
