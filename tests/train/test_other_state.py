"""What callbacks and steps change beside the model's variables: refused where the training reads it, else let be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.keras_training import in_pieces
from scavenger.errors import NotSupportedError
from scavenger.sdk import KerasJob
from scavenger.train.worker.program import Program

pytestmark = pytest.mark.slow

_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(24, 3)).astype("float32")
Y = _RANDOM.normal(size=(24, 1)).astype("float32")
SHARE = tf.Variable(0.0, trainable=False)
SETTINGS = SimpleNamespace(share=0.0, unread=0.0)


class Weighted(keras.Model):  # type: ignore[misc]
    """Its loss has a share of the outputs' squares, as a variational autoencoder has of its divergence."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dropout = keras.layers.Dense(1), keras.layers.Dropout(0.1, seed=1, name="dropout")
        self.share = tf.Variable(0.0, trainable=False)
        self.factor, self.shares, self.noted = 1.0, [tf.Variable(0.0, trainable=False)], 0
        self.seen: Any = None

    def call(self, x: Any, training: bool = False) -> Any:
        self.seen = self.dense(self.dropout(x, training=training))
        return self.seen

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, *others: Any, **named: Any
    ) -> Any:
        share = self.factor * (self.share + self.shares[0])
        return keras.ops.mean(keras.ops.square(y_pred - y) + share * keras.ops.square(self.seen))


class Started(Weighted):
    """Counts its steps in Python."""

    steps = 0

    def compute_loss(self, *given: Any, **named: Any) -> Any:
        self.steps += 1
        return super().compute_loss(*given, **named) * min(1.0, self.steps / 10)


def of_module(y: Any, predicted: Any) -> Any:
    return keras.ops.square(y - predicted) + SHARE * keras.ops.square(predicted)


def of_settings(y: Any, predicted: Any) -> Any:
    return keras.ops.square(y - predicted) + SETTINGS.share * keras.ops.square(predicted)


def of_closure() -> tuple[Any, Any]:
    share = keras.Variable(0.0, trainable=False)

    def loss(y: Any, predicted: Any) -> Any:
        return keras.ops.square(y - predicted) + share * keras.ops.square(predicted)

    return loss, share


def program(
    change: Any, loss: Any = None, *, eagerly: bool = False, kind: Any = Weighted, data: Any = None
) -> Program:
    """A job whose callback changes something at the end of each epoch."""
    keras.utils.set_random_seed(1)
    model = kind() if loss is None else keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", loss, run_eagerly=eagerly)
    called = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: change(model))
    return Program(KerasJob(model, (X, Y) if data is None else data, callbacks=[called]))


def trained(one: Program) -> None:
    in_pieces(one, ((0, 14), (14, 24)), steps=2)


LOSS, CLOSED_OVER = of_closure()


class Growing(keras.utils.PyDataset):  # type: ignore[misc]
    """Data that a callback makes harder."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.read = 1.0, 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return self.scale * X[4 * index : 4 * index + 4], Y[4 * index : 4 * index + 4]


GROWING = Growing()


@pytest.mark.parametrize(
    ("change", "options", "place"),
    [
        (lambda model: model.share.assign(0.5), {}, "model.share"),
        (lambda model: model.shares[0].assign(0.5), {}, "model.shares[0]"),
        (lambda model: setattr(model, "factor", 0.5), {"eagerly": True}, "model.factor"),
        (lambda model: setattr(model.dropout, "rate", 0.5), {"eagerly": True}, "dropout.rate"),
        (lambda model: SHARE.assign_add(0.5), {"loss": of_module}, "SHARE"),
        (
            lambda model: setattr(SETTINGS, "share", SETTINGS.share + 1),
            {"loss": of_settings},
            "SETTINGS.share",
        ),
        (lambda model: CLOSED_OVER.assign_add(0.5), {"loss": LOSS}, "share"),
        (lambda model: setattr(GROWING, "scale", GROWING.scale + 1), {"data": GROWING}, "Growing.scale"),
    ],
)
def test_what_a_callback_sets_for_the_training_outside_the_weights_is_refused(
    change: Any, options: dict[str, Any], place: str
) -> None:
    one = program(change, **options)

    with pytest.raises(NotSupportedError) as caught:
        trained(one)

    assert f"a callback (LambdaCallback) has changed {place}, which the training reads" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("eagerly", [False, True])
def test_what_a_callback_notes_or_looks_at_is_not(eagerly: bool) -> None:
    def change(model: Any) -> None:
        model.noted += 1
        model.best = model.predict(X, verbose=0), model.evaluate(X, Y, verbose=0)
        SETTINGS.unread += 1.0

    trained(program(change, eagerly=eagerly))


def test_a_number_that_an_eager_step_keeps_in_python_is_refused() -> None:
    with pytest.raises(
        NotSupportedError, match=r"^the training step changes model\.steps, which is no weight"
    ):
        program(lambda model: None, kind=Started, eagerly=True)


def test_data_that_a_callback_changes_in_place_is_refused_since_fit_trains_on_a_copy() -> None:
    x = X.copy()
    data = (x[:], Y)

    def change(model: Any) -> None:
        x[...] *= 2.0

    with pytest.raises(NotSupportedError, match="fit trains on a copy"):
        trained(program(change, data=data))
