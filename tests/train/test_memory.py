"""The shared block: sections that never overlap, and memory that is given back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.train.memory import Block, Layout, create_block
from scavenger.train.messages import Manifest, TensorSpec

_shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
_tensors = st.lists(
    st.tuples(_shapes, st.sampled_from(["float32", "float64", "float16", "int32", "bool"])), max_size=8
)


def manifest(tensors: list[tuple[tuple[int, ...], str]], metrics: list[tuple[int, ...]]) -> Manifest:
    return Manifest(
        tensors=tuple(
            TensorSpec(f"t{i}", shape, dtype, "trainable") for i, (shape, dtype) in enumerate(tensors)
        ),
        metrics=tuple(metrics),
        optimizer="{}",
        architecture="",
        parameters=0,
        dataset_size=1,
        validation_size=0,
        sample_bytes=0,
        metric_names=(),
    )


@pytest.fixture
def fd() -> Iterator[int]:
    descriptor = create_block()
    yield descriptor
    os.close(descriptor)


@given(tensors=_tensors, metrics=st.lists(_shapes, max_size=4), slots=st.integers(1, 5))
def test_no_two_sections_or_tensors_overlap_and_all_lie_within_the_block(
    tensors: list[tuple[tuple[int, ...], str]], metrics: list[tuple[int, ...]], slots: int
) -> None:
    layout = Layout.of(manifest(tensors, metrics), slots)
    states = [layout.weights_at(0), layout.weights_at(1), layout.best_at]
    states += [layout.slot_at(slot) for slot in range(slots)]
    sums = [layout.sums_at(validation=False), layout.sums_at(validation=True)]
    sums += [layout.slot_metrics_at(slot) for slot in range(slots)]

    extents = []
    for at in states:
        for offset, (shape, dtype) in zip(layout.offsets, tensors, strict=True):
            extents.append((at + offset, int(np.prod(shape)) * np.dtype(dtype).itemsize))
    for at in sums:
        for offset, shape in zip(layout.metric_offsets, metrics, strict=True):
            extents.append((at + offset, int(np.prod(shape)) * 8))
    extents = sorted((start, size) for start, size in extents if size)

    assert all(a + size <= b for (a, size), (b, _) in pairwise(extents))
    assert all(start % 64 == 0 for start, _ in extents)
    assert all(start >= 0 and start + size <= layout.total_bytes for start, size in extents)
    assert layout.weights_at(7) == layout.weights_at(1) != layout.weights_at(4)


def test_slots_beyond_the_last_are_refused() -> None:
    layout = Layout.of(manifest([((2,), "float32")], []), 3)

    for slot in (-1, 3):
        with pytest.raises(IndexError):
            layout.slot_at(slot)


def test_what_one_mapping_writes_another_reads(fd: int) -> None:
    layout = Layout.of(manifest([((2, 3), "float32"), ((), "int32")], [(4,)]), 2)
    writer, reader = Block(fd, layout), Block(fd, layout)

    weights = writer.state(layout.weights_at(1))
    weights[0][...] = np.arange(6).reshape(2, 3)
    weights[1][...] = -7
    writer.metrics(layout.slot_metrics_at(1))[0][...] = 0.5

    seen = reader.state(layout.weights_at(1))
    np.testing.assert_array_equal(seen[0], [[0, 1, 2], [3, 4, 5]])
    assert seen[1] == -7
    np.testing.assert_array_equal(reader.metrics(layout.slot_metrics_at(1))[0], [0.5] * 4)
    assert not reader.state(layout.weights_at(0))[0].any()


def test_a_copied_section_equals_its_source_and_no_other_changes(fd: int) -> None:
    layout = Layout.of(manifest([((500,), "float64")], [(3,)]), 1)
    block = Block(fd, layout)
    for number, at in enumerate(
        (layout.weights_at(0), layout.weights_at(1), layout.best_at, layout.slot_at(0))
    ):
        block.state(at)[0][...] = number

    block.copy(layout.weights_at(1), layout.best_at)

    values = [
        set(block.state(at)[0])
        for at in (layout.weights_at(0), layout.weights_at(1), layout.best_at, layout.slot_at(0))
    ]
    assert values == [{0.0}, {1.0}, {1.0}, {3.0}]


def test_a_released_slot_is_zero_costs_nothing_and_its_neighbours_stay(fd: int) -> None:
    layout = Layout.of(manifest([((100_000,), "float32")], [(2,)]), 3)
    block = Block(fd, layout)
    for slot in range(3):
        block.state(layout.slot_at(slot))[0][...] = slot + 1
        block.metrics(layout.slot_metrics_at(slot))[0][...] = slot + 1
    held = os.fstat(fd).st_blocks

    block.release_slot(1)
    left = os.fstat(fd).st_blocks  # before anybody looks, which takes pages again

    assert not block.state(layout.slot_at(1))[0].any()
    assert not block.metrics(layout.slot_metrics_at(1))[0].any()
    for slot in (0, 2):
        assert set(block.state(layout.slot_at(slot))[0]) == {slot + 1}
        assert set(block.metrics(layout.slot_metrics_at(slot))[0]) == {slot + 1}
    assert left < held


def test_slots_that_nobody_uses_cost_nothing(fd: int) -> None:
    layout = Layout.of(manifest([((1_000_000,), "float32")], []), 500)
    block = Block(fd, layout)

    block.state(layout.weights_at(0))[0][...] = 1

    assert layout.total_bytes > 10**9
    assert os.fstat(fd).st_blocks * 512 < 10**7
