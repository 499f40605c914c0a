# SPDX-License-Identifier: Apache-2.0
"""Counting written a second time, in numpy and as plainly as it goes: the oracle of these tests."""

from __future__ import annotations

import numpy as np


def counts_of(ids, *, experts, mask=None, layers=None, physical_to_logical=None):
    """Counts [layers, experts]. Rows of -1 and, for k > 1, of zeros are no routes; nor are those that `mask` hides."""
    ids = np.asarray(ids).astype(object).astype(np.int64)
    picked = range(ids.shape[1]) if layers is None else layers
    counts = np.zeros((len(picked), experts), dtype=np.int64)
    for out, layer in enumerate(picked):
        rows = ids[:, layer] if mask is None else ids[np.asarray(mask, dtype=bool), layer]
        zeros = (rows == 0).all(axis=1)
        if ids.shape[2] == 1 and not zeros.all():
            zeros[:] = False
        for row in rows[~zeros & ~(rows == -1).all(axis=1)]:
            for e in row:
                counts[out, e if physical_to_logical is None else physical_to_logical[out][e]] += 1
    return counts
