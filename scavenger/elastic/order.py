"""In which order an epoch visits the samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["epoch_order", "sample_seed"]

_UINT64 = (1 << 64) - 1


def epoch_order(seed: int, epoch: int, dataset_size: int) -> npt.NDArray[np.int64]:
    """The permutation of an epoch: a pure function, so that nobody has to hand samples out or remember them.

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


def sample_seed(seed: int, step: int, start: int) -> int:
    """The 32-bit seed from which dropout and augmentation of a share draw.

    It names the samples, not the process: whoever computes the share, now or again after a failure, draws the
    same.

    Args:
        seed: Of the job.
        step: The step.
        start: Position in the epoch of the share's first sample.
    """
    return int(np.random.SeedSequence([seed & _UINT64, step, start]).generate_state(1)[0])
