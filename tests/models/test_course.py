"""The course of a finished run, as a similar job's forecast uses it."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest

from scavenger.models.course import POINTS_MAX, Course, evaluation_noise
from scavenger.models.learning_curve import SAME_SAMPLES, Mode


def test_a_long_course_is_thinned_out_and_keeps_its_ends() -> None:
    epochs = range(1, 5001)
    course = Course.of("val_loss", epochs, [1.0 / at for at in epochs])

    assert course is not None
    assert 0.5 * POINTS_MAX < len(course.epochs) <= POINTS_MAX
    assert course.epochs[:3] == (1.0, 2.0, 3.0)
    assert (course.epochs[-1], course.values[-1]) == (5000.0, 1.0 / 5000)


def test_a_course_has_two_finite_values() -> None:
    assert Course.of("val_loss", [1, 2, 3], [1.0, math.nan, math.inf]) is None
    assert Course.of("val_loss", [1, 2, 3], [1.0, math.nan, 0.5]) == Course(
        "val_loss", (1.0, 3.0), (1.0, 0.5)
    )


@pytest.mark.parametrize("epochs", [(1.0,), (1.0, 2.0, 3.0), (2.0, 2.0), (2.0, 1.0)])
def test_a_damaged_course_is_refused(epochs: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="course"):
        Course("val_loss", epochs, (1.0, 0.5))


def falling(half: float, evaluations: int, noise: float = 0.0, seed: int = 0) -> Course:
    """An accuracy whose errors halve with each `half` times as many epochs, and are 3 % at the last one."""
    at = np.arange(1.0, evaluations + 1.0)
    errors = 0.03 * (at / evaluations) ** -(math.log(2.0) / math.log(half))
    return Course(
        "val_accuracy",
        tuple(at),
        tuple(1.0 - errors - noise * np.random.default_rng(seed).normal(size=len(at))),
    )


def test_noise_moves_the_evaluation_that_reaches_the_target_the_more_the_flatter_the_course() -> None:
    def moved(half: float, noise: float, evaluations: int = 12) -> float:
        return falling(half, evaluations).passage_log_sd(0.97, "max", noise=noise, limit=100.0)

    assert moved(1.3, 0.01) < 0.5 * moved(3.0, 0.01)
    assert moved(3.0, 0.003) < 0.7 * moved(3.0, 0.01)
    assert moved(3.0, 0.01, 6) > 0.2  # a course of six tells it as well


def test_the_spread_by_noise_is_that_of_runs_that_share_a_course() -> None:
    random, course = np.random.default_rng(1), falling(2.0, 60)
    means, noise = np.array(course.values), 0.006
    reached = []
    for _ in range(400):
        good = np.flatnonzero(means + noise * random.normal(size=len(means)) >= 0.96)
        reached += [math.log(good[0] + 1.0)] if len(good) else []

    found = course.passage_log_sd(0.96, "max", noise=noise / SAME_SAMPLES, limit=60.0)
    assert found == pytest.approx(float(np.std(reached)), rel=0.5)


def test_unknown_noise_is_that_of_second_differences_of_a_long_course() -> None:
    assert falling(2.0, 60, noise=0.004).noise() == pytest.approx(0.004, rel=0.3)
    assert (
        Course("loss", (1.0, 2.0, 3.0), (0.5, 0.5, 0.5)).passage_log_sd(0.4, "min", noise=0.0, limit=9.0)
        == 0.0
    )


def test_the_noise_of_an_accuracy_is_binomial() -> None:
    def noise(metric: str, target: float | None, mode: Mode = "max") -> float:
        return evaluation_noise(metric, target, mode, validation=100, training=400)

    assert (noise("val_accuracy", 0.9), noise("accuracy", 0.9)) == pytest.approx((0.03, 0.015))
    assert noise("val_loss", 0.9) == noise("val_acc_loss", 0.9, "min") == noise("val_accuracy", None) == 0.0
    assert evaluation_noise("val_accuracy", 0.9, "max", validation=0, training=400) == 0.0


@pytest.mark.parametrize("values", [(0.5,) * 9, tuple(np.linspace(1.0, 0.0, 9)), (2.0, 1.0)])
def test_a_course_without_any_noise_tells_a_finite_spread(values: tuple[float, ...]) -> None:
    course = Course("loss", tuple(np.arange(1.0, len(values) + 1.0)), values)

    for target in (values[-1], values[-1] + 0.5, values[-1] - 0.5):
        for mode in ("min", "max"):
            found = course.passage_log_sd(target, cast(Mode, mode), noise=1e-20, limit=50.0)
            assert 0.0 <= found < 1.0
