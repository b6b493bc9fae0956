"""How far a running job is, as told to whoever asks from elsewhere: `status` and `logs`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from scavenger.domain import report as report
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice
from scavenger.domain.figures import rounded
from scavenger.domain.measurement import StepRecord

PROGRESS = "progress"
"""Kind of the event in the store that holds the progress."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A job's move away from the configuration that was chosen for it; `step` is the first one there."""

    configuration: Configuration
    step: int
    reason: str

    def __str__(self) -> str:
        """For example `to 2 x local-1, batch 32 at step 305: asked to scale`."""
        return f"to {self.configuration} at step {self.step:,}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is.

    Attributes:
        step: Last applied step.
        epoch: That of this step, 0-based.
        configuration: The configuration in effect.
        loss: Of the last step.
        metric: Name of the goal's metric; empty if it has none, or none was evaluated yet.
        value: The metric's last value; None if it has none.
        target: Its target; None without one.
        epochs_interval: 90 % interval of the epochs in all, by the metric's course so far; None while unknown.
        left_s: Time until the expected end; None if unknown.
        left_interval_s: Its 90 % interval.
        moved: How it came to train elsewhere than on the configuration chosen for it; None while it trains there.
    """

    step: int
    epoch: int
    configuration: Configuration
    loss: float
    metric: str = ""
    value: float | None = None
    target: float | None = None
    epochs_interval: tuple[float, float] | None = None
    left_s: float | None = None
    left_interval_s: tuple[float, float] | None = None
    moved: Moved | None = None

    def data(self) -> dict[str, Any]:
        """The fields as JSON values, which `Progress.read` reads."""
        return asdict(self)

    @classmethod
    def read(cls, data: dict[str, Any]) -> Progress:
        """Read `data`; NaN and infinity have become None, and fields of a newer version are left out."""
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in data.items()
            if name in known
        }
        values["loss"] = math.nan if values["loss"] is None else values["loss"]
        values["configuration"] = Configuration(**values["configuration"])
        if (moved := values.get("moved")) is not None:
            at = Configuration(**moved["configuration"])
            values["moved"] = Moved(at, moved["step"], moved["reason"])
        return cls(**values)

    def __str__(self) -> str:
        """For example `epoch 3, step 120, 2 x local-1, batch 64, loss 0.51, val_accuracy 0.91, 12 s left`."""
        words = [
            f"epoch {self.epoch + 1}",
            f"step {self.step}",
            str(self.configuration),
            f"loss {rounded(self.loss)}",
        ]
        if self.value is not None:
            words.append(f"{self.metric} {rounded(self.value)}")
        if self.left_s is not None and self.left_interval_s is not None:
            low, high = self.left_interval_s
            words.append(f"{self.left_s:.0f} s left (90 %: {low:.0f} to {high:.0f})")
        return ", ".join(words)


class ProgressTracker:
    """Follows the events of a job, and says at intervals how far it is.

    Args:
        every_s: Least time between two reports, seconds.
    """

    def __init__(self, every_s: float = 10.0) -> None:
        self._every_s, self._next_s = every_s, 0.0
        self._told: Progress | None = None
        self._last: Progress | None = None
        self._configuration: Configuration | None = None
        self._metric: tuple[str, float | None, float | None] = ("", None, None)
        self._epochs: tuple[float, float] | None = None
        self._at_s = 0.0
        self._end: tuple[float, tuple[float, float]] | None = None
        self._chosen: Configuration | None = None
        self._path: tuple[Moved, ...] = ()
        self._on_its_way = False

    def choose(self, chosen: Configuration) -> None:
        """Take the configuration that was chosen for the job: moves count from there."""
        self._chosen, self._path, self._on_its_way = chosen, (), False

    def predict(self, predicted: report.Predicted) -> None:
        """Take the prediction of the choice as the expected end, until the metric's course gives a better one."""
        if self._epochs is None:
            self._end = predicted.time_s, predicted.time_interval_s

    def on_event(self, event: report.Event) -> None:
        """Take in an event."""
        match event:
            case report.ChoiceMade(_, Choice() as choice):
                self.choose(choice.configuration)
            case report.PhaseChanged("running"):
                self._on_its_way = True
            case report.ViewChanged(_, configuration, step, _, reason):
                if self._on_its_way:
                    self._path = _with_move(self._path, self._chosen, Moved(configuration, step, reason))
                self._configuration, self._next_s = configuration, 0.0
            case report.StepDone(record):
                self._step(record)
            case report.EpochEnded(record, metric, target) if metric is not None:
                self._metric, self._at_s = (metric, record.metrics.get(metric), target), record.at_s
            case report.Forecasted(forecast):
                self._epochs = forecast.epochs_interval
                ahead = forecast.epochs - forecast.after_epochs
                epoch_s = (forecast.time_s - self._at_s) / ahead if ahead > 0.0 else 0.0
                low, high = (forecast.time_s + (at - forecast.epochs) * epoch_s for at in self._epochs)
                self._end = forecast.time_s, (low, high)
            case _:
                pass

    def _step(self, record: StepRecord) -> None:
        if self._configuration is None:
            return
        self._at_s = record.at_s
        now = replace(self._configuration, workers=record.workers, global_batch_size=record.global_batch_size)
        metric, value, target = self._metric
        left_s, left_interval_s = self._left()
        self._last = Progress(
            record.step,
            record.epoch,
            now,
            record.loss,
            metric,
            value,
            target,
            self._epochs,
            left_s,
            left_interval_s,
            self._path[-1] if self._path else None,
        )

    def _left(self) -> tuple[float, tuple[float, float]] | tuple[None, None]:
        """Time until the expected end, with its interval; None after the end of the interval."""
        if self._end is None or self._end[1][1] <= self._at_s:
            return None, None
        whole_s, (low_s, high_s) = self._end
        return max(0.0, whole_s - self._at_s), (max(0.0, low_s - self._at_s), high_s - self._at_s)

    @property
    def last(self) -> Progress | None:
        """That of the last step; None before the first one."""
        return self._last

    def due(self, now_s: float) -> Progress | None:
        """The progress, if there is new one and the last report is long enough ago, or of another configuration."""
        if self._last is None or self._last is self._told or now_s < self._next_s:
            return None
        self._told, self._next_s = self._last, now_s + self._every_s
        return self._told

    def final(self) -> Progress | None:
        """The last progress, without the time left, with the metric as last evaluated; None before the first step."""
        if self._last is None:
            return None
        metric, value, target = self._metric
        return replace(
            self._last, metric=metric, value=value, target=target, left_s=None, left_interval_s=None
        )


def _with_move(path: tuple[Moved, ...], chosen: Configuration | None, move: Moved) -> tuple[Moved, ...]:
    """The moves that led from the choice to where the job is now: back at an earlier place, later ones are void.

    So a worker that was lost and replaced leaves no trace, and the reason for being there is the one of the first time.
    """
    if chosen is None or move.configuration == chosen:
        return ()
    for number, earlier in enumerate(path, start=1):
        if earlier.configuration == move.configuration:
            return path[:number]
    return (*path, move)
