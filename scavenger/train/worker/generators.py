"""The random generators of a model's layers, which draw by the positions of samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator

from scavenger.elastic.order import random_streams


class Generators:
    """The generators of a model, and the global one.

    Args:
        variables: Their states.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables
        # generators with the same seed draw the same numbers, as in Keras; the last stream is the global generator's
        first = [int(v.numpy()[0]) for v in variables]
        self._stream_of = [first.index(seed) for seed in first] + [len(first)]

    @property
    def count(self) -> int:
        """Number of generators, with the global one."""
        return len(self._stream_of)

    def streams(self, seed: int, position: int, *, evaluation: int = 0) -> Any:
        """Return the initial state of each random generator for samples from a position on."""
        return random_streams(seed, position, self.count, evaluation=evaluation)[self._stream_of]

    def draw_from(self, streams: Any) -> None:
        """Set the states of all; may be traced."""
        with tf.init_scope():  # Keras creates it on first use
            last = global_seed_generator().state
        for index, variable in enumerate([*self.variables, last]):
            variable.assign(tf.cast(streams[index], variable.dtype))
