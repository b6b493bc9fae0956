"""A job's connection to the manager of the pool, which it starts if none serves."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from scavenger.errors import TransientError
from scavenger.private_files import private_opener
from scavenger.train.engines.forking import ForkedProcess, ProcessServer
from scavenger.train.engines.reaper import VARIABLE
from scavenger.train.pool import protocol

_Answer = TypeVar("_Answer")

IDLE_S = 60.0
"""How long a manager that was started by a job stays after its last job, seconds."""
LOG = "manager.log"
_ANSWER_S = 5.0
_START_S = 30.0
"""How long a new manager may take to listen: its machine may be busy."""
_RETRY_S = 0.02

_RECONNECT_S = 1.0
_STEPS_MAX = 2000
"""Steps of one message, so that it fits into a packet."""

_loads = msgspec.json.Decoder(protocol.PoolLoad)
_drained = msgspec.json.Decoder(protocol.Drained)
_added = msgspec.json.Decoder(protocol.NodeAdded)


@dataclass(slots=True)
class _Request:
    message: protocol.LaunchTenant
    fds: list[int]


class PoolConnection(ProcessServer):
    """Has tenants started; requests wait until a manager serves.

    Args:
        folder: See `protocol.pool_folder`.
        join: How the job introduces itself.
        clock: Monotonic seconds.
    """

    def __init__(
        self, folder: Path, join: protocol.PoolJoin, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._folder, self._join, self._clock = folder, join, clock
        self._waiting: list[_Request] = []
        self._manager = 0
        self._give_up_at: float | None = None
        self._reason = "lost its place: the manager of the pool has ended"

    def launch(
        self, name: str, command: Sequence[str], env: dict[str, str], log: int, memory: int
    ) -> ForkedProcess:
        """Have a tenant started; see `protocol.LaunchTenant`. Log and memory are descriptors, of memory -1 for none.

        Raises:
            OSError: If there is no descriptor left.
        """

        def send(number: int, standard_input: int) -> None:
            message = protocol.LaunchTenant(number, name, tuple(command), env)
            fds = (standard_input, log) if memory < 0 else (standard_input, log, memory)
            self._waiting.append(_Request(message, [os.dup(fd) for fd in fds]))

        process = self._new_process(send)
        self._send_waiting()
        return process

    def report(self, view: int, steps_s: Sequence[float]) -> None:
        """Tell the manager of steps; see `protocol.StepsReport`. One that is too busy to be told is told less."""
        if self.alive and self._manager:
            with contextlib.suppress(OSError):
                for begin in range(0, len(steps_s), _STEPS_MAX):
                    steps = tuple(steps_s[begin : begin + _STEPS_MAX])
                    protocol.send_packet(self._control, protocol.StepsReport(view, steps))

    def receive(self) -> None:
        self._send_waiting()
        if self._manager:
            super().receive()

    def give_up(self) -> None:
        """See `ProcessServer.give_up`; what a manager starts nevertheless is killed by then."""
        if not self._manager:
            for process in self._asked.values():
                if process.killed:
                    process.end(-signal.SIGKILL)

    def nudge(self) -> None:
        """Continue the manager if it was stopped."""
        if self.alive and self._manager:
            with contextlib.suppress(OSError):
                os.kill(self._manager, signal.SIGCONT)

    def _send_waiting(self) -> None:
        if not self.alive or not self._waiting or not self._is_connected():
            return
        try:
            while self._waiting:
                request = self._waiting[0]
                protocol.send_packet(self._control, request.message, request.fds)
                self._waiting.pop(0)
                _close(request.fds)
        except BlockingIOError:
            return
        except OSError:
            self._lost()

    def _is_connected(self) -> bool:
        """Connect, if possible at once; start a manager if none serves."""
        if self._manager:
            return True
        now = self._clock()
        try:
            self._control.connect(str(self._folder / protocol.SOCKET))
            self._manager = _manager_of(self._control)
            protocol.send_packet(self._control, self._join)
        except BlockingIOError:  # too many connect at this moment
            return False
        except OSError:
            if self._give_up_at is None:
                self._give_up_at = now + _START_S
                start_manager(self._folder)
            elif now > self._give_up_at:
                self._reason = f"found no pool: no manager begins to serve (log: {self._folder / LOG})"
                self._fail_all()
            return False
        return True

    def _fail_all(self) -> None:
        for process in self._asked.values():
            process.fail(self._reason)
        self._asked.clear()
        self._lost()

    def _lost(self) -> None:
        """End with the manager: what it has started is no longer held to its share, and is ended, too."""
        for request in self._waiting:
            _close(request.fds)
        self._waiting.clear()
        if self.alive:
            for process in self._running.values():
                process.error = self._reason
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(process.descriptor, signal.SIGKILL)
        super()._lost()


class LodgingConnection:
    """A job's connection to the manager of the pool, for tenants on other machines; made again when it has ended.

    What is sent while no manager serves is lost: the job asks again for what it is not given.

    Args:
        folder: See `protocol.pool_folder`.
        join: How the job introduces itself.
        clock: Monotonic seconds.
    """

    def __init__(
        self, folder: Path, join: protocol.PoolJoin, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._join, self._clock = folder / protocol.SOCKET, join, clock
        self._socket: socket.socket | None = None
        self._connect_at = float("-inf")

    def send(self, message: msgspec.Struct) -> bool:
        """Send a message; returns whether it was sent."""
        if self._socket is None and not self._connect():
            return False
        assert self._socket is not None
        try:
            protocol.send_packet(self._socket, message)
        except OSError:
            self.close()
            return False
        return True

    def receive(self) -> list[protocol.Notice]:
        """Return what the manager has told since the last call; never waits."""
        notices: list[protocol.Notice] = []
        while self._socket is not None:
            try:
                packet, _ = protocol.receive_packet(self._socket)
                if packet:
                    notices.append(protocol.decode_notice(packet))
                    continue
            except BlockingIOError:
                break
            except (OSError, msgspec.MsgspecError):
                pass
            self.close()
        return notices

    def report(self, view: int, steps_s: Sequence[float], step_bytes: int) -> None:
        """Tell the manager of steps; see `protocol.StepsReport`."""
        for begin in range(0, len(steps_s), _STEPS_MAX):
            self.send(protocol.StepsReport(view, tuple(steps_s[begin : begin + _STEPS_MAX]), step_bytes))

    def close(self) -> None:
        """End the connection, and with it all tenants that the manager still has; a later `send` makes another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self) -> bool:
        now = self._clock()
        if now < self._connect_at:
            return False
        self._connect_at = now + _RECONNECT_S
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        try:
            connection.connect(str(self._path))
            _manager_of(connection)
            protocol.send_packet(connection, self._join)
        except OSError:
            connection.close()
            return False
        self._socket = connection
        return True


def start_manager(folder: Path) -> None:
    """Start a manager that serves jobs in the background, and ends a while after the last one.

    Raises:
        ConfigurationError: If the folder cannot be used.
        OSError: If no process can be started.
    """
    protocol.private_folder(folder)
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with open(folder / LOG, "ab", opener=private_opener) as output:
        subprocess.run(
            [sys.executable, "-m", "scavenger.train.pool", str(folder), str(IDLE_S)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=env,
            check=False,
        )


def load_of(folder: Path) -> protocol.PoolLoad | None:
    """Ask the manager who uses what; None if none serves.

    Raises:
        TransientError: If it does not answer, or not this user's process does.
    """
    packet = _asked(folder, protocol.LoadRequest())
    return None if packet is None else _decoded(_loads, packet)


def drain(folder: Path, node: str, *, undo: bool = False) -> protocol.Drained | None:
    """Have a node drained, or used again; see `protocol.DrainRequest`. None if no manager serves.

    Raises:
        TransientError: If it does not answer, or not this user's process does.
    """
    packet = _asked(folder, protocol.DrainRequest(node, undo))
    return None if packet is None else _decoded(_drained, packet)


def add_node(folder: Path, request: protocol.AddNode) -> protocol.NodeAdded | None:
    """Have another machine expected as a node; see `protocol.AddNode`. None if no manager serves.

    Raises:
        TransientError: If it does not answer, or not this user's process does.
    """
    packet = _asked(folder, request)
    return None if packet is None else _decoded(_added, packet)


def _asked(folder: Path, question: msgspec.Struct) -> bytes | None:
    """Ask as often as a manager ends before it answers: what is asked may be asked twice."""
    deadline = time.monotonic() + _ANSWER_S
    while True:
        try:
            return _answer(folder, question)
        except OSError as error:
            if not isinstance(error, ConnectionError) or time.monotonic() > deadline:
                raise TransientError(f"the manager of the aggregator pool does not answer: {error}") from None
        time.sleep(_RETRY_S)


def _answer(folder: Path, question: msgspec.Struct) -> bytes | None:
    """What the manager answers; None if none serves.

    Raises:
        OSError: If it does not answer; a `ConnectionError` if it ends.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_ANSWER_S)
        try:
            connection.connect(str(folder / protocol.SOCKET))
        except OSError:
            return None
        _manager_of(connection)
        protocol.send_packet(connection, question)
        packet, _ = protocol.receive_packet(connection)
        if not packet:
            raise ConnectionResetError("it has ended")
        return packet


def _decoded(decoder: msgspec.json.Decoder[_Answer], packet: bytes) -> _Answer:
    try:
        return decoder.decode(packet)
    except msgspec.MsgspecError as error:
        raise TransientError(f"the manager of the aggregator pool does not answer: {error}") from None


def wait_for_load(folder: Path) -> protocol.PoolLoad:
    """Ask the manager who uses what, and start one before that if none serves.

    Raises:
        ConfigurationError: If the folder cannot be used.
        TransientError: If it does not answer.
    """
    load = load_of(folder)
    if load is None:
        start_manager(folder)
        deadline = time.monotonic() + _START_S
        while (load := load_of(folder)) is None:
            if time.monotonic() > deadline:
                raise TransientError(
                    f"no manager of an aggregator pool begins to serve (log: {folder / LOG})"
                )
            time.sleep(_RETRY_S)
    return load


def _manager_of(connection: socket.socket) -> int:
    """The process id of the manager.

    Raises:
        PermissionError: If the process is another user's.
    """
    pid, user = protocol.peer_of(connection)
    if user != os.getuid():
        raise PermissionError("another user serves at the socket of the pool")
    return pid


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
