"""The hub accepts a name only with its admitted key: no process can send as another, or as its replaced predecessor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from scavenger.train.names import HEARTBEAT_SUFFIX
from scavenger.train.transport import messages as m
from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.sockets import Dealer, Keys, Router, new_keys

pytestmark = pytest.mark.slow

WITHIN_S, SILENCE_S = 5.0, 0.4


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
    assert hub.received(SILENCE_S) == []
    assert hub.router.malformed.count == 1


def test_messages_of_a_replaced_process_do_not_arrive_even_if_it_is_still_connected(hub: Hub) -> None:
    before = hub.dealer("aggregator-0", hub.admitted("aggregator-0"))
    before.send(m.Join())
    assert hub.received()
    keys = hub.admitted("aggregator-0")
    before.send(m.Join())
    assert hub.received(SILENCE_S) == []
    assert hub.router.malformed.count == 1

    after = hub.dealer("aggregator-0", keys)
    after.send(m.Join())
    assert hub.received() == [("aggregator-0", m.Join())]
    # the predecessor tries to get its connection back, and must not
    for _ in range(3):
        before.send(m.Join())
        assert hub.received(SILENCE_S) == []
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
        assert received(SILENCE_S) == []
        assert router.malformed.count == 1
    finally:
        dealer.close()
        router.close()
        authenticator.close()
        context.destroy(linger=0)
