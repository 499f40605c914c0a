# SPDX-License-Identifier: Apache-2.0
"""Counting routes from Python, beside numpy's bincount on the same ids. `make python` first.

    .venv/bin/python benchmarks/macro/count_routes.py [--tokens 4096] [--layers 48] [--samples 16]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import routepack


def fastest(call: Callable[[], object], times: int = 7) -> float:
    """Seconds of the fastest of several calls."""
    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def draw(samples: int, tokens: int, layers: int, experts: int, top_k: int, rng: np.random.Generator) -> np.ndarray:
    """Distinct experts per row, some hotter than others, [samples, tokens, layers, top_k]."""
    weight = rng.random((layers, experts)) ** 2
    rows = np.empty((samples, tokens, layers, top_k), dtype=np.int64)
    for i in range(samples):
        score = rng.random((tokens, layers, experts), dtype=np.float32) * weight.astype(np.float32)
        rows[i] = np.argpartition(-score, top_k, axis=2)[:, :, :top_k]
    return rows


def bincount(ids: np.ndarray, experts: int) -> np.ndarray:
    """numpy's fastest form: one bincount over layer · experts + id."""
    layers = ids.shape[1]
    flat = (ids + (np.arange(layers, dtype=np.int64) * experts)[:, None]).ravel()
    return np.bincount(flat, minlength=layers * experts).reshape(layers, experts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--top-k", type=int, default=8)
    given = parser.parse_args()
    rng = np.random.default_rng(1)
    print(f"{'ids':>7} {'experts':>8} {'threads':>8} {'routepack':>12} {'numpy':>12}   (10^9 ids per second)")
    for experts in (64, 128, 256, 512):
        base = draw(given.samples, given.tokens, given.layers, experts, given.top_k, rng)
        for dtype in ("uint8", "int32"):
            if dtype == "uint8" and experts > 256:
                continue
            samples = list(base.astype(dtype))
            numpy_rate = samples[0].size / fastest(lambda: bincount(samples[0], experts), 3) / 1e9
            counts = routepack.count_routes(samples[0], experts=experts)
            np.testing.assert_array_equal(counts, bincount(samples[0], experts))
            for threads in (1, 2):
                seconds = fastest(lambda: routepack.count_routes_batch(samples, experts=experts, threads=threads))
                rate = base.size / seconds / 1e9
                print(f"{dtype:>7} {experts:>8} {threads:>8} {rate:>12.2f} {numpy_rate:>12.2f}", flush=True)


if __name__ == "__main__":
    main()
