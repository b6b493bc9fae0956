"""The worker processes of a training loop of one's own: starts and ends them, and carries what is said."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scavenger.elastic.liveness import Liveness
from scavenger.elastic.membership import worker_name
from scavenger.elastic.recovery import Role, Status
from scavenger.errors import MessageError
from scavenger.train.custom_loop import messages as lm
from scavenger.train.engines.base import Engine, Exit
from scavenger.train.job_source import JobSource
from scavenger.train.names import HEARTBEAT_SUFFIX
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import LAST_MESSAGES_S, Processes
from scavenger.train.transport.messages import Beat, Failed

__all__ = ["LoopSupervisor"]

_QUIT_S = 30.0  # what a worker that is let go may take for the rest of its step


class LoopSupervisor:
    """Decides nothing: its owner says which workers count as lost and which are to leave. `open` makes one.

    Args:
        processes: The engine and the hub.
        first: How many names have been given before, to workers of a life that a checkpoint remembers.
        clock: Monotonic seconds.

    Attributes:
        liveness: Of the workers that have arrived; hears of their beats.
    """

    def __init__(self, processes: Processes, *, first: int, clock: Callable[[], float]) -> None:
        self._processes, self._first, self._clock = processes, first, clock
        self._registry = ProcessRegistry(processes.engine, clock)
        self.liveness = Liveness()

    @classmethod
    def open(
        cls,
        source: JobSource,
        *,
        log_dir: Path,
        first: int,
        engine: Callable[[Path, int], Engine],
        clock: Callable[[], float],
    ) -> LoopSupervisor:
        """Listen for the workers of a loop; `launch` starts them.

        Args:
            source: The training function.
            log_dir: Where each worker's output goes.
            first: See the class.
            engine: Makes the engine from the folder for logs.
            clock: Monotonic seconds.

        Raises:
            ConfigurationError: If the engine's port cannot be had.
        """
        return cls(Processes.open(source, engine, log_dir=log_dir), first=first, clock=clock)

    # ---- what is -------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """Where the processes run."""
        return self._processes.engine

    @property
    def launched(self) -> int:
        """Workers that the job has had; the number of the next one."""
        return self._first + len(self._registry.workers)

    @property
    def staying(self) -> tuple[str, ...]:
        """Workers that live, and were not told to leave."""
        return self._registry.alive

    @property
    def starting(self) -> tuple[str, ...]:
        """Those that have not arrived yet."""
        return self._in(Status.STARTING)

    @property
    def arrived(self) -> tuple[str, ...]:
        """Those that have."""
        return self._in(Status.READY)

    def _in(self, status: Status) -> tuple[str, ...]:
        return tuple(worker.name for worker in self._registry.workers if worker.status is status)

    def counts(self, name: str) -> bool:
        """It is a worker, and was not given up: what others say is passed over."""
        worker = self._registry.worker(name)
        return worker is not None and worker.status in (Status.STARTING, Status.READY, Status.LEAVING)

    def host(self, worker: str) -> str:
        """Where it runs."""
        return self.engine.host(worker)

    def age_s(self, worker: str) -> float:
        """Seconds since its launch."""
        return self._clock() - self._registry[worker].launched_s

    def log(self, worker: str) -> Path:
        return self.engine.log(worker)

    # ---- what is said --------------------------------------------------------------------------------------

    def send(self, worker: str, message: lm.LoopMessage, frames: Sequence[Any] = ()) -> None:
        """Queue a message; one for a worker that is gone is dropped."""
        self._processes.pass_on(worker, lm.encode(message), *frames)

    def wait(self, timeout_s: float) -> None:
        """Until something has arrived, or time is up."""
        self._processes.wait(timeout_s)

    def take(self) -> Iterator[tuple[str, lm.LoopMessage | Failed, list[bytes]]]:
        """What has arrived from workers that count, with its payload."""
        for peer, frames in self._processes.take():
            name = peer.removesuffix(HEARTBEAT_SUFFIX)
            if not self.counts(name) or not frames:
                continue
            with contextlib.suppress(MessageError):
                message = lm.decode(frames[0])
                if not isinstance(message, Beat):
                    yield name, message, frames[1:]
                elif self._registry[name].status is Status.READY:
                    self.liveness.heard(name, self._clock())

    # ---- workers come and go -------------------------------------------------------------------------------

    def launch(self) -> str:
        """Start a worker; returns its name."""
        name = worker_name(self.launched)
        self._processes.launch("loop", name)
        self._registry.launched(name, Role.WORKER)
        return name

    def arrive(self, worker: str) -> None:
        """It has built its replica: from now on its silence means something."""
        self._registry[worker].status = Status.READY
        self.liveness.heard(worker, self._clock())

    def leave(self, worker: str, reason: str) -> None:
        """Tell a worker to end."""
        self._registry.leaving(worker)
        self.liveness.forget(worker)
        self.send(worker, lm.Leave(reason))

    def mark_lost(self, worker: str) -> None:
        """A worker is lost: end it, so that it is, and hear it no more."""
        self.engine.kill(worker)
        self._registry.expel(worker, "counts as lost")
        self.liveness.forget(worker)

    def show_stack(self, worker: str) -> None:
        """Have it write where it stands to its log."""
        self._processes.show_stack(worker)

    def receive_last_messages(self, worker: str, hear: Callable[[], None]) -> None:
        """Take what has arrived, for as long as something may be on its way from a worker that has ended."""
        self._processes.receive_last_messages(
            hear, lambda: worker not in self.staying, within_s=LAST_MESSAGES_S, clock=self._clock
        )

    def ended(self) -> list[Exit]:
        """Workers that have ended though nobody told them to; they still count, for their last words."""
        unexpected = []
        for ended in self.engine.poll():
            if self._registry[ended.name].status is Status.LEAVING:
                self._registry.ended(ended.name, "")
            elif self.counts(ended.name):
                unexpected.append(ended)
        return unexpected

    def tidy_up(self) -> None:
        """End those that were told to leave and do not; keep logs within bounds."""
        now = self._clock()
        for worker in self._registry.let_go:
            if now - worker.leaving_s > _QUIT_S:
                self.engine.kill(worker.name)
        self.engine.cap_logs()

    def close(self) -> None:
        """End every process and free everything; safe to call twice."""
        self.engine.kill_all()
        self._processes.close()
