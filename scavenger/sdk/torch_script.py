"""What `scavenger.torch.prepare` makes of a script's model, optimizer and loader in a worker.

Where `DistributedDataParallel` averages gradients, there the workers do: at the end of `backward`, before anything of
the script reads `.grad`. So clipping, scalers, optimizers and schedulers are the script's own, and see what they would
see there.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from scavenger.errors import ConfigurationError, NotSupportedError, TrainingCodeError
from scavenger.sdk import loop
from scavenger.sdk.loop import Batch, Job
from scavenger.sdk.script import ScriptRun, Skipped
from scavenger.sdk.torch import Array, Elastic
from scavenger.sdk.torch_loader import BatchLoader

__all__ = ["ElasticLoader", "TorchScript", "prepared"]

_SCHEDULE = "schedule"
_KINDS: dict[str, tuple[type, ...]] = {
    "model": (torch.nn.Module,),
    "optimizer": (torch.optim.Optimizer,),
    "loader": (DataLoader,),
    "scheduler": (LRScheduler, torch.optim.lr_scheduler.ReduceLROnPlateau),
    "scaler": (torch.amp.GradScaler,),
}
_NEEDED = {"model": "a torch.nn.Module", "optimizer": "its optimizer", "loader": "the DataLoader of training"}


def prepared(run: ScriptRun, objects: tuple[Any, ...], at_once: int | None = None) -> TorchScript:
    """Take what a script prepares, and wait until this worker is a member of the job.

    Raises:
        NotSupportedError: If one of the objects cannot be trained in a job; begins with the place.
        TrainingCodeError: If one is missing or given twice.
    """
    place, found = run.place(), dict[str, Any]()
    for number, one in enumerate(objects, start=1):
        kind = next((kind for kind, types in _KINDS.items() if isinstance(one, types)), "")
        if not kind:
            hidden = ": a loader that is none hides its data set" if hasattr(one, "__iter__") else ""
            raise NotSupportedError(
                f"{place}: argument {number} of elastic.prepare is a {type(one).__name__}{hidden}: it takes a "
                "torch.nn.Module, its optimizer and a DataLoader, a scheduler of the learning rate, a GradScaler"
            )
        if kind in found:
            more = "; that of validation stays as it is" if kind == "loader" else ""
            raise NotSupportedError(f"{place}: elastic.prepare takes one {kind}, and gets two{more}")
        found[kind] = one
    if missing := [words for kind, words in _NEEDED.items() if kind not in found]:
        raise TrainingCodeError(f"{place}: elastic.prepare also needs {' and '.join(missing)}")
    if isinstance(found["model"], DistributedDataParallel):
        module = found["model"].module
        module.__dict__["module"] = module  # scripts say `ddp.module`; an attribute would be a part of itself
        found["model"] = module
    if at_once is not None and (not isinstance(at_once, int) or at_once < 1):
        raise TrainingCodeError(f"{place}: elastic.prepare(at_once={at_once!r}): it is a number of samples")
    if at_once is not None and "scaler" in found:
        raise NotSupportedError(
            f"{place}: elastic.prepare(at_once=...) with a GradScaler: leave one of them out"
        )
    kinds = [next(k for k, o in _KINDS.items() if isinstance(one, o)) for one in objects]
    return TorchScript(run, found, kinds, at_once)


class _Replica(Elastic):
    """An `Elastic` that exchanges gradients at the end of `backward`, so that nobody can change them before."""

    def __init__(self, script: TorchScript, given: Mapping[str, Any]) -> None:
        self._script, self._begun = script, False
        self._stepped_at: dict[Any, int] = {}
        """Versions of the flat arrays after the optimizer's last step."""
        self._kept: dict[int, Any] = {}
        """By place, sums of the gradients of parts of the share, each times its items."""
        super().__init__(
            given["model"], given["optimizer"], scheduler=given.get("scheduler"), scaler=given.get("scaler")
        )

    def _receive(self, parameter: Any) -> None:
        place, gradient = self._places.get(id(parameter)), parameter.grad
        own = None if place is None else self._own[place]
        if not self._begun:
            self._begun = True
            # nothing but this pass has written to the gradients since the step
            at = self._stepped_at.get(parameter.dtype, -1) + 1
            left = own is not None and gradient is own and own._version == at
            self._script.backward_begins(left=left)
            # a DistributedDataParallel around the module has a callback, too, which must be before ours
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._end))
        if place is not None and gradient is not own:
            super()._place(parameter, place)

    def _end(self) -> None:
        self._begun = False
        self._script.backward_ended()

    def stepped(self) -> None:
        """Note that the optimizer has made its step."""
        self._stepped_at = {dtype: flat._version for dtype, flat in self._flat.items()}

    _TO_DIFFER = "; give a scheduler of the learning rate to elastic.prepare, too"
    _TO_SCALE = "give it to elastic.prepare(model, optimizer, loader, scaler), too"

    def _refuse_changed(self) -> None:
        """Nobody could."""

    def keep(self, job: Job, items: float) -> None:
        """Put the gradients of a part of the share aside, so that there are none."""
        self._arrange(job, len(self._settings()))  # a layer may just have been unfrozen
        for place, (parameter, own) in enumerate(zip(self._trained, self._own, strict=True)):
            if parameter.grad is not None:
                kept = self._kept.get(place)
                self._kept[place] = own * items if kept is None else kept.add_(own, alpha=items)
                parameter.grad = None

    def add_kept(self, items: float, of: float) -> None:
        """Make the gradients of the last part those of the share: it has so many items `of` all."""
        for place, (parameter, own) in enumerate(zip(self._trained, self._own, strict=True)):
            kept = self._kept.pop(place, None)
            if parameter.grad is not None:
                own.mul_(items / of)
            if kept is not None:
                kept.div_(of)
                parameter.grad = own.copy_(kept) if parameter.grad is None else own.add_(kept)

    def scaled(self, factor: float) -> None:
        """Multiply the learning rates."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * factor


class TorchScript:
    """Model, optimizer and loader of a script in a worker.

    Args:
        run: The script's.
        given: What it has prepared, by kind.
        kinds: The kinds in the order of the call.

    Attributes:
        replica: The model with all that belongs to it.
        batches: Reads the batches.
        job: The job; None while the script is only looked at.
        objects: What the script gets.
        loader: The loader among them.
        items: Of how many items, such as labels, the loss of what is computed now is the mean; None for its samples.
        in_batches: Whether a schedule that is stepped within an epoch is one of batches.
        exchanged: Called when the gradients of a step are exchanged, with whether it is the epoch's last one.
    """

    def __init__(
        self, run: ScriptRun, given: dict[str, Any], kinds: list[str], at_once: int | None = None
    ) -> None:
        self._run, self._place, self._at_once = run, run.place(), at_once
        self.batches = BatchLoader(given["loader"], run.seed, self._place)
        optimizer, scheduler = given["optimizer"], given.get("scheduler")
        with _told_at(lambda: self._place):
            self.replica = _Replica(self, given)
        # Accelerate has schedules look at its own object around the optimizer
        if (
            scheduler is not None
            and getattr(scheduler.optimizer, "optimizer", scheduler.optimizer) is not optimizer
        ):
            raise TrainingCodeError(
                f"{self._place}: the scheduler is of another optimizer than the one given"
            )
        self._metrics: dict[str, float] = {}
        self._loss: float | None = None
        self.pass_ = 0
        """Passes over the loader that the script has made or skipped."""
        self._batch: Batch | None = None
        self._part = range(0)
        """The positions that are computed at once."""
        self._exchanged = self._stepped = False
        self._done = 0
        """Samples of the epoch that all workers have trained on, with the step at hand."""
        self._counted = 0
        """Steps of the schedule, of those that are made in batches."""
        self._rates: list[Any] = []
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        if scheduler is not None:
            self._schedule(scheduler)
        self.job: Job | None = None
        if not run.looks:
            self.job = loop.init(
                [self.batches.samples],
                state=self._state,
                load=self._load,
                evaluate=lambda: dict(self._metrics),
                apart=True,
            )
        self.items: float | None = None
        self.in_batches = True
        self.exchanged: Callable[..., None] = _nothing
        self._items: list[float] = []
        """Of each part of the share, up to that which is computed now."""
        self.loader = given["loader"] = ElasticLoader(self, given["loader"])
        self.objects = tuple(given[kind] for kind in kinds)

    # ---- the replica ---------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Array]:
        return self.replica.state() | {_SCHEDULE: np.array([self._counted, self._done], np.int64)}

    def _load(self, state: dict[str, Array]) -> None:
        self._counted, self._done = (int(number) for number in state[_SCHEDULE])
        self.replica.load({name: array for name, array in state.items() if name != _SCHEDULE})

    # ---- the loop over the loader --------------------------------------------------------------------------

    def epoch(self) -> Iterator[Any]:
        """The batches of this worker in the epoch, until it is over for all.

        Raises:
            Skipped: If the job has this epoch behind it.
        """
        around = self._run.epoch_begins()
        job = self.job
        assert job is not None
        if self._batch is not None:
            self._refuse(
                "the script left the loop over the loader before its end; the others wait for it there: let each "
                "epoch end, and have the job's goal end training"
            )
        self._refuse_unprepared()
        if not around and (job.epoch or self.pass_):
            self._refuse(
                "the loop over epochs is no `for` statement of the script, so a worker that joins could not begin in "
                "the right one: write `for epoch in range(...)` there"
            )
        if self.pass_ < job.epoch:
            self.pass_ += 1
            raise Skipped
        for batch in job.batches():
            self._batch = batch
            parts = self._parts(batch)
            self._items.clear()
            for number, self._part in enumerate(parts):
                self._exchanged = self._stepped = False
                if self._part:
                    yield self.batches.read(job.epoch, parts, number, job.stride)
                else:  # it counts for nothing, but the script does all that the others do
                    yield self.batches.few(job.epoch)
                self._end_part()
            self._batch, loss, self._loss = None, self._loss, None
            job.notify_batch_end(loss=loss)
        self.pass_, self._done = job.epoch, 0

    def _parts(self, batch: Batch) -> list[range]:
        """The positions of a batch, cut into as few parts of about one size as fit."""
        number = -(-len(batch) // (self._at_once or max(1, len(batch)))) or 1
        ends = [batch.start + len(batch) * part // number for part in range(number + 1)]
        return [range(start, stop) for start, stop in itertools.pairwise(ends)]

    def _end_part(self) -> None:
        if not self._exchanged:
            self._refuse("no loss.backward() in a batch: each batch of the loader needs one")
        if not self._stepped and self.replica.scaler is None:
            self._refuse(
                "no optimizer.step() in a batch: each batch of the loader needs one; to compute a large batch in "
                "parts, write elastic.prepare(..., at_once=SAMPLES)"
            )

    def _refuse_unprepared(self) -> None:
        scheduled = getattr(self.replica.optimizer.step, "_wrapped_by_lr_sched", False)
        if scheduled and self.replica.scheduler is None:
            self._refuse(
                "the optimizer has a scheduler of the learning rate, which a worker that joins would not get: give it "
                "to elastic.prepare, too",
                at=self._place,
            )

    def _refuse(self, words: str, *, at: str = "") -> NoReturn:
        raise TrainingCodeError(f"{at or self._run.place()}: {words}")

    # ---- within a batch ------------------------------------------------------------------------------------

    def backward_begins(self, *, left: bool) -> None:
        """Refuse what would make other gradients than those of the batch."""
        if self._batch is None:
            self._refuse(
                "backward() outside of the loop over the loader of elastic.prepare: train there alone"
            )
        if self._exchanged:
            self._refuse("a second backward() in a batch: add the losses, and call backward once")
        if left:
            self._refuse("the gradients of the batch before are still there: call optimizer.zero_grad()")

    def backward_ended(self) -> None:
        """Put the mean of all workers' gradients where the script finds them."""
        job, batch, part = self.job, self._batch, self._part
        assert job is not None
        assert batch is not None
        self._exchanged = True
        items = float(len(part)) if self.items is None else self.items
        self._items.append(items)
        if part.stop < batch.stop:
            self.replica.keep(job, items)
            return
        if part.start > batch.start:
            self.replica.add_kept(items, sum(self._items))
        if self.items is not None:
            self.replica.weigh(sum(self._items) / max(1, len(batch)))
        with _told_at(self._run.place):
            self.replica.average(job)
        self._done += job.samples
        self.exchanged(epoch_over=job.epoch_over)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # the first one is the optimizer
        if closure is None:
            self._ready(optimizer)
            return None

        def computed() -> Any:
            loss = closure()
            self._ready(optimizer)
            if isinstance(loss, torch.Tensor) and loss.numel() == 1:
                self.log({"loss": loss.item()})
            return loss

        return ((optimizer, computed), kwargs) if len(args) > 1 else (args, kwargs | {"closure": computed})

    def _ready(self, optimizer: Any) -> None:
        """Have the optimizer find what it shall apply, at the rate of the job."""
        if self.job is None or not self._exchanged:
            self._refuse("optimizer.step() without a backward() of the batch before it")
        for parameter in self.replica.frozen:  # they may have a gradient of this worker alone
            parameter.grad = None
        if self.job.lr_scale != 1.0:
            self._rates = [group["lr"] for group in optimizer.param_groups]
            self.replica.scaled(self.job.lr_scale)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=False):
            group["lr"] = rate
        self._rates, self._stepped = [], True
        self.replica.stepped()

    def _schedule(self, scheduler: Any) -> None:
        """Have a schedule that is stepped in each batch be as far in an epoch as with the loader's own batches."""
        kind = type(scheduler)

        @functools.wraps(kind.step)
        def by_samples(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            if self._batch is not None and self._part.stop < self._batch.stop:
                return
            if self._batch is None or args or kwargs or not (self._run.by_samples and self.in_batches):
                kind.step(scheduler, *args, **kwargs)
                return
            assert self.job is not None
            own, samples = self.batches.steps, self.batches.samples
            wanted = self.job.epoch * own + math.floor(self._done * own / samples)
            for _ in range(wanted - self._counted):
                kind.step(scheduler)
            self._counted = max(wanted, self._counted)

        scheduler.__class__ = type(
            kind.__name__, (kind,), {"step": by_samples}
        )  # what it keeps stays as it is

    # ---- what the script tells -----------------------------------------------------------------------------

    def log(self, metrics: Mapping[str, float]) -> None:
        """See `scavenger.torch.log`."""
        for name, value in metrics.items():
            try:
                number = float(value)
            except (TypeError, ValueError):
                self._refuse(f"elastic.log({name}=...) takes a number, not {type(value).__name__}")
            if name == "loss" and (batch := self._batch) is not None:
                before = self._loss if self._part.start > batch.start and self._loss else 0.0
                self._loss = before + number * len(self._part) / max(1, len(batch))
            else:
                self._metrics[name] = number

    def end(self, why: str) -> None:
        """Tell the job that the script has left its loop over epochs; returns only by `Left`."""
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
            raise TrainingCodeError(
                f"{self._run.place()}: {why} after epoch {job.epoch}, before the goal of the job is reached: lower "
                "goal.max_epochs, or give the script more epochs"
            )


def _nothing(**_: Any) -> None:
    """What is done where nobody asks for more."""


class ElasticLoader:
    """The loader that a script in a job loops over; it has the attributes of the one that was given.

    Its length is that of an epoch in the present batch of the job.
    """

    def __init__(self, script: TorchScript, loader: Any) -> None:
        self._script, self._loader = script, loader

    def __iter__(self) -> Iterator[Any]:
        return self._script.epoch()

    def __len__(self) -> int:
        job, batches = self._script.job, self._script.batches
        stride = 0 if job is None else job.stride
        return -(-batches.samples // stride) if stride else batches.steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


@contextlib.contextmanager
def _told_at(place: Callable[[], str]) -> Iterator[None]:
    """Have what is refused begin with a place in the script."""
    try:
        yield
    except (NotSupportedError, ConfigurationError) as error:
        raise NotSupportedError(f"{place()}: {error}") from error
    except TrainingCodeError as error:
        raise TrainingCodeError(f"{place()}: {error}") from error
