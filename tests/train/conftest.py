"""Proof, after every test of this folder, that nothing was left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import ours
from waiting import eventually


def _files() -> set[str]:
    """What a job could leave; databases beside it have shared memory of their own."""
    shared = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    shared = {name for name in shared if not name.startswith(("PostgreSQL.", "."))}
    return shared | {str(path) for path in Path("/tmp").glob("*.ipc")}


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Fails a test after which a process, a file in shared memory or a socket file is left."""
    before, files = ours(), _files()
    yield
    assert eventually(lambda: not ours() - before), "a process was left behind"
    # what another process of the tests has made in the meantime goes with its own job
    left = _files() - files
    assert eventually(lambda: not left & _files(), within_s=60.0), "a file was left behind"
