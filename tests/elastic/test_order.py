"""Orders of epochs by blocks and windows: permutations in little memory, and how well they mix."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.elastic.order import Blocks, EpochOrder, Passes, epoch_order

_RUNS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=6).map(tuple)
_BLOCKS = st.builds(Blocks, _RUNS, st.integers(1, 7), st.booleans())


@given(blocks=_BLOCKS, seed=st.integers(), epoch=st.integers(0, 99), data=st.data())
def test_whatever_the_blocks_an_epoch_visits_every_sample_once(
    blocks: Blocks, seed: int, epoch: int, data: st.DataObject
) -> None:
    size = blocks.samples
    order = EpochOrder(seed, epoch, size, blocks).indices(0, size)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))

    assert sorted(order) == list(range(size))
    # any stretch, and in another process, is the same
    stretch = EpochOrder(seed, epoch, size, blocks).indices(start, stop)
    np.testing.assert_array_equal(stretch, order[start:stop])


@given(blocks=_BLOCKS, seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_a_window_holds_whole_blocks(blocks: Blocks, seed: int, epoch: int) -> None:
    sizes = blocks.sizes()
    block_of = np.repeat(np.arange(len(sizes)), sizes)
    visited = block_of[EpochOrder(seed, epoch, blocks.samples, blocks).indices(0, blocks.samples)]
    # where each block is entered first and left last
    first = {int(block): int(np.argmax(visited == block)) for block in range(len(sizes))}
    sequence = sorted(first, key=first.__getitem__)
    begin = 0
    while sequence:
        window = set(visited[begin : begin + sum(int(sizes[b]) for b in sequence[: blocks.mixed])].tolist())

        assert window == set(sequence[: blocks.mixed])
        begin += sum(int(sizes[block]) for block in window)
        sequence = sequence[blocks.mixed :]


def test_blocks_in_sequence_keep_their_order_and_others_do_not() -> None:
    def visited(*, in_sequence: bool) -> list[int]:
        blocks = Blocks.alike(1000, 10, in_sequence=in_sequence)
        return list(dict.fromkeys((EpochOrder(1, 0, 1000, blocks).indices(0, 1000) // 10).tolist()))

    assert visited(in_sequence=True) == list(range(100))
    assert sorted(visited(in_sequence=False)) == list(range(100)) != visited(in_sequence=False)


def test_every_epoch_seed_and_window_is_shuffled_in_its_own_way() -> None:
    blocks = Blocks.alike(400, 20, in_sequence=True)
    orders = [EpochOrder(seed, epoch, 400, blocks).indices(0, 400) for seed in range(5) for epoch in range(5)]
    windows = {tuple(order[low : low + 20] - low) for order in orders for low in range(0, 400, 20)}

    assert len(windows) == 25 * 20


def test_without_blocks_it_is_the_full_permutation() -> None:
    np.testing.assert_array_equal(EpochOrder(3, 1, 50).indices(10, 20), epoch_order(3, 1, 50)[10:20])


@pytest.mark.parametrize("blocks", [None, Blocks.alike(60, 7, mixed=2)])
def test_epochs_that_are_parts_of_a_pass_make_up_its_order(blocks: Blocks | None) -> None:
    passes = Passes(epochs=3)
    epochs = [EpochOrder(5, epoch, 20, blocks, passes).indices(0, 20) for epoch in range(6)]

    for number in (0, 1):
        whole = EpochOrder(5, number, 60, blocks).indices(0, 60)
        np.testing.assert_array_equal(np.concatenate(epochs[3 * number : 3 * number + 3]), whole)
    np.testing.assert_array_equal(EpochOrder(5, 4, 20, blocks, passes).indices(5, 9), epochs[4][5:9])


@pytest.mark.parametrize("blocks", [None, Blocks.alike(60, 7, mixed=2)])
def test_without_shuffling_the_order_is_that_of_the_data(blocks: Blocks | None) -> None:
    for epoch in (0, 1, 2):
        order = EpochOrder(5, epoch, 30, blocks, Passes(epochs=2, shuffle=False))
        begin = epoch % 2 * 30
        np.testing.assert_array_equal(order.indices(0, 30), np.arange(begin, begin + 30))
        np.testing.assert_array_equal(order.indices(4, 9), np.arange(begin + 4, begin + 9))


def test_blocks_of_given_sizes_have_their_sizes() -> None:
    blocks = Blocks.of([5, 5, 0, 3, 5])

    assert blocks.runs == ((2, 5), (1, 3), (1, 5))
    assert (blocks.sizes().tolist(), blocks.samples) == ([5, 5, 3, 5], 18)
    assert Blocks.alike(10, 5).runs == ((2, 5),)
    assert Blocks.alike(3, 5).runs == ((1, 3),)


def test_there_is_no_order_of_other_samples_than_those_in_the_blocks() -> None:
    with pytest.raises(ValueError, match="no order"):
        EpochOrder(0, 0, 11, Blocks.alike(10, 5))
    with pytest.raises(ValueError, match="no order"):
        EpochOrder(0, 0, 0)
    with pytest.raises(ValueError, match="blocks need"):
        Blocks(((1, 0),))


@pytest.mark.slow
def test_a_hundred_million_samples_take_little_memory_and_time() -> None:
    samples = 10**8
    blocks = Blocks.alike(samples, 1024, mixed=1024)
    tracemalloc.start()
    began = time.process_time()
    order = EpochOrder(1, 7, samples, blocks)
    stretches = [order.indices(start, start + 256) for start in range(7, samples, samples // 20)]
    took_s, peak_bytes = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert len(np.unique(np.concatenate(stretches))) == 20 * 256
    assert peak_bytes < 80e6  # a permutation has 800e6
    assert took_s < 10  # about 0.1 s


@pytest.mark.parametrize("mixed", [16, 64, 256])
def test_how_well_windows_mix_sorted_data_is_what_the_formula_says(mixed: int) -> None:
    samples, batch, p = 2**20, 128, 0.1
    share = []
    for seed in range(4):
        order = EpochOrder(seed, 0, samples, Blocks.alike(samples, 128, mixed=mixed)).indices(0, samples)
        share.append((order < p * samples).reshape(-1, batch).mean(axis=1))

    expected = p * (1 - p) * (1 / batch + 1 / mixed)
    assert np.var(np.concatenate(share)) == pytest.approx(expected, rel=0.2)
