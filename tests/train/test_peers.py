"""Aggregators of different hosts copy buckets by the streams of payloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from scavenger.elastic.initialization import Endpoint
from scavenger.train.aggregation.bucket_copies import BucketCopies
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.aggregation.peers import Peers
from scavenger.train.aggregation.remote_workers import RemoteWorkers
from scavenger.train.aggregation.upstream import Upstream
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.data_router import DataRouter
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.payload_streams import PayloadServer
from scavenger.train.transport.replication import Payload
from scavenger.train.transport.sockets import new_keys

_ADAM = '{"class_name": "Adam", "config": {"learning_rate": 0.1}}'
_STEP = 5


def _layout() -> Layout:
    tensors = tuple(m.TensorSpec(f"t{n}", (40_000, 3), "float32", "trainable") for n in range(4))
    made = m.Manifest(tensors, (), _ADAM, "", 0, 1, 0, 1, ())
    return Layout.of(made, 3, (1,) * 2, bucket_bytes=1 << 20)


class Hosts:
    """Aggregator 1, which holds everything as of a step, and 2, which asks for it; both in this thread."""

    def __init__(self, context: Any, layout: Layout) -> None:
        self.shards = {index: ModelShard(create_block(), layout, index) for index in (1, 2)}
        self.poller = zmq.Poller()
        keys = new_keys()
        self.router = DataRouter(context, keys, "127.0.0.1")
        self.poller.register(self.router.socket, zmq.POLLIN)
        self.router.start(self.poller)
        self.remote = RemoteWorkers(self.router.send, self.router.drop)
        self.remote.open(self.shards[1].payload)
        address = Endpoint(self.router.address, keys[0].decode(), "there")
        upstream = Upstream(context, "aggregator-2", new_keys(), self.poller)
        self.peers = Peers(
            context, "aggregator-2", new_keys(), memory="here", poller=self.poller, upstream=upstream
        )
        self.peers.connect((address,) * 3)
        self.copied: list[int] = []
        self.copies = BucketCopies(self.shards[2], self.peers, beside=(), copied=self.copied.append)
        self.peers.stored = self.copies.store
        self.lost = 0

    def serve(self) -> None:
        self.poller.poll(50)
        for peer, message, _ in self.router.receive():
            match message:
                case m.Join():
                    self.router.send(peer, m.Joined(self.router.offer(peer)))
                case m.PullBuckets():
                    self.remote.pull(peer, message)
                case m.Lacking():
                    self.remote.resend(peer, message, _STEP)
        self.remote.answer(_STEP)
        for index, message, payload in self.peers.receive():
            match message:
                case m.Joined():
                    self.peers.joined(index, message)
                case m.Chunk() if self.lost:
                    self.lost -= 1
                case m.Chunk():
                    self.copies.take(index, message, payload)
                case m.ChunkQuery():
                    self.copies.check(index, message)
        self.copies.tick()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60.0
        while not condition():
            assert time.monotonic() < deadline
            self.serve()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    context = zmq.Context()
    made = Hosts(context, _layout())
    yield made
    made.peers.close()
    made.router.close()
    context.destroy(linger=0)


@pytest.mark.parametrize("lost", [0, 2])
def test_the_whole_state_of_buckets_arrives_by_a_stream_even_if_some_of_it_is_lost(
    lost: int, hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed: list[Any] = []
    send = PayloadServer.send

    def noted(server: PayloadServer, peer: str, message: m.Message, payload: Any = None) -> bool:
        sent = send(server, peer, message, payload)
        sealed.extend([message] if sent else [])
        return sent

    monkeypatch.setattr(PayloadServer, "send", noted)
    source, target = hosts.shards[1], hosts.shards[2]
    random = np.random.default_rng(3)
    state = source.held.state(_STEP)
    for array in (*state.weights, *state.slots):
        array[...] = random.normal(size=array.shape)
    hosts.peers.send(1, m.Lacking(0, 0, 0, ()))  # so that there is a stream
    hosts.until(lambda: bool(hosts.router._copies and hosts.router._copies._streams))  # type: ignore[union-attr]
    layout = source.layout
    order = m.CopyBuckets(9, _STEP, 2, tuple((n, 1) for n in range(len(layout.buckets))))
    held = target.prepare(layout.moved([2] * len(layout.buckets), order.number))
    hosts.lost = lost

    hosts.copies.begin(order, held)
    hosts.until(lambda: bool(hosts.copied))

    assert hosts.copied == [order.number]
    assert {type(message) for message in sealed} >= {m.Chunk}
    target.take(held, _STEP + 1)
    arrived = target.held.state(_STEP)
    for one, other in zip((*arrived.weights, *arrived.slots), (*state.weights, *state.slots), strict=True):
        np.testing.assert_array_equal(one, other)
    hosts.copies.begin(order, held)
    assert hosts.copied == [order.number] * 2, "a repeated order is answered again"


def test_a_copy_that_another_order_follows_counts_for_nothing(hosts: Hosts) -> None:
    source, target = hosts.shards[1], hosts.shards[2]
    layout = source.layout
    first = m.CopyBuckets(9, _STEP + 1, 2, ((0, 1),))  # of a step that does not exist yet
    held = target.prepare(layout.moved([2, *layout.holders[1:]], first.number))
    hosts.copies.begin(first, held)
    second = msgspec.structs.replace(first, number=10, step=_STEP)
    hosts.copies.begin(second, held)
    hosts.until(lambda: bool(hosts.copied))

    assert hosts.copied == [second.number]
    assert target.arrivals.recorded is not None
    assert target.arrivals.recorded.number == second.number


def test_what_is_queued_of_a_copy_is_dropped_when_another_is_asked_for() -> None:
    sent, dropped = list[tuple[int, int]](), list[str]()
    remote = RemoteWorkers(lambda _, chunk, __: sent.append((chunk.number, len(dropped))), dropped.append)
    remote.open(
        lambda pull: Payload(m.Chunk(pull.step, 0, pull.number), ((0, 8),), lambda *_: memoryview(b""))
    )
    for number in (1, 1, 2):
        remote.pull("aggregator-2", m.PullBuckets(_STEP, number, (0,)))
        remote.answer(_STEP)
    remote.pull("w0", m.Pull(_STEP, 3))
    remote.answer(_STEP)
    remote.pull("w0", m.Pull(_STEP, 4))

    assert dropped == ["aggregator-2"], "not what a worker has asked for, nor what is asked for again"
    assert sent[0] == (1, 0)
    assert sent[-2] == (2, 1), "before the other is sent"
