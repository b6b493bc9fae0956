"""The coordinator: leads the processes of one job and tells its caller what happens.

It is driven by `poll`, owns no thread, and decides nothing about configurations: `scavenger.control` does, by
`launch`, `resize` and `release`. What membership and views follow from that is decided in
`scavenger.elastic`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from scavenger.elastic.barrier import Announce
from scavenger.elastic.membership import Membership, WorkerState
from scavenger.errors import (
    NonFiniteError,
    NotSupportedError,
    ScavengerError,
    TrainingCodeError,
    TrainingHungError,
    WorkersLostError,
)
from scavenger.train import messages as m
from scavenger.train.engine import Exit, ProcessEngine
from scavenger.train.memory import Block, Layout, create_block
from scavenger.train.wire import Router, new_keys

__all__ = ["Coordinator", "JobSource", "Lost", "Started", "Timeouts"]

_AGGREGATOR = "aggregator"
_MEMORY_SAMPLE_S = 0.5
_PROBE_ANSWER_S = 5.0
_STACK_DUMP_S = 0.5
_LAST_WORDS_S = 1.0  # a dead process's message may still be on its way through the sockets
_GRACE_S = 5.0
_QUIT_S = 10.0  # as long as a worker that is let go may take, since its time is paid for


@dataclass(frozen=True, slots=True)
class JobSource:
    """Where the training code is: `module:object` beside `job_dir`, and the seed it is built with."""

    train: str
    job_dir: Path
    seed: int
    threads: int


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a worker may take to start, and a step to be applied, before it counts as hung; seconds."""

    start_s: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Started:
    """A worker is ready to train; `setup_s` since its launch."""

    worker: str
    setup_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker died without an error of its code; the others go on."""

    worker: str
    cause: str


Event = m.StepReport | m.EpochReport | m.ViewInstalled | Started | Lost


class Coordinator:
    """Leads one job on one engine.

    Args:
        source: The training code.
        slots: Workers that may be launched over the whole job, at most.
        work_dir: For logs.
        timeouts: Limits on starting and on steps.
        clock: Monotonic seconds.

    Every method may raise a `ScavengerError` that ends the job; `close` must be called in any case.
    """

    def __init__(
        self,
        source: JobSource,
        *,
        slots: int,
        work_dir: Path,
        timeouts: Timeouts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._slots, self._timeouts, self._clock = source, slots, timeouts, clock
        self._context = zmq.Context()
        self._keys = new_keys()
        self._control = Router(self._context, self._keys)
        self._fd = create_block()
        self.engine = ProcessEngine(work_dir / "logs", self._fd)
        self.membership = Membership()
        self.manifest: m.Manifest | None = None
        self._layout: Layout | None = None
        self._aggregator_address = ""
        self._aggregator_keys = new_keys()
        self._greeted: list[str] = []
        self._seeding: str | None = None
        self._seeded = False
        self._launched_at: dict[str, float] = {}
        self._ended_at: dict[str, float] = {}
        self._progress_at = clock()
        self._paused = True
        self._probed_at: float | None = None
        self._memory_at = 0.0
        self.memory_bytes: dict[str, int] = {}
        self._events: list[Event] = []
        self._done: m.Done | None = None
        self._saved: m.Saved | None = None
        self._quitting: dict[str, float] = {}
        self._failed: set[str] = set()
        self._hung: dict[str, str] = {}
        self._unfreed: set[str] = set()

    # ---- what the caller wants -----------------------------------------------------------------------------

    def start(self, workers: int) -> None:
        """Start the aggregator and the first workers."""
        self.engine.launch(self._boot("aggregator", _AGGREGATOR))
        self.launch(workers)

    def launch(self, workers: int) -> tuple[str, ...]:
        """Start more workers; they warm up while the others train. Returns their names.

        Raises:
            WorkersLostError: If the job has used up its slots.
        """
        if len(self._launched_at) + workers > self._slots:
            raise WorkersLostError(f"{self._slots} workers may be started over the whole job, and no more")
        names = []
        for _ in range(workers):
            member = self.membership.launch()
            self.engine.launch(self._boot("worker", member.worker, member.slot))
            self._launched_at[member.worker] = self._clock()
            names.append(member.worker)
        return tuple(names)

    def resize(self, workers: int, global_batch_size: int, reason: str) -> None:
        """Train on K workers with batch B from the next step boundary on, with the workers that are ready."""
        self._announce(self.membership.resize(workers, global_batch_size, reason))

    def release(self, keep: int) -> tuple[str, ...]:
        """Let workers go that no view needs, newest first, until `keep` are alive. Returns the names."""
        if not self.membership.settled:
            return ()
        spare = len(self.membership.alive) - keep
        standby = self.membership.workers(WorkerState.STANDBY)
        leaving = standby[len(standby) - max(0, min(spare, len(standby))) :]
        for worker in leaving:
            self._control.send(worker, m.Quit())
            self.membership.release(worker)
            self._quitting[worker] = self._clock()
        return leaving

    def verdict(self, *, stop: bool, keep_best: bool) -> None:
        """The answer to an `EpochReport`, for which the job waits."""
        self._paused = stop
        self._progress_at = self._clock()
        self._control.send(_AGGREGATOR, m.VerdictGiven(stop=stop, keep_best=keep_best))

    def finish(self, path: Path, *, best: bool, within_s: float | None = None) -> None:
        """End training with the last applied step, and have a worker write the model; waits for it.

        Args:
            path: Where the `.keras` file goes.
            best: Write the weights that a verdict last said to keep; the last ones where no verdict did.
            within_s: How long it may take; as long as a worker may take to start where None.

        Raises:
            WorkersLostError: If no worker is left to write it, or no aggregator to write it from.
            TrainingError: If writing fails, or takes longer.
        """
        self._paused = True
        self._done = self._saved = None
        if _AGGREGATOR not in self.engine.running:
            raise WorkersLostError("the aggregator, which held the weights, is gone")
        deadline = self._clock() + (self._timeouts.start_s if within_s is None else within_s)
        self._control.send(_AGGREGATOR, m.Finish(best=best))
        self._wait(lambda: self._done is not None, "the aggregator did not finish in time", deadline)
        assert self._done is not None
        step = self._done.step
        while self._saved is None:
            able = self.membership.workers(WorkerState.TRAINING, WorkerState.STANDBY)
            if not able:
                raise WorkersLostError("no worker is left to write the model")
            writer = able[0]
            self._control.send(writer, m.Save(str(path.resolve()), step))
            self._wait(
                lambda writer=writer: (
                    self._saved is not None or self.membership.state(writer) is WorkerState.GONE
                ),
                "the model was not written in time",
                deadline,
            )

    def close(self, *, grace_s: float = _GRACE_S) -> None:
        """End every process and free everything; safe to call twice.

        Args:
            grace_s: How long processes may take to end by themselves.
        """
        starting = set(self.membership.workers(WorkerState.STARTING))
        if not self._aggregator_address:
            starting.add(_AGGREGATOR)
        with contextlib.suppress(zmq.ZMQError):
            for name in self.engine.running:
                if name in starting:  # it would not hear for seconds, and holds nothing
                    self.engine.kill(name)
                else:
                    self._control.send(name, m.Quit())
        try:
            self.engine.stop(grace_s=grace_s)
        finally:
            self.engine.close()
            for name in self._launched_at:
                self._ended_at.setdefault(name, self._clock())
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self._control.close()
                self._context.term()

    # ---- what the caller may know --------------------------------------------------------------------------

    @property
    def starting(self) -> int:
        """Workers that are warming up."""
        return self.membership.count(WorkerState.STARTING)

    @property
    def ready(self) -> int:
        """Workers that train or could."""
        return self.membership.count(WorkerState.STANDBY, WorkerState.TRAINING)

    @property
    def ending(self) -> bool:
        """Some worker has been let go but has not ended yet."""
        return bool(self._quitting)

    def processes(self) -> dict[str, tuple[str, int, str]]:
        """Role, process id and state of every process that the job has had, by name."""
        running = set(self.engine.running)
        found = {_AGGREGATOR: ("aggregator", self.engine.pid(_AGGREGATOR), "training")}
        if _AGGREGATOR not in running:
            found[_AGGREGATOR] = ("aggregator", self.engine.pid(_AGGREGATOR), "gone")
        words = {
            WorkerState.STARTING: "starting",
            WorkerState.STANDBY: "ready",
            WorkerState.TRAINING: "training",
        }
        for worker in self._launched_at:
            state = words.get(self.membership.state(worker), "gone")
            if worker in self._quitting:
                state = "leaving"
            found[worker] = ("worker", self.engine.pid(worker), state if worker in running else "gone")
        return found

    @property
    def existing(self) -> int:
        """Workers that are paid for: also those that were let go but have not ended yet."""
        return len(self._launched_at.keys() - self._ended_at.keys())

    def worker_seconds(self) -> float:
        """Time that workers have existed, summed: what a cloud would charge for."""
        now = self._clock()
        return sum(self._ended_at.get(name, now) - at for name, at in self._launched_at.items())

    # ---- the loop ------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Event]:
        """Take what has arrived, waiting at most `timeout_s` for something; returns it in order.

        Raises:
            TrainingError: The training code failed, hangs, or yields NaN.
            NotSupportedError: The model or data cannot be trained on exactly.
            WorkersLostError: The aggregator died.
        """
        self._control.socket.poll(int(timeout_s * 1000))
        for peer, message in self._control.receive():
            self._take(peer, message)
        for ended in self.engine.poll():
            self._ended(ended)
        self._watch()
        events, self._events = self._events, []
        return events

    def _wait(self, condition: Callable[[], bool], complaint: str, deadline: float) -> None:
        while not condition():
            if self._clock() > deadline:
                raise TrainingHungError(complaint)
            self._events = self.poll(0.05) + self._events

    # ---- messages ------------------------------------------------------------------------------------------

    def _take(self, peer: str, message: m.Message) -> None:
        match message:
            case m.Hello() if self.membership.state(peer) is WorkerState.STARTING:  # the dead may speak late
                self._hello(peer, message.manifest)
            case m.AggregatorReady() if peer == _AGGREGATOR:
                self._aggregator_address = message.address
                self._prepare_greeted()
            case m.Seeded() if peer == self._seeding and not self._seeded and self.manifest is not None:
                self._seeded = True
                self._control.send(_AGGREGATOR, m.Initialise(self.manifest, self._slots))
                self._prepare_greeted()
            case m.Ready() if self.membership.state(peer) is WorkerState.STARTING:
                self._progress_at = self._clock()
                self._events.append(Started(peer, self._clock() - self._launched_at[peer]))
                self._announce(self.membership.ready(peer))
            case m.StepReport():
                self._progress_at, self._probed_at = self._clock(), None
                self._events.append(message)
            case m.EpochReport():
                self._paused, self._probed_at = True, None
                self._events.append(message)
            case m.ViewInstalled():
                self._paused = False
                self._progress_at, self._probed_at = self._clock(), None
                self.membership.installed(message.view)
                self._free_slots()
                self._events.append(message)
            case m.Missing():
                self._blame(message)
            case m.Done():
                self._done = message
            case m.Saved():
                self._saved = message
            case m.Failed():
                self._fail(peer, message)
            case _:
                pass

    def _hello(self, worker: str, manifest: m.Manifest) -> None:
        if self.manifest is None:
            self.manifest = manifest
            self._layout = Layout.of(manifest, self._slots)
        elif manifest != self.manifest:
            raise TrainingCodeError(
                f"{worker} built another model or data set than the workers before it: the training module "
                "must give every worker the same (check for randomness in shapes or data)"
            )
        self._greeted.append(worker)
        self._prepare_greeted()

    def _prepare_greeted(self) -> None:
        """Let workers map the block and warm up: first one alone, whose initial weights become the job's."""
        if not self._aggregator_address or self.manifest is None:
            return
        if not self._seeded and self._seeding is not None:
            return
        while self._greeted:
            worker = self._greeted.pop(0)
            initial = not self._seeded
            self._control.send(
                worker,
                m.Prepare(
                    manifest=self.manifest,
                    slots=self._slots,
                    aggregator=self._aggregator_address,
                    aggregator_key=self._aggregator_keys[0].decode(),
                    initial=initial,
                ),
            )
            if initial:
                self._seeding = worker
                return

    def _announce(self, announce: Announce | None) -> None:
        if announce is None:
            return
        self._control.send(
            _AGGREGATOR,
            m.Announcement(
                number=announce.number,
                members=tuple(m.MemberBody(member.worker, member.slot) for member in announce.members),
                global_batch_size=announce.global_batch_size,
                urgent=announce.urgent,
                reason=announce.reason,
            ),
        )

    def _fail(self, process: str, message: m.Failed) -> None:
        self._failed.add(process)
        text = f"{message.message} (log: {self.engine.log(process)})"
        match message.kind:
            case "code":
                raise TrainingCodeError(f"the training code failed: {text}")
            case "unsupported":
                raise NotSupportedError(message.message)
            case "nonfinite":
                raise NonFiniteError(message.message)
            case _:
                raise ScavengerError(f"{process} failed: {text}")

    # ---- losses and hangs ----------------------------------------------------------------------------------

    def _ended(self, ended: Exit) -> None:
        name, cause = ended.name, self._hung.get(ended.name, ended.cause)
        self._ended_at[name] = self._clock()
        if name != _AGGREGATOR:
            self._unfreed.add(name)
        if self._quitting.pop(name, None) is not None:
            self._free_slots()
            return
        if name != _AGGREGATOR:
            self._announce(self.membership.lost(name))
            self._free_slots()
            self._events.append(Lost(name, cause))
        self._progress_at = self._clock()
        if name in self._greeted:
            self._greeted.remove(name)
        if name == self._seeding and not self._seeded:
            self._seeding = None
            self._prepare_greeted()
        if name in self._failed:
            return
        self._hear_last_words(name, ended)
        if name == _AGGREGATOR:
            raise WorkersLostError(f"the aggregator {cause} (log: {self.engine.log(name)})")
        if ended.status >= 0:
            raise TrainingCodeError(
                f"the training code ended {name}, which {cause} (log: {self.engine.log(name)})"
            )

    def _hear_last_words(self, name: str, ended: Exit) -> None:
        """A process that ended by itself has said why; one that was killed has not."""
        deadline = self._clock() + (_LAST_WORDS_S if ended.status > 0 else 0.0)
        while True:
            for peer, message in self._control.receive():
                self._take(peer, message)
            left = deadline - self._clock()
            if name in self._failed or left <= 0:
                return
            self._control.socket.poll(max(1, int(left * 1000)))

    def _free_slots(self) -> None:
        """Give back the memory of workers whose gradients no step can need any more."""
        for worker in [name for name in self._unfreed if self.membership.forgotten(name)]:
            self._unfreed.discard(worker)
            if self._layout is not None and self._fd >= 0:
                Block(self._fd, self._layout).release_slot(int(worker[1:]))

    def _watch(self) -> None:
        """Notice workers that start or compute for ever, and sample memory."""
        now = self._clock()
        if now - self._memory_at >= _MEMORY_SAMPLE_S:
            self._memory_at = now
            self.memory_bytes |= self.engine.sample_memory()
            self.engine.cap_logs()
        for worker, since in self._quitting.items():
            if now - since > _QUIT_S:
                self.engine.kill(worker)
        for worker in self.membership.workers(WorkerState.STARTING):
            if now - self._launched_at[worker] > self._timeouts.start_s and worker not in self._hung:
                self._hung[worker] = f"did not get ready within {self._timeouts.start_s:.0f} s (limits.start)"
                self._end_hung(worker)
                if not self.ready:  # where others are, the code is not to blame
                    raise TrainingHungError(
                        f"{worker} {self._hung[worker]}; its stack is in {self.engine.log(worker)}"
                    )
        if self._paused or self.membership.count(WorkerState.TRAINING) == 0:
            return
        if self._probed_at is None and now - self._progress_at > self._timeouts.step_s:
            self._probed_at = now
            self._control.send(_AGGREGATOR, m.Probe())
        elif self._probed_at is not None and now - self._probed_at > _PROBE_ANSWER_S:
            raise TrainingHungError(f"the aggregator does not answer (log: {self.engine.log(_AGGREGATOR)})")

    def _blame(self, message: m.Missing) -> None:
        """Some members did not contribute in time: end them; if all are to blame, it is the training code."""
        if self._probed_at is None or not message.workers:
            self._probed_at, self._progress_at = None, self._clock()
            return
        for worker in message.workers:
            self._hung[worker] = (
                f"did not do its part of a step or evaluation within {self._timeouts.step_s:.0f} s (limits.step)"
            )
            self._end_hung(worker)
        self._probed_at, self._progress_at = None, self._clock()
        if len(message.workers) == self.membership.count(WorkerState.TRAINING):
            logs = self.engine.log(message.workers[0])
            raise TrainingHungError(
                f"step {message.step}, or the evaluation before it, was not done within "
                f"{self._timeouts.step_s:.0f} s (limits.step); the "
                f"stack of {message.workers[0]} is in {logs}"
            )

    def _end_hung(self, worker: str) -> None:
        self.engine.show_stack(worker)
        time.sleep(_STACK_DUMP_S)  # for the dump to be written; the job is stalled anyway
        self.engine.kill(worker)

    def _boot(self, role: str, name: str, slot: int = -1) -> m.Bootstrap:
        keys: Any = self._aggregator_keys if role == "aggregator" else new_keys()
        return m.Bootstrap(
            role=role,
            name=name,
            coordinator=self._control.address,
            server_key=self._keys[0].decode(),
            public_key=keys[0].decode(),
            secret_key=keys[1].decode(),
            memory_fd=self._fd,
            slot=slot,
            train=self._source.train,
            job_dir=str(self._source.job_dir.resolve()),
            seed=self._source.seed,
            threads=self._source.threads,
        )
