"""What `scavenger.torch.prepare` makes of a script's model, optimizer and loader in a worker.

Where `DistributedDataParallel` averages gradients, there the workers do: at the end of `backward`, before anything of
the script reads `.grad`. So clipping, scalers, optimizers and schedulers are the script's own, and see what they would
see there.
"""

from __future__ import annotations

import functools
import gc
import importlib
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from scavenger.errors import NotSupportedError, TrainingCodeError
from scavenger.sdk.loop import Batch, Job, borrows
from scavenger.sdk.ranks import cut
from scavenger.sdk.script import ScriptRun
from scavenger.sdk.script_loop import Described, ElasticLoader, ScriptLoop, told_at
from scavenger.sdk.torch import Array, Elastic, array_of
from scavenger.sdk.torch_loader import BatchLoader
from scavenger.sdk.torch_shards import is_divided, like, refuse_otherwise

__all__ = ["TorchScript", "prepared"]

_SCHEDULE = "schedule"
_KINDS: dict[str, tuple[type, ...]] = {
    "model": (torch.nn.Module,),
    "optimizer": (torch.optim.Optimizer,),
    "loader": (DataLoader,),
    "scheduler": (LRScheduler, ReduceLROnPlateau),
    "scaler": (torch.amp.GradScaler,),
}
_FOLLOWER = "follower/"
"""What a module of the script is that follows the model and is not trained, such as an average of it over steps."""
_DIVIDED = "fully_shard divides the model: elastic.processes of the job file says over how many processes of a worker"
_NEEDED = {"model": "a torch.nn.Module", "optimizer": "its optimizer", "loader": "the DataLoader of training"}


def prepared(run: ScriptRun, objects: tuple[Any, ...], at_once: int | None = None) -> TorchScript:
    """Take what a script prepares, and wait until this worker is a member of the job.

    Raises:
        NotSupportedError: If one of the objects cannot be trained in a job; begins with the place.
        TrainingCodeError: If one is missing or given twice.
    """
    place, found, kinds = run.place(), dict[str, Any](), list[str]()
    groups = [
        group for one in objects if isinstance(one, torch.optim.Optimizer) for group in one.param_groups
    ]
    own = {id(parameter) for group in groups for parameter in group["params"]}
    several = sum(isinstance(one, torch.nn.Module) for one in objects) > 1
    for number, one in enumerate(objects, start=1):
        if type(one).__module__.startswith("accelerate."):
            raise NotSupportedError(
                f"{place}: argument {number} of elastic.prepare is Accelerate's {type(one).__name__}: call "
                "elastic.prepare before accelerator.prepare"
            )
        kind = next((kind for kind, types in _KINDS.items() if isinstance(one, types)), "")
        if not kind:
            hidden = ": a loader that is none hides its data set" if hasattr(one, "__iter__") else ""
            raise NotSupportedError(
                f"{place}: argument {number} of elastic.prepare is a {type(one).__name__}{hidden}: it takes a "
                "torch.nn.Module, its optimizer and a DataLoader, a scheduler of the learning rate, a GradScaler"
            )
        if kind == "model" and several and own.isdisjoint(map(id, one.parameters())):
            kind = f"{_FOLLOWER}{sum(before.startswith(_FOLLOWER) for before in kinds)}"
        if kind in found:
            more = "; that of validation stays as it is" if kind == "loader" else ""
            raise NotSupportedError(f"{place}: elastic.prepare takes one {kind}, and gets two{more}")
        found[kind] = one
        kinds.append(kind)
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
    return TorchScript(run, found, kinds, at_once)


class _Replica(Elastic):
    """An `Elastic` that exchanges gradients at the end of `backward`, so that nobody can change them before."""

    def __init__(self, script: TorchScript, given: Mapping[str, Any]) -> None:
        self._script, self._begun = script, False
        self._beginning = threading.Lock()  # each device has a thread that computes gradients there
        self._refusal: TrainingCodeError | None = None
        self._stepped_at: dict[str, int] = {}
        """Versions of the flat arrays after the optimizer's last step."""
        self._stepped_divided: dict[int, int] = {}
        """Versions of divided gradients then, by place."""
        self._kept: dict[int, Any] = {}
        """By place, sums of the gradients of parts of the share, each times its items."""
        self.followers = {name: one for name, one in given.items() if name.startswith(_FOLLOWER)}
        super().__init__(
            given["model"], given["optimizer"], scheduler=given.get("scheduler"), scaler=given.get("scaler")
        )

    def _receive(self, parameter: Any) -> None:
        place, gradient = self._places.get(id(parameter)), parameter.grad
        if not self._begun and self._begins():
            left = place is not None and gradient is self._grads[place] and self._is_left(place)
            try:
                self._script.backward_begins(left=left)
            except (
                TrainingCodeError
            ) as error:  # raised at the end of the pass: hooks run in threads of devices
                self._refusal = error
            # a DistributedDataParallel around the module has a callback, too, which must be before ours
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._end))
        # those that fully_shard divides may still be computed, in a stream of its own
        if place is not None and gradient is not self._grads[place] and not is_divided(parameter):
            super()._place(parameter, place)

    def _is_left(self, place: int) -> bool:
        """Whether nothing but this pass has written to a gradient since the step: it is added to that of before.

        Operations on a divided tensor count its own versions, and `fully_shard` adds to its part alone.
        """
        if is_divided(placed := self._grads[place]):
            return bool(placed._version == self._stepped_divided.get(place))
        return bool(self._own[place]._version == self._stepped_at.get(self._in[place], -1) + 1)

    def _begins(self) -> bool:
        """Note that a backward pass has its first gradient; returns whether no other thread has noted it."""
        with self._beginning:
            first, self._begun = not self._begun, True
        return first

    def _end(self) -> None:
        refusal, self._refusal, self._begun = self._refusal, None, False
        if refusal is not None:
            raise refusal
        for place, (parameter, placed) in enumerate(zip(self._trained, self._grads, strict=True)):
            if parameter.grad is not None and parameter.grad is not placed:
                super()._place(parameter, place)
        self._script.backward_ended()

    def state(self) -> dict[str, Array]:
        return super().state() | {
            f"{follower}/{name}": array_of(tensor)
            for follower, module in self.followers.items()
            for name, tensor in module.state_dict().items()
        }

    @borrows
    def load(self, state: dict[str, Array]) -> None:
        super().load(state)
        for follower, module in self.followers.items():
            found = {
                name: like(present, torch.from_numpy(np.array(state[f"{follower}/{name}"])))
                for name, present in module.state_dict().items()
            }
            module.load_state_dict(found)

    def stepped(self) -> None:
        """Note that the optimizer has made its step."""
        self._stepped_at = {name: flat._version for name, flat in self._flat.items()}
        self._stepped_divided = {
            place: placed._version for place, placed in enumerate(self._grads) if is_divided(placed)
        }

    def _refuse_divided(self, name: str, tensor: Any) -> None:
        run = self._script.run
        if isinstance(tensor, torch.nn.Parameter):
            refuse_otherwise(name, tensor, run.processes)
        else:
            super()._refuse_divided(name, tensor)

    _INIT = "elastic.prepare"
    _TO_DIFFER = (
        "; give a scheduler of the learning rate to elastic.prepare, too, or compute it from the epoch and the number "
        "of the batch: what a script counts begins anew in a worker that joins"
    )
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
                own.copy_(kept) if parameter.grad is None else own.add_(kept)
                parameter.grad = self._grads[place]

    def scaled(self, factor: float) -> None:
        """Multiply the learning rates."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * factor


class TorchScript(ScriptLoop):
    """Model, optimizer and loader of a script in a worker.

    Args:
        run: The script's.
        given: What it has prepared, by kind.
        kinds: The kinds in the order of the call.

    Attributes:
        run: The script's.
        replica: The model with all that belongs to it.
        batches: Reads the batches.
        job: The job; None while the script is only looked at.
        objects: What the script gets.
        loader: The loader among them.
        weight: What gradients are multiplied by, so that the mean over the processes of this worker is that over its
            samples.
        items: Of how many items, such as labels, the loss of what is computed now is the mean; None for its samples.
        in_batches: Whether a schedule that is stepped within an epoch is one of batches.
        exchanged: Called when the gradients of a step are exchanged, with whether it is the epoch's last one.
    """

    def __init__(
        self, run: ScriptRun, given: dict[str, Any], kinds: list[str], at_once: int | None = None
    ) -> None:
        self.run = run
        super().__init__(run, BatchLoader(given["loader"], run.seed, run.place(), run.processes))
        if "scaler" in given:
            run.refuse_several("a GradScaler")
        self._at_once = at_once
        optimizer, scheduler = given["optimizer"], given.get("scheduler")
        with told_at(lambda: self._place):
            self.replica = _Replica(self, given)
        # Accelerate has schedules look at its own object around the optimizer
        if (
            scheduler is not None
            and getattr(scheduler.optimizer, "optimizer", scheduler.optimizer) is not optimizer
        ):
            raise TrainingCodeError(
                f"{self._place}: the scheduler is of another optimizer than the one given"
            )
        self._exchanged = self._stepped = False
        self._of_part = 0
        """Samples of the part that is computed, of all processes of this worker."""
        self.weight = 1.0
        self._done = 0
        """Samples of the epoch that all workers have trained on, with the step at hand."""
        self._counted = 0
        """Steps of the schedule, of those that are made in batches."""
        self._rates: list[Any] = []
        self._others: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """The step in which another optimizer made its first one."""
        _watch(self)
        if run.processes > 1:
            _weigh()
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)
        if scheduler is not None:
            self._schedule(scheduler)
        self._join()
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

    @borrows
    def _load(self, state: dict[str, Array]) -> None:
        self._counted, self._done = (int(number) for number in state[_SCHEDULE])
        self.replica.load({name: array for name, array in state.items() if name != _SCHEDULE})

    def described(self) -> Described:
        module = self.replica.module
        weights = sum(p.numel() for p in module.parameters() if p.requires_grad)
        divided = any(map(is_divided, module.parameters()))
        notes = (_DIVIDED,) if divided else ()
        return Described(type(module).__name__, weights, type(self.replica.optimizer).__name__, notes)

    # ---- the loop over the loader --------------------------------------------------------------------------

    def epoch(self) -> Iterator[Any]:
        yield from super().epoch()
        self._done = 0

    def _computed(self, job: Job, batch: Batch) -> Iterator[Any]:
        parts = self._parts(batch)
        self._items.clear()
        for number, of_processes in enumerate(zip(*parts, strict=True)):
            self._exchanged = self._stepped = False
            batch_here = _placed(self._read(job, parts[self.run.rank], number))
            self._of_part = sum(map(len, of_processes))
            # fully_shard forms the mean of all processes, whatever their samples
            self.weight = len(self._part) * len(parts) / self._of_part if self._of_part else 1.0
            self._run.batch_begins(self._done // (job.stride or self.batches.batch_size))
            yield batch_here
            self._end_part()

    def _parts(self, batch: Batch) -> list[list[range]]:
        """The positions of a batch by process, those of each cut into as few parts of about one size as fit."""
        shares = cut(range(batch.start, batch.stop), self.run.processes)
        most = max(map(len, shares))
        number = -(-most // (self._at_once or max(1, most))) or 1
        return [cut(share, number) for share in shares]

    def _samples_of(self, batch: Batch) -> int:
        return len(cut(range(batch.start, batch.stop), self.run.processes)[self.run.rank])

    def _end_part(self) -> None:
        if not self._exchanged:
            self._refuse(
                "no loss.backward() in a batch: each batch of the loader needs one, unless the loop is within "
                "torch.no_grad()"
            )
        if not self._stepped and self.replica.scaler is None:
            self._refuse(
                "no optimizer.step() in a batch: each batch of the loader needs one; to compute a large batch in "
                "parts, write elastic.prepare(..., at_once=SAMPLES)"
            )

    def _check(self) -> None:
        with told_at(self._run.place):
            self.replica.follow()
        optimizer = self.replica.optimizer
        scheduled = getattr(optimizer.step, "_wrapped_by_lr_sched", False)
        if not self._exchanged:  # before the first epoch
            scheduled = scheduled or _by_plateau(optimizer)
        if scheduled and self.replica.scheduler is None:
            self._refuse(
                "the optimizer has a scheduler of the learning rate, which a worker that joins would not get: give it "
                "to elastic.prepare, too",
                at=self._place,
            )

    def only_evaluates(self) -> bool:
        return not torch.is_grad_enabled()

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
        job, batch = self.job, self._batch
        assert job is not None
        assert batch is not None
        self._exchanged = True
        items = float(self._of_part) if self.items is None else self.items
        self._items.append(items)
        if self._parts_left:
            self.replica.keep(job, items)
            return
        if self._number:
            self.replica.add_kept(items, sum(self._items))
        if self.items is not None:
            self.replica.weigh(sum(self._items) / max(1, len(batch)))
        with told_at(self._run.place):
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

    def other_stepped(self, optimizer: Any) -> None:
        """Refuse a second model of the script, which each worker would train on its own samples alone.

        What is optimized within one batch, as an adversarial example is, has an optimizer of its own each time.
        """
        own = self.replica.optimizer
        if self._batch is None or optimizer is own or optimizer.param_groups is own.param_groups:
            return
        assert self.job is not None
        if self._others.setdefault(optimizer, self.job.step) != self.job.step:
            self._refuse(
                f"another {type(optimizer).__name__} than that of elastic.prepare steps in batch after batch, whose "
                "model would differ from worker to worker: a job trains one model with one optimizer"
            )

    def averaged(self, module: Any) -> None:
        """Refuse an average of the model that a worker that joins would begin anew."""
        if self.job is not None and module not in self.replica.followers.values():
            remedy = "leave it out" if self._run.library_epochs else "give it to elastic.prepare, too"
            self._refuse(
                f"an AveragedModel is not prepared, and a worker that joins would begin it anew: {remedy}"
            )

    def _schedule(self, scheduler: Any) -> None:
        """Have a schedule that is stepped in each batch be as far in an epoch as with the loader's own batches."""
        kind = type(scheduler)

        @functools.wraps(kind.step)
        def by_samples(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            if self._batch is not None and self._parts_left:
                return
            if self._batch is None or args or kwargs or not (self._run.by_samples and self.in_batches):
                if self._batch is not None and kind is CosineAnnealingWarmRestarts:
                    self._refuse_other_share(*args, **kwargs)
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

    def _refuse_other_share(self, epoch: float | None = None) -> None:
        """Refuse to step a schedule to an epoch that is not as far as the job is, in batches of either size."""
        assert self.job is not None
        samples, present = self.batches.samples, self.job.stride or self.batches.batch_size
        told = None if epoch is None else epoch - math.floor(epoch)
        ahead = 0.0 if told is None else (told - self._done / samples + 0.5) % 1.0 - 0.5
        if abs(ahead) * samples > present + self.batches.batch_size:
            self._refuse(
                f"scheduler.step({epoch:.4g}), and {self._done / samples:.2f} of the epoch are over: the job has "
                "chosen another batch, so write len(loader) there, which knows it, or scheduler.step()"
            )


_watched: list[weakref.ref[TorchScript]] = []
"""The script whose loop other optimizers are watched in, if any."""


def _watch(script: TorchScript) -> None:
    """Have a script be told of the steps of all optimizers, and of averages of its model."""
    if not _watched:
        register_optimizer_step_post_hook(_stepped)
        update = AveragedModel.update_parameters

        @functools.wraps(update)
        def averaging(module: Any, model: Any) -> None:
            if (script := _watched[0]()) is not None:
                script.averaged(module)
            update(module, model)

        AveragedModel.update_parameters = averaging
    _watched[:] = [weakref.ref(script)]


def _weigh() -> None:
    """Have all gradients of a backward pass multiplied by the weight of the script, from the loss on."""
    backward = torch.autograd.backward
    if hasattr(backward, "__wrapped__"):
        return

    @functools.wraps(backward)
    def weighing(tensors: Any, grad_tensors: Any = None, *args: Any, **named: Any) -> None:
        script = _watched[0]()
        if script is not None and script.weight != 1.0:
            tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            if grad_tensors is None or isinstance(grad_tensors, torch.Tensor):
                grad_tensors = [grad_tensors] * len(tensors)
            grad_tensors = [
                torch.full_like(tensor, script.weight) if one is None else one * script.weight
                for tensor, one in zip(tensors, grad_tensors, strict=True)
            ]
        backward(tensors, grad_tensors, *args, **named)

    torch.autograd.backward = weighing


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    if (script := _watched[0]()) is not None:
        script.other_stepped(optimizer)


def _by_plateau(optimizer: Any) -> bool:
    """Whether a scheduler looks for plateaus, which leaves no trace at the optimizer."""
    return any(
        issubclass(type(one), ReduceLROnPlateau) and getattr(one, "optimizer", None) is optimizer
        for one in gc.get_objects()
    )


def _placed(batch: Any) -> Any:
    """A batch on the device of Accelerate, if the script has one: its own loader would move it there."""
    state = sys.modules.get("accelerate.state")
    device = state.PartialState._shared_state.get("device") if state is not None else None
    if device is None or device.type == "cpu":
        return batch
    return importlib.import_module("accelerate.utils").send_to_device(batch, device)


def _nothing(**_: Any) -> None:
    """What is done where nobody asks for more."""
