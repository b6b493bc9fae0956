"""Fork servers that begin at once, since they are forked themselves, by a process of the tests that has TensorFlow.

Importing TensorFlow is most of what a short job costs. A job's fork server begins with that; where a test is not about
how it begins, a warm process forks one that has imported everything. It is a process of its own job like any other:
with its session, marks, environment, folder, descriptors and log, and it ends with its job.

Jobs of the tests' own process use `WarmForkServer`. Commands that tests start, and what these start, are led to the
warm process by `ADDRESS` in their environment (`sitecustomize.py`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from scavenger.train.engines import fork_server
from scavenger.train.engines.forking import FORK_TARGETS, ForkServer, ServerProcess
from scavenger.train.engines.gpus import HIDDEN
from scavenger.train.engines.reaper import VARIABLE

ADDRESS = "SCAVENGER_TEST_WARM"
BEGINNING = "SCAVENGER_TEST_BEGINNING"
"""Code in the environment of a job's processes with which a forked server of theirs begins."""
_MARK, _MARK_BYTES = "SCAVENGER_TEST_MARK", 32
"""What tells a test's processes: as the job's mark, it is shown of a forked process as of a started one."""
_ROLES = ("aggregator", "coordinator")
"""All are forked: there is nothing to wait for, and each would import for a second."""
_PACKET_BYTES = 1 << 18
_FDS_MAX = 8
_begin_cold = ForkServer._begin


class WarmForkServer(ForkServer):
    """A fork server that the warm process of these tests has forked."""

    roles = _ROLES

    def _begin(
        self, target: str, env: Mapping[str, str], control: int, pass_fds: Sequence[int], log: int
    ) -> ServerProcess:
        if target not in FORK_TARGETS.values():
            return super()._begin(target, env, control, pass_fds, log)
        return _fork(warm_address(), target, env, control, pass_fds, log, sys.path)


def _begin_by_address(
    server: ForkServer,
    target: str,
    env: Mapping[str, str],
    control: int,
    pass_fds: Sequence[int],
    log: int,
) -> ServerProcess:
    if target not in FORK_TARGETS.values():
        return _begin_cold(server, target, env, control, pass_fds, log)
    return _fork(os.environ[ADDRESS], target, env, control, pass_fds, log, None)


def lead_to_warm_process() -> None:
    """Have all fork servers of this process forked by the warm process that its environment names."""
    ForkServer._begin = _begin_by_address  # type: ignore[method-assign]


def _fork(
    address: str,
    target: str,
    env: Mapping[str, str],
    control: int,
    pass_fds: Sequence[int],
    log: int,
    path: Sequence[str] | None,
) -> _Forked:
    """Ask for a fork server; with `path` None its modules are found as those of a started one are."""
    numbers = (control, *pass_fds)
    how = {"target": target, "env": dict(env), "numbers": numbers, "folder": os.getcwd(), "path": path}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as warm:
        warm.connect(address)
        socket.send_fds(warm, [json.dumps(how).encode()], [log, *numbers])
        return _Forked(int(warm.recv(_PACKET_BYTES)))


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


class Warm:
    """The tests' side of a warm process, which ends with them.

    Args:
        program: What it runs, with the descriptor of the socket where it is asked.
        without: Variables of this process's environment that it does not have.
    """

    def __init__(self, program: str, *, without: Sequence[str] = ()) -> None:
        self._folder = tempfile.mkdtemp(prefix="warm-", dir="/tmp")  # short enough for a socket's address
        self.address = f"{self._folder}/s"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listening:
            listening.bind(self.address)
            listening.listen(16)
            inherited = {name: value for name, value in os.environ.items() if name not in without}
            threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            self.process = subprocess.Popen(
                [sys.executable, program, str(listening.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=(listening.fileno(),),
                start_new_session=True,
                env={
                    **inherited,
                    **threads,
                    "TF_NUM_INTRAOP_THREADS": "1",
                    "TF_NUM_INTEROP_THREADS": "1",
                    **HIDDEN,
                    VARIABLE: "".ljust(fork_server.MARK_BYTES, "-"),
                    _MARK: "".ljust(_MARK_BYTES, "-"),
                    "PYTHONPATH": os.pathsep.join(sys.path),
                },
            )
        atexit.register(self.close)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self._folder)


_running: list[Warm] = []


def warm_address() -> str:
    """Where the warm process is asked; it is begun if there is none."""
    if not _running or _running[0].process.poll() is not None:
        _running[:] = [Warm(__file__)]
    return _running[0].address


def warm_pid() -> int:
    """The id of the warm process, which outlives tests; 0 if there is none."""
    return _running[0].process.pid if _running else 0


def _serve(listening: socket.socket) -> int:
    """Fork a fork server for each request."""
    # what takes long
    import scavenger.train.aggregation.aggregator
    import scavenger.train.aggregation.keras_update
    import scavenger.train.coordinator.coordinator
    import scavenger.train.loop_process
    import scavenger.train.worker_process  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended servers leave no zombies
    while True:
        if sys.stdin in select.select([sys.stdin, listening], [], [])[0]:
            os._exit(0)  # who began it has ended; to take TensorFlow down takes seconds for nothing
        asking, _ = listening.accept()
        with asking:
            data, fds, _, _ = socket.recv_fds(asking, _PACKET_BYTES, _FDS_MAX)
            if not data:
                continue  # who asked has ended
            pid = os.fork()
            if pid == 0:
                listening.close()
                asking.close()
                return _become(json.loads(data), fds)
            for fd in fds:
                os.close(fd)
            with contextlib.suppress(OSError):
                asking.send(str(pid).encode())


def show_mark(env: Mapping[str, str]) -> None:
    """Have the kernel show the mark of a test's processes for this process, which a warm one has forked."""
    if len(mark := env.get(_MARK, "")) == _MARK_BYTES:
        fork_server._show(_MARK, mark.encode())


def modules_of(folder: str, env: Mapping[str, str]) -> list[str]:
    """Where a started process finds modules: its folder, what its environment says, what is installed."""
    installed = [entry for entry in sys.path if entry.startswith((sys.base_prefix, sys.prefix))]
    return [folder, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *installed]


def _become(request: dict[str, object], fds: Sequence[int]) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    env, numbers, folder, path = (request[key] for key in ("env", "numbers", "folder", "path"))
    assert isinstance(env, dict)
    assert isinstance(numbers, list)
    assert isinstance(folder, str)
    assert isinstance(path, list | None)
    # out of the way of the numbers that they are to have
    log, *rest = [os.dup2(fd, 200 + index) for index, fd in enumerate(fds)]
    for fd in fds:
        os.close(fd)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for fd, number in zip(rest, numbers, strict=True):
        os.dup2(fd, number)
    for fd in (log, *rest):
        os.close(fd)
    fork_server._show_mark(env[VARIABLE])
    show_mark(env)
    sys.path[:] = modules_of(folder, env) if path is None else path
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # found by TensorFlow before
    exec(env.get(BEGINNING, ""), {})
    sys.argv = [fork_server.__file__, str(numbers[0]), str(request["target"])]
    return fork_server.main()


if __name__ == "__main__":
    sys.exit(_serve(socket.socket(fileno=int(sys.argv[1]))))
