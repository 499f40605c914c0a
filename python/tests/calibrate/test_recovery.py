# SPDX-License-Identifier: Apache-2.0
"""What was put into the times comes out again, as far as the intervals say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("scipy")

from calibrate.synthetic import CAP, STAGES, TRUE, World, true_costs  # noqa: E402
from routepack.calibrate import Calibration, Record, calibrate  # noqa: E402
from routepack.calibrate.fit import fit  # noqa: E402
from routepack.calibrate.model import Design, all_terms  # noqa: E402


def calibrated(records: list[Record], **given: object) -> Calibration:
    return calibrate(records, **{"capacity": CAP, "stages": STAGES, "keep_wide": True, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tile", [1, 128])
def test_times_without_noise_give_their_coefficients_to_nine_digits(seed, tile):
    found = calibrate(World(seed, tile=tile).records(), capacity=CAP, stages=STAGES, tile=tile)
    for term in found.terms:
        assert math.isclose(term.value, TRUE[term.name], rel_tol=1e-9, abs_tol=1e-9 * 1e-9), term
        assert term.low <= TRUE[term.name] * (1 + 1e-9) + 1e-18 and term.high >= TRUE[term.name] * (1 - 1e-9)
        assert term.high - term.low <= 1e-9 * max(term.value, 1e-9)
    for cost in found.costs:
        assert math.isclose(cost.value, true_costs(TRUE)[cost.name], rel_tol=1e-9, abs_tol=1e-9), cost
    assert found.residuals[0].rms_relative < 1e-12 and found.notes == () and found.left_out == ()


def test_rows_alone_tell_who_is_slow_when_cells_are_slow_for_different_reasons():
    world = World(3, true={**TRUE, "stage.sliding.token": 0.0, "all_to_all.fixed": 0.0, "all_to_all.token": 0.0})
    records = world.records(rows=120, attention=0, experts=0, exchanges=0, steps=0)
    longest = sum(np.argmax(r.tokens) != np.argmax(r.squares) for r in records)
    assert longest > 20  # else the choice of the slowest cell would not be tried
    found = calibrated(records, without=["all_to_all", "fixed.step", "stage.sliding"])
    for term in found.terms:
        assert math.isclose(term.value, TRUE[term.name], rel_tol=1e-9), term


def test_intervals_hold_the_true_values_as_often_as_they_say():
    sets, level = 320, 0.95
    costs = true_costs(TRUE)
    held = dict.fromkeys([*TRUE, *costs], 0)
    for seed in range(sets):
        found = calibrated(World(seed, noise=0.03).records(), confidence=level)
        for estimate in (*found.terms, *found.costs):
            assert 0.0 <= estimate.low <= estimate.value <= estimate.high
            held[estimate.name] += estimate.low <= {**TRUE, **costs}[estimate.name] <= estimate.high
    for name, count in held.items():
        zero = {**TRUE, **costs}[name] == 0.0
        # The lower end of the interval of 0 is cut, so that only the upper one can miss.
        nominal = 0.5 + 0.5 * level if zero else level
        band = 3.5 * math.sqrt(nominal * (1.0 - nominal) / sets)
        assert nominal - band <= count / sets <= min(nominal + band, 1.0), (name, count / sets)
    wide = sum(held.values()) / (sets * len(held))
    assert 0.945 < wide < 0.975


def test_intervals_of_few_step_records_hold_as_often_too():
    # Four of them among a hundred others: the quantile for a hundred would hold in 84 % of the cases.
    sets, held = 400, 0
    for seed in range(sets):
        world = World(1000 + seed, noise=0.05)
        records = world.records(rows=0, attention=12, experts=40, exchanges=0, steps=4)
        found = calibrated(records, without=["all_to_all", "fixed.row"])
        step = next(term for term in found.terms if term.name == "fixed.step")
        held += step.low <= TRUE["fixed.step"] <= step.high
    assert 0.95 - 3.5 * math.sqrt(0.95 * 0.05 / sets) <= held / sets <= 0.99


def test_weights_by_the_fit_do_not_favour_times_that_came_out_short():
    total, sets = 0.0, 60
    for seed in range(sets):
        found = calibrated(
            World(seed, noise=0.2).records(rows=0, attention=6, exchanges=0), without=["all_to_all", "fixed.row"]
        )
        total += found.seconds("fixed.step")
    # Weights by the times themselves would be about 5 % too low; the mean of this noise is 2 % high.
    assert 0.99 < total / sets / TRUE["fixed.step"] < 1.05


@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.0, 0.05, 0.3]))
@settings(max_examples=25)
def test_nothing_is_below_zero_and_intervals_hold_their_value(seed, noise):
    found = calibrated(World(seed, noise=noise).records(rows=8, attention=6, experts=8, exchanges=6, steps=3))
    for estimate in (*found.terms, *found.costs):
        assert 0.0 <= estimate.low <= estimate.value <= estimate.high


@given(seed=st.integers(0, 10**6), power=st.integers(-20, 20), share=st.floats(0.5, 2.0))
@settings(max_examples=25)
def test_longer_seconds_make_longer_times_and_the_same_costs(seed, power, share):
    factor = share * 2.0**power
    records = World(seed, noise=0.02).records(rows=8, attention=8, experts=10, exchanges=8, steps=3)
    one = calibrated(records)
    other = calibrated([replace(record, seconds=factor * record.seconds) for record in records])
    floor = 1e-7 * max(cost.value for cost in one.costs)
    for a, b in zip(one.terms, other.terms):
        assert math.isclose(
            factor * a.value, b.value, rel_tol=1e-7, abs_tol=1e-7 * factor * TRUE["expert.token"] * 1e-3
        )
    for a, b in zip(one.costs, other.costs):
        assert math.isclose(a.value, b.value, rel_tol=1e-7, abs_tol=floor)
        assert math.isclose(a.high, b.high, rel_tol=1e-6, abs_tol=floor)


@given(seed=st.integers(0, 10**6), cap=st.integers(1, 10**6))
@settings(max_examples=15)
def test_alpha_does_not_depend_on_the_cap_and_beta_grows_with_it(seed, cap):
    records = World(seed, noise=0.02).records(rows=6, attention=8, experts=10, exchanges=6, steps=3)
    one, other = (calibrated(records, capacity=c) for c in (1, cap))
    for a, b in zip(one.costs, other.costs):
        factor = cap if a.name.endswith("beta") else 1
        assert math.isclose(factor * a.value, b.value, rel_tol=1e-12)
        assert math.isclose(factor * a.high, b.high, rel_tol=1e-12)


def test_the_order_of_records_does_not_matter():
    world = World(5, noise=0.03)
    records = world.records()
    one = calibrated(records)
    world.draw.shuffle(records)
    for a, b in zip(one.terms, calibrated(records).terms):
        assert math.isclose(a.value, b.value, rel_tol=1e-9, abs_tol=1e-18)
        assert math.isclose(a.high, b.high, rel_tol=1e-8)


@pytest.mark.parametrize("seed", range(8))
def test_the_fit_is_the_least_of_its_kind(seed):
    # Karush, Kuhn and Tucker: no slope where a coefficient is free to move, and only an upward one at the bound.
    design = Design(World(seed, noise=0.3).records(rows=10, attention=5, experts=9, exchanges=5, steps=3), STAGES,
                    all_terms(STAGES))  # fmt: skip
    found = fit(design)
    weights = 1.0 / found.fitted
    a, b = found.regressors * weights[:, np.newaxis], design.seconds * weights
    slope = a.T @ (a @ found.coefficients - b) / np.linalg.norm(a, axis=0)
    for value, rise in zip(found.coefficients, slope):
        assert rise > -1e-9 and (value == 0.0 or rise < 1e-9)


def test_another_solver_where_the_first_gives_up(monkeypatch):
    import scipy.optimize

    records = World(3, noise=0.3).records(rows=10, attention=5, experts=9, exchanges=5, steps=3)
    one = calibrated(records)
    monkeypatch.setattr(scipy.optimize, "nnls", lambda a, b: (_ for _ in ()).throw(RuntimeError("too many iterations")))
    for a, b in zip(one.terms, calibrated(records).terms):
        assert math.isclose(a.value, b.value, rel_tol=1e-9, abs_tol=1e-18)


def test_variances_and_degrees_of_freedom_are_those_of_their_definitions():
    from scipy.stats import t as student

    design = Design(World(9, noise=0.05).records(rows=6, attention=5, experts=6, exchanges=5, steps=3), STAGES,
                    all_terms(STAGES))  # fmt: skip
    found = fit(design)
    weights = 1.0 / found.fitted
    a, b = found.regressors * weights[:, np.newaxis], design.seconds * weights
    cross = np.linalg.inv(a.T @ a)
    hat = np.eye(len(b)) - a @ cross @ a.T
    free = cross @ a.T @ b
    errors = b - a @ free
    for k in range(len(free)):
        line = a @ cross[:, k]
        variance = sum(line[i] ** 2 * errors[i] ** 2 / hat[i, i] for i in range(len(b)))
        columns = hat * (line / np.sqrt(np.diag(hat)))[np.newaxis]
        values = np.linalg.eigvalsh(columns.T @ columns)
        freedom = values.sum() ** 2 / (values**2).sum()
        reach = student.ppf(0.95, freedom) * math.sqrt(variance)
        low, high = found.interval(k, 0.9)
        value = found.coefficients[k]
        assert math.isclose(high, max(free[k] + reach, value), rel_tol=1e-6)
        assert math.isclose(low, max(0.0, min(free[k] - reach, value)), rel_tol=1e-6, abs_tol=1e-6 * high)


def test_kept_back_rows_are_predicted():
    world = World(11, noise=0.01)
    found = calibrated(world.records())
    world.noise = 0.0
    fresh = [world.row() for _ in range(10)]
    for record, seconds in zip(fresh, found.predict(fresh)):
        assert math.isclose(record.seconds, seconds, rel_tol=0.03)


def test_residuals_name_the_record_that_fits_worst():
    records = World(2, noise=0.01).records()
    at = next(k for k, record in enumerate(records) if record.kind == "attention") + 6
    spoilt = list(records)
    spoilt[at] = replace(records[at], seconds=1.5 * records[at].seconds, where="kernels.csv: line 77")
    found = calibrated(spoilt)
    total, by_kind = found.residuals[0], {r.kind: r for r in found.residuals[1:]}
    assert total.worst_at == by_kind["attention"].worst_at == "kernels.csv: line 77" and 0.2 < total.worst < 0.6
    assert total.records == len(records) == sum(r.records for r in by_kind.values())
    assert by_kind["row"].r_squared is not None and by_kind["row"].r_squared > 0.99
    seconds = np.array([r.seconds for r in spoilt])
    predicted = np.array(found.predict(spoilt))
    assert math.isclose(total.rms, float(np.sqrt(((seconds - predicted) ** 2).mean())), rel_tol=1e-9)
    assert math.isclose(total.rms_relative, float(np.sqrt(((seconds / predicted - 1) ** 2).mean())), rel_tol=1e-9)


def test_equal_times_have_no_r_squared():
    found = calibrated(World(2).records())
    assert {r.kind: r.r_squared for r in found.residuals}["step"] is None
