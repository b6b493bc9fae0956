"""The loop of a script over its loader in a worker, whatever library computes the gradients."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy.typing as npt

from scavenger.errors import ConfigurationError, NotSupportedError, TrainingCodeError
from scavenger.sdk import loop
from scavenger.sdk.loop import Batch, Job
from scavenger.sdk.script import ScriptRun, Skipped

__all__ = ["Batches", "Described", "ElasticLoader", "ScriptLoop", "told_at"]

Array = npt.NDArray[Any]


class Batches(Protocol):
    """Reads the batches of one worker, in an order that all workers have.

    Attributes:
        samples: Of an epoch.
        batch_size: Of the loader's own batches.
        steps: Of an epoch with these.
    """

    samples: int
    batch_size: int
    steps: int

    def read(self, epoch: int, parts: Sequence[range], number: int, stride: int) -> Any:
        """A part of a batch, of positions of the order; if nothing changes, the next batch begins `stride` later."""
        ...

    def few(self, epoch: int) -> Any:
        """A batch of few samples, for a worker that has none of a step."""
        ...


@dataclass(frozen=True, slots=True)
class Described:
    """What a script trains, in words and numbers.

    Attributes:
        model: Name of its class.
        weights: Number of trained weights.
        optimizer: Name of its class; empty if the script has none that is known.
        notes: What its user should know.
    """

    model: str
    weights: int
    optimizer: str = ""
    notes: tuple[str, ...] = ()


class ScriptLoop(ABC):
    """What a script has prepared in a worker; it has the loop over the loader, and tells metrics.

    Args:
        run: The script's.
        batches: Reads the batches.

    Attributes:
        batches: Reads the batches.
        job: The job; None while the script is only looked at.
        objects: What the script gets.
    """

    objects: tuple[Any, ...] = ()

    def __init__(self, run: ScriptRun, batches: Batches) -> None:
        self._run, self._place, self.batches = run, run.place(), batches
        self.job: Job | None = None
        self._metrics: dict[str, float] = {}
        self._loss: float | None = None
        self.pass_ = 0
        """Passes over the loader that the script has made or skipped."""
        self._batch: Batch | None = None
        self._part = range(0)
        """The positions that are computed at once."""
        self._number, self._parts_left = 0, 0
        """Number of that part, and how many of the batch follow it."""

    def _join(self) -> None:
        """Wait until this worker is a member of the job, unless the script is only looked at."""
        if not self._run.looks:
            self.job = loop.init(
                [self.batches.samples],
                state=self._state,
                load=self._load,
                evaluate=lambda: dict(self._metrics),
                apart=True,
            )

    @abstractmethod
    def _state(self) -> Mapping[str, Array]: ...

    @abstractmethod
    def _load(self, state: dict[str, Array]) -> None: ...

    @abstractmethod
    def described(self) -> Described:
        """What the script trains."""

    # ---- the loop over the loader --------------------------------------------------------------------------

    def epoch(self) -> Iterator[Any]:
        """The batches of this worker in the epoch, until it is over for all.

        Raises:
            Skipped: If the job has this epoch behind it.
        """
        self._check()
        around = self._run.epoch_begins()
        job = self.job
        assert job is not None
        if self._batch is not None:
            self._refuse(
                "the script left the loop over the loader before its end; the others wait for it there: let each "
                "epoch end, and have the job's goal end training"
            )
        if not around and (job.epoch or self.pass_):
            self._refuse(
                "the loop over epochs is no `for` statement of the script, so a worker that joins could not begin in "
                "the right one: write `for epoch in range(...)` there"
            )
        if self.pass_ < job.epoch:
            self.pass_ += 1
            raise Skipped
        evaluated = self._metrics
        for batch in job.batches():
            if evaluated is self._metrics:
                self._metrics = {}  # an epoch that is not evaluated has none
            self._batch = batch
            yield from self._computed(job, batch)
            self._batch, loss, self._loss = None, self._loss, None
            job.notify_batch_end(loss=loss)
        self.pass_ = job.epoch

    def only_evaluates(self) -> bool:
        """Whether the script computes no gradients now, so that it may go over its own loader."""
        return False

    def _check(self) -> None:  # noqa: B027 - most have nothing to refuse
        """Refuse, before an epoch, what a job could not do."""

    @abstractmethod
    def _computed(self, job: Job, batch: Batch) -> Iterator[Any]:
        """Have the script compute a batch: yields its samples, and ends when their gradients are applied."""

    def _read(self, job: Job, parts: Sequence[range], number: int) -> Any:
        """The samples of a part of a batch; few ones that count for nothing if it has none.

        The script then does all that the others do.
        """
        self._part, self._number, self._parts_left = parts[number], number, len(parts) - number - 1
        if not self._part:
            return self.batches.few(job.epoch)
        return self.batches.read(job.epoch, parts, number, job.stride)

    @property
    def at_once(self) -> int:
        """Samples that are computed at once now; 0 outside of the loop over the loader."""
        return 0 if self._batch is None else len(self._part)

    def _samples_of(self, batch: Batch) -> int:
        """How many of the samples of a batch this process computes."""
        return len(batch)

    def _refuse(self, words: str, *, at: str = "") -> NoReturn:
        raise TrainingCodeError(f"{at or self._run.place()}: {words}")

    # ---- what the script tells -----------------------------------------------------------------------------

    def log(self, metrics: Mapping[str, float]) -> None:
        """See `scavenger.torch.log`."""
        for name, value in metrics.items():
            try:
                number = float(value)
            except (TypeError, ValueError):
                self._refuse(f"elastic.log({name}=...) takes a number, not {type(value).__name__}")
            if name == "loss" and (batch := self._batch) is not None:
                before = self._loss if self._number and self._loss else 0.0
                self._loss = before + number * len(self._part) / max(1, self._samples_of(batch))
            else:
                self._metrics[name] = number

    def leave(self) -> None:
        """See `Prepared.leave`; returns only by `Left`."""
        if self.job is not None:
            self.job.leave()
        self.end("the script has ended at one worker")

    def end(self, why: str) -> None:
        """See `Prepared.end`; returns only by `Left`."""
        job = self.job
        if job is None:
            return
        if self._batch is not None:
            self._refuse(
                "the script left the loop over the loader before its end; the others wait for it there"
            )
        while True:
            for _ in job.batches():
                break
            else:
                continue
            if self.pass_ < job.epoch:
                self._refuse(
                    f"{why}, and the job is in epoch {job.epoch + 1}: a worker that joins begins with the job's first "
                    "epoch, and gets the state of the others; leave out what the script itself resumes from"
                )
            raise TrainingCodeError(
                f"{self._run.place()}: {why} after epoch {job.epoch}, before the goal of the job is reached: lower "
                "goal.max_epochs, or give the script more epochs"
            )


class ElasticLoader:
    """The loader that a script in a job loops over; it has the attributes of the one that was given.

    Its length is that of an epoch in the present batch of the job. Where the script only evaluates, it is that one.
    """

    def __init__(self, script: ScriptLoop, loader: Any) -> None:
        self._script, self._loader = script, loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader) if self._script.only_evaluates() else self._script.epoch()

    def __len__(self) -> int:
        if self._script.only_evaluates():
            return len(self._loader)
        job, batches = self._script.job, self._script.batches
        stride = 0 if job is None else job.stride
        return -(-batches.samples // stride) if stride else batches.steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


@contextlib.contextmanager
def told_at(place: Callable[[], str]) -> Iterator[None]:
    """Have what is refused begin with a place in the script."""
    try:
        yield
    except (NotSupportedError, ConfigurationError) as error:
        raise NotSupportedError(f"{place()}: {error}") from error
    except TrainingCodeError as error:
        raise TrainingCodeError(f"{place()}: {error}") from error
