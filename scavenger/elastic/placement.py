"""Placement of a model on aggregators: the line of its tensors, cut into buckets that aggregators hold."""

from __future__ import annotations

from collections.abc import Sequence


def cut(sizes: Sequence[int], units: Sequence[int], bucket_bytes: int) -> tuple[int, ...]:
    """Cut a line of extents into buckets; small extents share a bucket. A pure function of its arguments.

    Args:
        sizes: Bytes of each extent; they lie one after the other.
        units: For each extent, the bytes at multiples of which it may be cut; 0: it stays whole.
        bucket_bytes: Size of a bucket, at least 1. One is larger only if it consists of one extent that stays whole,
            or of one unit.

    Returns:
        Where each bucket ends; the first begins at 0, each other one where the one before ends. At least one bucket;
        only that of an empty line is empty.

    Raises:
        ValueError: If the bucket size is below 1.
    """
    if bucket_bytes < 1:
        raise ValueError(f"a bucket has at least one byte, not {bucket_bytes}")
    ends: list[int] = []
    begin = at = 0
    for size, unit in zip(sizes, units, strict=True):
        end = at + size
        while at < end:
            fits = _fitting(end - at, unit, bucket_bytes - (at - begin))
            if not fits and at == begin:  # a bucket of its own, of whatever size
                fits = min(unit or end - at, end - at)
            at += fits
            if at < end or at - begin >= bucket_bytes:
                ends.append(at)
                begin = at
    return (*ends, at) if at > begin or not ends else tuple(ends)


def _fitting(left: int, unit: int, room: int) -> int:
    """Return how many of an extent's remaining bytes go into the room that a bucket has left."""
    if left <= room:
        return left
    return room // unit * unit if unit else 0


def spread(sizes: Sequence[int], aggregators: int) -> tuple[int, ...]:
    """Place buckets on aggregators so that the fullest holds as few bytes as contiguous runs allow.

    A pure function of its arguments, so every process computes the same.

    Args:
        sizes: Bytes of each bucket.
        aggregators: At least 1.

    Returns:
        The aggregator of each bucket, ascending. None holds nothing, unless there are fewer buckets than aggregators.

    Raises:
        ValueError: If there is no aggregator.
    """
    if aggregators < 1:
        raise ValueError("buckets need an aggregator")
    low, high = max((0, *sizes, -(-sum(sizes) // aggregators))), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if max(_filled(sizes, aggregators, middle), default=0) < aggregators:
            high = middle
        else:
            low = middle + 1
    return _filled(sizes, aggregators, low)


def _filled(sizes: Sequence[int], aggregators: int, limit: int) -> tuple[int, ...]:
    """Fill one aggregator after the other up to a limit, bytes; numbers beyond the last mean that it is too low."""
    placed: list[int] = []
    holder, load = 0, 0
    for number, size in enumerate(sizes):
        # those that follow need a bucket each
        others_wait = aggregators - 1 - holder >= len(sizes) - number
        if placed and placed[-1] == holder and (load + size > limit or others_wait):
            holder, load = holder + 1, 0
        placed.append(holder)
        load += size
    return tuple(placed)
