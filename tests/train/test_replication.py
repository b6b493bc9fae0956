"""Payloads between blocks arrive complete or do not count, and no process writes to another's slot."""

from __future__ import annotations

import os
import random
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.elastic.view import SLOTS_PER_WORKER, Piece, Share
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.transport import replication as mirror
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages import Check, Chunk, Contributed, Pull
from scavenger.train.transport.messages.values import Manifest, RowCounts, TensorSpec
from scavenger.train.transport.replication import (
    Inbox,
    Outbox,
    Payload,
    WeightsInbox,
    initial_payload,
    pack,
    piece_payload,
    weights_payload,
)
from scavenger.train.transport.shared_memory import Block
from scavenger.train.transport.sockets import address_towards
from scavenger.train.worker.memory import packed_optimizers
from scavenger.train.worker.results import Results
from scavenger.train.worker.saved_optimizer import SavedOptimizer

Sent = tuple[Chunk, bytes]
WORKER, SLOT = "w2", 2 * SLOTS_PER_WORKER


def manifest(*rows: int) -> Manifest:
    """A model of matrices with so many rows, a state, and one metric."""
    tensors = [TensorSpec(f"m{i}", (n, 5), "float32", "trainable") for i, n in enumerate(rows)]
    return Manifest(
        tensors=(*tensors, TensorSpec("mean", (3,), "float32", "mean")),
        metrics=((2,),),
        optimizer='{"class_name": "SGD", "config": {"learning_rate": 0.1}}',
        architecture="",
        parameters=0,
        dataset_size=10,
        validation_size=0,
        sample_bytes=1,
        metric_names=(),
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


def piece(number: int) -> Piece:
    return Piece(number, Share(0, 4), WORKER, SLOT)


def result(number: int, rows: RowCounts = ()) -> Contributed:
    return Contributed(
        view=1,
        step=number,
        piece=number,
        samples=4,
        held=(),
        compute_s=1.0,
        data_wait_s=0.0,
        loss=1.0,
        half_sqnorm=0.0,
        rows=rows,
    )


def sent(source: Block, index: int, number: int, rows: RowCounts = ()) -> list[Sent]:
    """Return the encoded messages by which a worker pushes a piece."""
    payload = piece_payload(source, index, result(number, rows), piece(number))
    return [(chunk, bytes(data)) for chunk, data in payload.chunks()]


def feed(inbox: Inbox, chunks: list[Sent]) -> list[bool]:
    return [inbox.take(WORKER, chunk, data) for chunk, data in chunks]


@pytest.mark.parametrize("aggregators", [1, 2, 3])
def test_a_piece_arrives_byte_by_byte_in_the_parts_that_its_aggregators_hold(aggregators: int) -> None:
    layout = Layout.of(manifest(40, 30, 20, 7), aggregators)
    at = layout.slot_at(SLOT)
    source, whole = filled(layout, at, 1), bytearray(layout.state_bytes)
    for index in range(aggregators):
        target = block(layout)
        inbox = Inbox(target, index)

        told = feed(inbox, sent(source, index, 7))

        assert told == [False] * (len(told) - 1) + [True]
        assert inbox.holds(WORKER, 7)
        assert not inbox.holds(WORKER, 8)
        assert not inbox.holds("w1", 7)
        for begin, end in layout.part_ranges[index]:
            whole[begin:end] = target.range(at + begin, end - begin)
        if index == 0:
            assert target.metrics(at)[0].tolist() == source.metrics(at)[0].tolist()
    used = layout.buckets[-1][1]
    assert bytes(whole[:used]) == bytes(source.range(at, used))


@pytest.mark.parametrize("aggregators", [1, 2, 3])
def test_of_a_sparse_gradient_only_its_rows_travel(aggregators: int) -> None:
    layout = Layout.of(manifest(40, 30, 20, 7), aggregators, bucket_bytes=1024)
    at, counts = layout.slot_at(SLOT), {1: 1, 3: 0}
    own = {number: segment for number, segment in enumerate(layout.segments) if segment.tensor in counts}
    rows = tuple((number, counts[segment.tensor]) for number, segment in own.items())
    source = filled(layout, at, 1)
    dense = sparse = 0
    for index in range(aggregators):
        target = block(layout)
        chunks = sent(source, index, 7, rows)

        assert feed(Inbox(target, index), chunks)[-1]

        dense += sum(len(data) for _, data in sent(source, index, 7))
        sparse += sum(len(data) for _, data in chunks)
        for number in layout.parts[index]:
            begin, end = layout.used(number, dict(rows).get(number))
            assert bytes(target.range(at + begin, end - begin)) == bytes(
                source.range(at + begin, end - begin)
            )
    ones = sum(segment.tensor == 1 for segment in own.values())
    assert sparse == dense - (640 - 64 * ones) - 192, "one row of 20 bytes and its index a segment, or none"


def test_a_worker_that_was_not_heard_is_asked_for_the_rows_alone() -> None:
    inbox, source = Inbox(block(LAYOUT), 0), filled(LAYOUT, LAYOUT.slot_at(SLOT), 1)
    chunks = sent(source, 0, 7, ((0, 3),))
    check = Check(step=7, piece=7, question=1, slot=SLOT, view=1, rows=((0, 3),))

    answer = inbox.check(WORKER, check)

    assert answer is not None
    assert answer.offsets == tuple(chunk.offset for chunk, _ in chunks)
    assert not any(feed(inbox, sent(source, 0, 7))), "those of another gradient under the same number"
    assert feed(inbox, chunks)[-1]
    assert inbox.check(WORKER, check) is None
    assert inbox.check(WORKER, msgspec.structs.replace(check, piece=8, rows=((0, 1 << 40),))) is None


def test_an_aggregator_without_a_part_still_tells_that_a_piece_is_there() -> None:
    layout = Layout.of(manifest(1), 3)
    empty = [index for index, ranges in enumerate(layout.part_ranges) if not ranges]
    assert empty
    for index in empty:
        assert feed(Inbox(block(layout), index), sent(block(layout), index, 1)) == [True]
        inbox = WeightsInbox(block(layout), (index,))
        inbox.want(3)
        assert not inbox.lacking


class Link:
    """A worker and an aggregator that share no memory, and a connection between them that may break at any message.

    Attributes:
        arrived: How often each chunk has reached the aggregator.
        sent_bytes: Of payloads that the worker has sent.
    """

    def __init__(self, seed: int, loss: float) -> None:
        self._random, self._loss = random.Random(seed), loss
        self.target = block(LAYOUT)
        self.inbox, self.results = Inbox(self.target, 0), Results(SOURCE)
        self.arrived: Counter[int] = Counter()
        self.sent_bytes = 0
        self._forth: deque[tuple[Any, bytes | None]] = deque()
        self._back: deque[Any] = deque()
        self.results.add_gradient(7, piece(7), CONTRIBUTED)

    def send(self, message: Any, data: Any) -> None:
        self.sent_bytes += len(data or b"")
        if self._random.random() >= self._loss:
            self._forth.append((message, None if data is None else bytes(data)))

    def order(self) -> None:
        """Order the worker, for the first time or again, to compute the piece."""
        self.results.push(CONTRIBUTED, {0: self.send})

    def carry(self, messages: int) -> None:
        """Deliver some of the messages under way to the aggregator, and all answers to the worker."""
        for _ in range(min(messages, len(self._forth))):
            message, data = self._forth.popleft()
            if isinstance(message, Chunk):
                self.arrived[message.offset] += 1
                self.inbox.take(WORKER, message, data or b"")
            elif (answer := self.inbox.check(WORKER, message)) and self._random.random() >= self._loss:
                self._back.append(answer)
        while self._back:
            self.results.resend(0, self._back.popleft(), self.send)


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), loss=st.floats(0, 0.6), waits=st.lists(st.integers(0, 40), max_size=30))
def test_whatever_is_lost_and_however_often_an_order_is_repeated_each_chunk_arrives_once(
    seed: int, loss: float, waits: list[int]
) -> None:
    link = Link(seed, loss)
    for messages in waits:
        link.order()
        link.carry(messages)
    link._loss = 0.0
    for _ in range(3):
        link.order()
        link.carry(1 << 20)

    assert link.inbox.holds(WORKER, 7)
    assert set(link.arrived.values()) == {1}
    at, end = LAYOUT.slot_at(SLOT), END
    assert bytes(link.target.range(at, end)) == bytes(SOURCE.range(at, end))
    assert link.target.metrics(at)[0].tolist() == SOURCE.metrics(at)[0].tolist()


def test_orders_that_are_repeated_while_nothing_is_lost_cost_no_payload() -> None:
    link = Link(1, 0.0)
    link.order()
    once = link.sent_bytes
    for messages in (0, 1, 2, 0, 1 << 20, 5):
        link.order()
        link.carry(messages)

    assert link.inbox.holds(WORKER, 7)
    assert link.sent_bytes == once > END


def test_a_gradient_that_was_overwritten_is_not_sent_as_what_it_was() -> None:
    link = Link(1, 1.0)
    link.order()
    link._loss = 0.0
    link.results.add_gradient(8, piece(8), msgspec.structs.replace(CONTRIBUTED, step=8, piece=8))
    link.order()
    link.carry(1 << 20)

    assert not link.arrived


LAYOUT = Layout.of(manifest(40, 30))
END = LAYOUT.buckets[-1][1]
SOURCE = filled(LAYOUT, LAYOUT.slot_at(SLOT), 3)


def test_what_is_sent_again_or_too_late_changes_nothing_that_is_complete() -> None:
    target = block(LAYOUT)
    inbox, at = Inbox(target, 0), LAYOUT.slot_at(SLOT)
    feed(inbox, sent(SOURCE, 0, 7))
    before = bytes(target.range(at, LAYOUT.state_bytes))
    other = filled(LAYOUT, at, 4)

    again = feed(inbox, sent(other, 0, 7))
    late = feed(inbox, sent(other, 0, 6))

    assert not any(again)
    assert not any(late)
    assert bytes(target.range(at, LAYOUT.state_bytes)) == before
    assert inbox.holds(WORKER, 7)
    assert feed(inbox, sent(other, 0, 8))[-1], "the connection, and the slot, go on"
    assert not inbox.holds(WORKER, 7)


CONTRIBUTED = result(7)
GOOD = Chunk(step=7, offset=0, piece=7, slot=SLOT, view=1)


@pytest.mark.parametrize(
    ("who", "changes", "size"),
    [
        (WORKER, {"rows": ((0, 40),)}, 100),
        (WORKER, {"rows": ((0, 1 << 62),)}, 100),
        (WORKER, {"rows": ((0, -1),)}, 100),
        (WORKER, {"rows": ((2, 1),)}, 100),
        (WORKER, {"rows": ((3, 1),)}, 100),
        (WORKER, {"rows": ((-1, 1),)}, 100),
        (WORKER, {"rows": ((1, 1), (0, 1))}, 100),
        (WORKER, {"rows": ((0, 1), (0, 2))}, 100),
        (WORKER, {"slot": SLOT - 1}, 100),
        (WORKER, {"slot": SLOT + SLOTS_PER_WORKER}, 100),
        (WORKER, {"slot": -1}, 100),
        (WORKER, {"offset": -100}, 100),
        (WORKER, {"offset": END}, 100),
        (WORKER, {"offset": LAYOUT.state_bytes}, 100),
        (WORKER, {"offset": 1 << 62}, 100),
        (WORKER, {}, LAYOUT.state_bytes + 1),
        (WORKER, {"offset": LAYOUT.weights_bytes - 1}, 2),
        ("w1", {}, 100),
        ("w٣", {"slot": 3 * SLOTS_PER_WORKER}, 100),
        ("w-1", {"slot": -SLOTS_PER_WORKER}, 100),
        ("aggregator-1", {}, 100),
        ("", {}, 100),
    ],
)
def test_a_chunk_that_does_not_fit_is_refused_before_a_byte_is_written(
    who: str, changes: dict[str, Any], size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    target = block(LAYOUT)
    inbox = Inbox(target, 0)

    assert not inbox.take(who, msgspec.structs.replace(GOOD, **changes), b"\xff" * size)

    assert "rejected a chunk" in capsys.readouterr().out
    assert not any(target.range(LAYOUT.slot_at(SLOT - SLOTS_PER_WORKER), 3 * LAYOUT.state_bytes))
    assert not any(target.range(LAYOUT.slot_at(SLOT), LAYOUT.state_bytes))
    assert feed(inbox, sent(SOURCE, 0, 7))[-1], "what fits is taken after it"


HEIR = f"w{2 + LAYOUT.workers_max}"
"""The worker that reuses the slot of `WORKER`."""


def inherited(number: int, source: Block) -> list[Sent]:
    return [
        (msgspec.structs.replace(chunk, slot=SLOT + LAYOUT.slots), data)
        for chunk, data in sent(source, 0, number)
    ]


def test_one_that_wakes_up_changes_nothing_in_the_place_that_another_has_by_now() -> None:
    target = block(LAYOUT)
    inbox, at = Inbox(target, 0), LAYOUT.slot_at(SLOT)
    late = sent(SOURCE, 0, 7)
    feed(inbox, late[:1])
    heirs = inherited(9, filled(LAYOUT, at, 4))
    for chunk, data in heirs:
        inbox.take(HEIR, chunk, data)
        assert not any(feed(inbox, late)), "between the chunks of the other too"
    # even where its number is high: the other has the place
    assert not any(feed(inbox, sent(SOURCE, 0, 1 << 40)))

    assert inbox.holds(HEIR, 9)
    assert not inbox.holds(WORKER, 9)
    end = END
    assert bytes(target.range(at, end)) == bytes(filled(LAYOUT, at, 4).range(at, end))


def test_memory_of_one_that_is_gone_is_given_back_unless_another_has_its_place() -> None:
    target = block(LAYOUT)
    inbox, at = Inbox(target, 0), LAYOUT.slot_at(SLOT)
    feed(inbox, sent(SOURCE, 0, 7))
    inbox.forget(WORKER)
    assert not any(target.range(at, LAYOUT.state_bytes))

    for chunk, data in inherited(9, SOURCE):
        inbox.take(HEIR, chunk, data)
    inbox.forget(WORKER)
    assert any(target.range(at, LAYOUT.state_bytes))
    inbox.forget("nobody")


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
            (chunk, bytes(data)) for chunk, data in weights_payload(parts[index].block, index, pull).chunks()
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
        (0, msgspec.structs.replace(chunk, piece=inbox.number - 1), data),
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
    questions: list[Check] = []
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
