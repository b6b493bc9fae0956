"""`scavenger_report`: tells a command job what the user's own training program does. Standard library alone.

Without the environment that a command job sets, every call does nothing, so the program runs by itself, too::

    with scavenger_report(save=save) as report:
        ...
            report.step(loss=loss.item())
        report.epoch(val_accuracy=accuracy)

A program that takes its batches from `report.batches` goes on at once when the job wants other ones::

    for epoch in range(report.epochs, epochs):
        for share in report.batches(order_of(epoch), 64):
            loss = criterion(model(x[share.rows]), y[share.rows])
            (share.weight * loss).backward()
            if share.last:
                ...
                report.step(loss=loss.item())
        report.epoch(val_accuracy=accuracy)

The protocol is plain, for programs in other languages. The process with `RANK` 0 appends lines of JSON to
`$SCAVENGER_REPORT/report.jsonl`, each with `kind` (`begin`, `step`, `epoch`, `checkpoint`), `at_s` (seconds of a clock
that never jumps, such as the monotonic one) and the arguments of the calls below; every process may tell by `raised`
of the `error` that ends it. The file `$SCAVENGER_REPORT/request`, which is replaced as a whole, is JSON with `save_at`
and `end_at`: the steps after which a checkpoint is to be saved, and the program is to end. All processes see the same
numbers before they reach them, so they end at the same step. A program that told by `begin` that it is `live` finds
`view`, `view_at`, `global_batch_size` and `lr_scale` there, too: steps after the step `view_at` are of that batch size,
and are told with the number of the `view`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scavenger.sdk.gradients import GradientSamples

__all__ = ["Report", "Share", "scavenger_report"]

FOLDER = "SCAVENGER_REPORT"
"""Environment variable with the folder of the reports; without it, nothing is reported."""
COUNTS = "scavenger-report.json"
"""File in the folder of checkpoints with the steps and epochs of the newest one, and the samples since its epoch."""
LINES_BYTES_MAX = 4 << 20
"""Size at which the next file is begun, `report-1.jsonl` and so on, so that those that were read can be removed."""
_VERDICT_S = 60.0
"""Longest wait at the end of an epoch for the job's answer; then training goes on."""
_LOOK_S = 0.01
_REASON_MAX = 500
"""Characters of the reason why training is over, and of an exception."""


def scavenger_report(
    *,
    save: Callable[[], object] | None = None,
    every_rank: bool = False,
    samples_per_epoch: int | None = None,
) -> Report:
    """Begin to report; use it in `with`.

    Args:
        save: Writes a checkpoint that the program goes on from when it is started again; may return its path. Called
            after a step, or at the end of an epoch, when the job asks. Without it, read `report.saving` and
            `report.ending` after each step.
        every_rank: Whether every process calls `save`; by default the one with rank 0 alone.
        samples_per_epoch: Training samples of an epoch; or `run.samples` in the job file.
    """
    return Report(os.environ, save, every_rank=every_rank, samples_per_epoch=samples_per_epoch)


@dataclass(frozen=True, slots=True)
class Share:
    """What one process computes of a step at once.

    Attributes:
        rows: Its part of the order that `Report.batches` was given.
        weight: Factor of the mean loss over them. With it, the sum over a process's shares of a step, averaged over
            processes as by DistributedDataParallel, is the mean over the whole batch. 0 where there is nothing left for
            the process: then `rows` is one sample that counts for nothing.
        last: Whether it is the last one of the step, after which the optimizer makes it.
    """

    rows: Any
    weight: float
    last: bool


class Report:
    """What a training program tells; `scavenger_report` makes one.

    Attributes:
        steps: Steps so far, those of the checkpoint that the program begins with included.
        epochs: Epochs so far, likewise.
        samples: Samples of the epoch so far that `batches` has given, likewise.
        lr_scale: Factor for the learning rate, by `elastic.lr_scaling`; with `batches`, it may change after a step.
        saving: Whether a checkpoint is to be saved now; for a program without `save`.
        ending: Whether the program is to end now, after it has saved; for a program without `save`.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        save: Callable[[], object] | None = None,
        *,
        every_rank: bool = False,
        samples_per_epoch: int | None = None,
    ) -> None:
        folder = environ.get(FOLDER)
        self._folder = None if folder is None else Path(folder)
        self._first = int(environ.get("RANK") or 0) == 0
        self._every_rank = every_rank
        self._save = save if self._first or every_rank else None if save is None else _nothing
        self._batch = int(environ.get("SCAVENGER_GLOBAL_BATCH_SIZE") or 0)
        self.lr_scale = float(environ.get("SCAVENGER_LR_SCALE") or 1.0)
        self._rank, self._world = int(environ.get("RANK") or 0), int(environ.get("WORLD_SIZE") or 0)
        self._live, self._view, self._taken = False, 0, 0
        kept = environ.get("SCAVENGER_CHECKPOINT_DIR", "")
        self._counts = Path(kept) / COUNTS if os.path.isdir(kept) else None
        self.steps, self.epochs, self.samples = self._begun(environ)
        self.saving = self.ending = False
        self._file: IO[str] | None = None
        self._files = 0
        self._saved = -1
        self._seen: tuple[int, int] = (0, 0)
        self._request: dict[str, Any] = {}
        self._gradients: GradientSamples | None = None
        self._write(
            "begin",
            samples_per_epoch=samples_per_epoch,
            every_rank=every_rank or None,
            world=self._world or None,
        )

    def _begun(self, environ: Mapping[str, str]) -> tuple[int, int, int]:
        """Steps, epochs and samples of the checkpoint: as they were kept with it, else as the job knows them."""
        try:
            found = {} if self._counts is None else json.loads(self._counts.read_text())
            return int(found["steps"]), int(found["epochs"]), int(found.get("samples", 0))
        except (OSError, ValueError, KeyError, TypeError):
            step, epoch, samples = (
                environ.get(f"SCAVENGER_{name}") or 0 for name in ("STEP", "EPOCH", "SAMPLES")
            )
            return int(step), int(epoch), int(samples)

    def __enter__(self) -> Report:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0)):
            text = " ".join(f"{type(error).__name__}: {error}".split())
            self._write("raised", error=text[:_REASON_MAX])
        if self._file is not None:
            self._file.close()
            self._file = None

    def batches(self, order: Any, batch_size: int, *, at_once: int | None = None) -> Iterator[Share]:
        """What this process computes of the rest of the epoch, batch by batch, each followed by one `step`.

        The batches are the job's. Their size may change between two steps, without a new start of the program, and
        every sample of the epoch is in one of them. A program that goes on from a checkpoint goes on where that was.

        Args:
            order: The samples of the epoch in their order, the same at every process: a list, array or tensor.
            batch_size: Samples of a step of all processes, outside of a job.
            at_once: Most samples that a process can compute at once; what is more becomes several shares.

        Raises:
            RuntimeError: If a batch was not followed by one `step`.
        """
        if not self._live:
            self._live = True
            self._write("begin", live=True)
        while self.samples < len(order):
            begin, step = self.samples, self.steps
            end = min(len(order), begin + (self._batch or batch_size))
            self._taken = end - begin
            yield from self._shares(order, begin, end, at_once)
            if self.steps == step:
                raise RuntimeError("report.batches: each batch is to be followed by one report.step")

    def _shares(self, order: Any, begin: int, end: int, at_once: int | None) -> Iterator[Share]:
        """The shares of this process in the batch of the samples from `begin` to `end`."""
        world, batch = max(1, self._world), end - begin
        first, last = (begin + batch * rank // world for rank in (self._rank, self._rank + 1))
        if first == last:  # the processes wait for each other, so each must compute something
            yield Share(order[begin : begin + 1], 0.0, last=True)
            return
        parts = -(-(last - first) // (at_once or batch))
        ends = [first + (last - first) * part // parts for part in range(parts + 1)]
        for start, stop in itertools.pairwise(ends):
            yield Share(order[start:stop], (stop - start) * world / batch, last=stop == last)

    def step(
        self,
        *,
        loss: float | None = None,
        samples: int | None = None,
        step: int | None = None,
        gradients: Iterable[Any] | None = None,
        gradient_norms: tuple[float, float, int] | None = None,
        compute_s: float | None = None,
    ) -> None:
        """Report an optimizer step; every process calls it.

        Args:
            loss: The mean loss of its samples.
            samples: Samples of all processes in it; by default those that `batches` gave, or the global batch size.
            step: Its number, if the program counts steps itself; otherwise they are counted from the last reported
                checkpoint.
            gradients: The gradient over the whole batch as arrays or tensors, on any device and of any precision,
                from which rank 0 measures the gradient noise: those of successive steps are compared. None stands for a
                parameter without a gradient; a gradient that is not finite is left out.
            gradient_norms: Instead, if the program has them: the mean squared norm of the gradients of parts of the
                batch, the squared norm of their mean, and the number of parts.
            compute_s: Time that the slowest process computed, communication excluded, if it is known.

        Raises:
            SystemExit: With status 0, if the job has asked the program to end here; the checkpoint is saved.
            RuntimeError: If the other processes have gone on with another batch size, which this one learns too late.
            TrainingCodeError: If a gradient is no array of numbers.
        """
        before, self.steps = self.steps, self.steps + 1 if step is None else step
        self.samples, taken, self._taken = self.samples + self._taken, self._taken, 0
        if self._folder is None:
            return
        self._write(
            "step",
            step=self.steps,
            epoch=self.epochs,
            samples=taken or self._batch if samples is None else samples,
            view=self._view or None,
            loss=None if loss is None else float(loss),
            norms=gradient_norms,
            successive=self._compare(gradients),
            compute_s=compute_s,
        )
        self._look()
        save_at, end_at = self._request.get("save_at", -1), self._request.get("end_at", -1)
        self.ending = 0 <= end_at <= self.steps
        self.saving = self.ending or self._saved < save_at <= self.steps
        self._saved = max(self._saved, save_at if self.saving else -1)
        self._change_batch(before)
        self._obey()

    def _change_batch(self, before: int) -> None:
        """Take the batch size that the job wants after the present step; `before` is the number of the one before."""
        view, at = self._request.get("view", 0), self._request.get("view_at", -1)
        if not self._live or view <= self._view or at > self.steps:
            return
        if at <= before and self._world > 1:
            raise RuntimeError(
                f"this process was told only after step {self.steps} that from step {at + 1} on another batch size "
                "holds: it has computed other samples than the rest expects, so the job goes back to its checkpoint"
            )
        self._view, self._batch, self.lr_scale = (
            view,
            self._request["global_batch_size"],
            self._request["lr_scale"],
        )

    def epoch(
        self,
        metrics: Mapping[str, float] | None = None,
        /,
        *,
        epoch: int | None = None,
        done: bool | str = False,
        **named: float,
    ) -> None:
        """Report that an epoch is over, with metrics by name; every process calls it, and waits for the answer.

        Args:
            metrics: As `{"val_accuracy": 0.97}`, or by keyword.
            epoch: Its number from 0, if the program counts epochs itself.
            done: Whether training is over by the program's own decision, or the reason: the job ends as succeeded, and
                says so.

        Raises:
            SystemExit: With status 0, if the goal is reached, or training is over; the checkpoint is saved.
        """
        number = self.epochs if epoch is None else epoch
        self.epochs, self.samples = number + 1, 0
        if self._folder is None:
            return
        found = {str(name): float(value) for name, value in {**(metrics or {}), **named}.items()}
        reason = done[:_REASON_MAX] if isinstance(done, str) else "its own decision"
        self._write("epoch", step=self.steps, epoch=number, metrics=found, done=reason if done else None)
        deadline = time.monotonic() + _VERDICT_S
        while self._request.get("epoch", -1) < number and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            self._look()
        self.saving = self.ending = bool(self._request.get("stop")) and self._request.get("epoch") == number
        self._obey()

    def checkpoint(self, path: str | os.PathLike[str] = "") -> None:
        """Report that a checkpoint of the present step is written, from which the program can go on."""
        if self._folder is not None and self._first and self._counts is not None:
            # without them, the job knows the numbers, too, unless it is killed at this moment
            with contextlib.suppress(OSError):
                part = self._counts.with_suffix(".part")
                part.write_text(
                    json.dumps({"steps": self.steps, "epochs": self.epochs, "samples": self.samples})
                )
                part.replace(self._counts)
        self._write("checkpoint", step=self.steps, epoch=self.epochs, path=os.fspath(path))

    def _obey(self) -> None:
        if self._save is None or not (self.saving or self.ending):
            return
        path = self._save()
        self.checkpoint(path if isinstance(path, str | os.PathLike) else "")
        self.saving = False
        if self.ending:
            raise SystemExit(0)

    def _look(self) -> None:
        assert self._folder is not None
        path = self._folder / "request"
        try:
            found = path.stat()
            if (found.st_mtime_ns, found.st_ino) != self._seen:
                self._seen = found.st_mtime_ns, found.st_ino
                self._request = json.loads(path.read_text())
        except (OSError, ValueError):
            return

    def _compare(self, gradients: Iterable[Any] | None) -> tuple[float, ...] | None:
        """The squared norm of the gradient, and its products with those before."""
        if gradients is None or not self._first:
            return None
        if self._gradients is None:
            from scavenger.sdk.gradients import GradientSamples

            self._gradients = GradientSamples()
        return self._gradients.add(_flat(one) for one in gradients if one is not None) or None

    def _write(self, kind: str, **values: Any) -> None:
        """Append a line; a full disk must not end the training."""
        told = self._first or kind == "raised" or (self._every_rank and kind == "checkpoint")
        if self._folder is None or not told:
            return
        try:
            if self._file is None:
                self._file = open(self._folder / _name(self._files), "a", encoding="utf-8", buffering=1)  # noqa: SIM115
            given = {name: value for name, value in values.items() if value is not None}
            self._file.write(json.dumps({"kind": kind, "at_s": time.monotonic(), **given}) + "\n")
            if self._file.tell() > LINES_BYTES_MAX:
                self._file.close()
                self._file, self._files = None, self._files + 1
        except OSError:
            return


def _name(number: int) -> str:
    return f"report-{number}.jsonl" if number else "report.jsonl"


def _flat(gradient: Any) -> Any:
    """A gradient as a flat array in single precision; tensors of PyTorch may be of any kind."""
    import numpy as np

    try:
        if hasattr(gradient, "to_dense"):
            gradient = gradient.detach().to_dense().float().cpu().numpy()
        return np.asarray(gradient, dtype=np.float32).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        from scavenger.errors import TrainingCodeError

        raise TrainingCodeError(
            f"report.step(gradients=) takes arrays and tensors, not {type(gradient).__name__}: {error}"
        ) from error


def _nothing() -> None:
    """What a process does that saves nothing."""
