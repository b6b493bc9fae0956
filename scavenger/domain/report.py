"""Events of a running job, and the report at its end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from scavenger.domain.configuration import Configuration
from scavenger.domain.cost import CostEstimate
from scavenger.domain.curve import Choice, Infeasible, TradeoffCurve
from scavenger.domain.measurement import EpochRecord, Measurement, StepRecord
from scavenger.frames import Frame

JobState = Literal[
    "starting",
    "profiling",
    "planned",
    "running",
    "paused",
    "succeeded",
    "target_missed",
    "failed",
    "stopped",
    "interrupted",
]
"""`paused`: it waits for workers or for the user, and its process is alive; `succeeded`: the target was reached, or
there was none; `target_missed`: `max_epochs` came first; `stopped`: by budget or deadline; `planned`: `plan` ends
there."""


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The job entered a phase: `starting`, `profiling`, `fitting`, `running`, `saving`, or `done`."""

    phase: str
    detail: str


@dataclass(frozen=True, slots=True)
class WorkerChanged:
    """A worker's state changed: `starting`, `ready`, `training`, `preempted`, `leaving`, `lost`, `failed`, `gone`."""

    process: str
    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """A view took effect; `stall_s` is how long it paused the workers that stayed."""

    view: int
    configuration: Configuration
    first_step: int
    stall_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step was applied; `progress` in [0, 1] is that of the current phase (None if unknown)."""

    record: StepRecord
    progress: float | None
    cost_usd: float


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """An epoch was evaluated.

    Attributes:
        cost_usd: What the job had cost by then; None where a `StepDone` tells it.
    """

    record: EpochRecord
    goal_metric: str | None
    target: float | None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Profiled:
    """A configuration has been profiled; `index` of `total` planned."""

    measurement: Measurement
    index: int
    total: int


@dataclass(frozen=True, slots=True)
class ChoiceMade:
    """The search ended with a choice; `predicted` is the whole run, if it can go on from there."""

    curve: TradeoffCurve
    choice: Choice | Infeasible
    predicted: Predicted | None = None


KNOWN_WITHIN = 5.0
"""Largest ratio of the ends of a 90 % interval of epochs whose median is shown."""


@dataclass(frozen=True, slots=True)
class EpochsForecast:
    """When the job will end, by the course of its metric so far and at the configuration in effect.

    Attributes:
        after_epochs: Epochs evaluated so far.
        epochs: Median of the epochs in all, at most `max_epochs`.
        epochs_interval: Its 90 % interval.
        time_s, cost_usd: Of the whole job, if it needs the median.
        never: Probability that the target is not reached within `max_epochs`.
        within_limits: Probability that it is reached before `max_epochs`, the deadline and the budget.
    """

    after_epochs: int
    epochs: float
    epochs_interval: tuple[float, float]
    time_s: float
    cost_usd: float
    never: float
    within_limits: float

    @property
    def is_known(self) -> bool:
        """Whether the interval is narrow enough that its median says something."""
        low, high = self.epochs_interval
        return high <= KNOWN_WITHIN * low

    def __str__(self) -> str:
        """For example `26 epochs in all (90 %: 19 to 40), target within the limits: 93 %`."""
        low, high = math.floor(self.epochs_interval[0]), math.ceil(self.epochs_interval[1] - 1e-6)
        median = f"{self.epochs:.0f} epochs in all" if self.is_known else "epochs in all not known yet"
        return (
            f"{median} (90 %: {low} to {high}), target within the limits: {100.0 * self.within_limits:.0f} %"
        )


@dataclass(frozen=True, slots=True)
class Forecasted:
    """The epochs were forecast again; `kept` if the forecast is one of those in the report."""

    forecast: EpochsForecast
    kept: bool


@dataclass(frozen=True, slots=True)
class Noted:
    """A message for the user; `level` is `info` or `warning`."""

    level: str
    message: str


Event = (
    PhaseChanged
    | WorkerChanged
    | ViewChanged
    | StepDone
    | EpochEnded
    | Profiled
    | ChoiceMade
    | Forecasted
    | Noted
)


class Observer:
    """Receives events as they happen, on the thread that runs the job; must return quickly."""

    def on_event(self, event: Event) -> None:
        """Receive one event."""


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The result of the search.

    Attributes:
        strategy: The strategy that was used: `full`, `partial`, `none` or `universal`.
        reason: Why this strategy, in one sentence.
        profiled: One measurement per profiled configuration, in order.
        time_s, cost_usd: Spent while searching; the steps count as training.
        overhead_s, overhead_usd: Additional time and cost compared with the same training progress at the chosen
            configuration; None if nothing was chosen.
    """

    strategy: str
    reason: str
    profiled: tuple[Measurement, ...]
    time_s: float
    cost_usd: float
    overhead_s: float | None = None
    overhead_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    """Prediction for a run, from start to end, made at the time of the choice; with 90 % intervals.

    It is for the run that makes the choice or, of a plan, for one that begins at the chosen configuration.

    Attributes:
        spent_s, spent_usd, spent_epochs: Part of `time_s`, `cost_usd` and `epochs`: spent before the choice, and due
            for starting workers; the epochs are None in older reports, which count all epochs at the chosen batch size.
        search_s, search_usd: Part of these: spent on the search.
        epochs: Of the whole run: those before the choice at whatever batch sizes, and the rest at the chosen one.
        remaining: Share of the training that is left when those workers have started, in [0, 1].
        end_s: Part of `time_s`: for saving the model and ending the processes.
    """

    time_s: float
    time_interval_s: tuple[float, float]
    cost_usd: float
    cost_interval_usd: tuple[float, float]
    step_time_s: float
    epochs: float
    spent_s: float = 0.0
    spent_usd: float = 0.0
    remaining: float = 1.0
    end_s: float = 0.0
    search_s: float = 0.0
    search_usd: float = 0.0
    spent_epochs: float | None = None

    @property
    def epochs_ahead(self) -> float:
        """Epochs at the chosen batch size that are left when its workers have started."""
        return self.epochs * self.remaining if self.spent_epochs is None else self.epochs - self.spent_epochs


@dataclass(frozen=True, slots=True)
class Actual:
    """Actual time and cost of the run.

    Attributes:
        step_time_s: Median at the chosen configuration.
        epochs: As many as were trained, at whatever batch sizes.
        end_s: Part of `time_s`: for saving the model and ending the processes.
        first_start_s, start_s: Median time from a worker's launch until it was ready, of the first workers and of
            further ones; 0 if there were none.
        rest_of_start_s: Time from when the training module was known until the first worker was ready; 0 if unknown.
        program_start_s: Median time from the start of a program that is started anew for each configuration until its
            first step; for other jobs, what the first steps and evaluation took more than later ones.
    """

    time_s: float
    cost_usd: float
    step_time_s: float
    epochs: float
    end_s: float = 0.0
    first_start_s: float = 0.0
    start_s: float = 0.0
    rest_of_start_s: float = 0.0
    program_start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TimeError:
    """Predicted less actual time, by cause: the three causes add up to `whole_s`.

    Attributes:
        epochs_s: Error because more or fewer epochs were needed than predicted.
        step_time_s: Error because steps took more or less time than predicted.
        other_s: Error because starts, evaluations, changes of configuration and the end took more or less time.
    """

    whole_s: float
    epochs_s: float
    step_time_s: float
    other_s: float


def time_error(predicted: Predicted, actual: Actual) -> TimeError | None:
    """Split the error of a predicted time into its causes.

    The training after the choice takes `V = E s r` seconds: E remaining epochs, s seconds per step, r for all else.
    The logarithmic mean `L = (Vp - Va) / ln(Vp / Va)` splits the difference exactly and symmetrically:
    `Vp - Va = L ln(Ep / Ea) + L ln(sp / sa) + L ln(rp / ra)` [1]_. What was spent before is the same in both; the
    difference in the time for the end counts as other.

    Returns:
        The split; None if a value is unknown, or the run ended before it continued from the choice.

    References:
        .. [1] Ang, "The LMDI approach to decomposition analysis", Energy Policy 33, 2005.
    """
    ahead_s = predicted.time_s - predicted.spent_s - predicted.end_s
    came_s = actual.time_s - predicted.spent_s - actual.end_s
    epochs = predicted.epochs_ahead
    came_epochs = actual.epochs - (predicted.epochs - epochs)
    figures = (ahead_s, came_s, epochs, came_epochs, predicted.step_time_s, actual.step_time_s)
    if not all(math.isfinite(figure) and figure > 0.0 for figure in figures):
        return None
    # Differences of logarithms, since a ratio of figures that are far apart has none.
    ratio = math.log(ahead_s) - math.log(came_s)
    mean_s = came_s if abs(ratio) < 1e-9 else (ahead_s - came_s) / ratio
    epochs_s = mean_s * (math.log(epochs) - math.log(came_epochs))
    step_time_s = mean_s * (math.log(predicted.step_time_s) - math.log(actual.step_time_s))
    whole_s = predicted.time_s - actual.time_s
    return TimeError(whole_s, epochs_s, step_time_s, whole_s - epochs_s - step_time_s)


@dataclass(frozen=True, slots=True)
class MetricOutcome:
    """The goal: its metric, the best value seen, the target and whether it was reached."""

    name: str
    value: float | None
    target: float | None
    reached: bool


@dataclass(frozen=True, slots=True)
class ReportedJob:
    """The job of a report; `id` is a UUID, text."""

    id: str
    name: str
    state: JobState


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What the training came to; by default there was none.

    Attributes:
        actual: Actual time, cost and epochs; None if it was not trained.
        metric: The goal's outcome; None if it was not trained.
        steps: Number of applied steps.
        model_path: The saved `.keras` model; None for `plan` and where training ended before it had weights.
        quarantined: Indices of samples that were left out because workers died of them. The result is complete
            only if there are none.
        forecasts: Forecasts of the epochs while the job trained, at widening intervals.
        traceback: Where in the user's code the job failed, the last frame last; empty unless it was that.
    """

    actual: Actual | None = None
    metric: MetricOutcome | None = None
    steps: int = 0
    model_path: str | None = None
    quarantined: tuple[int, ...] = ()
    forecasts: tuple[EpochsForecast, ...] = ()
    traceback: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run of `optimize` or `plan`.

    Attributes:
        estimate: Itemised cost of a complete run at the chosen configuration; None if nothing was chosen.
        measurements_path: The JSON file with every step, epoch and measurement.
        warnings: Problems that did not end the run, and what is unknown.
        error: One line; empty unless the job failed.
        exit_code: Exit code of the command (see `scavenger.errors`).
    """

    job: ReportedJob
    search: SearchOutcome
    curve: TradeoffCurve | None = None
    choice: Choice | Infeasible | None = None
    predicted: Predicted | None = None
    estimate: CostEstimate | None = None
    result: TrainingResult = TrainingResult()
    measurements_path: str | None = None
    warnings: tuple[str, ...] = field(default=())
    error: str = ""
    exit_code: int = 0
