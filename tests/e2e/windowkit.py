# SPDX-License-Identifier: Apache-2.0
"""Runs the executable, and makes windows and plans for it byte by byte."""
import json
import os
import pathlib
import struct
import subprocess
import sys

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
EXECUTABLE = str(pathlib.Path(os.environ.get("ROUTEPACK_BIN", REPOSITORY / "build/release/bin/routepack")).absolute())
sys.path.insert(0, str(REPOSITORY / "tests/reference"))

import score_reference  # noqa: E402

NAMES = {"<u1": "U8", "<u2": "U16", "<u4": "U32", "<i4": "I32", "<i8": "I64", "<f4": "F32", "<f2": "F16"}
COST = """
[[stage]]
name = "window"
alpha = 3.0
beta = 0.0
[[stage]]
name = "full"
alpha = 1.5
beta = 2.5
"""


def run(*arguments, status=0, **options):
    """Runs routepack and demands an exit status."""
    command = [EXECUTABLE, *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 300, "encoding": "utf-8", **options}
    result = subprocess.run(command, **options)
    assert result.returncode == status, f"{command}: status {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def run_json(*arguments, status=0):
    """The one JSON value on stdout."""
    return json.loads(run(*arguments, "--json", status=status).stdout)


def safetensors_bytes(tensors, metadata, change_header=None):
    """A file with the tensors in the order of the dictionary. `change_header` may damage the header before encoding."""
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        tensor = np.ascontiguousarray(tensor)
        raw = tensor.tobytes()
        code = NAMES[tensor.dtype.newbyteorder("<").str.replace("|", "<")]
        header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    if change_header is not None:
        changed = change_header(header)  # None when it changed the header in place
        header = header if changed is None else changed
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def metadata(top_k, **more):
    return {"format": "routepack.window/1", "top_k": str(top_k), **more}


def random_window(rng, *, samples, layers, experts, top_k, max_length=60, recorded="samples", padding=False):
    """Tensors of a window with skewed routes. `recorded`: None, "samples" or "layers"."""
    lengths = rng.integers(1, max_length + 1, samples, dtype=np.int32)
    routed = rng.integers(0, lengths[:, None] + 1, (samples, layers)).astype(np.int32)
    if recorded == "samples":
        routed = np.repeat(routed[:, :1], layers, axis=1)
    routed[rng.random(samples) < 0.1] = 0
    counts = np.zeros((samples, layers, experts), dtype=np.int64)
    for i in range(samples):
        for l in range(layers):
            for _ in range(routed[i, l]):
                scores = rng.random(experts) * (1.0 + np.arange(experts) / experts)
                counts[i, l, np.argpartition(scores, experts - top_k)[experts - top_k :]] += 1
    tensors = {"lengths": lengths, "counts": counts.astype([np.uint16, np.uint32, np.int32][rng.integers(3)])}
    if recorded == "samples":
        tensors["recorded"] = routed[:, 0].copy()
    elif recorded == "layers":
        tensors["recorded"] = routed
    if padding:
        tensors["pad_counts"] = rng.integers(0, 200_000, (layers, experts), dtype=np.uint32)
    return tensors


def random_plan(rng, tensors, *, ranks, slots, rows, sync, sample_multiple=1, cell_multiple=1):
    """A valid plan with random shards, maps and layout; the cap is as small as the layout allows."""
    samples, layers, experts = tensors["counts"].shape
    order = [int(d) for d in rng.permutation(slots)]
    shards = [[d] for d in order[: rng.integers(1, slots + 1)]]
    for d in order[len(shards) :]:
        shards[rng.integers(len(shards))].append(d)
    cells = [[] for _ in range(rows * slots)]
    for n, i in enumerate(rng.permutation(samples)):
        cells[n if n < len(cells) else rng.integers(len(cells))].append(int(i))
    weights = [float(w) for w in rng.random(layers) * 3]
    plan = {
        "format": "routepack.plan/1",
        "topology": {"ep": ranks, "shards": [sorted(shard) for shard in shards]},
        "capacity": 1,
        "constraints": {"sample_multiple": sample_multiple, "cell_multiple": cell_multiple},
        "cost": {
            "stages": [
                {"name": f"stage{s}", "alpha": float(rng.random() * 9), "beta": float(rng.random() * 5)}
                for s in range(rng.integers(0, 4))
            ],
            "expert": weights if rng.random() < 0.5 else weights[0],
        },
        "sync": sync,
        "rows": rows,
        "physical_to_logical": [[int(e) for e in rng.permutation(experts)] for _ in range(layers)],
        "layout": [cells[r * slots : (r + 1) * slots] for r in range(rows)],
    }
    plan["capacity"] = score_reference.score(tensors, plan)["aligned_tokens"] + int(rng.integers(0, 20))
    return plan
