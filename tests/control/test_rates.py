"""The learning-rate schedule of a job, laid out over its run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from scavenger.control.search.rates import LAW_STEPS, rates_ahead, schedule_of

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

    assert rates_ahead(rate, [1.0, 2.0], [10, 20], steps_per_unit=10, limit=59.0) is None
