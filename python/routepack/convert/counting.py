# SPDX-License-Identifier: Apache-2.0
"""The seam to the counting kernels: one sample's routes in, counts out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import routepack
from routepack.convert.errors import FormatError
from routepack.convert.options import Missing
from routepack.convert.sample import Routes

_NATIVE = {np.dtype(t) for t in (np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64)}


def count(
    routes: Routes,
    *,
    experts: int,
    mask: npt.NDArray[np.bool_] | None,
    missing: Missing,
    columns: tuple[int, ...] | None,
    physical_to_logical: npt.NDArray[np.int64] | None,
    length: int | None,
    where: str,
) -> npt.NDArray[np.int64]:
    """Counts [layers, experts] of `routes` [rows, axis, k]; `columns` picks layers of the axis.

    length: tokens of the sample from row 0 on, when those without a row are missing rows.
    """
    slots = experts if physical_to_logical is None else physical_to_logical.shape[1]
    if routes.dtype.kind not in "iu" or routes.dtype.itemsize > 8:
        raise FormatError(f"{where}: found {routes.dtype}, wanted integer expert ids")
    if slots - 1 > np.iinfo(routes.dtype).max:
        raise FormatError(
            f"{where}: found {routes.dtype}, wanted a type that holds {slots} experts: ids above "
            f"{np.iinfo(routes.dtype).max} have been cut or wrapped"
        )
    native = routes.dtype.newbyteorder("=")
    if native not in _NATIVE:  # uint32 and uint64
        if routes.size and int(routes.max()) >= slots:
            raise FormatError(f"{where}: found expert {int(routes.max())}, wanted 0 to {slots - 1}")
        native = np.dtype(np.int64)
    ids = routes.astype(native) if routes.dtype != native or not routes.dtype.isnative else routes
    chosen: Any = None if columns is None else list(columns)
    try:
        counts = routepack.count_routes(
            ids,
            experts=experts,
            mask=mask,
            missing=missing,
            layers=chosen,
            physical_to_logical=physical_to_logical,
            length=length,
        )
    except (ValueError, TypeError) as error:
        raise FormatError(f"{where}: {error}") from None
    return np.asarray(counts, dtype=np.int64)
