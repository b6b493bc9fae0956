"""Fork servers that begin before the job that they are for, or outlive it, so that the next one begins at once."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Collection, Mapping
from tempfile import TemporaryFile, gettempdir
from typing import IO
from weakref import WeakKeyDictionary

from scavenger.train.engines.forking import (
    FORK_TARGETS,
    SERVER_ENVIRONMENT,
    ForkServer,
    fork_server_supported,
    job_environment,
)

LOG_BYTES_MAX = 1 << 20
"""Most of what a server has written that a job's log gets."""
_KEPT_MAX = 4
"""Most idle servers: as many jobs as usually begin at once; each takes the memory of an imported TensorFlow."""


class WarmServers:
    """Idle fork servers of one program; safe to use from several threads. `close` ends them.

    A server is used by one engine at a time. It ends with this program in any case, as it reads from its socket.

    Args:
        lasting: Whether this program may run further jobs, for which processes stand by.
    """

    def __init__(self, *, lasting: bool = True) -> None:
        self.lasting = lasting
        self._log: IO[bytes] | None = None if lasting else TemporaryFile()  # noqa: SIM115 - of the only job
        self._idle: list[ForkServer] = []  # the longest idle first
        # what they import, and with which variables; also of those that are in use
        self._of: WeakKeyDictionary[ForkServer, tuple[str, dict[str, str]]] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._closed = False

    def take(self, target: str, env: Mapping[str, str], own: Mapping[str, str]) -> ForkServer:
        """An idle server, or a new one, which is still importing.

        Args:
            target: As of `ForkServer`.
            env: Environment of a new one.
            own: Those of its variables that the job file gives: libraries may have read other ones when an idle server
                imported them, so only one that was begun with the same is taken.

        Raises:
            OSError: If this machine cannot start one.
        """
        with self._lock:
            for server in [one for one in reversed(self._idle) if self._of[one] == (target, own)]:
                self._idle.remove(server)
                server.receive()
                if server.alive:
                    return server
        # the log of the job that happens to need it first would hold what the server writes for others
        with open(os.devnull, "ab") as nothing:
            of_its_own, log = {**env, "TMPDIR": gettempdir()}, self._log or nothing
            server = ForkServer(target, of_its_own, f"{uuid.uuid4().hex}.fork-server", (), log.fileno())
        with self._lock:
            self._of[server] = target, dict(own)
        return server

    def begin(self, own: Mapping[str, str], secrets: Collection[str]) -> None:
        """Have what workers of a Keras job need be imported from now on, for the next engine; nothing where none forks.

        Args:
            own: See `take`.
            secrets: Names of variables of the job which servers do not have.

        Raises:
            OSError: If this machine cannot start a server.
        """
        if fork_server_supported():
            env = {name: value for name, value in job_environment(own).items() if name not in secrets}
            self.give_back(self.take(FORK_TARGETS["worker"], {**env, **SERVER_ENVIRONMENT}, own))

    def give_back(self, server: ForkServer) -> None:
        """Keep a server for the next engine; its processes of this one have ended."""
        server.receive()
        with self._lock:
            kept = server.alive and not self._closed
            if kept:
                self._idle.append(server)
            spare = [self._idle.pop(0)] if len(self._idle) > _KEPT_MAX else [] if kept else [server]
        for one in spare:
            one.close()

    def written(self) -> bytes:
        """What servers have written to standard output and error so far; nothing if they may be for several jobs."""
        return b"" if self._log is None else os.pread(self._log.fileno(), LOG_BYTES_MAX, 0)

    def close(self) -> None:
        """End the idle servers, and those that are given back later."""
        with self._lock:
            self._closed, idle = True, self._idle[:]
            self._idle.clear()
        for server in idle:
            server.close()
        if self._log is not None:
            self._log.close()
