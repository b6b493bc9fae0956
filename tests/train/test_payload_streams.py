"""Streams of payloads between an aggregator and its workers, over real sockets, with strangers at the port."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import eventually

from scavenger.train.transport import messages as m
from scavenger.train.transport import payload_frames, payload_loop, payload_streams
from scavenger.train.transport.messages.values import PayloadOffer
from scavenger.train.transport.payload_frames import FRAME_BYTES_MAX, FrameWriter
from scavenger.train.transport.payload_streams import PayloadClient, PayloadServer
from scavenger.train.transport.sockets import Malformed

HOST = "127.0.0.1"
WITHIN_S = 60.0
CHUNK = m.Chunk(1, 0, 1)


@pytest.fixture
def server() -> Iterator[PayloadServer]:
    made = PayloadServer(HOST, Malformed())
    made.start()
    yield made
    made.close()


@pytest.fixture
def client() -> Iterator[PayloadClient]:
    made = PayloadClient(Malformed())
    made.start()
    yield made
    made.close()


def arrive(end: PayloadServer | PayloadClient, count: int) -> list[tuple[Any, m.Message, bytes | None]]:
    """The next so many messages."""
    found: list[tuple[Any, m.Message, bytes | None]] = []
    deadline = time.monotonic() + WITHIN_S
    while len(found) < count:
        assert time.monotonic() < deadline, found
        select.select([end.fileno()], [], [], 1.0)
        found += [
            (peer, message, None if payload is None else bytes(payload))
            for peer, message, payload in end.receive()
        ]
    return found


def connect(server: PayloadServer, client: PayloadClient, name: str = "w0", index: int = 0) -> None:
    client.connect(index, HOST, server.offer(name))
    assert eventually(lambda: client.send(index, m.ChunkQuery(0, 0, 0)), within_s=WITHIN_S)
    assert arrive(server, 1) == [(name, m.ChunkQuery(0, 0, 0), None)]


def shown(link: socket.socket, offer: PayloadOffer) -> FrameWriter:
    """Show a ticket and prove to have the keys, as a worker does."""
    writer, buffer = FrameWriter(offer.to_aggregator), memoryview(bytearray(FRAME_BYTES_MAX))
    writer.begin(b"")
    link.sendall(offer.ticket + bytes(buffer[: writer.fill(buffer)]))
    return writer


def sealed(writer: FrameWriter, message: m.Message, payload: bytes) -> bytes:
    buffer, found = memoryview(bytearray(FRAME_BYTES_MAX)), bytearray()
    writer.begin(m.encode(message), memoryview(payload))
    while writer.more:
        found += buffer[: writer.fill(buffer)]
    return bytes(found)


def is_hung_up(link: socket.socket) -> bool:
    """Whether the other end closes the connection, having sent nothing."""
    link.settimeout(WITHIN_S)
    with contextlib.suppress(ConnectionError):
        return link.recv(1) == b""
    return True


def test_payloads_cross_both_ways_in_order(server: PayloadServer, client: PayloadClient) -> None:
    connect(server, client)
    pushed = [(m.Chunk(1, index, 1), os.urandom(1_500_000 + index)) for index in range(12)]
    for message, payload in pushed:
        assert client.send(0, message, payload)
    contributed = m.Contributed(1, 1, 1, 4, (), 0.1, 0.0, 1.0, 0.0)
    assert client.send(0, contributed)
    assert server.send("w0", CHUNK, memoryview(pushed[0][1]))

    assert arrive(server, 13) == [*(("w0", *each) for each in pushed), ("w0", contributed, None)]
    assert arrive(client, 1) == [(0, CHUNK, pushed[0][1])]


@pytest.mark.parametrize(("given", "taken"), [(b"bbr", b"cubic"), (b"reno", b"reno")])
def test_tcp_finds_the_rate_of_a_stream_in_a_way_that_is_not_slow_beside_others(
    given: bytes, taken: bytes
) -> None:
    kind = socket.IPPROTO_TCP, socket.TCP_CONGESTION
    with socket.socket() as link:
        for way in (taken, given):
            try:
                link.setsockopt(*kind, way)
            except OSError:
                pytest.skip(f"this system does not have {way.decode()}, or not for this user")
        payload_loop.share_fairly(link)
        assert link.getsockopt(*kind, 16).rstrip(b"\0") == taken


def test_without_a_stream_nothing_is_sent(server: PayloadServer, client: PayloadClient) -> None:
    assert not client.send(0, CHUNK, b"x")
    assert not server.send("w0", CHUNK, b"x")


def test_an_offer_holds_for_one_connection(server: PayloadServer) -> None:
    offer = server.offer("w0")
    with contextlib.ExitStack() as opened:
        links = [opened.enter_context(socket.create_connection((HOST, offer.port))) for _ in range(3)]
        writer = shown(links[0], offer)
        links[0].sendall(sealed(writer, CHUNK, b"once"))
        assert arrive(server, 1) == [("w0", CHUNK, b"once")]
        # the whole stream again, and with a newer offer in its place
        shown(links[1], offer)
        assert is_hung_up(links[1])
        unused = server.offer("w0")
        server.offer("w0")
        shown(links[2], unused)
        assert is_hung_up(links[2])
        assert server.send("w0", CHUNK, b"x"), "the stream goes on"


def test_what_was_replayed_changed_or_sealed_by_others_does_not_arrive_and_ends_the_stream(
    server: PayloadServer,
) -> None:
    def flipped(writer: FrameWriter) -> bytes:
        data = bytearray(sealed(writer, CHUNK, bytes(1000)))
        data[-500] ^= 1
        return bytes(data)

    def replayed(writer: FrameWriter) -> bytes:
        return 2 * sealed(writer, CHUNK, b"once")

    def header_changed(writer: FrameWriter) -> bytes:
        data = bytearray(sealed(writer, CHUNK, bytes(1000)))
        data[10] ^= 1
        return bytes(data)

    def of_another(writer: FrameWriter) -> bytes:
        other = FrameWriter(server.offer("w1").to_aggregator)
        sealed(other, CHUNK, b"")
        return sealed(other, CHUNK, b"another's")

    for number, (attack, arrives) in enumerate(
        ((flipped, []), (replayed, [b"once"]), (header_changed, []), (of_another, []))
    ):
        name = f"w{10 + number}"
        offer = server.offer(name)
        with socket.create_connection((HOST, offer.port)) as link:
            writer = shown(link, offer)
            link.sendall(attack(writer))
            assert is_hung_up(link)
        assert [(peer, payload) for peer, _, payload in server.receive()] == [
            (name, payload) for payload in arrives
        ]
        assert not server.send(name, CHUNK, b"x")


def test_garbage_takes_no_memory_and_does_not_arrive(server: PayloadServer, client: PayloadClient) -> None:
    connect(server, client)
    offer = server.offer("w1")
    with contextlib.ExitStack() as opened:
        for said in (os.urandom(1 << 16), b"GET / HTTP/1.1\r\n\r\n", offer.ticket + os.urandom(100)):
            link = opened.enter_context(socket.create_connection((HOST, offer.port)))
            with contextlib.suppress(ConnectionError):
                link.sendall(said)
            assert is_hung_up(link)
        assert list(server.receive()) == []
        assert server._loop.payloads._all == []
        # a ticket that was seen on its way does not help, and the offer still holds for its worker
        link = opened.enter_context(socket.create_connection((HOST, offer.port)))
        writer = shown(link, offer)
        link.sendall(sealed(writer, CHUNK, b"genuine"))
        assert arrive(server, 1) == [("w1", CHUNK, b"genuine")]


def test_idle_strangers_are_sent_away_and_do_not_hold_up_a_worker(
    monkeypatch: pytest.MonkeyPatch, server: PayloadServer, client: PayloadClient
) -> None:
    server._guests_max = 5
    port = server.offer("other").port
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as opened:
        strangers = [opened.enter_context(socket.create_connection((HOST, port))) for _ in range(40)]
        for stranger in strangers[:35]:
            assert is_hung_up(stranger)
        assert len(os.listdir("/proc/self/fd")) <= before + 40 + 5
        connect(server, client)
        assert client.send(0, CHUNK, b"x")
        assert arrive(server, 1) == [("w0", CHUNK, b"x")]


def test_a_connection_that_proves_nothing_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_streams, "_PROOF_S", 0.2)
    server = PayloadServer(HOST, Malformed())
    server.start()
    offer = server.offer("w0")
    with contextlib.closing(server), socket.create_connection((HOST, offer.port)) as link:
        link.sendall(offer.ticket)
        assert is_hung_up(link)


def test_a_worker_that_is_dismissed_or_has_a_new_stream_loses_the_old_one(
    server: PayloadServer, client: PayloadClient
) -> None:
    connect(server, client)
    offer = server.offer("w0")
    with socket.create_connection((HOST, offer.port)) as link:
        shown(link, offer)
        assert eventually(lambda: list(client.lost()) == [0], within_s=WITHIN_S)
        assert not client.send(0, CHUNK, b"x")
        assert server.send("w0", CHUNK, b"x")
        server.dismiss("w0")
        link.settimeout(WITHIN_S)
        with contextlib.suppress(ConnectionError):
            while link.recv(1 << 16):
                pass
        assert eventually(lambda: not server.send("w0", CHUNK, b"x"), within_s=WITHIN_S)


def test_a_worker_asks_for_another_offer_later_and_later_while_it_reaches_no_port(
    client: PayloadClient,
) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))  # and does not listen
        offer = PayloadOffer(taken.getsockname()[1], bytes(16), bytes(32), bytes(32))
        at = [time.monotonic()]
        for _ in range(3):
            client.connect(0, HOST, offer)
            assert eventually(lambda: list(client.lost()) == [0], within_s=WITHIN_S)
            at.append(time.monotonic())
    assert at[3] - at[2] > 0.35
    assert not client.send(0, CHUNK, b"x")


def test_what_aggregators_before_a_restart_have_sent_does_not_arrive(
    server: PayloadServer, client: PayloadClient
) -> None:
    connect(server, client)
    server.send("w0", CHUNK, b"of the one before")
    assert eventually(lambda: bool(client._loop._arrived), within_s=WITHIN_S)
    client.forget()
    assert list(client.receive()) == []
    assert not client.send(0, CHUNK, b"x")
    connect(server, client)


def test_a_receiver_that_takes_nothing_holds_a_limited_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch, server: PayloadServer, client: PayloadClient
) -> None:
    connect(server, client)
    monkeypatch.setattr(payload_loop, "_WAITING_BYTES_MAX", 3_000_000)
    for index in range(40):
        client.send(0, m.Chunk(1, index, 1), bytes(1_000_000))
    assert eventually(lambda: bool(server._loop._paused), within_s=WITHIN_S)
    time.sleep(0.2)
    assert len(server._loop._arrived) <= 4
    assert [message.offset for _, message, _ in arrive(server, 40) if isinstance(message, m.Chunk)] == list(
        range(40)
    )


def test_a_stream_whose_key_is_used_up_is_replaced(
    monkeypatch: pytest.MonkeyPatch, server: PayloadServer, client: PayloadClient
) -> None:
    connect(server, client)
    monkeypatch.setattr(payload_frames, "_RECORDS_MAX", 4)
    for _ in range(4):
        client.send(0, CHUNK, b"x")
    assert eventually(lambda: list(client.lost()) == [0], within_s=WITHIN_S)
    list(server.receive())
    connect(server, client)
