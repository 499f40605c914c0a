# SPDX-License-Identifier: Apache-2.0
"""Where samples come from whose counts were lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from routepack.ray._answers import one_line
from routepack.ray._samples import Sample

#: Where samples are counted again from: by id, or called in the driver with the ids that are missing.
Source = Mapping[int, Any] | Callable[[list[int]], Sequence[Sample | None]]


def from_source(
    source: Source, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int32], until: float, reasons: list[str]
) -> list[Sample]:
    """Samples for the ids, as far as the source has them. Its call may hang: then nothing waits for it any more."""
    tokens = dict(zip(ids.tolist(), lengths.tolist(), strict=True))
    if not callable(source):
        return [Sample(id, source[id], length) for id, length in tokens.items() if source.get(id) is not None]
    found: list[Sample] = []
    failure: list[str] = []
    ask = source

    def call() -> None:
        try:
            for sample in ask(list(tokens)):
                if sample is not None and sample.id in tokens:
                    length = tokens[sample.id] if sample.length is None else sample.length
                    found.append(Sample(sample.id, sample.routes, length, sample.mask))
        except BaseException as error:
            failure.append(f"the source of routes raised {type(error).__name__}: {one_line(error)}")

    thread = threading.Thread(target=call, name="routepack-source", daemon=True)
    thread.start()
    thread.join(max(0.0, until - time.monotonic()))
    if thread.is_alive():
        reasons.append("the source of routes did not answer in time")
        return []
    reasons += failure
    return found
