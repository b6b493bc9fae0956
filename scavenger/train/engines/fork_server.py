"""Program that imports what a worker needs once, and then forks workers: `fork_server.py FD MODULE:FUNCTION`.

Importing TensorFlow takes seconds of a processor and hundreds of megabytes; a fork takes milliseconds and shares that
memory. The module is imported before the first fork. The socket `FD` brings requests (`Fork`, `Reap`) and takes replies
(`ModuleReady`, `Forked`, `Ended`), one a packet; this process ends with it. Forking is safe as long as there is a
single thread, so a module that starts one is refused (`ModuleReady.threads`).
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import importlib
import os
import selectors
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, NoReturn

import msgspec

from scavenger.train.engines.reaper import VARIABLE

MARK_BYTES = 256
"""Room for the marker in the environment that the kernel shows of a process: forked processes write theirs into it."""
_PACKET_BYTES = 1 << 18
_FDS = 3
_FD_BYTES = array.array("i").itemsize


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Fork a process; the packet carries its standard input, its log, and what `fds` lists as file descriptors.

    Attributes:
        number: Identifies the process until its id is known.
        name: For the kernel's list of processes.
        env: Its whole environment.
        threads: For the numerical libraries that have been imported already.
        fds: Numbers that the process has further descriptors under, in the packet's order.
        warm: Whether one that stands by may be taken.
        command: Arguments of Python that the kernel's list of processes shows.
        arguments: Those of the program, which follow there.
        folder: Where it begins; empty: where the server did.
    """

    number: int
    name: str
    env: dict[str, str]
    threads: int
    fds: tuple[int, ...] = ()
    warm: bool = False
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    folder: str = ""


class StandBy(msgspec.Struct, frozen=True, tag=True):
    """Fork processes ahead of time, which call the module's `warm_up` and wait for a `Fork` of their environment.

    Attributes:
        count: How many are to wait.
        env: Their environment; variables that differ from process to process do not count.
        threads: As of `Fork`.
    """

    count: int
    env: dict[str, str]
    threads: int


class Reap(msgspec.Struct, frozen=True, tag=True):
    """Release the id of a process that has ended; until then it keeps its id, which nothing else can have."""

    pid: int


class ModuleReady(msgspec.Struct, frozen=True, tag=True):
    """The module is imported. Processes can be forked if there is one thread alone, but for those that allow it.

    Attributes:
        threads: How many there are.
        read: Names of environment variables that modules have asked for while they were imported.
    """

    threads: int
    read: tuple[str, ...] = ()


class Forked(msgspec.Struct, frozen=True, tag=True):
    """A process runs; or `error` says why it does not."""

    number: int
    pid: int
    error: str = ""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A process has ended with an exit status; negative: by a signal."""

    pid: int
    status: int


Request = Fork | Reap | StandBy
Reply = ModuleReady | Forked | Ended

_requests = msgspec.json.Decoder(Request)
_replies = msgspec.json.Decoder(Reply)


def decode_reply(packet: bytes) -> Reply:
    """Decode a reply of the server."""
    reply: Reply = _replies.decode(packet)
    return reply


_OF_ONE = (VARIABLE, "TMPDIR")
"""Variables that each process has of its own, and that nothing has read before it begins."""


def _kind(request: Fork | StandBy) -> tuple[dict[str, str], int]:
    """What a process that stands by must have in common with the one that is asked for."""
    return {key: value for key, value in request.env.items() if key not in _OF_ONE}, request.threads


class _Server:
    """The server.

    Args:
        control: The socket to the leader.
        warm_up: Called by processes that stand by; it must leave nothing behind that the function could notice.
    """

    def __init__(self, control: socket.socket, warm_up: Callable[[], None]) -> None:
        self._control, self._warm_up = control, warm_up
        self._waiting: dict[int, socket.socket] = {}  # those that stand by, by file descriptor; of one kind
        self._unasked: set[int] = set()  # they, and those that were dismissed
        self._kind: tuple[dict[str, str], int] | None = None
        self._failed = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._pids: dict[int, int] = {}  # by file descriptor

    def run(self) -> Fork | None:
        """Serve until the leader ends. Returns twice, as `os.fork`: the request in a new process, else None."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._control:
                    self._report(key.fd)
                    continue
                if (packet := self._receive()) is None:
                    return None
                request, fds = packet
                match request:
                    case Reap():
                        with contextlib.suppress(ChildProcessError):
                            os.waitpid(request.pid, 0)
                    case StandBy():
                        begun = self._stand_by(request)
                        if begun is not None:
                            return begun
                    case Fork():
                        if not self._handed_over(request, fds) and self._fork(request, fds):
                            return request

    def _receive(self, control: socket.socket | None = None) -> tuple[Request, list[int]] | None:
        data, ancillary, _, _ = (control or self._control).recvmsg(
            _PACKET_BYTES, socket.CMSG_SPACE(_FDS * _FD_BYTES)
        )
        if not data:
            return None
        fds = array.array("i")
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(content[: len(content) - len(content) % _FD_BYTES])
        return _requests.decode(data), list(fds)

    def _stand_by(self, request: StandBy) -> Fork | None:
        """Fork processes until so many wait. Returns in them, too: with their request, once they have it."""
        if _kind(request) != self._kind:
            self._dismiss()
            self._kind = _kind(request)
        while len(self._waiting) < request.count and not self._failed:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                pid = _fork_apart()
            except OSError:
                ours.close()
                theirs.close()
                return None
            if pid == 0:
                ours.close()
                return self._wait(request, theirs)
            theirs.close()
            watched = self._watch(pid)
            self._waiting[watched] = ours
            self._unasked.add(watched)
        return None

    def _wait(self, request: StandBy, control: socket.socket) -> Fork:
        """Warm up, and wait for the request; this new process ends with the server."""
        self._leave_server()
        os.environ.clear()
        os.environ.update(request.env)
        for name in _OF_ONE:
            os.environ.pop(name, None)
        try:
            _limit(request.threads)
            self._warm_up()
            packet = self._receive(control)
        except BaseException:  # noqa: BLE001 - a new one does without
            os._exit(1)
        if packet is None:
            os._exit(0)
        control.close()
        begun, fds = packet
        assert isinstance(begun, Fork)
        self._begin(begun, fds)
        return begun

    def _dismiss(self) -> None:
        """End the processes that wait."""
        for waiting in self._waiting.values():
            waiting.close()  # the end of file is theirs
        self._waiting.clear()

    def _handed_over(self, request: Fork, fds: Sequence[int]) -> bool:
        """Give a request to a process that stands by for such; returns whether there was one."""
        while request.warm and self._waiting and _kind(request) == self._kind:
            watched = next(iter(self._waiting))
            with self._waiting.pop(watched) as waiting:
                try:
                    socket.send_fds(waiting, [msgspec.json.encode(request)], [*fds])
                except OSError:  # it has ended
                    continue
            self._unasked.remove(watched)
            for fd in fds:
                os.close(fd)
            self._control.send(msgspec.json.encode(Forked(request.number, self._pids[watched])))
            return True
        return False

    def _watch(self, pid: int) -> int:
        watched = os.pidfd_open(pid)
        self._pids[watched] = pid
        self._selector.register(watched, selectors.EVENT_READ)
        return watched

    def _fork(self, request: Fork, fds: Sequence[int]) -> bool:
        """Fork; returns whether this is the new process."""
        pid, error = 0, ""
        try:
            pid = _fork_apart()
        except OSError as failure:
            pid, error = -1, f"could not be forked: {failure}"
        if pid == 0:
            self._become(request, fds)
            return True
        for fd in fds:
            os.close(fd)
        self._control.send(msgspec.json.encode(Forked(request.number, pid, error)))
        if pid > 0:
            self._watch(pid)
        return False

    def _report(self, watched: int) -> None:
        pid = self._pids.pop(watched)
        self._selector.unregister(watched)
        os.close(watched)
        if watched in self._unasked:
            self._unasked.remove(watched)
            os.waitpid(pid, 0)
            if (waiting := self._waiting.pop(watched, None)) is not None:
                waiting.close()
                self._failed = True  # the next would end, too
            return
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        self._control.send(msgspec.json.encode(Ended(pid, status)))

    def _become(self, request: Fork, fds: Sequence[int]) -> None:
        """Make this new process what a started one would be."""
        self._leave_server()
        self._begin(request, fds)
        _limit(request.threads)

    def _leave_server(self) -> None:
        """Drop what a fork has of its server."""
        self._selector.close()
        self._control.close()
        for waiting in self._waiting.values():
            waiting.close()
        for watched in self._pids:
            os.close(watched)

    def _begin(self, request: Fork, fds: Sequence[int]) -> None:
        """Take the descriptors, the mark, the environment and the name of a process."""
        # above all numbers that are given out, and so where none is in the way of another
        above = max((2, *request.fds)) + 1
        apart = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in fds]
        for fd in fds:
            os.close(fd)
        standard_input, log, *others = apart
        for fd, number in ((standard_input, 0), (log, 1), (log, 2), *zip(others, request.fds, strict=True)):
            os.dup2(fd, number)
        for fd in apart:
            os.close(fd)
        with contextlib.suppress(OSError, ValueError):
            _show_command([sys.executable, *request.command, *request.arguments])
            if (mark := request.env.get(VARIABLE)) is not None:
                _show_mark(mark)
        sys.argv[1:] = request.arguments
        if request.folder:
            os.chdir(request.folder)
        os.environ.clear()
        os.environ.update(request.env)
        with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
            file.write(request.name[:15])
        tempfile.tempdir = None  # another one's, if it was asked for
        if (random := sys.modules.get("numpy.random")) is not None:
            random.seed()  # as Python's own generator is after a fork


def _fork_apart() -> int:
    """Fork, as `os.fork`; the new process has a session of its own when this returns.

    Who is told of its id may at once send a signal to its group, which must be there.

    Raises:
        OSError: It cannot be forked.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        if (pid := os.fork()) == 0:
            os.setsid()
        else:
            os.close(writing)
            writing = -1
            os.read(reading, 1)  # ends when the new process has closed its side, or has ended
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)
    return pid


def _limit(threads: int) -> None:
    """Have numerical libraries that were imported for one thread compute with more."""
    if threads > 1:
        import threadpoolctl

        threadpoolctl.threadpool_limits(threads)


def _show_mark(mark: str) -> None:
    """Write the marker over that of the server in the environment as the kernel shows it, which a fork copies.

    Raises:
        OSError, ValueError: If this machine does not show or change it; the server's marker stays.
    """
    _show(VARIABLE, mark.encode().ljust(MARK_BYTES, b"\0"))


def _show(name: str, value: bytes) -> None:
    """Have the kernel show a value of an environment variable that was started with one as long."""
    with open("/proc/self/environ", "rb") as file:
        shown = file.read()
    prefix = f"{name}=".encode()
    at = 0 if shown.startswith(prefix) else shown.index(b"\0" + prefix) + 1
    _write(_places()[2] + at + len(prefix), value)


def _show_command(arguments: Sequence[str]) -> None:
    """Have the kernel show these arguments, as far as there is room where the server has its own.

    Raises:
        OSError, ValueError: If this machine does not show or change them.
    """
    start, end, _ = _places()
    if (room := end - start - 1) > 0:
        text = "\0".join(arguments).encode()
        _write(
            start, text[:room].ljust(room) + b"\0"
        )  # spaces end the last one: further ends would be arguments


def _places() -> tuple[int, int, int]:
    """Addresses at which the kernel finds the arguments of this process, their end, and its environment.

    Fields 48 to 50 of `/proc/PID/stat`: `arg_start`, `arg_end`, `env_start` (proc(5)); the third follows the name.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    first, end, environment = (int(one) for one in fields[45:48])
    return first, end, environment


def _write(address: int, data: bytes) -> None:
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(address)
        memory.write(data)


_FORKABLE = frozenset({"jemalloc_bg_thd"})
"""Threads that their library stops and starts again around a fork: jemalloc's, which pyarrow brings along."""


def _threads() -> int:
    """Number of threads of this process that a fork would leave behind in the middle of their work, and its own."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm") as file:
            names.append(file.read().strip())
    return sum(name not in _FORKABLE for name in names)


class _Recorded(os._Environ[str]):
    """An environment that notes which variables are asked for."""

    names: ClassVar[set[str]] = set()

    def __getitem__(self, key: str) -> str:
        self.names.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.names.add(str(key))
        return super().__contains__(key)


def main() -> int:
    """Import the module, serve, and in a forked process run the function; returns the exit status."""
    control = socket.socket(fileno=int(sys.argv[1]))
    module, _, function = sys.argv[2].partition(":")
    os.environ.__class__ = _Recorded
    imported = importlib.import_module(module)
    os.environ.__class__ = os._Environ
    run: Callable[[], int] = getattr(imported, function)
    warm_up: Callable[[], None] = getattr(imported, "warm_up", lambda: None)
    gc.collect()
    gc.freeze()  # collections in the forked processes leave the shared pages alone
    control.send(msgspec.json.encode(ModuleReady(_threads(), tuple(_Recorded.names))))
    if _Server(control, warm_up).run() is None:
        return 0
    return _end(run())


def _end(status: int) -> NoReturn:
    """End a forked process as `multiprocessing` ends its own: what is registered for the exit is done, and no more.

    Taking the modules apart, as a program does that ends, would copy the memory that it shares with the server.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # training code may have closed it
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
