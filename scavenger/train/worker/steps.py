"""Training and test steps of the user's model: Keras's own, or those that the model defines.

A `train_step` of the model's own runs as it is, with one exception: where it would apply gradients with the compiled
optimizer, they are taken from it, because the aggregator applies the mean of all workers' gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from scavenger.errors import NotSupportedError


class Steps:
    """Steps of one model.

    Args:
        model: Compiled.

    Attributes:
        own_train, own_test: Whether the model defines its `train_step` and its `test_step`.
        loss_scale: With dynamic loss scaling, the factor on the loss, by which gradients are divided again.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.own_train = type(model).train_step is not keras.Model.train_step
        self.own_test = type(model).test_step is not keras.Model.test_step
        self._scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        self.loss_scale = tf.Variable(1.0, trainable=False)

    def train(self, batch: tuple[Any, ...], variables: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Compute loss and gradients of a batch, and update the metrics, as a training step does.

        Returns:
            The loss, and the gradient of each variable: sparse if only some of its rows have one, None if the loss
            does not depend on it.

        Raises:
            NotSupportedError: If the model's `train_step` does not apply the gradients of all its samples once.
        """
        compute = self._by_own_step if self.own_train else self._by_keras
        loss, gradients = compute(as_tensors(batch), variables)
        return loss, [None if g is None else self._unscaled(g) for g in gradients]

    def test(self, batch: tuple[Any, ...]) -> Any:
        """Update the metrics as a test step does; returns the loss, None if the model does not tell it."""
        model = self._model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(as_tensors(batch))
        if self.own_test:
            logs = model.test_step(keras.utils.pack_x_y_sample_weight(x, y, sample_weight))
            return logs.get("loss") if isinstance(logs, dict) else None
        loss = self._forward(x, y, sample_weight, training=False)
        self._tell(x, loss)
        return loss

    def forward(self, batch: tuple[Any, ...]) -> Any:
        """Update states and metrics as Keras's training step does before it computes gradients; returns the loss."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(as_tensors(batch))
        return self._forward(x, y, sample_weight, training=True)

    def _forward(self, x: Any, y: Any, sample_weight: Any, *, training: bool) -> Any:
        model = self._model
        predicted = model(x, training=training) if model._call_has_training_arg else model(x)
        loss = model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, training=training)
        model.compute_metrics(x, y, predicted, sample_weight=sample_weight)
        return loss

    def _tell(self, x: Any, loss: Any) -> None:
        self._model._loss_tracker.update_state(loss, sample_weight=tf.shape(tf.nest.flatten(x)[0])[0])

    def _by_keras(self, batch: tuple[Any, ...], variables: Sequence[Any]) -> tuple[Any, list[Any]]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            loss = self._forward(x, y, sample_weight, training=True)
            scaled = self._scaled(loss)
        self._tell(x, loss)
        return loss, tape.gradient(scaled, [v.value for v in variables])

    def _by_own_step(self, batch: tuple[Any, ...], variables: Sequence[Any]) -> tuple[Any, list[Any]]:
        model, name = self._model, type(self._model).__name__
        data = keras.utils.pack_x_y_sample_weight(*keras.utils.unpack_x_y_sample_weight(batch))
        metrics = [v for metric in model.metrics for v in metric.variables]
        before = [tf.identity(v.value) for v in metrics]
        for metric in model.metrics:  # what the step tells is then the loss of this batch alone
            metric.reset_state()
        with self._recorded() as (applied, afterwards):
            logs = model.train_step(data)
        for variable, value in zip(metrics, before, strict=True):
            variable.assign(variable.value + value)
        if len(applied) != 1:
            raise NotSupportedError(
                f"the train_step of {name} applies gradients {len(applied)} times with the compiled optimizer; workers "
                "compute one gradient per step: apply once, with self.optimizer"
            )
        if not isinstance(logs, dict) or "loss" not in logs:
            raise NotSupportedError(
                f'the train_step of {name} must return its loss: a dict with the key "loss"'
            )
        found = {id(variable): gradient for gradient, variable in applied[0]}
        if strange := set(found) - {id(variable) for variable in variables}:
            paths = [v.path for _, v in applied[0] if id(v) in strange]
            raise NotSupportedError(
                f"the train_step of {name} applies gradients to {paths[0]}, which is no trainable weight of the model"
            )
        updated = {v._value.ref(): v.path for gradient, v in applied[0] if gradient is not None}
        read = {v.ref() for tape in afterwards for v in tape.watched_variables()}
        if late := [path for variable, path in updated.items() if variable in read]:
            raise NotSupportedError(
                f"the train_step of {name} reads {late[0]} after it has applied the gradients, where it is the "
                "updated weight in fit: workers have it in the next step only, so read it before the update, or move "
                "what follows from it (an average of weights, a copy) to the beginning of the step"
            )
        return logs["loss"], [found.get(id(variable)) for variable in variables]

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[tuple[list[list[tuple[Any, Any]]], list[tf.GradientTape]]]:
        """Record gradients instead of applying them, and which weights are read afterwards.

        Keras's `apply_gradients` calls `apply`.
        """
        optimizer, applied = self._model.optimizer, list[list[tuple[Any, Any]]]()
        afterwards: list[tf.GradientTape] = []

        def apply(grads: Any, trainable_variables: Any = None) -> None:
            variables = (
                self._model.trainable_variables if trainable_variables is None else trainable_variables
            )
            applied.append(list(zip(grads, variables, strict=True)))
            if not afterwards:
                afterwards.append(reads.enter_context(tf.GradientTape()))

        # in the instance's own namespace, past Keras's tracking of attributes
        vars(optimizer).update(apply=apply, scale_loss=self._scaled)
        try:
            with contextlib.ExitStack() as reads:
                yield applied, afterwards
        finally:
            del vars(optimizer)["apply"], vars(optimizer)["scale_loss"]

    def _scaled(self, loss: Any) -> Any:
        if self._scales:
            return keras.ops.multiply(loss, self.loss_scale)
        optimizer = self._model.optimizer
        return type(optimizer).scale_loss(
            optimizer, loss
        )  # the aggregator's optimizer divides by the same factor

    def _unscaled(self, gradient: Any) -> Any:
        if not self._scales:
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            values = self._unscaled(gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        # in single precision: in half precision the scale itself may overflow
        return tf.cast(tf.cast(gradient, tf.float32) / self.loss_scale, gradient.dtype)


def as_tensors(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a batch as steps get it from Keras's `fit`: of tensors."""
    tensors: tuple[Any, ...] = tf.nest.map_structure(tf.convert_to_tensor, batch)
    return tensors


def compiled(model: Any, function: Callable[..., Any], signature: Sequence[Any]) -> Callable[..., Any]:
    """Compile a function as `compile(run_eagerly=..., jit_compile=...)` of the model says."""
    if model.run_eagerly:
        return lambda *args: function(*tf.nest.map_structure(tf.convert_to_tensor, args))
    # Keras converts no code of the user's either (it marks its steps so), and converting ours takes half of a start
    traced: Callable[..., Any] = tf.function(
        function,
        input_signature=signature,
        jit_compile=True if model.jit_compile else None,
        autograph=False,
    )
    return traced
