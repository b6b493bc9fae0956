"""Buckets go to an aggregator of another host between any two steps, and no bit tells."""

from __future__ import annotations

import os
import weakref
from typing import Any

import msgspec
import numpy as np
import pytest
from plain_keras import one_by_one
from test_ranges import ALL, Model, gradients, manifest, model, start

from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.transport import messages as m
from scavenger.train.transport import replication
from scavenger.train.transport.arrivals import Arrivals, ArrivedState, Best, CopyInbox, copied_ranges
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout

pytestmark = pytest.mark.slow

_STEPS = 6


class Hosts:
    """Two aggregators of different blocks, the first of which holds all buckets at first; workers are on both hosts."""

    def __init__(self, layout: Layout, fds: tuple[int, int], *, in_place: bool = False) -> None:
        self.layout = layout.moved([0] * len(layout.buckets), 1)
        self.fds = fds
        for fd in fds:
            weakref.finalize(self, os.close, fd)
        self.shards = [ModelShard(fd, self.layout, index, in_place=in_place) for index, fd in enumerate(fds)]
        for target, value in zip(self._block(0).tensors(self.layout.state_at(0)), start(), strict=True):
            target[...] = value
        for shard in self.shards:
            shard.begin()

    def _block(self, index: int) -> Any:
        return self.shards[index].block

    def apply(self, step: int) -> None:
        for shard in self.shards:
            for target, value in zip(
                shard.block.tensors(self.layout.slot_at(0)), gradients(step), strict=True
            ):
                target[...] = value
            if shard.held.numbers:
                assert shard.apply(m.ApplyPart(step, 1, 1.0, ((step, 4, 0, ()),))).finite

    def inbox(self, target: int, step: int, buckets: tuple[int, ...], number: int) -> CopyInbox:
        shard = self.shards[target]
        holders = [target if n in buckets else a for n, a in enumerate(self.layout.holders)]
        self.moved = self.layout.moved(holders, number)
        self.held = shard.prepare(self.moved)
        ranges = copied_ranges(self.moved, self.held.slots_owned, buckets, best=True)
        # the first host puts the optimizer's arrays where it keeps them, the other one into the planes
        place = shard.arrivals.range if target else shard.arrivals.beside(self.held.optimizer, step)
        return CopyInbox(place, {1 - target: ranges}, step, number)

    def chunks(
        self, source: int, step: int, buckets: tuple[int, ...], number: int
    ) -> list[tuple[Any, bytes]]:
        pull = m.PullBuckets(step, number, buckets, best=True)
        return [(chunk, bytes(data)) for chunk, data in self.shards[source].payload(pull).chunks()]

    def move(self, target: int, step: int, buckets: tuple[int, ...], *, restarted: bool = False) -> None:
        """Move buckets, in their state after a step, to one of the two."""
        number = self.layout.map_number + 1
        inbox = self.inbox(target, step, buckets, number)
        for chunk, data in self.chunks(1 - target, step, buckets, number):
            assert inbox.take(1 - target, chunk, data)
        assert not inbox.lacking
        shard = self.shards[target]
        shard.arrivals.record(ArrivedState(number, step + 1, buckets, Best.APART, slots_held=target == 0))
        shard.take(self.held, step + 1)
        self.layout = self.moved
        source = self.shards[1 - target]
        source.take(source.prepare(self.layout), step + 1)
        if restarted:
            self.shards[target] = ModelShard(self.fds[target], self.layout, target)

    def weights(self, step: int, best: bool = False) -> bytes:
        at = self.layout.best_at if best else self.layout.state_at(step)
        return b"".join(
            bytes(self._block(holder).range(at + begin, end - begin))
            for holder, (begin, end) in zip(self.layout.holders, self.layout.buckets, strict=True)
        )


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "CHUNK_BYTES", 512)


def quiet(moved: Hosts, still: Model, last: int) -> None:
    """Compare with a run in which nothing was moved."""
    end = still.layout.buckets[-1][1]
    still.begin()
    still.train(1, last)
    assert moved.weights(last) == bytes(still.block.range(still.layout.state_at(last), end))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("name", "restarted", "in_place"),
    [
        ("Adam", False, False),
        ("Adam", False, True),
        ("Adam", True, False),
        ("SGD", False, False),
        pytest.param("Nadam", False, False, marks=pytest.mark.long),
        ("Nadam", False, True),
        pytest.param("Adafactor", True, False, marks=pytest.mark.long),
    ],
)
@one_by_one()
def test_weights_are_those_of_buckets_that_stay(name: str, restarted: bool, in_place: bool) -> None:
    layout = Layout.of(manifest(ALL[name]()), 2, bucket_bytes=2000)
    count = len(layout.buckets)
    some, others = tuple(range(0, count, 2)), tuple(range(1, count, 2))
    with model(layout) as still:
        fds = create_block(), create_block()
        moved = Hosts(layout, fds, in_place=in_place)
        moved.apply(1)
        moved.shards[0].keep_best(1)
        best = moved.weights(1)
        moved.move(1, 1, some, restarted=restarted)
        moved.apply(2)
        moved.move(1, 2, others)
        moved.apply(3)
        assert not moved.shards[0].held.numbers
        moved.apply(4)
        moved.move(0, 4, others, restarted=restarted)
        for step in range(5, _STEPS + 1):
            moved.apply(step)
        quiet(moved, still, _STEPS)
        assert moved.weights(0, best=True) == best


@pytest.mark.usefixtures("small_chunks")
def test_what_arrives_late_meets_nobody() -> None:
    layout = Layout.of(manifest(ALL["Adam"]()), 2, bucket_bytes=2000)
    every = tuple(range(len(layout.buckets)))
    with model(layout) as still:
        moved = Hosts(layout, (create_block(), create_block()))
        moved.apply(1)
        inbox = moved.inbox(1, 1, every, 2)
        late = moved.chunks(0, 1, every, 2)
        moved.apply(2)  # the buckets stayed where they were
        before = bytes(moved.shards[1].block.range(0, layout.fixed_bytes))
        slots = [[array.copy() for array in moved.held.optimizer.slots(turn)] for turn in (0, 1)]
        for chunk, data in late:
            assert inbox.take(0, chunk, data)
        assert bytes(moved.shards[1].block.range(0, layout.fixed_bytes)) == before
        for turn in (0, 1):
            for array, old in zip(moved.held.optimizer.slots(turn), slots[turn], strict=True):
                np.testing.assert_array_equal(array, old)
        moved.move(1, 2, every)
        for step in range(3, _STEPS + 1):
            moved.apply(step)
        quiet(moved, still, _STEPS)


def test_only_chunks_that_are_awaited_are_taken() -> None:
    layout = Layout.of(manifest(ALL["Adam"]()), 2, bucket_bytes=2000)
    moved = Hosts(layout, (create_block(), create_block()))
    inbox = moved.inbox(1, 0, (0,), 2)
    (chunk, data), *_ = moved.chunks(0, 0, (0,), 2)

    assert not inbox.take(1, chunk, data)
    assert not inbox.take(0, m.Chunk(1, chunk.offset, 2), data)
    assert not inbox.take(0, m.Chunk(0, chunk.offset, 3), data)
    assert not inbox.take(0, m.Chunk(0, chunk.offset + 1, 2), data)
    assert not inbox.take(0, chunk, data[1:])
    assert inbox.take(0, chunk, data)
    assert not inbox.take(0, chunk, data)
    lacking = inbox.check(0, m.ChunkQuery(0, 2, 1))
    assert lacking is not None
    assert chunk.offset not in lacking.offsets
    assert moved.chunks(0, 0, (0, 1 << 40, -1), 2)[0][0] == chunk


def test_what_arrived_is_known_after_a_restart_and_forgotten_as_the_job_begins_anew() -> None:
    layout = Layout.of(manifest(ALL["Adam"]()), 2, bucket_bytes=2000)
    fd = create_block()
    arrivals = Arrivals(fd, layout, 1)
    assert arrivals.recorded is None
    arrivals.record(ArrivedState(3, 8, (0, 2), Best.APART))

    again = Arrivals(fd, layout, 1)
    assert again.recorded == ArrivedState(3, 8, (0, 2), Best.APART)
    assert Arrivals(fd, layout, 0).recorded is None
    ModelShard(fd, layout, 1).begin()
    assert again.recorded is None
    os.close(fd)


def test_best_weights_that_arrive_late_do_not_meet_those_of_who_holds_the_bucket() -> None:
    """The map that they were copied for does not hold, and another aggregator of the block has the bucket."""
    layout = Layout.of(manifest(ALL["SGD"]()), 3, bucket_bytes=2000)
    fd = create_block()
    late, number = ModelShard(fd, layout, 1), 7
    best = late.block.range(layout.best_at, 4)
    late.arrivals.range(0, 4)[:] = b"late"
    best[:] = b"best"
    late.arrivals.record(ArrivedState(number, 5, (0,), Best.NEWEST))
    assert bytes(best) == b"best"
    others = layout.moved([2, *layout.holders[1:]], number + 1)
    late.take(late.prepare(others), 6)
    assert bytes(best) == b"best"

    late.take(late.prepare(layout.moved([1, *layout.holders[1:]], number)), 5)
    assert bytes(best) == b"late", "unless it does hold"
    os.close(fd)


def test_what_has_arrived_is_looked_up_without_a_look_at_the_memory_that_it_arrives_in() -> None:
    """Reading a page that nobody has written takes memory for it, and a copy of all of them takes time."""
    made = msgspec.structs.replace(
        manifest(ALL["SGD"]()), tensors=(m.TensorSpec("w", (1 << 20,), "float32", "trainable"),)
    )
    layout, fd = Layout.of(made, 2), create_block()
    arrivals = Arrivals(fd, layout, 1)
    arrivals.record(ArrivedState(3, 8, (0,)))
    before = os.fstat(fd).st_blocks
    assert arrivals.recorded == ArrivedState(3, 8, (0,))
    assert (os.fstat(fd).st_blocks - before) * 512 <= 1 << 16
    os.close(fd)


def test_what_was_read_takes_no_memory() -> None:
    made = msgspec.structs.replace(
        manifest(ALL["Adam"]()), tensors=(m.TensorSpec("w", (1 << 20,), "float32", "trainable"),)
    )
    layout, fd = Layout.of(made, 2), create_block()
    arrivals = Arrivals(fd, layout, 1)
    for segment in range(len(layout.segments)):
        arrivals.weights(segment)[...] = 1.0
    held = os.fstat(fd).st_blocks

    arrivals.release(range(1, len(layout.buckets)))
    arrivals.settle([1])

    assert (held - os.fstat(fd).st_blocks) * 512 > layout.weights_bytes // 2
    np.testing.assert_array_equal(arrivals.weights(0), 1.0)
    np.testing.assert_array_equal(arrivals.weights(1), 0.0)
    os.close(fd)


def test_a_chunk_that_another_thread_has_stored_is_only_noted_and_a_void_copy_stores_nothing() -> None:
    place, payload = bytearray(16), memoryview(b"12345678")
    inbox = CopyInbox(
        lambda offset, size: memoryview(place)[offset : offset + size], {1: ((0, 8), (8, 16))}, 5, 2
    )
    inbox.store(1, m.Chunk(5, 0, 2), payload)
    for chunk in (m.Chunk(4, 8, 2), m.Chunk(5, 8, 1), m.Chunk(5, 9, 2)):
        inbox.store(1, chunk, payload)
    inbox.store(0, m.Chunk(5, 8, 2), payload)
    assert bytes(place) == b"12345678" + bytes(8)

    place[:8] = bytes(8)
    assert inbox.take(1, m.Chunk(5, 0, 2), payload)
    assert bytes(place) == bytes(16)
    assert inbox.lacking == (1,)
    inbox.close()
    inbox.store(1, m.Chunk(5, 8, 2), payload)
    assert bytes(place) == bytes(16)
