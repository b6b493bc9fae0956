"""The processes of one job: starts them, passes on what they say to each other, and tells its owner what happens.

It is driven by `poll` and owns no thread. It is the hub through which the coordinator hears and reaches the others,
and the one that starts another coordinator or aggregator where one has died. It decides nothing about views: the
coordinator does; nothing about configurations: `scavenger.control` does, by `launch`, `resize` and `release`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import zmq

from scavenger.elastic.liveness import HEARTBEAT_S, SILENT_S, Liveness
from scavenger.elastic.membership import worker_name, worker_slot
from scavenger.elastic.quarantine import cause_of_death
from scavenger.errors import (
    NonFiniteError,
    NotSupportedError,
    ScavengerError,
    TrainingCodeError,
    TrainingHungError,
    WorkersLostError,
)
from scavenger.train import messages as m
from scavenger.train.engine import ProcessEngine
from scavenger.train.engine_base import Engine, Exit
from scavenger.train.memory import Block, Layout, create_block
from scavenger.train.names import BEATING, aggregator_name, coordinator_name
from scavenger.train.wire import EVERYBODY, Keys, Router, new_keys

__all__ = [
    "Crew",
    "JobSource",
    "Leaving",
    "Lost",
    "ProcessState",
    "Recovered",
    "RolledBack",
    "Started",
    "Timeouts",
]

_MEMORY_SAMPLE_S = 0.5
_STACK_DUMP_S = 0.5
_LAST_WORDS_S = 1.0  # a dead process's message may still be on its way through the sockets
_GRACE_S = 5.0
_QUIT_S = 10.0  # as long as a worker that is let go may take, since its time is paid for
_RESTARTS_MAX = 5
_RESTARTS_WITHIN_S = 60.0


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
class Leaving:
    """A worker that no view needs was told to end."""

    worker: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker died without an error of its code; the others go on.

    `crashed`: by its own fault, so that what it computed may have done it.
    """

    worker: str
    cause: str
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class Recovered:
    """An aggregator or the coordinator died, and another one has taken its place."""

    process: str
    cause: str
    took_s: float


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A part of the model was lost with its memory: the job goes on after `step`, and later ones are done again.

    Reports of steps and epochs after it, and what was concluded from them, count no more.
    """

    step: int
    cause: str
    took_s: float


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process of the job."""

    name: str
    role: str
    pid: int
    host: str
    state: str
    view: int
    step: int
    detail: str = ""


Event = (
    m.StepReport
    | m.EpochReport
    | m.ViewInstalled
    | m.CheckpointWritten
    | m.CheckpointFailed
    | Started
    | Leaving
    | Lost
    | Recovered
    | RolledBack
    | m.Quarantined
)


class Crew:
    """Leads the processes of one job on one engine.

    Args:
        source: The training code.
        work_dir: For logs.
        timeouts: Limits on starting and on steps.
        aggregators: How many share the model.
        restore: The checkpoint to begin with; None for a new model.
        checkpoint: Where and when to write checkpoints; None for none.
        engine: Where processes run, made from the folder for logs and the block; None for this machine.
        clock: Monotonic seconds.

    Every method may raise a `ScavengerError` that ends the job; `close` must be called in any case.
    """

    def __init__(
        self,
        source: JobSource,
        *,
        work_dir: Path,
        timeouts: Timeouts,
        aggregators: int = 1,
        restore: m.Restore | None = None,
        checkpoint: m.CheckpointPlan | None = None,
        engine: Callable[[Path, int], Engine] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._timeouts, self._clock = source, timeouts, clock
        self._restore, self._checkpoint = restore, checkpoint
        self._context = zmq.Context()
        self._keys = new_keys()
        with contextlib.ExitStack() as undo:
            self._fd = create_block()
            undo.callback(os.close, self._fd)
            self.engine: Engine = (engine or ProcessEngine)(work_dir / "logs", self._fd)
            undo.callback(self.engine.close)
            self._hub = Router(self._context, self._keys, self.engine.leader_host)
            undo.pop_all()
        self._aggregators = tuple(aggregator_name(index) for index in range(aggregators))
        self._data_keys: dict[str, Keys] = {name: new_keys() for name in self._aggregators}
        self._token = 0
        self._liveness = Liveness()
        self.manifest: m.Manifest | None = None
        self._launched_at: dict[str, float] = {}
        self._ended_at: dict[str, float] = {}
        self._roster = m.Roster(0, {}, False, 0, ())
        self._beats: dict[str, m.Beat] = {}
        self._command = 0
        self._resize: m.Resize | None = None
        self._memory_at = 0.0
        self._suspected_at = 0.0
        self.memory_bytes: dict[str, int] = {}
        self.quarantined: tuple[int, ...] = ()
        """Samples that are left out, by their indices in the data."""
        self._events: list[Event] = []
        self._done: m.Done | None = None
        self._saved: m.Saved | None = None
        self._quitting: dict[str, float] = {}
        self._failed: set[str] = set()
        self._expelled: dict[str, str] = {}
        self._recovering: dict[str, tuple[str, float]] = {}
        self._restarts: dict[str, deque[float]] = {}
        self._begun = self._checkpointed = False
        self._rewinding: dict[str, int | None] = {}
        self._rewound_by: tuple[str, float] = ("", 0.0)
        self._commanded: set[str] = set()
        self._unheard: list[tuple[str, bytes]] = []
        self._incoming: tuple[str, IO[bytes]] | None = None
        self._unfreed: set[str] = set()
        self._causes: dict[str, str] = {}
        self._ready: set[str] = set()
        self._closing = False

    # ---- what the caller wants -----------------------------------------------------------------------------

    def start(self, workers: int) -> None:
        """Start the coordinator, the aggregators and the first workers."""
        self._start_coordinator()
        for name in self._aggregators:
            self._start_aggregator(name)
        self.launch(workers)

    def launch(self, workers: int) -> tuple[str, ...]:
        """Start more workers; they warm up while the others train. Returns their names.

        Raises:
            WorkersLostError: If the job has had as many as it may ever have.
        """
        names = []
        for _ in range(workers):
            name = worker_name(len(self._launched_at))
            if self.manifest is not None and len(self._launched_at) >= self._layout.workers_max:
                raise WorkersLostError(f"a job has at most {self._layout.workers_max} workers in all")
            self.engine.launch(self._boot("worker", name))
            self._launched_at[name] = self._clock()
            self._to_coordinator(m.Launched(name))
            names.append(name)
        return tuple(names)

    def resize(
        self,
        workers: int,
        global_batch_size: int,
        reason: str,
        *,
        without: Collection[str] = (),
        lr_scale: float = 1.0,
    ) -> None:
        """Train on K workers with batch B from the next step boundary on, with the workers that are ready.

        Args:
            without: Workers that leave, and are let go; with as many ready ones, that is a migration.
            lr_scale: By what the optimizer's learning rate is multiplied.
        """
        self._command += 1
        self._resize = m.Resize(self._command, workers, global_batch_size, reason, tuple(without), lr_scale)
        self._to_coordinator(self._resize)

    def release(self, keep: int) -> None:
        """Have workers let go that no view needs, newest first, until `keep` are alive; `Leaving` tells which."""
        if self.settled and len(self.alive) > keep:
            self._command += 1
            self._to_coordinator(m.Release(self._command, keep))

    def verdict(self, epoch: int, *, stop: bool, keep_best: bool) -> None:
        """The answer to an `EpochReport`, for which the job waits."""
        self._hub.send(self._aggregators[0], m.VerdictGiven(epoch, stop, keep_best))

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
        self._closing = True
        self._done = self._saved = None
        gone = [name for name in self._aggregators if name not in self.engine.running]
        if gone:
            raise WorkersLostError(f"{gone[0]}, which held the weights, is gone")
        deadline = self._clock() + (self._timeouts.start_s if within_s is None else within_s)
        self._hub.send(self._aggregators[0], m.Finish(best=best))
        self._wait(lambda: self._done is not None, "the aggregator did not finish in time", deadline)
        assert self._done is not None
        step = self._done.step
        while self._saved is None:
            able = [name for name in self.alive if name in self._ready and name not in self._quitting]
            if not able:
                raise WorkersLostError("no worker is left to write the model")
            self._save(able[0], path.resolve(), step, deadline)

    def _save(self, writer: str, path: Path, step: int, deadline: float) -> None:
        """Have a worker write the model to `path`, or send it where that is another host's."""

        def over() -> bool:
            return self._saved is not None or writer not in self.engine.running

        complaint = "the model was not written in time"
        if self.engine.host(writer) == self.engine.leader_host:
            self._hub.send(writer, m.Save(str(path), step))
            self._wait(over, complaint, deadline)
            return
        partial = path.with_name(f"{path.name}.part")
        with partial.open("wb") as file:
            self._incoming = writer, file
            self._hub.send(writer, m.Save("", step))
            try:
                self._wait(over, complaint, deadline)
            finally:
                self._incoming = None
        if self._saved is not None:
            partial.replace(path)
        else:
            partial.unlink()

    def close(self, *, grace_s: float = _GRACE_S) -> None:
        """End every process and free everything; safe to call twice.

        Args:
            grace_s: How long processes may take to end by themselves.
        """
        self._closing = True
        with contextlib.suppress(zmq.ZMQError):
            for name in self.engine.running:
                if name == self._coordinator:
                    self._to_coordinator(m.Quit())
                elif name in self._launched_at and name not in self._ready:
                    self.engine.kill(name)  # it would not hear for seconds, and holds nothing
                else:
                    self._hub.send(name, m.Quit())
        try:
            self.engine.stop(grace_s=grace_s)
        finally:
            self.engine.close()
            for name in self._launched_at:
                self._ended_at.setdefault(name, self._clock())
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self._hub.close()
                self._context.term()

    # ---- what the caller may know --------------------------------------------------------------------------

    @property
    def alive(self) -> tuple[str, ...]:
        """Workers that are there to stay, also those that still start."""
        return tuple(
            name
            for name in self._launched_at
            if name not in self._ended_at and name not in self._quitting and name not in self._expelled
        )

    def workers(self, *states: str) -> tuple[str, ...]:
        """Names of living workers in any of the states `starting`, `ready` and `training`."""
        return tuple(name for name in self.alive if self._state(name) in states)

    @property
    def starting(self) -> int:
        """Workers that are warming up."""
        return len(self.workers("starting"))

    @property
    def ready(self) -> int:
        """Workers that train or could."""
        return len(self.workers("ready", "training"))

    @property
    def settled(self) -> bool:
        """What was last asked for has taken effect."""
        return self._roster.settled and self._roster.command == self._command

    @property
    def ending(self) -> bool:
        """Some worker has been let go but has not ended yet."""
        return bool(self._quitting)

    @property
    def existing(self) -> int:
        """Workers that are paid for: also those that were let go but have not ended yet."""
        return len(self._launched_at.keys() - self._ended_at.keys())

    def processes(self) -> tuple[ProcessState, ...]:
        """Every process that the job has had."""
        running = set(self.engine.running)
        roles = [(self._coordinator, "coordinator")] if self._token else []
        roles += [(coordinator_name(token), "coordinator") for token in range(1, self._token)]
        roles += [(name, "aggregator") for name in self._aggregators]
        roles += [(name, "worker") for name in self._launched_at]
        found = []
        sequencer = self._beats.get(self._aggregators[0], m.Beat())
        for name, role in roles:
            state = self._state(name) if role == "worker" else "training"
            beat = self._beats.get(name, m.Beat())
            if role != "worker" and name in running:
                # a view is of all of them, and only the sequencer tells which it is
                step = sequencer.step if role == "coordinator" else beat.step
                beat = m.Beat(step, max(beat.view, sequencer.view))
            found.append(
                ProcessState(
                    name=name,
                    role=role,
                    pid=self.engine.pid(name),
                    host=self.engine.host(name),
                    state=state if name in running else self._fate(name),
                    view=beat.view,
                    step=beat.step,
                    detail=self._causes.get(name, ""),
                )
            )
        return tuple(found)

    def _state(self, worker: str) -> str:
        return "leaving" if worker in self._quitting else self._roster.states.get(worker, "starting")

    def _fate(self, name: str) -> str:
        if name in self._failed:
            return "failed"
        return "lost" if name in self._causes else "gone"

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
            WorkersLostError: An aggregator, or the coordinator, dies again and again.
        """
        self._hub.socket.poll(int(timeout_s * 1000))
        self._hear()
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

    def _hear(self) -> None:
        for peer, frames in self._hub.take():
            with contextlib.suppress(msgspec.DecodeError, ValueError):
                if peer.startswith("coordinator"):
                    self._from_coordinator(peer, *frames)
                else:
                    self._from_process(peer, *frames)

    def _from_process(self, peer: str, body: bytes) -> None:
        message = m.decode(body)
        match message:
            case m.Beat():
                name = peer.removesuffix(BEATING)
                before = self._beats.get(name, m.Beat())
                view = max(before.view, message.view)
                self._beats[name] = msgspec.structs.replace(message, view=view)
            case m.StepReport() | m.EpochReport() | m.CheckpointWritten() | m.CheckpointFailed():
                self._checkpointed = self._checkpointed or isinstance(message, m.CheckpointWritten)
                self._events.append(message)
                return
            case m.Quarantined():
                self.quarantined = tuple(sorted({*self.quarantined, *message.samples}))
                self._events.append(message)
                return
            case m.SavedPart():
                if self._incoming is not None and self._incoming[0] == peer:
                    self._incoming[1].seek(message.offset)
                    self._incoming[1].write(message.data)
                return
            case m.Done():
                self._done = message
                return
            case m.Saved():
                self._saved = message
                return
            case m.Failed():
                self._fail(peer, message)
                return
            case m.Hello() | m.Present() if self.manifest is None:
                self.manifest = message.manifest
                self._layout = Layout.of(message.manifest, len(self._aggregators))
            case m.Ready() if peer in self._launched_at and peer not in self._ready:
                self._ready.add(peer)
                self._events.append(Started(peer, self._clock() - self._launched_at[peer]))
            case m.ViewInstalled():
                self._events.append(message)
            case m.Initialised():
                self._initialised(peer, message)
            case _:
                pass
        if self._token == 1 and self._coordinator not in self._beats:
            # the first one asks nobody, and may start after those that speak to it
            self._unheard.append((peer, body))
        else:
            self._hub.pass_on(self._coordinator, peer.encode(), body)

    def _from_coordinator(self, peer: str, target: bytes, body: bytes) -> None:
        if peer != self._coordinator:
            return  # it was replaced: whatever it still wants counts no more
        self._liveness.heard(peer, self._clock())
        name = target.decode()
        if name == EVERYBODY:
            for process in self.engine.running:
                if not process.startswith("coordinator"):
                    self._hub.pass_on(process, body)
            return
        if name:
            self._hub.pass_on(name, body)
            return
        message = m.decode(body)
        match message:
            case m.Beat() if peer not in self._beats:
                self._beats[peer] = message
                self._to_coordinator(self._brief())
                for process, said in self._unheard:
                    self._hub.pass_on(peer, process.encode(), said)
                self._unheard.clear()
            case m.Roster():
                self._take_roster(message)
            case m.Expel():
                self._expel(message)
            case m.RollBack():
                self._roll_back(message.cause)
            case m.Failed():
                self._fail(peer, message)
            case _:
                pass

    def _take_roster(self, roster: m.Roster) -> None:
        if self._coordinator in self._recovering:
            self._recovered(self._coordinator)
        self._roster = roster
        for name, state in roster.states.items():
            if state == "leaving" and name not in self._quitting and name not in self._ended_at:
                self._quitting[name] = self._clock()
                self._events.append(Leaving(name))
        for name in roster.forgotten:
            if name in self._unfreed:
                # nobody will read its gradients any more
                self._unfreed.discard(name)
                if self.manifest is not None and self._fd >= 0:
                    Block(self._fd, self._layout).release_slots(worker_slot(name))
                for aggregator in self._aggregators:
                    self._hub.send(aggregator, m.Forget(name))

    def _to_coordinator(self, message: m.Message) -> None:
        self._hub.pass_on(self._coordinator, b"", m.encode(message))

    def _brief(self) -> m.Brief:
        return m.Brief(
            token=self._token,
            workers=self.alive,
            aggregators=self._aggregators,
            start_s=self._timeouts.start_s,
            step_s=self._timeouts.step_s,
            restore=self._restore,
            checkpoint=self._checkpoint,
            resize=self._resize,
            command=self._command,
            number=self._roster.number,
            begun=self._begun,
            rewinding=tuple(i for i, name in enumerate(self._aggregators) if name in self._rewinding),
            quarantined=self.quarantined,
        )

    def _fail(self, process: str, message: m.Failed) -> None:
        self._failed.add(process)
        text = f"{message.message} (log: {self.engine.log(process)})"
        match message.kind:
            case "code":
                raise TrainingCodeError(f"the training code failed: {text}")
            case "mismatch" | "data":
                raise TrainingCodeError(message.message)
            case "unsupported":
                raise NotSupportedError(message.message)
            case "nonfinite":
                raise NonFiniteError(message.message)
            case "restore":
                raise ScavengerError(message.message)
            case _:
                raise ScavengerError(f"{process} failed: {text}")

    # ---- losses, hangs and recoveries ----------------------------------------------------------------------

    def _expel(self, message: m.Expel) -> None:
        """The coordinator counts a process as lost: end it, so that it is."""
        name = message.name
        if name not in self.engine.running:
            return
        self._expelled[name] = message.cause
        if message.hung:
            self.engine.show_stack(name)
            time.sleep(_STACK_DUMP_S)  # for the dump to be written; the job is stalled anyway
        self.engine.kill(name)
        if message.fatal:
            raise TrainingHungError(f"{message.fatal}; the stack of {name} is in {self.engine.log(name)}")

    def _ended(self, ended: Exit) -> None:
        name = ended.name
        cause = self._expelled.get(name, ended.cause)
        if name not in self._quitting and not self._closing:
            self._causes.setdefault(name, cause)
        self._beats.pop(name, None)
        if name in self._aggregators or name.startswith("coordinator"):
            self._replace(name, ended, cause)
            return
        self._ended_at[name] = self._clock()
        self._unfreed.add(name)
        told_to_go = name in self._quitting or name in self._expelled
        kind = cause_of_death(None if ended.reason else ended.status, ended_by_us=told_to_go)
        hosts = len({self.engine.host(worker) for worker in self._launched_at})
        self._to_coordinator(m.Ended(name, m.DeathBody(name, self.engine.host(name), kind.value, hosts)))
        if self._quitting.pop(name, None) is not None:
            return
        self._events.append(Lost(name, cause, crashed=kind.blames_data))
        if name in self._failed or name in self._expelled:
            return
        self._hear_last_words(name, ended)
        if ended.status >= 0:
            raise TrainingCodeError(
                f"the training code ended {name}, which {cause} (log: {self.engine.log(name)})"
            )

    def _replace(self, name: str, ended: Exit, cause: str) -> None:
        """An aggregator or the coordinator is gone: start another, which takes the job up where it stands."""
        self._expelled.pop(name, None)
        if name.startswith("coordinator") and name != self._coordinator:
            return  # one that was replaced already
        if name not in self._failed:
            self._hear_last_words(name, ended)
        if self._closing or name in self._failed:
            return
        role = "coordinator" if name.startswith("coordinator") else name
        now = self._clock()
        if name in self._commanded:
            self._commanded.discard(name)
        else:
            self._count_restart(name, role, cause, now)
        if role == "coordinator":
            self._start_coordinator()
            name = self._coordinator
        else:
            self._to_coordinator(m.Ended(name))
            self._start_aggregator(name)
        self._recovering[name] = (cause, now)

    def _count_restart(self, name: str, role: str, cause: str, now: float) -> None:
        restarts = self._restarts.setdefault(role, deque())
        while restarts and now - restarts[0] > _RESTARTS_WITHIN_S:
            restarts.popleft()
        if len(restarts) >= _RESTARTS_MAX:
            raise WorkersLostError(
                f"the {role} {cause}, for the {len(restarts) + 1}th time within {_RESTARTS_WITHIN_S:.0f} s "
                f"(log: {self.engine.log(name)})"
            )
        restarts.append(now)

    def _roll_back(self, cause: str) -> None:
        """Have every aggregator begin anew, so that all parts are as they were after one step."""
        if self._closing:
            return
        if self._checkpoint is not None and self._checkpointed:
            self._restore = m.Restore(self._checkpoint.url)
        self._rewinding = dict.fromkeys(self._aggregators)
        self._rewound_by = cause, self._clock()
        for name in self._aggregators:
            self._recovering.pop(name, None)  # what it may still say of its part counts no more
            if name in self.engine.running:
                self._commanded.add(name)
                self._expelled[name] = f"was started anew: {cause}"
                self.engine.kill(name)
        self._to_coordinator(m.Rewind(self._restore))

    def _initialised(self, name: str, message: m.Initialised) -> None:
        """An aggregator holds its part; once all do that had to begin anew, the job does."""
        self._begun = True
        if name in self._recovering:
            self._recovered(name)
            if name in self._rewinding:
                self._rewinding[name] = message.step
        steps = self._rewinding.values()
        if not steps or None in steps:
            return
        found = {step for step in steps if step is not None}
        if len(found) > 1:
            raise ScavengerError(f"aggregators began anew after different steps: {sorted(found)}")
        self._rewinding = {}
        cause, since = self._rewound_by
        self._events.append(RolledBack(found.pop(), cause, self._clock() - since))

    def _recovered(self, name: str) -> None:
        cause, since = self._recovering.pop(name)
        self._events.append(Recovered(name, cause, self._clock() - since))

    def _hear_last_words(self, name: str, ended: Exit) -> None:
        """A process that ended by itself has said why; one that was killed has not."""
        deadline = self._clock() + (_LAST_WORDS_S if ended.status > 0 else 0.0)
        while True:
            self._hear()
            left = deadline - self._clock()
            if name in self._failed or left <= 0:
                return
            self._hub.socket.poll(max(1, int(left * 1000)))

    def _watch(self) -> None:
        """Notice a coordinator that is silent and workers that do not end; sample memory."""
        now = self._clock()
        if now - self._memory_at >= _MEMORY_SAMPLE_S:
            self._memory_at = now
            self.memory_bytes |= self.engine.sample_memory()
            self.engine.cap_logs()
        for worker, since in self._quitting.items():
            if now - since > _QUIT_S:
                self.engine.kill(worker)
        if now - self._suspected_at >= HEARTBEAT_S:
            self._suspected_at = now
            self._to_coordinator(m.Beat())
            for name in self._liveness.suspects(now):
                self._liveness.forget(name)
                if name == self._coordinator and not self._closing:
                    # another leads before this one is ended; should it wake up meanwhile, nobody hears it
                    cause = self._causes[name] = f"was silent for {SILENT_S:.0f} s"
                    self._replace(name, Exit(name, 0), cause)
                    self.engine.kill(name)

    # ---- processes -----------------------------------------------------------------------------------------

    @property
    def _coordinator(self) -> str:
        return coordinator_name(self._token)

    def _start_coordinator(self) -> None:
        self._token += 1
        self._unheard.clear()
        self.engine.launch(self._boot("coordinator", self._coordinator))
        self._liveness.heard(self._coordinator, self._clock() + self._timeouts.start_s)

    def _start_aggregator(self, name: str) -> None:
        self._causes.pop(name, None)
        self.engine.launch(self._boot("aggregator", name))

    def _boot(self, role: str, name: str) -> m.Bootstrap:
        public, secret = new_keys()
        data: Any = self._data_keys.get(name, (b"", b""))
        return m.Bootstrap(
            role=role,
            name=name,
            coordinator=self._hub.address,
            server_key=self._keys[0].decode(),
            public_key=public.decode(),
            secret_key=secret.decode(),
            memory_fd=self._fd if role != "coordinator" else -1,
            index=self._aggregators.index(name) if role == "aggregator" else 0,
            token=self._token,
            train=self._source.train if role == "worker" else "",
            job_dir=str(self._source.job_dir.resolve()),
            seed=self._source.seed,
            threads=self._source.threads,
            data_public_key=data[0].decode(),
            data_secret_key=data[1].decode(),
        )
