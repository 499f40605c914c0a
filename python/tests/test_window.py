# SPDX-License-Identifier: Apache-2.0
"""Windows over Python's arrays: no copy, the right lifetime, and clear refusals."""

from __future__ import annotations

import array
import gc
import json
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import routepack


def arrays(**changes: Any) -> dict[str, Any]:
    """Two samples, one layer, three experts, one of them chosen per token."""
    return {
        "lengths": np.array([5, 6], dtype=np.int32),
        "counts": np.array([[[1, 2, 2]], [[0, 6, 0]]], dtype=np.uint16),
        "top_k": 1,
        **changes,
    }


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32"])
def test_counts_are_the_callers_memory(dtype):
    counts = arrays()["counts"].astype(dtype)
    window = routepack.Window.from_arrays(**arrays(counts=counts))
    assert np.shares_memory(window.counts, counts)
    assert window.counts.dtype == np.dtype("uint32" if dtype == "int32" else dtype)
    np.testing.assert_array_equal(window.counts, counts)
    assert not window.counts.flags.writeable


class Tensor:
    """What another library's tensor looks like: DLPack, on a device of the test's choice."""

    def __init__(self, values: np.ndarray[Any, Any], device: int = 1) -> None:
        self._values, self._device = values, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__(**options)


def test_tensors_with_dlpack_are_used_where_they_are():
    counts, lengths = arrays()["counts"], arrays()["lengths"]
    window = routepack.Window.from_arrays(**arrays(counts=Tensor(counts), lengths=Tensor(lengths)))
    assert np.shares_memory(window.counts, counts) and np.shares_memory(window.lengths, lengths)


@pytest.mark.parametrize("name", ["counts", "lengths"])
def test_a_tensor_on_a_gpu_is_refused_with_what_to_do(name):
    cuda = 2
    with pytest.raises(routepack.InvalidInput, match=rf"{name}: found a tensor on a device .*; tensor.cpu\(\) copies it there"):
        routepack.Window.from_arrays(**arrays(**{name: Tensor(arrays()[name], cuda)}))


def test_the_buffer_protocol_is_enough():
    values = array.array("H", [1, 2, 2, 0, 6, 0])
    window = routepack.Window.from_arrays(**arrays(counts=memoryview(values).cast("B").cast("H", shape=[2, 1, 3])))
    assert np.shares_memory(window.counts, np.frombuffer(values, dtype=np.uint16))


def test_torch_tensors_are_used_where_they_are():
    torch = pytest.importorskip("torch")
    counts = torch.tensor([[[1, 2, 2]], [[0, 6, 0]]], dtype=torch.int32)
    window = routepack.Window.from_arrays(**arrays(counts=counts, lengths=torch.tensor([5, 6], dtype=torch.int32)))
    assert window.counts.__array_interface__["data"][0] == counts.data_ptr()
    assert torch.from_numpy(np.array(window.lengths)).tolist() == [5, 6]
    for wrong, message in (
        (counts.to(torch.int64), 'counts: found int64, wanted uint16, uint32 or int32; array.astype'),
        (counts.to(torch.float32).requires_grad_(), r"counts: found a tensor that requires a gradient, wanted tensor.detach\(\)"),
        (counts.transpose(0, 2), "counts: found strides"),
    ):
        with pytest.raises(routepack.InvalidInput, match=message):
            routepack.Window.from_arrays(**arrays(counts=wrong))


def test_every_tensor_comes_back(tmp_path):
    given_arrays = arrays(
        recorded=np.array([[5], [6]], dtype=np.int32),
        groups=np.array([0, 0], dtype=np.int32),
        atomic=np.array([-1, 4], dtype=np.int32),
        pad_counts=np.array([[1, 2, 3]], dtype=np.uint32),
        ids=np.array([7, -7], dtype=np.int64),
        layers=[3],
        model="a model",
    )
    window = routepack.Window.from_arrays(**given_arrays)
    window.save(tmp_path / "w.safetensors")
    again = routepack.Window.load(tmp_path / "w.safetensors")
    for name in ("lengths", "counts", "groups", "atomic", "pad_counts", "ids"):
        np.testing.assert_array_equal(getattr(again, name), given_arrays[name])
    assert again.recorded is not None and again.recorded.ravel().tolist() == [5, 6]
    assert (again.samples, again.layers, again.experts, again.top_k, again.kind) == (2, 1, 3, 1, "samples")
    assert again.layer_numbers == [3] and again.model == "a model" and again.metadata == {}
    assert again.fingerprint == window.fingerprint and again.fingerprint.startswith("xxh3:")
    assert repr(again) == "<routepack.Window: 2 samples, 1 layers, 3 experts, top 1>"


def test_absent_tensors_are_none():
    window = routepack.Window.from_arrays(**arrays())
    assert [window.recorded, window.groups, window.atomic, window.pad_counts, window.ids] == [None] * 5


def test_an_aggregate_needs_no_lengths():
    window = routepack.Window.from_arrays(
        lengths=None, counts=np.array([[[9, 3]]], dtype=np.uint32), top_k=2, kind="aggregate"
    )
    assert window.kind == "aggregate" and window.lengths is None


class Kept(np.ndarray):
    """An array that tells when it goes."""


def test_arrays_live_as_long_as_the_window_or_a_view_of_it():
    counts = arrays()["counts"].view(Kept)
    gone = weakref.ref(counts)
    window = routepack.Window.from_arrays(**arrays(counts=counts))
    del counts
    gc.collect()
    assert gone() is not None
    view = window.counts
    del window
    gc.collect()
    assert gone() is not None and view.tolist() == [[[1, 2, 2]], [[0, 6, 0]]]
    del view
    gc.collect()
    assert gone() is None


def test_a_window_loaded_from_a_file_outlives_the_file(root, tmp_path):
    path = tmp_path / "w.safetensors"
    routepack.Window.from_arrays(**arrays()).save(path)
    counts = routepack.Window.load(path).counts
    path.unlink()
    gc.collect()
    assert counts.tolist() == [[[1, 2, 2]], [[0, 6, 0]]]


def in_parts(folder: Any) -> Any:
    """The two samples in files of their own, with other types, and a manifest of them."""
    parts = []
    for k, dtype in enumerate(("uint16", "uint32")):
        part = routepack.Window.from_arrays(
            lengths=arrays()["lengths"][k : k + 1], counts=arrays()["counts"][k : k + 1].astype(dtype), top_k=1
        )
        part.save(folder / f"part{k}")
        parts.append({"path": f"part{k}", "samples": 1, "fingerprint": part.fingerprint})
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({"format": "routepack.manifest/1", "parts": parts}), encoding="utf-8")
    return manifest


def test_a_manifest_is_loaded_as_the_window_that_it_names(tmp_path):
    window = routepack.Window.load(in_parts(tmp_path))
    assert (window.samples, window.layers, window.experts, window.top_k) == (2, 1, 3, 1)
    assert window.lengths.tolist() == [5, 6]
    window.save(tmp_path / "joined")
    joined = routepack.Window.load(tmp_path / "joined")
    np.testing.assert_array_equal(joined.counts, arrays()["counts"])
    assert joined.fingerprint == routepack.Window.from_arrays(**arrays()).fingerprint != window.fingerprint


def test_counts_of_a_window_in_parts_are_an_array_per_part(tmp_path):
    window = routepack.Window.load(in_parts(tmp_path))
    with pytest.raises(routepack.InvalidInput, match="counts: found a window in 2 parts, .* part_counts lists"):
        _ = window.counts
    first, second = window.part_counts
    del window
    gc.collect()
    assert (first.dtype, second.dtype) == (np.uint16, np.uint32)
    assert (first.tolist(), second.tolist()) == ([[[1, 2, 2]]], [[[0, 6, 0]]])
    assert not first.flags.writeable
    whole = routepack.Window.from_arrays(**arrays())
    (only,) = whole.part_counts
    assert np.shares_memory(only, whole.counts) and only.shape == (2, 1, 3)


def test_a_manifest_that_is_wrong_is_refused(tmp_path):
    manifest = in_parts(tmp_path)
    (tmp_path / "part1").unlink()
    with pytest.raises(routepack.IoError, match="part1: cannot open for reading"):
        routepack.Window.load(manifest)
    routepack.Window.load(tmp_path / "part0").save(tmp_path / "part1")
    with pytest.raises(routepack.InvalidInput, match="part1: fingerprint: found xxh3:.*manifest.json says"):
        routepack.Window.load(manifest)


COUNTS = arrays()["counts"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": COUNTS.astype("int64")}, 'counts: found int64, wanted uint16, uint32 or int32; array.astype'),
        ({"counts": COUNTS.astype("float32")}, "counts: found float32, wanted integers"),
        ({"counts": COUNTS.astype(">u2")}, "counts: found byte order >u2, wanted the machine's own"),
        ({"counts": np.asfortranarray(np.ones((2, 2, 2), dtype="u2"))}, "counts: found strides, wanted values in C order"),
        ({"counts": COUNTS[0]}, r"counts: found 2 dimensions, wanted 3: \[samples, layers, experts\]"),
        ({"counts": COUNTS.astype("i4") - 1}, r"counts\[1, 0, 0\]: found -1, wanted 0 or more"),
        ({"counts": COUNTS[:0]}, r"samples \(N\): found 0"),
        ({"counts": "abc"}, "counts: found str, wanted an array"),
        ({"lengths": np.array([5, 6])}, 'lengths: found int64, wanted int32; array.astype'),
        ({"lengths": np.array([5], dtype="i4")}, r"tensor lengths: found 1 values, wanted 2 for shape \[2\]"),
        ({"lengths": None}, "tensor lengths"),
        ({"lengths": np.array([5, 0], dtype="i4")}, r"tensor lengths\[1\]: found 0, wanted 1 or more"),
        ({"recorded": np.array([[5, 6]], dtype="i4")}, r"recorded: found another shape, wanted \[samples\]"),
        ({"recorded": np.array([5, 5], dtype="i4")}, r"tensor counts\[1, 0, :\]: found a sum of 6, wanted 5"),
        ({"groups": np.zeros(0, dtype="i4")}, "groups: found an empty array"),
        ({"pad_counts": np.ones(3, dtype="u4")}, "pad_counts: found 1 dimensions, wanted 2"),
        ({"top_k": 0}, "top_k: found 0, wanted 1 to 3"),
        ({"layers": [1, 2]}, "metadata layers: found 2 numbers, wanted 1"),
        ({"kind": "parts"}, 'kind: found "parts", wanted "samples" or "aggregate"'),
    ],
)
def test_what_is_wrong_is_said(changes, message):
    with pytest.raises(routepack.InvalidInput, match=message) as caught:
        routepack.Window.from_arrays(**arrays(**changes))
    assert "\n" not in str(caught.value)


def test_unaligned_memory_is_refused_with_the_remedy():
    raw = np.zeros(13, dtype=np.uint8)
    counts = raw[1:].view(np.uint16).reshape(2, 1, 3)
    with pytest.raises(routepack.InvalidInput, match=r"counts: found memory that is not aligned.*array.copy\(\)"):
        routepack.Window.from_arrays(**arrays(counts=counts))


def test_errors_are_pythons_own_kinds(tmp_path):
    assert issubclass(routepack.InvalidInput, ValueError) and issubclass(routepack.FormatError, routepack.InvalidInput)
    assert issubclass(routepack.IoError, OSError) and issubclass(routepack.InternalError, RuntimeError)
    with pytest.raises(OSError, match="cannot open for reading: No such file"):
        routepack.Window.load(tmp_path / "nothing")
    (tmp_path / "w").write_bytes(b"no window")
    with pytest.raises(routepack.FormatError, match="w: "):
        routepack.Window.load(tmp_path / "w")
    with pytest.raises(routepack.IoError):
        routepack.Window.from_arrays(**arrays()).save(tmp_path)


def test_file_names_that_are_not_utf8_stand_in_messages(tmp_path):
    import os

    path = os.fsencode(tmp_path) + b"/\xff"
    with pytest.raises(routepack.IoError, match="cannot open for reading"):
        routepack.Window.load(os.fsdecode(path))


@given(st.data())
def test_random_arrays_are_a_window_or_a_clear_refusal(data):
    shape = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 4)))
    dtype = data.draw(st.sampled_from(["uint16", "uint32", "int32", "int64", "float64", ">u2"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    counts = rng.integers(0, 4, size=shape).astype(dtype)
    small = st.one_of(st.none(), st.lists(st.integers(-2, 9), min_size=0, max_size=4))
    options = {name: data.draw(small) for name in ("lengths", "recorded", "groups", "atomic", "ids")}
    given_arrays = {
        name: None if values is None else np.array(values, dtype=np.int64 if name == "ids" else np.int32)
        for name, values in options.items()
    }
    try:
        window = routepack.Window.from_arrays(counts=counts, top_k=data.draw(st.integers(-1, 5)), **given_arrays)
    except routepack.InvalidInput as error:
        assert "\n" not in str(error)
        return
    np.testing.assert_array_equal(window.counts, counts)
    assert len(window.fingerprint) == 21
