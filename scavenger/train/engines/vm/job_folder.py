"""The agent's copy of the job's folder, fetched once when the first process needs it; processes wait for it."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.job_archive import unpack
from scavenger.train.engines.vm.process_runner import ProcessRunner, is_disk_error


@dataclass(slots=True)
class JobFolder:
    """The job's folder on one VM, and the processes that wait for it.

    Attributes:
        directory: A private folder that will contain the job's folder.
        runner: Runs the processes.
        send: Sends a message to the leader.
    """

    directory: Path
    runner: ProcessRunner
    send: Callable[[m.AgentMessage], None]
    _sha256: str = ""
    _waiting: list[m.Start] = field(default_factory=list)
    _ready: Path | None = None

    def start(self, order: m.Start) -> None:
        """Run a process in the folder, as soon as the folder has arrived."""
        if self._ready is not None:
            self.runner.start(order, self._ready)
            return
        self._waiting.append(order)
        if not self._sha256:
            self._sha256 = order.folder
            self._archive.touch()
            self.send(m.Fetch(0))

    def forget(self, launch: int) -> None:
        """Cancel a process that is still waiting."""
        for order in [order for order in self._waiting if order.launch == launch]:
            self._waiting.remove(order)
            self.runner.refuse(launch, "")

    def receive(self, chunk: m.Chunk) -> None:
        """Store a chunk of the folder; after the last one, start the waiting processes.

        Raises:
            OSError: The disk does not take it, and nothing else runs here.
        """
        if not self._sha256 or self._ready is not None:
            return
        try:
            folder = self._take(chunk)
        except (OSError, ValueError, tarfile.TarError) as error:
            self._sha256 = ""  # the next process fetches it again
            for order in self._waiting:
                self.runner.refuse(order.launch, f"the job's folder could not be copied to its VM: {error}")
            self._waiting.clear()
            if is_disk_error(error) and not self.runner.busy:
                raise  # the next process would end like these
            return
        if folder is None:
            return
        self._ready = folder
        for order in self._waiting:
            self.runner.start(order, folder)
        self._waiting.clear()

    def _take(self, chunk: m.Chunk) -> Path | None:
        """Write a chunk to the archive; return the unpacked folder after the last chunk, else None."""
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
