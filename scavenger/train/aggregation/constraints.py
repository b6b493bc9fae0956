"""Keras's constraints on weights, applied after the optimizer's step without TensorFlow.

The formulas are those of `keras.constraints`, in the tensor's own precision.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import numpy as np

from scavenger.train.aggregation.kernels import Array
from scavenger.train.aggregation.schedules import read_named

_Axis = int | tuple[int, ...]


class Constraint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all constraints. `epsilon` is `keras.config.epsilon()` where the model was built."""

    epsilon: float = 1e-7

    def apply(self, weights: Array) -> None:
        """Change a tensor in place so that it fulfils the constraint."""
        raise NotImplementedError


class _NonNeg(Constraint, frozen=True):
    def apply(self, weights: Array) -> None:
        np.maximum(weights, 0, out=weights)


class _UnitNorm(Constraint, frozen=True):
    """w / (ε + |w|)"""

    axis: _Axis = 0

    def apply(self, weights: Array) -> None:
        weights /= weights.dtype.type(self.epsilon) + _norms(weights, self.axis)


class _MaxNorm(Constraint, frozen=True):
    """w · min(|w|, max) / (ε + |w|)"""

    max_value: float = 2.0
    axis: _Axis = 0

    def apply(self, weights: Array) -> None:
        norms = _norms(weights, self.axis)
        weights *= np.clip(norms, 0, weights.dtype.type(self.max_value)) / (
            weights.dtype.type(self.epsilon) + norms
        )


class _MinMaxNorm(Constraint, frozen=True):
    """w · n / (ε + |w|), n = rate · clip(|w|, min, max) + (1 - rate) · |w|"""

    min_value: float = 0.0
    max_value: float = 1.0
    rate: float = 1.0
    axis: _Axis = 0

    def apply(self, weights: Array) -> None:
        norms, of = _norms(weights, self.axis), weights.dtype.type
        wanted = (
            of(self.rate) * np.clip(norms, of(self.min_value), of(self.max_value)) + of(1 - self.rate) * norms
        )
        weights *= wanted / (of(self.epsilon) + norms)


_KINDS: dict[str, type[Constraint]] = {
    "nonneg": _NonNeg,
    "unitnorm": _UnitNorm,
    "maxnorm": _MaxNorm,
    "minmaxnorm": _MinMaxNorm,
}


def _norms(weights: Array, axis: int | Sequence[int]) -> Array:
    norms: Array = np.sqrt(
        np.sum(np.square(weights), axis=axis if isinstance(axis, int) else tuple(axis), keepdims=True)
    )
    return norms


def read_constraint(document: str) -> Constraint | None:
    """Parse Keras's serialised constraint (JSON), with an `epsilon`; None if it is none of Keras's."""
    try:
        name, config = read_named(json.loads(document), "keras.constraints")
        return msgspec.convert(config, _KINDS[name])
    except (ValueError, KeyError):
        return None
