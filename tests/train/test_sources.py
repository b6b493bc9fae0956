"""What a process does with an order of the beginning that is for another one, or comes once more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from stubs import manifest

from scavenger.elastic.initialization import Endpoint
from scavenger.train.aggregation.aggregator import Aggregator
from scavenger.train.job_source import JobSource
from scavenger.train.supervisor.process_configurations import ProcessConfigurations
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block, memory_id
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.shared_memory import Block
from scavenger.train.transport.sockets import Dealer, Router, new_keys
from scavenger.train.worker.worker import Worker

pytestmark = pytest.mark.slow

JOBS = Path(__file__).with_name("jobs")
NAME = "aggregator-0"


class Control(Dealer):
    """A way to a hub that keeps what is said."""

    def __init__(self, context: Any) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.said: list[m.Message] = []

    def send(self, message: m.Message, payload: Any = None) -> None:
        self.said.append(message)


def bootstraps(context: Any, **options: Any) -> ProcessConfigurations:
    hub = Router(context, new_keys())
    source = JobSource("small:momentum", JOBS, 5, threads=1)
    return ProcessConfigurations(
        source, hub=hub.address, server_key=new_keys()[0], aggregators=(NAME,), **options
    )


def test_an_aggregator_leaves_an_order_alone_that_is_for_the_process_before(context: Any) -> None:
    made = Aggregator(context, bootstraps(context).of("aggregator", NAME), Control(context))
    order = m.Initialise(manifest(), (made._address,), None, None, False, "", 0, 1, ())
    before = Endpoint(made._address.address, new_keys()[0].decode(), made._address.memory)

    made._from_control(msgspec.structs.replace(order, aggregators=(before,)))
    assert made._shard is None
    made._from_control(order)
    assert made._shard is not None
    made.close()


def test_a_worker_that_was_prepared_can_still_give_its_initial_weights_where_others_are_gone(
    context: Any,
) -> None:
    block = create_block()
    control = Control(context)
    boot = bootstraps(context, memory_fd=block).of("worker", "w1")
    worker = Worker(context, boot, control)
    weights = worker._program.initial_state()
    address = Endpoint("tcp://127.0.0.1:9", new_keys()[0].decode(), memory_id(block))
    order = m.Prepare(worker._program.manifest, (address,), initial=False)

    worker._from_control(order)
    assert not any(isinstance(said, m.Seeded) for said in control.said)
    worker._from_control(msgspec.structs.replace(order, initial=True))

    assert [said for said in control.said if isinstance(said, m.Seeded)] == [m.Seeded(memory_id(block))]
    layout = Layout.of(worker._program.manifest, 1)
    held = Block(block, layout).tensors(layout.state_at(0))
    assert all(np.array_equal(a, b) for a, b in zip(held, weights, strict=True))
    worker._samples.close()


def test_an_aggregator_at_a_port_hears_only_the_processes_that_it_was_told_of(context: Any) -> None:
    own = zmq.Context()
    made = Aggregator(own, bootstraps(context).of("aggregator", NAME), Control(own))
    address, known, stranger = made._address, new_keys(), new_keys()
    made._from_control(m.Admit({"w0": known[0].decode(), "w1": new_keys()[0].decode()}))

    def answered(name: str, keys: tuple[bytes, bytes], turns: int) -> bool:
        dealer = Dealer(context, name, address.address, address.key.encode(), keys)
        dealer.send(m.Join())
        try:
            for _ in range(turns):
                made._serve_once()
                if dealer.socket.poll(0):
                    return [message for message, _ in dealer.receive()] == [m.Joined()]
            return False
        finally:
            dealer.close()

    assert address.address.startswith("tcp://")
    assert answered("w0", known, 100)
    assert not answered("w0", stranger, 4), "it knows the aggregator's public key, and no more"
    assert not answered("w1", known, 4), "nobody speaks for another"
    made._from_control(m.Forget("w0"))
    assert not answered("w0", known, 4), "a process that is gone is heard no more"
    made.close()
    own.destroy(linger=0)
