# SPDX-License-Identifier: Apache-2.0
"""Windows of scenarios: cut samples, draws from files."""

from __future__ import annotations

import hypothesis
import numpy as np
from hypothesis import strategies as st

import routepack
from routepack.evaluate.windows import select, shrink, truncate


def window(seed: int = 1, samples: int = 20, **more: object) -> routepack.Window:
    """Every token chooses 2 of 6 experts in each of 3 layers."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 90, samples).astype(np.int32)
    counts = np.zeros((samples, 3, 6), dtype=np.uint16)
    for i, length in enumerate(lengths):
        for layer in range(3):
            for _ in range(length):
                counts[i, layer, rng.choice(6, 2, replace=False, p=[0.4, 0.3, 0.1, 0.1, 0.05, 0.05])] += 1
    return routepack.Window.from_arrays(lengths=lengths, counts=counts, top_k=2, **more)  # type: ignore[arg-type]


def test_a_cut_window_keeps_what_fits_and_shrinks_what_does_not():
    whole = window(recorded=window().lengths, groups=np.arange(20, dtype=np.int32) // 4)
    cut = truncate(whole, 40)
    lengths, before = np.asarray(cut.lengths), np.asarray(whole.lengths)
    assert np.array_equal(lengths, np.minimum(before, 40)) and (before > 40).any() and (before <= 40).any()
    short = before <= 40
    assert np.array_equal(np.asarray(cut.counts)[short], np.asarray(whole.counts)[short])
    assert np.array_equal(np.asarray(cut.counts).sum(axis=2), np.repeat(2 * lengths[:, None], 3, axis=1))
    shares = np.asarray(whole.counts)[~short] * (40 / before[~short])[:, None, None]
    assert np.abs(np.asarray(cut.counts)[~short] - shares).max() < 1
    assert np.array_equal(cut.groups, whole.groups) and cut.top_k == 2


def test_nothing_to_cut_leaves_the_window():
    assert truncate(window(), 90).fingerprint == window().fingerprint


@hypothesis.given(st.lists(st.integers(0, 1000), min_size=1, max_size=12), st.floats(0, 1))
def test_shrunk_counts_have_the_sum_and_stay_within_one_of_their_share(counts, share):
    whole = sum(counts)
    total = int(whole * share)
    (shrunk,) = shrink(np.array([counts]), np.array([total]))
    assert shrunk.sum() == total and (shrunk >= 0).all()
    for before, after in zip(counts, shrunk):
        assert whole == 0 or abs(int(after) * whole - before * total) < whole


def test_selected_samples_keep_all_that_belongs_to_them():
    whole = window(groups=np.arange(20, dtype=np.int32), ids=np.arange(20, dtype=np.int64) * 7, layers=[1, 3, 4])
    some = select(whole, np.array([5, 0, 19]))
    assert np.array_equal(some.groups, [5, 0, 19]) and np.array_equal(some.ids, [35, 0, 133])
    assert np.array_equal(some.counts, np.asarray(whole.counts)[[5, 0, 19]]) and list(some.layer_numbers) == [1, 3, 4]
