# SPDX-License-Identifier: Apache-2.0
"""The statistics against cases worked out by hand."""

from __future__ import annotations

import math

import pytest

from routepack.evaluate.statistics import bonferroni, compare, mann_whitney, spread, wilcoxon

pytest.importorskip("scipy")


def test_the_standard_deviation_is_that_of_a_sample():
    values = spread([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0])
    assert values.mean == 5.0
    assert values.sd == pytest.approx(math.sqrt(32 / 7), rel=1e-15)
    # Ranks 0 to 7; a tenth of the way is rank 0.7, between 2 and 4.
    assert values.p10 == pytest.approx(2 + 0.7 * 2, rel=1e-15)


def test_one_step_has_no_spread():
    assert spread([3.0]).as_dict() == {"mean": 3.0, "sd": 0.0, "p10": 3.0}


def test_mann_whitney_of_separated_sets_is_the_count_of_arrangements():
    # Three below three: U = 0, and of C(6, 3) = 20 arrangements this and its mirror are as extreme: p = 2/20.
    u, p = mann_whitney([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert u == 0.0 and p == pytest.approx(0.1, rel=1e-12)


def test_mann_whitney_counts_the_pairs_that_are_greater():
    # x greater than y in (2,1), (5,1), (5,3), (5,4): U of x is 4 of 6. Of the C(5, 2) = 10 arrangements
    # U is 0, 1, 2, 2, 3, 3, 4, 4, 5, 6; four have U of at least 4: p = 2 · 4/10.
    u, p = mann_whitney([2.0, 5.0], [1.0, 3.0, 4.0])
    assert u == 4.0 and p == pytest.approx(0.8, rel=1e-12)


def test_wilcoxon_of_one_direction_is_the_count_of_signs():
    # Five differences, all positive: W = 0; of 2^5 = 32 signs two are as extreme: p = 2/32.
    w, p = wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0], [1.1, 2.2, 3.3, 4.4, 5.5])
    assert w == 0.0 and p == pytest.approx(2 / 32, rel=1e-12)


def test_wilcoxon_ranks_the_sizes_of_the_differences():
    # Differences 3, −1, 2, 4: the negative one has rank 1, so W = 1. Sums of ranks of at most 1 come from the empty
    # set and {1}: 2 of 16 on one side, p = 2 · 2/16.
    w, p = wilcoxon([10.0, 10.0, 10.0, 10.0], [13.0, 9.0, 12.0, 14.0])
    assert w == 1.0 and p == pytest.approx(0.25, rel=1e-12)


def test_steps_without_a_difference_do_not_count():
    assert wilcoxon([1.0, 2.0], [1.0, 2.0]) == (0.0, 1.0)
    assert wilcoxon([5.0, 1.0, 2.0, 3.0], [5.0, 2.0, 4.0, 6.0]) == wilcoxon([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])


def test_equal_sets_do_not_differ():
    assert mann_whitney([4.0, 4.0, 4.0], [4.0, 4.0, 4.0])[1] == 1.0


def test_nothing_is_tested_on_one_step():
    assert mann_whitney([1.0], [2.0]) == (None, None) and wilcoxon([1.0], [2.0]) == (None, None)
    assert bonferroni(None, 3) is None


def test_every_pair_is_compared_and_p_is_multiplied_by_their_number():
    values = {"a": [10.0, 20.0, 30.0, 40.0, 50.0], "b": [11.0, 22.0, 33.0, 44.0, 55.0], "c": [10.5, 19.0, 30.0, 41.0, 52.0]}
    pairs = compare(values)
    assert [(pair.before, pair.after) for pair in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    ab, ac = pairs[:2]
    assert ab.gain == pytest.approx(0.1) and ab.paired_gain == pytest.approx(0.1)
    assert ab.wins == 5 and ab.losses == 0
    assert ab.wilcoxon_p == pytest.approx(2 / 32) and ab.wilcoxon_adjusted == pytest.approx(6 / 32)
    assert ab.mann_whitney_adjusted == min(1.0, 3 * ab.mann_whitney_p)
    # The same steps beside each other: every step is better, which two independent sets hardly show.
    assert ab.wilcoxon_p < 0.1 < ab.mann_whitney_p
    # Ratios 1.05, 0.95, 1, 1.025, 1.04: the median is 1.025. Differences 0.5, −1, 0, 1, 2.
    assert ac.paired_gain == pytest.approx(0.025) and (ac.wins, ac.losses) == (3, 1)
    assert ac.gain == pytest.approx(152.5 / 150 - 1)
