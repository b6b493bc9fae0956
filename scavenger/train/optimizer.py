"""The master copy of the weights and the model's own Keras optimizer, applied to averaged gradients."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from scavenger.errors import NotSupportedError
from scavenger.train.messages import TensorSpec

__all__ = ["Contribution", "MasterWeights", "average"]

Array = npt.NDArray[Any]
Contribution = tuple[int, Sequence[Array]]
"""Samples, and one gradient per trainable tensor."""


def average(contributions: Sequence[Contribution], out: Sequence[Array]) -> tuple[float, float]:
    """The sample-weighted mean gradient, and the norms from which the gradient noise is told.

    Tensor by tensor, so that each gradient is read from memory once and its norm while it is in the cache.

    Args:
        contributions: At least one with samples; those without any are passed over.
        out: Where the mean goes, one array per tensor.

    Returns:
        `(mean |g_k|^2 weighted by samples, |g|^2)`, in double precision from single-precision dot products.
    """
    counted = [(samples, gradients) for samples, gradients in contributions if samples > 0]
    total = sum(samples for samples, _ in counted)
    squares = np.zeros(len(counted))
    mean_square = 0.0
    for index, target in enumerate(out):
        for k, (samples, gradients) in enumerate(counted):
            gradient = gradients[index]
            flat = gradient.reshape(-1)
            squares[k] += float(np.dot(flat, flat))
            weight = target.dtype.type(samples / total)
            if k == 0:
                np.multiply(gradient, weight, out=target)
            else:
                target += weight * gradient
        flat = target.reshape(-1)
        mean_square += float(np.dot(flat, flat))
    weights = np.array([samples for samples, _ in counted], dtype=np.float64) / total
    return float(weights @ squares), mean_square


class MasterWeights:
    """The trainable tensors of a job and its optimizer.

    Args:
        tensors: The trainable tensors.
        values: Their initial values.
        optimizer: Keras's serialised optimizer, JSON: a configuration, never code.

    Raises:
        NotSupportedError: If the configuration is not that of one of Keras's own optimizers.
    """

    def __init__(self, tensors: Sequence[TensorSpec], values: Sequence[Array], optimizer: str) -> None:
        try:
            self._optimizer = keras.optimizers.deserialize(json.loads(optimizer))
            if not isinstance(self._optimizer, keras.optimizers.Optimizer):
                raise TypeError("it names none of Keras's own")
        except (TypeError, ValueError, KeyError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise NotSupportedError(
                f"the optimizer cannot be built from its configuration: {first}"
            ) from None
        self._variables = [_variable(tensor, value) for tensor, value in zip(tensors, values, strict=True)]
        self._optimizer.build(self._variables)
        specs = [tf.TensorSpec(tensor.shape, tf.as_dtype(tensor.dtype)) for tensor in tensors]
        self._step = tf.function(self._apply, input_signature=[specs])

    def _apply(self, gradients: list[Any]) -> list[Any]:
        self._optimizer.apply(gradients, self._variables)
        return [tf.identity(v.value) for v in self._variables]

    def apply(self, gradients: Sequence[Array], out: Sequence[Array]) -> None:
        """One step of the optimizer; the new weights are written to `out`."""
        for value, target in zip(self._step(list(gradients)), out, strict=True):
            np.copyto(target, value.numpy())

    def finalise(self, out: Sequence[Array]) -> None:
        """What Keras does at the end of training: put averaged weights, if there are any, in place."""
        self._optimizer.finalize_variable_values(self._variables)
        for variable, target in zip(self._variables, out, strict=True):
            np.copyto(target, variable.numpy())


def _variable(tensor: TensorSpec, value: Array) -> Any:
    """A variable under the path that it has in the model, by which some optimizers tell layers apart."""
    *scopes, name = tensor.path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(value, dtype=tensor.dtype, name=name)
