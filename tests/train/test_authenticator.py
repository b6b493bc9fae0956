"""The hub accepts a name only with its admitted key: no process can send as another, or as its replaced predecessor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
from hearing import refused

from scavenger.train.names import HEARTBEAT_SUFFIX
from scavenger.train.transport import messages as m
from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.sockets import Dealer, Keys, Router, new_keys

pytestmark = pytest.mark.slow

WITHIN_S, SILENCE_S = 20.0, 0.4


class Hub:
    """A hub with an authenticator, and connections to it."""

    def __init__(self) -> None:
        self.context, self.keys = zmq.Context(), new_keys()
        self.authenticator = Authenticator(self.context)
        self.router = Router(self.context, self.keys, authenticator=self.authenticator)
        self.dealers: list[Dealer] = []

    def admitted(self, name: str) -> Keys:
        keys = new_keys()
        self.authenticator.admit(name, keys[0].decode())
        return keys

    def dealer(self, name: str, keys: Keys) -> Dealer:
        self.dealers.append(Dealer(self.context, name, self.router.address, self.keys[0], keys))
        return self.dealers[-1]

    def claimant(self, route: bytes, keys: Keys) -> Any:
        """Connect under a route of its own choice."""
        made = self.context.socket(zmq.DEALER)
        made.setsockopt(zmq.IDENTITY, route)
        made.setsockopt(zmq.PROBE_ROUTER, 1)
        made.curve_serverkey, (made.curve_publickey, made.curve_secretkey) = self.keys[0], keys
        made.connect(self.router.address)
        return made

    def received(self, within_s: float = WITHIN_S) -> list[tuple[str, m.Message]]:
        """Wait for the first messages, and return all that have arrived by then."""
        rounds = int(within_s / 0.02)
        for _ in range(rounds):
            self.router.wait(0.02)
            if found := [(peer, message) for peer, message, _ in self.router.receive()]:
                return found
        return []


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub()
    yield made
    made.context.destroy(linger=0)


def test_messages_and_heartbeats_of_an_admitted_process_arrive(hub: Hub) -> None:
    keys = hub.admitted("w0")
    for name in ("w0", f"w0{HEARTBEAT_SUFFIX}"):
        dealer = hub.dealer(name, keys)
        dealer.send(m.Join())
        assert hub.received() == [(name, m.Join())]
    hub.router.send("w0", m.Joined())
    assert hub.dealers[0].socket.poll(WITHIN_S * 1000)
    assert list(hub.dealers[0].receive()) == [(m.Joined(), None)]


def test_messages_of_a_process_that_was_not_admitted_do_not_arrive(hub: Hub) -> None:
    hub.admitted("w0")
    hub.dealer("w0", new_keys()).send(m.Join())
    assert hub.received(SILENCE_S) == []
    assert hub.router.malformed.count == 0, "it could not even connect"


@pytest.mark.parametrize("name", ["w1", "aggregator-0", f"w1{HEARTBEAT_SUFFIX}", "w00", "nobody"])
def test_an_admitted_process_cannot_send_under_another_name(hub: Hub, name: str) -> None:
    hub.admitted("w1")
    keys = hub.admitted("w0")
    hub.dealer(name, keys).send(m.Join())
    assert refused(hub.router, 2) == [], "neither that it is there nor what it says is heard"


@pytest.mark.parametrize("first", ["the process", "the intruder"])
def test_one_that_claims_the_name_of_another_gets_none_of_its_messages_and_does_not_interrupt_it(
    hub: Hub, first: str
) -> None:
    own, others = hub.admitted("w0"), hub.admitted("w1")
    if first == "the process":
        process = hub.dealer("w0", own)
        process.send(m.Join())
        assert hub.received() == [("w0", m.Join())]
    intruders = [hub.dealer("w0", others).socket, hub.claimant(b"w0", others)]
    for count, intruder in enumerate(intruders, start=1):
        intruder.send(m.encode(m.Join()))
        assert refused(hub.router, 2 * count) == []
    hub.router.send("w0", m.Joined())
    if first == "the intruder":
        process = hub.dealer("w0", own)
        process.send(m.Join())
        assert hub.received() == [("w0", m.Join())]
        hub.router.send("w0", m.Joined())
    assert process.socket.poll(WITHIN_S * 1000)
    assert list(process.receive()) == [(m.Joined(), None)], "only what was said since it was there"
    for _ in range(3):
        for intruder in intruders:
            intruder.send(m.encode(m.Join()))
        process.send(m.Join())
        assert hub.received() == [("w0", m.Join())]
    hub.router.send("w0", m.Quit())
    assert process.socket.poll(WITHIN_S * 1000)
    assert list(process.receive()) == [(m.Quit(), None)]
    assert not any(intruder.poll(SILENCE_S * 1000) for intruder in intruders)


def test_a_process_that_connects_anew_is_reached_there_and_what_it_said_before_arrives_no_more(
    hub: Hub,
) -> None:
    keys = hub.admitted("w0")
    before, after = (hub.dealer("w0", keys) for _ in range(2))
    after.send(m.Join("anew"))
    assert hub.received() == [("w0", m.Join("anew"))]
    before.send(m.Join("before"))
    assert hub.received(SILENCE_S) == []
    hub.router.send("w0", m.Joined())
    assert after.socket.poll(WITHIN_S * 1000)
    assert not before.socket.poll(0)
    assert hub.router.malformed.count == 0


def test_a_process_is_reached_before_it_has_spoken(hub: Hub) -> None:
    dealer = hub.dealer("w0", hub.admitted("w0"))
    deadline = time.monotonic() + WITHIN_S
    while not dealer.socket.poll(0):
        assert time.monotonic() < deadline
        assert hub.received(0.02) == []
        hub.router.send("w0", m.Quit())
    assert (m.Quit(), None) in dealer.receive()


def test_messages_of_a_replaced_process_do_not_arrive_even_if_it_is_still_connected(hub: Hub) -> None:
    before = hub.dealer("aggregator-0", hub.admitted("aggregator-0"))
    before.send(m.Join())
    assert hub.received()
    keys = hub.admitted("aggregator-0")
    before.send(m.Join())
    assert refused(hub.router, 1) == []
    hub.router.send("aggregator-0", m.Joined())
    assert not before.socket.poll(SILENCE_S * 1000), "it is for the one that follows"

    after = hub.dealer("aggregator-0", keys)
    after.send(m.Join())
    assert hub.received() == [("aggregator-0", m.Join())]
    # the predecessor tries to get its connection back, and must not
    for count in range(2, 5):
        before.send(m.Join())
        assert refused(hub.router, count) == []
    hub.router.send("aggregator-0", m.Joined())
    assert after.socket.poll(WITHIN_S * 1000)
    assert not before.socket.poll(0)


def test_a_key_may_follow_its_connection_where_processes_learn_of_each_other_late() -> None:
    context, keys, late = zmq.Context(), new_keys(), new_keys()
    authenticator = Authenticator(context, may_follow=True)
    router = Router(context, keys, authenticator=authenticator)
    dealer = Dealer(context, "w0", router.address, keys[0], late)

    def received(within_s: float) -> list[tuple[str, m.Message]]:
        for _ in range(int(within_s / 0.02)):
            router.wait(0.02)
            if found := [(peer, message) for peer, message, _ in router.receive()]:
                return found
        return []

    try:
        dealer.send(m.Join())
        assert received(SILENCE_S) == []
        authenticator.admit("w0", late[0].decode())
        assert received(WITHIN_S) == [("w0", m.Join())], "it has tried again, with what it had to say"
        authenticator.dismiss("w0")
        dealer.send(m.Join())
        assert refused(router, 1) == []
    finally:
        dealer.close()
        router.close()
        authenticator.close()
        context.destroy(linger=0)
