"""State that a `train_step` of one's own keeps is that of Keras's `fit`, or the step is refused."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from plain_keras import assert_as_fit

from scavenger.errors import NotSupportedError
from scavenger.sdk import KerasJob
from scavenger.train.worker.program import Program

pytestmark = pytest.mark.slow

_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(250, 5)).astype("float32")
Y = _RANDOM.normal(size=(250, 1)).astype("float32")
LAYERS, OPS = keras.layers, keras.ops


class Stepping(keras.Model):  # type: ignore[misc]
    """A student, a teacher that follows it, and a weight that counts the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = (self._network() for _ in range(2))
        self.teacher.trainable = False
        self.teacher.set_weights(self.student.get_weights())
        self.count = self.add_weight(
            name="count", shape=(), dtype="int32", initializer="zeros", trainable=False
        )

    def _network(self) -> Any:
        return keras.Sequential([keras.Input((5,)), LAYERS.Dense(4, activation="tanh"), LAYERS.Dense(1)])

    def call(self, x: Any, training: bool = False) -> Any:
        return self.student(x, training=training)

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.count.assign_add(1)
        self.before(x)
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        gradients = tape.gradient(loss, self.student.trainable_variables)
        self.optimizer.apply(self.changed(gradients), self.student.trainable_variables)
        self.after(x)
        self._loss_tracker.update_state(loss, sample_weight=OPS.shape(x)[0])
        return {"loss": self._loss_tracker.result()}

    def before(self, x: Any) -> None: ...

    def after(self, x: Any) -> None: ...

    def changed(self, gradients: Any) -> Any:
        return gradients

    def loss_of(self, x: Any, y: Any) -> Any:
        distance = OPS.mean(OPS.square(self(x, training=True) - self.teacher(x)))
        return OPS.mean(OPS.square(self(x, training=True) - y)) + 0.3 * distance

    def follow(self) -> None:
        for own, theirs in zip(self.teacher.variables, self.student.variables, strict=True):
            own.assign(0.9 * own + 0.1 * theirs)


class Gated(Stepping):
    """Updates in every other step."""

    def changed(self, gradients: Any) -> Any:
        return [gradient * OPS.cast(self.count % 2, "float32") for gradient in gradients]


class Followed(Stepping):
    """The teacher moves before the step, to where the last update has brought the student."""

    def before(self, x: Any) -> None:
        self.follow()


class Fading(LAYERS.Layer):  # type: ignore[misc]
    """Lets less through with each call."""

    def build(self, shape: Any) -> None:
        self.share = self.add_weight(name="share", shape=(), initializer="ones", trainable=False)

    def call(self, x: Any) -> Any:
        self.share.assign(0.9 * self.share)
        return self.share * x


class Grown(Stepping):
    """Builds a layer with state of its own in its first step."""

    def __init__(self) -> None:
        super().__init__()
        self.fading = Fading()
        self.built = True

    def loss_of(self, x: Any, y: Any) -> Any:
        return super().loss_of(self.fading(x), y)


class Watched(Stepping):
    """A penalty on the slope by x, as of WGAN-GP or a network that solves a differential equation."""

    def loss_of(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            predicted = self(x, training=True)
        slopes = tape.gradient(predicted, x)
        return OPS.mean(OPS.square(predicted - y)) + 0.1 * OPS.mean(OPS.square(slopes))


def compiled(kind: type[Any], **compile_with: Any) -> Any:
    model = kind()
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.5), **compile_with)
    return model


@pytest.mark.parametrize(
    ("kind", "eagerly"),
    [
        (Gated, False),
        pytest.param(Gated, True, marks=pytest.mark.long),
        (Followed, False),
        (Grown, False),
        (Watched, False),
    ],
)
def test_a_step_with_state_ends_where_fit_does(kind: type[Any], eagerly: bool) -> None:
    program = assert_as_fit(lambda: compiled(kind, run_eagerly=eagerly), (X, Y))

    assert int(program.model.count.numpy()) == 4


class Follows(Stepping):
    def after(self, x: Any) -> None:
        self.follow()


class Copies(Stepping):
    """Copies the student every 100 steps, as a target network."""

    def after(self, x: Any) -> None:
        tf.cond(self.count % 100 == 0, lambda: self.copied(), lambda: 0)

    def copied(self) -> int:
        for own, theirs in zip(self.teacher.variables, self.student.variables, strict=True):
            own.assign(theirs)
        return 0


class Evaluates(Stepping):
    @tf.function  # type: ignore[untyped-decorator]
    def after(self, x: Any) -> None:
        self.count.assign_add(OPS.cast(OPS.mean(self(x)) > 100.0, "int32"))


@pytest.mark.parametrize(
    ("kind", "eagerly"), [(Follows, False), (Follows, True), (Copies, False), (Evaluates, False)]
)
def test_a_step_that_reads_weights_after_their_update_is_refused(kind: type[Any], eagerly: bool) -> None:
    complaint = (
        rf"^the train_step of {kind.__name__} reads \S+/\S+ after it has applied the gradients, .* move .* to the "
        "beginning of the step$"
    )
    with pytest.raises(NotSupportedError, match=complaint):
        Program(KerasJob(compiled(kind, run_eagerly=eagerly), (X, Y)))


class Marked(Stepping):
    def test_step(self, data: Any) -> Any:
        self.count.assign_add(1)
        return super().test_step(data)


def test_a_state_that_evaluations_change_is_refused() -> None:
    with pytest.raises(NotSupportedError, match=r"^an evaluation changes the state \S*count, from which fit"):
        Program(KerasJob(compiled(Marked, loss="mse"), (X, Y), (X[:9], Y[:9])))
