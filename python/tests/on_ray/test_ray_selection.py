# SPDX-License-Identifier: Apache-2.0
"""Which part each sample comes from, held against a search without arrays. Needs Ray, and no cluster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("ray", reason="Ray is not installed (requirements/ray.txt)")

from routepack.ray._samples import Index  # noqa: E402
from routepack.ray._selection import select  # noqa: E402

ENTRY = st.tuples(st.integers(0, 9), st.sampled_from([-1, 3, 4]), st.integers(0, 4))  # id, length, recorded rows


@given(
    parts=st.lists(st.lists(ENTRY, max_size=8, unique_by=lambda entry: entry[0]), max_size=4),
    wanted=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([3, 4])), max_size=8, unique_by=lambda one: one[0]),
)
def test_each_sample_comes_from_the_part_that_has_most_of_it_at_its_length(parts, wanted):
    answers = []
    for number, entries in enumerate(parts):
        columns = [np.array([entry[k] for entry in entries], dtype=np.int64) for k in range(3)]
        answers.append((Index(columns[0], columns[1], columns[2], (2, 4) if entries else (0, 0)), number))
    ids, lengths = np.array([w[0] for w in wanted], dtype=np.int64), np.array([w[1] for w in wanted], dtype=np.int32)
    found = select(answers, ids, lengths)
    chosen = {
        int(place): (piece.part, int(row))
        for piece in found.pieces
        for row, place in zip(piece.rows, piece.places, strict=True)
    }
    duplicates = unrecorded = 0
    for place, (id, length) in enumerate(wanted):
        fitting = [
            (-recorded, number, row)
            for number, entries in enumerate(parts)
            for row, (name, known, recorded) in enumerate(entries)
            if name == id and recorded <= length and known in (-1, length)
        ]
        duplicates += max(0, len(fitting) - 1)
        if fitting:
            best = min(fitting)
            assert chosen.pop(place) == best[1:]
            unrecorded += best[0] == 0
        else:
            assert place in found.missing
    assert not chosen and found.duplicates == duplicates and found.unrecorded == unrecorded
    assert len(found.missing) + sum(len(piece.rows) for piece in found.pieces) == len(wanted)


def test_parts_of_another_shape_are_not_mixed():
    other = Index(np.array([2]), np.array([4]), np.array([4]), (3, 4))
    most = Index(np.array([1, 3]), np.array([4, 4]), np.array([4, 4]), (2, 4))
    found = select([(other, "other"), (most, "most")], np.array([1, 2, 3]), np.array([4, 4, 4]))
    assert [piece.part for piece in found.pieces] == ["most"] and found.missing.tolist() == [1]
    assert found.shape == (2, 4)
