#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second implementation of the score, written from docs/mathematics.md and sharing nothing with the C++ code.

Usage: score_reference.py WINDOW PLAN      prints one JSON object

numpy touches integers only. Every double is a Python float, and sums of floats are explicit loops in the binding
order, so the score must equal the one of `routepack score` to the last bit.
"""
import json
import math
import struct
import sys

import numpy as np

DTYPES = {"U8": "<u1", "I8": "<i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"}


def read_safetensors(path):
    """Tensors by name, and the metadata."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


def ceil_to(value, multiple):
    return -(-value // multiple) * multiple


class Problem:
    """Window and plan as plain Python values."""

    def __init__(self, tensors, plan):
        self.counts = tensors["counts"].astype(np.int64)
        self.samples, self.layers, self.experts = self.counts.shape
        self.lengths = [int(t) for t in tensors["lengths"]]
        self.pad_counts = tensors["pad_counts"].astype(np.int64) if "pad_counts" in tensors else None
        self.capacity = int(plan["capacity"])
        self.ranks = int(plan["topology"]["ep"])
        self.shards = [list(slots) for slots in plan["topology"]["shards"]]
        self.layout = plan["layout"]
        self.maps = plan["physical_to_logical"]
        self.stages = [(float(s["alpha"]), float(s["beta"])) for s in plan["cost"]["stages"]]
        expert = plan["cost"].get("expert", 1.0)
        self.weights = [float(w) for w in expert] if isinstance(expert, list) else [float(expert)] * self.layers
        self.sync = plan.get("sync", "step")
        constraints = plan.get("constraints", {})
        self.sample_multiple = constraints.get("sample_multiple", 1)
        self.cell_multiple = constraints.get("cell_multiple", 1)

    def length(self, sample):
        return self.lengths[sample] if sample < self.samples else 1  # an index past the window is a dummy

    def aligned(self, cell):
        """Tokens of a cell as the cap sees them."""
        return ceil_to(sum(ceil_to(self.length(i), self.sample_multiple) for i in cell), self.cell_multiple)

    def per_rank(self, per_expert):
        """[L, E] by logical expert -> [L][P] by the rank that holds the expert."""
        per_slot = np.take_along_axis(per_expert, np.asarray(self.maps), axis=1)
        by_rank = per_slot.reshape(self.layers, self.ranks, self.experts // self.ranks).sum(axis=2, dtype=np.int64)
        return [[int(w) for w in layer] for layer in by_rank]

    def loads(self, row, shard):
        """W[r, g, l, p], padding included."""
        real = [i for d in shard for i in row[d] if i < self.samples]
        loads = self.per_rank(self.counts[real].sum(axis=0, dtype=np.int64))
        if self.pad_counts is not None:
            pads = sum(self.aligned(row[d]) - sum(self.length(i) for i in row[d]) for d in shard)
            rates = self.per_rank(self.pad_counts)
            for l in range(self.layers):
                for p in range(self.ranks):
                    loads[l][p] += (pads * rates[l][p] + 32768) >> 16
        return loads


def dense_cost(problem, row, shard):
    """A[r, g]."""
    capacity = float(problem.capacity)
    total = 0.0
    for alpha, beta in problem.stages:
        dearest = None
        for d in shard:
            s1 = sum(problem.length(i) for i in row[d])
            s2 = sum(problem.length(i) ** 2 for i in row[d])
            assert s2 < 2**53
            cost = alpha * (float(s1) / capacity) + beta * (float(s2) / (capacity * capacity))
            dearest = cost if dearest is None or cost > dearest else dearest
        total = total + dearest
    return total


def expert_cost(problem, loads):
    """E[r, g]."""
    total = 0.0
    for l in range(problem.layers):
        total = total + problem.weights[l] * float(max(loads[l]))
    return total / float(problem.capacity)


def plain_bounds(problem):
    """The aggregate lower bounds on the first score component: (under this placement, under any placement)."""
    slots = sum(len(shard) for shard in problem.shards)
    capacity = float(problem.capacity)
    dense = 0.0
    for alpha, beta in problem.stages:
        dense += alpha * (sum(problem.lengths) / capacity)
        dense += beta * (sum(t * t for t in problem.lengths) / (capacity * capacity))
    demand = problem.counts.sum(axis=0, dtype=np.int64)
    fixed_peak = [max(layer) for layer in problem.per_rank(demand)]
    per_rank = problem.experts // problem.ranks
    any_peak = []
    for layer in demand:
        ordered = sorted(int(a) for a in layer)
        any_peak.append(max(sum(ordered) / problem.ranks, ordered[-1] + sum(ordered[: per_rank - 1])))
    share = min(len(shard) for shard in problem.shards) / slots
    bound = lambda peaks: dense / slots + share / capacity * math.fsum(w * p for w, p in zip(problem.weights, peaks))
    return bound(fixed_peak), bound(any_peak)


def spread(problem):
    """cv_global: mean over the layers with load of (population sd of the ranks' demand) / mean."""
    values = []
    for layer in problem.per_rank(problem.counts.sum(axis=0, dtype=np.int64)):
        mean = sum(layer) / problem.ranks
        if mean > 0:
            values.append(math.sqrt(math.fsum((q - mean) ** 2 for q in layer) / problem.ranks) / mean)
    return math.fsum(values) / len(values) if values else 0.0


def score(tensors, plan):
    problem = Problem(tensors, plan)
    joint, attention = [], 0.0
    peak_sum, tail_peak, even_sum = 0, 0, 0
    for row in problem.layout:
        joint_row, loads_row = [], []
        for shard in problem.shards:
            loads = problem.loads(row, shard)
            dense = dense_cost(problem, row, shard)
            attention = attention + dense
            joint_row.append(dense + expert_cost(problem, loads))
            loads_row.append(loads)
        joint.append(joint_row)
        for l in range(problem.layers):
            peak = max(max(loads[l]) for loads in loads_row)
            peak_sum += peak
            tail_peak = max(tail_peak, peak)
            even_sum += max(sum(loads[l]) for loads in loads_row)

    shard_sums = []
    for g in range(len(problem.shards)):
        total = 0.0
        for joint_row in joint:
            total = total + joint_row[g]
        shard_sums.append(total)
    total = 0.0
    for shard_sum in shard_sums:
        total = total + shard_sum
    if problem.sync == "row":
        first = 0.0
        for joint_row in joint:
            first = first + max(joint_row)
    else:
        first = max(shard_sums)

    fixed, free = plain_bounds(problem)
    return {
        "score": {"max_shard": first, "total": total, "worst_row": max(max(row) for row in joint)},
        "attention": attention,
        "expert_peak_sum": peak_sum,
        "tail_peak": tail_peak,
        "ep_efficiency": even_sum / problem.ranks / peak_sum if peak_sum else 1.0,
        "cv_global": spread(problem),
        "lb_fixed_placement": fixed,
        "lb_any_placement": free,
        "aligned_tokens": max(problem.aligned(cell) for row in problem.layout for cell in row),
    }


def main(arguments):
    if len(arguments) != 2:
        sys.exit(__doc__)
    tensors, _ = read_safetensors(arguments[0])
    with open(arguments[1], encoding="utf-8") as file:
        plan = json.load(file)
    print(json.dumps(score(tensors, plan), indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
