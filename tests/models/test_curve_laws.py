"""What holds for the forecast of any course of a metric."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scavenger.domain.curve import FloatArray
from scavenger.models.curve_shapes import RateSchedule
from scavenger.models.learning_curve import Forecast, Hint, forecast

AHEAD = np.arange(1.0, 201.0)

values = st.floats(1e-6, 1e6)
courses = st.lists(values, min_size=2, max_size=24)


def is_sound(found: Forecast) -> bool:
    figures = (found.total, found.low, found.high, found.never, found.log_sd)
    reached = np.array(found.reached)
    return (
        all(map(math.isfinite, figures))
        and 0.0 <= found.never <= 1.0
        and found.seen <= found.low <= found.total <= found.high
        and bool(np.all(np.diff(reached) >= 0.0))
        and reached[0] >= 0.0
        and reached[-1] <= 1.0 + 1e-9
    )


@examples(10, derandomize=True)
@given(courses, st.sampled_from((0.0, 0.01)), st.booleans(), st.booleans())
def test_any_course_has_a_sound_forecast(
    course: list[float], noise: float, scheduled: bool, hinted: bool
) -> None:
    """Flat, noisy, rising, short and with spikes; of a metric that falls, and of an accuracy."""
    at = np.arange(1.0, len(course) + 1.0)
    schedule = RateSchedule.of(AHEAD, np.where(len(course) >= AHEAD, 0.1, 0.01)) if scheduled else None
    hint = Hint(30.0, 0.3) if hinted else None
    falls = forecast(at, course, 0.9 * min(course), mode="min", limit=100.0, schedule=schedule, hint=hint)
    accuracies = 0.9 * np.array(course) / max(course)
    grows = forecast(at, accuracies, 0.95, mode="max", limit=100.0, noise=noise, schedule=schedule, hint=hint)

    assert is_sound(falls)
    assert is_sound(grows)


@pytest.mark.parametrize("power", [0.3, 0.7, 1.2])
@pytest.mark.parametrize("seen", [5, 20, 40])
def test_a_target_that_is_further_away_is_reached_later(power: float, seen: int) -> None:
    course = np.arange(1.0, seen + 1.0) ** -power
    near, further, far = (
        forecast(np.arange(1.0, seen + 1.0), course, float(course[-1] * share), mode="min").total
        for share in (0.95, 0.8, 0.5)
    )

    assert near < further < far


def annealed(random: np.random.Generator) -> tuple[FloatArray, float]:
    """A loss under a rate that falls along a cosine, with noise, and its target, near the end."""
    end = random.uniform(40.0, 150.0)
    at = np.arange(1.0, math.ceil(end) + 1.0)
    rate = 0.5 * (1.0 + np.cos(np.pi * np.minimum(at / end, 1.0)))
    loss = random.uniform(0.2, 1.0) + at ** -random.uniform(0.3, 0.8) + random.uniform(0.05, 0.4) * rate
    loss = loss * np.exp(0.003 * random.standard_normal(len(at)))
    return loss, float(np.minimum.accumulate(loss)[int(random.uniform(0.75, 0.95) * len(at))])


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_nine_in_ten_made_up_runs_lie_in_their_intervals(share: float) -> None:
    random, inside = np.random.default_rng(7), []
    for _ in range(60):
        loss, target = annealed(random)
        truth = int(np.argmax(loss <= target)) + 1
        seen = max(3, int(share * truth))
        if seen < truth and loss[:seen].min() > target:
            found = forecast(np.arange(1.0, seen + 1.0), loss[:seen], target, mode="min")
            inside.append(found.low <= truth <= found.high)

    assert len(inside) > 50
    assert np.mean(inside) >= 0.85
