"""The processes of one job: starts them, passes on what they say to each other, and tells its owner what happens.

It is driven by `poll` and owns no thread. It is the hub through which the coordinator hears and reaches the others,
and the one that starts another coordinator or aggregator where one has died. It decides nothing about views: the
coordinator does; nothing about configurations: `scavenger.control` does, by `launch`, `resize` and `release`.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec
import zmq

from scavenger.elastic.liveness import HEARTBEAT_S, SILENT_S, Liveness
from scavenger.elastic.membership import worker_slot
from scavenger.elastic.outage import Outage
from scavenger.elastic.quarantine import cause_of_death
from scavenger.errors import (
    MessageError,
    TrainingCodeError,
    TrainingHungError,
    WorkersLostError,
)
from scavenger.train.engines.base import Engine, Exit
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.failure import error_of
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.names import BEATING, aggregator_name, partial_model
from scavenger.train.supervisor.events import Event, Leaving, Lost, ProcessState, Refused, Started, Warned
from scavenger.train.supervisor.process_configurations import ProcessConfigurations
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.recoveries import Recoveries
from scavenger.train.supervisor.saving import Saving
from scavenger.train.supervisor.worker_slots import WorkerSlots
from scavenger.train.transport import messages as m
from scavenger.train.transport.authenticator import Authenticator
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.shared_memory import Block, Layout
from scavenger.train.transport.sockets import EVERYBODY, Malformed, Router, new_keys

__all__ = ["Supervisor"]

_MEMORY_SAMPLE_S = 0.5
_STACK_DUMP_S = 0.5
_LAST_WORDS_S = 1.0  # a dead process's message may still be on its way through the sockets
_GRACE_S = 5.0
_ASK_AGAIN_S = 1.0
_QUIT_S = 10.0  # as long as a worker that is let go may take, since its time is paid for


class Supervisor:
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
        self._timeouts, self._clock = timeouts, clock
        self._context = zmq.Context()
        keys = new_keys()
        with contextlib.ExitStack() as undo:
            self._fd = create_block()
            undo.callback(os.close, self._fd)
            self.engine: Engine = (engine or ProcessEngine)(work_dir / "logs", self._fd)
            undo.callback(self.engine.close)
            reachable = self.engine.reachable
            self._restore = None if restore is None else m.Restore(reachable(restore.url))
            self._checkpoint = checkpoint and msgspec.structs.replace(
                checkpoint, url=reachable(checkpoint.url)
            )
            self._door = Authenticator(self._context)
            undo.callback(self._door.close)
            self._hub = Router(
                self._context,
                keys,
                self.engine.leader_host,
                port=self.engine.leader_port,
                door=self._door,
                malformed=Malformed(self._warn),
            )
            undo.pop_all()
        self._aggregators = tuple(aggregator_name(index) for index in range(aggregators))
        self._book = ProcessRegistry(self.engine, self._aggregators, clock)
        self._recoveries = Recoveries(self._aggregators, clock)
        self._bootstraps = ProcessConfigurations(
            source,
            hub=self._hub.address,
            server_key=keys[0],
            admit=self._door.admit,
            memory_fd=self._fd,
            aggregators=self._aggregators,
        )
        self._liveness, self._outage = Liveness(), Outage()
        self.manifest: m.Manifest | None = None
        self._command = 0
        self._resize: m.Resize | None = None
        self._memory_at = 0.0
        self._suspected_at = 0.0
        self.memory_bytes: dict[str, int] = {}
        self.quarantined: tuple[int, ...] = ()
        """Samples that are left out, by their indices in the data."""
        self._events: list[Event] = []
        self.on_wait: Callable[[], None] = lambda: None
        """Called while `finish` waits, which may take long."""
        self._saving = Saving()
        self._checkpointed = False
        self._unheard: list[tuple[str, bytes]] = []
        self._places = WorkerSlots()
        self._closing = False

    # ---- what the caller wants -----------------------------------------------------------------------------

    def start(self, workers: int, vm: str = "", *, threads: int | None = None) -> None:
        """Start the coordinator, the aggregators and the first workers; see `launch`."""
        self._start_coordinator()
        for name in self._aggregators:
            self._start_aggregator(name)
        self.launch(workers, vm, threads=threads)

    def launch(self, workers: int, vm: str = "", *, threads: int | None = None) -> tuple[str, ...]:
        """Start more workers; they warm up while the others train. Returns their names.

        Args:
            vm: The type of VM to run on, where the engine has several.
            threads: That each computes with; as the source says where None.

        Raises:
            WorkersLostError: If the block has no place for so many.
        """
        names = []
        for _ in range(workers):
            name = self._places.next_worker()
            self.engine.launch(
                self._bootstraps.of("worker", name, token=self._book.token, threads=threads), vm=vm
            )
            self._book.launched_at[name], self._book.vms[name] = self._clock(), vm
            names.append(name)
        self._announce_placed()
        return tuple(names)

    def _announce_placed(self) -> None:
        """Tell the coordinator of workers once they have a host: its patience with them begins then."""
        for name in self._book.unannounced:
            if self.engine.pid(name):
                self._announce(name)

    def _announce(self, worker: str) -> None:
        self._book.announced.add(worker)
        self._to_coordinator(m.Launched(worker))

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
        self._book.asked_to_leave.update(without)
        self._resize = m.Resize(self._command, workers, global_batch_size, reason, tuple(without), lr_scale)
        self._to_coordinator(self._resize)

    def release(self, keep: int) -> None:
        """Have workers let go that no view needs, newest first, until `keep` are alive; `Leaving` tells which."""
        if self.settled and (len(self.alive) > keep or self._book.departing):
            self._command += 1
            self._to_coordinator(m.Release(self._command, keep))

    def verdict(self, epoch: int, *, stop: bool, keep_best: bool) -> None:
        """The answer to an `EpochReport`, for which the job waits."""
        self._hub.send(self._aggregators[0], m.VerdictGiven(epoch, stop, keep_best))

    def finish(
        self, path: Path, *, best: bool, checkpoint: bool = False, within_s: float | None = None
    ) -> None:
        """End training with the last applied step, and have a worker write the model; waits for it.

        Args:
            path: Where the `.keras` file goes.
            best: Write the weights that a verdict last said to keep; the last ones where no verdict did.
            checkpoint: Write one first, where there is a place for it: the job may be gone on with.
            within_s: How long it may take; as long as a worker may take to start where None.

        Raises:
            WorkersLostError: If no worker is left to write it, or no aggregator to write it from.
            TrainingError: If writing fails, or takes longer.
        """
        saving = self._saving = Saving()
        gone = [name for name in self._aggregators if name not in self.engine.running]
        if gone:
            raise WorkersLostError(f"{gone[0]}, which held the weights, is gone")
        deadline = self._clock() + (self._timeouts.start_s if within_s is None else within_s)
        self._wait(
            lambda: saving.step is not None,
            "the aggregator did not finish in time",
            deadline,
            # it may be restarted meanwhile
            asking=lambda: self._hub.send(self._aggregators[0], m.Finish(best, checkpoint)),
        )
        assert saving.step is not None
        while not saving.saved:
            able = [
                name for name in self.alive if name in self._book.ready and name not in self._book.quitting
            ]
            if not able:
                raise WorkersLostError("no worker is left to write the model")
            self._save(able[0], path.resolve(), saving.step, deadline)

    def _save(self, writer: str, path: Path, step: int, deadline: float) -> None:
        """Have a worker write the model to `path`, or send it where that is another host's."""
        here, saving = self.engine.host(writer) == self.engine.leader_host, self._saving
        with contextlib.ExitStack() as after:
            after.callback(partial_model(path).unlink, missing_ok=True)
            if not here:
                after.enter_context(saving.received(writer, path))
            self._hub.send(writer, m.Save(str(path) if here else "", step))
            self._wait(
                lambda: saving.saved or writer not in self.engine.running,
                "the model was not written in time",
                deadline,
            )

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
                elif name in self._book.launched_at and name not in self._book.ready:
                    self.engine.kill(name)  # it would not hear for seconds, and holds nothing
                else:
                    self._hub.send(name, m.Quit())
        try:
            self.engine.stop(grace_s=grace_s)
        finally:
            self.engine.close()
            for name in self._book.launched_at:
                self._book.ended_at.setdefault(name, self._clock())
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                self._hub.close()
                self._door.close()
                self._context.term()

    # ---- what the caller may know --------------------------------------------------------------------------

    @property
    def alive(self) -> tuple[str, ...]:
        """Workers that are there to stay, also those that still start."""
        return self._book.alive

    def workers(self, *states: str) -> tuple[str, ...]:
        """Names of living workers in any of the states `starting`, `ready` and `training`."""
        return self._book.workers(*states)

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
        return self._book.roster.settled and self._book.roster.command == self._command

    @property
    def ending(self) -> bool:
        """Some worker has been let go but has not ended yet."""
        return bool(self._book.quitting)

    @property
    def existing(self) -> Mapping[str, int]:
        """Workers that are paid for, by the type of their VM: also those let go that have not ended yet."""
        return self._book.existing

    def vm_of(self, worker: str) -> str:
        """The type of VM that a worker was launched on."""
        return self._book.vms[worker]

    def processes(self) -> tuple[ProcessState, ...]:
        """Every process that the job has had."""
        return self._book.processes()

    def worker_seconds(self) -> Mapping[str, float]:
        """Time that workers have existed, summed over those of each type of VM."""
        return self._book.worker_seconds()

    # ---- the loop ------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> list[Event]:
        """Take what has arrived, waiting at most `timeout_s` for something; returns it in order.

        Raises:
            TrainingError: The training code failed, hangs, or yields NaN.
            NotSupportedError: The model or data cannot be trained on exactly.
            WorkersLostError: An aggregator, or the coordinator, dies again and again.
        """
        self._hub.wait(timeout_s)
        self._hear()
        for ended in self.engine.poll():
            self._ended(ended)
        self._announce_placed()
        for doomed in self.engine.doomed():
            if doomed.name in self._book.launched_at:
                self._events.append(doomed)
            else:
                self._warn(f"{doomed.name}: {doomed.reason}; another takes its place when it is gone")
        self._watch()
        events, self._events = self._events, []
        return events

    def _wait(
        self,
        condition: Callable[[], bool],
        complaint: str,
        deadline: float,
        *,
        asking: Callable[[], None] = lambda: None,
    ) -> None:
        """Until a condition holds, asking for it again and again.

        Raises:
            TrainingHungError: With the complaint, at the deadline.
        """
        asked_at = -math.inf
        while not condition():
            if self._clock() - asked_at >= _ASK_AGAIN_S:
                asked_at = self._clock()
                asking()
            if self._clock() > deadline:
                raise TrainingHungError(complaint)
            self._events = self.poll(0.05) + self._events
            self.on_wait()

    # ---- messages ------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        for peer, frames in self._hub.take():
            try:
                if peer.startswith("coordinator"):
                    target, body = frames
                    name = target.decode()
                    message = None if name else m.decode(body)
                else:
                    (body,) = frames
                    name, message = "", m.decode(body)
            except (MessageError, ValueError):
                self._hub.malformed(peer)
                continue
            if peer.startswith("coordinator"):
                self._from_coordinator(peer, name, message, body)
            elif message is not None:
                self._from_process(peer, message, body)

    def _from_process(self, peer: str, message: m.Message, body: bytes) -> None:
        sequencing = peer == self._aggregators[0]
        if peer in self._book.launched_at and peer not in self._book.announced:
            self._announce(peer)  # it speaks before its engine tells where it is
        match message:
            case m.Beat():
                self._book.beat(peer.removesuffix(BEATING), message)
                self._outage.heard(peer.removesuffix(BEATING))
            case m.StepReport() | m.EpochReport() | m.CheckpointWritten() | m.CheckpointFailed() if (
                sequencing
            ):
                self._checkpointed = self._checkpointed or isinstance(message, m.CheckpointWritten)
                self._events.append(message)
                return
            case m.Quarantined() if sequencing:
                self.quarantined = tuple(sorted({*self.quarantined, *message.samples}))
                self._events.append(message)
            case m.Done() | m.Saved() | m.SavedPart():
                self._saving.take(peer, message)
                return
            case m.Failed():
                self._fail(peer, message)
                return
            case m.Hello() | m.Present() if self.manifest is None:
                try:
                    layout = Layout.of(message.manifest, len(self._aggregators))
                except (ArithmeticError, AttributeError, TypeError, ValueError):  # no model has such tensors
                    self._hub.malformed(peer)
                    return
                self._places.know(layout)
                self.manifest = message.manifest
            case m.Ready() if peer in self._book.launched_at and peer not in self._book.ready:
                self._book.ready.add(peer)
                self._events.append(Started(peer, self._clock() - self._book.launched_at[peer]))
            case m.ViewInstalled() if sequencing:
                self._events.append(message)
            case m.Initialised():
                self._events += self._recoveries.initialised(peer, message.step)
            case _:
                pass
        if self._book.token == 1 and self._coordinator not in self._book.beats:
            # the first one asks nobody, and may start after those that speak to it
            self._unheard.append((peer, body))
        else:
            self._hub.pass_on(self._coordinator, peer.encode(), body)

    def _from_coordinator(self, peer: str, name: str, message: m.Message | None, body: bytes) -> None:
        """What it says to a process, or, with no name, to the supervisor."""
        if peer != self._coordinator:
            return  # it was replaced: whatever it still wants counts no more
        self._liveness.heard(peer, self._clock())
        if name == EVERYBODY:
            for process in self.engine.running:
                if not process.startswith("coordinator"):
                    self._hub.pass_on(process, body)
            return
        if name:
            self._hub.pass_on(name, body)
            return
        match message:
            case m.Beat() if peer not in self._book.beats:
                self._book.beats[peer] = message
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
        if (recovered := self._recoveries.end(self._coordinator)) is not None:
            self._events.append(recovered)
        self._book.roster = roster
        for name, state in roster.states.items():
            if state == "leaving" and name not in self._book.quitting and name not in self._book.ended_at:
                self._book.quitting[name] = self._clock()
                self._events.append(Leaving(name))
        for name in self._places.freed(roster):
            if self._places.layout is not None and self._fd >= 0:
                Block(self._fd, self._places.layout).release_slots(worker_slot(name))
            for aggregator in self._aggregators:
                self._hub.send(aggregator, m.Forget(name))

    def _to_coordinator(self, message: m.Message) -> None:
        self._hub.pass_on(self._coordinator, b"", m.encode(message))

    def _brief(self) -> m.Brief:
        return m.Brief(
            token=self._book.token,
            workers=tuple(name for name in self.alive if name in self._book.announced),
            aggregators=self._aggregators,
            start_s=self._timeouts.start_s,
            step_s=self._timeouts.step_s,
            restore=self._restore,
            checkpoint=self._checkpoint,
            resize=self._resize,
            command=self._command,
            number=self._book.roster.number,
            begun=self._recoveries.begun,
            rewinding=self._recoveries.rewinding,
            quarantined=self.quarantined,
        )

    def _warn(self, text: str) -> None:
        self._events.append(Warned(text))

    def _fail(self, process: str, message: m.Failed) -> None:
        self._book.failed.add(process)
        raise error_of(message.kind, message.message, process=process, log=self.engine.log(process))

    # ---- losses, hangs and recoveries ----------------------------------------------------------------------

    def _expel(self, message: m.Expel) -> None:
        """The coordinator counts a process as lost: end it, so that it is."""
        name = message.name
        if name not in self.engine.running:
            return
        self._book.expelled[name] = message.cause
        if message.hung:
            self.engine.show_stack(name)
            time.sleep(_STACK_DUMP_S)  # for the dump to be written; the job is stalled anyway
        self.engine.kill(name)
        if message.fatal:
            raise TrainingHungError(f"{message.fatal}; the stack of {name} is in {self.engine.log(name)}")

    def _ended(self, ended: Exit) -> None:
        name = ended.name
        cause = self._book.expelled.get(name, ended.cause)
        if name not in self._book.quitting and not self._closing:
            self._book.causes.setdefault(name, cause)
        self._book.beats.pop(name, None)
        if name in self._aggregators or name.startswith("coordinator"):
            self._replace(name, ended, cause)
            return
        self._book.ended_at[name] = self._clock()
        self._places.ended(name)
        if ended.refused:
            self._events.append(Refused(name, ended.reason))
            return
        told_to_go = name in self._book.quitting or name in self._book.expelled
        kind = cause_of_death(None if ended.reason else ended.status, ended_by_us=told_to_go)
        hosts = len({self.engine.host(worker) for worker in self._book.launched_at})
        if name in self._book.announced:
            self._to_coordinator(m.Ended(name, m.DeathBody(name, self.engine.host(name), kind.value, hosts)))
        if self._book.quitting.pop(name, None) is not None:
            return
        self._events.append(Lost(name, cause, crashed=kind.blames_data))
        if name in self._book.failed or name in self._book.expelled:
            return
        self._hear_last_words(name, ended)
        if ended.status >= 0:
            raise TrainingCodeError(
                f"the training code ended {name}, which {cause} (log: {self.engine.log(name)})"
            )

    def _replace(self, name: str, ended: Exit, cause: str) -> None:
        """An aggregator or the coordinator is gone: start another, which takes the job up where it stands."""
        self._book.expelled.pop(name, None)
        if name.startswith("coordinator") and name != self._coordinator:
            return  # one that was replaced already
        if name not in self._book.failed:
            self._hear_last_words(name, ended)
        if self._closing or name in self._book.failed:
            return
        role = "coordinator" if name.startswith("coordinator") else name
        now = self._clock()
        self._recoveries.count(name, role, cause, self.engine.log(name))
        if role == "coordinator":
            self._start_coordinator()
            name = self._coordinator
        else:
            self._to_coordinator(m.Ended(name))
            self._start_aggregator(name)
        self._recoveries.begin(name, cause, now)

    def _roll_back(self, cause: str) -> None:
        """Have every aggregator begin anew, so that all parts are as they were after one step."""
        if self._closing:
            return
        if self._checkpoint is not None and self._checkpointed:
            self._restore = m.Restore(self._checkpoint.url)
        for name in self._recoveries.rewind(self.engine.running, cause):
            self._book.expelled[name] = f"was started anew: {cause}"
            self.engine.kill(name)
        self._to_coordinator(m.Rewind(self._restore))

    def _hear_last_words(self, name: str, ended: Exit) -> None:
        """A process that ended by itself has said why; one that was killed has not."""
        deadline = self._clock() + (_LAST_WORDS_S if ended.status > 0 else 0.0)
        while True:
            self._hear()
            left = deadline - self._clock()
            if name in self._book.failed or left <= 0:
                return
            self._hub.wait(max(0.001, left))

    def _watch(self) -> None:
        """Notice a coordinator that is silent and workers that do not end; sample memory."""
        now = self._clock()
        if now - self._memory_at >= _MEMORY_SAMPLE_S:
            self._memory_at = now
            self.memory_bytes |= self.engine.sample_memory()
            self.engine.cap_logs()
        for worker, since in self._book.quitting.items():
            if now - since > _QUIT_S:
                self.engine.kill(worker)
        if now - self._suspected_at >= HEARTBEAT_S:
            self._suspected_at = now
            remote = [
                name for name in self.engine.running if name in self._book.beats and name != self._coordinator
            ]
            # without these beats, the coordinator counts nobody's silence
            if not self._outage.look(now, in_doubt=self.engine.in_doubt, processes=remote):
                self._to_coordinator(m.Beat())
            for name in self._liveness.suspects(now):
                self._liveness.forget(name)
                if name == self._coordinator and not self._closing:
                    # another leads before this one is ended; should it wake up meanwhile, nobody hears it
                    cause = self._book.causes[name] = f"was silent for {SILENT_S:.0f} s"
                    self._replace(name, Exit(name, 0), cause)
                    self.engine.kill(name)

    # ---- processes -----------------------------------------------------------------------------------------

    @property
    def _coordinator(self) -> str:
        return self._book.coordinator

    def _start_coordinator(self) -> None:
        self._book.token += 1
        self._unheard.clear()
        self.engine.launch(self._bootstraps.of("coordinator", self._coordinator, token=self._book.token))
        self._liveness.heard(self._coordinator, self._clock() + self._timeouts.start_s)

    def _start_aggregator(self, name: str) -> None:
        self._book.causes.pop(name, None)
        self.engine.launch(self._bootstraps.of("aggregator", name, token=self._book.token))
