"""The learning rates of a LearningRateScheduler are asked beforehand where its function can do nothing but compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import cos, pi
from typing import Any

import keras
import numpy as np
import pytest

from scavenger.train.transport.messages.requests import RunCallbacks
from scavenger.train.worker.callbacks.rates import rates_asked
from scavenger.train.worker.callbacks.runner import CallbackRunner

pytestmark = pytest.mark.slow

EPOCHS = 8
DROPS = {3: 0.1, 6: 0.01}
SEEN: list[int] = []
MEAN = np.zeros(3)


def stepped(epoch: int, rate: float) -> float:
    return rate * DROPS.get(epoch, 1.0)


def by_helper(epoch: int, rate: float) -> float:
    def ramp(at: int) -> float:
        return min(1.0, (at + 1) / 3)

    rate = 0.5 * (1.0 + cos(pi * epoch / EPOCHS)) * ramp(epoch)
    rate *= 0.2
    return max(rate, float(np.exp(-epoch)) * 1e-3)


def closed(factor: float) -> Callable[[int, float], float]:
    return lambda epoch, rate: rate * factor**epoch


def in_keras(schedule: Any) -> list[float]:
    """The rates that Keras's callback sets."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    callback = keras.callbacks.LearningRateScheduler(schedule)
    callback.set_model(model)
    rates = []
    for epoch in range(EPOCHS):
        callback.on_epoch_begin(epoch)
        rates.append(float(model.optimizer.learning_rate.numpy()))
    return rates


@pytest.mark.parametrize(
    "schedule",
    [
        stepped,
        by_helper,
        closed(0.9),
        lambda epoch: 0.1 if epoch < 5 else 0.01,
    ],
)
def test_what_only_computes_is_asked_and_answers_as_in_keras(schedule: Any) -> None:
    asked = rates_asked([keras.callbacks.LearningRateScheduler(schedule)], float(np.float32(0.1)), EPOCHS)

    assert asked == pytest.approx(in_keras(schedule), rel=1e-6)


def counting(epoch: int, rate: float) -> float:
    SEEN.append(epoch)
    return rate


def growing(epoch: int, rate: float) -> float:
    seen = SEEN
    seen += [epoch]
    return rate / (1 + len(seen))


def storing(epoch: int, rate: float) -> float:
    DROPS[epoch] = rate
    return rate


def writing(epoch: int, rate: float) -> float:
    print(epoch)
    return rate


def into(epoch: int, rate: float) -> float:
    return float(np.minimum(MEAN, rate, MEAN)[0])


def chance(epoch: int, rate: float) -> float:
    return rate * float(np.random.default_rng().uniform())


def through(epoch: int, rate: float) -> float:
    return counting(epoch, rate)


class Holding:
    def __call__(self, epoch: int, rate: float) -> float:
        return rate


@pytest.mark.parametrize("schedule", [counting, growing, storing, writing, into, chance, through, Holding()])
def test_what_may_do_more_is_not_asked(schedule: Any) -> None:
    assert rates_asked([keras.callbacks.LearningRateScheduler(schedule)], 0.1, EPOCHS) == ()
    assert (SEEN, DROPS) == ([], {3: 0.1, 6: 0.01})


def test_what_another_callback_may_set_is_not_known_beforehand() -> None:
    scheduler = keras.callbacks.LearningRateScheduler(stepped)
    stopping = keras.callbacks.EarlyStopping("val_loss")

    assert len(rates_asked([stopping, scheduler], 0.1, EPOCHS)) == EPOCHS
    for other in (keras.callbacks.ReduceLROnPlateau(), keras.callbacks.LambdaCallback(), scheduler):
        assert rates_asked([scheduler, other], 0.1, EPOCHS) == ()
    assert rates_asked([stopping], 0.1, EPOCHS) == ()


def test_a_function_that_fails_later_is_asked_until_then() -> None:
    rates = [0.1, 0.05]
    asked = rates_asked([keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch])], 0.1, EPOCHS)

    assert asked == pytest.approx((0.1, 0.05))
    roots = keras.callbacks.LearningRateScheduler(lambda epoch: math.sqrt(2 - epoch))
    assert len(rates_asked([roots], 0.1, EPOCHS)) == 3


def test_a_job_tells_its_rates_when_it_begins_over_the_compiled_one() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.2), loss="mse")
    runner = CallbackRunner(model, [keras.callbacks.LearningRateScheduler(stepped)])
    begun = runner.run(RunCallbacks(1, -1, 0, {}, EPOCHS, False, "", 1.0))
    ended = runner.run(RunCallbacks(2, 0, 9, {"loss": 1.0}, EPOCHS, False, begun.state, begun.rate_scale))

    assert begun.rates_ahead == pytest.approx([1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.001, 0.001], rel=1e-6)
    assert ended.rates_ahead == ()
