"""A model as pure functions of weights and samples: shares add up, and what would not is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scavenger.errors import NotSupportedError
from scavenger.sdk import KerasJob
from scavenger.train.aggregation.keras_state import OptimizerState
from scavenger.train.failure import DataError
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.rows import Rows
from scavenger.train.worker.data import open_source
from scavenger.train.worker.fingerprint import architecture
from scavenger.train.worker.gradients import Gradient, rows_of
from scavenger.train.worker.memory import WorkerMemory
from scavenger.train.worker.parts import InParts
from scavenger.train.worker.program import Program

pytestmark = pytest.mark.slow

_RANDOM = np.random.default_rng(3)
X = _RANDOM.normal(size=(37, 5)).astype("float32")
Y = _RANDOM.integers(0, 3, size=37)
W = _RANDOM.uniform(0.1, 2.0, size=37).astype("float32")
LAYERS = keras.layers


def classifier(*hidden: Any, **compile_with: Any) -> Any:
    model = keras.Sequential([keras.Input((5,)), *hidden, LAYERS.Dense(3)])
    options = {
        "optimizer": keras.optimizers.SGD(0.1),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": ["accuracy"],
    }
    model.compile(**{**options, **compile_with})
    return model


def gradient(program: Program, weights: Sequence[Any], start: int, stop: int, *, seed: int = 1) -> Gradient:
    """Of the samples from `start` to `stop`."""
    batch = program.train.batch(np.arange(start, stop))
    return program.gradient(weights, batch, seed=seed, position=start)


def in_shares(program: Program, parts: Sequence[int], samples: int) -> list[Any]:
    """The mean gradient, put together from consecutive shares of the first samples."""
    weights = program.initial_state()
    bounds = [0, *np.cumsum(parts)]
    assert bounds[-1] == samples
    results = [gradient(program, weights, a, b).gradients for a, b in pairwise(bounds)]
    return [
        sum(n / samples * part for n, part in zip(parts, tensor, strict=True))
        for tensor in zip(*results, strict=True)
    ]


def assert_equal(a: Sequence[Any], b: Sequence[Any], tolerance: float = 1e-5) -> None:
    for left, right in zip(a, b, strict=True):
        scale = max(float(np.abs(right).max(initial=0)), 1e-6)
        assert float(np.abs(left - right).max(initial=0)) <= tolerance * scale


def whole(program: Program, samples: int) -> Gradient:
    return gradient(program, program.initial_state(), 0, samples)


def with_noise(program: Program, samples: int) -> tuple[Gradient, Gradient]:
    """The gradient of the first samples, without the gradient noise and with it."""
    one, batch = whole(program, samples), program.train.batch(np.arange(samples))
    return one, InParts(program, print).with_noise(one, program.initial_state(), batch, seed=1, position=0)


def noise_of_halves(program: Program, samples: int) -> float:
    """Mean |g_k|² over the halves, computed as on two workers, over |g|² of their mean."""
    weights, middle = program.initial_state(), samples // 2
    halves = [gradient(program, weights, *ends).gradients for ends in ((0, middle), (middle, samples))]
    sizes = middle / samples, 1 - middle / samples
    dense = [
        [
            g.dense(tuple(t.shape)) if isinstance(g, Rows) else g
            for g, t in zip(half, program.manifest.tensors, strict=False)
        ]
        for half in halves
    ]
    mean = [sum(n * g for n, g in zip(sizes, both, strict=True)) for both in zip(*dense, strict=True)]
    return sum(n * square(half) for n, half in zip(sizes, dense, strict=True)) / square(mean)


def square(gradients: Sequence[Any]) -> float:
    return sum(float(np.sum(g.astype("float64") ** 2)) for g in gradients)


@pytest.fixture(scope="module")
def plain() -> Program:
    hidden = LAYERS.Dense(4, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1))
    return Program(KerasJob(classifier(hidden), (X, Y), (X[:11], Y[:11])))


@pytest.fixture(scope="module")
def rich() -> Program:
    """Two inputs in a dict, two outputs, sample weights, and a regulariser."""
    a, b = keras.Input((5,), name="a"), keras.Input((2,), name="b")
    joined = LAYERS.Concatenate()([LAYERS.Dense(4, activation="relu", kernel_regularizer="l1")(a), b])
    model = keras.Model(
        {"a": a, "b": b}, {"c": LAYERS.Dense(3, name="c")(joined), "d": LAYERS.Dense(1, name="d")(joined)}
    )
    model.compile(
        "adam",
        loss={"c": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "d": "mse"},
        loss_weights={"c": 1.0, "d": 0.3},
        metrics={"c": ["accuracy"]},
        weighted_metrics={"d": ["mae"]},
    )
    data = ({"a": X, "b": X[:, :2]}, {"c": Y, "d": X[:, :1]}, {"c": W, "d": W[::-1]})
    return Program(KerasJob(model, data, data))


@pytest.fixture(scope="module")
def normalised() -> Program:
    return Program(KerasJob(classifier(LAYERS.Dense(4), LAYERS.BatchNormalization()), (X, Y)))


@pytest.mark.parametrize("parts", [[20], [10, 10], [7, 7, 6], [1] * 20])
def test_shares_averaged_by_samples_are_the_gradient_of_the_whole_batch(
    plain: Program, rich: Program, parts: list[int]
) -> None:
    for program in (plain, rich):
        assert_equal(in_shares(program, parts, 20), whole(program, 20).gradients)


@pytest.mark.parametrize("samples", [2, 3, 20, 21])
def test_the_noise_is_that_of_the_halves_and_changes_nothing_else(
    plain: Program, rich: Program, samples: int
) -> None:
    for program in (plain, rich):
        one, noisy = with_noise(program, samples)

        assert noisy.half_sqnorm / square(one.gradients) == pytest.approx(
            noise_of_halves(program, samples), rel=1e-4
        )
        assert replace(noisy, half_sqnorm=0.0) == one
        assert one.half_sqnorm == 0.0


def test_a_single_sample_has_no_noise(plain: Program) -> None:
    one, noisy = with_noise(plain, 1)
    assert noisy is one


def test_the_gradient_is_kerass_own(plain: Program) -> None:
    model = keras.models.clone_model(plain.model)
    model.compile(
        keras.optimizers.SGD(1.0), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    model.set_weights(plain.model.get_weights())
    before = model.get_weights()
    model.train_on_batch(X[:20], Y[:20])

    moved = [a - b for a, b in zip(before, model.get_weights(), strict=True)]

    assert_equal(whole(plain, 20).gradients, moved, 1e-4)


def test_metric_sums_of_shares_make_the_metrics_that_keras_tells(plain: Program, rich: Program) -> None:
    for program in (plain, rich):
        weights = program.initial_state()
        count = program.manifest.validation_size
        parts = [program.evaluate(weights, a, b, 4) for a, b in ((0, 5), (5, 6), (6, count), (count, count))]
        sums = [sum(values) for values in zip(*parts, strict=True)]
        got = program.summarise(sums, sums)

        data = program.validation.batch(np.arange(count))  # type: ignore[union-attr]
        x, y, w = keras.utils.unpack_x_y_sample_weight(data)
        expected = program.model.evaluate(
            x, y, sample_weight=w, batch_size=count, return_dict=True, verbose=0
        )

        # the losses of single outputs are Keras's means over batches, not over samples
        names = [name for name in expected if name in ("loss",) or not name.endswith("_loss")]
        assert len(names) >= 2
        for name in names:
            assert got[f"val_{name}"] == pytest.approx(expected[name], rel=1e-5)
        assert set(program.manifest.metric_names) == set(got)


def test_dropout_draws_from_the_seed_and_from_nothing_else() -> None:
    def build() -> Program:
        keras.utils.set_random_seed(5)
        return Program(KerasJob(classifier(LAYERS.Dense(40), LAYERS.Dropout(0.5)), (X, Y)))

    one, other = build(), build()
    weights = one.initial_state()

    def draw(program: Program, seed: int) -> Any:
        return gradient(program, weights, 0, 20, seed=seed).gradients

    first = draw(one, 7)
    draw(one, 8)
    assert_equal(draw(one, 7), first, 1e-7)
    assert_equal(draw(other, 7), first, 1e-6)
    assert not np.allclose(draw(one, 8)[0], first[0])


def test_the_noise_of_a_model_that_combines_samples_is_that_of_the_halves_and_changes_nothing_else(
    normalised: Program,
) -> None:
    one, noisy = with_noise(normalised, 21)

    assert noisy.half_sqnorm / square(one.gradients) == pytest.approx(
        noise_of_halves(normalised, 21), rel=1e-4
    )
    assert replace(noisy, half_sqnorm=0.0) == one
    assert normalised.mixes_samples


def test_a_model_combines_samples_only_where_a_normalisation_trains(plain: Program) -> None:
    frozen = LAYERS.BatchNormalization(trainable=False)

    assert not plain.mixes_samples
    assert not Program(KerasJob(classifier(LAYERS.Dense(4), frozen), (X, Y))).mixes_samples


def test_a_gradient_is_a_function_of_the_weights_it_is_given(plain: Program) -> None:
    weights = plain.initial_state()
    first = whole(plain, 20).gradients
    gradient(plain, [w + 1 for w in weights], 0, 20)
    plain.evaluate([w - 1 for w in weights], 0, 5, 2)

    assert_equal(gradient(plain, weights, 0, 20).gradients, first, 1e-7)


def test_frozen_layers_are_no_part_of_the_gradient() -> None:
    frozen = LAYERS.Dense(4)
    frozen.trainable = False
    program = Program(KerasJob(classifier(frozen), (X, Y)))

    roles = {tensor.path.split("/")[-2]: tensor.role for tensor in program.manifest.tensors}

    assert sorted(roles.values()) == ["mean", "trainable"]
    assert_equal(whole(program, 20).states, program.initial_state()[2:], 0.0)


def looked_up(rows: int, *, twice: bool = False, tied: bool = False) -> Program:
    """A table of which 20 samples name 5 rows each, some of them often."""
    words = keras.Input((5,), dtype="int32")
    table = (LAYERS.ReversibleEmbedding if tied else LAYERS.Embedding)(rows, 4)
    x = table(words) + table(words + 1) if twice else table(words)
    x = keras.ops.mean(x, axis=1)
    x = table(x, reverse=True) if tied else LAYERS.Dense(1)(x)
    model = keras.Model(words, keras.ops.sum(x, axis=1))
    model.compile("sgd", "mse")
    indices = np.concatenate(
        [_RANDOM.integers(0, 9, (20, 4)), _RANDOM.integers(9, rows - 1, (20, 1))], axis=1
    )
    return Program(KerasJob(model, (indices.astype("int32"), X[:20, 0])))


def test_the_gradient_of_a_small_table_is_a_whole_tensor() -> None:
    program = looked_up(11)

    assert whole(program, 20).gradients[0].shape == (11, 4)
    assert_equal(in_shares(program, [5, 15], 20), whole(program, 20).gradients)


@pytest.mark.parametrize("twice", [False, True])
def test_the_gradient_of_a_large_table_is_that_of_its_rows_bit_for_bit(
    twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = looked_up(300, twice=twice)
    _, dense = with_noise(program, 20)
    monkeypatch.setattr("scavenger.train.worker.gradients._SPARSE_FROM", 1200)
    _, sparse = with_noise(Program(KerasJob(program.model, (program.train.batch(np.arange(20))))), 20)

    rows, *others = sparse.gradients
    assert isinstance(rows, Rows)
    assert np.all(np.diff(rows.indices) > 0)
    np.testing.assert_array_equal(rows.dense((300, 4)), dense.gradients[0])
    assert_equal(others, dense.gradients[1:], 0.0)
    assert sparse.half_sqnorm == pytest.approx(dense.half_sqnorm, rel=1e-5)


def test_a_table_that_is_multiplied_with_too_has_a_dense_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scavenger.train.worker.gradients._SPARSE_FROM", 1200)

    (got,) = whole(looked_up(300, tied=True), 20).gradients

    assert got.shape == (300, 4)


def test_rows_that_a_table_lacks_have_no_gradient() -> None:
    # a GPU looks zeros up there
    values = tf.reshape(tf.range(10.0), (5, 2))

    rows = rows_of(tf.IndexedSlices(values, tf.constant([7, 2, -1, 0, 3], tf.int64), tf.constant([3, 2])))

    assert rows.indices.tolist() == [0, 2]
    assert rows.values.tolist() == [[6, 7], [2, 3]]


def test_a_slot_has_the_rows_of_a_sparse_gradient_if_they_are_smaller() -> None:
    program, fd = looked_up(300), create_block()
    memory = WorkerMemory(fd, program.manifest, 1, program)
    at, result = memory.layout.slot_at(0), whole(program, 20)
    (table,) = memory.block.tensors(at, [0])
    for count, sparse in ((0, True), (100, True), (199, True), (200, False), (300, False), (7, True)):
        rows = Rows(np.arange(count), np.asarray(_RANDOM.normal(size=(count, 4)), "float32"))
        table[...] = np.nan

        told, square = memory.write(replace(result, gradients=[rows, *result.gradients[1:]]), 0)

        assert told == (((0, count),) if sparse else ())
        assert memory.layout.accepts(told)
        got = memory.block.rows(at, 0, count).dense((300, 4)) if sparse else table
        np.testing.assert_array_equal(got, rows.dense((300, 4)))
        written = (rows.values, *result.gradients[1:])
        assert square == pytest.approx(sum(float(np.vdot(g, g)) for g in written), rel=1e-5)
    os.close(fd)


class Samples:
    """A map-style data set over the same arrays."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


def test_a_map_style_data_set_trains_as_its_arrays_do(plain: Program) -> None:
    model = keras.models.clone_model(plain.model)
    model.compile("sgd", plain.model.loss)
    program = Program(KerasJob(model, Samples()))
    indices = np.array([3, 30, 4])

    got, expected = (
        p.gradient(plain.initial_state(), p.train.batch(indices), seed=1, position=0).gradients
        for p in (program, plain)
    )

    assert_equal(got, expected)


def test_a_saved_model_is_a_plain_keras_model_with_the_given_weights(plain: Program, tmp_path: Path) -> None:
    weights = [w + 0.25 for w in plain.initial_state()]
    path = tmp_path / "deep" / "model.keras"

    plain.save(weights, path, OptimizerState(7, 0.5, {}))

    loaded = keras.models.load_model(path)
    assert_equal(loaded.get_weights(), weights, 0.0)
    assert int(loaded.optimizer.iterations) == 7
    assert float(loaded.optimizer.learning_rate) == pytest.approx(0.05)  # half of what the user wrote
    assert [file.name for file in path.parent.iterdir()] == ["model.keras"]


def test_a_model_that_cannot_be_saved_leaves_the_last_file_alone(
    plain: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.keras"
    path.write_text("the last one")

    def fails(partial: Path) -> None:
        partial.write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(plain.model, "save", fails)

    with pytest.raises(OSError, match="no space"):
        plain.save(plain.initial_state(), path, OptimizerState(0, 1.0, {}))
    assert path.read_text() == "the last one"
    assert list(tmp_path.iterdir()) == [path]


def test_two_models_of_one_making_have_one_architecture_and_others_another() -> None:
    def known_by(units: int, activation: str = "relu") -> str:
        return architecture(classifier(LAYERS.Dense(units, activation)), open_source((X, Y), "train"))

    assert known_by(4) == known_by(4)
    assert len({known_by(4), known_by(5), known_by(4, "tanh")}) == 3


def test_another_loss_or_other_targets_are_another_job_but_other_inputs_are_not() -> None:
    def known_by(x: Any = X, y: Any = Y, **compile_with: Any) -> str:
        return architecture(classifier(**compile_with), open_source((x, y), "train"))

    def own_loss(y: Any, predicted: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)

    here = Program(KerasJob(classifier(), (X, Y))).manifest.architecture
    assert known_by(2 * X) == here == known_by()
    others = [
        known_by(y=Y[::-1].copy()),
        known_by(loss=keras.losses.SparseCategoricalCrossentropy()),
        known_by(loss=own_loss),
    ]
    assert len({here, *others}) == 4
    assert known_by(loss=own_loss) == others[2]


# ---- what is refused ---------------------------------------------------------------------------------------


class OwnTrainStep(keras.Sequential):  # type: ignore[misc]
    def train_step(self, data: Any) -> Any:
        return {}


class OwnOptimizer(keras.optimizers.SGD):  # type: ignore[misc]
    pass


class Largest(keras.metrics.Metric):  # type: ignore[misc]
    """A metric that is no sum."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(predicted))))

    def result(self) -> Any:
        return self.value


def contrast(y: Any, predicted: Any) -> Any:
    """A loss that compares the samples of a batch with each other."""
    return keras.ops.mean(keras.ops.square(predicted - keras.ops.mean(predicted, axis=0)))


def subclass(kind: type[Any]) -> Any:
    model = kind([keras.Input((5,)), LAYERS.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def excluding() -> Any:
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return classifier(optimizer=optimizer)


def untrainable() -> Any:
    model = classifier()
    model.trainable = False
    return model


def stateful() -> Any:
    model = keras.Sequential([keras.Input((5, 1), batch_size=4), LAYERS.GRU(3, stateful=True)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def float8() -> Any:
    model = classifier(LAYERS.Dense(16))
    model.layers[0].quantize("float8")
    return model


def mirrored() -> Any:
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        return classifier()


def masked() -> Any:
    model = keras.Sequential([keras.Input((5,)), LAYERS.Embedding(9, 3, mask_zero=True), LAYERS.Dense(1)])
    model.compile("sgd", "mse")
    return model


class Penalty(LAYERS.Layer):  # type: ignore[misc]
    """Adds a loss in training alone, made of the whole batch."""

    def __init__(self, penalty: Callable[[Any], Any]) -> None:
        super().__init__()
        self.penalty = penalty

    def get_config(self) -> dict[str, Any]:
        return {}

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(self.penalty(x))
        return x


class Compared(keras.Sequential):  # type: ignore[misc]
    """A loss that compares samples with each other in training alone."""

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: Any = True,
    ) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.1 * contrast(y, y_pred) if training else loss


class Summing(LAYERS.Layer):  # type: ignore[misc]
    """Its state is no mean over samples."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.add_weight(shape=(), initializer="zeros", trainable=False, name="total")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.total.assign_add(keras.ops.sum(keras.ops.abs(x)))
        return x


class Noise(LAYERS.Layer):  # type: ignore[misc]
    """Draws at random, in inference too."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(keras.ops.shape(x), seed=self.seed_generator)


class Unseeded(LAYERS.Layer):  # type: ignore[misc]
    """Draws what no generator of Keras decides."""

    def call(self, x: Any) -> Any:
        return x + 0.1 * tf.random.normal(tf.shape(x))


class Turned(LAYERS.Layer):  # type: ignore[misc]
    """Draws in another order than row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        rows, columns = keras.ops.shape(x)[0], x.shape[1]
        return x + keras.ops.transpose(keras.random.normal((columns, rows), seed=self.seed_generator))


def rooted(y: Any, predicted: Any) -> Any:
    """A loss that is a function of the mean."""
    losses = keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
    return keras.ops.sqrt(keras.ops.mean(losses))


def faint(x: Any) -> Any:
    """A sum of which four samples show little beside the loss."""
    return 1e-4 * keras.ops.sum(keras.ops.square(x))


def across(x: Any) -> Any:
    return 0.1 * keras.ops.mean(keras.ops.square(keras.ops.mean(x, axis=0)))


def summed(x: Any) -> Any:
    return keras.ops.sum(keras.ops.square(x))


REFUSALS: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "no model": (lambda: "model", (X, Y), "not a keras.Model"),
    "not compiled": (lambda: keras.Sequential([keras.Input((5,)), LAYERS.Dense(1)]), (X, Y), "not compiled"),
    "a train_step without an update": (lambda: subclass(OwnTrainStep), (X, Y), "applies gradients 0 times"),
    "its own optimizer": (lambda: classifier(optimizer=OwnOptimizer()), (X, Y), "not one of Keras's own"),
    "a schedule-free start from zeros": (
        lambda: classifier(optimizer=keras.optimizers.ScheduleFreeAdamW()),
        (X, Y),
        "model.optimizer.build(model.trainable_variables)",
    ),
    "a schedule of one's own inside loss scaling": (
        lambda: classifier(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(lambda: 0.1))),
        (X, Y),
        "with a single optimizer without loss scaling",
    ),
    "optimizers chosen by a function": (
        lambda: classifier(
            optimizer=keras.optimizers.MultiOptimizer(lambda variable: keras.optimizers.SGD(0.1))
        ),
        (X, Y),
        "keras.optimizers.OptimizerMap",
    ),
    "spectral normalisation": (
        lambda: classifier(LAYERS.SpectralNormalization(LAYERS.Dense(4))),
        (X, Y),
        "as the layer SpectralNormalization does",
    ),
    "synchronised normalisation": (
        lambda: classifier(LAYERS.Dense(4), LAYERS.BatchNormalization(synchronized=True)),
        (X, Y),
        "synchronized=False",
    ),
    "a stateful layer": (stateful, (X[:36].reshape(36, 5, 1), Y[:36]), "use stateful=False"),
    "a state that is no mean": (lambda: classifier(Summing()), (X, Y), "is not the mean of what it makes"),
    "a penalty across the batch in training": (
        lambda: classifier(LAYERS.Dense(4), Penalty(across)),
        (X, Y),
        "in training, the loss of a batch",
    ),
    "a penalty behind dropout": (
        lambda: classifier(LAYERS.Dropout(0.3), LAYERS.Dense(4), Penalty(across)),
        (X, Y),
        "in training, the loss of a batch",
    ),
    "a summed penalty behind dropout": (
        lambda: classifier(LAYERS.Dropout(0.3), LAYERS.Dense(4), Penalty(summed)),
        (X, Y),
        "in training, the loss of a batch",
    ),
    "a penalty beside normalisation": (
        lambda: classifier(LAYERS.Dense(4), LAYERS.BatchNormalization(), Penalty(across)),
        (X, Y),
        "in training, the loss of a batch",
    ),
    "samples compared in training": (lambda: subclass(Compared), (X, Y), "in training, the loss of a batch"),
    "a loss across the batch, with noise": (
        lambda: classifier(Noise(), loss=contrast),
        (X, Y),
        "not the mean of its samples'",
    ),
    "a loss across the batch, with draws by columns": (
        lambda: classifier(Turned(), loss=contrast),
        (X, Y),
        "not the mean of its samples'",
    ),
    "a summed penalty, with draws of TensorFlow's": (
        lambda: classifier(Unseeded(), Penalty(summed)),
        (X, Y),
        "in training, the loss of a batch",
    ),
    "a summed loss": (
        lambda: classifier(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        ),
        (X, Y),
        "reduction 'sum'",
    ),
    "a loss over weights": (
        lambda: classifier(
            loss=keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction="mean_with_sample_weight"
            )
        ),
        (X, Y, W),
        "mean_with_sample_weight",
    ),
    "a loss across the batch": (lambda: classifier(loss=contrast), (X, Y), "not the mean of its samples'"),
    "weights of 8 bits": (float8, (X, Y), 'is a scale of quantize("float8")'),
    "copies on several devices": (mirrored, (X, Y), "in the scope of a MirroredStrategy"),
    "the root of a mean loss": (lambda: classifier(loss=rooted), (X, Y), "not the mean of its samples'"),
    "the root of a mean loss behind dropout": (
        lambda: classifier(LAYERS.Dropout(0.3), loss=rooted),
        (X, Y),
        "not the mean of its samples'",
    ),
    "a faint summed penalty": (
        lambda: classifier(Penalty(faint)),
        (X, Y),
        "in training, the loss of a batch",
    ),
    "a masked output": (masked, (np.abs(X).astype("int32"), X), "mask"),
    "decay with exceptions": (excluding, (X, Y), "exclude_from_weight_decay"),
    "a constraint": (
        lambda: classifier(LAYERS.Dense(2, kernel_constraint=lambda w: keras.ops.abs(w))),
        (X, Y),
        "which is code of the user's",
    ),
    "nothing to train": (
        untrainable,
        (X, Y),
        "no trainable weights",
    ),
    "lengths that differ": (classifier, (X, Y[:-1]), "disagree on the number of samples"),
    "no sample": (classifier, (X[:0], Y[:0]), "no sample"),
    "objects": (classifier, (np.array([{}] * 3, dtype=object), Y[:3]), "Python objects"),
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))])
def test_a_summed_penalty_behind_dropout_is_refused_whatever_the_weights(seed: int) -> None:
    keras.utils.set_random_seed(seed)
    model = classifier(LAYERS.Dropout(0.3), LAYERS.Dense(4), Penalty(summed))

    with pytest.raises(NotSupportedError, match="in training, the loss of a batch"):
        Program(KerasJob(model, (X, Y)))


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_split_exactly_is_refused_in_one_line(case: str) -> None:
    model, data, complaint = REFUSALS[case]
    keras.utils.set_random_seed(5)  # what draws at random is checked with a few draws only
    job = KerasJob(model(), data)

    with pytest.raises((NotSupportedError, DataError)) as caught:
        Program(job)

    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "layers",
    [
        [Noise],
        [Unseeded],
        [Turned],
        [lambda: LAYERS.Dropout(0.5), lambda: LAYERS.GaussianNoise(1.0)],
        [lambda: LAYERS.Dense(4), LAYERS.BatchNormalization, lambda: LAYERS.Dropout(0.3)],
        [lambda: LAYERS.Dense(4), lambda: Penalty(lambda x: keras.ops.mean(keras.ops.square(x)))],
        [lambda: LAYERS.Dropout(0.3), lambda: Penalty(lambda x: keras.ops.mean(keras.ops.square(x)))],
    ],
)
def test_layers_that_draw_at_random_and_penalties_of_samples_are_not_refused(layers: list[Any]) -> None:
    program = Program(KerasJob(classifier(*[layer() for layer in layers]), (X, Y)))

    assert np.isfinite(whole(program, 10).loss)


@pytest.mark.parametrize("hidden", [(), (Noise,)])
def test_a_metric_that_is_no_sum_is_computed_by_one_worker_over_the_validation_data(hidden: Any) -> None:
    model = classifier(*[layer() for layer in hidden], metrics=["accuracy", Largest()])
    program = Program(KerasJob(model, (X, Y), (X[:11], Y[:11])))
    weights = program.initial_state()

    parts = [program.evaluate(weights, a, b, 4, seed=2) for a, b in ((4, 11), (0, 4), (11, 11))]
    got = program.summarise(parts[1], [sum(values) for values in zip(*parts, strict=True)])

    assert set(got) == {"loss", "accuracy", "val_loss", "val_accuracy", "val_largest"}
    assert set(program.manifest.metric_names) == set(got)
    if not hidden:
        expected = model.evaluate(X[:11], Y[:11], verbose=0, return_dict=True)
        assert got["val_largest"] == pytest.approx(expected["largest"], rel=1e-6)
        assert got["val_accuracy"] == pytest.approx(expected["accuracy"], rel=1e-6)


def test_metrics_of_the_batch_are_those_of_fit_with_batches_of_the_job() -> None:
    def range_of_batch(y: Any, predicted: Any) -> Any:
        return keras.ops.max(predicted) - keras.ops.min(predicted)

    def mean_of_batch(y: Any, predicted: Any) -> Any:
        return keras.ops.mean(predicted)

    model = classifier(metrics=[range_of_batch, mean_of_batch])
    program = Program(KerasJob(model, (X, Y), (X, Y)))
    weights = program.initial_state()
    expected = model.evaluate(X, Y, batch_size=14, verbose=0, return_dict=True)
    for workers in (1, 2, 3):
        ends = np.linspace(0, len(X), workers + 1).astype(int)
        parts = [
            program.evaluate(weights, a, b, 14 // workers, whole_batch_size=14)
            for a, b in pairwise(ends.tolist())
        ]
        sums = [sum(values) for values in zip(*parts, strict=True)]
        got = program.summarise(sums, sums)

        for name in ("range_of_batch", "mean_of_batch"):
            assert got[f"val_{name}"] == pytest.approx(expected[name], rel=1e-6), (name, workers)
        assert got["val_loss"] == pytest.approx(expected["loss"], rel=1e-5), workers


def test_trying_a_model_leaves_it_as_it_was() -> None:
    model = classifier(LAYERS.Dense(4), LAYERS.BatchNormalization(), LAYERS.Dropout(0.3))
    before = model.get_weights()

    program = Program(KerasJob(model, (X, Y)))

    assert_equal(model.get_weights(), before, 0.0)
    assert all(layer.trainable for layer in model.layers)
    assert len(program.manifest.tensors) == 8


def test_a_scaled_loss_gives_the_scaled_gradient_that_the_optimizer_divides(plain: Program) -> None:
    model = keras.models.clone_model(plain.model)
    model.compile(keras.optimizers.SGD(0.1, loss_scale_factor=128.0), plain.model.loss)
    scaled = Program(KerasJob(model, (X, Y)))

    got, expected = whole(scaled, 20), gradient(plain, scaled.initial_state(), 0, 20)

    assert_equal(got.gradients, [128 * g for g in expected.gradients], 1e-5)
    assert got.loss == pytest.approx(expected.loss)


def test_validation_data_of_another_shape_is_an_error_before_training() -> None:
    program = Program(KerasJob(classifier(), (X, Y), (X[:, :3], Y)))

    with pytest.raises(ValueError, match="shape"):
        program.evaluate(program.initial_state(), 0, 4, 4)


def test_validation_data_need_not_have_the_weights_that_training_data_have() -> None:
    program = Program(KerasJob(classifier(), (X, Y, W), (X[:9], Y[:9].astype("int32"))))
    weights = program.initial_state()

    sums = program.evaluate(weights, 0, 9, 4)

    expected = program.model.evaluate(X[:9], Y[:9], verbose=0, return_dict=True)
    assert program.summarise(sums, sums)["val_loss"] == pytest.approx(expected["loss"], rel=1e-5)
