# SPDX-License-Identifier: Apache-2.0
"""Routes to convert, and windows to look into."""

from __future__ import annotations

import base64
import json

import numpy as np

from convert.reference import counts_of
from routepack.convert import Options, convert


def random_routes(rng, rows, layers, experts, top_k, dtype=np.int32):
    """[rows, layers, top_k] distinct experts per row, never the row 0, 0, …"""
    scores = rng.random((rows, layers, experts)) + np.linspace(0, 0.5, experts)
    return np.argsort(-scores, axis=2)[:, :, :top_k].astype(dtype)


def figures(window):
    """The tensors of a window as plain numpy, whatever the bindings hand out; recorded always [N, L]."""
    counts = np.asarray(window.counts).astype(np.int64)
    recorded = np.asarray(window.recorded).astype(np.int64)
    if recorded.ndim == 1:
        recorded = np.repeat(recorded[:, None], counts.shape[1], axis=1)
    lengths = None if window.lengths is None else np.asarray(window.lengths).astype(np.int64)
    return counts, recorded, lengths


def check_samples(kind, paths, options, wanted):
    """Converts and compares with `wanted`, a list of (tokens, routes that count [rows, layers, k] or None)."""
    result = convert(kind, [paths] if not isinstance(paths, list) else paths, options)
    counts, recorded, lengths = figures(result.window)
    assert lengths.tolist() == [tokens for tokens, _ in wanted]
    for i, (_, routes) in enumerate(wanted):
        expected = np.zeros(counts.shape[1:], dtype=np.int64)
        if routes is not None:
            expected = counts_of(routes, experts=options.experts)
        assert np.array_equal(counts[i], expected), f"sample {i}"
        assert np.array_equal(recorded[i], expected.sum(axis=1) // result.window.top_k), f"sample {i}"
    return result


def b64(array):
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def write_lines(path, *items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def refusal(kind, paths, options):
    """The one line with which files are refused."""
    try:
        convert(kind, [paths] if not isinstance(paths, list) else paths, options)
    except (ValueError, OSError) as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return str(error)
    raise AssertionError("accepted")


E8 = Options(experts=8)
