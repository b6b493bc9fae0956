"""A runner answers its server whether it works, without the store: that may be what is missing.

It listens at an abstract Unix socket, so no disk takes part. The kernel tells the server whose process answers.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from scavenger.control.provisioning.lease_holder import process_of
from scavenger.store.owner import this_process
from scavenger.store.records import Owner
from scavenger.train.pool.protocol import peer_of

logger = logging.getLogger(__name__)

ANSWER_S = 5.0
"""How long a runner may take to answer: its machine may be busy."""
_AGAIN_S = 1.0


def _address(process: Owner) -> str:
    """An address that only this process has, among those of all containers that share a network."""
    name = f"{process.pid}/{process.birth}"
    return f"\0scavenger-runner-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


@contextmanager
def answering(*idle_s: Callable[[], float]) -> Iterator[None]:
    """Answer, within the block, how long ago this process last tried to renew its lease, and what else is asked for.

    Where no socket can be made, nothing answers, and renewals alone show that the process works.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(_address(this_process()))
            listener.listen()
        except OSError as error:
            logger.warning("this runner answers nobody: %s", error.strerror)
            yield
            return
        ended = threading.Event()
        thread = threading.Thread(target=_answer, args=(listener, idle_s, ended), name="life", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _answer(listener: socket.socket, idle_s: tuple[Callable[[], float], ...], ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            connection, _ = listener.accept()
        except OSError:  # the block has ended, or no descriptor is left for now
            ended.wait(_AGAIN_S)
            continue
        with connection, suppress(OSError):
            connection.sendall(" ".join(f"{each():.1f}" for each in idle_s).encode())


def idle_of(holder: str) -> tuple[float, ...] | None:
    """Seconds since the holder of a runner's lease last tried to renew it, as it says, and since its job last worked.

    Returns:
        None if it does not answer.
    """
    process = process_of(holder)
    if process is None:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER_S)
        try:
            asking.connect(_address(process))
            if peer_of(asking) != (process.pid, os.getuid()):
                return None
            return tuple(map(float, asking.recv(64).decode().split())) or None
        except (OSError, ValueError):
            return None
