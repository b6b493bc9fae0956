"""The job's folder on its way to a VM: fetched once, when the first process needs it; processes wait for it."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.job_archive import unpack
from scavenger.train.engines.vm.process_runner import ProcessRunner

__all__ = ["JobFolder"]


@dataclass(slots=True)
class JobFolder:
    """One agent's.

    Attributes:
        directory: A private folder, where the job's folder comes to lie.
        runner: What runs processes.
        send: Has a word sent to the leader.
    """

    directory: Path
    runner: ProcessRunner
    send: Callable[[m.AgentMessage], None]
    _sha256: str = ""
    _waiting: list[m.Start] = field(default_factory=list)
    _lines: list[m.Tell] = field(default_factory=list)
    _ready: Path | None = None

    @property
    def is_on_its_way(self) -> bool:
        """Processes wait for it."""
        return bool(self._sha256) and self._ready is None

    def start(self, order: m.Start) -> None:
        """Run a process in the folder, as soon as it is here."""
        if self._ready is not None:
            self.runner.start(order, self._ready)
            return
        self._waiting.append(order)
        if not self._sha256:
            self._sha256 = order.folder
            self._archive.touch()
            self.send(m.Fetch(0))

    def send_line(self, word: m.Tell) -> None:
        """Keep a line for a process that may wait."""
        self._lines.append(word)

    def forget(self, launch: int) -> None:
        """A process that still waits is not started."""
        for order in [order for order in self._waiting if order.launch == launch]:
            self._waiting.remove(order)
            self.runner.refuse(launch, "")

    def receive(self, chunk: m.Chunk) -> None:
        """Take a part of the folder; with the last one, processes start."""
        if not self.is_on_its_way:
            return
        try:
            folder = self._take(chunk)
        except (OSError, ValueError, tarfile.TarError) as error:
            self._sha256 = ""  # the next process has it fetched again
            for order in self._waiting:
                self.runner.refuse(order.launch, f"the job's folder did not come to its VM: {error}")
            self._waiting.clear()
            self._lines.clear()
            return
        if folder is None:
            return
        self._ready = folder
        for order in self._waiting:
            self.runner.start(order, folder)
        for word in self._lines:
            self.runner.send_line(word.launch, word.line)
        self._waiting.clear()
        self._lines.clear()

    def _take(self, chunk: m.Chunk) -> Path | None:
        """Write a part to the archive; the unpacked folder once that was the last."""
        with self._archive.open("rb+") as file:
            file.seek(chunk.offset)
            file.write(chunk.data)
        end = chunk.offset + len(chunk.data)
        if end < chunk.total and chunk.data:
            self.send(m.Fetch(end))
            return None
        target = self.directory / "job"
        target.mkdir(exist_ok=True)
        unpack(self._archive, self._sha256, target)
        self._archive.unlink()
        return target

    @property
    def _archive(self) -> Path:
        return self.directory / "job.tar"
