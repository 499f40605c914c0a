# SPDX-License-Identifier: Apache-2.0
"""Window files against the safetensors package of its inventors: what it writes we read, and the other way round."""

import json
import os
import pathlib
import struct
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "windows").glob("*.safetensors"))


def inspect(path: pathlib.Path) -> subprocess.CompletedProcess:
    return subprocess.run([os.environ["ROUTEPACK_BIN"], "inspect", str(path), "--json"],
                          capture_output=True, text=True, check=False)


def draw_window(seed: int, samples: int, layers: int, experts: int, top_k: int, dtype) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 60, size=samples, dtype=np.int32)
    counts = np.zeros((samples, layers, experts), dtype=dtype)
    for i in range(samples):
        for layer in range(layers):
            for _ in range(lengths[i]):
                counts[i, layer, rng.permutation(experts)[:top_k]] += 1
    return {"lengths": lengths, "counts": counts, "recorded": lengths.copy()}


METADATA = {"format": "routepack.window/1"}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), samples=st.integers(1, 9), layers=st.integers(1, 4), experts=st.integers(2, 9),
       dtype=st.sampled_from([np.uint16, np.uint32, np.int32]), data=st.data())
def test_windows_written_by_the_package_are_read(tmp_path_factory, seed, samples, layers, experts, dtype, data):
    top_k = data.draw(st.integers(1, experts))
    path = tmp_path_factory.mktemp("window") / "window.safetensors"
    window = draw_window(seed, samples, layers, experts, top_k, dtype)
    save_file(window, path, metadata={**METADATA, "top_k": str(top_k)})
    done = inspect(path)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["samples"], seen["layers"], seen["experts"], seen["top_k"]) == (samples, layers, experts, top_k)
    assert seen["tokens"] == int(window["lengths"].sum())


def test_the_stored_type_does_not_change_the_fingerprint(tmp_path):
    prints = set()
    for dtype in (np.uint16, np.uint32, np.int32):
        path = tmp_path / f"{np.dtype(dtype).name}.safetensors"
        save_file(draw_window(7, 5, 2, 4, 2, dtype), path, metadata={**METADATA, "top_k": "2"})
        prints.add(json.loads(inspect(path).stdout)["fingerprint"])
    assert len(prints) == 1


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_examples_are_read_by_the_package_with_equal_tensors(path):
    # A second reading of the same bytes, straight from the format's definition.
    raw = path.read_bytes()
    (header_size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + header_size])
    types = {"I32": "<i4", "U16": "<u2", "U32": "<u4", "I64": "<i8"}
    with safe_open(path, framework="numpy") as theirs:
        assert theirs.metadata()["format"] == METADATA["format"]
        assert set(theirs.keys()) == set(header) - {"__metadata__"}
        for name in theirs.keys():
            begin, end = (8 + header_size + o for o in header[name]["data_offsets"])
            ours = np.frombuffer(raw[begin:end], dtype=types[header[name]["dtype"]]).reshape(header[name]["shape"])
            np.testing.assert_array_equal(theirs.get_tensor(name), ours)
        seen = json.loads(inspect(path).stdout)
        assert list(theirs.get_tensor("counts").shape) == [seen["samples"], seen["layers"], seen["experts"]]
        assert int(theirs.get_tensor("lengths").sum()) == seen["tokens"]


def test_there_are_examples():
    assert EXAMPLES


def test_both_refuse_a_file_whose_header_ends_beyond_it(tmp_path):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(EXAMPLES[0].read_bytes()[:40])
    with pytest.raises(Exception, match="(?i)header"):
        safe_open(path, framework="numpy")
    done = inspect(path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
