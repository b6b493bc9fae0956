"""Starts and ends the worker processes of a custom training loop, and carries their messages."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scavenger.elastic.liveness import Liveness
from scavenger.elastic.recovery import Status
from scavenger.errors import MessageError
from scavenger.train.custom_loop import messages as lm
from scavenger.train.custom_loop.gradient_memory import MEAN, GradientMemory
from scavenger.train.engines.base import Exit
from scavenger.train.names import HEARTBEAT_SUFFIX
from scavenger.train.supervisor.direct_workers import DirectWorkers
from scavenger.train.supervisor.processes import LAST_MESSAGES_S, Processes
from scavenger.train.supervisor.watching import WorkWatch
from scavenger.train.transport.messages import Beat, Failed


class LoopWorkers(DirectWorkers):
    """The workers of a loop; `open` makes one. Its owner decides which workers are lost and which must end.

    See `DirectWorkers` for the arguments.

    Attributes:
        liveness: Decides from heartbeats which of the ready workers are silent.
        memory: The memory that workers share with this process; None if they run elsewhere.
    """

    role = "loop"
    leave_s = 30.0  # a released worker may take the rest of its step
    has_block = True

    def __init__(self, processes: Processes, *, first: int, clock: Callable[[], float]) -> None:
        super().__init__(processes, first=first, clock=clock)
        self._work = WorkWatch()
        self._exited: dict[str, str] = {}
        self._places: dict[str, int] = {}
        self.memory: GradientMemory | None = None
        if processes.block_fd >= 0 and not self.elsewhere:
            self.memory = GradientMemory(processes.block_fd)
        self.liveness = Liveness()

    # ---- the state of workers ------------------------------------------------------------------------------

    def place(self, worker: str) -> int:
        """Return the worker's place in the shared memory, which no other running worker has; -1 if there is none."""
        if self.memory is None:
            return -1
        if worker not in self._places:
            taken = {p for name, p in self._places.items() if self.registry[name].ended_s is None}
            self._places[worker] = next(p for p in itertools.count(MEAN + 1) if p not in taken)
        return self._places[worker]

    @property
    def starting(self) -> tuple[str, ...]:
        """Workers that have not built their replicas yet."""
        return self._in(Status.STARTING)

    @property
    def arrived(self) -> tuple[str, ...]:
        """Workers that have built their replicas."""
        return self._in(Status.READY)

    def _in(self, status: Status) -> tuple[str, ...]:
        return tuple(worker.name for worker in self.registry.workers if worker.status is status)

    def counts(self, name: str) -> bool:
        """Whether a process is a worker that was not marked as lost; other processes' messages are ignored."""
        worker = self.registry.worker(name)
        return worker is not None and worker.status in (Status.STARTING, Status.READY, Status.LEAVING)

    # ---- messages ------------------------------------------------------------------------------------------

    def send(self, worker: str, message: lm.LoopMessage, frames: Sequence[Any] = ()) -> None:
        """Queue a message; it is dropped if the worker has ended."""
        self._processes.pass_on(worker, lm.encode(message), *frames)

    def take(self) -> Iterator[tuple[str, lm.LoopMessage | Failed, list[bytes]]]:
        """Yield the messages of workers that count (see `counts`), with sender and payload; handles heartbeats."""
        for peer, frames in self._processes.take():
            name = peer.removesuffix(HEARTBEAT_SUFFIX)
            if not self.counts(name) or not frames:
                continue
            with contextlib.suppress(MessageError):
                message = lm.decode(frames[0])
                if not isinstance(message, Beat):
                    yield name, message, frames[1:]
                elif self.registry[name].status is Status.READY:
                    self.registry.beat(name, message)
                    self.liveness.heard(name, self._clock())
                    self._work.heard(name, self._clock())
                    self._network.heard(name)

    # ---- starting and ending workers -----------------------------------------------------------------------

    def arrive(self, worker: str) -> None:
        """Note that a worker has built its replica; from now on its heartbeats are watched."""
        self.registry[worker].status = Status.READY
        self.liveness.heard(worker, self._clock())

    def leave(self, worker: str, reason: str) -> None:
        """Order a worker to end."""
        self.registry.leaving(worker)
        self.liveness.forget(worker)
        self.send(worker, lm.LeaveMessage(reason))

    def mark_lost(self, worker: str) -> None:
        """End a worker that counts as lost, and ignore its messages from now on."""
        if worker in self._exited:
            self.registry.ended(worker, self._exited[worker])
        else:
            self.engine.kill(worker)
            self.registry.expel(worker, "counts as lost")
        self.liveness.forget(worker)

    def show_stack(self, worker: str) -> None:
        """Have a worker write its stack to its log."""
        self._processes.show_stack(worker)

    def receive_last_messages(self, worker: str, receive: Callable[[], None]) -> None:
        """Call `receive` for as long as messages may be under way from a worker that has ended."""
        self._processes.receive_last_messages(
            receive, lambda: worker not in self.registry.alive, within_s=LAST_MESSAGES_S, clock=self._clock
        )

    def ended(self) -> list[Exit]:
        """Return workers that have ended unexpectedly; they still count, so that their last messages are received."""
        unexpected = []
        for ended in self.engine.poll():
            self._exited[ended.name] = ended.cause
            if self.registry[ended.name].status in (Status.LEAVING, Status.EXPELLED):
                self.registry.ended(ended.name, ended.cause)
            elif self.counts(ended.name):
                unexpected.append(ended)
        return unexpected

    def look_at_work(self, now: float) -> bool:
        """Look which of the silent workers work, so that they do not count as lost.

        Returns:
            Whether the network to the workers is in doubt; see `in_doubt`.
        """
        for worker, idle_s in self._work.look(self.engine, self.arrived, now).items():
            self.liveness.worked(worker, now - idle_s)
        return self.in_doubt(self.arrived, now) is not None
