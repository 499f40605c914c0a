# SPDX-License-Identifier: Apache-2.0
"""Writes megatron_ranges.json: where Megatron-Core 0.16.1 itself puts expert parameters, and which lane owns what.

Builds real `_ParamAndGradBuffer` objects on the CPU (replaced are only the current device, a GPU otherwise, and the log) and asks the
real `DistributedOptimizer` for the ranges of every lane.

    pip install torch megatron-core==0.16.1
    python make_megatron_ranges.py > megatron_ranges.json
"""

import json
import math
import sys
import types

import torch

torch.cuda.current_device = lambda: "cpu"

import megatron.core  # noqa: E402
from megatron.core.distributed import DistributedDataParallelConfig, param_and_grad_buffer  # noqa: E402
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402

WANTED = "0.16.1"
param_and_grad_buffer.log_on_each_pipeline_stage = lambda *_, **__: None  # asks for a running torch.distributed
# Sizes in elements: multiples of the padding, odd ones, and ones that a lane boundary cuts.
FFN = [["fc1", [24, 16]], ["fc2", [16, 12]]]
BIASED = [["fc1.weight", [10, 7]], ["fc1.bias", [10]], ["fc2.weight", [7, 5]], ["fc2.bias", [7]]]
WIDE = [["fc1", [64, 33]], ["fc2", [33, 31]]]


class Group:
    """What the buffer asks of a process group."""

    def __init__(self, size, rank):
        self._size, self._rank = size, rank

    def size(self):
        return self._size

    def rank(self):
        return self._rank


def registered(case, layers):
    """(layer, slot, parameter) of a chunk in the order in which the modules register their parameters."""
    for layer in layers:
        if case["registration"] == "grouped":  # TEGroupedMLP: weight0 … weight{n-1} of each linear layer
            yield from ((layer, slot, k) for k in range(len(case["parameters"])) for slot in range(case["slots"]))
        else:  # SequentialMLP: a whole MLP per expert
            yield from ((layer, slot, k) for slot in range(case["slots"]) for k in range(len(case["parameters"])))


def buffer_of(case, layers, lane):
    names = list(registered(case, layers))
    params = [torch.nn.Parameter(torch.zeros(case["parameters"][k][1], dtype=torch.bfloat16)) for _, _, k in names]
    group = Group(case["edp"], lane)
    config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, pad_buckets_for_high_nccl_busbw=case["high_bus_bandwidth"]
    )
    buffer = param_and_grad_buffer._ParamAndGradBuffer(
        config, torch.bfloat16, torch.float32, params, group, case["bucket_elements"],
        dict(zip(params, map(str, names))), 1.0, list(range(len(params))), False,
        types.SimpleNamespace(tp=group, dp_cp=group),
    )
    return buffer, dict(zip(params, names))


def filled(case):
    """Adds `spans` and, for each, the lanes that own a part of it."""
    spans = []
    for chunk, layers in enumerate(case["chunks"] or [list(range(case["layers"]))]):
        lanes = {}
        for lane in range(case["edp"]):
            buffer, names = buffer_of(case, layers, lane)
            ((_, buckets),) = DistributedOptimizer._build_gbuf_range_map(buffer).items()
            for bucket in buckets:
                for param, ranges in bucket["param_map"].items():
                    lanes.setdefault(names[param], []).append([lane, ranges["param"].start, ranges["param"].end])
        for param, (begin, end, bucket) in buffer.param_index_map.items():
            layer, slot, k = names[param]
            spans.append(
                {"layer": layer, "slot": slot, "parameter": k, "chunk": chunk, "bucket": bucket, "begin": begin, "end": end,
                 "bucket_begin": buffer.bucket_indices[bucket][0], "bucket_end": buffer.bucket_indices[bucket][1],
                 "lanes": sorted(lanes[names[param]], key=lambda owned: owned[1])}
            )
    return {**case, "spans": spans}


def case(edp, layers, slots, parameters, registration="grouped", bucket=None, high=False, chunks=()):
    return {"edp": edp, "layers": layers, "slots": slots, "parameters": parameters, "registration": registration,
            "bucket_elements": bucket, "high_bus_bandwidth": high, "chunks": [list(chunk) for chunk in chunks]}


def cases():
    yield case(2, 1, 2, FFN)  # the example of docs/data-plane.md
    for edp in (1, 2, 3, 4, 8):
        for registration in ("grouped", "sequential"):
            yield case(edp, 2, 3, BIASED, registration)
            yield case(edp, 2, 2, WIDE, registration, bucket=2500)
    # A bucket closes exactly when it holds bucket_elements; one less and one more.
    for bucket in (1, 191, 192, 193, 384, 576, 577, 10**9):
        yield case(2, 2, 2, FFN, bucket=bucket)
    for edp in (3, 8):
        yield case(edp, 1, 2, FFN, high=True)
        yield case(edp, 2, 1, WIDE, "sequential", bucket=2000, high=True)
    yield case(4, 4, 2, FFN, chunks=((0, 2), (1, 3)))
    yield case(3, 5, 2, BIASED, "sequential", bucket=150, chunks=((0, 1), (2,), (3, 4)))


def main():
    if megatron.core.__version__ != WANTED:
        sys.exit(f"megatron-core {megatron.core.__version__} found, {WANTED} wanted")
    done = [filled(each) for each in cases()]
    for each in done:
        for span in each["spans"]:
            count = math.prod(each["parameters"][span["parameter"]][1])
            assert sum(end - begin for _, begin, end in span["lanes"]) == count == span["end"] - span["begin"]
    head = {"format": "megatron-ranges/1", "source": f"megatron-core {WANTED}, Apache-2.0 and BSD-3-Clause"}
    fields = ["layer", "slot", "parameter", "chunk", "bucket", "begin", "end", "bucket_begin", "bucket_end", "lanes"]
    rows = []
    for each in done:
        each["spans"] = [[span[field] for field in fields] for span in each["spans"]]
        rows.append(json.dumps(each))
    sys.stdout.write(json.dumps(head)[:-1] + f', "span": {json.dumps(fields)},\n "cases": [\n  ')
    sys.stdout.write(",\n  ".join(rows) + "\n ]}\n")


main()
