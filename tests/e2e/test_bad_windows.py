# SPDX-License-Identifier: Apache-2.0
"""Windows whose bytes or values are wrong."""
import struct

import numpy as np
import pytest

import windowkit
from refusals import assert_refused, assert_window_refused, damaged, with_tensors

# Window files whose bytes are wrong.


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 50, -1, -100])
def test_truncated_file(small, keep):
    whole = small.window.read_bytes()
    assert_window_refused(small, whole[:keep])


def test_bytes_behind_the_last_tensor(small):
    assert_window_refused(small, small.window.read_bytes() + b"\0\0")


def test_header_length_beyond_the_file(small):
    whole = small.window.read_bytes()
    for length in (len(whole), len(whole) - 7, 2**63, 2**64 - 1):
        assert_window_refused(small, struct.pack("<Q", length) + whole[8:], "header")


def test_header_of_more_than_100_megabytes(small):
    path = small.folder / "bad.safetensors"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", 100_000_001) + b"{")
        file.truncate(101_000_000)
    assert_refused(small, ["inspect", path], 2, "bad.safetensors", "header")


@pytest.mark.parametrize(
    "header",
    [b"{", b"", b"[]", b"nonsense", b'{"lengths": 3}', b'{"a": {}, "a": {}}', b'{"\xff": 1}', b"{}{}", b"[" * 100_000],
)
def test_header_that_is_no_json_object_of_tensors(small, header):
    assert_window_refused(small, damaged(small, lambda _: header))


@pytest.mark.parametrize("first", range(2))
def test_overlapping_tensors(small, first):
    def change(header):
        begin, end = header["recorded"]["data_offsets"]
        header["recorded"]["data_offsets"] = [begin - 4, end - 4] if first else header["lengths"]["data_offsets"]

    assert_window_refused(small, damaged(small, change), ("recorded", "lengths", "counts"))


def test_gap_between_tensors(small):
    def change(header):
        begin, end = header["recorded"]["data_offsets"]
        header["recorded"]["data_offsets"] = [begin + 4, end + 4]

    assert_window_refused(small, damaged(small, change) + b"\0\0\0\0", "recorded")


@pytest.mark.parametrize(
    "offsets", [[0, 10**9], [2**62, 2**62 + 48], [-48, 0], [48, 0], [0, 47], [0], [0, 48, 96], "0-48", [0.5, 48.5], None]
)
def test_range_that_cannot_be(small, offsets):
    assert_window_refused(small, damaged(small, lambda h: h["lengths"].update(data_offsets=offsets)), "lengths")


@pytest.mark.parametrize(
    "shape", [[-12], [2**40, 2**40], [2**63], [13], [11], "12", [12.5], None, [4294967296 * 4294967296, 0]]
)
def test_shape_that_cannot_be(small, shape):
    assert_window_refused(small, damaged(small, lambda h: h["lengths"].update(shape=shape)), "lengths")


@pytest.mark.parametrize("name, dtype", [("lengths", "F32"), ("lengths", "U32"), ("lengths", "X9"), ("counts", "F16"),
                                         ("counts", "I16"), ("recorded", "U32"), ("lengths", 3)])
def test_wrong_dtype(small, name, dtype):
    assert_window_refused(small, damaged(small, lambda h: h[name].update(dtype=dtype)), name)


def test_wrong_rank(small):
    lengths, counts = small.tensors["lengths"], small.tensors["counts"]
    assert_window_refused(small, with_tensors(small, lengths=lengths.reshape(12, 1)), "lengths")
    assert_window_refused(small, with_tensors(small, counts=counts.reshape(12, 16)), "counts")
    assert_window_refused(small, with_tensors(small, recorded=small.tensors["recorded"].reshape(12, 1, 1)), "recorded")


def test_tensors_that_disagree(small):
    for name, tensor in {
        "lengths": np.ones(13, np.int32),
        "recorded": np.zeros((12, 3), np.int32),
        "atomic": np.zeros(11, np.int32),
        "groups": np.zeros(11, np.int32),
        "ids": np.zeros(11, np.int64),
        "pad_counts": np.zeros((2, 7), np.uint32),
    }.items():
        assert_window_refused(small, with_tensors(small, **{name: tensor}), name)


def test_nothing_of_something(small):
    for shape in ((0, 2, 8), (12, 0, 8), (12, 2, 0)):
        tensors = {"lengths": np.ones(shape[0], np.int32), "counts": np.zeros(shape, np.uint16)}
        assert_window_refused(small, windowkit.safetensors_bytes(tensors, small.metadata), "counts")


def test_missing_tensor(small):
    for name in ("lengths", "counts"):
        rest = {key: tensor for key, tensor in small.tensors.items() if key != name}
        assert_window_refused(small, windowkit.safetensors_bytes(rest, small.metadata), name)


@pytest.mark.parametrize("change, word", [
    ({"top_k": None}, "top_k"), ({"top_k": "0"}, "top_k"), ({"top_k": "9"}, "top_k"), ({"top_k": "two"}, "top_k"),
    ({"top_k": "2.5"}, "top_k"), ({"top_k": "99999999999999999999"}, "top_k"),
    ({"format": None}, "format"), ({"format": "routepack.window/2"}, "routepack.window/"), ({"kind": "other"}, "kind"),
    ({"layers": "[1]"}, "layers"), ({"layers": "not json"}, "layers"),
])  # fmt: skip
def test_metadata(small, change, word):
    metadata = {key: value for key, value in {**small.metadata, **change}.items() if value is not None}
    assert_window_refused(small, windowkit.safetensors_bytes(small.tensors, metadata), word)


# Windows whose values are wrong.


@pytest.mark.parametrize("value", [0, -5])
def test_length_that_is_not_positive(small, value):
    small.tensors["lengths"][3] = value
    assert_window_refused(small, with_tensors(small), "lengths", "3", str(value))


def test_count_larger_than_the_length(small):
    del small.tensors["recorded"]
    small.tensors["lengths"][5] = 10
    small.tensors["counts"][5] = 0
    small.tensors["counts"][5, 1, 6] = 11
    assert_window_refused(small, with_tensors(small), "counts", "5", "6", "11", "10")


def test_negative_count(small):
    counts = small.tensors["counts"].astype(np.int32)
    counts[4, 1, 2] = -7
    assert_window_refused(small, with_tensors(small, counts=counts), "counts", "4", "-7")


def test_sum_that_contradicts_recorded(small):
    row = small.tensors["counts"][2, 1]
    row[int(row.argmax())] -= 1
    assert_window_refused(small, with_tensors(small), ("counts", "recorded"), "2")


def test_sum_over_top_k_times_length(small):
    del small.tensors["recorded"]
    small.tensors["lengths"][2] = 4
    small.tensors["counts"][2, 1] = [3, 3, 3, 0, 0, 0, 0, 0]
    small.tensors["counts"][2, 0] = 0
    assert_window_refused(small, with_tensors(small), "counts", "2", "9", "8")


@pytest.mark.parametrize("value", [-1, 1000])
def test_recorded_out_of_range(small, value):
    small.tensors["recorded"][6] = value
    assert_window_refused(small, with_tensors(small), ("recorded", "counts"), "6")


def test_atomic_below_minus_one(small):
    atomic = np.full(12, -1, np.int32)
    atomic[9] = -2
    assert_window_refused(small, with_tensors(small, atomic=atomic), "atomic", "9", "-2")
