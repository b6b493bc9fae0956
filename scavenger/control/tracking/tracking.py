"""Follows a job's events and tells its trackers, on a thread that the job never waits for.

A tracker that fails is named once in a warning, and given up after `FAILURES_MAX` failures in a row: what it raises
never reaches the training. What is to be told waits in a queue of bounded length; what comes while it is full
is not told.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
import queue
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from scavenger.control.tracking.base import TrackedRun, Tracker
from scavenger.control.tracking.mlflow_tracker import MlflowTracker, why_no_folder
from scavenger.control.tracking.tensorboard_tracker import TensorboardTracker
from scavenger.control.tracking.wandb_tracker import WandbTracker
from scavenger.domain.curve import Choice
from scavenger.domain.job import JobSpec
from scavenger.domain.report import (
    ChoiceMade,
    EpochEnded,
    Event,
    Observer,
    RunReport,
    StepDone,
    ViewChanged,
)
from scavenger.domain.trackers import TrackersSpec
from scavenger.errors import ConfigurationError
from scavenger.masking import mask

log = logging.getLogger(__name__)

STEPS_EVERY_S = 2.0
"""Time of training between two steps of which is told, seconds."""
WAITING_MAX, FAILURES_MAX, END_S = 10_000, 5, 20.0
"""Most that waits to be told; failures in a row after which a tracker is given up; longest wait at the job's end."""

_PACKAGES = {"mlflow": "mlflow", "tensorboard": "tensorboard", "wandb": "wandb"}
"""What is imported, by key of the job file and name of the extra."""


def trackers_of(spec: TrackersSpec) -> dict[str, Tracker]:
    """The trackers that a job names, none of which has begun.

    Raises:
        ConfigurationError: If the package of one is not installed, or MLflow is to write to a folder and does not.
    """
    found: dict[str, Tracker] = {}
    if spec.mlflow is not None:
        found["mlflow"] = MlflowTracker(spec.mlflow)
    if spec.tensorboard is not None:
        found["tensorboard"] = TensorboardTracker(spec.tensorboard)
    if spec.wandb is not None:
        found["wandb"] = WandbTracker(spec.wandb)
    for key in found:
        if importlib.util.find_spec(_PACKAGES[key]) is None:
            raise ConfigurationError(
                f"the package {_PACKAGES[key]} is not installed; pip install 'scavenger-ml[{key}]'",
                key=f"trackers.{key}",
            )
    if spec.mlflow is not None and (why := why_no_folder(spec.mlflow, _mlflow_version(), os.environ)):
        raise ConfigurationError(f"trackers.mlflow: {why}", key="trackers.mlflow")
    return found


def _mlflow_version() -> str:
    """Of the package that brings it, whole or without a server; read, since importing it takes seconds."""
    for package in ("mlflow-skinny", "mlflow"):
        with contextlib.suppress(PackageNotFoundError):
            return version(package)
    return ""


def params_of(job: JobSpec) -> dict[str, str]:
    """What a run shows as its parameters: the arguments, and what the job file says of the search and the goal."""
    told: dict[str, Any] = {
        "train": job.train,
        "infra": job.infra,
        "objective": job.objective if isinstance(job.objective, str) else "utility",
        "seed": job.seed,
        "search.strategy": job.search.strategy,
        "search.workers": list(job.search.workers),
        "search.batch_size": list(job.search.batch_size),
        "goal.metric": job.goal.metric,
        "goal.target": job.goal.target,
        "goal.max_epochs": job.goal.max_epochs,
        **{f"params.{name}": value for name, value in job.params.items()},
    }
    return {name: mask(str(value)) for name, value in told.items() if value is not None}


class Tracking(Observer):
    """Passes events on, and tells trackers of steps, epochs, views, the choice and the end.

    Args:
        trackers: By name.
        observer: Receives every event first.
    """

    def __init__(self, trackers: Mapping[str, Tracker], observer: Observer) -> None:
        self._trackers, self._observer = dict(trackers), observer
        self._queue: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(WAITING_MAX)
        self._failures = dict.fromkeys(trackers, 0)
        self._warned: set[str] = set()
        self._thread = threading.Thread(target=self._tell_all, name="trackers", daemon=True)
        self._step, self._step_at_s, self._cost_usd = 0, -math.inf, 0.0

    def begin(self, run: TrackedRun) -> None:
        """Begin the runs; events before that are told, too."""
        first = queue.Queue[Any](WAITING_MAX)
        first.put(lambda tracker: tracker.begin(run))
        with contextlib.suppress(queue.Empty):
            while True:
                first.put_nowait(self._queue.get_nowait())
        self._queue = first
        self._thread.start()

    def end(self, report: RunReport) -> None:
        """End the runs with the report; waits at most `END_S` seconds until all is told."""
        if not self._thread.is_alive():
            return
        state, figures = report.job.state, figures_of(report)
        self._step = max(self._step, report.result.steps)
        succeeded = state in ("succeeded", "target_missed", "planned")
        self._metrics(self._step, **figures)
        self._put(lambda tracker: tracker.end(succeeded=succeeded, state=state))
        self.stop()

    def stop(self) -> None:
        """End the thread when all is told, or `END_S` seconds have passed; the runs stay as they are."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=1.0)
        self._thread.join(END_S)
        if self._thread.is_alive():
            log.warning("trackers: not all was told within %.0f s; the rest is not told", END_S)

    def on_event(self, event: Event) -> None:
        self._observer.on_event(event)
        match event:
            case StepDone(record=record):
                self._step, self._cost_usd = record.step, event.cost_usd
                if record.at_s - self._step_at_s >= STEPS_EVERY_S:
                    self._step_at_s = record.at_s
                    self._metrics(
                        record.step,
                        loss=record.loss,
                        step_time_s=record.step_time_s,
                        workers=record.workers,
                        global_batch_size=record.global_batch_size,
                        cost_usd=event.cost_usd,
                    )
            case EpochEnded(record=ended):
                self._metrics(
                    ended.step,
                    **ended.metrics,
                    epoch=ended.epoch + 1,
                    cost_usd=self._cost_usd,
                    time_s=ended.at_s,
                )
            case ViewChanged():
                at = event.configuration
                self._metrics(
                    event.first_step,
                    workers=at.workers,
                    global_batch_size=at.global_batch_size,
                    view=event.view,
                )
                text = f"view {event.view}: {at} ({mask(event.reason)}), stall {event.stall_s * 1e3:.3g} ms"
                self._put(lambda tracker: tracker.event(event.first_step, "view", text))
            case ChoiceMade(choice=Choice() as choice):
                step, point = self._step, choice.point
                text = f"{choice.configuration}: {choice.reason}"
                self._put(lambda tracker: tracker.event(step, "choice", text))
                self._metrics(step, chosen_time_s=point.time_s, chosen_cost_usd=point.cost_usd)

    def _metrics(self, step: int, **values: float) -> None:
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._put(lambda tracker: tracker.metrics(step, finite))

    def _put(self, tell: Callable[[Tracker], None]) -> None:
        try:
            self._queue.put_nowait(tell)
        except queue.Full:
            self._warn("trackers", "are too slow; some steps and events are not told")

    def _tell_all(self) -> None:
        while (tell := self._queue.get()) is not None:
            for name, tracker in list(self._trackers.items()):
                try:
                    tell(tracker)
                    self._failures[name] = 0
                except Exception as error:  # noqa: BLE001 - the training goes on, whatever another project raises
                    self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        self._failures[name] += 1
        said = mask(str(error)).strip().splitlines()
        self._warn(
            name, f"failed, and the job goes on: {type(error).__name__}: {said[0] if said else 'no message'}"
        )
        if self._failures[name] >= FAILURES_MAX:
            del self._trackers[name]
            log.warning("tracker %s is given up after %d failures in a row", name, FAILURES_MAX)

    def _warn(self, name: str, text: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            log.warning("tracker %s %s", name, text)


def figures_of(report: RunReport) -> dict[str, float]:
    """Predicted and actual figures of a report; only those that are known."""
    found: dict[str, float | None] = {}
    if (predicted := report.predicted) is not None:
        found |= {
            "predicted_time_s": predicted.time_s,
            "predicted_cost_usd": predicted.cost_usd,
            "predicted_epochs": predicted.epochs,
            "predicted_step_time_s": predicted.step_time_s,
        }
    if (actual := report.result.actual) is not None:
        found |= {
            "actual_time_s": actual.time_s,
            "cost_usd": actual.cost_usd,
            "actual_cost_usd": actual.cost_usd,
            "actual_epochs": actual.epochs,
            "actual_step_time_s": actual.step_time_s,
        }
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}
