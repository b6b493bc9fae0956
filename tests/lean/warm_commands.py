"""Commands that begin at once: a process that has imported what they import forks them.

A `scavenger` command imports for a second or two, which is most of what a test of one costs. Where a test is not about
how a command begins, `Command` has it forked by a warm process: with its arguments, environment, folder and standard
streams, in a session of its own, and with its own exit status. Tests of streams that are closed or encoded in another
way, of imports, and of signals while a command begins start theirs cold, by `subprocess`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from warm_servers import ADDRESS, Warm, lead_to_warm_process, modules_of, show_mark

_PACKET_BYTES = 1 << 18
_TASKS = Path("/proc/self/task")
_IMPORTED = (
    "alembic.command",
    "numpy",
    "rich.live",
    "rich.table",
    "scavenger.api.calls",
    "scavenger.control.jobs.job_run",
    "scavenger.control.jobs.resume",
    "scavenger.control.service.server",
    "scavenger.server.serving",
    "scavenger.store.database",
    "sqlalchemy.dialects.sqlite",
    "uvicorn",
)
"""What commands import while they run, beside the modules that hold them."""


class Command(subprocess.Popen[str]):
    """A command of Python that the warm process has forked, as a `Popen` of text and of a session of its own.

    Args:
        args: As of `Popen`: this Python, and then `-m MODULE` or a file, and its arguments.
        env: Its environment; None: that of this process.
    """

    def __init__(
        self,
        args: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> None:
        python, *rest = map(str, args)
        assert python == sys.executable
        self.args, self.returncode = list(map(str, args)), None
        self.stdin = None
        self._status = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as handed:
            fds = [_given(handed, stdin, 0)]
            self.stdout = self._piped(handed, fds, stdout)
            self.stderr = self._piped(handed, fds, stderr)
            request = {"arguments": rest, "env": dict(env or os.environ), "folder": str(cwd or os.getcwd())}
            self._status.connect(_address())
            socket.send_fds(self._status, [json.dumps(request).encode()], fds)
            answer, (self._process,), _, _ = socket.recv_fds(self._status, 64, 1)
        self.pid = int(answer)
        self._said: dict[IO[str], tuple[threading.Thread, list[str]]] = {}

    @staticmethod
    def _piped(handed: contextlib.ExitStack, fds: list[int], to: int | IO[Any] | None) -> IO[str] | None:
        if to != subprocess.PIPE:
            fds.append(fds[1] if to == subprocess.STDOUT else _given(handed, to, len(fds)))
            return None
        mine, its = os.pipe()
        handed.callback(os.close, its)
        fds.append(its)
        return open(mine, encoding="utf-8")

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        answer = self._status.recv(64)
        self.returncode = int(answer) if answer else -signal.SIGKILL  # the warm process has ended before it
        self._status.close()
        os.close(self._process)

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]:
        streams = [one for one in (self.stdout, self.stderr) if one is not None]
        for stream in streams:
            if stream not in self._said:
                reading = threading.Thread(target=self._read, args=(stream,), daemon=True)
                self._said[stream] = reading, []
                reading.start()
        for stream in streams:
            self._said[stream][0].join(timeout)
            if self._said[stream][0].is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(timeout)
        out, error = ("".join(self._said[one][1]) if one else "" for one in (self.stdout, self.stderr))
        return out, error

    def _read(self, stream: IO[str]) -> None:
        with stream:
            self._said[stream][1].append(stream.read())


def _given(handed: contextlib.ExitStack, stream: int | IO[Any] | None, number: int) -> int:
    """The descriptor of a standard stream that is not a pipe to this process."""
    if stream is None:
        return number
    if stream == subprocess.DEVNULL:
        nowhere = os.open(os.devnull, os.O_RDWR)
        handed.callback(os.close, nowhere)
        return nowhere
    return stream if isinstance(stream, int) else stream.fileno()


_running: list[Warm] = []


def _address() -> str:
    """Where the warm process is asked; it is begun if there is none."""
    if not _running or _running[0].process.poll() is not None:
        _running[:] = [Warm(__file__, without=(ADDRESS,))]
    return _running[0].address


# ---- in the warm process -----------------------------------------------------------------------------------


def _serve(listening: socket.socket) -> list[str]:
    """Fork a command for each request, and tell who asked for it of its end. Returns in a forked one: its arguments."""
    import scavenger_cli.commands
    import scavenger_cli.main

    for file in sorted(Path(scavenger_cli.commands.__path__[0]).glob("*.py")):
        importlib.import_module(f"scavenger_cli.commands.{file.stem}")
    for name in _IMPORTED:
        importlib.import_module(name)
    assert len(list(_TASKS.iterdir())) == 1, "a fork would leave a thread behind in the middle of its work"
    gc.collect()
    gc.freeze()  # what is there stays shared
    running: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of the process
    while True:
        ready = select.select([0, listening, *running], [], [])[0]
        if 0 in ready:
            os._exit(0)  # who began it has ended
        for process in [one for one in ready if one in running]:
            pid, asking = running.pop(process)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with asking, contextlib.suppress(OSError):  # nobody may wait for it
                asking.send(str(status).encode())
            os.close(process)
        if listening not in ready:
            continue
        asking, _ = listening.accept()
        data, fds, _, _ = socket.recv_fds(asking, _PACKET_BYTES, 3)
        if not data:
            asking.close()
            continue
        if (pid := os.fork()) == 0:
            for other in (listening, asking, *(one for _, one in running.values())):
                other.detach()  # they are closed with all descriptors
            return _become(json.loads(data), fds)
        for fd in fds:
            os.close(fd)
        process = os.pidfd_open(pid)
        running[process] = pid, asking
        with contextlib.suppress(OSError):
            socket.send_fds(asking, [str(pid).encode()], [process])


def _become(request: dict[str, Any], fds: Sequence[int]) -> list[str]:
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, 1 << 16)
    env, folder, arguments = request["env"], request["folder"], request["arguments"]
    show_mark(env)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None
    encoding = env.get("PYTHONIOENCODING", "utf-8")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        how = {"buffering": 1, "errors": "backslashreplace"} if number == 2 else {}
        stream = open(number, "w" if number else "r", encoding=encoding, closefd=False, **how)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    beside = folder if arguments[0] == "-m" else str(Path(arguments[0]).parent)
    sys.path[:] = modules_of(beside, env)
    if ADDRESS in env:
        lead_to_warm_process()
    return arguments


if __name__ == "__main__":
    first, *sys.argv = _serve(socket.socket(fileno=int(sys.argv[1])))
    if first == "-m":
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv.insert(0, first)
        runpy.run_path(first, run_name="__main__")
