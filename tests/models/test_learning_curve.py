"""Forecasts from the course of a run's own metric."""

from __future__ import annotations

import numpy as np
import pytest

from scavenger.domain.curve import FloatArray
from scavenger.models.curve_shapes import RateSchedule
from scavenger.models.earlier_runs import EarlierRun
from scavenger.models.learning_curve import Forecast, Hint, forecast

EPOCHS = np.arange(1.0, 41.0)


def falling(epochs: FloatArray = EPOCHS, *, noise: float = 0.0) -> FloatArray:
    """1 + 2 / sqrt(epoch), which is 1.2 at epoch 100."""
    return 1.0 + 2.0 * epochs**-0.5 + noise * np.random.default_rng(1).standard_normal(len(epochs))


def to_100(seen: int, *, noise: float = 0.0, hint: Hint | None = None) -> Forecast:
    return forecast(EPOCHS[:seen], falling(noise=noise)[:seen], 1.2, mode="min", hint=hint)


def test_a_smooth_curve_is_followed_to_its_target() -> None:
    found = to_100(40)

    assert found.seen == 40.0
    assert 80.0 < found.total < 125.0
    assert found.low < 100.0 < found.high
    assert found.reached_by(40.0) == 0.0
    assert found.reached_by(60.0) < 0.2 < 0.6 < found.reached_by(400.0)


def test_more_of_the_curve_narrows_the_interval() -> None:
    widths = [forecast(EPOCHS[:seen], falling()[:seen], 1.33, mode="min").log_sd for seen in (8, 16, 32)]

    assert widths == sorted(widths, reverse=True)


def test_a_metric_that_grows_is_the_same_curve_upside_down() -> None:
    down = forecast(EPOCHS, 0.1 * falling(noise=0.01), 0.12, mode="min")
    up = forecast(EPOCHS, 1.0 - 0.1 * falling(noise=0.01), 0.88, mode="max")

    assert up.total == pytest.approx(down.total)
    assert up.never == pytest.approx(down.never)


def test_units_of_epochs_and_metric_do_not_matter() -> None:
    steps = forecast(100.0 * EPOCHS, 7.0 * falling(), 7.0 * 1.2, mode="min")
    lower = forecast(EPOCHS, falling() - 3.0, 1.2 - 3.0, mode="min")
    lowest = forecast(EPOCHS, falling() - 30.0, 1.2 - 30.0, mode="min")

    assert steps.total == pytest.approx(100.0 * to_100(40).total)
    assert lower.total == pytest.approx(lowest.total)


def test_a_share_is_as_far_from_its_target_as_errors_are_left() -> None:
    accuracy = 1.0 - np.exp(-EPOCHS / 10.0)  # 0.99 at epoch 46
    share = forecast(EPOCHS[:10], accuracy[:10], 0.99, mode="max")
    percent = forecast(EPOCHS[:10], 100.0 * accuracy[:10], 99.0, mode="max")

    assert share.total == pytest.approx(46.0, rel=0.15)
    assert abs(share.total - 46.0) < 0.5 * abs(percent.total - 46.0)


def test_a_hint_counts_less_the_more_of_the_curve_was_seen() -> None:
    hint = Hint(300.0, 0.3)
    pulls = [to_100(seen, hint=hint).total / to_100(seen).total for seen in (8, 40)]

    assert pulls[0] > pulls[1] > 1.0


def test_a_hint_may_lie_far_beyond_what_was_seen() -> None:
    assert to_100(4, hint=Hint(5000.0, 0.1)).total > 1000.0


def test_a_curve_that_has_flattened_short_of_its_target_may_never_reach_it() -> None:
    flat = 1.0 + 2.0 * np.exp(-EPOCHS / 4.0)
    hopeless = forecast(EPOCHS, flat, 0.5, mode="min", limit=100.0)
    hopeful = forecast(EPOCHS, falling(), 1.2, mode="min", limit=200.0)

    assert hopeless.never > 0.8 > 0.2 > hopeful.never
    assert (hopeless.total, hopeless.high) == (100.0, 100.0)


def test_one_evaluation_far_off_changes_little() -> None:
    values = falling()
    values[30] = 50.0

    assert forecast(EPOCHS, values, 1.2, mode="min").total == pytest.approx(to_100(40).total, rel=0.1)


def test_evaluations_without_a_value_are_left_out() -> None:
    values = falling()
    values[[3, 20]] = np.nan

    assert 75.0 < forecast(EPOCHS, values, 1.2, mode="min").total < 130.0


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ([3.0], "needs 2 evaluations"),
        ([3.0, np.nan, np.nan], "needs 2"),
        ([3.0, 1.0, 2.0], "has been reached"),
    ],
)
def test_what_cannot_be_forecast_is_refused(values: list[float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        forecast(np.arange(1.0, len(values) + 1.0), values, 1.2, mode="min")


def test_two_evaluations_of_a_metric_that_stands_still_are_enough() -> None:
    found = forecast([1.0, 2.0], [2.0, 2.0], 1.0, mode="min", limit=50.0)

    assert 2.0 <= found.low <= found.total <= found.high <= 50.0


def test_an_earlier_run_tells_that_a_curve_gains_speed_at_its_end() -> None:
    def course(end: float) -> tuple[FloatArray, FloatArray]:
        """3 at the beginning, 1.2 at the end: most of it falls in the last third, as under a rate that is lowered."""
        at = np.arange(1.0, end + 1.0)
        return at, 3.0 - 1.0 * (at / end) ** 0.4 - 0.8 * (at / end) ** 3

    at, values = course(100.0)
    unknown, known = (
        forecast(at[:60], values[:60], 1.2, mode="min", earlier=runs)
        for runs in ((), (EarlierRun(*course(80.0)),))
    )

    assert 1.1 * known.total < unknown.total
    assert abs(np.log(known.total / 100.0)) < abs(np.log(unknown.total / 100.0))


def test_an_earlier_run_that_missed_the_target_tells_the_shape_too() -> None:
    missed = EarlierRun(EPOCHS[:40], falling()[:40])

    known, unknown = (
        forecast(EPOCHS[:40], falling()[:40], 1.2, mode="min", earlier=runs) for runs in ((missed,), ())
    )

    assert known != unknown
    assert known.low < 100.0 < known.high


def test_an_earlier_run_that_never_fell_tells_nothing() -> None:
    flat = EarlierRun(EPOCHS, np.full(len(EPOCHS), 3.0))

    assert forecast(EPOCHS, falling(), 1.2, mode="min", earlier=(flat,)) == to_100(40)


STEPS = np.arange(100.0, 24_100.0, 100.0)


def loss_under(schedule: RateSchedule) -> FloatArray:
    """3 + what the power leaves, less what the drops of the rate take away."""
    return 3.0 + 0.3 * ((schedule.area(STEPS) / 1e4) ** -0.5 - 0.76 * schedule.annealed(STEPS))


def test_a_known_schedule_tells_of_the_fall_at_its_end() -> None:
    rates = np.where(STEPS <= 16_000.0, 3e-4, 3e-5)
    schedule, half = RateSchedule(STEPS, rates), STEPS <= 12_000.0
    loss = loss_under(schedule)
    target = float(loss[STEPS == 17_000.0][0])
    known, unknown = (
        forecast(STEPS[half], loss[half], target, mode="min", schedule=one) for one in (schedule, None)
    )

    assert 16_000.0 < known.low < 17_000.0 < known.high
    assert known.total < unknown.total


def test_a_constant_rate_anneals_nothing() -> None:
    schedule = RateSchedule(STEPS, np.full(len(STEPS), 3e-4))

    assert np.all(schedule.annealed(STEPS) == 0.0)
    assert schedule.area(np.array([50_000.0]))[0] == pytest.approx(50_000.0 - 50.0)


def test_forecasts_beside_honest_hints_are_neither_early_nor_late() -> None:
    """Runs of known length, seen for a tenth to two thirds, whose hints err as hints are taken to err."""
    random, off, inside = np.random.default_rng(2), [], []
    for number in range(120):
        truth = float(np.exp(random.uniform(np.log(12.0), np.log(60.0))))
        seen = np.arange(1.0, max(3.0, truth * random.uniform(0.1, 0.66)))
        errors = 0.05 * (truth / seen) ** random.uniform(0.5, 1.2)
        accuracy = 1.0 - np.minimum(errors, 0.6) - 0.005 * random.normal(size=len(seen))
        if accuracy.max() >= 0.95:
            continue
        hint = Hint(truth * float(np.exp(0.6 * random.normal())), 0.3)
        found = forecast(
            seen, accuracy, 0.95, mode="max", hint=hint, limit=300.0, noise=0.005 if number % 2 else 0.0
        )
        off.append(np.log(found.total / truth))
        inside.append(found.low <= truth <= found.high)

    assert abs(float(np.median(off))) < 0.12
    assert np.mean(inside) >= 0.85


@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_on_a_plateau_what_is_known_of_the_run_is_still_true(noise: float) -> None:
    """As networks do that have not begun to learn: ten classes, one of which is right by chance."""
    accuracy = [0.10, 0.11, 0.10, 0.12, 0.11, 0.12]
    found = forecast(range(1, 7), accuracy, 0.99, mode="max", limit=120.0, hint=Hint(30.0, 0.3), noise=noise)

    assert found.never < 0.4
    assert 20.0 < found.total < 45.0
    assert found.low < 20.0
    assert found.high == 120.0
