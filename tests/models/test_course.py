"""The course of a finished run, as a similar job's forecast uses it."""

from __future__ import annotations

import math

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
