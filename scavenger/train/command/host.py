"""The host of a command: the process on each worker that starts the user's program, and carries what it tells.

It stays while the program is ended and started again with other numbers. The program runs in a session of its own; when
it has ended, everything that it started is ended, too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import zmq

from scavenger.errors import ScavengerError, TrainingCodeError
from scavenger.frames import frames_in
from scavenger.masking import mask
from scavenger.sdk.report import FOLDER
from scavenger.train.checkpoints.format import DamagedError
from scavenger.train.checkpoints.remote_folder import VARIABLE
from scavenger.train.command import messages as cm
from scavenger.train.command.carrier import Carrier
from scavenger.train.command.output import Lines, LogPatterns, Reports
from scavenger.train.engines.tree_use import tree_use
from scavenger.train.transport.heartbeat import Heartbeat
from scavenger.train.transport.messages import Beat
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.transport.sockets import Dealer

_LOOK_MS = 20
_SWEEPS = 20
_RECORDS_MAX = 1000
_MEASURE_S = 2.0
_OUTPUT_BYTES = 1 << 16
_LAST_LINES = 300
"""Lines of output in which a traceback is looked for when the program fails."""
_ALIVE_S = 1.0
"""How often it is told that a program writes, which is a sign of life."""
_SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER` of Linux."""

log = logging.getLogger(__name__)


class CommandHost:
    """Runs the command's process on one worker.

    Args:
        socket: The connection to the hub.
        job_dir: The folder that the program runs in.
        folder: A private folder for the reports.
        carrier: Carries the folder of checkpoints, where it is not the same on all machines.
        arrived: What the host tells when it is ready; the port is replaced.
    """

    def __init__(
        self, socket: Dealer, job_dir: Path, folder: Path, carrier: Carrier, arrived: cm.HostReady
    ) -> None:
        self._socket, self._job_dir, self._folder = socket, job_dir, folder
        self._carrier, self._arrived = carrier, arrived
        self._attempt = 0
        self._order: cm.StartProgram | None = None
        self._request: cm.AskProgram | None = None
        self._status: int | None = None
        self._asked = False
        self._child: subprocess.Popen[bytes] | None = None
        self._reports: Reports | None = None
        self._told: deque[cm.Record | cm.Doubt] = deque()
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._wrote = False
        self._alive_at = 0.0
        self._reader: threading.Thread | None = None
        self._kill_at, self._measure_at = float("inf"), 0.0
        self._beat = Beat()

    def run(self) -> None:
        """Serve until the host is ordered to leave."""
        self._arrive()
        while True:
            if self._socket.socket.poll(_LOOK_MS):
                message = cm.decode(self._socket.socket.recv_multipart()[0])
                if isinstance(message, cm.EndHost):
                    log.info("the worker leaves: %s", message.reason)
                    self._kill()
                    return
                self._handle(message)
            self._look()

    def _arrive(self) -> None:
        self._send(msgspec.structs.replace(self._arrived, port=_free_port()))

    def status(self) -> Beat:
        """The state for heartbeats."""
        return self._beat

    def _handle(self, message: object) -> None:
        match message:
            case cm.StartProgram():
                self._start(message)
            case cm.AskProgram() if message.attempt == self._attempt:
                self._request = message
                if self._child is not None:
                    self._ask(message)
            case cm.SetUp():
                self._set_up(message.words)
            case cm.End() if message.attempt == self._attempt and self._order is not None:
                self._order = None  # it was not started yet
                self._end(-signal.SIGTERM)
            case cm.End() if message.attempt == self._attempt and self._child is not None:
                if message.grace_s > 0:
                    _signal(self._child.pid, signal.SIGTERM)
                self._asked = message.store
                self._kill_at = min(self._kill_at, time.monotonic() + message.grace_s)
            case _:
                pass

    def _start(self, order: cm.StartProgram) -> None:
        self._kill()
        self._attempt, self._kill_at = order.attempt, float("inf")
        self._beat = Beat(self._beat.step, order.attempt)
        self._order, self._request, self._status, self._asked = order, None, None, False
        self._carrier.begin(order)

    def _begin(self, order: cm.StartProgram) -> None:
        """Start the program, whose folder is there."""
        self._order = None
        folder = self._folder / f"attempt-{order.attempt}"
        folder.mkdir(mode=0o700)
        self._reports = Reports(folder)
        if self._request is not None:  # the others are ahead
            self._ask(self._request)
        self._told.clear()
        self._last.clear()
        env = _environment(order.without) | order.env
        env[FOLDER] = str(folder)
        log.info("attempt %d: %s", order.attempt, " ".join(order.words))
        try:
            self._child = subprocess.Popen(
                order.words,
                cwd=self._job_dir,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._end(127, f"could not start {order.words[0]!r}: {error.strerror or error}")
            return
        patterns = LogPatterns(
            order.log,
            order.metric,
            lambda group, message: self._told.append(cm.Doubt(order.attempt, group, message)),
        )
        self._reader = threading.Thread(target=self._read_output, args=(self._child, patterns), daemon=True)
        self._reader.start()

    def _read_output(self, child: subprocess.Popen[bytes], patterns: LogPatterns) -> None:
        """Pass the program's output on, and read what it tells; runs in a thread of its own."""
        assert child.stdout is not None
        lines = Lines()
        with child.stdout:
            while data := os.read(child.stdout.fileno(), _OUTPUT_BYTES):
                now, self._wrote = time.monotonic(), True
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                for line, written_s in lines.timed(data, now):
                    self._last.append(line)
                    self._told.extend(patterns.read(line, written_s))
            for line in lines.rest():
                self._last.append(line)
                self._told.extend(patterns.read(line, time.monotonic()))

    def _ask(self, request: cm.AskProgram) -> None:
        path = self._folder / f"attempt-{request.attempt}" / "request"
        content = msgspec.structs.asdict(request)
        with contextlib.suppress(OSError):
            part = path.with_suffix(".part")
            part.write_text(json.dumps(content))
            part.replace(path)

    def _look(self) -> None:
        """Carry what the program has told, and see whether it has ended."""
        if self._order is not None:
            self._look_at_folder(self._order)
        child = self._child
        if child is None:
            if self._status is not None and self._carrier.look():
                self._end(self._status)
            return
        if time.monotonic() >= self._kill_at:
            _signal(child.pid, signal.SIGKILL)
        ended = child.poll() is not None
        if ended:
            _end_rest(child.pid)
            if self._reader is not None:
                self._reader.join(timeout=1.0)
                self._reader = None
        self._report()
        if not ended and time.monotonic() >= self._measure_at:
            self._measure_at = time.monotonic() + _MEASURE_S
            self._send(cm.MemoryUsed(tree_use(os.getpid()).memory_bytes))
        if ended:
            self._child, self._status = None, child.returncode
            self._carrier.end(store=child.returncode == 0 or (self._asked and child.returncode != -9))
        self._carrier.look()

    def _look_at_folder(self, order: cm.StartProgram) -> None:
        """Start the program once its folder is there."""
        try:
            if self._carrier.ready():
                self._begin(order)
        except (OSError, ValueError, ScavengerError, DamagedError) as error:
            self._order = None
            self._end(1, f"has no checkpoint to go on from: {error}")

    def _end(self, status: int, cause: str = "") -> None:
        self._status = None
        frames, raised = frames_in(list(self._last), str(self._job_dir)) if status else ((), "")
        frames = tuple(replace(one, code=mask(one.code)) for one in frames)
        ended = cm.AttemptEnded(self._attempt, status, cause[:2000], _free_port(), mask(raised), frames)
        self._send(ended)

    def _set_up(self, words: tuple[str, ...]) -> None:
        """Run a command that prepares this machine, to its end."""
        log.info("preparing: %s", " ".join(words))
        sys.stdout.flush()
        try:
            done = subprocess.run(
                words, cwd=self._job_dir, env=_environment(()), stdin=subprocess.DEVNULL, check=False
            )
        except OSError as error:
            raise TrainingCodeError(
                f"run.setup: could not start {words[0]!r}: {error.strerror or error}"
            ) from error
        if done.returncode:
            raise TrainingCodeError(f"run.setup: {words[0]} ended with status {done.returncode}")
        self._arrive()

    def _report(self) -> None:
        told = [self._told.popleft() for _ in range(len(self._told))]
        for doubt in told:
            if isinstance(doubt, cm.Doubt):
                self._send(doubt)
        found = [one for one in told if isinstance(one, cm.Record)]
        found += [] if self._reports is None else self._reports.read()
        found = [_without_secrets(one) for one in found]
        step = max((record.step or 0 for record in found), default=self._beat.step)
        self._beat = Beat(step, self._beat.view)
        self._carrier.told(found)
        for at in range(0, len(found), _RECORDS_MAX):
            self._send(cm.Records(self._attempt, tuple(found[at : at + _RECORDS_MAX])))
        now = time.monotonic()
        if self._wrote and now - self._alive_at > _ALIVE_S:
            self._wrote, self._alive_at = False, now
            if not found:
                self._send(cm.Records(self._attempt, ()))

    def _kill(self) -> None:
        if self._child is not None:
            _signal(self._child.pid, signal.SIGKILL)
            self._child.wait()
            _end_rest(self._child.pid)
            self._child = None
        self._order = self._status = None

    def _send(self, message: cm.CommandMessage) -> None:
        self._socket.socket.send(cm.encode(message))


def serve(context: zmq.Context[Any], config: ProcessConfiguration, socket: Dealer) -> None:
    """Run the host in this process until it is ordered to leave."""
    _adopt_orphans()
    job_dir = Path(config.job_dir)
    # on a VM, beside the job's folder, which its agent removes at its end
    checkpoints = str(job_dir.parent / f"checkpoints-{config.name}") if VARIABLE in os.environ else ""
    arrived = cm.HostReady(1, checkpoints, config.threads)
    with tempfile.TemporaryDirectory(prefix="command-") as folder:
        carrier = Carrier(lambda message: socket.socket.send(cm.encode(message)))
        host = CommandHost(socket, job_dir, Path(folder), carrier, arrived)
        heartbeat = Heartbeat(context, config, host.status)
        heartbeat.start()
        try:
            host.run()
        finally:
            heartbeat.close()
            carrier.close()


def _environment(without: Collection[str]) -> dict[str, str]:
    """The environment of a program: its machine's, where programs beside this Python come first, as torchrun."""
    env = {name: value for name, value in os.environ.items() if name not in (*without, VARIABLE)}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    return env


def _without_secrets(record: cm.Record) -> cm.Record:
    if not (record.done or record.error):
        return record
    return msgspec.structs.replace(record, done=mask(record.done), error=mask(record.error))


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _end_rest(group: int) -> None:
    """Kill what a process that has ended has left, in its session or elsewhere."""
    _signal(group, signal.SIGKILL)
    for _ in range(_SWEEPS):
        left = psutil.Process().children(recursive=True)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        _, alive = psutil.wait_procs(left, timeout=0.25)
        if not alive:
            return


def _adopt_orphans() -> None:
    """Become the parent of what a program leaves behind when it ends, so that it can be found; on Linux."""
    import ctypes

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("", 0))
        return int(trial.getsockname()[1])
