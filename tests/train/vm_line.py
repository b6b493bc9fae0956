"""The way from a process on a VM to the leader's files, all in one process, by a line that tests can hold up."""

from __future__ import annotations

import contextlib
import queue
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scavenger.train.checkpoints.remote_folder import SCHEME, VARIABLE
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.file_proxy import FileProxy
from scavenger.train.engines.vm.file_server import FileServer

LAUNCH = 7
VM = "vm-0"


class FarLine:
    """Relay, line and leader, served by a thread; process `LAUNCH` of `VM` is the one that may have files.

    Attributes:
        files: The leader's end; use it within `lock`.
        held: While it is set, nothing gets through to the leader.
        waiting: What is on the line.
    """

    def __init__(self, folder: Path) -> None:
        self.waiting: list[m.AgentMessage] = []
        self._answers: queue.SimpleQueue[m.FileAnswer] = queue.SimpleQueue()
        self.relay = FileProxy(folder, self.waiting.append)
        self.relay.open()
        self.files = FileServer(
            lambda intent, number, body: self._answers.put(m.FileAnswer(number, body)),
            lambda intent, number: (intent, number) == (VM, LAUNCH),
        )
        self.lock, self.held = threading.Lock(), threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            select.select([self.relay], [], [], 0.002)
            with self.lock:
                self.relay.step()
                if not self.held.is_set():
                    self._deliver()

    def _deliver(self) -> None:
        for word in self.waiting:
            match word:
                case m.FileAsk():
                    self.files.ask(VM, word.number, word.body)
                case m.FileEnd():
                    self.files.end(VM, word.number)
        self.waiting.clear()
        while not self._answers.empty():
            self.relay.answer(self._answers.get())

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self.files.close()
        self.relay.close()


@contextlib.contextmanager
def far_line(folder: Path, root: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[FarLine, str]]:
    """This process is one on a VM, whose leader shares a folder by the URL that is given back."""
    folder.mkdir(parents=True)
    with contextlib.closing(FarLine(folder)) as line:
        line.files.share(str(root))
        patch.setenv(VARIABLE, f"{LAUNCH}@{line.relay.path}")
        yield line, f"{SCHEME}{root}"
