"""How the line of a model's tensors is cut into buckets, and which aggregator holds which bucket."""

from __future__ import annotations

import itertools
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.elastic.placement import cut, spread

_sizes = st.lists(st.integers(0, 1 << 30), max_size=40)
_extents = st.lists(st.tuples(st.integers(0, 200), st.sampled_from([0, 1, 3, 8, 50])), max_size=12)


def loads(sizes: list[int], placed: tuple[int, ...], aggregators: int) -> list[int]:
    load = [0] * aggregators
    for size, aggregator in zip(sizes, placed, strict=True):
        load[aggregator] += size
    return load


# ---- buckets -----------------------------------------------------------------------------------------------


@given(extents=_extents, bucket=st.integers(1, 100))
def test_buckets_tile_the_line_and_cut_an_extent_only_where_it_may_be(
    extents: list[tuple[int, int]], bucket: int
) -> None:
    sizes, units = [size for size, _ in extents], [unit for _, unit in extents]

    ends = cut(sizes, units, bucket)

    assert ends[-1] == sum(sizes)
    assert all(a < b for a, b in pairwise((0, *ends))) or ends == (0,)
    begins = [0, *itertools.accumulate(sizes)]
    for begin, size, unit in zip(begins, sizes, units, strict=False):
        within = [end - begin for end in ends if begin < end < begin + size]
        assert all(unit and offset % unit == 0 for offset in within)


@given(extents=_extents, bucket=st.integers(1, 100))
def test_a_bucket_is_larger_only_where_nothing_smaller_can_be_cut(
    extents: list[tuple[int, int]], bucket: int
) -> None:
    sizes, units = [size for size, _ in extents], [unit for _, unit in extents]
    extent_at = {0: (0, 0)} | {
        at: extent
        for at, extent in zip(itertools.accumulate([0, *sizes]), extents, strict=False)
        if extent[0]
    }

    for begin, end in pairwise((0, *cut(sizes, units, bucket))):
        if end - begin > bucket:
            starts = [at for at in extent_at if at <= begin]
            size, unit = extent_at[max(starts)]
            assert end - begin <= (unit or size)


def test_small_extents_share_a_bucket_and_a_large_one_has_several() -> None:
    assert cut([10, 20, 30], [0, 0, 0], 60) == (60,)
    assert cut([10, 100, 10], [1, 1, 1], 40) == (40, 80, 120)
    assert cut([10, 100, 10], [0, 0, 0], 40) == (10, 110, 120)
    assert cut([10, 100], [0, 30], 45) == (40, 70, 110)
    assert cut([], [], 1) == (0,)


def test_a_bucket_has_a_size() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        cut([1], [1], 0)


# ---- holders -----------------------------------------------------------------------------------------------


@given(sizes=_sizes, aggregators=st.integers(1, 8))
def test_every_aggregator_holds_one_run_of_buckets_while_there_are_enough(
    sizes: list[int], aggregators: int
) -> None:
    placed = spread(sizes, aggregators)

    assert len(placed) == len(sizes)
    assert list(placed) == sorted(placed)
    assert set(placed) == set(range(min(len(sizes), aggregators)))


@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8), aggregators=st.integers(1, 4))
def test_the_fullest_holds_as_little_as_runs_allow(sizes: list[int], aggregators: int) -> None:
    best = min(
        max(sum(sizes[a:b]) for a, b in pairwise((0, *sorted(ends), len(sizes))))
        for ends in itertools.product(range(len(sizes) + 1), repeat=aggregators - 1)
    )

    assert max(loads(sizes, spread(sizes, aggregators), aggregators)) == best


@given(sizes=_sizes, aggregators=st.integers(1, 8))
def test_every_process_computes_the_same(sizes: list[int], aggregators: int) -> None:
    assert spread(sizes, aggregators) == spread(tuple(sizes), aggregators)


@given(size=st.integers(0, 1 << 32), aggregators=st.integers(1, 16))
def test_one_extent_of_any_size_is_shared_evenly(size: int, aggregators: int) -> None:
    size -= size % 64
    bucket = min(4 << 20, max(1, -(-size // aggregators)))
    buckets = [end - begin for begin, end in pairwise((0, *cut([size], [64], bucket)))]

    load = loads(buckets, spread(buckets, aggregators), aggregators)

    assert max(load) <= size / aggregators + max(bucket, 64)


def test_buckets_need_an_aggregator() -> None:
    with pytest.raises(ValueError, match="need an aggregator"):
        spread([1], 0)
