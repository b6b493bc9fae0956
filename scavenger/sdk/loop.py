"""Custom training loops, made elastic by four calls: `init`, `batches`, `push_pull`, `notify_batch_end`.

For scripts that do not use `KerasJob`. Each worker holds a whole replica and runs the same function::

    from scavenger.sdk import loop

    def train():
        weights, optimizer = build()
        job = loop.init(shards=[500] * 20, state=lambda: {"w": weights.numpy()}, load=restore)
        for epoch in job.epochs(3):
            for batch in job.batches(local_batch_size=32):
                loss, gradient = compute(read(batch.shard, batch.start, batch.stop))
                mean = job.push_pull({"w": gradient})
                optimizer.apply([(mean["w"], weights)])
                job.notify_batch_end(loss=loss)

`scavenger.train.custom_loop.run.run_loop` starts the workers, and adds and removes them while the others train. After
Wu et al., "Elastic Deep Learning in Multi-Tenant GPU Clusters", section 3, which also names the calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from scavenger.errors import ConfigurationError, TrainingCodeError
from scavenger.sdk.process_groups import Groups

__all__ = [
    "Batch",
    "Evaluation",
    "Granted",
    "Job",
    "Left",
    "Link",
    "Progress",
    "Source",
    "Step",
    "borrows",
    "connect",
    "init",
]

Array = npt.NDArray[Any]
State = Mapping[str, Any]
Evaluation = Callable[[], Mapping[str, float]]

STATISTICS = "statistics/"
"""Names of arrays that `push_pull` averages, but that are no gradients, begin with this: they are no gradient noise."""


class Left(BaseException):
    """Raised when the job no longer needs this worker, to end the training function. Do not catch it."""


class Source(Protocol):
    """Data that can be read shard by shard."""

    @property
    def sizes(self) -> Sequence[int]:
        """Number of samples of each shard; the same at every worker."""
        ...

    def read(self, shard: int, start: int, stop: int) -> Any:
        """Read samples `start` to `stop` (exclusive) of a shard; none if both are equal."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples `start` to `stop` (exclusive) of a shard; `data` holds them if the job has a source, else None.

    The length is the number of samples. It is 0 in a step in which only other workers have samples.
    """

    shard: int
    start: int
    stop: int
    data: Any = None

    def __len__(self) -> int:
        return self.stop - self.start


class Granted(NamedTuple):
    """Samples that only this worker may read, in order; its next ones begin `stride` later, if nothing changes."""

    shard: int
    attempt: tuple[int, int]
    start: int
    stop: int
    stride: int = 0


class Step(NamedTuple):
    """A step that every worker applies; `share` and `lr_scale` are as in `Progress`, from the next step on.

    If `borrowed`, the arrays of the mean are valid only until the step is reported as applied. `samples` are those of
    all workers in the step. Means of gradients that a process group has formed are where it did, and not among them.
    """

    step: int
    epoch_over: bool
    workers: int
    mean: dict[str, Array]
    share: int = 0
    lr_scale: float = 1.0
    borrowed: bool = False
    samples: int = 0


class Progress(NamedTuple):
    """The job's progress when a worker joins.

    Attributes:
        share: Samples that this worker reads in a step; 0 if the training function chooses that.
        lr_scale: Factor for the learning rate.
        stride: Of the steps that are made now, see `Granted`.
    """

    step: int
    epoch: int
    workers: int
    share: int = 0
    lr_scale: float = 1.0
    stride: int = 0


class Link(Protocol):
    """A worker's connection to the job. Each method may raise `Left`."""

    @property
    def worker(self) -> str:
        """This worker's name."""
        ...

    def enter(
        self,
        sizes: Sequence[int],
        state: Callable[[], dict[str, Array]],
        load: Callable[[dict[str, Array]], None],
        evaluate: Evaluation | None = None,
        *,
        apart: bool = False,
    ) -> Progress:
        """Wait until this worker is a member and has loaded the state of the others."""
        ...

    def seek(self, epoch: int) -> Granted | Step | None:
        """Ask for samples; returns a step instead if one was made without this worker, None if the epoch is over."""
        ...

    def leave(self) -> None:
        """See `Job.leave`."""
        ...

    def allocate(self, like: Mapping[str, Array]) -> dict[str, Array]:
        """Make arrays that `push` need not copy."""
        ...

    def holds(self, groups: Groups) -> bool:
        """See `Job.holds`."""
        ...

    def push(self, part: Granted, tensors: dict[str, Array]) -> Step:
        """Send this worker's gradients of some samples; wait for the mean over all workers."""
        ...

    def boundary(self, epoch: int, samples: int, loss: float | None, *, over: bool) -> None:
        """Report that the step is applied; if the epoch is `over`, messages wait for what the worker does next."""
        ...


Load = Callable[[Any, dict[str, Array]], None]


def borrows(load: Load) -> Load:
    """Mark a method for `init(load=...)` that keeps none of the arrays: it gets them without a copy.

    They hold until it returns, and must not be written to.
    """
    load.borrows = True  # type: ignore[attr-defined]
    return load


_link: Link | None = None


def connect(link: Link | None) -> None:
    """Set the connection that `init` uses; called by the process that starts the training function."""
    global _link
    _link = link


def init(
    shards: Sequence[int] | Source,
    *,
    state: Callable[[], State],
    load: Callable[[dict[str, Array]], None],
    evaluate: Evaluation | None = None,
    apart: bool = False,
) -> Job:
    """Join the job: wait until this worker is needed, then load the state of the others.

    Do slow work (imports, building and tracing the model) before this call: the others train meanwhile.

    Args:
        shards: Number of samples of each shard; or a source, which also provides the `data` of each batch.
        state: The whole replica as named arrays: weights, optimizer slots, counters. Called between steps.
        load: Restores such a state. Not called at the worker whose replica the others copy.
        evaluate: Returns metrics of the replica by name, such as `val_accuracy`, for the goal of a job file, which has
            it called at one worker whenever an epoch ends. `LoopJob(metrics=...)` names them. It must not change the
            replica.
        apart: Whether any sample can be read, and not just shard by shard: then there is one shard, of all samples,
            and a batch of the job is the next samples of it, in an order that the training function gives them.

    Returns:
        The job, ready to train.

    Raises:
        ConfigurationError: If this process is not a worker.
        TrainingCodeError: If there are no samples.
    """
    if _link is None:
        raise ConfigurationError("loop.init works in a worker: start the function with scavenger.run_loop")
    source = None if isinstance(shards, Sequence) else shards
    sizes = [int(size) for size in (shards if isinstance(shards, Sequence) else shards.sizes)]
    if min(sizes, default=-1) < 0 or not any(sizes):
        raise TrainingCodeError(
            "loop.init needs the number of samples of each shard, and some samples in all"
        )
    progress = _link.enter(sizes, lambda: _arrays(state(), "state"), load, evaluate, apart=apart)
    return Job(_link, source, progress)


class Job:
    """A job that this worker is a member of. Not thread-safe.

    Attributes:
        epoch: Current epoch, 0-based; the same at every worker.
        step: The last step that was applied.
        workers: Number of workers in that step.
        lr_scale: Factor for the learning rate, by `elastic.lr_scaling` of the job file.
        stride: See `Granted`; of the batch before, if this one is empty.
    """

    def __init__(self, link: Link, source: Source | None, progress: Progress) -> None:
        self._link, self._source = link, source
        self.step, self.epoch, self.workers, self._share, self.lr_scale, self.stride = progress
        self._granted: Granted | None = None
        self._batch: Batch | None = None
        self._made: Step | None = None
        """The step that the current batch is part of."""
        self._pulled = False

    @property
    def worker(self) -> str:
        """This worker's name; names are never reused in a job."""
        return self._link.worker

    @property
    def samples(self) -> int:
        """Samples of all workers in the step whose mean was pulled; 0 before, and where that is not told."""
        return 0 if self._made is None else self._made.samples

    @property
    def epoch_over(self) -> bool:
        """Whether the step whose mean was pulled is the last one of its epoch."""
        return self._made is not None and self._made.epoch_over

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Iterate over the epochs, from the current one: a worker that joins late does not start from the first.

        Args:
            count: Number of epochs of the job; None in a job with a job file, whose `goal` ends it.
        """
        while count is None or self.epoch < count:
            before = (self.epoch, self.step)
            yield self.epoch
            if before == (self.epoch, self.step):
                raise TrainingCodeError("an epoch was left without a step: read it with job.batches")

    def batches(self, local_batch_size: int | None = None) -> Iterator[Batch]:
        """Iterate over this worker's batches of the epoch; the epoch ends after the same step for all workers.

        After a `break`, the next call continues where this one stopped.

        Args:
            local_batch_size: Largest batch, samples; a batch never spans two shards. None in a job with a job file,
                which chooses it.

        Raises:
            ValueError: If it is below 1.
            TrainingCodeError: If a batch is taken before the last one was pushed and notified; or if the size is given
                where the job chooses it, or is not where nobody does.
        """
        if local_batch_size is not None and local_batch_size < 1:
            raise ValueError(f"no batch of {local_batch_size} samples")
        if local_batch_size is not None and self._share:
            raise TrainingCodeError("the job file's job chooses the batch size: write job.batches()")
        if local_batch_size is None and not self._share:
            raise TrainingCodeError("run_loop chooses no batch size: write job.batches(local_batch_size=...)")
        epoch = self.epoch
        while True:
            if self._batch is not None:
                raise TrainingCodeError(
                    "each batch needs one job.push_pull and then one job.notify_batch_end"
                )
            if self.epoch != epoch:
                return
            batch = self._next(local_batch_size or self._share)
            if batch is None:
                self.epoch += 1
                return
            self._batch = batch
            yield batch

    def _next(self, local_batch_size: int) -> Batch | None:
        if self._granted is None:
            sought = self._link.seek(self.epoch)
            if sought is None:
                return None
            if isinstance(sought, Step):
                self._made = sought
                return Batch(0, 0, 0, self._read(0, 0, 0))
            self._granted, self.stride = sought, sought.stride
        shard, start = self._granted.shard, self._granted.start
        # what is granted for one step is to be read in it
        stop = (
            self._granted.stop if self._granted.stride else min(start + local_batch_size, self._granted.stop)
        )
        return Batch(shard, start, stop, self._read(shard, start, stop))

    def _read(self, shard: int, start: int, stop: int) -> Any:
        return None if self._source is None else self._source.read(shard, start, stop)

    def leave(self) -> None:
        """Have the job end with the epoch that is over, as the training code has left its loop over epochs."""
        self._link.leave()

    def allocate(self, like: Mapping[str, Array]) -> dict[str, Array]:
        """Make arrays of these names, shapes and types, of zeros, that `push_pull` sends without a copy.

        They are in memory that is shared with the process that forms the mean, where there is such memory. So they may
        be written only before `push_pull` and after it, which is all that a thread can do; and all arrays of a
        `push_pull` must come from one call.
        """
        return self._link.allocate(like)

    def holds(self, groups: Groups) -> bool:
        """Offer process groups that average gradients; returns whether those of this step may stay where they are.

        Then `push_pull` gets the arrays as ever, but those of gradients need not be written: they are asked for by
        `groups.give()` if they are needed all the same, and then the mean has them, too.
        """
        return self._made is None and self._link.holds(groups)

    def push_pull(
        self,
        tensors: State | None,
        samples: int | None = None,
        *,
        into: dict[str, Array] | None = None,
        borrow: bool = False,
    ) -> dict[str, Array]:
        """Average the workers' tensors over all samples of the step; waits for all workers.

        Args:
            tensors: Means over this worker's samples, as float arrays or objects that NumPy converts to them, with
                the same names and shapes at every worker. Ignored if the batch is empty: pass None.
            samples: Number of samples of the batch, checked if given.
            into: Arrays that the mean is written to; they may be those that are pushed. None for new ones.
            borrow: Whether the arrays may be those in which the mean was formed, without a copy, which are those that
                were pushed if nobody else has pushed. All workers read them, so they must not be written to, and hold
                until `notify_batch_end`. Ignored with `into`.

        Returns:
            The mean by name, with the given types, read-only unless it is `into` or borrowed; bit-identical at every
            worker.

        Raises:
            TrainingCodeError: If there is no batch, it was already pushed, or has another size.
        """
        batch = self._batch
        if batch is None or self._pulled:
            raise TrainingCodeError("job.push_pull is to be called once for each batch of job.batches")
        if samples is not None and samples != len(batch):
            raise TrainingCodeError(f"the batch has {len(batch)} samples, not {samples}")
        if self._made is None:
            assert self._granted is not None
            part = self._granted._replace(start=batch.start, stop=batch.stop)
            given = _arrays(tensors or {}, "push_pull")
            for name, tensor in given.items():
                if tensor.dtype.kind != "f":
                    raise TrainingCodeError(f"push_pull takes floats, but {name!r} is {tensor.dtype}")
            if not given:
                raise TrainingCodeError("push_pull of a batch with samples needs their gradients")
            self._made = self._link.push(part, given)
        self._pulled = True
        return _received(self._made, into, borrow=borrow)

    def notify_batch_end(self, loss: Any = None) -> None:
        """Report that the mean is applied; workers join and leave during this call.

        Args:
            loss: Mean over this worker's samples; for the report.

        Raises:
            TrainingCodeError: If no mean was pulled.
        """
        batch, made = self._batch, self._made
        if batch is None or made is None or not self._pulled:
            raise TrainingCodeError("job.notify_batch_end comes after job.push_pull, and once")
        self._batch, self._made, self._pulled = None, None, False
        if self._granted is not None and len(batch):
            self._granted = self._granted._replace(start=batch.stop)
            if batch.stop == self._granted.stop:
                self._granted = None
        epoch = self.epoch
        self.step, self.workers, self._share, self.lr_scale = (
            made.step,
            made.workers,
            made.share,
            made.lr_scale,
        )
        if made.epoch_over:
            self.epoch, self._granted = self.epoch + 1, None
        value = None if loss is None or not len(batch) else float(loss)
        if value is not None and not math.isfinite(value):
            value = None  # messages carry finite numbers only; the check of the gradients reports the fault
        self._link.boundary(epoch, len(batch), value, over=made.epoch_over)


def _received(made: Step, into: dict[str, Array] | None, *, borrow: bool) -> dict[str, Array]:
    """The mean of a step, in arrays that stay as they are, unless they are borrowed."""
    if into is not None:
        for name, array in made.mean.items():
            np.copyto(into[name], array)
        return into
    if borrow or not made.borrowed:
        return made.mean
    copies = {name: array.copy() for name, array in made.mean.items()}
    for copy in copies.values():
        copy.flags.writeable = False
    return copies


def _arrays(tensors: State, what: str) -> dict[str, Array]:
    found = {}
    for name, tensor in tensors.items():
        array = np.asarray(tensor)
        if array.dtype.kind not in "fiub":
            raise TrainingCodeError(
                f"{what}: {name!r} is {type(tensor).__name__}, not an array of numbers (sparse gradients: "
                "tf.convert_to_tensor)"
            )
        found[str(name)] = array
    return found
