"""Tries of a model's steps before training: they build what Keras builds lazily, and leave all values as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from scavenger.errors import NotSupportedError
from scavenger.train.failure import DataError
from scavenger.train.worker.steps import Steps, as_tensors


@contextlib.contextmanager
def left_as_it_was(model: Any) -> Iterator[None]:
    """Give the variables of a model their values back, also those that are built meanwhile, and reset its metrics."""
    values = [(v._value, tf.identity(v._value)) for v in model.variables]

    def remember(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        variable = next_creator(**arguments)
        with tf.init_scope():
            values.append((variable, tf.identity(variable)))
        return variable

    try:
        with tf.variable_creator_scope(remember):
            yield
    finally:
        for variable, value in values:
            variable.assign(value)
        model.reset_metrics()


def prepare(model: Any, steps: Steps, sample: tuple[Any, ...]) -> None:
    """Build the layers and metrics that Keras builds lazily, without changing weights and metrics.

    Raises:
        NotSupportedError: If the model's steps cannot be split over workers.
        DataError: If the sample does not go with the model.
    """
    with left_as_it_was(model):
        _try(model, steps, sample)


def _try(model: Any, steps: Steps, sample: tuple[Any, ...]) -> None:
    sample = as_tensors(sample)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(sample)
    if steps.own_train:
        if not model.built:
            model(x)
        steps.train(sample, model.trainable_variables)  # may build more
        return
    own_loss = type(model).compute_loss is not keras.Model.compute_loss
    if y is None and model.loss is not None and not own_loss:
        what = f"a dict with {', '.join(map(repr, list(x)[:4]))}" if isinstance(x, dict) else "one value"
        raise DataError(
            f"KerasJob.train: a sample is x alone, {what}, but the model's loss compares its output with y: make it "
            "a tuple (x, y) or (x, y, sample_weight), whose x and y may be dicts"
        )
    predicted = model(x, training=False) if model._call_has_training_arg else model(x)
    if not own_loss and model.loss is None and not model.losses:
        raise NotSupportedError(
            "the model is compiled without a loss, and no layer adds one: call model.compile(optimizer=..., "
            "loss=...)"
        )
    if any(getattr(leaf, "_keras_mask", None) is not None for leaf in keras.tree.flatten(predicted)):
        raise NotSupportedError(
            "the model's output carries a mask, so its loss is a mean over unmasked positions, which "
            "cannot be put together from parts of a batch; use sample weights"
        )
    if sample_weight is not None and any(
        getattr(loss, "reduction", None) == "mean_with_sample_weight"
        for loss in keras.tree.flatten(model.loss)
    ):
        raise NotSupportedError(
            "a loss with reduction 'mean_with_sample_weight' changes its meaning with the number of "
            "workers; use 'sum_over_batch_size'"
        )
    model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, training=False)
    model.compute_metrics(x, y, predicted, sample_weight=sample_weight)


def without_gradient(model: Any, steps: Steps, sample: tuple[Any, ...]) -> set[int]:
    """Return the ids of trainable variables that the loss does not depend on."""
    trainable = model.trainable_variables
    with left_as_it_was(model):
        _, gradients = steps.train(sample, trainable)
    return {id(v) for v, gradient in zip(trainable, gradients, strict=True) if gradient is None}


def check_evaluation(model: Any, steps: Steps, sample: tuple[Any, ...], variables: Sequence[Any]) -> None:
    """Refuse a model whose weights or states change in an evaluation, which `fit` would keep for training.

    Raises:
        NotSupportedError: Names the first of these variables that changes.
    """
    with left_as_it_was(model):
        before = [tf.identity(v._value) for v in variables]
        steps.test(sample)
        for variable, value in zip(variables, before, strict=True):
            if not bool(tf.reduce_all(tf.equal(variable._value, value))):
                raise NotSupportedError(
                    f"an evaluation changes the state {variable.path}, from which fit would go on training: several "
                    "workers evaluate at once, so change it in training alone"
                )
