"""Checks that refuse models whose training cannot be split over workers exactly; nothing is approximated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import keras

from scavenger.errors import NotSupportedError
from scavenger.train.aggregation.constraints import read_constraint
from scavenger.train.aggregation.keras_state import own_rate, parts_of

_DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint32",
    "bool",
)


def check_model(model: Any) -> None:
    """Refuse models, optimizers and losses whose training cannot be split over workers.

    Raises:
        NotSupportedError: Names the cause and, if there is one, a workaround.
    """
    if not isinstance(model, keras.Model):
        raise NotSupportedError(f"the job's model is a {type(model).__name__}, not a keras.Model")
    if not model.compiled or model.optimizer is None:
        raise NotSupportedError("the model is not compiled: call model.compile(optimizer=..., loss=...)")
    strategy = model._distribute_strategy
    if strategy is not None:
        raise NotSupportedError(
            f"the model is built in the scope of a {type(strategy).__name__}, but the job itself splits each batch "
            "over its workers: build and compile it outside of strategy.scope()"
        )
    _check_optimizer(model.optimizer)
    _check_layers(model)
    _check_quantisation(model.trainable_variables)
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
    for one in parts_of(optimizer):
        name = type(one).__name__
        if not type(one).__module__.startswith("keras."):
            raise NotSupportedError(
                f"the optimizer {name} is not one of Keras's own, so the aggregator, which runs no code of the "
                "user, cannot apply it"
            )
        if getattr(one, "_exclude_from_weight_decay", None) or getattr(
            one, "_exclude_from_weight_decay_pattern", None
        ):
            raise NotSupportedError(
                "exclude_from_weight_decay is not part of the optimizer's config and would be lost"
            )
        if own_rate(one) and (one is not optimizer or len(parts_of(optimizer)) > 1):
            raise NotSupportedError(
                "a learning rate that is code of the user's works with a single optimizer without loss scaling; use a "
                "number or one of keras.optimizers.schedules"
            )
        if isinstance(one, keras.optimizers.ScheduleFreeAdamW) and not one.built:
            raise NotSupportedError(
                "ScheduleFreeAdamW is to start from the weights, but starts from zeros where model.fit builds it: call "
                "model.optimizer.build(model.trainable_variables) after compile(), and it starts from the weights, "
                "in Keras and here"
            )
    chosen_by = getattr(parts_of(optimizer)[0], "_optimizer_map", None)
    if chosen_by is not None and not isinstance(chosen_by, keras.optimizers.OptimizerMap):
        raise NotSupportedError(
            "MultiOptimizer with a function of the user's cannot be applied by the aggregator, which runs no code "
            "of the user; give it a keras.optimizers.OptimizerMap"
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


def _check_quantisation(trainable: Sequence[Any]) -> None:
    for variable in trainable:
        if getattr(variable, "overwrite_with_gradient", False):
            raise NotSupportedError(
                f'{variable.path} is a scale of quantize("float8"), which each step replaces by what one batch '
                "makes of it, so the parts of a batch that workers compute would not agree: train without it, and "
                "quantize the saved model"
            )


def check_saving(model: Any) -> None:
    """Refuse a built model that Keras could not save at the end of the job.

    Raises:
        NotSupportedError: Says what to define.
    """
    try:
        keras.saving.serialize_keras_object(model)
    except (NotImplementedError, TypeError, ValueError) as error:
        first = " ".join(str(error).strip().split("\n\n")[0].split())
        raise NotSupportedError(f"Keras cannot save the model: {first or type(error).__name__}") from None


def notes_of_model(model: Any) -> tuple[str, ...]:
    """Where a model trains better than by `fit`, for the job's notes."""
    optimizers = [one for one in parts_of(model.optimizer) if not getattr(one, "optimizers", ())]
    names = [type(one).__name__ for one in optimizers if not _linear(one)]
    if not names or not any(isinstance(layer, keras.layers.Embedding) for layer in model._flatten_layers()):
        return ()
    return (
        f"KerasJob.model: where samples of a batch name one row of an Embedding, {names[0]} is given the sum of their "
        "gradients; fit on TensorFlow passes them on apart, so its weights differ (docs/keras.md#embeddings)",
    )


def _linear(optimizer: Any) -> bool:
    """Whether parts of a gradient make the same update apart as added first."""
    clips = any(getattr(optimizer, name, None) for name in ("clipnorm", "clipvalue", "global_clipnorm"))
    return isinstance(optimizer, (keras.optimizers.SGD, keras.optimizers.Lion)) and not clips


def constraint_of(variable: Any) -> str | None:
    """Return a variable's constraint as `Manifest.constraints` has it; None if it is not one of Keras's own."""
    if not type(variable.constraint).__module__.startswith("keras."):
        return None
    document = keras.constraints.serialize(variable.constraint)
    if not isinstance(document, dict) or "config" not in document:
        return None
    document["config"] = {**document["config"], "epsilon": keras.config.epsilon()}
    text = json.dumps(document)
    return None if read_constraint(text) is None else text


def check_variables(trainable: Sequence[Any], states: Sequence[Any]) -> None:
    """Refuse variables that the aggregator, which sees only tensors, would update incorrectly.

    Raises:
        NotSupportedError: Names the variable's path.
    """
    if not trainable:
        raise NotSupportedError("the model has no trainable weights")
    _check_quantisation(trainable)
    for variable in trainable:
        if variable.constraint is not None and constraint_of(variable) is None:
            name = getattr(variable.constraint, "__name__", type(variable.constraint).__name__)
            raise NotSupportedError(
                f"{variable.path} has the constraint {name}, "
                "which is code of the user's, and the aggregator does not run it; use one of keras.constraints"
            )
    for variable in [*trainable, *states]:
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if dtype not in _DTYPES:
            raise NotSupportedError(f"{variable.path} has type {dtype}; weights may be {', '.join(_DTYPES)}")
