"""Arguments of `fit` and `compile` do what they do in Keras, or are refused."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from plain_keras import assert_as_fit, assert_close, by_fit, by_job

from scavenger.elastic.view import Share
from scavenger.errors import NotSupportedError
from scavenger.sdk import KerasJob
from scavenger.train.aggregation.keras_state import serialised
from scavenger.train.aggregation.loss_scale import make_update
from scavenger.train.aggregation.shard_state import ShardState
from scavenger.train.failure import DataError
from scavenger.train.transport.messages.values import TensorSpec
from scavenger.train.worker.program import Program
from scavenger.train.worker.samples import Samples

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


def ordinary(names: Iterable[str], *chosen: str) -> list[Any]:
    """Cases of which only the chosen ones run in ordinary runs, too."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.long) for name in names]


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


@pytest.mark.parametrize("share", [pytest.param(0.1, marks=pytest.mark.long), 0.25, 0.999])
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


class BatchesInOrder(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        return X[4 * index : 4 * index + 4], Y[4 * index : 4 * index + 4]


@pytest.mark.parametrize("given", [(X, Y), BatchesInOrder()], ids=["arrays", "PyDataset"])
def test_epochs_of_some_steps_in_the_order_of_the_data_go_on_through_it_as_in_fit(given: Any) -> None:
    arguments: dict[str, Any] = {"shuffle": False, "steps_per_epoch": 3, "batch_size": 4}
    program = Program(KerasJob(classifier(), given, **arguments))
    plain = classifier()
    plain.set_weights(program.model.get_weights())
    own = given if isinstance(given, tuple) else (given,)
    if not isinstance(given, tuple):
        del arguments["batch_size"]  # the data has it
    plain.fit(*own, epochs=5, verbose=0, **arguments)

    assert program.manifest.dataset_size == 12
    samples = Samples(program.train, 1, program.manifest.passes)
    for epoch in range(5):
        for low in range(0, 12, 4):
            program.model.train_on_batch(*samples.read(epoch, Share(low, low + 4)))
    samples.close()
    assert_close(program.model.get_weights(), plain.get_weights())


def test_steps_that_keras_cuts_short_at_the_end_of_the_data_are_refused() -> None:
    job = KerasJob(classifier(), (X, Y), steps_per_epoch=4, batch_size=7)
    with pytest.raises(NotSupportedError, match="epochs of 28 samples do not divide the 36 samples"):
        Program(job)
    with pytest.warns(UserWarning, match="ran out of data"):
        classifier().fit(X, Y, steps_per_epoch=4, batch_size=7, epochs=3, verbose=0)


def test_a_data_set_that_shuffles_itself_contradicts_an_order_of_its_own() -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(9).batch(4)
    with pytest.raises(DataError, match=r"shuffle=False, but the data set shuffles itself"):
        Program(KerasJob(classifier(), data, shuffle=False))


# ---- half precision ----------------------------------------------------------------------------------------


def in_policy(policy: str, optimizer: Any, **compile_with: Any) -> Any:
    """The classifier with layers of a policy, which `compile` sees."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return classifier(optimizer, **compile_with)
    finally:
        keras.config.set_dtype_policy(before)


_LARGE = [2.0**20]
"""Weight of a loss whose gradients overflow in single precision at scales that are finite there."""


def scaled(policy: str = "float32", *, scale: float = 2.0**15, growth: int = 2000, **options: Any) -> Any:
    inner = OPTIMIZERS.Adam(OPTIMIZERS.schedules.ExponentialDecay(0.05, 2, 0.5), **options)
    return in_policy(policy, OPTIMIZERS.LossScaleOptimizer(inner, scale, growth), loss_weights=_LARGE)


@pytest.mark.parametrize(
    ("policy", "scale", "growth", "steps"),
    [
        # the next but one has a mixed model
        pytest.param("mixed_float16", 2.0**15, 2000, 4, marks=pytest.mark.long),
        ("float32", 2.0**107, 2, 8),  # grows until a gradient overflows
        pytest.param("float32", 2.0**112, 3, 8, marks=pytest.mark.long),  # skips steps until it has shrunk
        pytest.param("float32", 777.0, 2000, 3, marks=pytest.mark.long),
    ],
)
def test_loss_scaling_skips_and_scales_as_in_keras(
    policy: str, scale: float, growth: int, steps: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.keras"
    tolerance = 2e-3 if policy == "mixed_float16" else 1e-5

    def build() -> Any:
        return scaled(policy, scale=scale, growth=growth)

    _, got = by_job(build, (X, Y), steps=steps, path=path)
    plain = by_fit(build, (X, Y), steps=steps)

    assert_close(got, plain.get_weights(), tolerance)
    saved = keras.models.load_model(path).optimizer
    assert int(saved.iterations) == int(plain.optimizer.iterations)
    assert [float(v) for v in saved.variables[2:4]] == [float(v) for v in plain.optimizer.variables[2:4]]
    assert_close(
        [v.numpy() for v in saved.variables], [v.numpy() for v in plain.optimizer.variables], tolerance
    )


def test_a_scale_that_has_shrunk_to_nothing_is_not_finite() -> None:
    """No later step could be applied, so the job ends there."""
    optimizer = OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.SGD(0.1), 2.0**-147)
    spec = TensorSpec("w", (2,), "float32", "trainable")
    update = make_update([spec], serialised(optimizer))
    weights, bad = [np.ones(2, "float32")], [np.full(2, np.nan, "float32")]
    slots, finite = update.initial_slots(weights), []
    for step in range(1, 4):
        after = [np.zeros_like(slot) for slot in slots]
        states = ShardState(weights, slots), ShardState([np.zeros(2, "float32")], after)
        norms = update.apply([(1, bad)], *states, step=step)
        finite.append(norms.finite)
        slots = after

    assert finite == [True, True, False]


def test_compile_scales_the_loss_of_a_mixed_model() -> None:
    model = in_policy("mixed_float16", "adam")
    assert isinstance(model.optimizer, OPTIMIZERS.LossScaleOptimizer)

    assert_as_fit(lambda: in_policy("mixed_float16", "adam"), (X, Y), tolerance=2e-3)


@pytest.mark.parametrize("policy", ordinary(["mixed_bfloat16", "bfloat16", "float16"], "bfloat16"))
def test_models_of_half_precision_are_those_of_keras_up_to_their_rounding(policy: str) -> None:
    def build() -> Any:
        return in_policy(policy, OPTIMIZERS.SGD(0.1, momentum=0.5))

    program = assert_as_fit(build, (X, Y), tolerance=3e-2)

    types = {tensor.dtype for tensor in program.manifest.tensors}
    assert types == {policy if "mixed" not in policy else "float32"}


# ---- an optimizer that has taken steps ---------------------------------------------------------------------

CONTINUED = {
    "Adam": lambda: OPTIMIZERS.Adam(OPTIMIZERS.schedules.CosineDecay(0.05, 9)),
    "Adamax, by Keras": lambda: OPTIMIZERS.Adamax(0.01),
    "momentum and accumulated gradients": lambda: OPTIMIZERS.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=3
    ),
    "two optimizers": lambda: OPTIMIZERS.MultiOptimizer(
        OPTIMIZERS.OptimizerMap(OPTIMIZERS.SGD(0.1), {".*kernel": OPTIMIZERS.Adam(0.01)})
    ),
    "loss scaling": lambda: OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.Adam(0.01), 2.0**107, 2),
}


@pytest.mark.parametrize("name", ordinary(CONTINUED, "two optimizers", "loss scaling"))
def test_a_model_that_was_trained_goes_on(name: str, tmp_path: Path) -> None:
    def build() -> Any:
        return classifier(CONTINUED[name](), loss_weights=_LARGE if name == "loss scaling" else None)

    earlier, later = tmp_path / "earlier.keras", tmp_path / "later.keras"
    by_fit(build, (X, Y), steps=5).save(earlier)
    plain = by_fit(build, (X, Y), steps=10)

    _, got = by_job(lambda: keras.models.load_model(earlier), (X, Y), steps=5, path=later)

    assert_close(got, plain.get_weights())
    saved = keras.models.load_model(later).optimizer.variables
    assert_close([v.numpy() for v in saved], [v.numpy() for v in plain.optimizer.variables])


# ---- weight constraints ------------------------------------------------------------------------------------

CONSTRAINTS = {
    "NonNeg": lambda: keras.constraints.NonNeg(),
    "UnitNorm": lambda: keras.constraints.UnitNorm(axis=1),
    "MaxNorm": lambda: keras.constraints.MaxNorm(0.5),
    "MaxNorm, several axes": lambda: keras.constraints.MaxNorm(1.0, axis=[0, 1]),
    "MinMaxNorm": lambda: keras.constraints.MinMaxNorm(0.9, 1.1, rate=0.7),
}


@pytest.mark.parametrize("name", ordinary(CONSTRAINTS, "MaxNorm, several axes"))
def test_constraints_hold_after_every_step_as_in_keras(name: str) -> None:
    def build() -> Any:
        layer = LAYERS.Dense(4, kernel_constraint=CONSTRAINTS[name](), bias_constraint="non_neg")
        return classifier(OPTIMIZERS.Adam(0.05, use_ema=True, ema_momentum=0.5), layer)

    assert_as_fit(build, (X, Y))


def test_a_step_that_loss_scaling_skips_leaves_even_the_constraints_alone() -> None:
    def build() -> Any:
        optimizer = OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.Adam(0.05), 2.0**112)
        return classifier(optimizer, LAYERS.Dense(4, kernel_constraint="unit_norm"), loss_weights=_LARGE)

    assert_as_fit(build, (X, Y), steps=1)


# ---- code of the user's ------------------------------------------------------------------------------------


class Halving(OPTIMIZERS.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule that halves the rate every other step."""

    def __init__(self, rate: Any) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return self.rate * 0.5 ** keras.ops.cast(step // 2, "float32")

    def get_config(self) -> dict[str, Any]:
        return {"rate": self.rate}


class Unsaved(OPTIMIZERS.schedules.LearningRateSchedule):  # type: ignore[misc]
    def __call__(self, step: Any) -> Any:
        return 0.1


class Taught(keras.Model):  # type: ignore[misc]
    def __init__(self, teacher: object) -> None:
        super().__init__()
        self.layer = LAYERS.Dense(3)

    def call(self, x: Any) -> Any:
        return self.layer(x)


def test_a_model_that_keras_cannot_save_is_refused_before_it_is_trained() -> None:
    model = Taught(object())
    model.compile("sgd", own_loss)

    with pytest.raises(NotSupportedError, match=r"cannot save the model: .*'Unsaved' must override"):
        Program(KerasJob(classifier(OPTIMIZERS.SGD(Unsaved())), (X, Y)))
    with pytest.raises(NotSupportedError, match="cannot save the model: Object Taught was created"):
        Program(KerasJob(model, (X, Y)))


RATES = {
    "a schedule": lambda: OPTIMIZERS.SGD(Halving(0.1), momentum=0.9),
    "a schedule, applied by Keras": lambda: OPTIMIZERS.Nadam(Halving(0.1), weight_decay=0.1),
    "a function": lambda: OPTIMIZERS.Adam(lambda: 0.02),
}


@pytest.mark.parametrize("name", ordinary(RATES, "a schedule", "a function"))
def test_a_learning_rate_of_ones_own_is_that_of_keras(name: str) -> None:
    program = assert_as_fit(lambda: classifier(RATES[name]()), (X, Y), steps=5)

    assert "Halving" not in program.manifest.optimizer
    other = Program(KerasJob(classifier(OPTIMIZERS.SGD(lambda: 0.3)), (X, Y)))
    assert program.manifest.architecture != other.manifest.architecture


@pytest.mark.parametrize("own", [False, True], ids=["Keras's", "of one's own"])
def test_a_schedule_is_as_far_after_an_epoch_as_at_the_jobs_own_batch(own: bool) -> None:
    schedule = Halving(0.1) if own else OPTIMIZERS.schedules.CosineDecay(0.1, 99)
    program = Program(KerasJob(classifier(OPTIMIZERS.SGD(schedule)), (X, Y)), schedule_batch=4)
    size, where = len(X), program.manifest.schedule_step
    per_epoch = -(-size // 4)

    # at the job's own batch, each step is one
    steps = [(epoch, start) for epoch in range(3) for start in range(0, size, 4)]
    assert [where(step, *at) for step, at in enumerate(steps)] == list(range(3 * per_epoch))
    assert where(5, 2, 0) == 2 * per_epoch  # whatever steps it took to get there
    assert where(1, 0, 16) == 4
    if own:
        assert program.rate(1, 0, 16) == pytest.approx(float(schedule(4)))


def test_a_rate_without_a_schedule_and_a_schedule_in_steps_count_steps() -> None:
    constant = Program(KerasJob(classifier(OPTIMIZERS.SGD(0.1)), (X, Y)), schedule_batch=4)
    assert constant.manifest.schedule_batch == 0
    kept = Program(KerasJob(classifier(OPTIMIZERS.SGD(OPTIMIZERS.schedules.CosineDecay(0.1, 99))), (X, Y)))
    assert kept.manifest.schedule_step(5, 2, 0) == 5


class Squared(LAYERS.Layer):  # type: ignore[misc]
    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", regularizer="l2")

    def call(self, x: Any) -> Any:
        return keras.ops.square(x) * self.scale


def own_loss(y: Any, predicted: Any) -> Any:
    return keras.ops.mean(keras.ops.square(predicted - keras.ops.one_hot(y, 3)), axis=-1)


def test_layers_and_losses_need_no_registration() -> None:
    assert_as_fit(lambda: classifier("adam", Squared(), loss=own_loss), (X, Y))


class OwnLoss(keras.Sequential):  # type: ignore[misc]
    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> Any:
        return own_loss(y, y_pred).mean() if hasattr(y_pred, "mean") else keras.ops.mean(own_loss(y, y_pred))


class OwnSteps(keras.Sequential):  # type: ignore[misc]
    """As the guide of Keras on `train_step` writes it, with a metric that counts samples."""

    distance = keras.metrics.MeanAbsoluteError(name="distance")

    def train_step(self, data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=predicted, sample_weight=sample_weight)
            loss += 0.1 * keras.ops.mean(keras.ops.square(predicted))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=keras.ops.shape(x)[0])
            else:
                metric.update_state(y, predicted)
        return {metric.name: metric.result() for metric in self.metrics}


class OwnTest(keras.Sequential):  # type: ignore[misc]
    """A test step that tells another loss than the training step."""

    def test_step(self, data: Any) -> Any:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        errors = keras.ops.mean(keras.ops.abs(self(x) - keras.ops.one_hot(y, 3)), axis=-1)
        self._loss_tracker.update_state(errors)
        return {"loss": self._loss_tracker.result()}


def subclassed(kind: type[Any], **compile_with: Any) -> Any:
    model = kind([keras.Input((5,)), LAYERS.Dense(4, activation="tanh"), LAYERS.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": OPTIMIZERS.Adam(0.01, clipnorm=0.1), "loss": loss, **compile_with})
    return model


def test_a_loss_and_steps_of_the_models_own_are_taken() -> None:
    assert_as_fit(lambda: subclassed(OwnLoss, loss=None), (X, Y))
    assert_as_fit(lambda: subclassed(OwnSteps), (X, Y, W))


def test_a_test_step_of_the_models_own_is_taken() -> None:
    program = Program(KerasJob(subclassed(OwnTest), (X, Y), (X[:11], Y[:11])))
    weights = program.initial_state()

    parts = [program.evaluate(weights, a, b, 3) for a, b in ((0, 5), (5, 11))]
    got = program.summarise(parts[0], [sum(values) for values in zip(*parts, strict=True)])

    expected = program.model.evaluate(X[:11], Y[:11], verbose=0, return_dict=True)
    assert got["val_loss"] == pytest.approx(expected["loss"], rel=1e-6)


class Twice(OwnSteps):
    def train_step(self, data: Any) -> Any:
        super().train_step(data)
        return super().train_step(data)


class Lossless(OwnSteps):
    def train_step(self, data: Any) -> Any:
        super().train_step(data)
        return {}


class Summed(OwnSteps):
    def compute_loss(self, y: Any = None, y_pred: Any = None, **others: Any) -> Any:
        return keras.ops.sum(own_loss(y, y_pred))


class Adversary(OwnSteps):
    """Moves weights itself."""

    def train_step(self, data: Any) -> Any:
        self.layers[0].bias.assign_add(keras.ops.ones(4))
        return super().train_step(data)


class Reader(OwnSteps):
    """A loss whose weight grows with the steps that the optimizer has taken."""

    def compute_loss(self, **arguments: Any) -> Any:
        return super().compute_loss(**arguments) * keras.ops.cast(1 + self.optimizer.iterations, "float32")


class Counter(OwnSteps):
    seen = tf.Variable(0.0, name="seen", trainable=False)

    def compute_loss(self, **arguments: Any) -> Any:
        type(self).seen.assign_add(1.0)
        return super().compute_loss(**arguments)


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (Twice, "applies gradients 2 times"),
        (Lossless, "must return its loss"),
        (Summed, "the loss of a batch"),
        (Adversary, "changes the trainable weights"),
        (Reader, "uses .*iteration.* of the optimizer"),
        (Counter, "changes the variable seen"),
    ],
)
def test_a_train_step_that_cannot_be_split_is_refused(kind: type[Any], complaint: str) -> None:
    with pytest.raises(NotSupportedError, match=complaint):
        Program(KerasJob(subclassed(kind), (X, Y)))


# ---- what else training depends on -------------------------------------------------------------------------


def frozen_later() -> Any:
    model = classifier()
    model.layers[0].trainable = False
    return model


def unused() -> Any:
    """A layer on which the loss does not depend, and decay of weights, from which Keras leaves it out."""
    inputs = keras.Input((5,))
    outputs = LAYERS.Dense(3)(inputs), LAYERS.Dense(2)(inputs)
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS.AdamW(0.01, weight_decay=0.5), [loss, None])
    return model


def with_lora() -> Any:
    model = classifier()
    model.layers[0].enable_lora(2)
    return classifier(OPTIMIZERS.Adam(0.01), *model.layers[:1])


TRAINED: dict[str, Any] = {
    "loss_weights": lambda: classifier(loss_weights=[0.3]),
    "weighted_metrics": lambda: classifier(weighted_metrics=["accuracy"]),
    "run_eagerly": lambda: classifier(run_eagerly=True),
    "steps_per_execution": lambda: classifier(steps_per_execution=3),
    "jit_compile": lambda: classifier(OPTIMIZERS.Adam(0.01), jit_compile=True),
    "auto_scale_loss": lambda: in_policy("mixed_float16", "sgd", auto_scale_loss=False),
    "a layer frozen after compile": frozen_later,
    "a layer without use": unused,
    "a layer with LoRA": with_lora,
}
"""Every other argument of `compile`, and attributes that change the training."""


@pytest.mark.parametrize("name", TRAINED)
def test_whatever_changes_the_training_changes_it_here_too(name: str) -> None:
    y = (Y, X[:, :2]) if name == "a layer without use" else Y
    assert_as_fit(TRAINED[name], (X, y), tolerance=2e-3 if name == "auto_scale_loss" else 1e-5)


def test_every_argument_of_compile_is_tried() -> None:
    arguments = set(inspect.signature(keras.Model.compile).parameters)

    assert arguments - set(TRAINED) == {"self", "optimizer", "loss", "metrics"}


def test_a_model_runs_eagerly_if_it_says_so() -> None:
    seen = []

    def loss(y: Any, predicted: Any) -> Any:
        seen.append(float(predicted.numpy()[0, 0]))  # only eager tensors have it
        return own_loss(y, predicted)

    assert_as_fit(lambda: classifier(loss=loss, run_eagerly=True), (X, Y))
    assert seen
