"""Starting the processes of a job and reaching them: what a supervisor of any kind of job needs."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from scavenger.train.engines.base import Engine
from scavenger.train.job_source import JobSource
from scavenger.train.supervisor.process_configurations import ProcessConfigurations
from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.messages import Message
from scavenger.train.transport.sockets import Malformed, Router, new_keys

__all__ = ["LAST_WORDS_S", "Processes"]

LAST_WORDS_S = 1.0
"""A dead process's message may still be on its way through the sockets for so long."""

_STACK_DUMP_S = 0.5

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Processes:
    """The engine of one job, and the hub that its processes speak to. `open` makes one; `close` must be called.

    Attributes:
        engine: Where processes run.
        hub: What every process is connected to.
        block_fd: Descriptor of the job's block; -1 where there is none, and once all is closed.
    """

    engine: Engine
    hub: Router
    block_fd: int
    _context: Any
    _door: Authenticator
    _bootstraps: ProcessConfigurations
    _closed: bool = False

    @classmethod
    def open(
        cls,
        source: JobSource,
        engine: Callable[[Path, int], Engine],
        *,
        log_dir: Path,
        block_fd: int = -1,
        aggregators: tuple[str, ...] = (),
        malformed: Malformed | None = None,
    ) -> Processes:
        """Begin to listen; no process is started yet.

        Args:
            source: The training code.
            engine: Makes the engine from the folder for logs and the block.
            log_dir: Where each process's output goes.
            block_fd: Descriptor of the job's block, closed with the rest.
            aggregators: Their names.
            malformed: Hears of what arrives at the hub and is no message.

        Raises:
            ConfigurationError: If the engine's port cannot be had.
        """
        with contextlib.ExitStack() as undo:
            if block_fd >= 0:
                undo.callback(os.close, block_fd)
            made = engine(log_dir, block_fd)
            undo.callback(made.close)
            context = zmq.Context()
            undo.callback(context.term)
            door = Authenticator(context)
            undo.callback(door.close)
            keys = new_keys()
            hub = Router(
                context, keys, made.leader_host, port=made.leader_port, door=door, malformed=malformed
            )
            undo.pop_all()
        bootstraps = ProcessConfigurations(
            source,
            hub=hub.address,
            server_key=keys[0],
            admit=door.admit,
            memory_fd=block_fd,
            aggregators=aggregators,
        )
        return cls(made, hub, block_fd, context, door, bootstraps)

    def launch(
        self, role: str, name: str, *, token: int = 0, threads: int | None = None, vm: str = ""
    ) -> None:
        """Start a process; see `ProcessConfigurations.of` and `Engine.launch`."""
        self.engine.launch(self._bootstraps.of(role, name, token=token, threads=threads), vm=vm)
        log.info("started %s", name)

    def send(self, name: str, message: Message) -> None:
        """Queue a message; one for a process that is gone is dropped."""
        self.hub.send(name, message)

    def pass_on(self, name: str, *frames: Any) -> None:
        """Queue frames as they are."""
        self.hub.pass_on(name, *frames)

    def wait(self, timeout_s: float) -> None:
        """Until something has arrived, or time is up."""
        self.hub.wait(timeout_s)

    def take(self) -> Iterator[tuple[str, list[bytes]]]:
        """Frames of everything that has arrived, by process."""
        return self.hub.take()

    def hear_last_words(
        self,
        hear: Callable[[], None],
        heard: Callable[[], bool],
        *,
        within_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Take what has arrived once more, and go on until what is waited for was heard, or time is up."""
        deadline = clock() + within_s
        while True:
            hear()
            left = deadline - clock()
            if heard() or left <= 0:
                return
            self.hub.wait(max(0.001, left))

    def show_stack(self, name: str) -> None:
        """Have a process write where it stands to its log, and wait until it has."""
        self.engine.show_stack(name)
        time.sleep(_STACK_DUMP_S)  # for the dump to be written; the job is stalled anyway

    def close(self) -> None:
        """End every process and free everything; safe to call twice.

        Raises:
            CleanupError: As `Engine.close`; everything else is freed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.engine.close()
        finally:
            if self.block_fd >= 0:
                os.close(self.block_fd)
                self.block_fd = -1
            self.hub.close()
            self._door.close()
            self._context.term()
