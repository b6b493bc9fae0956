"""Checks that refuse models whose training cannot be split over workers exactly; nothing is approximated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from scavenger.errors import NotSupportedError

__all__ = ["check_model", "check_variables"]

_DTYPES = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint32", "bool")


def check_model(model: Any) -> None:
    """Refuse models, optimizers and losses whose training cannot be split over workers.

    Raises:
        NotSupportedError: Names the cause and, if there is one, a workaround.
    """
    if not isinstance(model, keras.Model):
        raise NotSupportedError(f"the job's model is a {type(model).__name__}, not a keras.Model")
    if not model.compiled or model.optimizer is None:
        raise NotSupportedError("the model is not compiled: call model.compile(optimizer=..., loss=...)")
    if type(model).train_step is not keras.Model.train_step:
        raise NotSupportedError(
            f"{type(model).__name__} has a train_step of its own, which cannot be split into gradients; "
            "put the loss into compute_loss"
        )
    if type(model).test_step is not keras.Model.test_step:
        raise NotSupportedError(
            f"{type(model).__name__} has a test_step of its own, which cannot be split over workers; put the "
            "loss into compute_loss"
        )
    _check_optimizer(model.optimizer)
    _check_layers(model)
    losses = keras.tree.flatten(model.loss)
    if any(
        getattr(loss, "reduction", None) in ("sum", "none", None) and hasattr(loss, "reduction")
        for loss in losses
    ):
        raise NotSupportedError(
            "a loss with reduction 'sum' or none changes its meaning with the number of workers; "
            "use 'sum_over_batch_size'"
        )


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise NotSupportedError(
            "loss scaling (LossScaleOptimizer, in which compile() wraps the optimizer of a mixed_float16 model) is "
            "not supported: compile with auto_scale_loss=False, or use the policy mixed_bfloat16, which needs none"
        )
    for one in (optimizer, *getattr(optimizer, "optimizers", ())):
        name = type(one).__name__
        if not type(one).__module__.startswith("keras."):
            raise NotSupportedError(
                f"the optimizer {name} is not one of Keras's own, so the aggregator, which runs no code of the "
                "user, cannot apply it"
            )
        if int(one.iterations.numpy()) > 0:
            raise NotSupportedError("the optimizer has taken steps already; compile the model again")
        if getattr(one, "_exclude_from_weight_decay", None) or getattr(
            one, "_exclude_from_weight_decay_pattern", None
        ):
            raise NotSupportedError(
                "exclude_from_weight_decay is not part of the optimizer's config and would be lost"
            )
        _check_learning_rate(one._learning_rate)
        if isinstance(one, keras.optimizers.ScheduleFreeAdamW) and not one.built:
            raise NotSupportedError(
                "ScheduleFreeAdamW is to start from the weights, but starts from zeros where model.fit builds it: call "
                "model.optimizer.build(model.trainable_variables) after compile(), and it starts from the weights, "
                "in Keras and here"
            )
    chosen_by = getattr(optimizer, "_optimizer_map", None)
    if chosen_by is not None and not isinstance(chosen_by, keras.optimizers.OptimizerMap):
        raise NotSupportedError(
            "MultiOptimizer with a function of the user's cannot be applied by the aggregator, which runs no code "
            "of the user; give it a keras.optimizers.OptimizerMap"
        )


def _check_learning_rate(rate: Any) -> None:
    schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    if schedule and type(rate).__module__.startswith("keras."):
        return
    if schedule or not isinstance(rate, keras.Variable):
        raise NotSupportedError(
            f"the learning rate {getattr(rate, '__name__', type(rate).__name__)} is code of the user's, which the "
            "aggregator does not run; use a number or one of keras.optimizers.schedules"
        )


def _check_layers(model: Any) -> None:
    aug_mix: Any = getattr(keras.layers, "AugMix", ())
    elastic: Any = getattr(keras.layers, "RandomElasticTransform", ())
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise NotSupportedError(
                f"{layer.name}: BatchNormalization(synchronized=True) needs the statistics of all workers, which "
                "they do not exchange; with synchronized=False each worker normalises its own part of the batch"
            )
        if isinstance(layer, aug_mix):
            raise NotSupportedError(
                f"{layer.name}: AugMix chooses its transformations once, with Python's random, when it is traced, so "
                "each worker would have others for good; use RandAugment, or AugMix in the data set"
            )
        if isinstance(layer, elastic):
            raise NotSupportedError(
                f"{layer.name}: RandomElasticTransform draws one displacement for all samples of a batch, so the parts "
                "of a batch that workers compute would have different ones; use it in the data set"
            )
        if getattr(layer, "stateful", False):
            raise NotSupportedError(
                f"{layer.name}: a stateful {type(layer).__name__} carries its state from batch to batch, but the "
                "next batch is computed by another worker; use stateful=False"
            )


def check_variables(trainable: Sequence[Any], states: Sequence[Any]) -> None:
    """Refuse variables that the aggregator, which sees only tensors, would update incorrectly.

    Raises:
        NotSupportedError: Names the variable's path.
    """
    if not trainable:
        raise NotSupportedError("the model has no trainable weights")
    for variable in trainable:
        if variable.constraint is not None:
            raise NotSupportedError(f"{variable.path} has a constraint, which the aggregator cannot apply")
        if getattr(variable, "overwrite_with_gradient", False):
            raise NotSupportedError(f"{variable.path} is overwritten with its gradient (quantised training)")
    for variable in [*trainable, *states]:
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if dtype not in _DTYPES:
            raise NotSupportedError(f"{variable.path} has type {dtype}; weights may be {', '.join(_DTYPES)}")
