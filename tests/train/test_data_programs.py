"""Models trained on every form of data, beside Keras's own `fit` on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import msgspec
import numpy as np
import pytest
import tensorflow as tf
from driving import Run, assert_fired, assert_same_weights, plain_keras

from scavenger.elastic.view import Share
from scavenger.errors import NotSupportedError
from scavenger.sdk import FromGenerator, KerasJob
from scavenger.train.failure import DataError
from scavenger.train.transport.messages.values import Manifest
from scavenger.train.worker.program import Program
from scavenger.train.worker.samples import Samples

pytestmark = pytest.mark.slow

N, B, RATE = 48, 16, 0.1
_RANDOM = np.random.default_rng(5)
X = _RANDOM.normal(size=(N, 4)).astype("float32")
Y = _RANDOM.normal(size=(N, 1)).astype("float32")
WORDS = np.array(["red", "green", "blue", "green and red"])[_RANDOM.integers(0, 4, N)]
LAYERS = keras.layers


class Penalty(LAYERS.Layer):  # type: ignore[misc]
    """Adds the mean squared error of a reconstruction as the loss of the model."""

    def call(self, inputs: Any) -> Any:
        x, again = inputs
        self.add_loss(keras.ops.mean(keras.ops.square(x - again)))
        return again


def autoencoder() -> Any:
    x = keras.Input((4,))
    model = keras.Model(x, Penalty()([x, LAYERS.Dense(4)(LAYERS.Dense(2)(x))]))
    model.compile(keras.optimizers.SGD(RATE))
    return model


class OwnLoss(keras.Sequential):  # type: ignore[misc]
    def compute_loss(  # type: ignore[no-untyped-def]
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ) -> Any:
        return keras.ops.mean(keras.ops.square(x - y_pred))


def own_loss() -> Any:
    model = OwnLoss([keras.Input((4,)), LAYERS.Dense(2), LAYERS.Dense(4)])
    model.compile(keras.optimizers.SGD(RATE))
    return model


def regression() -> Any:
    model = keras.Sequential([keras.Input((4,)), LAYERS.Dense(3, activation="tanh"), LAYERS.Dense(1)])
    model.compile(keras.optimizers.SGD(RATE), "mse")
    return model


def named() -> Any:
    a, b = keras.Input((4,), name="a"), keras.Input((1,), name="b")
    model = keras.Model({"a": a, "b": b}, Penalty()([b, LAYERS.Dense(1)(a)]))
    model.compile(keras.optimizers.SGD(RATE))
    return model


def of_text() -> Any:
    text = keras.Input((), dtype="string")
    split = LAYERS.TextVectorization(output_mode="multi_hot", max_tokens=8)
    split.adapt(WORDS)
    looked_up = LAYERS.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")(text)
    hidden = LAYERS.Concatenate()([split(text), looked_up])
    model = keras.Model(text, LAYERS.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(RATE), "mse")
    return model


class Dicts:
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return {"a": X[index], "b": Y[index]}


def pairs() -> Iterator[Any]:
    yield from zip(X, Y, strict=True)


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return X[10 * index : 10 * index + 10], Y[10 * index : 10 * index + 10]


SLICES = tf.data.Dataset.from_tensor_slices
CASES: dict[str, tuple[Callable[[], Any], Any, tuple[Any, ...]]] = {
    "x alone": (autoencoder, X, (X,)),
    "(x,) and a loss of one's own": (own_loss, (X,), (X,)),
    "x alone of tf.data": (autoencoder, SLICES(X).batch(8), (X,)),
    "dict items": (named, Dicts(), ({"a": X, "b": Y},)),
    "text": (of_text, (WORDS, Y), (WORDS.astype(object), Y)),
    "text of tf.data": (of_text, SLICES((WORDS, Y)).shuffle(9).batch(8), (WORDS.astype(object), Y)),
    "PyDataset": (regression, Batches(), (X, Y)),
    "tf.data": (regression, SLICES((X, Y)).shuffle(20).batch(8).prefetch(1), (X, Y)),
    "generator": (regression, FromGenerator(pairs, N, shuffle_buffer=20), (X, Y)),
}


@pytest.mark.parametrize("name", CASES)
def test_two_epochs_end_with_the_weights_of_fit(name: str) -> None:
    make, data, whole = CASES[name]
    program = Program(KerasJob(make(), data, data))
    weights = program.initial_state()
    plain = make()
    plain.set_weights(weights)
    samples = Samples(program.train, seed=4)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(program.manifest), type=Manifest)
    assert sent.blocks == program.train.blocks  # the aggregator orders the samples by it
    for epoch in range(2):
        for low in range(0, N, B):
            share = Share(low, low + B)
            result = program.gradient(weights, samples.read(epoch, share), seed=4, position=low)
            weights = [w - RATE * g for w, g in zip(weights, result.gradients, strict=True)]
            taken = samples.indices(epoch, share)
            batch = keras.tree.map_structure(lambda leaf, taken=taken: leaf[taken], whole)
            plain.fit(*batch, batch_size=B, shuffle=False, verbose=0)

    assert_same_weights(weights, plain.get_weights(), 1e-5)
    samples.close()
    sums = [
        a + b
        for a, b in zip(*(program.evaluate(weights, *ends, 7) for ends in ((0, 20), (20, N))), strict=True)
    ]
    expected = plain.evaluate(*whole, batch_size=N, verbose=0, return_dict=True)["loss"]
    assert program.summarise(sums, sums)["val_loss"] == pytest.approx(expected, rel=1e-4)


def test_x_alone_is_refused_by_a_loss_that_needs_y() -> None:
    with pytest.raises(DataError, match="a sample is x alone, one value, but the model's loss compares"):
        Program(KerasJob(regression(), X))
    with pytest.raises(
        DataError, match="x alone, a dict with 'x', 'y', but the model's loss compares its output"
    ):
        Program(KerasJob(regression(), {"x": X, "y": Y}))


def test_a_model_without_any_loss_is_refused() -> None:
    model = keras.Sequential([keras.Input((4,)), LAYERS.Dense(1)])
    model.compile("sgd")

    with pytest.raises(NotSupportedError, match="compiled without a loss, and no layer adds one"):
        Program(KerasJob(model, (X, Y)))


def test_a_stream_is_trained_on_exactly_once_though_a_worker_dies(tmp_path: Path) -> None:
    fault = "worker.computed/w1:kill@5"
    with Run("small:streamed", tmp_path, epochs=3, faults=[fault]) as run:
        run.begin(2, 20)
        run.to_the_end()
        assert_fired(run, fault)
        got = run.finish()

    assert [note.partition(" is read")[0] for note in run.supervisor.manifest.notes] == [
        "KerasJob.train: _pairs",
        "KerasJob.validation: the batches of the data set, of 25, are taken apart: Scavenger makes the batches",
    ]
    assert_same_weights(got, plain_keras("streamed", run.steps))
