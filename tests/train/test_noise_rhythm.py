"""When a worker alone measures the gradient noise, and what is known of the noise then."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from scavenger.domain.measurement import StepRecord
from scavenger.models.noise import (
    AVERAGE_LOG_SD,
    GROWTH,
    GROWTH_FROM,
    GROWTH_LOG_SD,
    NoiseReading,
    NoiseTracker,
    critical_batch_from_noise,
)
from scavenger.train.worker.noise_rhythm import AT_EACH, AT_FIRST, NOISE_SHARE, NoiseRhythm

times = st.floats(1e-4, 10.0)


@given(times, st.floats(0.3, 4.0), st.integers(1, 400))
def test_beyond_the_first_steps_the_noise_takes_its_share_and_no_more(
    compute_s: float, cost: float, steps: int
) -> None:
    rhythm, measured = NoiseRhythm(), 0
    for _ in range(AT_FIRST + steps):
        due = rhythm.is_due(32)
        measured += due
        rhythm.took(compute_s, cost * compute_s if due else 0.0)

    assert measured >= AT_FIRST
    assert (measured - AT_FIRST) * cost <= NOISE_SHARE * steps + 1e-6
    assert (measured - AT_FIRST + 1) * cost >= NOISE_SHARE * steps - cost - 1e-6, "and its share is used"


def test_another_batch_size_is_measured_at_once_and_the_same_one_is_not() -> None:
    rhythm = NoiseRhythm()
    for _ in range(AT_FIRST):
        assert rhythm.is_due(32)
        rhythm.took(1.0, 1.0)
    assert not rhythm.is_due(32)
    for _ in range(AT_EACH):
        assert rhythm.is_due(64)
        rhythm.took(1.0, 1.0)
    assert not rhythm.is_due(64)


def test_where_nothing_could_be_measured_it_is_tried_again() -> None:
    rhythm = NoiseRhythm()
    for _ in range(3 * AT_FIRST):
        assert rhythm.is_due(32)
        rhythm.took(1.0, 0.0)


# ---- what follows for the critical batch size --------------------------------------------------------------

STEPS, BATCH, DIMENSIONS = 1500, 64, 100


def noisy_step(random: np.random.Generator, step: int, scale: float) -> StepRecord:
    """A step at noise scale φ: half the sum and half the difference of the halves' gradients are independent."""
    variance = scale / BATCH / DIMENSIONS
    along = random.normal() * math.sqrt(variance)
    square = (1 + along) ** 2 + variance * random.chisquare(DIMENSIONS - 1)
    apart = variance * random.chisquare(DIMENSIONS)
    return StepRecord(
        step, 1, 0, 1, BATCH, BATCH, 1.0, 1.0, 0.0, 1.0, square + apart, square, 2, False, float(step)
    )


def run_inside(random: np.random.Generator, cost: float, until: float) -> bool:
    """Whether B* of a run, whose φ grows by a law of the prior, is in the 90 % interval at a share of the run."""
    growth, last = random.normal(GROWTH, GROWTH_LOG_SD), 64.0 * math.exp(random.normal())
    course = np.maximum(np.arange(1, STEPS + 1) / STEPS, GROWTH_FROM)
    scale = last * course**growth
    rhythm, tracker, readings = NoiseRhythm(), NoiseTracker(), []
    for step in range(1, round(until * STEPS) + 1):
        due = rhythm.is_due(BATCH)
        rhythm.took(1.0, cost if due else 0.0)
        if due:
            tracker = tracker.update(noisy_step(random, step, float(scale[step - 1])))
        if step % (STEPS // 30) == 0 and tracker.noise_scale is not None:
            assert tracker.measured_at is not None
            readings.append(NoiseReading(tracker.measured_at / STEPS, tracker.noise_scale, 1.0, float(BATCH)))
    work = 1.0 / (scale + BATCH)
    truth = -math.log(work.sum() / (scale * work).sum()) + random.normal() * AVERAGE_LOG_SD
    found = critical_batch_from_noise(readings)
    if found is None:
        return True  # it is said that nothing was measured
    return abs(math.log(found.critical_batch_size) - truth) <= ndtri(0.95) * found.log_sd


@pytest.mark.parametrize("cost", [0.55, 1.35])
def test_what_is_measured_in_few_steps_keeps_the_90_percent_interval(cost: float) -> None:
    """The two costs are those of `charlm` and of the `diverging` network (`python -m benchmarks step hard_cases`)."""
    random = np.random.default_rng(5)
    inside = [run_inside(random, cost, until) for until in (0.1, 0.3, 0.8) for _ in range(100)]
    # two standard errors of a share of 0.9 of 300 are 0.035
    assert np.mean(inside) >= 0.9 - 0.035
