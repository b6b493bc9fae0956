"""Questions to the manager of a pool, also to one that ends meanwhile."""

from __future__ import annotations

import select
import socket
import threading
from pathlib import Path

import pytest

from scavenger.errors import TransientError
from scavenger.train.pool import connection, protocol
from scavenger.train.pool.connection import drain, load_of


def listening(folder: Path) -> socket.socket:
    folder.mkdir(exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / protocol.SOCKET))
    listener.listen(4)
    return listener


def end(folder: Path, listener: socket.socket) -> None:
    (folder / protocol.SOCKET).unlink()
    listener.close()


@pytest.mark.parametrize("asked", [load_of, lambda folder: drain(folder, "node-0")], ids=["load", "drain"])
@pytest.mark.parametrize("reads", [False, True], ids=["not accepted", "read and closed"])
def test_a_manager_that_ends_before_it_answers_serves_no_more(tmp_path: Path, asked, reads: bool) -> None:
    listener = listening(tmp_path)
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(asked(tmp_path)))
    asking.start()
    assert select.select([listener], [], [], 60)[0]
    if reads:
        accepted, _ = listener.accept()
        accepted.recv(65536)
        accepted.close()
    end(tmp_path, listener)
    asking.join(60)
    assert answers == [None]


def test_a_manager_that_always_ends_the_connection_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ANSWER_S", 0.2)
    listener = listening(tmp_path)

    def close_all() -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return

    closing = threading.Thread(target=close_all)
    closing.start()
    try:
        with pytest.raises(TransientError, match="does not answer"):
            load_of(tmp_path)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        end(tmp_path, listener)
        closing.join(60)
