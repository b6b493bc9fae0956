"""Engine that runs a job's processes on this machine, and never leaves one behind."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from scavenger.errors import CleanupError
from scavenger.private_files import make_private_folder, private_opener
from scavenger.train.engines import reaper
from scavenger.train.engines.activity import Activity
from scavenger.train.engines.base import GRACE_S, Engine, Exit
from scavenger.train.engines.fork_server import MARK_BYTES
from scavenger.train.engines.forking import (
    FORK_TARGETS,
    SERVER_ENVIRONMENT,
    ForkedProcess,
    ForkServer,
    fork_server_supported,
    job_environment,
    kill_group,
    thread_limits,
)
from scavenger.train.engines.gpus import HIDDEN, gpus_for, only
from scavenger.train.engines.leftovers import SHORT_PARENT, make_folder, sweep
from scavenger.train.engines.logs import MaskedLog, cap_log, log_of
from scavenger.train.engines.memory_kills import MemoryKills, find_counter
from scavenger.train.engines.reaping import Reaper
from scavenger.train.engines.warm import WarmServers
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.transport.sockets import SOCKET_FOLDER_BYTES_MAX

_COMMAND = (sys.executable, "-m", "scavenger.train.process")
_CLOSING_S = 1.0
_KILL_S = 5.0  # the kernel may take a moment to free a large process
_HOST = "127.0.0.1"
_ROLES = ("aggregator", "coordinator")
_STAND_BY_MAX = 4
"""Most workers that wait for the next job; each takes some 50 MB of memory."""
_FORK_SERVER_LOG = "fork-server.log"
_SWEEPS_MAX = 40
_SWEEP_S = 0.05


@dataclass(slots=True)
class _Process:
    config: ProcessConfiguration
    env: dict[str, str]
    child: subprocess.Popen[bytes] | ForkedProcess
    log: Path
    gpu: str = ""
    group: int = 0  # as the reaper knows it
    again: bool = False  # whether it had to be started again
    activity: Activity = field(default_factory=Activity)
    peak_bytes: int = 0
    ended: bool = False
    killed: bool = False
    masked: MaskedLog | None = None


class TenantServer(Protocol):
    """Starts processes of a job that are not its own children; see `scavenger.train.pool.tenants`."""

    memory_fd: int

    def launch(
        self, name: str, command: Sequence[str], env: dict[str, str], log: int, memory: int
    ) -> ForkedProcess: ...

    def nudge(self) -> None: ...

    def close(self) -> None: ...


class ProcessEngine(Engine):
    """Runs each role of a job as a process group of its own on this machine.

    Args:
        log_dir: Folder for the logs, one file per process; None: a temporary folder that ends with the engine.
        memory_fd: File descriptor of the job's shared-memory block, which processes inherit; -1 if there is none.
        command: Command of each process, which reads its `ProcessConfiguration` from standard input; None: that of
            a job's processes.
        fork_targets: `module:function` that processes of a role run instead, forked from a process that has imported it
            (`forking.ForkServer`). The others, and with another command all, are started by the command.
        gpus: The GPUs to place workers on, a process on each; with none, those of a Keras model see no GPU, and custom
            loops and commands what this process does, as their code decides for itself. None: whatever starts a worker
            says in `env` which it sees. Processes of other roles never see any.
        warm: Has the server instead, which other engines have used and will use; that of workers forks aggregators and
            coordinators, too. None: the engine has one of its own.
        tenants: Starts the aggregators instead, in the pool of this machine; closed with the engine.

    Attributes:
        tenants: See the arguments.
    """

    _fork_server_type: type[ForkServer] = ForkServer

    def __init__(
        self,
        log_dir: Path | None,
        memory_fd: int,
        *,
        command: Sequence[str] | None = None,
        fork_targets: Mapping[str, str] = FORK_TARGETS,
        gpus: Sequence[str] | None = None,
        warm: WarmServers | None = None,
        tenants: TenantServer | None = None,
    ) -> None:
        self._command = _COMMAND if command is None else command
        self._fork_targets = fork_targets if command is None and fork_server_supported() else {}
        self._fork_server: ForkServer | None = None
        self._warm, self.tenants = warm, tenants
        self._worker: tuple[Mapping[str, str], int] | None = None  # environment and threads of the last one
        self._fd, self._gpus = memory_fd, gpus
        self._processes: dict[str, _Process] = {}
        self._tag = uuid.uuid4().hex
        self._closed = False
        self._memory_kills = MemoryKills(find_counter())
        sweep(lambda tag: reaper.kill_marked(f"{tag}.", prefix=True))
        # killed processes cannot delete their files: TensorFlow alone leaves one for each function that it rewrote
        self._temporary, lock = make_folder(self._tag)
        self._folders = {self._temporary: lock}
        self._sockets = self._temporary
        if len(os.fsencode(self._sockets)) > SOCKET_FOLDER_BYTES_MAX:
            self._sockets, lock = make_folder(self._tag, SHORT_PARENT)
            self._folders[self._sockets] = lock
        self._log_dir = log_dir if log_dir is not None else Path(self._temporary)
        make_private_folder(self._log_dir)
        self._reaper = Reaper(self._tag, self._folders)

    def launch(
        self,
        config: ProcessConfiguration,
        *,
        env: dict[str, str] | None = None,
        host: str | None = None,
        vm: str = "",
    ) -> int:
        """See `Engine.launch`. A process that is started by a command has its id when this returns."""
        if self._closed:
            raise RuntimeError("the engine is closed")
        if config.name in self.running:
            raise ValueError(f"a process {config.name!r} runs already")
        if host not in (None, _HOST):
            raise ValueError(f"the engine runs on this machine only ({_HOST}), not on {host!r}")
        if self.tenants is not None and config.role == "aggregator" and config.memory_fd >= 0:
            config = msgspec.structs.replace(config, memory_fd=self.tenants.memory_fd)
        gpu = self._gpus_of(config)
        variables = {
            **job_environment({**config.env, **config.secrets}),
            **thread_limits(config.threads),
            **self._seen_gpus(config.role, gpu),
            "TMPDIR": self._temporary,
            **(env or {}),
            reaper.VARIABLE: self._mark(config.name),
        }
        log = self._log_dir / f"{config.name}.log"
        with log_of(config, log) as (output, masked):
            child = self._start(config, variables, output)
        process = self._processes[config.name] = _Process(config, variables, child, log, gpu, masked=masked)
        self._begin(process)
        return child.pid

    def _gpus_of(self, config: ProcessConfiguration) -> str:
        """Choose the GPUs of a worker; empty if it gets none. They are free again when the process has ended."""
        if config.role not in ("command", "loop", "worker") or not self._gpus:
            return ""
        held = [process.gpu for process in self._processes.values() if process.gpu and not process.ended]
        return gpus_for(self._gpus, held, config.processes)

    def _seen_gpus(self, role: str, gpu: str) -> Mapping[str, str]:
        if gpu:
            return only(gpu)
        return {} if role in ("command", "loop") or (role == "worker" and self._gpus is None) else HIDDEN

    def _start(
        self, config: ProcessConfiguration, env: dict[str, str], log: int, *, again: bool = False
    ) -> subprocess.Popen[bytes] | ForkedProcess:
        """Start a process by a server if it can be, else by the command.

        Args:
            again: Whether a server has ended twice before it started this process.

        Raises:
            OSError: If this machine cannot start one.
        """
        if self.tenants is None or config.role != "aggregator":
            return (None if again else self._fork(config, env, log)) or self._spawn(env, log)
        if again:
            raise OSError("two managers of the pool have ended before they started it")
        return self.tenants.launch(config.name, self._command, env, log, self._fd)

    def _spawn(self, env: dict[str, str], log: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            list(self._command),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(self._fd,) if self._fd >= 0 else (),
            start_new_session=True,
            env=env,
        )

    def _fork(self, config: ProcessConfiguration, env: dict[str, str], log: int) -> ForkedProcess | None:
        """Have a process forked; None if that cannot be done."""
        server = self._fork_server
        if server is not None:
            server.receive()  # it may have ended since
        if server is not None and not server.alive and not server.ready:
            self._fork_targets = {}  # it failed to import, or may not fork: the next would, too
        target, beside = self._fork_targets.get(config.role), config.role in _ROLES
        if beside and (self._warm is not None or config.role in self._fork_server_type.roles):
            target = self._fork_targets.get("worker")
        if target is None or len(env[reaper.VARIABLE]) > MARK_BYTES:
            return None
        try:
            if server is None or not server.alive:
                shared = {name: value for name, value in env.items() if name not in config.secrets}
                server = self._start_fork_server(target, shared, config.env)
            if beside and self._warm is not None and not server.ready:
                return None  # it begins while the server still imports
            fds = (self._fd,) if self._fd >= 0 and self._warm is not None else ()
            if config.role == "worker" and not config.secrets:  # which the next job must not have
                self._worker = env, config.threads
            warm, shown = config.role == "worker", (*self._command[1:], config.name)
            return server.fork(config.name, env, config.threads, log, fds, warm=warm, command=shown)
        except OSError:  # as too little memory: starting the command tells what is wrong
            return None

    def stand_by(self, workers: int) -> None:
        """See `Engine.stand_by`: only if further jobs may follow, and never on a GPU, whose memory they would hold."""
        server = self._fork_server
        if (
            self._warm is None
            or not self._warm.lasting
            or self._worker is None
            or server is None
            or not (server.alive and server.ready)
        ):
            return
        env, threads = self._worker
        if HIDDEN.items() <= env.items():
            server.stand_by(min(workers, _STAND_BY_MAX), env, threads)

    def _start_fork_server(self, target: str, env: dict[str, str], own: Mapping[str, str]) -> ForkServer:
        if self._warm is not None:
            self._fork_server = self._warm.take(target, {**env, **SERVER_ENVIRONMENT}, own)
            return self._fork_server
        if self._fork_server is not None:
            self._reaper.remove(self._fork_server.process.pid)
        fds = (self._fd,) if self._fd >= 0 else ()
        with open(self._log_dir / _FORK_SERVER_LOG, "ab", opener=private_opener) as output:
            server = self._fork_server_type(
                target,
                {**env, **SERVER_ENVIRONMENT},
                self._mark("fork-server"),
                fds,
                output.fileno(),
            )
        self._fork_server = server
        self._reaper.add(server.process.pid)
        return server

    def _begin(self, process: _Process) -> None:
        """Give a process its configuration."""
        pipe = process.child.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):
            pipe.write(msgspec.json.encode(process.config) + b"\n")
            pipe.flush()  # kept open: end of file shows the process that this one is gone
        os.set_blocking(pipe.fileno(), False)  # a process that does not read must not block the leader
        self._place(process)

    def _place(self, process: _Process) -> None:
        """Tell the reaper of a process that has its id now."""
        if not process.group and process.child.pid:
            process.group = process.child.pid
            self._reaper.add(process.group)

    def _start_unforked(self) -> None:
        """Start what was to be forked by a server that has ended: by another server once, then by the command."""
        for process in self._processes.values():
            child = process.child
            if process.ended or not isinstance(child, ForkedProcess) or not child.never:
                continue
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            with log_of(process.config, process.log) as (output, process.masked):
                try:
                    process.child = self._start(process.config, process.env, output, again=process.again)
                except OSError as error:
                    child.fail(f"could not be started: {error}")
                    continue
            process.again = True
            self._begin(process)

    def poll(self) -> list[Exit]:
        """See `Engine.poll`; whatever the ended processes started is killed too."""
        if not self._closed and self._reaper.watch(time.monotonic()) and self._fork_server is not None:
            self._fork_server.nudge()
        if self.tenants is not None:
            self.tenants.nudge()
        ended = {}
        for name, process in self._processes.items():
            if not process.ended:
                if process.child.poll() is not None:
                    ended[name] = process
                self._place(process)
        self._start_unforked()
        killed = [
            name
            for name, process in ended.items()
            if process.child.returncode == -signal.SIGKILL and process.child.pid and not process.killed
        ]
        out_of_memory = self._memory_kills.among(killed, time.monotonic())
        exits = []
        for name, process in ended.items():
            status = process.child.returncode
            assert status is not None
            reason = process.child.error if isinstance(process.child, ForkedProcess) else ""
            exits.append(Exit(name, status, reason, out_of_memory=name in out_of_memory))
            self._clean_up_after(name, process)
        return exits

    def pid(self, name: str) -> int:
        return self._processes[name].child.pid

    def host(self, name: str) -> str:
        self._processes[name]  # raises KeyError for an unknown name
        return _HOST

    @property
    def hosts(self) -> tuple[str, ...]:
        """See `Engine.hosts`: this machine alone."""
        return (_HOST,)

    @property
    def leader_host(self) -> str:
        return _HOST

    @property
    def socket_dir(self) -> Path | None:
        return Path(self._sockets)

    def suspended(self, name: str) -> bool:
        process = self._processes[name]
        if process.ended or not process.child.pid:
            return False
        try:
            return bool(psutil.Process(process.child.pid).status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False

    def idle_s(self, name: str) -> float:
        process = self._processes[name]
        return math.inf if process.ended else process.activity.idle_s(process.child.pid, time.monotonic())

    def log(self, name: str) -> Path:
        return self._processes[name].log

    @property
    def running(self) -> tuple[str, ...]:
        # a copy, because a signal handler may call this while another thread starts a process
        return tuple(name for name, process in self._processes.copy().items() if not process.ended)

    def sample_memory(self) -> dict[str, int]:
        sizes = {}
        for name, process in self._processes.items():
            if process.ended or not process.child.pid:
                continue
            with contextlib.suppress(psutil.Error):
                resident = psutil.Process(process.child.pid).memory_info().rss
                process.peak_bytes = max(process.peak_bytes, resident)
                sizes[name] = process.peak_bytes
        return sizes

    def cap_logs(self) -> None:
        for process in self._processes.values():
            if not process.ended:
                cap_log(process.log)

    def show_stack(self, name: str) -> None:
        process = self._processes[name]
        if not process.ended and process.child.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.child.pid, signal.SIGUSR1)

    def kill(self, name: str) -> None:
        process = self._processes[name]
        if not process.ended:
            process.killed = True
            _kill(process.child)

    def terminate(self, name: str) -> None:
        """Ask a process group to end, by SIGTERM; a process that has not begun is killed."""
        process = self._processes[name]
        if process.ended or process.child.poll() is not None:
            return
        if not process.child.pid:
            _kill(process.child)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.child.pid, signal.SIGTERM)  # its end has not been seen, so its id is its own

    def stop(self, names: Sequence[str] | None = None, *, grace_s: float = GRACE_S) -> None:
        """See `Engine.stop`.

        Raises:
            CleanupError: If one cannot be ended; the message names it.
        """
        chosen = {name: self._processes[name] for name in (names if names is not None else self.running)}
        for process in chosen.values():
            if not process.ended and not process.child.pid:
                _kill(process.child)  # it has not begun
        for action in (None, signal.SIGTERM, signal.SIGKILL):
            waiting = {name: process for name, process in chosen.items() if not process.ended}
            for process in waiting.values():
                if action is not None and process.child.poll() is None and process.child.pid:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.child.pid, action)
            deadline = time.monotonic() + (max(grace_s, _KILL_S) if action is signal.SIGKILL else grace_s)
            for name, process in waiting.items():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.child.wait(timeout=max(0.0, deadline - time.monotonic()))
                if process.child.poll() is not None:
                    self._clean_up_after(name, process)
        left = [process.child.pid for process in chosen.values() if not process.ended]
        if left:
            raise CleanupError(
                f"processes {left} do not end; end them with `kill -9 {' '.join(map(str, left))}`"
            )

    def close(self) -> None:
        """See `Engine.close`; the reaper ends last."""
        self._closed = True
        try:
            self.stop(grace_s=_CLOSING_S)
        finally:
            if self.tenants is not None:
                self.tenants.close()
            if self._fork_server is not None and self._warm is not None:
                with contextlib.suppress(OSError):  # as a full disk
                    if told := self._warm.written():
                        (self._log_dir / _FORK_SERVER_LOG).write_bytes(told)
                self._warm.give_back(self._fork_server)
            elif self._fork_server is not None:
                self._fork_server.close()
                kill_group(self._fork_server.process.pid)
                reaper.kill_marked(
                    f"{self._tag}.", prefix=True
                )  # what the imports of the server have started
                # all are known to have ended, so that the reaper need not look for what only begins
                self._reaper.remove(self._fork_server.process.pid)
                self._fork_server = None
            self._reaper.close()
            while self._folders:
                folder, lock = self._folders.popitem()
                shutil.rmtree(folder, ignore_errors=True)  # if the reaper was killed
                os.close(lock)

    def _mark(self, name: str) -> str:
        return f"{self._tag}.{name}"

    def _clean_up_after(self, name: str, process: _Process) -> None:
        process.ended = True
        with contextlib.suppress(BrokenPipeError):
            assert process.child.stdin is not None
            process.child.stdin.close()
        # kill what the process started: members of its group, and others by the marker that they inherited
        if process.child.pid:
            kill_group(process.child.pid)
        for _ in range(_SWEEPS_MAX):
            if not reaper.kill_marked(self._mark(name)):
                break
            time.sleep(_SWEEP_S)
        if process.group:
            self._reaper.remove(process.group)
        if isinstance(process.child, ForkedProcess):
            process.child.release()
        if process.masked is not None:
            process.masked.close(_KILL_S)
        cap_log(process.log)


def _kill(child: subprocess.Popen[bytes] | ForkedProcess) -> None:
    if isinstance(child, ForkedProcess):
        child.kill()
    else:
        kill_group(child.pid)
