# SPDX-License-Identifier: Apache-2.0
"""Counts that travel in the place of routes: what they say is what numpy counts, and nothing else is taken for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routepack import InvalidInput
from routepack.adapters._routes import no_counts, pack_counts, unpack_counts

Routes = npt.NDArray[Any]
HEAD = ("form", "experts", "rows", "k", "recorded")


def recount(ids: Routes, experts: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[layers, experts] and [layers], row by row.

    Rows of -1 and of zeros were not captured. With one expert per row a zero is expert 0, unless there is nothing else
    in a layer of two or more.
    """
    _, layers, k = ids.shape
    counts = np.zeros((layers, experts), dtype=np.int64)
    recorded = np.zeros(layers, dtype=np.int64)
    for layer in range(layers):
        rows = [row for row in ids[:, layer].tolist() if any(i != -1 for i in row)]
        if k > 1 or (len(rows) > 1 and not any(map(any, rows))):
            rows = [row for row in rows if any(row)]
        recorded[layer] = len(rows)
        for row in rows:
            for i in row:
                counts[layer, i] += 1
    return counts, recorded


@st.composite
def batches(draw: Any) -> tuple[list[Routes], int]:
    """Samples of any number of rows, some of them not captured, in the integers that an engine has."""
    experts = draw(st.integers(2, 12))
    k, layers = draw(st.integers(1, min(experts, 4))), draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["int8", "int16", "int32", "int64", "uint8"]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    samples = []
    for rows in draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)):
        ids = np.argsort(rng.random((rows, layers, experts)), axis=2)[:, :, :k]
        lost = rng.random((rows, layers))
        ids[lost < 0.2] = 0
        if kind != "uint8":
            ids[lost > 0.8] = -1
        samples.append(ids.astype(kind))
    return samples, experts


@given(batches())
def test_what_arrives_is_what_numpy_counts(drawn: tuple[list[Routes], int]) -> None:
    samples, experts = drawn
    packed = pack_counts(samples, experts=experts)
    assert packed.dtype == np.int32 and packed.shape == (len(samples), samples[0].shape[1], 5 + experts)
    found, k = unpack_counts(packed, experts=experts, rows=[len(ids) for ids in samples])
    assert k == samples[0].shape[2] and len(found) == len(samples)
    for counted, ids in zip(found, samples, strict=True):
        counts, recorded = recount(ids, experts)
        assert counted.counts.tolist() == counts.tolist() and counted.recorded.tolist() == recorded.tolist()
        assert counted.counts.dtype == np.uint16


@given(batches(), st.data())
def test_a_number_that_is_another_is_found(drawn: tuple[list[Routes], int], data: Any) -> None:
    samples, experts = drawn
    packed = pack_counts(samples, experts=experts)
    rows = [len(ids) for ids in samples]
    recorded = [(i, layer) for i, layer in np.argwhere(packed[..., 4] > 0).tolist()]
    if not recorded:
        return  # where nothing was counted, k is the word of this number alone
    sample, layer = data.draw(st.sampled_from(recorded))
    column = data.draw(st.integers(0, packed.shape[2] - 1))
    add = data.draw(st.one_of(st.sampled_from([-1, 1, -(1 << 31), 1 << 30]), st.integers(-300, 300)))
    changed = packed.astype(np.int64)
    changed[sample, layer, column] += add or 1
    with pytest.raises(InvalidInput):
        unpack_counts(changed.astype(np.int32), experts=experts, rows=rows)


EXAMPLE = [np.array([[[0, 2], [1, 2]], [[2, 1], [-1, -1]]], dtype=np.int8), np.array([[[3, 2], [0, 0]]], dtype=np.int8)]


def example() -> npt.NDArray[np.int32]:
    return pack_counts(EXAMPLE, experts=4)


def test_what_travels_is_as_written_down() -> None:
    assert example().tolist() == [
        [[1, 4, 2, 2, 2, 1, 1, 2, 0], [1, 4, 2, 2, 1, 0, 1, 1, 0]],
        [[1, 4, 1, 2, 1, 0, 0, 1, 1], [1, 4, 1, 2, 0, 0, 0, 0, 0]],
    ]


@pytest.mark.parametrize("sample", [0, 1])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("column", range(9))
@pytest.mark.parametrize("add", [-1, 1])
def test_every_number_of_an_example_is_held_to_the_others(sample: int, layer: int, column: int, add: int) -> None:
    packed = example()
    packed[sample, layer, column] += add
    with pytest.raises(InvalidInput, match="^counts"):
        unpack_counts(packed, experts=4, rows=[2, 1])


def test_what_is_wrong_is_said_by_sample_and_layer() -> None:
    packed = example()
    packed[1, 1, 2] = 7
    with pytest.raises(InvalidInput, match="counts of sample 1, layer 1: found rows 7, wanted 1"):
        unpack_counts(packed, experts=4, rows=[2, 1])
    with pytest.raises(InvalidInput, match="counts of sample 0, layer 0: found rows 2, wanted 3"):
        unpack_counts(example(), experts=4, rows=[3, 1])


def test_numbers_that_cancel_each_other_are_found_below_0() -> None:
    packed = example()
    packed[0, 0, 5:] = -1, 1, 2, 2
    with pytest.raises(InvalidInput, match="counts of sample 0, layer 0: found a count -1, wanted 0"):
        unpack_counts(packed, experts=4, rows=[2, 1])


def test_more_rows_counted_than_there_are_is_found() -> None:
    packed = example()
    packed[1, 0, 4:] = 2, 0, 0, 2, 2
    with pytest.raises(InvalidInput, match="counts of sample 1, layer 0: found rows counted 2, wanted 1"):
        unpack_counts(packed, experts=4, rows=[2, 1])


@pytest.mark.parametrize(
    "change",
    [
        lambda packed: packed.astype(np.int64),
        lambda packed: packed.astype(np.uint32),
        lambda packed: packed.astype(np.float32),
        lambda packed: packed[..., :-1],
        lambda packed: packed[:1],
        lambda packed: packed[0],
        lambda packed: packed.reshape(1, 4, 9),
    ],
    ids=["int64", "uint32", "fractions", "an expert less", "a sample less", "one sample", "samples as layers"],
)
def test_arrays_of_another_kind_are_refused(change: Any) -> None:
    with pytest.raises(InvalidInput, match=r"wanted int32 \[2, layers, 9\]"):
        unpack_counts(change(example()), experts=4, rows=[2, 1])


def test_samples_without_rows_count_nothing_whatever_is_there_for_them() -> None:
    packed = example()
    packed[1] = no_counts(EXAMPLE[1], experts=4)
    found, k = unpack_counts(packed, experts=4, rows=[2, None])
    assert k == 2 and not found[1].counts.any() and found[1].recorded.tolist() == [0, 0]
    assert found[0].counts.tolist() == [[1, 1, 2, 0], [0, 1, 1, 0]]
    for there in (example()[0], np.int32(-7), np.int32(1 << 30)):
        packed[1] = there
        found, k = unpack_counts(packed, experts=4, rows=[2, None])
        assert k == 2 and found[0].counts.tolist() == [[1, 1, 2, 0], [0, 1, 1, 0]]
        assert not found[1].counts.any() and found[1].recorded.tolist() == [0, 0]


def test_without_samples_there_is_nothing_to_count() -> None:
    assert unpack_counts(np.empty((0, 3, 9), dtype=np.int32), experts=4, rows=[]) == ([], 0)


def test_the_arrays_of_a_plan_are_their_own() -> None:
    """What arrived may be read-only, and may be gone."""
    packed = np.array(example())
    packed.flags.writeable = False
    for counted in unpack_counts(packed, experts=4, rows=[2, 1])[0]:
        assert not np.shares_memory(counted.counts, packed) and not np.shares_memory(counted.recorded, packed)


@pytest.mark.parametrize("rows", [[2, 1], [2, 0]])
def test_what_stands_for_no_counts_is_taken_for_none(rows: list[int | None]) -> None:
    packed = example()
    packed[1] = no_counts(EXAMPLE[1], experts=4)
    with pytest.raises(InvalidInput, match="found form 0, wanted 1"):
        unpack_counts(packed, experts=4, rows=rows)


def test_empty_routes_count_nothing() -> None:
    packed = pack_counts([np.empty((0, 3, 2), dtype=np.int16)], experts=5)
    assert packed.tolist() == [[[1, 5, 0, 2, 0, 0, 0, 0, 0, 0]] * 3]
    found, k = unpack_counts(packed, experts=5, rows=[0])
    assert k == 2 and found[0].counts.tolist() == [[0] * 5] * 3 and found[0].recorded.tolist() == [0] * 3


def test_with_one_expert_a_row_zero_is_expert_0() -> None:
    packed = pack_counts([np.array([[[0]], [[1]], [[0]], [[-1]]], dtype=np.int8)], experts=2)
    assert packed.tolist() == [[[1, 2, 4, 1, 3, 2, 1]]]
    found, k = unpack_counts(packed, experts=2, rows=[4])
    assert k == 1 and found[0].counts.tolist() == [[2, 1]]


def test_rows_that_were_not_captured_count_nothing() -> None:
    ids = np.zeros((4, 2, 2), dtype=np.int32)
    ids[:, 1] = -1
    found, _ = unpack_counts(pack_counts([ids], experts=3), experts=3, rows=[4])
    assert not found[0].counts.any() and found[0].recorded.tolist() == [0, 0]


def test_counts_above_65535_stay_whole() -> None:
    ids = np.empty((70_000, 1, 2), dtype=np.int8)
    ids[:] = 1, 2
    ids[-1, 0] = 0, 1
    packed = pack_counts([ids, ids[:3]], experts=3)
    found, _ = unpack_counts(packed, experts=3, rows=[70_000, 3])
    assert found[0].counts.tolist() == [[1, 70_000, 69_999]] and found[0].recorded.tolist() == [70_000]
    assert found[1].counts.tolist() == [[0, 3, 3]]


def test_experts_that_do_not_exist_are_refused_before_they_travel() -> None:
    with pytest.raises(InvalidInput, match="found id 4, wanted 0 to 3"):
        pack_counts([np.array([[[0, 4]]], dtype=np.int8)], experts=4)
