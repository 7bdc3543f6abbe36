"""The law of drafter sizes: planted coefficients are found, and far sizes are refused."""

from __future__ import annotations

import random
from math import log

import pytest

from mmspec.evaluate.sizing import SizedDrafter, drafters_of_bench, fit_sizes, round_times, rows_alike


def planted(base: float, by_data: float, by_size: float, noise: float = 0.0) -> list[SizedDrafter]:
    rng = random.Random(0)
    return [
        SizedDrafter(size, data, base + by_data * log(data) + by_size * log(size) + rng.gauss(0, noise))
        for size in (1e6, 2e6, 5e6, 1e7, 3e7)
        for data in (1e8, 3e8, 1e9, 3e9, 1e10)
    ]


def test_planted_coefficients_are_recovered() -> None:
    exact = fit_sizes(planted(-5.0, 0.2, 0.3))
    assert (exact.base, exact.by_data, exact.by_size) == pytest.approx((-5.0, 0.2, 0.3))
    noisy = fit_sizes(planted(-5.0, 0.2, 0.3, noise=0.05))
    for name, truth in (("base", -5.0), ("by_data", 0.2), ("by_size", 0.3)):
        low, high = noisy.intervals[name]
        assert low < truth < high and high - low > 0
    assert noisy == fit_sizes(planted(-5.0, 0.2, 0.3, noise=0.05))


def test_a_factor_that_does_not_vary_has_no_slope() -> None:
    fit = fit_sizes([SizedDrafter(size, 7.0, 1 + 0.1 * log(size)) for size in (1e6, 2e6, 4e6, 8e6)])
    assert fit.by_data == 0 and fit.by_size == pytest.approx(0.1) and fit.base == pytest.approx(1.0)


def test_the_best_size_weighs_accept_length_against_drafting() -> None:
    fit, sizes = fit_sizes(planted(-5.0, 0.2, 0.4)), (1e6, 4e6, 1.6e7, 6.4e7)
    free, rate = fit.best_size(sizes, 1e9, target=1.0, draft=lambda size: 0.0, length=5)
    assert free == 6.4e7 and rate == pytest.approx(fit.accept_length(6.4e7, 1e9))
    assert fit.best_size(sizes, 1e9, target=1.0, draft=lambda size: size / 1e6, length=5)[0] == 1e6
    between, _ = fit.best_size(sizes, 1e9, target=1.0, draft=lambda size: size * 2e-9, length=5)
    assert between == max(sizes, key=lambda size: fit.accept_length(size, 1e9) / (1 + size * 1e-8))


@pytest.mark.parametrize(("size", "data"), ((1.3e8, 1e9), (2.4e5, 1e9), (1e7, 5e10)))
def test_sizes_far_from_the_measured_ones_are_refused(size: float, data: float) -> None:
    with pytest.raises(ValueError, match="expected .* at most 4 times beyond the measured drafters, got"):
        fit_sizes(planted(-5.0, 0.2, 0.3)).accept_length(size, data)


def test_too_few_or_equal_drafters_are_refused() -> None:
    one = SizedDrafter(1e6, 1e9, 2.0)
    with pytest.raises(ValueError, match="expected at least 4 measured drafters, got 3"):
        fit_sizes([one] * 3)
    with pytest.raises(ValueError, match="expected several sizes or amounts of data"):
        fit_sizes([one] * 4)
    with pytest.raises(ValueError, match="above 0"):
        SizedDrafter(0, 1e9, 2.0)


def test_drafters_are_read_from_the_rows_of_a_bench() -> None:
    rows = [
        {"method": "plain", "accept_length": 1.0},
        {"method": "EAGLE", "accept_length": 3.5, "parameters": 900_000, "training_seconds": 1200.0},
        {"method": "MSD", "accept_length": None, "parameters": 900_000, "training_seconds": 1200.0},
    ]
    assert drafters_of_bench({"rows": rows}) == [SizedDrafter(900_000, 1200.0, 3.5)]
    assert drafters_of_bench({"rows": rows}, {"EAGLE": 5e6}) == [SizedDrafter(900_000, 5e6, 3.5)]


def bench_rows(draft: float = 2e-9) -> list[dict]:
    """Drafters whose rounds take 10 ms beside their drafts, of 2 ms and `draft` a parameter."""
    rows = []
    for one in planted(-5.0, 0.2, 0.3):
        seconds = 0.002 + draft * one.parameters
        rows.append(
            {
                "method": f"eagle-{one.parameters:.0f}",
                "parameters": one.parameters,
                "training_seconds": one.data,
                "accept_length": one.accept_length,
                "seconds": 30 * (0.01 + seconds),
                "target_passes": 30,
                "draft_share": seconds / (0.01 + seconds),
                "temperature": 0.0,
                "batch": 1,
            }
        )
    return rows


def test_the_seconds_of_rounds_are_a_line_through_the_drafters() -> None:
    times = round_times([*bench_rows(), {"method": "lookup", "parameters": None, "seconds": 9.0}])
    assert (times.target, times.base) == pytest.approx((0.01, 0.002), rel=1e-5)
    assert times.per_parameter == pytest.approx(2e-9) and times.draft(1e6) == pytest.approx(0.004)
    assert round_times(bench_rows(-1e-12)).per_parameter == 0.0
    with pytest.raises(ValueError, match="at least 2 timed drafters, got 1"):
        round_times(bench_rows()[:1])


def test_only_rows_of_the_same_setting_are_fitted() -> None:
    rows = bench_rows()
    benches = [{"rows": rows}, {"rows": [dict(rows[0], temperature=1.0), dict(rows[0], batch=4)]}]
    assert rows_alike(benches, temperature=0.0, batch=1) == rows
