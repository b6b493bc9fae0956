"""Weights between blocks arrive complete or do not count."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import manifest_of

from scavenger.elastic.view import SLOTS_PER_WORKER
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.transport import replication as mirror
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages import Chunk, ChunkQuery, Pull
from scavenger.train.transport.messages.data import Seed
from scavenger.train.transport.messages.values import Manifest, TensorSpec
from scavenger.train.transport.replication import (
    Outbox,
    Payload,
    WeightsInbox,
    initial_payload,
    pack,
    weights_payload,
)
from scavenger.train.transport.shared_memory import Block
from scavenger.train.transport.sockets import address_towards
from scavenger.train.worker.memory import InitialWeights, WorkerMemory, packed_optimizers
from scavenger.train.worker.program import Program
from scavenger.train.worker.saved_optimizer import SavedOptimizer

pytestmark = pytest.mark.slow

Sent = tuple[Chunk, bytes]
WORKER, SLOT = "w2", 2 * SLOTS_PER_WORKER


def manifest(*rows: int) -> Manifest:
    """A model of matrices with so many rows, a state, and one metric."""
    tensors = [TensorSpec(f"m{i}", (n, 5), "float32", "trainable") for i, n in enumerate(rows)]
    return manifest_of(
        (*tensors, TensorSpec("mean", (3,), "float32", "mean")),
        '{"class_name": "SGD", "config": {"learning_rate": 0.1}}',
        metrics=((2,),),
    )


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "CHUNK_BYTES", 100)


def block(layout: Layout) -> Block:
    fd = create_block()
    made = Block(fd, layout)
    weakref.finalize(made, os.close, fd)
    return made


def filled(layout: Layout, section: int, seed: int) -> Block:
    made = block(layout)
    content = np.random.default_rng(seed).bytes(layout.state_bytes)
    made.range(section, layout.state_bytes)[:] = content
    return made


LAYOUT = Layout.of(manifest(40, 30))
SOURCE = filled(LAYOUT, LAYOUT.slot_at(SLOT), 3)


@pytest.fixture
def wires() -> Iterator[Callable[[int, Pull], list[Sent]]]:
    layout = Layout.of(manifest(40, 30, 20), 2)
    fd = create_block()
    Block(fd, layout).range(layout.state_at(0), 2 * layout.state_bytes)[:] = np.random.default_rng(1).bytes(
        2 * layout.state_bytes
    )
    parts = [ModelShard(fd, layout, index) for index in range(2)]

    def weights(index: int, pull: Pull) -> list[Sent]:
        return [
            (chunk, bytes(data))
            for chunk, data in weights_payload(parts[index].block, layout, index, pull).chunks()
        ]

    yield weights
    os.close(fd)


def test_weights_are_there_when_all_parts_of_the_step_are(wires: Callable[[int, Pull], list[Sent]]) -> None:
    layout = Layout.of(manifest(40, 30, 20), 2)
    target = block(layout)
    inbox = WeightsInbox(target, (0, 1))
    inbox.want(5)
    assert inbox.lacking == (0, 1)

    for index in (1, 0):
        for chunk, data in wires(index, Pull(5, inbox.number)):
            assert index in inbox.lacking
            inbox.take(index, chunk, data)

    assert not inbox.lacking
    assert inbox.received_bytes == layout.buckets[-1][1]
    whole = b"".join(data for index in (0, 1) for _, data in wires(index, Pull(5, 0)))
    assert bytes(target.range(layout.state_at(5), layout.buckets[-1][1])) == whole
    inbox.want(5)
    assert not inbox.lacking
    inbox.want(5, changed=True)
    assert inbox.lacking == (0, 1), "they may have changed since"


def test_weights_that_nobody_asked_for_are_passed_over(wires: Callable[[int, Pull], list[Sent]]) -> None:
    layout = Layout.of(manifest(40, 30, 20), 2)
    target = block(layout)
    inbox = WeightsInbox(target, (0,))
    inbox.want(4)
    inbox.want(5)
    right = wires(0, Pull(5, inbox.number))
    chunk, data = right[0]
    wrong = [
        (0, msgspec.structs.replace(chunk, step=4), data),
        (0, msgspec.structs.replace(chunk, step=7), data),
        (0, msgspec.structs.replace(chunk, number=inbox.number - 1), data),
        (1, chunk, data),
        (0, msgspec.structs.replace(chunk, offset=-1), data),
        (0, msgspec.structs.replace(chunk, offset=layout.part_ranges[0][-1][1]), data),
        (0, chunk, bytes(layout.state_bytes)),
    ]

    for index, other, payload in wrong:
        inbox.take(index, other, payload)
    assert not any(target.range(layout.state_at(0), 2 * layout.state_bytes))
    for gap in right[1:]:
        inbox.take(0, *gap)

    assert inbox.lacking == (0,)


def send_twice(shard: ModelShard, inbox: WeightsInbox, lost: int) -> None:
    """Send all chunks but one, and the lost one when the receiver has said that it lacks it."""
    outbox, index = Outbox(), shard.index
    sent: list[Sent] = []
    questions: list[ChunkQuery] = []
    outbox.push(shard.payload(inbox.pull()), lambda chunk, data: sent.append((chunk, bytes(data))))
    for chunk, data in sent[:lost] + sent[lost + 1 :]:
        inbox.take(index, chunk, data)
    assert index in inbox.lacking
    outbox.push(shard.payload(inbox.pull()), lambda check, _: questions.append(check))
    answer = inbox.check(index, questions[0])
    assert answer is not None
    everything = shard.payload(Pull(5, inbox.number, optimizer=True))
    assert outbox.resend(answer, everything, lambda chunk, data: inbox.take(index, chunk, bytes(data)))


@pytest.mark.parametrize("lost", range(6))
def test_the_optimizer_s_state_travels_behind_the_weights(lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "CHUNK_BYTES", 512)
    adam = '{"class_name": "Adam", "config": {"learning_rate": 0.1}}'
    layout = Layout.of(msgspec.structs.replace(manifest(40, 30, 20), optimizer=adam), 2)
    fd, own_fd = create_block(), create_block()
    try:
        shards = [ModelShard(fd, layout, index) for index in range(2)]
        source = SavedOptimizer(fd, layout)
        for index, memory in source.memories.items():
            for number, array in enumerate(memory.slots(5)):
                array[...] = np.random.default_rng([index, number]).normal(size=array.shape)
        saved = SavedOptimizer(own_fd, layout)
        inbox = WeightsInbox(Block(own_fd, layout), (0, 1))
        inbox.want(5, changed=True, optimizers=saved.memories)

        for shard in shards:
            send_twice(shard, inbox, lost)

        assert not inbox.lacking
        got, expected = saved.state(5, 1.0).slots, source.state(5, 1.0).slots
        assert set(got) == set(expected) == {(tensor, slot) for tensor in range(3) for slot in range(2)}
        for key, array in expected.items():
            np.testing.assert_array_equal(got[key], array)
    finally:
        os.close(fd)
        os.close(own_fd)


def test_initial_weights_lie_with_the_aggregator_as_they_did_with_the_worker() -> None:
    layout = Layout.of(manifest(40, 30, 20), 2)
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=spec.shape).astype(spec.dtype) for spec in layout.manifest.tensors]
    target = block(layout)
    packed = pack(layout, arrays)
    for index in (0, 1):
        inbox = WeightsInbox(target, (index,))
        inbox.want(0)
        for chunk, data in initial_payload(layout, index, packed, inbox.number).chunks():
            inbox.take(index, chunk, bytes(data))
        assert not inbox.lacking

    for got, array in zip(target.tensors(layout.state_at(0)), arrays, strict=True):
        np.testing.assert_array_equal(got, array)


def test_the_state_of_an_optimizer_that_has_taken_steps_comes_with_the_initial_weights() -> None:
    adam = '{"class_name": "Adam", "config": {"learning_rate": 0.1}}'
    layout = Layout.of(msgspec.structs.replace(manifest(40, 30, 20), optimizer=adam, iterations=3), 2)
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=spec.shape).astype(spec.dtype) for spec in layout.manifest.tensors]
    slots = {(i, j): rng.normal(size=arrays[i].shape).astype("float32") for i in range(3) for j in range(2)}
    optimizers = packed_optimizers(layout, slots)
    fd = create_block()
    try:
        for index in (0, 1):
            shard = ModelShard(fd, layout, index)
            inbox = WeightsInbox(shard.block, (index,))
            inbox.want(0, optimizers=shard.seeded_optimizer)
            payload = initial_payload(layout, index, pack(layout, arrays), inbox.number, optimizers[index])
            for chunk, data in payload.chunks():
                inbox.take(index, chunk, bytes(data))
            assert not inbox.lacking
            shard.begin()

        got = SavedOptimizer(fd, layout).state(0, 1.0)
        assert got.step == 3
        assert set(got.slots) == set(slots)
        for key, array in slots.items():
            np.testing.assert_array_equal(got.slots[key], array)
    finally:
        os.close(fd)


def test_a_job_that_begins_again_gets_its_initial_weights_under_the_map_that_its_aggregators_know() -> None:
    """The worker trains already, and may have heard of another map; the optimizer had taken steps before the job."""
    adam = '{"class_name": "Adam", "config": {"learning_rate": 0.1}}'
    model = msgspec.structs.replace(manifest(40, 30, 20), optimizer=adam, iterations=3)
    fd, worker_fd = create_block(), create_block()
    try:
        memory = WorkerMemory(worker_fd, model, 2, cast(Program, SimpleNamespace(alias=list)))
        rng, layout = np.random.default_rng(3), memory.layout
        arrays = [rng.normal(size=spec.shape).astype(spec.dtype) for spec in model.tensors]
        slots = {
            (i, j): rng.normal(size=arrays[i].shape).astype("float32") for i in range(3) for j in range(2)
        }
        initial = InitialWeights(memory, arrays, packed=True, fd=worker_fd, slots=slots)
        initial.drop()
        for holders in ([1] * len(layout.holders), [0] * len(layout.holders), layout.holders):
            memory.layout = layout.moved([1] * len(layout.holders), 7)
            begun = layout.moved(holders, 8)
            for index in (0, 1):
                shard = ModelShard(fd, begun, index)
                inbox = WeightsInbox(shard.block, (index,), begun)
                inbox.want(0, optimizers=shard.seeded_optimizer)

                def take(head: Any, data: Any, inbox: WeightsInbox = inbox, index: int = index) -> None:
                    if isinstance(head, ChunkQuery):
                        lacking = inbox.check(index, head)
                        if lacking is not None:
                            initial.resend(index, lacking, take)
                    else:
                        inbox.take(index, head, bytes(data))

                initial.send(index, Seed(inbox.number, begun.holders), take)
                assert not inbox.lacking
                shard.begin()

            got = SavedOptimizer(fd, begun).state(0, 1.0).slots
            assert all(np.array_equal(got[key], array) for key, array in slots.items())
            held = Block(fd, begun).tensors(begun.state_at(0))
            assert all(np.array_equal(a, b) for a, b in zip(held, arrays, strict=True))
            held[0][...] = 0
    finally:
        os.close(fd)
        os.close(worker_fd)


def test_an_aggregator_listens_where_the_hub_is_reached_from_and_nowhere_else() -> None:
    assert address_towards("tcp://127.0.0.1:5555") == "127.0.0.1"
    with pytest.raises(OSError, match=r"."):
        address_towards("tcp://host.invalid:5555")


@given(lost=st.sets(st.integers(0, 8)), again=st.integers(0, 4))
def test_weights_that_are_asked_for_again_are_sent_where_they_were_lost(lost: set[int], again: int) -> None:
    source, target = filled(LAYOUT, LAYOUT.state_at(5), 9), block(LAYOUT)
    inbox, outbox = WeightsInbox(target, (0,)), Outbox()
    inbox.want(5)
    at = LAYOUT.state_at(5)
    ranges = LAYOUT.part_ranges[0]
    payload = Payload(Chunk(5, 0, inbox.number), ranges, lambda offset, size: source.range(at + offset, size))
    wire: list[tuple[Any, Any]] = []

    def send(message: Any, data: Any) -> None:
        wire.append((message, data))

    outbox.push(payload, send)
    whole = sum(len(data) for _, data in wire)
    for number, (chunk, data) in enumerate(wire):
        if number not in lost:
            inbox.take(0, chunk, bytes(data))
    received = inbox.received_bytes
    wire.clear()
    for _ in range(1 + again):
        outbox.push(payload, send)
    for answer in [inbox.check(0, message) for message, _ in wire]:
        if answer is not None:
            outbox.resend(answer, payload, send)

    resent = [(chunk, data) for chunk, data in wire if data is not None]
    assert sum(len(data) for _, data in resent) == whole - received
    for chunk, data in resent:
        inbox.take(0, chunk, bytes(data))
    assert not inbox.lacking
    begin, end = ranges[0]
    assert bytes(target.range(at + begin, end)) == bytes(source.range(at + begin, end))
