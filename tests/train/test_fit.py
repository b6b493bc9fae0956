"""Arguments of `fit` and `compile` do what they do in Keras, or are refused."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from plain_keras import assert_as_fit, assert_close, by_fit

from scavenger.sdk import KerasJob
from scavenger.train.failure import DataError
from scavenger.train.worker.program import Program

pytestmark = pytest.mark.slow

_RANDOM = np.random.default_rng(3)
X = _RANDOM.normal(size=(36, 5)).astype("float32")
Y = _RANDOM.integers(0, 3, size=36)
W = _RANDOM.uniform(0.1, 2.0, size=36).astype("float32")
LAYERS, OPTIMIZERS = keras.layers, keras.optimizers


def classifier(optimizer: Any = "sgd", *hidden: Any, **compile_with: Any) -> Any:
    hidden = hidden or (LAYERS.Dense(4, activation="tanh"),)
    model = keras.Sequential([keras.Input((5,)), *hidden, LAYERS.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": optimizer, "loss": loss, **compile_with})
    return model


# ---- fit ---------------------------------------------------------------------------------------------------


def one_hot() -> Any:
    return classifier(loss=keras.losses.CategoricalCrossentropy(from_logits=True))


@pytest.mark.parametrize(
    ("build", "y"), [(classifier, Y), (classifier, Y[:, None]), (one_hot, np.eye(3, dtype="float32")[Y])]
)
def test_class_weights_weigh_as_in_keras(build: Any, y: Any) -> None:
    assert_as_fit(build, (X, y), class_weight={0: 0.2, 2: 3.0})


def test_class_weights_count_in_training_alone() -> None:
    def build() -> Any:
        return classifier(weighted_metrics=["accuracy"])

    program = assert_as_fit(build, (X, Y), class_weight={0: 0.2, 2: 3.0}, validation_split=0.25)
    weights = [v.numpy() for v in program.variables]
    sums = program.evaluate(weights, 0, 9, 9)
    history = by_fit(build, (X, Y), class_weight={0: 0.2, 2: 3.0}, validation_split=0.25).history.history

    got = program.summarise(sums, sums)
    assert got["val_loss"] == pytest.approx(history["val_loss"][-1], rel=1e-5)
    assert got["val_accuracy"] == pytest.approx(history["val_accuracy"][-1])


@pytest.mark.parametrize("share", [0.1, 0.25, 0.999])
def test_a_validation_split_is_the_end_of_the_data_as_keras_cuts_it(share: float) -> None:
    try:
        by_fit(classifier, (X, Y), steps=1, validation_split=share)
    except ValueError:
        with pytest.raises(DataError, match="leaves no sample on one side"):
            Program(KerasJob(classifier(), (X, Y), validation_split=share))
        return
    program = assert_as_fit(classifier, (X, Y, W), validation_split=share)

    assert program.validation is not None
    held_out = len(program.validation)
    assert len(program.train) + held_out == len(X)
    for got, all_of_it in zip(program.validation.batch(np.arange(held_out)), (X, Y, W), strict=True):
        assert_close([got], [all_of_it[-held_out:]], 0.0)


def test_class_weights_do_not_go_with_sample_weights_or_several_outputs() -> None:
    with pytest.raises(DataError, match="exclude each other, as in Keras"):
        Program(KerasJob(classifier(), (X, Y, W), class_weight={0: 2.0}))
    with pytest.raises(DataError, match="a single output, as in Keras"):
        Program(KerasJob(classifier(), (X, {"a": Y, "b": Y}), class_weight={0: 2.0}))
