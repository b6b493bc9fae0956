"""Heartbeats are sent by a thread that `start` starts and `close` ends."""

from __future__ import annotations

import threading

import zmq
from hearing import heard

from scavenger.train.names import HEARTBEAT_SUFFIX
from scavenger.train.transport import messages as m
from scavenger.train.transport.heartbeat import Heartbeat
from scavenger.train.transport.sockets import Router, new_keys


def beating() -> bool:
    return any(thread.name == "heartbeat" for thread in threading.enumerate())


def test_heartbeats_are_sent_from_start_to_close_and_not_before() -> None:
    context, keys, own = zmq.Context(), new_keys(), new_keys()
    hub = Router(context, keys)
    boot = m.ProcessConfiguration(
        "worker", "w0", hub.address, keys[0].decode(), own[0].decode(), own[1].decode(), -1
    )
    heartbeat = Heartbeat(context, boot, lambda: m.Beat(step=7))
    assert not beating()

    heartbeat.start()
    assert heard(hub)[0][:2] == ("w0" + HEARTBEAT_SUFFIX, m.Beat(step=7))
    heartbeat.close()
    assert not beating()
    hub.close()
    context.destroy(linger=0)


def test_heartbeats_that_never_started_can_be_closed() -> None:
    context, own = zmq.Context(), new_keys()
    boot = m.ProcessConfiguration(
        "worker", "w0", "tcp://127.0.0.1:9", "", own[0].decode(), own[1].decode(), -1
    )

    Heartbeat(context, boot, m.Beat).close()
    context.destroy(linger=0)
