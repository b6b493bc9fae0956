"""Which aggregator holds which tensor."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.elastic.placement import place

_sizes = st.lists(st.integers(0, 1 << 30), max_size=40)


def loads(sizes: list[int], placed: tuple[int, ...], aggregators: int) -> list[int]:
    load = [0] * aggregators
    for size, aggregator in zip(sizes, placed, strict=True):
        load[aggregator] += size
    return load


@given(sizes=_sizes, aggregators=st.integers(1, 8))
def test_every_tensor_has_one_of_the_aggregators(sizes: list[int], aggregators: int) -> None:
    placed = place(sizes, aggregators)

    assert len(placed) == len(sizes)
    assert set(placed) <= set(range(aggregators))


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=7), aggregators=st.integers(1, 3))
def test_the_fullest_holds_at_most_four_thirds_of_the_least_possible(
    sizes: list[int], aggregators: int
) -> None:
    best = min(
        max(loads(sizes, choice, aggregators))
        for choice in itertools.product(range(aggregators), repeat=len(sizes))
    )

    assert max(loads(sizes, place(sizes, aggregators), aggregators)) <= best * (4 / 3)


@given(sizes=st.lists(st.integers(1, 1 << 30), min_size=1, max_size=40), aggregators=st.integers(1, 8))
def test_nobody_holds_nothing_while_there_are_tensors_enough(sizes: list[int], aggregators: int) -> None:
    assert len(set(place(sizes, aggregators))) == min(len(sizes), aggregators)


@given(sizes=_sizes, aggregators=st.integers(1, 8))
def test_every_process_computes_the_same(sizes: list[int], aggregators: int) -> None:
    assert place(sizes, aggregators) == place(tuple(sizes), aggregators)


def test_tensors_of_one_size_go_round() -> None:
    assert place([4, 4, 4, 4], 2) == (0, 1, 0, 1)


def test_tensors_need_an_aggregator() -> None:
    with pytest.raises(ValueError, match="need an aggregator"):
        place([1], 0)
