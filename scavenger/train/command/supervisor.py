"""The processes of a command as one group: started together, asked to save and end, and started with other numbers.

The table shows what follows; an attempt is one start of the group::

    phase      event                                           what follows
    waiting    K hosts are ready, or no more are to come       the group is started: RUNNING
    running    other (K, B) wanted, and no host starts         asked to save and end: ENDING
               another B, or rate, of a program that is live   asked to go on with it after a step
               the cloud takes a host back                     reported; its owner asks for another group
               a process fails, hangs, or its host is lost     Lost; the others are ended: ENDING
               a process has ended, and others go on           Lost; the others are ended: ENDING
               all processes have ended with status 0          the command is over
               a checkpoint is due                             asked to save
    ending     all processes have ended                        waiting
               the time to end is up                           they are killed
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

import msgspec

from scavenger.elastic.quarantine import Cause, cause_of_death
from scavenger.elastic.recovery import Lost, Refused
from scavenger.errors import ConfigurationError, TrainingCodeError
from scavenger.train.command import messages as cm
from scavenger.train.command.attempt import Attempt, CheckpointPlace, Target
from scavenger.train.command.checkpoints import CommandCheckpoint, Kept
from scavenger.train.command.hosts import Hosts
from scavenger.train.command.progress import AttemptProcesses, CommandProgress
from scavenger.train.command.source import CommandSource
from scavenger.train.command.stored_folder import checked
from scavenger.train.command.watch import EpochWatch, MetricWatch, Restarts, why_not_together
from scavenger.train.command.whole import WholeStates
from scavenger.train.engines.base import Exit
from scavenger.train.failure import error_of
from scavenger.train.job_source import Timeouts
from scavenger.train.supervisor.events import ProgramBegan, Started, Warned
from scavenger.train.supervisor.without_aggregators import WithoutAggregators
from scavenger.train.transport import messages as m

_SHORT_S = 3.0
"""How long processes may take to end that have nothing to save, or cannot, since another one of the group is gone."""
_MISSING_S = 2.0
"""How long the group waits for a host that may be started in place of a lost one."""
_MARGIN_S = 0.5
"""How long a request may take to reach all processes; a step that they agree on is no sooner."""
_SILENT_S = 600.0
"""How long a command may tell nothing, besides the limit on a step: it may evaluate, or save."""
_NO_MACHINE_S = 20.0
"""How long the group waits for a host that has no machine yet; then it trains with fewer."""


class CommandSupervisor(WithoutAggregators):
    """Supervises the group; see the module. A subclass takes the requests of a job, and starts and ends hosts.

    Args:
        progress: What it has done.
        place: Where its checkpoints are.
        kept: The checkpoint that it begins with; None for a new job.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        hosts: Hosts,
        source: CommandSource,
        progress: CommandProgress,
        *,
        place: CheckpointPlace,
        kept: Kept | None,
        timeouts: Timeouts,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(hosts.registry)
        self._hosts, self._progress, self._source = hosts, progress, source
        self._place, self._timeouts, self._clock = place, timeouts, clock
        self._view = 0 if kept is None else kept.view
        self._held = None if kept is None else kept.checkpoint  # the newest that the command has told of
        self._target: Target | None = None
        self._attempt: Attempt | None = None  # None between two starts of the group
        self._samples_per_epoch = source.run.samples or (None if kept is None else kept.samples_per_epoch)
        self._paused = False  # the group is to end, and not to be started again
        self._saved: tuple[CommandCheckpoint, float] | None = None  # told of, and not on record yet
        self._metric = MetricWatch(source.metric, judged=source.judged, epochs=source.epochs)
        self._epochs = EpochWatch()
        self._restarts = Restarts(source.give_up)
        self._doubted: set[str] = set()
        self._cause = ""
        self._idle_since_s = clock()

    @property
    def _members(self) -> tuple[str, ...]:
        """Workers whose processes are in the group."""
        return () if self._attempt is None else self._attempt.group.members

    @property
    def settled(self) -> bool:
        """Whether what is wanted is in effect, or as much of it as there are workers for."""
        attempt = self._attempt
        return (
            attempt is not None
            and not attempt.ending
            and attempt.target == self._target
            and self._progress.stepped
        )

    @abstractmethod
    def _ended_quietly(self) -> None:
        """Note the end of an attempt that was asked to end, and has told of no checkpoint."""

    def _update(self, timeout_s: float) -> None:
        self._hosts.wait(timeout_s)
        for name, message in self._hosts.take():
            self._take(name, message)
        for name, cause, refused in self._hosts.ended():
            self._host_ended(name, cause, refused=refused)
        self._hosts.tidy_up()
        self._events += self._hosts.engine.preemption_notices()
        self._look(self._clock())

    def _ask(self, **changes: object) -> None:
        """Change what the program is asked."""
        if self._attempt is not None:
            self._attempt.request = msgspec.structs.replace(self._attempt.request, **changes)
            for name in self._attempt.left:
                self._hosts.send(name, self._attempt.request)

    def _save(self) -> None:
        """Ask for a checkpoint, if the program can see that and none is awaited."""
        attempt, progress = self._attempt, self._progress
        if attempt is None or attempt.ending or not (attempt.reporting and progress.stepped):
            return
        if attempt.request.save_at <= progress.step:
            self._ask(save_at=self._soon())

    def _end(self) -> None:
        """Ask the group to save and end."""
        attempt, now = self._attempt, self._clock()
        if attempt is None or attempt.ending:
            return
        attempt.ending = True
        grace_s = self._source.run.grace if self._progress.stepped else _SHORT_S
        attempt.until_s = now + grace_s
        if attempt.reporting and self._progress.stepped:
            soon = self._soon()
            steps_s = (soon - self._progress.step) * self._progress.step_time_s
            attempt.until_s += min(10 * steps_s, self._timeouts.step_s)
            self._ask(end_at=soon)
        else:
            self._signal(grace_s, store=True)

    def _stop_after_epoch(self, epoch: int) -> None:
        """Have the group end that waits at the end of an epoch, or has gone on."""
        self._paused = True
        attempt = self._attempt
        if attempt is None or not attempt.reporting:
            if attempt is not None and not attempt.ending and epoch + 1 >= self._source.epochs:
                # the program knows that this was the last one, and is about to save and end
                attempt.ending, attempt.until_s = True, self._clock() + self._source.run.grace
            self._end()
            return
        end_at = attempt.request.end_at if attempt.ending else self._soon()
        if not attempt.ending:
            attempt.ending, attempt.until_s = True, self._clock() + self._source.run.grace
        self._ask(
            epoch=epoch, stop=True, end_at=end_at
        )  # also while it ends: the program waits for an answer

    def _soon(self) -> int:
        """A step that no process has reached when the request for it arrives."""
        step_s = self._progress.step_time_s
        return self._progress.step + 2 + (math.ceil(_MARGIN_S / step_s) if step_s > 0 else 100)

    def _signal(self, grace_s: float, *, store: bool = False) -> None:
        assert self._attempt is not None
        for name in self._attempt.left:
            self._hosts.send(name, cm.End(self._attempt.group.view, grace_s, store))

    # ---- what hosts say ------------------------------------------------------------------------------------

    def _take(self, name: str, message: object) -> None:
        attempt = self._attempt
        match message:
            case m.Failed():
                raise error_of(
                    message.kind,
                    message.message,
                    process=name,
                    log=self._hosts.engine.log(name),
                    frames=message.frames,
                )
            case cm.HostReady() if name in self._hosts.awaited:
                self._arrived(name, message)
            case cm.Records() if attempt is not None and message.attempt == attempt.group.view:
                attempt.heard_s = self._clock()
                for record in message.records:
                    self._record(attempt, name, record)
            case cm.Doubt() if message.group not in self._doubted:
                self._doubted.add(message.group)
                self._events.append(Warned(message.message))
            case cm.MemoryUsed():
                self._hosts.memory_bytes[name] = max(
                    self._hosts.memory_bytes.get(name, 0), message.memory_bytes
                )
            case cm.Carrying() if attempt is not None and message.attempt == attempt.group.view:
                attempt.heard_s = now = self._clock()
                attempt.until_s = max(attempt.until_s, now + self._source.run.grace)
            case cm.Stored() if attempt is not None and message.attempt == attempt.group.view:
                self._stored(attempt, name, message)
            case cm.AttemptEnded() if attempt is not None and message.attempt == attempt.group.view:
                self._hosts.next_port(name, message.port)
                self._process_ended(attempt, name, message)
            case _:
                pass

    def _arrived(self, name: str, arrived: cm.HostReady) -> None:
        """Have a host prepare its machine, if it has one of its own, and note it when that is done."""
        if self._source.run.setup and self._hosts.set_up(name, self._source.setup_words):
            return
        self._hosts.arrive(name, arrived)
        self._events.append(Started(name, self._hosts.age_s(name)))

    def _stored(self, attempt: Attempt, name: str, message: cm.Stored) -> None:
        """A host has stored its folder, or could not."""
        try:
            files = checked(message.files)
        except ValueError as error:
            self._lost(name, f"sent what is no folder: {error}")
            return
        if message.problem:
            self._events.append(m.CheckpointFailed(self._progress.step, f"{name}: {message.problem}"))
            return
        self._place.seen(files)
        if whole := attempt.states.stored(name, message.number, files, self._now, last=message.last):
            self._held, took_s = whole
            self._saved = self._held, took_s

    @property
    def _now(self) -> CommandCheckpoint:
        """What a command that tells of no checkpoint is at."""
        progress = self._progress
        return CommandCheckpoint(progress.step, progress.epoch, progress.samples)

    def _record(self, attempt: Attempt, name: str, record: cm.Record) -> None:
        if record.kind == "raised":
            attempt.raised[name] = "".join(one if one.isprintable() else "?" for one in record.error)
        if name != attempt.group.members[0]:
            return
        if record.kind == "begin":
            attempt.raised.pop(name, None)
            attempt.reporting, attempt.live = True, attempt.live or record.live
            attempt.states.every_rank = attempt.states.every_rank or record.every_rank
            self._describe(attempt, record)
        elif record.kind == "checkpoint":
            attempt.saved = True
            self._told_of_checkpoint(attempt, record)
        stepped, now = self._progress.stepped, self._clock()
        events = self._progress.take(record, now)
        if self._progress.stepped > stepped:
            self._events.append(ProgramBegan(now - attempt.began_s))
        if attempt.changing is not None and self._progress.changing is None:
            attempt.target, attempt.changing = attempt.changing, None
        if record.kind == "epoch" and not events and record.epoch is not None:
            self._ask(epoch=record.epoch)  # it was over before, and the program waits for the answer
        self._events += events
        self._events += self._metric.look(events, self._progress, self._samples_per_epoch)
        self._events += self._epochs.look(self._progress.newest, self._samples_per_epoch)

    def _told_of_checkpoint(self, attempt: Attempt, record: cm.Record) -> None:
        """Note a checkpoint; it counts once it is stored, if its folder is carried."""
        took_s, path = self._progress.saved_for_s(record), record.path
        if not self._place.storage:
            self._checkpointed(path, took_s)
            return
        first = attempt.group.members[0]
        folder = self._place.folder_of(first, self._hosts.arrived[first].folder)
        path = path.removeprefix(folder).lstrip("/") if path.startswith(folder) else path
        attempt.states.told(replace(self._now, path=path), took_s)

    def _checkpointed(self, path: str, took_s: float) -> None:
        """Note that the command has saved a checkpoint of its newest step."""
        self._held = replace(self._now, path=path)
        self._saved = self._held, took_s

    def _describe(self, attempt: Attempt, record: cm.Record) -> None:
        if record.world:
            batch, of_local = (
                attempt.group.global_batch_size,
                "{local_batch_size}" in self._source.run.command,
            )
            if apart := why_not_together(record.world, len(attempt.group.members), batch, of_local=of_local):
                raise ConfigurationError(apart, key="run")
        if record.samples_per_epoch:
            self._samples_per_epoch = self._samples_per_epoch or record.samples_per_epoch
        if not self._samples_per_epoch:
            raise ConfigurationError(
                "run.samples: how many training samples has an epoch? Write run: {command: ..., samples: N}, or "
                "scavenger_report(samples_per_epoch=N) in the program",
                key="run",
            )

    # ---- ends ----------------------------------------------------------------------------------------------

    def _process_ended(self, attempt: Attempt, name: str, message: cm.AttemptEnded) -> None:
        status, cause = message.status, message.cause
        attempt.ended[name] = status
        if attempt.ending:
            return
        raised = attempt.raised.get(name, "") or message.raised
        if status == 0 and not raised:
            # the others end, too, unless they wait for this one
            attempt.until_s = min(attempt.until_s, self._clock() + self._source.run.grace)
            return
        self.frames = message.frames
        if not cause:
            cause = Exit(name, status).cause + (f" after {raised}" if raised else "")
            first = next((one for one, status in attempt.ended.items() if status == 0 and one != name), "")
            if first:  # the cause may be there
                cause += f", and before it {first} with status 0 (see {self._hosts.engine.log(first)})"
        if status == 127 and not self._progress.stepped:
            raise TrainingCodeError(f"run: {name} {cause}; see {self._hosts.engine.log(name)}")
        self._failed(attempt, name, f"the command of {name} {cause}")
        attempt.killed = cause_of_death(status) is Cause.KILLED
        self._lost(name, f"lost its command, which {cause}", by_code=not attempt.killed)

    def _left_waiting(self, attempt: Attempt) -> None:
        """A process has ended as if training were over, and others have not: its failure, which a shell may hide."""
        name = next(iter(attempt.ended))
        others, grace_s = ", ".join(attempt.left), self._source.run.grace
        cause = f"ended with status 0 while {others} went on for {grace_s:g} s (run.grace)"
        self._failed(attempt, name, f"the command of {name} {cause}")
        log = f"; see {self._hosts.engine.log(name)}" if self._progress.stepped else ""
        self._lost(name, f"lost its command, which {cause}{log}", by_code=True)

    def _failed(self, attempt: Attempt, name: str, cause: str) -> None:
        attempt.ending, attempt.cause = True, cause
        attempt.until_s = self._clock() + _SHORT_S
        self._signal(_SHORT_S)

    def _lost(self, name: str, cause: str, *, by_code: bool | None = None) -> None:
        """Give a worker up; another one is started in its place, or the job ends, as its owner decides.

        Args:
            by_code: Whether its command is the cause; None if that is likely, as long as it has done no step.
        """
        ready = self._progress.stepped
        self._hosts.expel(name, cause)
        self._events.append(Lost(name, cause, ready=ready, by_code=not ready if by_code is None else by_code))

    def _host_ended(self, name: str, cause: str, *, refused: bool) -> None:
        if refused:
            self._events.append(Refused(name, cause))
            return
        attempt = self._attempt
        stepped = self._progress.stepped and name in self._members
        self._events.append(Lost(name, cause, crashed=False, ready=stepped))
        if attempt is not None and name in attempt.left:
            attempt.ended[name] = -9
            if not attempt.ending:
                attempt.killed = True
                self._failed(attempt, name, f"{name} {cause}")

    # ---- what follows --------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        attempt = self._attempt
        if (passed_s := self._hosts.in_doubt(self._hosts.ready, now)) is not None:
            self._idle_since_s += passed_s
            if attempt is not None:  # nothing is given up, and no time passes
                attempt.heard_s, attempt.until_s = attempt.heard_s + passed_s, attempt.until_s + passed_s
            return
        for name in self._hosts.starting:
            if self._hosts.age_s(name) > self._timeouts.start_s:
                self._hosts.expel(name, "did not start in time")
                self._events.append(
                    Lost(name, f"did not start within {self._timeouts.start_s:g} s", ready=False)
                )
        if attempt is None:
            if not self._paused:
                self._start_when_ready(now)
        elif not attempt.left:
            self._ended(attempt, now)
        elif now > attempt.until_s + _SHORT_S and attempt.ending:
            for name in attempt.left:  # not even its host answers
                attempt.ended[name] = -9
                self._lost(name, "did not end its command when it was asked to")
        elif now > attempt.until_s and attempt.ending:
            self._signal(0.0)
        elif now > attempt.until_s:
            self._left_waiting(attempt)
        elif not attempt.ending:
            if self._paused or self._another_is_wanted(attempt):
                self._end()
            else:
                self._watch(attempt, now)

    def _another_is_wanted(self, attempt: Attempt) -> bool:
        """Whether the group must be started again: while hosts start, it is not, since more may follow."""
        target = self._target
        if target is None:
            return False
        now, then = target, attempt.target
        leaving = set(attempt.group.members) - set(self._hosts.ready)
        more = len(attempt.group.members) < target.workers <= len(self._hosts.ready)
        if attempt.live and now.workers == then.workers and not (leaving or more):
            self._change(attempt, target)
            return False
        if self._hosts.starting:
            return False
        same = (now.workers, now.global_batch_size) == (then.workers, then.global_batch_size)
        if same:
            attempt.target = target  # only the learning rate differs, or nothing
        return not same or bool(leaving) or more

    def _change(self, attempt: Attempt, target: Target) -> None:
        """Have a program that is live go on with another batch size, or rate; one change after the other."""
        then = attempt.target
        progress = self._progress
        if target == then or attempt.changing is not None or not (progress.stepped and progress.step_time_s):
            return
        if (target.global_batch_size, target.lr_scale) == (then.global_batch_size, then.lr_scale):
            attempt.target = target
            return
        self._view += 1
        batch, scale = target.global_batch_size, target.lr_scale
        progress.change(AttemptProcesses(self._view, attempt.group.members, batch, scale, target.reason))
        attempt.changing = target
        self._ask(view=self._view, view_at=self._soon(), global_batch_size=batch, lr_scale=scale)

    def _watch(self, attempt: Attempt, now: float) -> None:
        limit_s = self._timeouts.start_s
        if self._progress.stepped:
            limit_s = max(self._timeouts.step_s, self._timeouts.evaluation_s or _SILENT_S)
        if now - attempt.heard_s > limit_s:
            name = attempt.left[0]
            self._failed(attempt, name, f"the command told nothing for {limit_s:g} s")
            self._lost(name, f"told nothing of its command for {limit_s:g} s")

    def _start_when_ready(self, now: float) -> None:
        target, ready = self._target, self._hosts.ready
        if target is None or not ready:
            self._idle_since_s = now
            return
        if self._hosts.starting:
            self._idle_since_s = now
        missing_s = _NO_MACHINE_S if self._hosts.awaited else _MISSING_S
        if len(ready) < target.workers and now - self._idle_since_s < missing_s:
            return
        self._view += 1
        members = ready[: min(target.workers, target.global_batch_size)]
        group = AttemptProcesses(
            self._view, members, target.global_batch_size, target.lr_scale, target.reason, self._cause
        )
        self._progress.begin(group)
        begun = (self._held.files if self._held is not None else None) or {}
        states = WholeStates(members, begun)
        self._attempt = Attempt(group, target, now, now, cm.AskProgram(self._view), states)
        addresses = [self._hosts.address(name) for name in members]
        for rank, name in enumerate(members):
            arrived = self._hosts.arrived[name]
            order = self._source.order(
                group,
                rank,
                addresses,
                self._place.folder_of(name, arrived.folder),
                self._held,
                threads=arrived.threads,
                storage=self._place.storage,
            )
            self._hosts.send(name, order)

    def _ended(self, attempt: Attempt, now: float) -> None:
        """All processes of the group have ended."""
        self._attempt, self._cause, self._idle_since_s = None, attempt.cause, now
        if self._place.storage:
            self._left_behind(attempt)
        elif attempt.ending and not attempt.cause and not attempt.saved and self._progress.stepped:
            self._ended_quietly()
        if attempt.cause and self._progress.stepped and not self._paused:
            failure = self._restarts.failed(self._progress.step, attempt.cause, killed=attempt.killed)
            if failure is not None:
                raise failure
        if attempt.ending or any(attempt.ended.values()):
            return
        self._paused = True
        if self._progress.epoch < self._source.epochs:
            self._ended_by_itself(attempt)

    def _ended_by_itself(self, attempt: Attempt) -> None:
        """The program has ended with status 0, and not every epoch is over as far as it told."""
        progress, epochs = self._progress, self._source.epochs
        told = progress.told_epochs or progress.step == 0
        missing = 0 if told else progress.missing(epochs, self._samples_per_epoch or 1)
        if progress.done and progress.step > 0:
            found = progress.stop()
        elif told or missing:
            short = f"{missing} steps short of {epochs} epochs"
            where = f"in epoch {progress.epoch + 1} of {epochs}" if told else short
            raise TrainingCodeError(
                f"run: the command has ended by itself with status 0 {where}, before the goal was reached; see "
                f"{self._hosts.engine.log(next(iter(attempt.ended)))}, since a shell hides the failure of all but the "
                "last program of a pipe. Give it {epochs}, and have it go on from {checkpoint_dir}; a program that "
                "decides by itself when to end tells of it by report.epoch(..., done=True), or by a line with "
                "the group done of run.log"
            )
        else:
            found = progress.end(epochs - 1)
        self._events += found
        self._events += self._metric.look(found, progress, self._samples_per_epoch)

    def _left_behind(self, attempt: Attempt) -> None:
        """What the processes of a carried folder have left there is a checkpoint, if none of them failed."""
        held = (self._held.files if self._held is not None else None) or {}
        left = None if attempt.cause or not self._progress.stepped else attempt.states.ended(self._now, held)
        if left is not None:
            self._held, self._saved = left, (left, 0.0)
