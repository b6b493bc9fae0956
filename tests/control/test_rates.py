"""The learning-rate schedule of a job, laid out over its run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from scavenger.control.search.rates import rate_of_epochs, rates_ahead, rates_so_far, schedule_of
from scavenger.domain.callback_run import CallbackRunRecord
from scavenger.domain.measurement import EpochRecord
from scavenger.models.curve_shapes import LAW_STEPS

DROP = 600
"""Step after which the rate drops."""


def optimizer(learning_rate: object) -> str:
    return json.dumps(
        {"module": "keras.optimizers", "class_name": "SGD", "config": {"learning_rate": learning_rate}}
    )


def scheduled(class_name: str, **config: object) -> str:
    return optimizer({"module": "keras.optimizers.schedules", "class_name": class_name, "config": config})


DROPPING = scheduled("PiecewiseConstantDecay", boundaries=[DROP], values=[0.1, 0.01])


@pytest.mark.parametrize(
    "constant",
    [optimizer(0.01), scheduled("CosineDecayRestarts", initial_learning_rate=0.1), scheduled("MyOwn")],
)
def test_a_rate_that_is_constant_or_unknown_is_no_schedule(constant: str) -> None:
    assert schedule_of(constant) is None


def test_rates_are_laid_out_over_what_was_trained_and_what_is_to_come() -> None:
    """Epochs had 20 steps at first; from epoch 10 on, which is step 150, they have 10."""
    rate = schedule_of(DROPPING)
    assert rate is not None
    laid = rates_ahead(rate, [5.0, 10.0], [100, 150], steps_per_unit=10, limit=100.0)
    assert laid is not None
    drop = 10.0 + (DROP - 150) / 10

    assert np.all(np.diff(laid.steps) > 0.0)
    assert laid.steps[-1] == pytest.approx(100.0)
    assert laid.rates[laid.steps <= drop] == pytest.approx(0.1)
    assert laid.rates[laid.steps > 1.02 * drop] == pytest.approx(0.01)
    assert laid.unit * drop == pytest.approx(LAW_STEPS, rel=0.02)


def test_a_schedule_that_ends_beyond_the_run_changes_nothing() -> None:
    rate = schedule_of(DROPPING)
    assert rate is not None

    laid = rates_ahead(rate, [1.0, 2.0], [10, 20], steps_per_unit=10, limit=59.0)
    assert laid is not None
    assert laid.is_constant


def run(epoch: int, rate: float, ahead: tuple[float, ...] = ()) -> CallbackRunRecord:
    return CallbackRunRecord(epoch, 10 * (epoch + 1), "", rate_scale=rate, rates_ahead=ahead)


def evaluated(count: int, **metrics: float) -> list[EpochRecord]:
    return [EpochRecord(epoch, 10 * (epoch + 1), metrics, 0.1, float(epoch)) for epoch in range(count)]


def test_rates_that_callbacks_told_beforehand_are_those_of_the_epochs_to_come() -> None:
    ahead = (1.0, 1.0, 0.1, 0.1, 0.01)
    rate = rate_of_epochs([run(-1, 1.0, ahead), run(0, 1.0), run(1, 0.1)])
    assert rate is not None
    laid = rates_ahead(rate, [1.0, 2.0], [1, 2], steps_per_unit=1.0, limit=9.0)
    assert laid is not None

    assert laid.rates[laid.steps <= 2.0] == pytest.approx(1.0)
    assert laid.rates[(laid.steps > 2.01) & (laid.steps <= 4.0)] == pytest.approx(0.1)
    assert laid.rates[laid.steps > 4.03] == pytest.approx(0.01)


def test_rates_told_beforehand_that_callbacks_do_not_follow_are_not_believed() -> None:
    assert rate_of_epochs([]) is None
    assert rate_of_epochs([run(-1, 1.0)]) is None
    assert rate_of_epochs([run(-1, 1.0, (1.0, 0.5)), run(0, 0.4)]) is None


def test_rates_so_far_are_those_that_callbacks_have_set_or_a_loop_reports() -> None:
    by_callbacks = rates_so_far(evaluated(3), [run(-1, 1.0), run(0, 1.0), run(1, 0.5), run(2, 0.5)], 2.0)
    reported = rates_so_far([*evaluated(2, lr=0.1), EpochRecord(2, 30, {"lr": 0.05}, 0.1, 3.0)], [], 2.0)
    assert by_callbacks is not None
    assert reported is not None

    assert by_callbacks.steps == pytest.approx([2.0, 4.0, 6.0])
    assert by_callbacks.rates == pytest.approx([1.0, 1.0, 0.5])
    assert reported.rates == pytest.approx([0.1, 0.1, 0.05])


@pytest.mark.parametrize("metrics", [{}, {"lr": float("nan")}, {"learning_rate": 0.0}])
def test_rates_that_are_unknown_are_no_schedule(metrics: dict[str, float]) -> None:
    assert rates_so_far(evaluated(3, **metrics), [], 1.0) is None
