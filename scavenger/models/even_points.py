"""Points that fill a cube evenly, to average over what is not known without chance."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.optimize import brentq

from scavenger.domain.curve import FloatArray


@lru_cache(maxsize=8)
def even_points(count: int, dimensions: int) -> FloatArray:
    """Points that fill the unit cube evenly, shape `(count, dimensions)`: multiples of powers of 1/g modulo 1, where
    g^(dimensions + 1) = g + 1, the golden ratio in one dimension. Unlike a grid, all of them differ in every
    coordinate, so that a law which the evidence pins down sharply is still met by some."""
    if dimensions == 1:
        return (np.arange(count)[:, None] + 0.5) / count
    ratio = float(brentq(lambda g: g ** (dimensions + 1) - g - 1.0, 1.0, 2.0, xtol=1e-15))
    steps = ratio ** -np.arange(1.0, dimensions + 1.0)
    return np.asarray((0.5 + np.outer(np.arange(1, count + 1), steps)) % 1.0)
