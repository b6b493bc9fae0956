"""Trainers of other libraries whose loop over epochs `scavenger.torch.prepare` makes elastic.

A trainer keeps all that it does: loader, optimizer and schedule, clipping, callbacks, evaluation. Taken from it are the
loop over the loader, which becomes that of `TorchScript`, its checkpoints, which each worker would write to the same
files, and its end, which is the job's goal.
"""

from __future__ import annotations

import importlib
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from scavenger.errors import NotSupportedError, TrainingCodeError
from scavenger.sdk.script import ScriptRun, Skipped
from scavenger.sdk.torch_script import TorchScript

__all__ = ["LightningTrainer", "Trainer", "TransformersTrainer", "trainer_of"]

_ROUNDS = "the {} epochs of the trainer are over"


class Trainer(ABC):
    """What the trainers have in common: they make the model's parts when they begin, and the job takes them then.

    Args:
        run: The script's.
        trainer: The user's, which has not begun to train.
        at_once: See `scavenger.torch.prepare`.

    Attributes:
        script: Model, optimizer and loader; None before the first epoch.
        objects: What the script gets.

    Raises:
        NotSupportedError: If the trainer is set to do what a job does not; says what to do.
    """

    def __init__(self, run: ScriptRun, trainer: Any, at_once: int | None = None) -> None:
        self._run, self._trainer, self._at_once = run, trainer, at_once
        self.script: TorchScript | None = None
        self.objects = (trainer,)
        self._refuse(self._unsupported())
        run.refuse_several("a trainer")

    @abstractmethod
    def _unsupported(self) -> str:
        """What of the trainer's settings a job does not do, and what to write; empty for nothing."""

    def _refuse(self, what: str) -> None:
        if what:
            raise NotSupportedError(f"{self._run.place()}: {what}")

    def log(self, metrics: Mapping[str, float]) -> None:
        """See `scavenger.torch.log`; an evaluation before the first epoch tells nothing."""
        if self.script is not None:
            self.script.log(metrics)

    def leave(self) -> None:
        """See `Prepared.leave`."""
        if self.script is not None:
            self.script.leave()
        self.end("the script has ended")

    def end(self, why: str) -> None:
        """See `Prepared.end`.

        Raises:
            TrainingCodeError: If the trainer has not begun.
        """
        if self.script is None:
            raise TrainingCodeError(f"{self._run.prepared_at}: {why}, and the trainer has not trained")
        self.script.end(why)

    def _begin(self, **parts: Any) -> TorchScript:
        given = {kind: part for kind, part in parts.items() if part is not None}
        self.script = TorchScript(self._run, given, list(given), self._at_once)
        return self.script


class TransformersTrainer(Trainer):
    """A `transformers.Trainer`."""

    def __init__(self, run: ScriptRun, trainer: Any, at_once: int | None = None) -> None:
        super().__init__(run, trainer, at_once)
        run.library_epochs = int(trainer.args.num_train_epochs)
        trainer.args.save_strategy = type(trainer.args.save_strategy)("no")
        self._epoch, self._batches, self._step = (
            trainer._run_epoch,
            trainer.get_batch_samples,
            trainer.training_step,
        )
        trainer._run_epoch, trainer.get_batch_samples, trainer.training_step = (
            self._run_epoch,
            self._next,
            self._compute,
        )

    def _unsupported(self) -> str:
        trainer, args = self._trainer, self._trainer.args
        if not hasattr(trainer, "_run_epoch"):
            version = importlib.import_module("transformers").__version__
            return f"Transformers {version} does not run epochs one by one: install version 5"
        if args.gradient_accumulation_steps != 1:
            return (
                f"gradient_accumulation_steps={args.gradient_accumulation_steps} of the trainer: in a job the batch "
                "changes; elastic.prepare(trainer, at_once=SAMPLES) computes a large one in parts"
            )
        if args.max_steps > 0:
            return f"max_steps={args.max_steps} of the trainer: in a job the batch changes; write num_train_epochs"
        if args.num_train_epochs != int(args.num_train_epochs):
            return f"num_train_epochs={args.num_train_epochs:g} of the trainer: a job has whole epochs"
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            return (
                "the trainer divides the model by DeepSpeed or FSDP: each worker of a job has the whole model"
            )
        if args.auto_find_batch_size:
            return "auto_find_batch_size of the trainer: the job chooses the batch; write at_once=SAMPLES"
        return ""

    def _run_epoch(self, *, epoch: int, train_dataloader: Any, **given: Any) -> None:
        """An epoch of the trainer over the job's batches; nothing if the job has it behind it."""
        trainer = self._trainer
        script = self.script or self._begin(
            model=trainer.model,
            optimizer=_inner(trainer.optimizer, "optimizer"),
            loader=_inner(train_dataloader, "base_dataloader"),
            scheduler=_inner(trainer.lr_scheduler, "scheduler"),
        )
        if script.job is not None:
            trainer.state.global_step = script.job.step
        trainer.state.max_steps = sys.maxsize  # the goal of the job ends it
        # no epoch has more steps than samples; those that are too many find no batch
        given |= {"steps_in_epoch": len(script.loader), "num_update_steps_per_epoch": script.batches.samples}
        try:
            self._epoch(epoch=epoch, train_dataloader=script.loader, **given)
        except Skipped:
            return
        if epoch + 1 >= trainer.args.num_train_epochs:
            self.end(_ROUNDS.format(epoch + 1))

    def _next(self, *given: Any, **named: Any) -> tuple[list[Any], Any]:
        """The next batch; the loss of one with labels is a mean over these, which the script has to know."""
        batches, items = self._batches(*given, **named)
        if self.script is not None and items is not None:
            self.script.items = float(items)
        return batches, items

    def _compute(self, *given: Any, **named: Any) -> Any:
        loss = self._step(*given, **named)
        self.log({"loss": loss.item()})
        return loss


class LightningTrainer(Trainer):
    """A `lightning.Trainer`, also of `pytorch_lightning`."""

    def __init__(self, run: ScriptRun, trainer: Any, at_once: int | None = None) -> None:
        super().__init__(run, trainer, at_once)
        run.library_epochs = trainer.max_epochs
        left_out = [*trainer.checkpoint_callbacks, trainer.progress_bar_callback]
        trainer.callbacks[:] = [one for one in trainer.callbacks if one not in left_out]
        self._epoch, trainer.fit_loop.advance = trainer.fit_loop.advance, self._run_epoch

    def _unsupported(self) -> str:
        trainer = self._trainer
        if trainer.world_size != 1:
            return (
                f"a trainer of {trainer.world_size} processes: the job starts the processes; write devices=1"
            )
        if trainer.accumulate_grad_batches != 1:
            return (
                f"accumulate_grad_batches={trainer.accumulate_grad_batches} of the trainer: in a job the batch "
                "changes; elastic.prepare(trainer, at_once=SAMPLES) computes a large one in parts"
            )
        if trainer.max_steps != -1 or (trainer.max_epochs or -1) < 1:
            return (
                "the trainer has no number of epochs: write max_epochs, and no max_steps: the batch changes"
            )
        whole = trainer.limit_train_batches, trainer.val_check_interval, trainer.overfit_batches
        if whole != (1.0, 1.0, 0.0) or trainer.fast_dev_run:
            return (
                "limit_train_batches, val_check_interval, fast_dev_run of the trainer: a job has whole epochs"
            )
        if trainer.reload_dataloaders_every_n_epochs:
            return "reload_dataloaders_every_n_epochs of the trainer: a job has one data set"
        return ""

    def _run_epoch(self) -> None:
        """An epoch of the trainer over the job's batches; nothing if the job has it behind it."""
        trainer, loop = self._trainer, self._trainer.fit_loop
        script = self.script or self._take()
        epoch = trainer.current_epoch
        batches = iter(script.loader)
        loop._combined_loader.flattened, loop._combined_loader.limits = [_Once(batches)], [math.inf]
        # no epoch has more batches than samples; `_exchanged` tells which one is the last
        loop.max_batches, trainer.val_check_batch = script.batches.samples, math.inf
        iter(loop._data_fetcher)
        try:
            self._epoch()
        except Skipped:
            return
        for _ in batches:  # what ends the last batch comes after it
            self._refuse("the trainer has left an epoch before its end: the others wait for it there")
        if epoch + 1 >= trainer.max_epochs:
            self.end(_ROUNDS.format(epoch + 1))

    def _take(self) -> TorchScript:
        trainer, module = self._trainer, self._trainer.lightning_module
        if not module.automatic_optimization:
            self._refuse("automatic_optimization = False of the module: a job needs one step for each batch")
        loaders, schedules = trainer.fit_loop._combined_loader.flattened, trainer.lr_scheduler_configs
        if len(trainer.optimizers) != 1 or len(loaders) != 1 or len(schedules) > 1:
            self._refuse(
                "a job trains with one optimizer, one loader and one scheduler of the learning rate at most"
            )
        fetchers = importlib.import_module(f"{type(trainer.fit_loop).__module__.rpartition('.')[0]}.fetchers")
        fetcher = fetchers._DataFetcher()  # reads nothing ahead, and does not count
        fetcher.setup(trainer.fit_loop._combined_loader)
        trainer.fit_loop._data_fetcher = fetcher
        script = self._begin(
            model=module,
            optimizer=trainer.optimizers[0],
            loader=loaders[0],
            scheduler=schedules[0].scheduler if schedules else None,
        )
        script.exchanged = self._exchanged
        script.in_batches = bool(schedules) and schedules[0].interval == "step"
        return script

    def _exchanged(self, *, epoch_over: bool) -> None:
        """Only the job knows which batch is the last one: then the trainer validates, and steps schedules."""
        self._trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = epoch_over


class _Once:
    """What a trainer loops over in one epoch; it has no length."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        return self._batches


_TRAINERS: dict[tuple[str, str], type[Trainer]] = {
    ("transformers.trainer", "Trainer"): TransformersTrainer,
    ("lightning.pytorch.trainer.trainer", "Trainer"): LightningTrainer,
    ("pytorch_lightning.trainer.trainer", "Trainer"): LightningTrainer,
}


def trainer_of(one: Any) -> type[Trainer] | None:
    """What an object is prepared by, if it is a trainer of one of these libraries; else None."""
    kinds = ((kind.__module__, kind.__qualname__) for kind in type(one).__mro__)
    return next((_TRAINERS[kind] for kind in kinds if kind in _TRAINERS), None)


def _inner(one: Any, name: str) -> Any:
    """What Accelerate has put its own object around."""
    return getattr(one, name, one)
