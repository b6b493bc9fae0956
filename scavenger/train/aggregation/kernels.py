"""Keras's common optimizers as arithmetic over one block of one tensor, for `scavenger.train.aggregation.update`.

Notation, each a flat array of one block: g gradient, w weights, t scratch space. A kernel reads the
old weights and slots, writes the new ones, and may overwrite g and t. Operations follow Keras's order and
use the tensor's own precision, so that results agree with Keras up to the last bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from scavenger.train.aggregation.schedules import LearningRate, read_learning_rate, read_named

Array = npt.NDArray[Any]
Kernel = Callable[[Array, Array, Sequence[Array], Array, Sequence[Array], Array], None]
"""`(g, old weights, old slots, new weights, new slots, t)`. An old and a new array may be the same."""

_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of all update rules, with the fields common to the configurations of Keras's optimizers.

    This module does not support `loss_scale_factor` and `gradient_accumulation_steps`: Keras itself handles a
    configuration with them.
    """

    name: str | None = None
    weight_decay: float | None = None
    clipnorm: float | None = None
    global_clipnorm: float | None = None
    clipvalue: float | None = None
    use_ema: bool = False
    ema_momentum: _Share = 0.99
    ema_overwrite_frequency: Annotated[int, msgspec.Meta(ge=1)] | None = None
    loss_scale_factor: None = None
    gradient_accumulation_steps: None = None

    def __post_init__(self) -> None:
        if sum(clip is not None for clip in (self.clipnorm, self.global_clipnorm, self.clipvalue)) > 1:
            raise ValueError("only one way of clipping can be set")

    @property
    def own_slots(self) -> dict[str, float]:
        """Names of each tensor's state arrays, with their initial values."""
        raise NotImplementedError

    @property
    def slots(self) -> dict[str, float]:
        """As `own_slots`, followed by the average of the weights if the optimizer keeps one."""
        return self.own_slots | ({"average": 0.0} if self.use_ema else {})

    def own_kernel(self, dtype: np.dtype[Any], learning_rate: np.float32, step: int) -> Kernel:
        """Build the kernel of the update itself. `step` counts from 1."""
        raise NotImplementedError

    def own_spares_zeros(self, dtype: np.dtype[Any]) -> bool:
        """Whether the update itself leaves weight and slots as they are where the gradient is zero."""
        return False

    def spares_zeros(self, dtype: np.dtype[Any]) -> bool:
        """Whether a step leaves weight and slots as they are, bit for bit, where the gradient is zero."""
        return self.own_spares_zeros(dtype) and not self.weight_decay and not self.use_ema

    def kernel(self, dtype: np.dtype[Any], learning_rate: np.float32, step: int) -> Kernel:
        """Build the kernel of a whole step for blocks of type `dtype`, except for clipping by norms."""
        own, of = self.own_kernel(dtype, learning_rate, step), dtype.type
        limit = of(self.clipvalue) if self.clipvalue and self.clipvalue > 0 else None
        decay = _cast(dtype, self.weight_decay) if self.weight_decay else None
        rate = of(learning_rate)
        # the first average is the weights themselves
        momentum = of(self.ema_momentum) if self.use_ema and step > 1 else of(0)
        every = self.ema_overwrite_frequency if self.use_ema else None
        overwrites = every is not None and step % every == 0
        averages = self.use_ema

        def kernel(
            g: Array, w: Array, old: Sequence[Array], out: Array, new: Sequence[Array], t: Array
        ) -> None:
            if limit is not None:
                np.clip(g, -limit, limit, out=g)
            if decay is not None:
                np.multiply(w, decay, out=out)
                np.multiply(out, rate, out=out)
                w = np.subtract(w, out, out=out)
            own(g, w, old, out, new, t)
            if averages:
                np.multiply(out, of(1) - momentum, out=t)
                np.multiply(old[-1], momentum, out=new[-1])
                np.add(new[-1], t, out=new[-1])
                if overwrites:
                    np.copyto(out, new[-1])

        return kernel


def _cast(dtype: np.dtype[Any], value: float) -> Any:
    """Cast a number of the configuration as Keras does: via single precision, even to double precision."""
    return dtype.type(np.float32(value))


class _SGD(Rule, frozen=True):
    momentum: _Share = 0.0
    nesterov: bool = False

    @property
    def own_slots(self) -> dict[str, float]:
        return {"momentum": 0.0} if self.momentum else {}

    def own_spares_zeros(self, dtype: np.dtype[Any]) -> bool:
        return not self.momentum

    def own_kernel(self, dtype: np.dtype[Any], learning_rate: np.float32, step: int) -> Kernel:
        """m ← μm - λg; w ← w + m, or w + μm - λg (Nesterov)"""
        rate, momentum, nesterov = dtype.type(learning_rate), _cast(dtype, self.momentum), self.nesterov

        def plain(
            g: Array, w: Array, old: Sequence[Array], out: Array, new: Sequence[Array], t: Array
        ) -> None:
            np.multiply(g, rate, out=g)
            np.subtract(w, g, out=out)

        def heavy(
            g: Array, w: Array, old: Sequence[Array], out: Array, new: Sequence[Array], t: Array
        ) -> None:
            np.multiply(g, rate, out=g)
            np.multiply(old[0], momentum, out=t)
            np.subtract(t, g, out=new[0])
            if nesterov:
                np.multiply(new[0], momentum, out=t)
                np.subtract(t, g, out=t)
                np.add(w, t, out=out)
            else:
                np.add(w, new[0], out=out)

        return heavy if self.momentum else plain


class _Adam(Rule, frozen=True):
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False

    @property
    def own_slots(self) -> dict[str, float]:
        return {"momentum": 0.0, "velocity": 0.0} | ({"velocity_hat": 0.0} if self.amsgrad else {})

    def own_kernel(self, dtype: np.dtype[Any], learning_rate: np.float32, step: int) -> Kernel:
        """m ← m + (g - m)(1 - β₁); v ← v + (g² - v)(1 - β₂); w ← w - αm / (√v + ε), α with both corrections"""
        of, amsgrad = dtype.type, self.amsgrad
        gain_1, gain_2, epsilon = of(1.0 - self.beta_1), of(1.0 - self.beta_2), of(self.epsilon)
        power_1, power_2 = (np.power(_cast(dtype, beta), of(step)) for beta in (self.beta_1, self.beta_2))
        alpha = of(learning_rate) * np.sqrt(of(1) - power_2) / (of(1) - power_1)

        def kernel(
            g: Array, w: Array, old: Sequence[Array], out: Array, new: Sequence[Array], t: Array
        ) -> None:
            np.subtract(g, old[0], out=t)
            np.multiply(t, gain_1, out=t)
            np.add(old[0], t, out=new[0])
            np.multiply(g, g, out=g)
            np.subtract(g, old[1], out=g)
            np.multiply(g, gain_2, out=g)
            velocity = np.add(old[1], g, out=new[1])
            if amsgrad:
                velocity = np.maximum(old[2], velocity, out=new[2])
            np.sqrt(velocity, out=t)
            np.add(t, epsilon, out=t)
            np.multiply(new[0], alpha, out=g)
            np.divide(g, t, out=g)
            np.subtract(w, g, out=out)

        return kernel


class _AdamW(_Adam, frozen=True, kw_only=True):
    weight_decay: float = 0.004


class _RMSprop(Rule, frozen=True):
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False

    @property
    def own_slots(self) -> dict[str, float]:
        kept = {"velocity": True, "average_gradient": self.centered, "momentum": self.momentum > 0}
        return {name: 0.0 for name, wanted in kept.items() if wanted}

    def own_kernel(self, dtype: np.dtype[Any], learning_rate: np.float32, step: int) -> Kernel:
        """v ← ρv + (1 - ρ)g²; w ← w - λg / √(v + ε), less the squared mean gradient if centered"""
        of, centered = dtype.type, self.centered
        rho, gain, epsilon, rate = of(self.rho), of(1.0 - self.rho), of(self.epsilon), of(learning_rate)
        momentum = of(self.momentum) if self.momentum > 0 else None

        def kernel(
            g: Array, w: Array, old: Sequence[Array], out: Array, new: Sequence[Array], t: Array
        ) -> None:
            np.multiply(g, g, out=t)
            np.multiply(t, gain, out=t)
            np.multiply(old[0], rho, out=new[0])
            np.add(new[0], t, out=new[0])
            if centered:
                np.multiply(g, gain, out=t)
                np.multiply(old[1], rho, out=new[1])
                np.add(new[1], t, out=new[1])
                np.multiply(new[1], new[1], out=t)
                np.subtract(new[0], t, out=t)
                np.add(t, epsilon, out=t)
            else:
                np.add(new[0], epsilon, out=t)
            np.sqrt(t, out=t)
            np.multiply(g, rate, out=g)
            np.divide(g, t, out=g)
            if momentum is None:
                np.subtract(w, g, out=out)
            else:
                at = 1 + centered
                np.multiply(old[at], momentum, out=new[at])
                np.add(new[at], g, out=new[at])
                np.subtract(w, new[at], out=out)

        return kernel


class _Adagrad(Rule, frozen=True):
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    @property
    def own_slots(self) -> dict[str, float]:
        return {"accumulator": float(np.float32(self.initial_accumulator_value))}

    def own_spares_zeros(self, dtype: np.dtype[Any]) -> bool:
        # where both are zero, the update of a weight is 0 / 0
        return bool(dtype.type(self.initial_accumulator_value) + dtype.type(self.epsilon) > 0)

    def own_kernel(self, dtype: np.dtype[Any], learning_rate: np.float32, step: int) -> Kernel:
        """a ← a + g²; w ← w - λg / √(a + ε)"""
        epsilon, rate = dtype.type(self.epsilon), dtype.type(learning_rate)

        def kernel(
            g: Array, w: Array, old: Sequence[Array], out: Array, new: Sequence[Array], t: Array
        ) -> None:
            np.multiply(g, g, out=t)
            np.add(old[0], t, out=new[0])
            np.add(new[0], epsilon, out=t)
            np.sqrt(t, out=t)
            np.multiply(g, rate, out=g)
            np.divide(g, t, out=g)
            np.subtract(w, g, out=out)

        return kernel


_RULES: dict[str, type[Rule]] = {
    "sgd": _SGD,
    "adam": _Adam,
    "adamw": _AdamW,
    "rmsprop": _RMSprop,
    "adagrad": _Adagrad,
}


def read_rule(optimizer: str) -> tuple[Rule, LearningRate] | None:
    """Parse Keras's serialised optimizer (JSON) as a rule; None if only Keras itself can apply it."""
    try:
        class_name, config = read_named(json.loads(optimizer), "keras.optimizers")
        if class_name not in _RULES:
            return None
        learning_rate = read_learning_rate(config.pop("learning_rate"))
        return msgspec.convert(config, _RULES[class_name]), learning_rate
    except (ValueError, KeyError):
        return None
