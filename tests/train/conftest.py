"""Proof, after every test of this folder, that nothing was left behind; and what many of them begin with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from processes import ours
from waiting import eventually

from scavenger.train.transport.block_file import create_block

_BEGINNINGS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "socket.connect"}
"""How this process has others begin: itself, or by a connection to one that forks."""


class _Begun:
    """Counts the beginnings; looking at all processes takes longer than most tests that begin none."""

    def __init__(self) -> None:
        self.count, self.looked_at, self.seen = 0, -1, set[int]()
        sys.addaudithook(self._count)

    def _count(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _BEGINNINGS:
            self.count += 1

    def look(self) -> set[int]:
        """The processes of these tests; those of the last look where none has begun since."""
        if self.looked_at != self.count:
            self.looked_at, self.seen = self.count, ours()
        return self.seen


_begun = _Begun()


def _files() -> set[str]:
    """What a job could leave; databases beside it have shared memory of their own."""
    shared = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    shared = {name for name in shared if not name.startswith(("PostgreSQL.", "."))}
    return shared | {name for name in os.listdir("/tmp") if name.endswith(".ipc")}


@pytest.fixture
def context() -> Iterator[Any]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def fd() -> Iterator[int]:
    """A job's block of shared memory."""
    made = create_block()
    yield made
    os.close(made)


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Fails a test after which a process, a file in shared memory or a socket file is left."""
    before, files = _begun.look(), _files()
    yield
    if _begun.looked_at != _begun.count:
        assert eventually(lambda: not ours() - before), "a process was left behind"
        _begun.looked_at = _begun.count
    # what another process of the tests has made in the meantime goes with its own job
    left = _files() - files
    assert not left or eventually(lambda: not left & _files(), within_s=60.0), "a file was left behind"
