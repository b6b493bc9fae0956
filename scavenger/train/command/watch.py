"""Whether a command does what it should: tells the metric, trains whole epochs, gets further. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches

from scavenger.errors import ConfigurationError, ScavengerError, TrainingCodeError, WorkersLostError
from scavenger.train.command.progress import CommandProgress, EpochTold
from scavenger.train.supervisor.events import Event, Warned
from scavenger.train.transport import messages as m

EPOCHS_MAX = 5
"""Epochs of an attempt at the job by whose end the goal's metric must have been told; so many that a program may
evaluate after each fifth."""
_EPOCHS_UNTOLD = 2
"""A program that tells of no epoch is warned of by so many epochs' samples: it may evaluate before it tells."""


class MetricWatch:
    """Warns when an epoch is over without the goal's metric; ends a job with a target that is never told it.

    A program may evaluate after each n-th epoch alone: once it has told the metric twice, it is to go on as it did.

    Args:
        metric: `goal.metric`; empty if there is none.
        judged: Whether the goal has a target.
        epochs: `goal.max_epochs`.
    """

    def __init__(self, metric: str, *, judged: bool, epochs: int) -> None:
        self._metric, self._judged, self._epochs = metric, judged, epochs
        self._seen, self._warned = not metric, False
        self._told: set[str] = set()
        self._newest, self._every, self._skipped = -1, 0, False

    def look(
        self, events: Iterable[Event], progress: CommandProgress, samples_per_epoch: int | None
    ) -> list[Event]:
        """What follows from new events; a warning, or nothing.

        Raises:
            TrainingCodeError: If the metric has not been told by the end of the first epochs.
        """
        if not self._metric:
            return []
        skips = list[Event]()
        for event in events:
            if isinstance(event, m.EpochReport):
                self._told |= event.metrics.keys()
                skips += self._skip(event)
        if self._seen:
            return skips
        done = progress.epoch - progress.begun
        unfinished = progress.samples // samples_per_epoch if samples_per_epoch else 0
        over = done >= 1 or unfinished >= _EPOCHS_UNTOLD
        if self._seen or not over:
            return []
        last = progress.epoch >= self._epochs or done >= EPOCHS_MAX or unfinished > EPOCHS_MAX
        if self._judged and last:
            raise TrainingCodeError(self._words(done, unfinished))
        if self._warned:
            return []
        self._warned = True
        return [Warned(self._words(done, unfinished))]

    def _skip(self, report: m.EpochReport) -> list[Event]:
        """A warning, once, of an epoch whose metric was to be told and is not."""
        finite = math.isfinite(report.metrics.get(self._metric, math.nan))
        passed, every = report.epoch - self._newest, self._every
        missing = every > 0 and passed > every - (not finite) and not report.stopped_by
        if finite and passed > 0:
            self._every, self._newest = passed if self._seen else 0, report.epoch
        self._seen = self._seen or finite
        if not missing or self._skipped:
            return []
        self._skipped = True
        epoch = report.epoch + 1 - (passed - every if finite else 0)
        return [
            Warned(
                f"goal.metric: no finite {self._metric} was told of epoch {epoch}, as it was before: what it was there "
                "counts for nothing; see in the log whether a pattern of run.log misses its line"
            )
        ]

    def _words(self, done: int, unfinished: int) -> str:
        metric = self._metric
        if done == 0:
            return (
                f"goal.metric: the program has trained {unfinished} epochs by run.samples and told of the end of none, "
                f"so {metric} is not known; call report.epoch({metric}=...), or see whether a pattern of run.log finds "
                "the line, and whether an epoch has so few samples"
            )
        others = ", ".join(sorted(self._told)) or "nothing"
        close = get_close_matches(metric, self._told, n=1)
        hint = (
            f"; did you mean {close[0]}?"
            if close
            else f"; tell it by report.epoch({metric}=...) or in run.log"
        )
        epochs = "the first epoch" if done == 1 else f"the first {done} epochs"
        return f"goal.metric: no finite {metric} was told of {epochs}, but {others}{hint}"


class EpochWatch:
    """Compares the epochs that a program tells of with the samples of its steps.

    An epoch that was trained without a change has as many as were declared, or the declaration is wrong, and with it
    all times and dollars. One that was interrupted has another number where the program does not go on at its place in
    the data, as by epochs that it counts in steps, whose number changes with the batch size.
    """

    def __init__(self) -> None:
        self._seen: EpochTold | None = None
        self._warned = False

    def look(self, told: EpochTold | None, samples_per_epoch: int | None) -> list[Event]:
        """What follows from the newest epoch that was told of; a warning, once, or nothing.

        Raises:
            ConfigurationError: If an epoch that nothing interrupted has not the samples that it should have.
        """
        if told is None or told is self._seen or not samples_per_epoch:
            return []
        self._seen = told
        wanted = told.epochs * samples_per_epoch
        # steps that no pattern finds are not counted
        if not told.samples or abs(told.samples - wanted) <= told.slack:
            return []
        epochs = f"epoch {told.number + 1}"
        if told.epochs > 1:
            epochs = f"epochs {told.number + 2 - told.epochs} to {told.number + 1}"
        if told.whole:
            raise ConfigurationError(
                f"run.samples: {epochs} of the program ended after {told.samples:,} samples in steps of the global "
                f"batch, and should have {wanted:,}, so times and dollars would be predicted wrongly: correct "
                "run.samples or scavenger_report(samples_per_epoch=...), or tell each step's own by "
                "report.step(samples=...)",
                key="run",
            )
        if self._warned:
            return []
        self._warned = True
        return [
            Warned(
                f"{epochs} of the program ended after {told.samples:,} samples, and should have {wanted:,}: after a "
                "change it went on at another place of its data, so samples were repeated or left out. Keep the place "
                "within an epoch in samples, as the number of steps in an epoch changes with the batch size"
            )
        ]


def why_not_together(world: int, workers: int, global_batch_size: int, *, of_local: bool) -> str:
    """Why the processes of a program do not share its steps as they should; empty if they may.

    Args:
        world: Processes that the program has in all, as it told (`WORLD_SIZE`).
        workers: Workers that it was started on.
        of_local: Whether each process was told the part of a worker, and not the whole batch.
    """
    if world < workers:
        return (
            f"run: the program trains with {world} of {workers} workers (WORLD_SIZE={world}), so they do not train one "
            "model; leave the rendezvous to the job: torchrun without --standalone, --nnodes and --rdzv options"
        )
    if world > workers and of_local:
        trained, on = world * math.ceil(global_batch_size / workers), f"{workers} worker{'s' * (workers > 1)}"
        return (
            f"run: the program has {world} processes on {on} (WORLD_SIZE={world}), and each trains "
            f"{{local_batch_size}}: {trained} samples a step instead of {global_batch_size}. Start one on a worker, as "
            "by torchrun --nproc-per-node 1, or have them divide {global_batch_size} by WORLD_SIZE"
        )
    return ""


class Restarts:
    """Counts the attempts that failed without a step beyond those of the attempts before.

    Args:
        give_up: `elastic.failures.give_up`.
    """

    def __init__(self, give_up: int) -> None:
        self._give_up = give_up
        self._furthest = self._fruitless = 0

    def failed(self, step: int, cause: str, *, killed: bool) -> ScavengerError | None:
        """Handle the end of an attempt that has done steps, by a failure.

        Args:
            step: Its last step.
            cause: Why, as a sentence.
            killed: Whether a worker was lost, or its command was killed from outside, as for memory.

        Returns:
            What ends the job; None if the group is to be started again.
        """
        if step > self._furthest:
            self._furthest, self._fruitless = step, 0
            return None
        self._fruitless += 1
        if self._fruitless < self._give_up:
            return None
        words = (
            f"run: {cause}; so did {self._fruitless} starts before it, and none went beyond step {self._furthest} "
            "(elastic.failures.give_up)"
        )
        if killed:
            return WorkersLostError(
                f"{words}; save checkpoints more often, by checkpoint.every, and resume the job"
            )
        return TrainingCodeError(words)
