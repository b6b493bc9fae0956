"""Learning rates so far are continued as they have fallen."""

from __future__ import annotations

import numpy as np
import pytest

from scavenger.domain.curve import FloatArray
from scavenger.models.curve_shapes import RATE_MIN, RateSchedule

WHOLE = np.arange(1.0, 101.0)


@pytest.mark.parametrize(
    ("rates", "differ"),
    [
        (0.5 * (1.0 + np.cos(np.pi * WHOLE / 100.0)), 0.02),
        (1.0 - WHOLE / 100.0, 0.02),
        (0.97**WHOLE, 0.02),
        (np.minimum(WHOLE / 10.0, 0.5 * (1.0 + np.cos(np.pi * np.maximum(WHOLE - 10.0, 0.0) / 90.0))), 0.03),
        (np.where(WHOLE <= 20.0, 1.0, 0.1), 0.0),
    ],
    ids=["cosine", "line", "power", "warm-up", "drop"],
)
@pytest.mark.parametrize("seen", [40, 70])
def test_a_rate_goes_on_as_it_has_fallen(rates: FloatArray, differ: float, seen: int) -> None:
    so_far = RateSchedule.of(WHOLE[:seen], rates[:seen])
    whole = so_far.continued(300.0)
    found = np.interp(WHOLE, whole.steps, whole.rates / whole.rates.max())

    if differ:
        assert found == pytest.approx(np.maximum(rates / rates[:seen].max(), RATE_MIN), abs=differ)
        assert whole.steps[-1] == pytest.approx(300.0)
    else:
        assert whole is so_far


def test_a_rate_that_has_not_fallen_stays() -> None:
    rising = RateSchedule.of(WHOLE, WHOLE / 100.0)

    assert rising.continued(300.0) is rising
    assert RateSchedule.of(WHOLE, np.ones(100)).is_constant
