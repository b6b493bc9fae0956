"""A PostgreSQL server of a test's own, which it may stop and start; skipped where PostgreSQL is not installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

USERS = ("postgres", "nobody")
"""Whom root runs the server as: it refuses to be run by root."""


class Server:
    """One server, with its data in a folder."""

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self._programs, self._data, self._user = programs, folder / "data", user
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"postgresql+psycopg://scavenger@127.0.0.1:{self._port}/postgres"

    def prepare(self) -> None:
        self._run("initdb", "-D", str(self._data), "-U", "scavenger", "-A", "trust", "-N")
        self.start()

    def start(self) -> None:
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._data}"
        log = str(self._data / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "60", "-l", log, "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "60", "-m", mode, "stop")

    def kill(self) -> None:
        """Kill the server and all its processes, as a machine that loses power does."""
        leader = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        processes = [leader, *leader.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=60)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            check=True,
            user=self._user,
            cwd=self._data.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    beside = shutil.which("initdb")
    return None if beside is None else Path(beside).resolve().parent


@contextmanager
def running_server() -> Iterator[Server]:
    """A running server; the test is skipped where there cannot be one."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    import pwd

    user = None
    if os.getuid() == 0:
        known = {entry.pw_name for entry in pwd.getpwall()}
        user = next((name for name in USERS if name in known), None)
        if user is None:
            pytest.skip(f"PostgreSQL is not run by root, and there is no user {' or '.join(USERS)}")
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    if user is not None:
        shutil.chown(folder, user)
    server = Server(programs, folder, user)
    try:
        server.prepare()
        yield server
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # the test may have left it stopped
            server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
