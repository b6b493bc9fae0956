"""`python -m benchmarks.keras_projects`: ordinary Keras projects, by `fit` and by the code of workers and aggregators.

Each project is a small model of a kind that Keras's guides and examples show, with data drawn at random. Plain `fit`
trains it with all samples in one batch; workers train it in two unequal pieces with two aggregators. The table of what
came out goes into docs/keras.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.figures import replace_section
from benchmarks.keras_support import DOCUMENT, Verdict, in_pieces
from scavenger.errors import NotSupportedError
from scavenger.sdk import KerasJob
from scavenger.train.failure import DataError
from scavenger.train.worker.program import Program

__all__ = ["PROJECTS", "Project", "by_fit", "by_job", "furthest", "project_verdict", "table"]

SECTION = "keras_projects"

_SEED = 3
_SAMPLES = 18
_STEPS = 4
_TOLERANCE = 1e-5
_RANDOM = np.random.default_rng(8)
_L, _O = keras.layers, keras.optimizers
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Project:
    """One project.

    Attributes:
        build: Makes the compiled model.
        data: What `fit` gets as `(x, y)` or `(x, y, sample_weight)`.
        arguments: More arguments of `fit`, which `KerasJob` takes by the same names.
        tolerance: Largest difference of a weight, relative to the largest of its tensor.
        floatx: Keras's default float type. In double precision, rounding is not enlarged by Adam, which divides small
            gradients by their size.
    """

    build: Callable[[], Any]
    data: tuple[Any, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = _TOLERANCE
    floatx: str = "float64"


# ---- both ways ---------------------------------------------------------------------------------------------


def by_job(
    build: Callable[[], Any],
    train: Any,
    *,
    steps: int = _STEPS,
    pieces: int = 2,
    path: Any = None,
    **arguments: Any,
) -> tuple[Program, list[Array]]:
    """Train as workers and two aggregators do; returns the program, and the weights as `get_weights` has them.

    Args:
        build: Makes the model.
        train: The data; each step uses all samples once.
        steps: Number of steps.
        pieces: 2 unequal pieces for a step, or 1.
        path: Where the model is saved at the end, if anywhere.
        arguments: More arguments of `KerasJob`.
    """
    keras.utils.set_random_seed(_SEED)
    program = Program(KerasJob(build(), train, **arguments))
    samples = len(program.train)
    bounds = (0, samples * 5 // 9, samples) if pieces == 2 else (0, samples)
    final = in_pieces(program, tuple(pairwise(bounds)), path, steps=steps)
    for variable, value in zip(program.variables, final, strict=True):
        variable.assign(value)
    return program, program.model.get_weights()


def by_fit(build: Callable[[], Any], train: Any, *, steps: int = _STEPS, **arguments: Any) -> Any:
    """Train with `fit`, all samples in one batch; returns the model."""
    keras.utils.set_random_seed(_SEED)
    model = build()
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(train)
    count = len(keras.tree.flatten(x)[0])
    options = {"batch_size": count, "epochs": steps, "shuffle": False, "verbose": 0, **arguments}
    model.fit(x, y, sample_weight=sample_weight, **options)
    return model


def _with_same_draws(project: Project, steps: int) -> Any:
    """Train with Keras's own steps, in which each random layer begins where it does in a job; returns the model."""
    keras.utils.set_random_seed(_SEED)
    program = Program(KerasJob(project.build(), project.data, **project.arguments))
    samples = len(program.train)
    for step in range(steps):
        program.draw_from(_SEED, step * samples)
        program.model.train_on_batch(*program.train.batch(np.arange(samples)))
    program.model.optimizer.finalize_variable_values(program.model.trainable_variables)
    return program.model


def _with_dense_gradients(project: Project, steps: int) -> Any:
    """Train with Keras's own optimizer, which gets the gradients of embeddings as whole tensors; returns the model."""
    keras.utils.set_random_seed(_SEED)
    program = Program(KerasJob(project.build(), project.data, **project.arguments))
    model, samples = program.model, len(program.train)
    batch = program.train.batch(np.arange(samples))
    for step in range(steps):
        result = program.gradient(
            [v.numpy() for v in program.variables], batch, seed=_SEED, position=step * samples, halves=False
        )
        model.optimizer.apply([tf.convert_to_tensor(g) for g in result.gradients], model.trainable_variables)
    model.optimizer.finalize_variable_values(model.trainable_variables)
    return model


def furthest(got: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference of two lists of arrays, each relative to the largest value of its array."""
    apart = 0.0
    for one, other in zip(got, expected, strict=True):
        a, b = np.asarray(one, "float64"), np.asarray(other, "float64")
        apart = max(apart, float(np.abs(a - b).max(initial=0) / max(np.abs(b).max(initial=0), 1e-2)))
    return apart


def project_verdict(name: str) -> Verdict:
    """Train a project in both ways and compare."""
    project, before = PROJECTS[name], keras.config.floatx()
    keras.config.set_floatx(project.floatx)
    keras.config.set_dtype_policy(project.floatx)  # layers made earlier may have fixed another default
    try:
        program, got = by_job(project.build, project.data, **project.arguments)
        layers = list(program.model._flatten_layers())
        if program.draws:
            _, got = by_job(project.build, project.data, pieces=1, **project.arguments)
            expected, answer = _with_same_draws(project, _STEPS).get_weights(), "equal for the same draws"
        else:
            expected = by_fit(project.build, project.data, **project.arguments).get_weights()
            answer = "equal"
            if any(isinstance(layer, _L.BatchNormalization) and layer.trainable for layer in layers):
                _, got = by_job(project.build, project.data, pieces=1, **project.arguments)
                answer = "each worker's part"
        embeds = any(isinstance(layer, _L.Embedding) for layer in layers)
        if embeds and furthest(got, expected) > project.tolerance:
            expected, answer = (
                _with_dense_gradients(project, _STEPS).get_weights(),
                "equal with dense gradients",
            )
    except (NotSupportedError, DataError) as error:
        return Verdict(name, "refused", str(error))
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(before)
        keras.utils.clear_session(free_memory=False)
    return Verdict(name, answer if furthest(got, expected) <= project.tolerance else "different")


# ---- data --------------------------------------------------------------------------------------------------


def _numbers(*shape: int) -> Array:
    return _RANDOM.normal(size=(_SAMPLES, *shape)).astype("float32")


def _integers(below: int, *shape: int) -> Array:
    return _RANDOM.integers(0, below, size=(_SAMPLES, *shape))


_TABLE, _IMAGES, _SERIES = _numbers(6), _numbers(8, 8, 3), _numbers(7, 3)
_TOKENS, _CLASSES = _integers(20, 7), _integers(3)
_PADDED = np.where(np.arange(7) < _integers(6, 1) + 2, _TOKENS + 1, 0)


def _logits(**options: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def _compiled(model: Any, optimizer: Any = "adam", loss: Any = "mse", **options: Any) -> Any:
    model.compile(optimizer, loss, **options)
    return model


# ---- models ------------------------------------------------------------------------------------------------


def _house_prices() -> Any:
    normalise = _L.Normalization()
    normalise.adapt(_TABLE)
    layers = [keras.Input((6,)), normalise, _L.Dense(8, "relu"), _L.Dense(1)]
    return _compiled(keras.Sequential(layers), _O.RMSprop(0.001), metrics=["mae"])


def _convnet() -> Any:
    layers = [
        keras.Input((8, 8, 3)),
        _L.Rescaling(1 / 255),
        _L.Conv2D(4, 3, activation="relu"),
        _L.MaxPooling2D(),
        _L.Flatten(),
        _L.Dropout(0.5),
        _L.Dense(3, "softmax"),
    ]
    return _compiled(
        keras.Sequential(layers), "adam", "sparse_categorical_crossentropy", metrics=["accuracy"]
    )


def _bidirectional() -> Any:
    layers = [
        keras.Input((None,), dtype="int32"),
        _L.Embedding(20, 4),
        _L.Bidirectional(_L.LSTM(3, return_sequences=True)),
        _L.Bidirectional(_L.LSTM(3)),
        _L.Dense(1, "sigmoid"),
    ]
    return _compiled(keras.Sequential(layers), "adam", "binary_crossentropy", metrics=["accuracy"])


class TokensAndPlaces(keras.layers.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = _L.Embedding(20, 4), _L.Embedding(7, 4)

    def call(self, x: Any) -> Any:
        return self.tokens(x) + self.places(keras.ops.arange(7))


def _transformer() -> Any:
    inputs = keras.Input((7,), dtype="int32")
    x = TokensAndPlaces()(inputs)
    x = _L.LayerNormalization()(x + _L.MultiHeadAttention(2, 2)(x, x, use_causal_mask=True))
    x = _L.LayerNormalization()(x + _L.Dense(4)(_L.Dense(8, "gelu")(x)))
    rate = _O.schedules.CosineDecay(0.0, 9, warmup_target=0.01, warmup_steps=2)
    optimizer = _O.AdamW(rate, weight_decay=0.01, global_clipnorm=1.0)
    return _compiled(keras.Model(inputs, _L.Dense(20)(x)), optimizer, _logits(), metrics=["accuracy"])


def _forecast() -> Any:
    layers = [
        keras.Input((7, 3)),
        _L.Conv1D(4, 3, padding="causal", activation="relu"),
        _L.GRU(4, return_sequences=True),
        _L.TimeDistributed(_L.Dense(2)),
    ]
    return _compiled(keras.Sequential(layers), "adam", keras.losses.Huber(), metrics=["mae"])


def _autoencoder() -> Any:
    layers = [
        keras.Input((8, 8, 3)),
        _L.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
        _L.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu"),
        _L.Conv2D(3, 3, padding="same", activation="sigmoid"),
    ]
    return _compiled(keras.Sequential(layers), "adam", "binary_crossentropy")


class Sampling(keras.layers.Layer):  # type: ignore[misc]
    """Draws from a normal distribution, and adds its distance from the standard one to the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(7)

    def call(self, inputs: Any) -> Any:
        mean, log_variance = inputs
        distance = -0.5 * (1 + log_variance - keras.ops.square(mean) - keras.ops.exp(log_variance))
        self.add_loss(keras.ops.mean(keras.ops.sum(distance, axis=1)))
        return mean + keras.ops.exp(0.5 * log_variance) * keras.random.normal(
            keras.ops.shape(mean), seed=self.seed_generator
        )


def _variational() -> Any:
    inputs = keras.Input((6,))
    hidden = _L.Dense(8, "relu")(inputs)
    drawn = Sampling()([_L.Dense(2)(hidden), _L.Dense(2)(hidden)])
    return _compiled(keras.Model(inputs, _L.Dense(6)(_L.Dense(8, "relu")(drawn))))


def _tickets() -> Any:
    title, body, tags = (
        keras.Input((None,), name="title"),
        keras.Input((None,), name="body"),
        keras.Input((4,), name="tags"),
    )
    words = [_L.LSTM(3)(_L.Embedding(20, 4)(part)) for part in (title, body)]
    x = _L.concatenate([*words, tags])
    outputs = {"priority": _L.Dense(1, name="priority")(x), "department": _L.Dense(3, name="department")(x)}
    return _compiled(
        keras.Model({"title": title, "body": body, "tags": tags}, outputs),
        "adam",
        {"priority": keras.losses.BinaryCrossentropy(from_logits=True), "department": _logits()},
        loss_weights={"priority": 1.0, "department": 0.2},
        metrics={"department": ["accuracy"]},
    )


def _siamese() -> Any:
    left, right = keras.Input((6,)), keras.Input((6,))
    tower = keras.Sequential([_L.Dense(5, "tanh"), _L.Dense(3)])
    distance = _L.Lambda(
        lambda pair: keras.ops.sum(keras.ops.square(pair[0] - pair[1]), axis=1, keepdims=True)
    )
    output = _L.Dense(1, "sigmoid")(distance([tower(left), tower(right)]))

    def contrastive(y: Any, predicted: Any) -> Any:
        y = keras.ops.cast(y, predicted.dtype)
        far = keras.ops.square(keras.ops.maximum(1.0 - predicted, 0.0))
        return keras.ops.mean((1 - y) * keras.ops.square(predicted) + y * far, axis=-1)

    return _compiled(keras.Model([left, right], output), "rmsprop", contrastive, metrics=["accuracy"])


def _base() -> Any:
    layers = [keras.Input((8, 8, 3)), _L.Conv2D(4, 3), _L.BatchNormalization(), _L.ReLU()]
    return keras.Sequential([*layers, _L.GlobalAveragePooling2D()], name="base")


def _transfer() -> Any:
    base = _base()
    base.trainable = False
    inputs = keras.Input((8, 8, 3))
    return _compiled(keras.Model(inputs, _L.Dense(3)(base(inputs, training=False))), "adam", _logits())


def _fine_tuning() -> Any:
    """The second stage: the base is trained, too, with a small rate, its statistics stay."""
    model = _transfer()
    model.fit(_IMAGES, _CLASSES, batch_size=_SAMPLES, verbose=0)
    model.get_layer("base").trainable = True
    for layer in model.get_layer("base").layers:
        if isinstance(layer, _L.BatchNormalization):
            layer.trainable = False
    return _compiled(model, _O.Adam(1e-4), _logits())


class Recommender(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.users = _L.Embedding(9, 4, embeddings_initializer="he_normal", embeddings_regularizer="l2")
        self.films = _L.Embedding(20, 4, embeddings_initializer="he_normal", embeddings_regularizer="l2")
        self.bias = _L.Embedding(9, 1)

    def call(self, inputs: Any) -> Any:
        user, film = self.users(inputs[:, 0]), self.films(inputs[:, 1])
        return keras.ops.sigmoid(keras.ops.sum(user * film, axis=1, keepdims=True) + self.bias(inputs[:, 0]))


def _recommender() -> Any:
    return _compiled(Recommender(), _O.Adam(0.01), "binary_crossentropy")


def _structured() -> Any:
    """Categories by number and by range, embedded inside the model (wide and deep)."""
    kind, age = keras.Input((1,), dtype="int64", name="kind"), keras.Input((1,), name="age")
    lookup = _L.IntegerLookup(vocabulary=[0, 1, 2, 3], output_mode="one_hot")
    ranges = _L.Discretization([-1.0, 0.0, 1.0], output_mode="one_hot")
    wide = _L.concatenate([lookup(kind), ranges(age)])
    output = _L.add([_L.Dense(1)(wide), _L.Dense(1)(_L.Dense(4, "relu")(wide))])
    metrics = [keras.metrics.Precision(0.0), keras.metrics.Recall(0.0), keras.metrics.AUC(from_logits=True)]
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return _compiled(keras.Model({"kind": kind, "age": age}, output), "ftrl", loss, metrics=metrics)


def _imbalanced() -> Any:
    layers = [keras.Input((6,)), _L.Dense(8, "relu"), _L.Dense(1, "sigmoid")]
    metrics = [keras.metrics.FalseNegatives(), keras.metrics.TruePositives(), keras.metrics.F1Score()]
    return _compiled(keras.Sequential(layers), _O.Adam(0.01), "binary_crossentropy", metrics=metrics)


def _translation() -> Any:
    source, target = keras.Input((None, 3)), keras.Input((None, 3))
    _, *states = _L.LSTM(4, return_state=True)(source)
    decoded = _L.LSTM(4, return_sequences=True)(target, initial_state=states)
    return _compiled(keras.Model([source, target], _L.Dense(5)(decoded)), "rmsprop", _logits())


def _padded_classifier() -> Any:
    layers = [keras.Input((7,), dtype="int32"), _L.Embedding(21, 4, mask_zero=True), _L.LSTM(3), _L.Dense(3)]
    return _compiled(keras.Sequential(layers), "adam", _logits())


def _tagger() -> Any:
    layers = [
        keras.Input((7,), dtype="int32"),
        _L.Embedding(21, 4, mask_zero=True),
        _L.LSTM(3, return_sequences=True),
        _L.Dense(3),
    ]
    return _compiled(keras.Sequential(layers), "adam", _logits())


def _segmentation() -> Any:
    inputs = keras.Input((8, 8, 3))
    down = _L.ReLU()(_L.BatchNormalization()(_L.SeparableConv2D(4, 3, padding="same")(inputs)))
    low = _L.Conv2D(4, 3, padding="same", activation="relu")(_L.MaxPooling2D()(down))
    up = _L.concatenate([_L.UpSampling2D()(low), down])
    metrics = [keras.metrics.MeanIoU(3, sparse_y_pred=False)]
    return _compiled(keras.Model(inputs, _L.Conv2D(3, 1)(up)), "adam", _logits(), metrics=metrics)


def _augmented() -> Any:
    inputs = keras.Input((8, 8, 3))
    x = _L.RandomRotation(0.1)(_L.RandomFlip("horizontal")(inputs))
    x = _L.Conv2D(4, 3, padding="same")(x)
    x = _L.GlobalAveragePooling2D()(_L.add([x, _L.DepthwiseConv2D(3, padding="same", activation="gelu")(x)]))
    return _compiled(keras.Model(inputs, _L.Dense(3)(x)), _O.SGD(0.1, momentum=0.9, nesterov=True), _logits())


class Distiller(keras.Model):  # type: ignore[misc]
    """A small model that learns from a large one, with a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.student = keras.Sequential([_L.Dense(4, "relu"), _L.Dense(3)])
        self.teacher = keras.Sequential([_L.Dense(9, "relu"), _L.Dense(3)])
        self.teacher.trainable = False

    def call(self, x: Any) -> Any:
        return self.student(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        soft = keras.ops.softmax(self.teacher(x, training=False) / 3.0)
        own = super().compute_loss(x, y, y_pred, sample_weight, training)
        distance = keras.losses.kl_divergence(soft, keras.ops.softmax(y_pred / 3.0))
        return 0.1 * own + 0.9 * 9.0 * keras.ops.mean(distance)


def _distillation() -> Any:
    return _compiled(Distiller(), "adam", _logits(), metrics=["accuracy"])


class OwnStep(keras.Model):  # type: ignore[misc]
    """As the guide on a `train_step` of one's own."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


def _own_step() -> Any:
    inputs = keras.Input((6,))
    return _compiled(OwnStep(inputs, _L.Dense(1)(_L.Dense(5, "tanh")(inputs))), metrics=["mae"])


class Adversaries(keras.Model):  # type: ignore[misc]
    """As the guide's generative adversarial network: two optimizers, two updates in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.judge = keras.Sequential([keras.Input((6,)), _L.Dense(1)])
        self.maker = keras.Sequential([keras.Input((2,)), _L.Dense(6)])
        self.seed_generator = keras.random.SeedGenerator(1)

    def compile(self, judge_optimizer: Any, maker_optimizer: Any) -> None:
        super().compile(optimizer=maker_optimizer)
        self.judge_optimizer = judge_optimizer

    def call(self, x: Any) -> Any:
        return self.judge(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        noise = keras.random.normal((keras.ops.shape(data[0])[0], 2), seed=self.seed_generator)
        with tf.GradientTape(persistent=True) as tape:
            made = self.judge(self.maker(noise))
            judged = keras.ops.mean(keras.ops.softplus(made) + keras.ops.softplus(-self.judge(data[0])))
            fooled = keras.ops.mean(keras.ops.softplus(-made))
        parts = (self.judge_optimizer, self.judge, judged), (self.optimizer, self.maker, fooled)
        for optimizer, part, loss in parts:
            optimizer.apply(tape.gradient(loss, part.trainable_weights), part.trainable_weights)
        return {"loss": judged}


def _adversaries() -> Any:
    model = Adversaries()
    model.compile(_O.Adam(0.01), _O.Adam(0.01))
    return model


def _pairs_of_a_batch() -> Any:
    """Metric learning: each sample's class is told by its likeness to the batch's other samples."""

    def alike(y: Any, predicted: Any) -> Any:
        likeness = keras.ops.matmul(predicted, keras.ops.transpose(predicted))
        same = keras.ops.cast(keras.ops.equal(y[:, None], y[None, :]), predicted.dtype)
        return keras.ops.mean(keras.ops.square(likeness - same), axis=-1)

    layers = [keras.Input((6,)), _L.Dense(4), _L.UnitNormalization()]
    return _compiled(keras.Sequential(layers), "adam", alike)


def _averaged() -> Any:
    layers = [keras.Input((6,)), _L.Dense(5, "tanh", kernel_regularizer="l1l2"), _L.Dense(3)]
    rate = _O.schedules.PiecewiseConstantDecay([2], [0.1, 0.01])
    optimizer = _O.SGD(rate, momentum=0.9, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)
    return _compiled(keras.Sequential(layers), optimizer, _logits())


def _weighted() -> Any:
    layers = [keras.Input((6,)), _L.Dense(5, "selu", kernel_constraint="max_norm"), _L.Dense(1)]
    return _compiled(keras.Sequential(layers), "adamax", "huber", weighted_metrics=["mae"])


def _labels() -> Any:
    """Several labels for one sample."""
    layers = [keras.Input((6,)), _L.Dense(5, "relu"), _L.Dense(4, "sigmoid")]
    loss = keras.losses.BinaryCrossentropy(label_smoothing=0.1)
    return _compiled(keras.Sequential(layers), _O.Nadam(0.01), loss, metrics=["binary_accuracy"])


def _quantiles() -> Any:
    def pinball(y: Any, predicted: Any) -> Any:
        error, shares = y - predicted, keras.ops.array([0.1, 0.5, 0.9], predicted.dtype)
        return keras.ops.mean(keras.ops.maximum(shares * error, (shares - 1) * error), axis=-1)

    return _compiled(keras.Sequential([keras.Input((6,)), _L.Dense(5, "relu"), _L.Dense(3)]), "lion", pinball)


def _points() -> Any:
    """Clouds of points, with a learned turn that a regulariser keeps near to a rotation."""

    def orthogonal(kernel: Any) -> Any:
        square = keras.ops.reshape(kernel, (-1, 3, 3))
        apart = keras.ops.einsum("nij,nkj->nik", square, square) - keras.ops.eye(3)
        return 0.001 * keras.ops.sum(keras.ops.square(apart))

    inputs = keras.Input((7, 3))
    turn = _L.GlobalMaxPooling1D()(_L.Conv1D(4, 1, activation="relu")(inputs))
    turn = _L.Reshape((3, 3))(_L.Dense(9, kernel_initializer="zeros", kernel_regularizer=orthogonal)(turn))
    x = _L.GlobalMaxPooling1D()(_L.Conv1D(4, 1)(_L.Dot(axes=(2, 1))([inputs, turn])))
    return _compiled(
        keras.Model(inputs, _L.Dense(3, "softmax")(x)), "adam", "sparse_categorical_crossentropy"
    )


def _mixed() -> Any:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        hidden = [keras.Input((8, 8, 3)), _L.Conv2D(4, 3, activation="relu"), _L.Flatten()]
        return _compiled(keras.Sequential([*hidden, _L.Dense(3, dtype="float32")]), _O.Adam(0.01), _logits())
    finally:
        keras.config.set_dtype_policy(before)


def _lora() -> Any:
    model = keras.Sequential([keras.Input((6,)), _L.Dense(5, "tanh"), _L.Dense(3)])
    model.layers[0].enable_lora(2)
    model.layers[1].trainable = False
    return _compiled(model, _O.AdamW(0.01), _logits())


def _volumes() -> Any:
    layers = [keras.Input((4, 4, 4, 1)), _L.Conv3D(2, 2, activation="relu"), _L.GlobalAveragePooling3D()]
    rate = _O.schedules.ExponentialDecay(0.01, 2, 0.9, staircase=True)
    return _compiled(
        keras.Sequential([*layers, _L.Dense(1, "sigmoid")]),
        _O.Adam(rate),
        "binary_crossentropy",
        metrics=["auc"],
    )


_TICKETS = {"title": _TOKENS, "body": _integers(20, 9), "tags": _numbers(4)}
_ROUTES = {"priority": _integers(2, 1), "department": _CLASSES}
_PEOPLE = {"kind": _integers(4, 1), "age": _numbers(1)}

PROJECTS: dict[str, Project] = {
    "regression on a table, Normalization.adapt": Project(_house_prices, (_TABLE, _numbers(1))),
    "image classification, convolutions and dropout": Project(_convnet, (_IMAGES, _CLASSES)),
    "images with augmentation and residuals": Project(_augmented, (_IMAGES, _CLASSES), floatx="float32"),
    "image segmentation, U-Net with BatchNormalization": Project(
        _segmentation, (_IMAGES, _integers(3, 8, 8))
    ),
    "convolutional autoencoder": Project(_autoencoder, (_IMAGES, 1 / (1 + np.exp(-_IMAGES)))),
    "variational autoencoder, add_loss": Project(_variational, (_TABLE, _TABLE)),
    "volumes, Conv3D, a staircase of rates": Project(_volumes, (_numbers(4, 4, 4, 1), _integers(2, 1))),
    "clouds of points, a regulariser of one's own": Project(_points, (_SERIES, _CLASSES)),
    "transfer learning, frozen base": Project(_transfer, (_IMAGES, _CLASSES)),
    "fine-tuning after a first fit": Project(_fine_tuning, (_IMAGES, _CLASSES)),
    "LoRA and frozen layers": Project(_lora, (_TABLE, _CLASSES)),
    "mixed_float16": Project(_mixed, (_IMAGES, _CLASSES), tolerance=5e-3, floatx="float32"),
    "text classification, bidirectional LSTM": Project(_bidirectional, (_TOKENS, _integers(2, 1))),
    "padded text, Embedding(mask_zero=True) and LSTM": Project(_padded_classifier, (_PADDED, _CLASSES)),
    "tags for padded text, masked output": Project(_tagger, (_PADDED, _integers(3, 7))),
    "language model, transformer block": Project(_transformer, (_TOKENS, _integers(20, 7))),
    "sequence to sequence, LSTM states": Project(_translation, ((_SERIES, _numbers(5, 3)), _integers(5, 5))),
    "forecast of a series, Conv1D and GRU": Project(_forecast, (_SERIES, _numbers(7, 2))),
    "several inputs and outputs, loss_weights": Project(_tickets, (_TICKETS, _ROUTES)),
    "pairs, shared layers, a loss of one's own": Project(_siamese, ((_TABLE, _numbers(6)), _integers(2, 1))),
    "recommendations, subclassed model of embeddings": Project(
        _recommender, (np.stack([_integers(9), _integers(20)], axis=1), _integers(2, 1))
    ),
    "categories, IntegerLookup and Discretization": Project(_structured, (_PEOPLE, _integers(2, 1))),
    "rare classes, class_weight": Project(
        _imbalanced, (_TABLE, _integers(2, 1)), {"class_weight": {0: 0.5, 1: 4.0}}
    ),
    "sample weights, a constraint, validation_split": Project(
        _weighted, (_TABLE, _numbers(1), np.abs(_numbers())), {"validation_split": 0.3}
    ),
    "several labels, label smoothing": Project(_labels, (_TABLE, _integers(2, 4).astype("float32"))),
    "quantiles, a loss of one's own": Project(_quantiles, (_TABLE, _numbers(1))),
    "averaged weights (EMA), a schedule": Project(_averaged, (_TABLE, _CLASSES)),
    "distillation, compute_loss of one's own": Project(_distillation, (_TABLE, _CLASSES)),
    "train_step of one's own": Project(_own_step, (_TABLE, _numbers(1))),
    "generative adversarial network": Project(_adversaries, (_TABLE, _CLASSES)),
    "metric learning, samples of a batch compared": Project(_pairs_of_a_batch, (_TABLE, _CLASSES)),
}


# ---- the document ------------------------------------------------------------------------------------------


def table(verdicts: Sequence[Verdict]) -> str:
    """The table as it stands in the document."""
    lines = ["| project | answer | why |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {one.name} | {one.answer} | {one.reason} |" for one in verdicts)])


def main() -> None:
    """Try every project and put the table into the document.

    Raises:
        SystemExit: If one trains otherwise than in Keras without being refused.
    """
    verdicts = [project_verdict(name) for name in PROJECTS]
    text = table(verdicts)
    print(text, flush=True)
    wrong = [one.name for one in verdicts if one.answer == "different"]
    if wrong:
        raise SystemExit(f"different from Keras, and not refused: {', '.join(wrong)}")
    DOCUMENT.write_text(replace_section(DOCUMENT.read_text(), SECTION, text))


if __name__ == "__main__":
    main()
