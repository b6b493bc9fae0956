"""Turns what a command told into the reports of steps and epochs that the control plane knows. Pure.

A command counts its steps, from its checkpoint on when it is started again. Here is decided what its numbers mean::

    step n                                 what follows
    the first of an attempt, n <= newest   RolledBack to n - 1: the steps from n on are done again; and the view
    the first of an attempt, else          the view, and one step with the samples of all up to n
    n <= newest                            nothing: it was told before
    n > newest                             steps up to n, each with an equal part of the time
    the first of a live change             the view, and the step; its time is that of the change
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from scavenger.elastic.recovery import RolledBack
from scavenger.elastic.view import Member, Position, View
from scavenger.models.noise import SuccessiveGradients
from scavenger.train.command.messages import Record
from scavenger.train.custom_loop.reports import LOSS, EpochLosses
from scavenger.train.supervisor.events import Event
from scavenger.train.transport import messages as m

_STEPS_AT_ONCE_MAX = 10_000
"""A record that is so many steps after the one before it counts as one step with all their samples."""


@dataclass(frozen=True, slots=True)
class AttemptProcesses:
    """The processes of one attempt.

    Attributes:
        view: Its number.
        members: Workers, in the order of the processes' numbers.
        cause: Why the attempt before it ended, for messages; empty if that was asked for.
    """

    view: int
    members: tuple[str, ...]
    global_batch_size: int
    lr_scale: float = 1.0
    reason: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class EpochTold:
    """An epoch of which a program told that it is over, and what was counted of it.

    Attributes:
        number: Its number, from 0.
        epochs: As many as were not told of before: 1, unless the program tells of each n-th alone.
        samples: Those that were counted since the one before.
        slack: Samples by which that may differ: of a last batch, left out or filled up, and of steps not told of yet.
        whole: Whether all of it was in one attempt.
    """

    number: int
    epochs: int
    samples: int
    slack: int
    whole: bool


class CommandProgress:
    """The steps and epochs of a command. Not thread-safe; reads no clock.

    Args:
        step, epoch: Of the checkpoint that the job begins with.

    Attributes:
        step: The newest step; steps that are done again count once.
        epoch: The epoch in progress, from 0.
        samples: Samples of it so far.
        step_time_s: Time of the newest step that was not the first of an attempt; 0 before one.
        stepped: Whether the attempt has done a step.
        told_epochs: Whether the command tells of the ends of epochs.
        done: Why training is over by the program's own decision; empty if it has not told so.
        newest: The newest epoch that the program told of; None before.
        changing: What a program that trains on was asked to go on as; None if nothing, or once it has.
    """

    def __init__(self, step: int = 0, epoch: int = 0, samples: int = 0) -> None:
        self.step, self.epoch, self.samples = step, epoch, samples
        self._begun = step, epoch
        self.step_time_s = 0.0
        self.stepped = self.told_epochs = False
        self._group = AttemptProcesses(0, (), 0)
        self.changing: AttemptProcesses | None = None
        self.done = ""
        self.newest: EpochTold | None = None
        self._whole = step == 0
        self._losses = EpochLosses()
        self._metrics: dict[str, float] = {}
        self._every, self._batches = 1, set[int]()
        self._epochs: list[m.EpochReport] = []
        self._at_s: float | None = None
        self._since_s: float | None = None
        self._gradients = SuccessiveGradients()

    @property
    def begun(self) -> int:
        """The epoch that the attempt at the job begins with."""
        return self._begun[1]

    def begin(self, group: AttemptProcesses) -> None:
        """Begin another attempt."""
        self._group, self.stepped, self._at_s = group, False, None
        self.done, self._whole, self.changing = "", self._whole and self.samples == 0, None
        self._batches.add(group.global_batch_size)

    def change(self, group: AttemptProcesses) -> None:
        """Note that the same processes were asked to go on with another batch size, or learning rate."""
        self.changing = group

    def take(self, record: Record, now: float) -> list[Event]:
        """What a record of the attempt means.

        Args:
            record: As it was told.
            now: Monotonic seconds.
        """
        match record.kind:
            case "step":
                return self._stepped(record, now)
            case "epoch":
                return self._ended(record)
            case "checkpoint" if self._at_s is not None:
                self._at_s = max(self._at_s, record.at_s)
            case "done":
                self.done = _printable(record.done)
        return []

    def saved_for_s(self, record: Record) -> float:
        """The time that a checkpoint took, seconds; to be asked before `take`."""
        return 0.0 if self._at_s is None else max(0.0, record.at_s - self._at_s)

    # ---- steps ---------------------------------------------------------------------------------------------

    def _stepped(self, record: Record, now: float) -> list[Event]:
        group, step = self._group, record.step or self.step + 1
        if not self.stepped:
            return self._first(step, record, now)
        count = step - self.step
        if count <= 0:
            return []
        passed_s = 0.0 if self._at_s is None else max(0.0, record.at_s - self._at_s)
        self._at_s, self._since_s = record.at_s, now
        if self.changing is not None and record.view == self.changing.view:
            return self._changed(step, record, passed_s)
        if count > _STEPS_AT_ONCE_MAX:
            return [self._report(step, record, passed_s, group.global_batch_size * count)]
        self.step_time_s, self._every = passed_s / count, max(self._every, count)
        samples = group.global_batch_size if record.samples is None or count > 1 else record.samples
        return [
            self._report(at, record, self.step_time_s, samples) for at in range(step - count + 1, step + 1)
        ]

    def _changed(self, step: int, record: Record, passed_s: float) -> list[Event]:
        """The first step of a live change: what of its time is not known to be computing is the change's."""
        assert self.changing is not None
        self._group, self.changing = self.changing, None
        self._batches.add(self._group.global_batch_size)
        samples = self._group.global_batch_size if record.samples is None else record.samples
        return [self._installed(step), self._report(step, record, passed_s, samples, waited=True)]

    def _installed(self, step: int) -> m.ViewInstalled:
        """The report of the view that takes effect with a step."""
        group = self._group
        return m.ViewInstalled(
            View(
                number=group.view,
                first_step=step,
                global_batch_size=group.global_batch_size,
                members=tuple(Member(worker, 0) for worker in group.members),
                position=Position(self.epoch, self.samples),
                lr_scale=group.lr_scale,
                reason=group.reason,
            )
        )

    def _first(self, step: int, record: Record, now: float) -> list[Event]:
        """The first step of an attempt: its time is that of the change."""
        events: list[Event] = []
        passed_s = 0.0 if self._since_s is None else max(0.0, now - self._since_s)
        if step <= self.step:
            events += self._rolled_back(step - 1, passed_s)
        count, group = step - self.step, self._group
        samples = group.global_batch_size * count if record.samples is None or count > 1 else record.samples
        # by a checkpoint that is newer than the job knows of
        ahead = self._since_s is None and count > 1 and (record.epoch or 0) > self.epoch
        if ahead:
            self.epoch, self._whole = record.epoch or 0, False
            self._begun = step - 1, self.epoch
        else:
            self._every = max(self._every, count)
        self.stepped, self._at_s, self._since_s = True, record.at_s, now
        installed = self._installed(step)
        report = self._report(step, record, passed_s, samples, waited=True)
        if ahead:  # what of them is of this epoch is not known
            self.samples = group.global_batch_size
        return [*events, installed, report]

    def _report(
        self, step: int, record: Record, step_time_s: float, samples: int, *, waited: bool = False
    ) -> m.StepReport:
        group, loss = self._group, math.nan if record.loss is None else record.loss
        usual_s = 0.0 if waited else step_time_s
        compute_s = min(step_time_s, record.compute_s or usual_s)
        worker_sqnorm, sqnorm, parts = self._norms(record)
        self._losses.add(self.epoch, None if math.isnan(loss) else loss, samples)
        self.step, self.samples = step, self.samples + samples
        self._metrics |= record.metrics
        return m.StepReport(
            step=step,
            view=group.view,
            epoch=self.epoch,
            workers=len(group.members),
            global_batch_size=group.global_batch_size,
            samples=samples,
            step_time_s=step_time_s,
            compute_s=compute_s,
            update_s=0.0,
            data_wait_s=0.0,
            loss=loss,
            mean_worker_sqnorm=worker_sqnorm,
            mean_sqnorm=sqnorm,
            noise_parts=parts,
            worker_compute_s=dict.fromkeys(group.members, compute_s),
            pieces=_shares(group.members, samples),
        )

    def _norms(self, record: Record) -> tuple[float, float, int]:
        """Mean squared norm of parts of the batch, of the whole, and the number of parts: 1 if nothing is known."""
        return record.norms or self._gradients.norms(record.successive)

    # ---- epochs --------------------------------------------------------------------------------------------

    def _ended(self, record: Record) -> list[Event]:
        number = self.epoch if record.epoch is None else record.epoch
        self.told_epochs = True
        if number < self.epoch:
            return []  # an epoch that began before the checkpoint, and is over again
        epochs, batch = number + 1 - self.epoch, max(self._batches)
        slack = (epochs + 1) * batch + self._every * batch
        self.newest = EpochTold(number, epochs, self.samples, slack, self._whole)
        self._whole = True
        took_s = 0.0 if self._at_s is None else max(0.0, record.at_s - self._at_s)
        self._at_s = None if self._at_s is None else record.at_s
        metrics = self._losses.metrics(self.epoch) | self._metrics
        if record.loss is not None:
            metrics[LOSS] = record.loss
        reason = _printable(record.done)
        stopped_by = f"the program ({reason})" if reason else ""
        return [self._report_epoch(number, metrics | record.metrics, took_s, stopped_by)]

    def missing(self, epochs: int, samples_per_epoch: int) -> int:
        """Steps that a command which tells of no epochs has left out; as many as it may not have told of do not count.

        An epoch may leave out samples that make no whole batch, and a program that tells every 50 steps, the last 49.
        """
        whole = min(max(1, samples_per_epoch // batch) * batch for batch in self._batches)
        wanted = (epochs - self.epoch) * min(whole, samples_per_epoch)
        steps = math.ceil((wanted - self.samples) / self._group.global_batch_size)
        return max(0, steps - self._every + 1)

    def end(self, last: int) -> list[Event]:
        """The command has ended by itself, without telling of epochs: those up to `last` are over."""
        return [self._report_epoch(last, self._losses.metrics(self.epoch) | self._metrics, 0.0)]

    def stop(self) -> list[Event]:
        """The command has ended by itself, as it told that it would: its newest epoch was the last one."""
        stopped_by = f"the program ({self.done})"
        if self._epochs and not self.samples:
            return [msgspec.structs.replace(self._epochs[-1], stopped_by=stopped_by)]
        metrics = self._losses.metrics(self.epoch) | self._metrics
        return [self._report_epoch(self.epoch, metrics, 0.0, stopped_by)]

    def _report_epoch(
        self, number: int, metrics: dict[str, float], took_s: float, stopped_by: str = ""
    ) -> m.EpochReport:
        report = m.EpochReport(number, self.step, metrics, took_s, stopped_by=stopped_by)
        self._epochs.append(report)
        self.epoch, self.samples, self._metrics = number + 1, 0, {}
        return report

    def _rolled_back(self, step: int, took_s: float) -> list[Event]:
        kept = [epoch for epoch in self._epochs if epoch.step <= step]
        self.step, self._epochs = step, kept
        first_step, first_epoch = self._begun
        self.epoch = kept[-1].epoch + 1 if kept else first_epoch if step >= first_step else 0
        self._losses.undo_from(self.epoch)
        self.samples, self._metrics, self._whole = 0, {}, False
        cause = self._group.cause or "the command went on from an older checkpoint"
        # the end of an epoch at that very step is undone with the steps after it, and was done
        return [RolledBack(step, cause, took_s), *(epoch for epoch in kept if epoch.step == step)]


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)


def _shares(members: Sequence[str], samples: int) -> tuple[tuple[str, int, int], ...]:
    """The part of each member in a step, as even as can be: who computed what is not known."""
    count = len(members)
    ends = [samples * (at + 1) // count for at in range(count)]
    return tuple(
        (member, end_before, end) for member, end_before, end in zip(members, [0, *ends], ends, strict=False)
    )
