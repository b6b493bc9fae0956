"""The order of the samples in an epoch, and the random streams of a model for them."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

__all__ = ["epoch_order", "random_streams"]

_UINT64 = (1 << 64) - 1
_HALF_BITS = 24
_HALF_MASK = (1 << _HALF_BITS) - 1
_GENERATOR_BITS = 12
_DRAW_BITS = 12


def epoch_order(seed: int, epoch: int, dataset_size: int) -> npt.NDArray[np.int64]:
    """The permutation of an epoch: a pure function, so that no process has to assign samples or remember them.

    Drawn from a counter-based generator keyed by `(seed, epoch)`; it does not depend on the number of
    workers, and so neither does the result of training.

    Args:
        seed: Of the job.
        epoch: 0-based.
        dataset_size: D, at least 1.

    Returns:
        Sample indices, shape `(dataset_size,)`, each of `0..D-1` once.

    Raises:
        ValueError: If `dataset_size` or `epoch` is out of range.
    """
    if dataset_size < 1 or epoch < 0:
        raise ValueError(f"no order for epoch {epoch} of {dataset_size} samples")
    key = np.array([seed & _UINT64, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).permutation(dataset_size)


def random_streams(
    seed: int, position: int, generators: int, *, evaluation: int = 0
) -> npt.NDArray[np.int64]:
    """Initial states of a model's random generators for the samples from `position` on.

    A generator of Keras is two numbers below 2^31 - 2; a draw reads both and adds 1 to the second. The streams
    of a job can never meet: `(position, generator)` is written as one number of 48 bits, a permutation keyed by
    the seed scatters these numbers, and 30 bits of the result are the first number of a stream, 18 bits the upper
    part of its second. The lower 12 bits are left to the draws. The permutation is a Feistel network of four
    rounds with a keyed hash [1]_. Positions count modulo 2^36, which no job reaches.

    Streams belong to samples, not processes: any worker that computes a share, also after a failure, draws the same,
    and no two shares of a job draw alike, since their first samples differ.

    Args:
        seed: Of the job.
        position: Number of earlier samples of the job, over all epochs.
        generators: Number of streams: those of generators `0..generators-1`, at most 4096.
        evaluation: 0 for training. An evaluation names its step and draws from streams of its own.

    Returns:
        The generators' states, shape `(generators, 2)`. Each gives 4096 draws of its own.

    Raises:
        ValueError: If there are more than 4096 generators, or `position` is negative.

    References:
        .. [1] Luby and Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom Functions", 1988.
    """
    if not 0 <= generators <= 1 << _GENERATOR_BITS:
        raise ValueError(f"{generators} random generators are more than {1 << _GENERATOR_BITS}")
    if position < 0:
        raise ValueError(f"no random streams for position {position}")
    position = int(position) % (1 << 2 * _HALF_BITS - _GENERATOR_BITS)
    key = (seed & _UINT64).to_bytes(8, "little") + evaluation.to_bytes(8, "little")
    states = np.empty((generators, 2), dtype=np.int64)
    for generator in range(generators):
        scattered = _permute(position << _GENERATOR_BITS | generator, key)
        high, low = divmod(scattered, 1 << 2 * _HALF_BITS - 30)
        states[generator] = high, low << _DRAW_BITS
    return states


def _permute(number: int, key: bytes) -> int:
    left, right = number >> _HALF_BITS, number & _HALF_MASK
    for turn in range(4):
        digest = hashlib.blake2b(
            right.to_bytes(4, "little"), digest_size=4, key=key, salt=bytes([turn])
        ).digest()
        left, right = right, left ^ int.from_bytes(digest, "little") & _HALF_MASK
    return left << _HALF_BITS | right
