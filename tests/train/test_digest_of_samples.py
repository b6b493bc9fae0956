"""The digest that tells one data set from another with the same targets."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from scavenger.elastic.order import Blocks
from scavenger.train.worker.data.blocks import BlockSource
from scavenger.train.worker.data.items import ArraySource, ItemSource
from scavenger.train.worker.fingerprint import digest_of_samples

pytestmark = pytest.mark.slow

X = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
Y = np.arange(100)


class Items:
    """Samples one by one, scaled, or augmented by chance."""

    def __init__(self, scale: float = 1.0, noise: float = 0.0) -> None:
        self.scale, self.noise, self.random = scale, noise, np.random.default_rng(1)

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> Any:
        return self.scale * X[index] + self.noise * self.random.normal(size=3), Y[index]


def test_other_inputs_with_the_same_targets_are_other_data() -> None:
    assert digest_of_samples(ArraySource((X, Y)), None) == digest_of_samples(ArraySource((X.copy(), Y)), None)
    assert digest_of_samples(ArraySource((X, Y)), None) != digest_of_samples(ArraySource((2 * X, Y)), None)
    assert digest_of_samples(ItemSource(Items()), None) != digest_of_samples(ItemSource(Items(2.0)), None)
    assert digest_of_samples(ArraySource((X, Y)), None) != digest_of_samples(
        ArraySource((X, Y)), ArraySource((X[:9], Y[:9]))
    )


def test_samples_that_are_augmented_by_chance_are_not_compared() -> None:
    assert digest_of_samples(ItemSource(Items(noise=0.1)), None) == ""
    assert digest_of_samples(ArraySource((X, Y)), ItemSource(Items(noise=0.1))) == ""


def test_batches_are_read_again_for_the_second_reading() -> None:
    readings = itertools.count()

    def read(block: int, noise: float) -> Any:
        rows = slice(10 * block, 10 * block + 10)
        return X[rows] + noise * next(readings), Y[rows]

    steady, noisy = (
        BlockSource(lambda block, noise=noise: read(block, noise), Blocks.alike(100, 10))
        for noise in (0.0, 0.1)
    )
    assert digest_of_samples(steady) == digest_of_samples(steady) != ""
    assert digest_of_samples(noisy) == ""


def test_data_that_is_read_in_sequence_is_not_read_again() -> None:
    def read(block: int) -> Any:
        raise AssertionError("a window is read")

    assert digest_of_samples(BlockSource(read, Blocks.alike(100, 50, in_sequence=True))) == ""
