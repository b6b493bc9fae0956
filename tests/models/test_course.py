"""The course of a finished run, as a similar job's forecast uses it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scavenger.models.course import POINTS_MAX, Course


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


def test_noise_moves_the_evaluation_that_reaches_the_target_the_more_the_flatter_the_course() -> None:
    random, at = np.random.default_rng(0), np.arange(1.0, 101.0)

    def moved(slope: float, noise: float) -> float:
        values = slope * at + noise * random.normal(size=len(at))
        return Course("val_accuracy", tuple(at), tuple(values)).passage_sd()

    assert moved(0.01, 0.0) == pytest.approx(0.0, abs=1e-9)
    assert moved(0.01, 0.02) == pytest.approx(2.0, rel=0.4)
    assert moved(0.02, 0.02) == pytest.approx(1.0, rel=0.4)
    assert Course("loss", (1.0, 2.0, 3.0), (0.5, 0.5, 0.5)).passage_sd() == 0.0
    assert Course("loss", tuple(at), (0.5,) * 100).passage_sd() == 0.0
