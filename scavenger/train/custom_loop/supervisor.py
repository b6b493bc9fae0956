"""The worker processes of a training loop of one's own: starts and ends them, and carries what is said."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import zmq

from scavenger.elastic.liveness import Liveness
from scavenger.elastic.membership import worker_name
from scavenger.errors import MessageError
from scavenger.train.custom_loop import messages as lm
from scavenger.train.engines.base import Engine, Exit
from scavenger.train.job_source import JobSource
from scavenger.train.names import BEATING
from scavenger.train.supervisor.process_configurations import ProcessConfigurations
from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.messages import Beat, Failed
from scavenger.train.transport.sockets import Router, new_keys

__all__ = ["LoopSupervisor"]

_STACK_DUMP_S = 0.5
_QUIT_S = 30.0  # what a worker that is let go may take for the rest of its step


class LoopSupervisor:
    """Decides nothing: who counts as lost, and who is to leave, it is told.

    Args:
        source: The training function.
        log_dir: Where each worker's output goes.
        first: How many names have been given before, to workers of a life that a checkpoint remembers.
        engine: Where processes run.
        clock: Monotonic seconds.

    Attributes:
        liveness: Of the workers that have arrived; hears of their beats.
    """

    def __init__(
        self,
        source: JobSource,
        *,
        log_dir: Path,
        first: int,
        engine: Callable[[Path, int], Engine],
        clock: Callable[[], float],
    ) -> None:
        self._first, self._clock = first, clock
        self._context = zmq.Context()
        keys = new_keys()
        self._door = Authenticator(self._context)
        self._hub = Router(self._context, keys, door=self._door)
        self._bootstraps = ProcessConfigurations(
            source, hub=self._hub.address, server_key=keys[0], admit=self._door.admit
        )
        self.engine = engine(log_dir, -1)
        self.liveness = Liveness()
        self._launched_at: dict[str, float] = {}
        self._hosts: dict[str, str] = {}
        self._leaving: dict[str, float] = {}
        self._gone: set[str] = set()
        self._closed = False

    # ---- what is -------------------------------------------------------------------------------------------

    @property
    def launched(self) -> int:
        """Workers that the job has had; the number of the next one."""
        return self._first + len(self._launched_at)

    @property
    def staying(self) -> tuple[str, ...]:
        """Workers that live, and were not told to leave."""
        return tuple(name for name in self._launched_at if self.counts(name) and name not in self._leaving)

    @property
    def starting(self) -> tuple[str, ...]:
        """Those that have not arrived yet."""
        return tuple(name for name in self.staying if name not in self._hosts)

    @property
    def arrived(self) -> tuple[str, ...]:
        """Those that have."""
        return tuple(name for name in self.staying if name in self._hosts)

    def counts(self, name: str) -> bool:
        """It is a worker, and was not given up: what others say is passed over."""
        return name in self._launched_at and name not in self._gone

    def host(self, worker: str) -> str:
        """Where it arrived."""
        return self._hosts[worker]

    def age_s(self, worker: str) -> float:
        """Seconds since its launch."""
        return self._clock() - self._launched_at[worker]

    def log(self, worker: str) -> Path:
        return self.engine.log(worker)

    # ---- what is said --------------------------------------------------------------------------------------

    def send(self, worker: str, message: lm.LoopMessage, frames: Sequence[Any] = ()) -> None:
        """Queue a message; one for a worker that is gone is dropped."""
        self._hub.pass_on(worker, lm.encode(message), *frames)

    def wait(self, timeout_s: float) -> None:
        """Until something has arrived, or time is up."""
        self._hub.wait(timeout_s)

    def take(self) -> Iterator[tuple[str, lm.LoopMessage | Failed, list[bytes]]]:
        """What has arrived from workers that count, with its payload."""
        for peer, frames in self._hub.take():
            name = peer.removesuffix(BEATING)
            if not self.counts(name) or not frames:
                continue
            with contextlib.suppress(MessageError):
                message = lm.decode(frames[0])
                if not isinstance(message, Beat):
                    yield name, message, frames[1:]
                elif name in self._hosts and name not in self._leaving:
                    self.liveness.heard(name, self._clock())

    # ---- workers come and go -------------------------------------------------------------------------------

    def launch(self) -> str:
        """Start a worker; returns its name."""
        name = worker_name(self.launched)
        self.engine.launch(self._bootstraps.of("loop", name))
        self._launched_at[name] = self._clock()
        return name

    def arrive(self, worker: str) -> None:
        """It has built its replica: from now on its silence means something."""
        self._hosts[worker] = self.engine.host(worker)
        self.liveness.heard(worker, self._clock())

    def leave(self, worker: str, reason: str) -> None:
        """Tell a worker to end."""
        self._leaving.setdefault(worker, self._clock())
        self.liveness.forget(worker)
        self.send(worker, lm.Leave(reason))

    def give_up(self, worker: str) -> None:
        """A worker is lost: end it, so that it is, and hear it no more."""
        self.engine.kill(worker)
        self._gone.add(worker)
        self.liveness.forget(worker)

    def show_stack(self, worker: str) -> None:
        """Have it write where it stands to its log."""
        self.engine.show_stack(worker)
        time.sleep(_STACK_DUMP_S)  # for the dump to be written; the job is stalled anyway

    def ended(self) -> list[Exit]:
        """Workers that have ended though nobody told them to; they still count, for their last words."""
        unexpected = []
        for ended in self.engine.poll():
            if ended.name in self._leaving:
                self._gone.add(ended.name)
            elif self.counts(ended.name):
                unexpected.append(ended)
        return unexpected

    def tidy_up(self) -> None:
        """End those that were told to leave and do not; keep logs within bounds."""
        now = self._clock()
        for worker, since in self._leaving.items():
            if now - since > _QUIT_S and worker not in self._gone:
                self.engine.kill(worker)
        self.engine.cap_logs()

    def close(self) -> None:
        """End every process and free everything; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self.engine.kill_all()
            self.engine.close()
        finally:
            self._hub.close()
            self._door.close()
            self._context.term()
