"""The hypermodels of these tests; worker processes import them."""

from __future__ import annotations

from typing import Any

import keras_tuner
from pipeline_code import model


def build(hp: Any) -> Any:
    """A small network; the name of one value is none that a function's argument could have."""
    return model(
        hp.Choice("layer/width", [4, 8]), hp.Choice("learning_rate", [0.5, 0.25, 0.1, 0.01], default=0.01)
    )


def other(hp: Any) -> Any:
    """Another function."""
    return build(hp)


class Conditional(keras_tuner.HyperModel):
    """A hypermodel with a value that is only there if another one is so."""

    def build(self, hp: Any) -> Any:
        """See `keras_tuner.HyperModel`."""
        width = hp.Int("width", 4, 8) if hp.Boolean("wide") else 2
        return model(width)


conditional = Conditional()
