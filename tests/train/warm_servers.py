"""Fork servers that begin at once, since they are forked themselves, by a process of the tests that has TensorFlow.

Importing TensorFlow is most of what a short job costs. A job's fork server begins with that; where a test is not about
how it begins, a warm process forks one that has imported everything. It is a process of its own job like any other:
with its session, mark, environment, descriptors and log, and it ends with its job.
"""

from __future__ import annotations

import array
import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from scavenger.train.engines import fork_server
from scavenger.train.engines.forking import ForkServer, ServerProcess
from scavenger.train.engines.reaper import VARIABLE

_TARGET = "scavenger.train.worker_process:main"
_PACKET_BYTES = 1 << 18
_FDS_MAX = 8
_FD_BYTES = array.array("i").itemsize


class WarmForkServer(ForkServer):
    """A fork server that the warm process of these tests has forked."""

    def _begin(
        self, target: str, env: Mapping[str, str], control: int, pass_fds: Sequence[int], log: int
    ) -> ServerProcess:
        if target != _TARGET:
            return super()._begin(target, env, control, pass_fds, log)
        return _warm(env).fork(env, control, pass_fds, log)


class _Forked:
    """A process that is not a child of this one; its exit status is not known, and nobody asks for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._ended = False

    def poll(self) -> int | None:
        if not self._ended and select.select([self._descriptor], [], [], 0)[0]:
            self._end()
        return -signal.SIGKILL if self._ended else None

    def wait(self) -> int:
        if not self._ended:
            select.select([self._descriptor], [], [])
            self._end()
        return -signal.SIGKILL

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        if not self._ended:
            signal.pidfd_send_signal(self._descriptor, sig)

    def _end(self) -> None:
        self._ended = True
        os.close(self._descriptor)


class _Warm:
    """This side of the warm process."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={
                    **env,
                    VARIABLE: "".ljust(fork_server.MARK_BYTES, "-"),
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
            )
        atexit.register(self.close)

    def fork(self, env: Mapping[str, str], control: int, pass_fds: Sequence[int], log: int) -> _Forked:
        numbers = (control, *pass_fds)
        request = json.dumps({"env": dict(env), "numbers": numbers})
        socket.send_fds(self._control, [request.encode()], [log, *numbers])
        return _Forked(int(self._control.recv(_PACKET_BYTES)))

    def close(self) -> None:
        self._control.close()
        self.process.wait()


_running: list[_Warm] = []


def _warm(env: Mapping[str, str]) -> _Warm:
    if not _running or _running[0].process.poll() is not None:
        _running[:] = [_Warm(env)]
    return _running[0]


def warm_pid() -> int:
    """The id of the warm process, which outlives tests; 0 if there is none."""
    return _running[0].process.pid if _running else 0


def _serve(control: socket.socket) -> int:
    """Fork a fork server for each request."""
    import scavenger.train.worker_process  # noqa: F401 - what takes long

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended servers leave no zombies
    while True:
        data, fds, _, _ = socket.recv_fds(control, _PACKET_BYTES, _FDS_MAX)
        if not data:
            return 0
        pid = os.fork()
        if pid == 0:
            control.close()
            return _become(json.loads(data), fds)
        for fd in fds:
            os.close(fd)
        control.send(str(pid).encode())


def _become(request: dict[str, object], fds: Sequence[int]) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    env, numbers = request["env"], request["numbers"]
    assert isinstance(env, dict)
    assert isinstance(numbers, list)
    # out of the way of the numbers that they are to have
    log, *rest = [os.dup2(fd, 200 + index) for index, fd in enumerate(fds)]
    for fd in fds:
        os.close(fd)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for fd, number in zip(rest, numbers, strict=True):
        os.dup2(fd, number)
    for fd in (log, *rest):
        os.close(fd)
    fork_server._show_mark(env[VARIABLE])
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # found by TensorFlow before
    sys.argv = [fork_server.__file__, str(numbers[0]), _TARGET]
    return fork_server.main()


if __name__ == "__main__":
    sys.exit(_serve(socket.socket(fileno=int(sys.argv[1]))))
