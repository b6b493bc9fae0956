"""Rows of an `Embedding` that a batch names twice are updated as by `fit` with dense gradients, and a note says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from plain_keras import assert_close, by_fit, by_job

from scavenger.sdk import KerasJob
from scavenger.train.worker.program import Program

pytestmark = pytest.mark.slow

_RANDOM = np.random.default_rng(7)
WORDS = _RANDOM.integers(0, 6, size=(30, 5)).astype("int32")
Y = _RANDOM.integers(0, 3, size=30)
WEIGHTS = [_RANDOM.normal(size=shape).astype("float32") for shape in ((9, 4), (4, 3), (3,))]
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "SGD, clipped": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.01),
    "Adadelta": lambda: keras.optimizers.Adadelta(0.1),
    "Adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.01),
    "Adamax": lambda: keras.optimizers.Adamax(0.01),
    "AdamW": lambda: keras.optimizers.AdamW(0.01),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.01),
    "Lamb": lambda: keras.optimizers.Lamb(0.01),
    "Nadam": lambda: keras.optimizers.Nadam(0.01),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.01),
}
LINEAR: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Lion": lambda: keras.optimizers.Lion(0.01),
}


def model(optimizer: Any, *, dense: bool) -> Any:
    words = keras.Input((5,), dtype="int32")
    if dense:
        rows = keras.layers.Dense(4, use_bias=False)(keras.ops.one_hot(words, 9))
    else:
        rows = keras.layers.Embedding(9, 4)(words)
    made = keras.Model(words, keras.layers.Dense(3)(keras.ops.mean(keras.ops.tanh(rows), axis=1)))
    made.set_weights(WEIGHTS)
    made.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


@pytest.mark.parametrize(
    "name",
    [name if name == "Adam" else pytest.param(name, marks=pytest.mark.long) for name in OPTIMIZERS],
)
def test_rows_named_twice_are_updated_as_by_fit_with_dense_gradients(name: str) -> None:
    program, got = by_job(lambda: model(OPTIMIZERS[name](), dense=False), (WORDS, Y))
    plain = by_fit(lambda: model(OPTIMIZERS[name](), dense=True), (WORDS, Y))

    assert_close(got, plain.get_weights(), 1e-4)
    (note,) = program.manifest.notes
    assert f"an Embedding, {name.partition(',')[0]} is given the sum of their gradients" in note
    assert "docs/keras.md#embeddings" in note


@pytest.mark.parametrize("name", [pytest.param("Lion", marks=pytest.mark.long), "SGD"])
def test_an_optimizer_to_which_that_is_the_same_trains_as_fit_does_without_a_note(name: str) -> None:
    program, got = by_job(lambda: model(LINEAR[name](), dense=False), (WORDS, Y))
    plain = by_fit(lambda: model(LINEAR[name](), dense=False), (WORDS, Y))

    assert_close(got, plain.get_weights(), 1e-4)
    assert program.manifest.notes == ()


def test_a_note_names_the_optimizer_inside_loss_scaling_and_only_where_a_table_is() -> None:
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    (note,) = Program(KerasJob(model(scaled, dense=False), (WORDS, Y))).manifest.notes

    assert ", Adam is given" in note
    assert Program(KerasJob(model("adam", dense=True), (WORDS, Y))).manifest.notes == ()
