"""A process that sends without end neither fills the memory of the hub nor keeps it from the messages of others."""

from __future__ import annotations

import contextlib

import pytest
import zmq

from scavenger.train.transport import messages as m
from scavenger.train.transport import sockets
from scavenger.train.transport.sockets import Dealer, Router, new_keys

QUEUE_MAX = 50


def test_messages_of_one_process_wait_with_it_and_others_are_heard() -> None:
    context, keys = zmq.Context(), new_keys()
    hub = Router(context, keys, queue_max=QUEUE_MAX)
    flood = context.socket(zmq.DEALER)
    flood.curve_serverkey, (flood.curve_publickey, flood.curve_secretkey) = keys[0], new_keys()
    flood.set_hwm(1)
    flood.setsockopt(zmq.SNDTIMEO, 500)
    flood.connect(hub.address)
    other = Dealer(context, "w1", hub.address, keys[0], new_keys())
    body = m.encode(m.Failed("internal", "x" * 100_000))
    sent = 0
    try:
        with contextlib.suppress(zmq.Again):  # nobody takes them: they wait with their sender
            while sent < 20 * QUEUE_MAX:
                flood.send(body)
                sent += 1
        assert sent < 10 * QUEUE_MAX, "queued at the hub, and in the buffers of the network"
        other.send(m.Join())
        heard: set[str] = set()
        while "w1" not in heard:
            hub.wait(0.1)
            heard |= {peer for peer, *_ in hub.receive()}
    finally:
        flood.close(linger=0)
        other.close()
        hub.close()
        context.destroy(linger=0)


def test_a_flood_is_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "_TURN_MAX", 10)
    context, keys = zmq.Context(), new_keys()
    hub = Router(context, keys)
    dealer = Dealer(context, "w0", hub.address, keys[0], new_keys())
    try:
        for _ in range(100):
            dealer.send(m.Join())
        counts = []
        while sum(counts) < 100:
            hub.wait(1.0)
            counts.append(len(list(hub.receive())))
        assert max(counts) <= 10
    finally:
        dealer.close()
        hub.close()
        context.destroy(linger=0)
