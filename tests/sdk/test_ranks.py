"""How samples and arrays of a worker are divided among its processes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scavenger.sdk.ranks import cut, mean_of, named, part_of, statistics


@given(st.integers(0, 100), st.integers(0, 50), st.integers(1, 9))
def test_a_range_is_cut_into_even_ones_in_order(start: int, length: int, number: int) -> None:
    parts = cut(range(start, start + length), number)

    assert [one for part in parts for one in part] == list(range(start, start + length))
    assert len(parts) == number
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(0, 5)), min_size=1, max_size=4))
def test_statistics_are_means_over_samples_and_gradients_stay_apart(ranks: list[tuple[float, int]]) -> None:
    values, samples = zip(*ranks, strict=True)
    arrays = [
        {"g": np.full(rank + 1, value), "statistics/s": np.array([value])}
        for rank, value in enumerate(values)
    ]

    worker = named(arrays) | (mean_of([statistics(one) for one in arrays], samples) if sum(samples) else {})

    for rank, value in enumerate(values):
        part = part_of(worker, rank)
        assert part["g"].tolist() == [value] * (rank + 1)
        if sum(samples):
            np.testing.assert_allclose(part["statistics/s"], np.average(values, weights=samples), atol=1e-12)


def test_what_all_processes_have_alike_keeps_its_bits() -> None:
    mask = {"statistics/mask": np.array([-np.inf, 0.0, np.nan])}

    assert mean_of([mask, dict(mask)], [1, 3])["statistics/mask"] is mask["statistics/mask"]
