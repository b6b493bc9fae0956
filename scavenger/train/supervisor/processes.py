"""Starts the processes of a job and exchanges messages with them, for supervisors of any kind of job."""

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
from scavenger.train.transport import messages as m
from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.connections import raise_descriptor_limit
from scavenger.train.transport.messages import Message
from scavenger.train.transport.sockets import Malformed, Router, new_keys

LAST_MESSAGES_S = 1.0
"""How long a message of a process that has ended may still be under way, seconds."""

_STACK_DUMP_S = 0.5
_QUEUE_MAX = 1000
"""Messages of one process that wait at the hub; further ones wait with the process itself, in its own memory."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Processes:
    """The engine of one job, and the hub that its processes connect to. `open` makes one; `close` must be called.

    Attributes:
        engine: The engine that runs the processes.
        hub: The socket that every process is connected to.
        block_fd: Descriptor of the job's shared-memory block; -1 if there is none, or after `close`.
    """

    engine: Engine
    hub: Router
    block_fd: int
    _context: Any
    _authenticator: Authenticator
    _configurations: ProcessConfigurations
    _aggregators: tuple[str, ...]
    _keys: dict[str, str]
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
            engine: Makes the engine from the folder for logs and the block's descriptor.
            log_dir: Folder for each process's output.
            block_fd: Descriptor of the job's shared-memory block, which `close` closes; -1 for none.
            aggregators: Names of the aggregators.
            malformed: Called for each invalid message that arrives at the hub.

        Raises:
            ConfigurationError: If the engine's port or Unix socket cannot be bound.
        """
        raise_descriptor_limit()  # before a process inherits it
        with contextlib.ExitStack() as undo:
            if block_fd >= 0:
                undo.callback(os.close, block_fd)
            made = engine(log_dir, block_fd)
            undo.callback(made.close)
            context = zmq.Context()
            undo.callback(context.term)
            authenticator = Authenticator(context)
            undo.callback(authenticator.close)
            keys = new_keys()
            hub = Router(
                context,
                keys,
                str(made.socket_dir or made.leader_host),
                port=made.leader_port,
                authenticator=authenticator,
                malformed=malformed,
                queue_max=_QUEUE_MAX,
            )
            undo.pop_all()
        configurations = ProcessConfigurations(
            source,
            hub=hub.address,
            server_key=keys[0],
            admit=authenticator.admit,
            memory_fd=block_fd,
            aggregators=aggregators,
        )
        return cls(made, hub, block_fd, context, authenticator, configurations, aggregators, {})

    def launch(
        self, role: str, name: str, *, token: int = 0, threads: int | None = None, vm: str = ""
    ) -> None:
        """Start a process; see `ProcessConfigurations.of` and `Engine.launch`."""
        config = self._configurations.of(role, name, token=token, threads=threads)
        if role in ("worker", "aggregator"):
            self._keys[name] = config.public_key
            for aggregator in self._aggregators:
                self.send(aggregator, m.Admit({name: config.public_key}))
        self.engine.launch(config, vm=vm)
        log.info("started %s", name)

    def introduce(self, aggregator: str) -> None:
        """Name all processes with their keys to an aggregator that has started."""
        self.send(aggregator, m.Admit(self._keys))

    def forget(self, worker: str) -> None:
        """Have aggregators forget a worker that is gone."""
        self._keys.pop(worker, None)
        for aggregator in self._aggregators:
            self.send(aggregator, m.Forget(worker))

    def send(self, name: str, message: Message) -> None:
        """Queue a message; it is dropped if the process has ended."""
        self.hub.send(name, message)

    def pass_on(self, name: str, *frames: Any) -> None:
        """Queue frames without encoding them."""
        self.hub.pass_on(name, *frames)

    def wait(self, timeout_s: float) -> None:
        """Wait until something has arrived, or the timeout has passed."""
        self.hub.wait(timeout_s)

    def take(self) -> Iterator[tuple[str, list[bytes]]]:
        """Yield the frames of everything that has arrived, with the sender's name."""
        return self.hub.take()

    def receive_last_messages(
        self,
        receive: Callable[[], None],
        received: Callable[[], bool],
        *,
        within_s: float,
        clock: Callable[[], float],
    ) -> None:
        """Receive what is still under way from a process that has ended.

        Args:
            receive: Handles what has arrived.
            received: Whether the awaited message has arrived.
            within_s: How long to wait for it, seconds; `receive` is called at least once.
            clock: Monotonic seconds.
        """
        deadline = clock() + within_s
        while True:
            receive()
            left = deadline - clock()
            if received() or left <= 0:
                return
            self.hub.wait(max(0.001, left))

    def show_stack(self, name: str) -> None:
        """Have a process write its stack to its log, and wait until it has."""
        self.engine.show_stack(name)
        time.sleep(_STACK_DUMP_S)  # until the stack is written; the job is stalled anyway

    def close(self) -> None:
        """End every process and free everything; safe to call twice.

        Raises:
            CleanupError: See `Engine.close`; everything else is freed even then.
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
            self._authenticator.close()
            self._context.term()
