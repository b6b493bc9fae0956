"""Placement of tensors on aggregators."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["place"]


def place(sizes: Sequence[int], aggregators: int) -> tuple[int, ...]:
    """Place tensors on aggregators so that each holds about as many bytes.

    Largest first, each on the one that holds least so far (Graham's LPT rule: the fullest holds at most 4/3 of
    the least possible). A pure function of its arguments, so every process computes the same.

    Args:
        sizes: Bytes of each tensor.
        aggregators: At least 1.

    Returns:
        The aggregator of each tensor. Where there are fewer tensors than aggregators, some hold none.

    References:
        R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969.
    """
    if aggregators < 1:
        raise ValueError("tensors need an aggregator")
    load = [0] * aggregators
    placed = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        target = min(range(aggregators), key=lambda a: (load[a], a))
        placed[index] = target
        load[target] += sizes[index]
    return tuple(placed)
