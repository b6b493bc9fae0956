"""What a metric will come to: laws of the rule of doublings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.models.final_value import LASTING, forecast_value, further_fall

COURSES = st.lists(st.floats(-100.0, 100.0), min_size=2, max_size=40)
AHEAD = st.floats(1.0, 50.0)


@given(level=st.floats(-5.0, 5.0), seen=st.sampled_from([2, 4, 10, 32]), doublings=st.integers(0, 5))
def test_a_power_law_of_this_shape_is_forecast_to_its_end(level: float, seen: int, doublings: int) -> None:
    power = -np.log2(LASTING)
    epochs = np.arange(1.0, seen + 1.0)
    end = seen * 2.0**doublings

    found = forecast_value(epochs, level + epochs**-power, end, mode="min")

    assert found.value == pytest.approx(level + end**-power)


@given(values=COURSES, ahead=AHEAD)
def test_the_best_so_far_stays_and_the_interval_holds_the_forecast(values: list[float], ahead: float) -> None:
    epochs, end = np.arange(1.0, len(values) + 1.0), len(values) * ahead
    down = forecast_value(epochs, values, end, mode="min")

    assert down.low <= down.value <= down.high == min(values)
    up = forecast_value(epochs, [-value for value in values], end, mode="max")
    assert (up.value, up.low, up.high) == (-down.value, -down.high, -down.low)


@given(values=COURSES, ahead=AHEAD, unit=st.sampled_from([1e-3, 10.0]), stretch=st.sampled_from([0.5, 100.0]))
def test_units_of_metric_and_epochs_do_not_matter(
    values: list[float], ahead: float, unit: float, stretch: float
) -> None:
    epochs, end = np.arange(1.0, len(values) + 1.0), len(values) * ahead
    found = forecast_value(epochs, values, end, mode="min")
    other = forecast_value(stretch * epochs, unit * np.array(values), stretch * end, mode="min")

    assert other == pytest.approx([unit * one for one in found], rel=1e-6, abs=1e-6 * unit)


@given(values=COURSES, near=AHEAD, more=AHEAD)
def test_a_longer_run_falls_no_less(values: list[float], near: float, more: float) -> None:
    epochs, end = np.arange(1.0, len(values) + 1.0), len(values) * near

    assert further_fall(epochs, values, end) <= further_fall(epochs, values, end * more) + 1e-9


def test_the_end_is_known_and_what_is_no_number_is_left_out() -> None:
    assert further_fall([1, 2, 3], [3.0, 2.0, 1.0], 3) == 0.0
    assert further_fall([1, 2, 3, 4], [np.inf, 2.0, np.nan, 1.0], 8) == pytest.approx(LASTING)
    with pytest.raises(ValueError, match="finite"):
        forecast_value([1.0], [np.nan], 2.0, mode="min")
