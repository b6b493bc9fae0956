"""What an aggregator does as buckets move: it copies, takes a map, and refuses orders under older ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import zmq
from manifests import manifest_of

from scavenger.elastic.migration import BucketMap
from scavenger.train.aggregation.map_changes import MapChanges
from scavenger.train.aggregation.model_shard import ModelShard
from scavenger.train.aggregation.peers import Peers
from scavenger.train.aggregation.upstream import Upstream
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.messages.values import TensorSpec
from scavenger.train.transport.shared_memory import PartRecord
from scavenger.train.transport.sockets import new_keys

MODEL = manifest_of(
    (TensorSpec("t", (64, 64), "float32", "trainable"),),
    '{"module": "keras.optimizers", "class_name": "SGD", "config": {"learning_rate": 0.1, "momentum": 0.9}}',
)
LAYOUT = Layout.of(MODEL, 2)
ALL_TO_1 = tuple(1 for _ in LAYOUT.holders)


class Target:
    """Aggregator 1, of two that share a block, or of another block than the first."""

    def __init__(
        self, fd: int, context: zmq.Context[zmq.Socket[bytes]], beside: tuple[int, ...] = (0,)
    ) -> None:
        self.said: list[m.Message] = []
        self.changes = self.losses = 0
        self.shard = ModelShard(fd, LAYOUT, 1)
        self.shard.begin()
        self._prepared = threading.Event()
        poller, keys = zmq.Poller(), new_keys()
        upstream = Upstream(context, "aggregator-1", keys, poller)
        self.maps = MapChanges(
            self.shard,
            0,
            beside=beside,
            peers=Peers(context, "aggregator-1", keys, memory="m", poller=poller, upstream=upstream),
            answer=self.said.append,
            taken=self._taken,
            lost=self._lost,
            wake=self._prepared.set,
        )

    def copy(self, order: m.CopyBuckets) -> None:
        """Hand over an order and wait until what it takes has been prepared."""
        self._prepared.clear()
        self.maps.copy(order)
        assert self._prepared.wait(60.0)
        self.maps.go_on()

    def _taken(self) -> None:
        self.changes += 1

    def _lost(self) -> None:
        self.losses += 1


@pytest.fixture
def target() -> Iterator[Target]:
    fd, context = create_block(), zmq.Context[zmq.Socket[bytes]]()
    yield Target(fd, context)
    context.destroy(linger=0)
    os.close(fd)


def order(step: int, number: int, changed: BucketMap | None = None) -> m.ApplyPart:
    return m.ApplyPart(step, 1, 1.0, (), map=number, changed=changed)


def copy(number: int, step: int) -> m.CopyBuckets:
    moved = [bucket for bucket, holder in enumerate(LAYOUT.holders) if holder == 0]
    return m.CopyBuckets(number, step, 1, tuple((bucket, 0) for bucket in moved))


def test_what_lies_in_the_same_block_is_copied_at_once_and_held_with_the_order_that_says_so(
    target: Target,
) -> None:
    target.copy(copy(5, 3))
    target.maps.copy(copy(5, 3))
    target.maps.copy(copy(4, 2))
    assert target.said == [m.BucketsCopied(1, 5)] * 2, "a repeated order is answered again, an old one is not"
    assert target.shard.layout.holders == LAYOUT.holders, "nothing is decided"

    assert target.maps.admits(order(4, 5, BucketMap(5, 4, ALL_TO_1)))
    assert (target.shard.layout.holders, target.shard.layout.map_number) == (ALL_TO_1, 5)
    assert target.shard.record == PartRecord(3), "what it has gained is as of the step before"
    assert target.changes == 1


def test_orders_under_an_older_map_are_refused_and_under_an_unknown_one_wait(target: Target) -> None:
    assert target.maps.admits(order(1, 0))
    assert not target.maps.admits(order(1, 5))
    target.maps.confirm(m.TakeMap(BucketMap(5, 1, ALL_TO_1)))
    assert not target.maps.admits(order(1, 0))
    assert target.maps.admits(order(1, 5))


def test_a_map_is_confirmed_as_often_as_it_is_told_and_an_older_one_is_not(target: Target) -> None:
    new, old = m.TakeMap(BucketMap(5, 1, (0,) * len(ALL_TO_1))), m.TakeMap(BucketMap(4, 1, ALL_TO_1))
    for message in (new, new, old):
        target.maps.confirm(message)

    assert target.said == [m.MapTaken(1, 5)] * 2
    assert target.shard.layout.parts[1] == (), "it may hold nothing"
    target.maps.copy(copy(5, 3))
    assert len(target.said) == 2, "a copy for a map that was taken is outdated"


def test_one_that_did_not_copy_what_a_map_has_it_hold_says_so_and_does_not_hold_it() -> None:
    """As a process whose predecessor had copied it, and ended with its memory."""
    fd, context = create_block(), zmq.Context[zmq.Socket[bytes]]()
    try:
        target = Target(fd, context, beside=())
        gained = tuple(1 for _ in LAYOUT.holders)
        assert not target.maps.admits(order(5, 9, BucketMap(9, 5, gained)))
        assert (target.losses, target.changes) == (1, 0)
        assert target.shard.layout.holders == LAYOUT.holders

        assert target.maps.admits(order(5, 10, BucketMap(10, 5, tuple(0 for _ in gained))))
        assert (target.losses, target.changes) == (1, 1), "who only gives up needs nothing"
    finally:
        context.destroy(linger=0)
        os.close(fd)
