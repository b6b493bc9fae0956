"""Bytes from one process to another beside a job, as buckets that move travel.

`python -m benchmarks.peers.transfer BYTES`: for each line `sealed` or `plain` on its standard input, another process
sends so many bytes, by a payload stream or a TCP connection, and this one copies what arrives to memory of its own;
then it prints a line. Nothing else is done: no decision, no optimizer, no other map of buckets.
"""

from __future__ import annotations

import multiprocessing as mp
import select
import socket
import sys
import time
from multiprocessing.connection import Connection

from scavenger.train.transport.messages.data import Chunk
from scavenger.train.transport.payload_streams import PayloadClient, PayloadServer
from scavenger.train.transport.replication import chunks_of

_HOST, _PEER = "127.0.0.1", "peer"
_NAME_BYTES = 8


def _send(size: int, told: Connection) -> None:
    data, streams = memoryview(bytearray(size)), PayloadServer(_HOST, print)
    data[::4096] = b"\1" * len(data[::4096])
    streams.start()
    with socket.create_server((_HOST, 0)) as server:
        told.send((streams.offer(_PEER), server.getsockname()[1]))
        link, _ = server.accept()
    while order := link.recv(_NAME_BYTES):
        for at, part in chunks_of(((0, size),)):
            if order == b"plain":
                link.sendall(data[at : at + part])
            else:
                while not streams.send(_PEER, Chunk(0, at, 0), data[at : at + part]):
                    time.sleep(0.01)  # the other end is connecting


def _receive_sealed(streams: PayloadClient, here: memoryview) -> None:
    left = len(here)
    while left:
        select.select([streams], [], [])
        for _, message, payload in streams.receive():
            assert isinstance(message, Chunk)
            assert payload is not None
            here[message.offset : message.offset + len(payload)] = payload
            left -= len(payload)


def main() -> None:
    size = int(sys.argv[1])
    here = memoryview(bytearray(size))
    told, telling = mp.Pipe(duplex=False)
    mp.get_context("spawn").Process(target=_send, args=(size, telling), daemon=True).start()
    offer, port = told.recv()
    streams, link = PayloadClient(print), socket.create_connection((_HOST, port))
    streams.start()
    streams.connect(0, _HOST, offer)
    print("ready", flush=True)
    for line in sys.stdin:
        link.sendall(line.strip().encode())
        if line.strip() == "sealed":
            _receive_sealed(streams, here)
        else:
            at = 0
            while at < size:
                at += link.recv_into(here[at:])
        print("done", flush=True)


if __name__ == "__main__":
    main()
