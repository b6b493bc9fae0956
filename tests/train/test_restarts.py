"""A restarted aggregator: all processes connect to it, and messages for its predecessor do not arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import zmq
from hearing import heard
from stubs import manifest
from waiting import eventually

from scavenger.elastic.initialization import Endpoint
from scavenger.elastic.membership import Membership
from scavenger.train.coordinator.initialization import JobInitializer
from scavenger.train.job_source import JobSource
from scavenger.train.supervisor.process_configurations import ProcessConfigurations
from scavenger.train.transport import messages as m
from scavenger.train.transport.sockets import EVERYBODY, Dealer, Keys, Router, new_keys

SILENCE_MS = 500
NAME = "aggregator-0"


def bootstraps(folder: Path, **options: Any) -> ProcessConfigurations:
    return ProcessConfigurations(JobSource("train:job", folder, 1, threads=1), aggregators=(NAME,), **options)


def address(boot: m.ProcessConfiguration) -> Endpoint:
    """Make the configuration of a process that gets the same port each time, on the same block."""
    return Endpoint("tcp://127.0.0.1:5555", boot.data_public_key, "block")


def test_one_that_got_the_address_of_the_one_before_is_connected_to_and_initialised(tmp_path: Path) -> None:
    boots = bootstraps(tmp_path, hub="tcp://127.0.0.1:1", server_key=b"key")
    membership, sent = Membership(), []
    initialization = JobInitializer(
        membership, token=1, send=lambda to, said: sent.append((to, said)), announce=lambda _: None
    )
    initialization.take_over(m.Brief(1, ("w0",), (NAME,), 60.0, 60.0, None, None, None, 0, 0, (), (), ()))
    membership.launch("w0")
    first, second = (address(boots.of("aggregator", NAME)) for _ in range(2))
    assert first.address == second.address
    initialization.aggregator_ready(m.AggregatorReady(0, first, False, False))
    initialization.hello("w0", manifest())
    initialization.seeded_by("w0", "block")
    initialization.initialised(0)
    sent.clear()

    initialization.aggregator_ready(m.AggregatorReady(0, second, False, False))

    assert [(to, type(said)) for to, said in sent] == [(EVERYBODY, m.Reconnect), (NAME, m.Initialise)]
    assert [said.aggregators for _, said in sent] == [(second,), (second,)]


def _bound(context: Any, keys: Keys, address: str) -> Router:
    """Make a router at a port that another one used, as soon as it is free."""
    router = Router(context, keys)
    router.socket.unbind(router.address)

    def bound() -> bool:
        try:
            router.socket.bind(address)
        except zmq.ZMQError:
            return False
        return True

    assert eventually(bound)
    return router


def test_what_was_said_to_the_one_before_does_not_arrive_at_one_with_its_port(
    tmp_path: Path, context: Any
) -> None:
    boots = bootstraps(tmp_path, hub="tcp://127.0.0.1:1", server_key=b"key")
    before, after = (boots.of("aggregator", NAME) for _ in range(2))

    def keys(boot: m.ProcessConfiguration) -> Keys:
        return boot.data_public_key.encode(), boot.data_secret_key.encode()

    router = Router(context, keys(before))
    place = router.address
    late = Dealer(context, "w0", place, before.data_public_key.encode(), new_keys())
    late.send(m.Join())
    assert heard(router)
    router.close()
    late.send(m.Pull(1, 1))  # waits for the connection to come back
    router = _bound(context, keys(after), place)
    assert not router.socket.poll(SILENCE_MS), "who has not heard of the new one does not reach it"
    late.close()
    anew = Dealer(context, "w0", place, after.data_public_key.encode(), new_keys())
    anew.send(m.Join())
    assert heard(router) == [("w0", m.Join(), None)]
    anew.close()
    router.close()
