"""Starts the runners of a server: forks them from a process that has imported what they need, or by a command.

Imports are most of what the begin of a small job takes. The process that forks runs no code of a job, and has neither
opened the store nor read a key; nothing depends on it: runners that it has forked live on when it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from scavenger.train.engines.forking import ForkedProcess, ForkServer, fork_server_supported

RUNNER = ("-P", "-m", "scavenger.control.service.runner")
"""Arguments of Python that run a submitted job; its id and the token of its lease follow."""
_TARGET = "scavenger.control.service.forked_runner:main"
_AFTER = 2
"""Runners after which the next is forked: a server of a single job, such as a leader's, needs no further process."""
_FREE_BYTES_MIN = 2**30
"""Memory without which none is kept ready: it takes about a tenth of that."""
_BEGIN_S = 2.0
"""Longest wait for a fork, which takes milliseconds."""
_OWN = {"PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Variables of the process that forks: as `-P`, and without threads, which a fork would leave behind."""

RunnerProcess = subprocess.Popen[bytes] | ForkedProcess


class Runners:
    """Starts runners, in sessions of their own; `close` ends none of them.

    Args:
        held: Descriptors that they hold, too.
    """

    def __init__(self, held: tuple[int, ...] = ()) -> None:
        self._held, self._started = held, 0
        self._server: ForkServer | None = None
        self._forks = fork_server_supported()

    def start(
        self, job_id: str, token: int, *, env: Mapping[str, str], folder: Path, log: int
    ) -> RunnerProcess:
        """Start a runner.

        Args:
            env: Its whole environment.
            log: File descriptor for its output.

        Raises:
            OSError: It cannot be started.
        """
        self._started += 1
        arguments = job_id, str(token)
        return self._forked(arguments, env, folder, log) or subprocess.Popen(
            [sys.executable, *RUNNER, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=self._held,
            cwd=folder,
            env=dict(env),
        )

    def _forked(
        self, arguments: Sequence[str], env: Mapping[str, str], folder: Path, log: int
    ) -> ForkedProcess | None:
        """A runner that was forked; None if that cannot be done, or it would not be as one that a command begins."""
        server = self._server
        if server is None:
            return None
        server.receive()
        if not server.alive:
            self._server, self._forks = None, server.ready  # the next one would fail to import, too
            return None
        if not server.ready or not server.fits(env, _OWN) or not os.access(folder, os.X_OK):
            return None
        try:
            process = server.fork(
                "runner", env, 1, log, command=RUNNER, arguments=arguments, folder=str(folder)
            )
        except OSError:
            return None
        process.stdin.close()  # it finds an end there, as with an empty file
        if process.begun(_BEGIN_S):
            return process
        process.kill()  # should it still begin, it ends: another has its lease
        self.close()
        return None

    def prepare(self) -> None:
        """At a quiet moment: begin the process that forks the next runners, if it will be of use."""
        if self._server is not None or not self._forks or self._started < _AFTER:
            return
        if psutil.virtual_memory().available < _FREE_BYTES_MIN:
            return
        with open(os.devnull, "ab") as nothing:
            try:
                mark = f"{uuid.uuid4().hex}.runners"
                self._server = ForkServer(_TARGET, {**os.environ, **_OWN}, mark, self._held, nothing.fileno())
            except OSError:
                self._forks = False

    @staticmethod
    def release(process: RunnerProcess) -> None:
        """Let go of a runner that has ended."""
        if isinstance(process, ForkedProcess):
            process.release()

    def close(self) -> None:
        """End the process that forks runners."""
        if self._server is not None:
            self._server.close()
            self._server = None
