#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a window as large as the disk allows, a block of samples at a time.

Usage: make_big_window.py PATH SAMPLES LAYERS EXPERTS TOP_K [--dtype u16|u32|i32] [--seed N] [--max-length N]

Every token is recorded, and the counts of a sample sum to top_k · length at each layer. Routes are skewed: each sample
takes its experts in proportions drawn from a pool.
"""
import argparse
import json
import struct

import numpy as np

DTYPES = {"u16": ("U16", np.uint16), "u32": ("U32", np.uint32), "i32": ("I32", np.int32)}
MIN_LENGTH = 16  # rounding moves a count by less than one, which must not lift it above the length
POOL = 2048
BLOCK = 256


def write_window(path, samples, layers, experts, top_k, dtype="u16", seed=0, max_length=2048):
    code, number = DTYPES[dtype]
    rng = np.random.default_rng(seed)
    lengths = rng.integers(MIN_LENGTH, max_length + 1, samples, dtype=np.int32)
    # A share of at most 0.9/top_k keeps each count below the length.
    shares = (rng.gamma(2.0, size=(POOL, experts)) + 0.2) * np.exp(0.5 * rng.standard_normal(experts))
    shares /= shares.sum(axis=1, keepdims=True)
    limit = max(0.9 / top_k, 1.0 / experts)
    for _ in range(50):
        shares = np.minimum(shares, limit)
        shares /= shares.sum(axis=1, keepdims=True)
    if shares.max() * top_k > 0.95 and top_k < experts:
        raise SystemExit("too few experts for this top_k")
    steps = np.cumsum(shares, axis=1)
    steps[:, -1] = 1.0

    header, offset = {"__metadata__": {"format": "routepack.window/1", "top_k": str(top_k)}}, 0
    counts_shape = [samples, layers, experts]
    for name, kind, shape, size in (
        ("lengths", "I32", [samples], 4 * samples),
        ("recorded", "I32", [samples], 4 * samples),
        ("counts", code, counts_shape, samples * layers * experts * np.dtype(number).itemsize),
    ):
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(lengths.tobytes())
        file.write(lengths.tobytes())
        for begin in range(0, samples, BLOCK):
            block = lengths[begin : begin + BLOCK]
            chosen = steps[rng.integers(0, POOL, (len(block), layers))]
            edges = np.rint(chosen * (top_k * block[:, None, None].astype(np.float64)))
            counts = np.diff(edges, axis=2, prepend=0.0)
            file.write(counts.astype(number).tobytes())
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    for name in ("samples", "layers", "experts", "top_k"):
        parser.add_argument(name, type=int)
    parser.add_argument("--dtype", choices=DTYPES, default="u16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-length", type=int, default=2048)
    write_window(**vars(parser.parse_args()))
