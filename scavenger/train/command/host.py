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
from pathlib import Path
from typing import Any

import psutil
import zmq

from scavenger.sdk.report import FOLDER
from scavenger.train.command import messages as cm
from scavenger.train.command.output import LogPatterns, Reports
from scavenger.train.engines.tree_use import tree_use
from scavenger.train.transport.heartbeat import Heartbeat
from scavenger.train.transport.messages import Beat
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.transport.sockets import Dealer

__all__ = ["serve"]

_LOOK_MS = 20
_SWEEPS = 20
_RECORDS_MAX = 1000
_MEASURE_S = 2.0
_SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER` of Linux."""

log = logging.getLogger(__name__)


class Host:
    """Runs the command's process on one worker.

    Args:
        socket: The connection to the hub.
        job_dir: The folder that the program runs in.
        folder: A private folder for the reports.
    """

    def __init__(self, socket: Dealer, job_dir: Path, folder: Path) -> None:
        self._socket, self._job_dir, self._folder = socket, job_dir, folder
        self._attempt = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._reports: Reports | None = None
        self._lines: deque[cm.Record] = deque()
        self._reader: threading.Thread | None = None
        self._kill_at, self._measure_at = float("inf"), 0.0
        self.step = self.view = 0

    def run(self) -> None:
        """Serve until the host is ordered to leave."""
        self._send(cm.Arrived(_free_port()))
        while True:
            if self._socket.socket.poll(_LOOK_MS):
                message = cm.decode(self._socket.socket.recv_multipart()[0])
                if isinstance(message, cm.Leave):
                    log.info("the worker leaves: %s", message.reason)
                    self._kill()
                    return
                self._handle(message)
            self._look()

    def status(self) -> Beat:
        """The state for heartbeats."""
        return Beat(step=self.step, view=self.view)

    def _handle(self, message: object) -> None:
        match message:
            case cm.Run():
                self._start(message)
            case cm.Ask() if message.attempt == self._attempt and self._child is not None:
                self._ask(message)
            case cm.End() if message.attempt == self._attempt and self._child is not None:
                if message.grace_s > 0:
                    _signal(self._child.pid, signal.SIGTERM)
                self._kill_at = min(self._kill_at, time.monotonic() + message.grace_s)
            case _:
                pass

    def _start(self, order: cm.Run) -> None:
        self._kill()
        self._attempt, self._kill_at, self.view = order.attempt, float("inf"), order.attempt
        folder = self._folder / f"attempt-{order.attempt}"
        folder.mkdir(mode=0o700)
        self._reports = Reports(folder)
        self._lines.clear()
        env = {name: value for name, value in os.environ.items() if name not in order.without} | order.env
        # programs that are named without a path are those beside this Python, as torchrun
        env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
        env[FOLDER] = str(folder)
        log.info("attempt %d: %s", order.attempt, " ".join(order.words))
        try:
            self._child = subprocess.Popen(
                order.words,
                cwd=self._job_dir,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if order.log else None,
                stderr=subprocess.STDOUT if order.log else None,
                start_new_session=True,
            )
        except OSError as error:
            why = f"could not start {order.words[0]!r}: {error.strerror or error}"
            self._send(cm.Ended(order.attempt, 127, why, _free_port()))
            return
        if order.log:
            patterns = LogPatterns(order.log, order.metric)
            self._reader = threading.Thread(
                target=self._read_output, args=(self._child, patterns), daemon=True
            )
            self._reader.start()

    def _read_output(self, child: subprocess.Popen[bytes], patterns: LogPatterns) -> None:
        """Pass the program's output on, and read what it tells; runs in a thread of its own."""
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                now = time.time()
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()
                record = patterns.read(line.decode(errors="replace"), now)
                if record is not None:
                    self._lines.append(record)

    def _ask(self, request: cm.Ask) -> None:
        path = self._folder / f"attempt-{request.attempt}" / "request"
        content = {
            "save_at": request.save_at,
            "end_at": request.end_at,
            "epoch": request.epoch,
            "stop": request.stop,
        }
        with contextlib.suppress(OSError):
            part = path.with_suffix(".part")
            part.write_text(json.dumps(content))
            part.replace(path)

    def _look(self) -> None:
        """Carry what the program has told, and see whether it has ended."""
        child = self._child
        if child is None:
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
            self._send(cm.Used(tree_use(os.getpid()).memory_bytes))
        if ended:
            self._child = None
            self._send(cm.Ended(self._attempt, child.returncode, "", _free_port()))

    def _report(self) -> None:
        found = [self._lines.popleft() for _ in range(len(self._lines))]
        found += [] if self._reports is None else self._reports.read()
        self.step = max((record.step or 0 for record in found), default=self.step)
        for at in range(0, len(found), _RECORDS_MAX):
            self._send(cm.Records(self._attempt, tuple(found[at : at + _RECORDS_MAX])))

    def _kill(self) -> None:
        if self._child is not None:
            _signal(self._child.pid, signal.SIGKILL)
            self._child.wait()
            _end_rest(self._child.pid)
            self._child = None

    def _send(self, message: cm.CommandMessage) -> None:
        self._socket.socket.send(cm.encode(message))


def serve(context: zmq.Context[Any], config: ProcessConfiguration, socket: Dealer) -> None:
    """Run the host in this process until it is ordered to leave."""
    _adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="command-") as folder:
        host = Host(socket, Path(config.job_dir), Path(folder))
        heartbeat = Heartbeat(context, config, host.status)
        heartbeat.start()
        try:
            host.run()
        finally:
            heartbeat.close()


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
