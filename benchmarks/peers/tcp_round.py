"""The bytes of a job's steps by plain TCP.

`python -m benchmarks.peers.tcp_round serve|join ADDRESS STREAMS BYTES ROUNDS`: `serve` is an aggregator's host. In each
round, it sends so many bytes by each stream, and then receives as many by each; it prints the seconds of each round,
from its first byte to its last. `join` is the workers' host. Nothing is encrypted, added or copied, and nothing
computed.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable

__all__: list[str] = []

_PORT = 7471
_PAUSE_S = 0.2
"""Between two rounds, as a job computes."""
_BUFFER_BYTES = 1 << 20


def _send(link: socket.socket, size: int) -> None:
    data = memoryview(bytes(_BUFFER_BYTES))
    while size:
        part = min(size, len(data))
        link.sendall(data[:part])
        size -= part


def _receive(link: socket.socket, size: int) -> None:
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    while size:
        got = link.recv_into(buffer[: min(size, len(buffer))])
        if not got:
            raise ConnectionResetError
        size -= got


def _at_once(task: Callable[[socket.socket], None], links: list[socket.socket]) -> None:
    threads = [threading.Thread(target=task, args=(link,)) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _serve(address: str, streams: int, size: int, rounds: int) -> None:
    times = []
    with socket.create_server((address, _PORT), backlog=streams) as server:
        print("ready", flush=True)
        links = [server.accept()[0] for _ in range(streams)]
    for _ in range(rounds):
        time.sleep(_PAUSE_S)
        begin = time.perf_counter()
        _at_once(lambda link: _send(link, size), links)
        _at_once(lambda link: _receive(link, size), links)
        times.append(time.perf_counter() - begin)
    print(json.dumps(times), flush=True)


def _join(address: str, streams: int, size: int, rounds: int) -> None:
    links = [socket.create_connection((address, _PORT)) for _ in range(streams)]

    def answer(link: socket.socket) -> None:
        for _ in range(rounds):
            _receive(link, size)
            _send(link, size)

    _at_once(answer, links)


if __name__ == "__main__":
    (_serve if sys.argv[1] == "serve" else _join)(sys.argv[2], *map(int, sys.argv[3:6]))
