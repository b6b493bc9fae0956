"""Connections without a token, or without a request, take nothing from others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import requests
from certificates import certificate
from server_world import World, build

from scavenger.server.connections import Connections
from scavenger.server.serving import serving
from scavenger.server.settings import ServerSettings
from scavenger.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/scavenger.db") as opened:
        yield opened


@pytest.fixture
def world(store: Store, tmp_path: Path) -> World:
    return build(store, tmp_path)


@contextmanager
def connected(url: str, count: int, sent: bytes = b"") -> Iterator[list[socket.socket]]:
    host, port = url.rpartition("/")[2].split(":")
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            one = stack.enter_context(socket.create_connection((host, int(port))))
            one.sendall(sent)
            made.append(one)
        yield made


def closed(one: socket.socket, within_s: float = 30.0) -> bool:
    """Whether the server closes the connection, with or without an answer, in time."""
    one.settimeout(within_s)
    try:
        while one.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def test_so_many_connections_without_a_token_are_kept_and_requests_are_answered(
    store: Store, world: World
) -> None:
    bounds = Connections(unproven_max=20, head_s=3600.0)
    with (
        serving(store, ServerSettings(port=0), connections=bounds) as url,
        connected(url, 300) as idle,
        requests.Session() as session,
    ):
        asked = f"{url}/v1/jobs"
        assert session.get(asked, headers=world.headers("ann"), timeout=30).ok
        assert all(closed(one) for one in idle[:280])
        with connected(url, 100):  # nor do they end a connection that has had a token
            assert session.get(asked, headers=world.headers("ann"), timeout=30).ok


def test_what_does_not_come_to_a_whole_request_is_closed_in_time(store: Store, world: World) -> None:
    head, host = b"GET /healthz HTTP/1.1\r\nHost: 127", b".0.0.1\r\n"
    slow = b"POST /v1/jobs HTTP/1.1\r\nHost: 127" + host + b"Content-Length: 99\r\n\r\n{"
    bounds = Connections(head_s=0.3, unproven_s=0.5)
    with serving(store, ServerSettings(port=0), connections=bounds) as url, ExitStack() as stack:
        made = [
            stack.enter_context(connected(url, 1, sent))[0]
            for sent in (b"", b"\x16\x03", head, head + host + b"\r\n" + head, slow)
        ]
        assert all(closed(one) for one in made)


def test_streams_with_a_token_go_on_and_all_connections_are_bounded(store: Store, world: World) -> None:
    bounds = Connections(head_s=0.2, unproven_s=0.2, most=2)
    with serving(store, ServerSettings(port=0), connections=bounds) as url, ExitStack() as stack:
        events = f"{url}/v1/jobs/{world.jobs['ann']}/events/stream"
        streams = [
            stack.enter_context(
                requests.get(events, headers=world.headers("ann"), stream=True, timeout=30)
            ).iter_content(None)
            for _ in range(2)
        ]
        assert all(next(one) for one in streams)
        with connected(url, 3) as late:
            assert all(closed(one) for one in late)
        store.add_event(world.jobs["ann"], "note", "later than a request may take without a token")
        assert all(any(b"later than" in part for part in one) for one in streams)


def test_a_handshake_that_does_not_come_to_its_end_is_ended(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scavenger.server.connections.HEAD_S", 0.3)
    public, private = certificate(tmp_path)
    settings = ServerSettings(port=0, certificate=public, key=private)
    with serving(store, settings) as url, connected(url, 1, b"\x16\x03\x01") as (one,):
        assert closed(one)


def test_connections_by_tls_that_have_ended_count_no_more(store: Store, world: World, tmp_path: Path) -> None:
    public, private = certificate(tmp_path)
    settings = ServerSettings(port=0, certificate=public, key=private)
    with serving(store, settings, connections=Connections(unproven_max=2, most=2)) as url:
        for _ in range(6):
            answer = requests.get(f"{url}/v1/jobs", headers=world.headers("ann"), verify=public, timeout=60)
            assert answer.status_code == 200
