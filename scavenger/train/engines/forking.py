"""The leader's side of processes that another process starts for it, such as the fork server."""

from __future__ import annotations

import array
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, ClassVar, Protocol

import msgspec

from scavenger.train.engines import fork_server as protocol
from scavenger.train.engines.gpus import HIDDEN
from scavenger.train.engines.reaper import VARIABLE

FORK_TARGETS: Mapping[str, str] = {
    "worker": "scavenger.train.worker_process:main",
    "loop": "scavenger.train.loop_process:main",
}
"""What processes of a role are forked from, if not said otherwise: `module:function`, which has imported all they need.
A job has workers of one kind, so that an engine has one server."""
_PACKET_BYTES = 1 << 16
_POLL_S = 0.005
_COMMAND_BYTES = 64
"""Room for the arguments that the kernel shows of a process: more than what the server's own are shorter by."""
_READ_AT_BEGIN = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ"),
    *("OMP_", "OPENBLAS_", "GOTO_", "MKL_"),
)
"""How names of variables begin which are read not by modules of Python, and not again."""


def thread_limits(threads: int) -> dict[str, str]:
    """Environment variables that limit a process to some threads; libraries read them on import."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
    return {**dict.fromkeys(names, str(threads)), "TF_NUM_INTEROP_THREADS": "1"}


SERVER_ENVIRONMENT: Mapping[str, str] = {**thread_limits(1), **HIDDEN}
"""What a fork server has besides: CUDA must not begin in a process that forks."""


def job_environment(own: Mapping[str, str]) -> dict[str, str]:
    """What processes of a job have in common: the environment of this one, and the variables that the job gives."""
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **os.environ,
        **own,
        "KERAS_BACKEND": "tensorflow",
        "PYTHONUNBUFFERED": "1",
    }


@dataclass(slots=True, eq=False)
class ForkedProcess:
    """A process that a server starts; used as a `subprocess.Popen` is.

    Attributes:
        stdin: Writes to its standard input.
        pid: Its id; 0 until the server has started it.
        returncode: Its exit status once it has ended; negative: the signal that killed it.
        error: Why it was not started, or has ended with its server.
    """

    server: ProcessServer
    stdin: IO[bytes]
    pid: int = 0
    returncode: int | None = None
    error: str = ""
    descriptor: int = -1
    killed: bool = False

    def begun(self, within_s: float) -> bool:
        """Wait until it runs; returns whether it does, as far as is known by then."""
        deadline = time.monotonic() + within_s
        while not self.pid and self.returncode is None and self.server.alive:
            if (left_s := deadline - time.monotonic()) <= 0.0:
                break
            self.server.await_report(left_s)
        return bool(self.pid)

    @property
    def never(self) -> bool:
        """Whether it was not started and will not be, as the server has ended."""
        return not self.pid and self.returncode is None and not self.server.alive

    def poll(self) -> int | None:
        """Return the exit status, or None as long as the process runs."""
        self.server.receive()
        orphan = self.returncode is None and self.pid and not self.server.alive
        if orphan and select.select([self.descriptor], [], [], 0)[0]:
            self.end(-signal.SIGKILL)  # nobody saw its end
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the process; returns the exit status.

        Raises:
            subprocess.TimeoutExpired: If it does not end within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a process of a server", timeout)
            time.sleep(_POLL_S)
        return status

    def kill(self) -> None:
        """End it and its process group at once, or as soon as it has been started."""
        self.killed = True
        if self.pid:
            kill_group(self.pid)
        elif self.server.alive:
            self.server.give_up()
        elif self.returncode is None:
            self.end(-signal.SIGKILL)

    def fail(self, error: str) -> None:
        """Note that it could not be started."""
        self.error = error
        self.end(-signal.SIGKILL)

    def end(self, status: int) -> None:
        """Note that it has ended."""
        self.returncode = status
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def release(self) -> None:
        """Release its id, once nothing is sent to it or its group any more."""
        if self.pid:
            self.server.reap(self.pid)


class ProcessServer:
    """A process that starts others for this one, which asks for each over a socket of whole packets.

    Attributes:
        alive: Whether it can still be asked, and reports ends.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._control.setblocking(False)
        self._asked: dict[int, ForkedProcess] = {}
        self._running: dict[int, ForkedProcess] = {}
        self._number = 0
        self.alive = True

    def receive(self) -> None:
        """Take in what the server has reported; never waits."""
        while self.alive:
            try:
                packet = self._control.recv(_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._lost()
                return
            self._take(protocol.decode_reply(packet))

    def await_report(self, within_s: float) -> None:
        """Wait until the server reports something, and take it in."""
        select.select([self._control], [], [], within_s)
        self.receive()

    def _new_process(self, send: Callable[[int, int], None]) -> ForkedProcess:
        """Ask for a process.

        Args:
            send: Sends the request; called with its number and the descriptor of the process's standard input.

        Raises:
            OSError: If the server cannot be asked.
        """
        self._number += 1
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            send(self._number, reading)
        except OSError:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        process = ForkedProcess(self, os.fdopen(writing, "wb"))
        self._asked[self._number] = process
        return process

    def _take(self, reply: protocol.Reply) -> None:
        match reply:
            case protocol.Forked(number, pid, error):
                process = self._asked.pop(number)
                if error:
                    process.fail(error)
                    return
                process.pid = pid
                process.descriptor = os.pidfd_open(pid)
                self._running[pid] = process
                if process.killed:
                    kill_group(pid)
            case protocol.Ended(pid, status):
                self._running.pop(pid).end(status)

    def give_up(self) -> None:
        """Start none of the killed processes that were asked for, if possible; safe in a signal handler."""

    def reap(self, pid: int) -> None:
        """Release the id of a process that has ended."""
        if self.alive:
            with contextlib.suppress(OSError):
                self._control.send(msgspec.json.encode(protocol.Reap(pid)))

    def close(self) -> None:
        """End the connection, at once."""
        self._lost()

    def _lost(self) -> None:
        self.alive = False
        self._control.close()
        for process in self._asked.values():
            if process.killed:
                process.end(-signal.SIGKILL)
        self._asked.clear()


class ServerProcess(Protocol):
    """The process of a fork server, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def kill(self) -> None: ...

    def send_signal(self, sig: int) -> None: ...


class ForkServer(ProcessServer):
    """A process that has imported what workers need, and forks them.

    It begins with importing, which takes seconds; processes that are asked for meanwhile are forked then. When it
    ends, processes that it has forked live on.

    Args:
        target: `module:function` to import, and to run in each forked process.
        env: Its environment; processes get one of their own.
        mark: Its marker, which the environment carries.
        pass_fds: File descriptors that processes inherit.
        log: File descriptor of its log.

    Attributes:
        roles: Processes that an engine with a server of its own has it fork beside workers; else they begin while it
            still imports.
    """

    roles: ClassVar[Collection[str]] = ()

    def __init__(
        self, target: str, env: Mapping[str, str], mark: str, pass_fds: Sequence[int], log: int
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            marked = {**env, VARIABLE: mark.ljust(protocol.MARK_BYTES, "-")}
            self.process = self._begin(target, marked, theirs.fileno(), pass_fds, log)
        super().__init__(ours)
        self._env, self._read = marked, frozenset[str]()
        self.ready = False
        """Whether it can fork: it has imported everything, and no thread has begun by that."""

    def _begin(
        self, target: str, env: Mapping[str, str], control: int, pass_fds: Sequence[int], log: int
    ) -> ServerProcess:
        return subprocess.Popen(
            [sys.executable, "-m", protocol.__name__, str(control), target, " " * _COMMAND_BYTES],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(control, *pass_fds),
            start_new_session=True,
            env=env,
        )

    def fork(
        self,
        name: str,
        env: Mapping[str, str],
        threads: int,
        log: int,
        fds: Sequence[int] = (),
        *,
        warm: bool = False,
        command: Sequence[str] = (),
        arguments: Sequence[str] = (),
        folder: str = "",
    ) -> ForkedProcess:
        """Ask for a process.

        Args:
            name: For the kernel's list of processes.
            env: Its whole environment.
            threads: For the numerical libraries.
            log: File descriptor for its standard output and error.
            fds: Further descriptors that it has, under the same numbers, besides those that the server was given.
            warm: Whether it may be one that stands by.
            command, arguments, folder: See `fork_server.Fork`.

        Raises:
            OSError: If the server cannot be asked.
        """

        def send(number: int, standard_input: int) -> None:
            request = protocol.Fork(
                number, name, dict(env), threads, tuple(fds), warm, tuple(command), tuple(arguments), folder
            )
            rights = array.array("i", [standard_input, log, *fds])
            self._control.sendmsg(
                [msgspec.json.encode(request)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            )

        return self._new_process(send)

    def stand_by(self, count: int, env: Mapping[str, str], threads: int) -> None:
        """Have so many processes wait that have warmed up, for a `fork` with `warm` in such an environment.

        They end with the server, as those of another environment do when this one is asked for.
        """
        with contextlib.suppress(OSError):  # then processes begin without
            self._control.send(msgspec.json.encode(protocol.StandBy(count, dict(env), threads)))

    def _take(self, reply: protocol.Reply) -> None:
        if not isinstance(reply, protocol.ModuleReady):
            super()._take(reply)
            return
        self.ready, self._read = reply.threads == 1, frozenset(reply.read)
        if not self.ready:
            self.close()

    def fits(self, env: Mapping[str, str], own: Collection[str] = ()) -> bool:
        """Whether nothing would be otherwise in a process that was started in this environment.

        That is so if all variables have the value that they have in the server's own which have been read there: by
        what was imported, or by Python, the C library or a library for arrays as they began.

        Args:
            own: Variables that the server was given for itself.
        """
        names = (self._env.keys() | env.keys() | self._read).difference(own)
        read = {name for name in names if name in self._read or name.startswith(_READ_AT_BEGIN)}
        return all(self._env.get(name) == env.get(name) for name in read)

    def give_up(self) -> None:
        """End the server if it still imports, and only killed processes wait for it; safe in a signal handler."""
        if self.alive and not self.ready and all(process.killed for process in self._asked.values()):
            self.process.kill()  # without waiting, which could deadlock with what a signal has interrupted

    def nudge(self) -> None:
        """Continue the server if it was stopped."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)

    def _lost(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        super()._lost()


def fork_server_supported() -> bool:
    """Whether this machine has what the server needs: descriptors of processes, and `/proc`."""
    return hasattr(os, "pidfd_open") and os.path.isdir("/proc/self/task")


def kill_group(group: int) -> None:
    """Kill a process group, if it still exists.

    Raises:
        ValueError: If `group` is no process's id: 0 would be the caller's own group.
    """
    if group <= 0:
        raise ValueError(f"no process group has the number {group}")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
