"""The search's measuring part: runs the planned configurations in turn; what they compute is training."""

from __future__ import annotations

from dataclasses import dataclass, field

from scavenger.control.measuring import measure
from scavenger.control.recorder import Recorder
from scavenger.control.trainer import Trainer
from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, Infeasible, TradeoffCurve
from scavenger.domain.job import ProfileSpec
from scavenger.domain.measurement import Measurement
from scavenger.domain.report import PhaseChanged, Predicted, Profiled
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseStability
from scavenger.search.plan import SearchPlan

__all__ = ["Search", "profile"]


@dataclass(slots=True)
class Search:
    """What a search has found so far, and what it has taken; times since the job began.

    Attributes:
        progress: Share of the way to the target that lay behind when the choice was made.
    """

    plan: SearchPlan
    began_s: float
    began_usd: float
    measurements: list[Measurement] = field(default_factory=list)
    model: JobModel | None = None
    curve: TradeoffCurve | None = None
    choice: Choice | Infeasible | None = None
    predicted: Predicted | None = None
    ended_s: float | None = None
    ended_usd: float | None = None
    progress: float = 0.0


def profile(
    search: Search, trainer: Trainer, recorder: Recorder, spec: ProfileSpec, *, batch_min: int
) -> None:
    """Measure the configurations of the plan, until all are, `spec` is used up, or training is finished.

    Args:
        search: Its measurements are added to.
        batch_min: The batch to train with while workers start: samples go furthest in small batches.
    """
    plan = search.plan
    count = len(plan.configurations)
    recorder.on_event(PhaseChanged("profiling", f"{count} configurations: {plan.reason}"))

    def spent() -> bool:
        time_s, usd = trainer.elapsed_s - search.began_s, trainer.cost_usd - search.began_usd
        return (spec.max_time is not None and time_s >= spec.max_time) or (
            spec.max_cost is not None and usd > spec.max_cost
        )

    for index, configuration in enumerate(plan.configurations):
        there = trainer.move(configuration, "profiling", meanwhile=batch_min, give_up=spent)
        if there:
            begin = trainer.step
            wanted = _Enough(trainer, configuration, begin, plan.steps_per_configuration, settle=index == 0)
            trainer.until(lambda wanted=wanted: wanted.reached() or spent())  # type: ignore[misc]
            if unsettled := wanted.unsettled:
                trainer.note(f"profiling goes on though the {unsettled}")
            window = trainer.course.window(configuration, begin)
            if window:
                measurement = measure(
                    configuration, window, trainer.course.noise, trainer.worker_memory_bytes()
                )
                search.measurements.append(measurement)
                trainer.journal.add("measurement", measurement)
                recorder.measured(measurement)
                recorder.on_event(Profiled(measurement, index + 1, count))
        if trainer.finished:
            return
        if spent():
            trainer.note(
                f"profiling ended after {len(search.measurements)} of {count} configurations: "
                "profile.max_time or profile.max_cost is used up"
            )
            return
        if trainer.wanted < configuration.workers:
            trainer.note(
                f"profiling ended after {len(search.measurements)} of {count} configurations: "
                f"{configuration.workers} workers could not be kept alive"
            )
            return


class _Enough:
    """Whether a configuration has been run for long enough.

    Args:
        settle: Also wait for the gradient noise to settle, as at the start of a training.
    """

    def __init__(
        self, trainer: Trainer, configuration: Configuration, begin: int, steps: int, *, settle: bool
    ) -> None:
        self._trainer, self._configuration, self._begin, self._steps = trainer, configuration, begin, steps
        self._seen = begin
        self._stability = (
            NoiseStability(steps_min=steps, steps_max=max(steps, NoiseStability().steps_max))
            if settle
            else None
        )

    @property
    def unsettled(self) -> str:
        """Why the gradient noise counts as settled although it is not; empty where it is, or was not waited for."""
        noise = self._stability
        return noise.reason if noise is not None and noise.ended and not noise.settled else ""

    def reached(self) -> bool:
        """Enough undisturbed steps, or no hope of any more: workers were lost and could not be replaced."""
        trainer = self._trainer
        if trainer.wanted < self._configuration.workers:
            return True
        if self._stability is not None:
            for record in trainer.course.steps_since(self._seen):
                self._stability = self._stability.update(record)
            self._seen = trainer.step
            if not self._stability.ended:
                return False
        return len(trainer.course.window(self._configuration, self._begin)) >= self._steps
