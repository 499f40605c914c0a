# SPDX-License-Identifier: Apache-2.0
"""Raw routes of a batch are never in memory together."""

import tracemalloc

import numpy as np
import pytest

from convert.support import figures, write_lines
from routepack.convert import Options, convert

SAMPLES, WIDTH, LAYERS, TOP_K = 48, 256, 16, 8
RAW = SAMPLES * WIDTH * LAYERS * TOP_K * 4  # 6 MiB


def batch():
    token, layer, choice = np.meshgrid(np.arange(WIDTH), np.arange(LAYERS), np.arange(TOP_K), indexing="ij")
    one = (token * 7 + layer * 3 + choice) % 32
    return np.broadcast_to(one.astype(np.int32), (SAMPLES, WIDTH, LAYERS, TOP_K))


def peak_of(kind, path, options):
    tracemalloc.start()
    try:
        window = convert(kind, [path], options).window
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    counts, recorded, _ = figures(window)
    assert counts.sum() == RAW // 4 and (recorded == WIDTH).all()
    return peak


@pytest.mark.parametrize("form", [np.savez, np.savez_compressed])
def test_a_batch_is_read_sample_by_sample(tmp_path, form):
    form(tmp_path / "b.npz", routed_experts=batch(), lengths=np.full(SAMPLES, WIDTH))
    peak = peak_of("arrays", tmp_path / "b.npz", Options(experts=32))
    assert peak < RAW / 4, f"{peak} of {RAW} bytes"


def test_a_file_of_many_samples_is_read_member_by_member(tmp_path):
    np.savez_compressed(tmp_path / "b.npz", **{f"s{i}": sample for i, sample in enumerate(batch())})
    peak = peak_of("arrays", tmp_path / "b.npz", Options(experts=32, rows="len"))
    assert peak < RAW / 4, f"{peak} of {RAW} bytes"


def test_lines_are_read_one_at_a_time(tmp_path):
    from convert.support import b64

    text = f"nrlre1:int32:{WIDTH}x{LAYERS}x{TOP_K}:{b64(batch()[0])}"
    path = write_lines(tmp_path / "n.jsonl", *({"routed_experts": text, "index": i} for i in range(SAMPLES)))
    peak = peak_of("nemo-rl", path, Options(experts=32))
    assert peak < RAW / 4, f"{peak} of {RAW} bytes"


def test_tensors_of_a_torch_archive_are_mapped(tmp_path):
    torch = pytest.importorskip("torch")
    samples = [
        {"tokens": [0] * (WIDTH + 1), "rollout_routed_experts": torch.tensor(np.ascontiguousarray(sample))}
        for sample in batch()
    ]
    torch.save({"rollout_id": 0, "samples": samples}, tmp_path / "r.pt")
    del samples
    peak = peak_of("slime", tmp_path / "r.pt", Options(experts=32))
    assert peak < RAW / 4, f"{peak} of {RAW} bytes"
