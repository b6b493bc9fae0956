"""Keras's learning-rate schedules, evaluated from their configurations without TensorFlow.

The formulas are those of `keras.optimizers.schedules`, in single precision and in the same order, so that the
rates are identical. `CosineDecayRestarts` is left to Keras: its restarts depend on the last bit of a logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import numpy as np

LearningRate = Callable[[int], np.float32]
"""Function from the number of earlier updates to the learning rate."""

_Steps = Annotated[float, msgspec.Meta(gt=0.0)]
_f = np.float32


class _Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object in Keras's serialised form."""

    module: str
    class_name: str
    config: dict[str, Any]
    registered_name: None = None


class _Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str | None = None

    def __call__(self, step: int) -> np.float32:
        raise NotImplementedError


class _Periodic(_Schedule, frozen=True):
    """One that goes by periods of so many steps; by whole ones if it is a staircase."""

    initial_learning_rate: float
    decay_steps: _Steps
    decay_rate: float
    staircase: bool = False

    def _periods(self, step: int) -> np.float32:
        periods = _f(step) / _f(self.decay_steps)
        return _f(np.floor(periods) if self.staircase else periods)


class _ExponentialDecay(_Periodic, frozen=True):
    """initial · rate^(step / steps)"""

    def __call__(self, step: int) -> np.float32:
        return _f(_f(self.initial_learning_rate) * np.power(_f(self.decay_rate), self._periods(step)))


class _InverseTimeDecay(_Periodic, frozen=True):
    """initial / (1 + rate · step / steps)"""

    def __call__(self, step: int) -> np.float32:
        return _f(_f(self.initial_learning_rate) / (_f(1) + _f(self.decay_rate) * self._periods(step)))


class _PolynomialDecay(_Schedule, frozen=True):
    """(initial - end) · (1 - step / steps)^power + end"""

    initial_learning_rate: float
    decay_steps: _Steps
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False

    def __call__(self, step: int) -> np.float32:
        at, steps, end = _f(step), _f(self.decay_steps), _f(self.end_learning_rate)
        if self.cycle:
            steps *= np.ceil(at / steps) if step else _f(1)
        left = _f(1) - min(at, steps) / steps
        return _f((_f(self.initial_learning_rate) - end) * np.power(left, _f(self.power)) + end)


class _CosineDecay(_Schedule, frozen=True):
    """A linear warm-up, if there is a target for it, then half a cosine down to `alpha` of the height."""

    initial_learning_rate: float
    decay_steps: _Steps
    alpha: float = 0.0
    warmup_target: float | None = None
    warmup_steps: float = 0.0

    def __call__(self, step: int) -> np.float32:
        at, top = _f(step), _f(self.initial_learning_rate)
        if self.warmup_target is not None:
            warmup, target = _f(self.warmup_steps), _f(self.warmup_target)
            if at < warmup:
                return _f((target - top) * (at / warmup) + top)
            at, top = at - warmup, target
        steps = _f(self.decay_steps)
        cosine = _f(0.5) * (_f(1) + np.cos(_f(math.pi) * (min(at, steps) / steps)))
        return _f(top * (_f(1.0 - self.alpha) * cosine + _f(self.alpha)))


class _PiecewiseConstantDecay(_Schedule, frozen=True):
    """`values[i]` up to and with step `boundaries[i]`, the last value from then on."""

    boundaries: Annotated[list[float], msgspec.Meta(min_length=1)]
    values: list[float]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.boundaries) + 1:
            raise ValueError("there must be one value more than boundaries")

    def __call__(self, step: int) -> np.float32:
        # Keras casts the boundaries to the step's integer type
        passed = sum(step > int(boundary) for boundary in self.boundaries)
        return _f(self.values[passed])


_SCHEDULES: dict[str, type[_Schedule]] = {
    "exponentialdecay": _ExponentialDecay,
    "inversetimedecay": _InverseTimeDecay,
    "polynomialdecay": _PolynomialDecay,
    "cosinedecay": _CosineDecay,
    "piecewiseconstantdecay": _PiecewiseConstantDecay,
}


def read_named(document: object, module: str) -> tuple[str, dict[str, Any]]:
    """Return the class name, in lower case, and the configuration of a serialised Keras object.

    Raises:
        msgspec.ValidationError: If the document does not have this form.
        ValueError: If the object is of another module.
    """
    named = msgspec.convert(document, _Named)
    if named.module != module:
        raise ValueError(f"it is of {named.module}, not of {module}")
    return named.class_name.lower(), named.config


def read_learning_rate(document: object) -> LearningRate:
    """Parse the learning rate of an optimizer's configuration: a number or a schedule.

    Raises:
        msgspec.ValidationError: If it is neither.
        ValueError: If the schedule is not supported here.
    """
    if isinstance(document, float):
        constant = _f(document)
        return lambda step: constant
    class_name, config = read_named(document, "keras.optimizers.schedules")
    if class_name not in _SCHEDULES:
        raise ValueError(f"the schedule {class_name} is left to Keras")
    return msgspec.convert(config, _SCHEDULES[class_name])
