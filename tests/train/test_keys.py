"""Every job has its own keys: a process without them can neither send, receive nor read messages."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from driving import Run, assert_same_weights, plain_keras
from hearing import heard
from manifests import manifest_of

from scavenger.elastic.view import Piece, Share
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.shared_memory import Block
from scavenger.train.transport.sockets import Dealer, Keys, Router, new_keys
from scavenger.train.worker.results import Results

pytestmark = pytest.mark.slow

_SILENCE_S = 0.5
"""Longer than any answer on this machine takes."""


def _intruder(context: Any, address: str, server_key: bytes | None, keys: Keys | None) -> Any:
    """Connect as a process that claims to be the job's first worker."""
    made = context.socket(zmq.DEALER)
    made.setsockopt(zmq.IDENTITY, b"w0")
    made.setsockopt(zmq.LINGER, 0)
    if server_key is not None:
        made.curve_serverkey = server_key
        made.curve_publickey, made.curve_secretkey = keys or new_keys()
    made.connect(address)
    return made


def _intruders(context: Any, address: str, of_another_job: Keys) -> list[Any]:
    return [
        _intruder(context, address, None, None),
        _intruder(context, address, new_keys()[0], None),
        _intruder(context, address, of_another_job[0], of_another_job),
    ]


def test_messages_of_intruders_do_not_arrive(context: Any) -> None:
    router, other = Router(context, new_keys()), Router(context, new_keys())
    other_keys = new_keys()
    intruders = _intruders(context, router.address, other_keys)
    for intruder in intruders:
        intruder.send(m.encode(m.Join()))
    with socket.create_connection(router.address.removeprefix("tcp://").rsplit(":", 1)) as plain:  # type: ignore[arg-type]
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(200))
        assert not router.socket.poll(_SILENCE_S * 1000)
    for intruder in intruders:
        assert not intruder.poll(0)
    other.close()
    router.close()


def test_one_with_the_jobs_key_is_heard_among_intruders(context: Any) -> None:
    keys = new_keys()
    router = Router(context, keys)
    for intruder in _intruders(context, router.address, new_keys()):
        intruder.send(m.encode(m.Join()))
    dealer = Dealer(context, "w1", router.address, keys[0], new_keys())

    dealer.send(m.Join())

    assert heard(router) == [("w1", m.Join(), None)]
    router.send("w1", m.Joined())
    assert dealer.socket.poll(5000)
    assert list(dealer.receive()) == [(m.Joined(), None)]
    dealer.close()
    router.close()


class _Tap:
    """A TCP relay in front of an address, which keeps all bytes that pass, both ways."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        self.seen = bytearray()
        self._open: list[socket.socket] = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self.seen += data
                other.sendall(data)

    def close(self) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _layout() -> Layout:
    return Layout.of(
        manifest_of((m.TensorSpec("kernel", (300, 400), "float32", "trainable"),), metrics=((2,),))
    )


def test_a_listener_on_the_wire_sees_no_gradient_and_no_message(context: Any) -> None:
    layout, keys = _layout(), new_keys()
    fd = create_block()
    block = Block(fd, layout)
    (gradient,) = block.tensors(layout.slot_at(0))
    gradient[...] = np.random.default_rng(1).normal(size=gradient.shape)
    router = Router(context, keys)
    tap = _Tap(router.address)
    dealer = Dealer(context, "w0", tap.address, keys[0], new_keys())

    result = m.Contributed(1, 1, 77, 1, (), 0.1, 0.0, 1.0, 0.0)
    results = Results(block)
    results.add_gradient(1, Piece(77, Share(0, 1), "w0", 0), result)
    results.answer(0, m.AskBuckets(77, 1, (0, 1, 2)), dealer.send)
    dealer.send(m.Summary(1, 1, {"a-metric-with-a-name": 1.0}))

    got: list[tuple[str, m.Message, bytes | None]] = []
    deadline = time.monotonic() + 20
    while not any(isinstance(message, m.Summary) for _, message, _ in got):
        assert time.monotonic() < deadline
        router.socket.poll(100)
        got += router.receive()
    dealer.close()
    router.close()
    tap.close()
    os.close(fd)
    content, seen = gradient.tobytes(), bytes(tap.seen)
    arrived = b"".join(data for _, _, data in got if data is not None)
    assert arrived[: len(content)] == content, "what was sent did pass"
    assert len(seen) > len(content)
    assert all(content[at : at + 16] not in seen for at in range(0, len(content), 1024))
    assert b"a-metric-with-a-name" not in seen
    assert b"Summary" not in seen


@pytest.mark.slow
def test_a_job_goes_on_undisturbed_while_intruders_connect_to_all_its_sockets(
    context: Any, tmp_path: Path
) -> None:
    with Run("small:slow", tmp_path, aggregators=2, remote=("w0", "w1")) as run:
        run.begin(2, 32)
        run.train(5)
        (hub,) = {run.supervisor._processes.hub.address}
        ports = _listening(run)
        assert len(ports) == 4, (
            "an aggregator listens at more than one port for messages and one for payloads"
        )
        assert hub.startswith("tcp://127.0.0.1:")
        addresses = [hub, *(f"tcp://127.0.0.1:{port}" for port in ports)]
        intruders = [one for address in addresses for one in _intruders(context, address, new_keys())]
        messages = [
            m.Join(),
            m.Pull(run.steps[-1].step, 1),
            m.Quit(),
            m.Failed("code", "an intruder says so"),
            m.Contributed(
                run.views[-1].number, run.steps[-1].step + 1, 1, 16, (0, 1), 0.0, 0.0, float("nan"), 0.0
            ),
        ]
        for intruder in intruders:
            for message in messages:
                intruder.send(m.encode(message))
            intruder.send_multipart([m.encode(m.GradientBucket(1 << 62, 0)), b"\xff" * 100])
        for port in ports:
            with socket.create_connection(("127.0.0.1", port)) as plain, contextlib.suppress(ConnectionError):
                plain.sendall(bytes(range(256)) * 256)
        run.train(12)
        assert not any(intruder.poll(0) for intruder in intruders)
        got = run.finish()

    assert not run.lost
    assert not run.recovered
    assert_same_weights(got, plain_keras("slow", run.steps))


def _listening(run: Run) -> list[int]:
    """Return the ports at which the job's aggregators listen, all of them on the loopback address."""
    import psutil

    found = []
    for name in ("aggregator-0", "aggregator-1"):
        for connection in psutil.Process(run.pid(name)).net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip == "127.0.0.1"
                found.append(connection.laddr.port)
    return found
