"""When a noisy series first reaches a level."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scavenger.models.first_passage import evaluations_ahead, first_passage, resampled
from scavenger.models.learning_curve import Forecast, Hint, forecast


def test_at_a_level_every_evaluation_is_a_coin() -> None:
    (found,) = first_passage(np.zeros((1, 5)), np.ones(1), np.ones(5))

    assert found.tolist() == pytest.approx([0.5, 0.25, 0.125, 0.0625, 0.03125])


def test_several_evaluations_in_one_place_count_as_many() -> None:
    (single,) = first_passage(np.full((1, 10), 1.0), np.ones(1), np.ones(10))
    (grouped,) = first_passage(np.full((1, 2), 1.0), np.ones(1), np.array([4.0, 6.0]))

    assert grouped.tolist() == pytest.approx([single[:4].sum(), single[4:].sum()])


@pytest.mark.parametrize("count", [1, 3, 64, 65, 1000, 10**6])
def test_evaluations_ahead_are_all_counted(count: int) -> None:
    at, counts = evaluations_ahead(10.0, 2.0, 10.0 + 2.0 * count)

    assert counts.sum() == count
    assert np.all(np.diff(at) > 0.0)
    assert (at[0], at[-1] <= 10.0 + 2.0 * count) == (12.0, True)


def test_draws_at_even_quantiles_have_the_shares_of_the_distribution() -> None:
    drawn = resampled(np.array([1.0, 0.0, 2.0, 1.0]), 400)

    assert np.bincount(drawn, minlength=4).tolist() == [100, 0, 200, 100]


COURSE = [0.95, 0.96, 0.965, 0.97, 0.97, 0.9875, 0.9875]
"""Of 360 samples, the last two are one short of 99 %."""


def told(noise: float, limit: float = 60.0) -> Forecast:
    return forecast(np.arange(1.0, 8.0), COURSE, 0.99, mode="max", limit=limit, noise=noise)


def test_one_sample_below_its_target_an_accuracy_is_about_to_reach_it() -> None:
    known, unknown = told(math.sqrt(0.99 * 0.01 / 360)), told(0.0)

    assert known.total < 10.0 < unknown.total
    assert known.never < 0.05
    assert known.never < unknown.never
    assert known.low == pytest.approx(8.0)
    assert known.high > known.total


def test_with_many_samples_noise_changes_little() -> None:
    at = np.arange(1.0, 41.0)
    values = 1.0 - 0.5 * (at + 1.0) ** -0.7
    target = float(1.0 - 0.5 * 101.0**-0.7)
    exact, noisy = (
        forecast(at, values, target, mode="max", hint=Hint(100.0, 0.3), noise=noise) for noise in (0.0, 1e-5)
    )

    assert noisy.total == pytest.approx(exact.total, rel=0.15)
    assert noisy.total == pytest.approx(100.0, rel=0.2)


def test_first_passages_of_noisy_courses_lie_in_their_intervals() -> None:
    """Eighty runs, seeded, of accuracies on 300 samples, looked at when half of their epochs are behind."""
    random, samples, inside, errors = np.random.default_rng(1), 300, [], []
    for _ in range(80):
        target, needed = random.uniform(0.8, 0.95), random.uniform(10.0, 40.0)
        at = np.arange(1.0, 400.0)
        means = 1.0 - (1.0 - target) * ((needed + 2.0) / (at + 2.0)) ** random.uniform(0.4, 1.0)
        values = random.binomial(samples, np.clip(means, 0.0, 1.0)) / samples
        reached = int(np.argmax(values >= target))
        seen = max(3, reached // 2)
        if seen >= reached:
            continue
        noise = math.sqrt(target * (1.0 - target) / samples)
        found = forecast(at[:seen], values[:seen], target, mode="max", limit=400.0, noise=noise)
        inside.append(found.low - 0.5 <= at[reached] <= found.high + 0.5)
        errors.append(abs(math.log(found.total / at[reached])))

    assert len(inside) > 60
    assert np.mean(inside) > 0.9
    assert np.median(errors) < 0.35
