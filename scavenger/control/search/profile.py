"""The search's measuring part: runs one configuration after another; what they compute is training."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from scavenger.control.search.measure import measure
from scavenger.control.training.recorder import Recorder
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.cost import CostEstimate
from scavenger.domain.curve import Choice, Infeasible, TradeoffCurve
from scavenger.domain.job import ProfileSpec
from scavenger.domain.measurement import Measurement
from scavenger.domain.report import PhaseChanged, Predicted, Profiled
from scavenger.models.job_model import JobModel
from scavenger.models.noise import NoiseStability
from scavenger.search.plan import SearchPlan, next_configuration

__all__ = ["Search", "next_to_profile", "profile"]


@dataclass(slots=True)
class Search:
    """What a search has found so far, and what it has taken; times since the job began.

    Attributes:
        tried: Configurations that were gone to, measured or not.
        estimate: What the chosen configuration costs, itemised; None where nothing is paid beside workers.
        progress: Share of the way to the target that lay behind when the choice was made.
        ended_because: Why fewer configurations were profiled than the plan allows; empty where none was left out.
    """

    plan: SearchPlan
    began_s: float
    began_usd: float
    measurements: list[Measurement] = field(default_factory=list)
    tried: list[Configuration] = field(default_factory=list)
    model: JobModel | None = None
    curve: TradeoffCurve | None = None
    choice: Choice | Infeasible | None = None
    predicted: Predicted | None = None
    estimate: CostEstimate | None = None
    ended_s: float | None = None
    ended_usd: float | None = None
    progress: float = 0.0
    ended_because: str = ""


def profile(
    search: Search,
    trainer: Trainer,
    recorder: Recorder,
    spec: ProfileSpec,
    space: SearchSpace,
    *,
    enough: Callable[[], str],
    samples: float | None,
) -> None:
    """Measure what the plan asks for, until nothing is left, `spec` is used up, or training is finished.

    Args:
        search: Its measurements are added to.
        space: What may be profiled. While workers start, its smallest batch is trained: samples go furthest there.
        enough: Asked after each measurement why what is known suffices; empty where it does not.
        samples: That the run is expected to take; None where nothing is known.
    """
    plan, count = search.plan, search.plan.count
    recorder.on_event(PhaseChanged("profiling", f"{count} configurations at most: {plan.reason}"))

    def spent() -> bool:
        time_s, usd = trainer.elapsed_s - search.began_s, trainer.cost_usd - search.began_usd
        return (spec.max_time is not None and time_s >= spec.max_time) or (
            spec.max_cost is not None and usd > spec.max_cost
        )

    while (configuration := next_to_profile(search, space, trainer)) is not None:
        first = not search.tried
        search.tried.append(configuration)
        there = trainer.move(
            configuration, "profiling", meanwhile=space.global_batch_sizes[0], give_up=spent, keep=True
        )
        if there:
            begin = trainer.step
            wanted = _Enough(trainer, configuration, begin, plan.steps_per_configuration, settle=first)
            trainer.until(lambda wanted=wanted: wanted.reached() or spent())  # type: ignore[misc]
            if unsettled := wanted.unsettled:
                trainer.note(f"profiling goes on though the {unsettled}")
            window = trainer.course.window(configuration, begin)
            if window:
                done = sum(trainer.course.samples_by_batch.values())
                behind = None if samples is None else min(1.0, done / samples)
                measurement = measure(
                    configuration, window, trainer.course.noise, trainer.worker_memory_bytes(), behind or None
                )
                search.measurements.append(measurement)
                trainer.journal.add("measurement", measurement)
                recorder.measured(measurement)
                recorder.on_event(Profiled(measurement, len(search.tried), count))
        if trainer.finished:
            return
        if spent():
            trainer.note(
                f"profiling ended after {len(search.measurements)} of at most {count} configurations: "
                "profile.max_time or profile.max_cost is used up"
            )
            return
        if trainer.wanted < configuration.workers:
            trainer.note(
                f"profiling ended after {len(search.measurements)} of at most {count} configurations: "
                f"{configuration.workers} workers could not be kept alive"
            )
            return
        if len(plan.configurations) <= len(search.tried) < count and (reason := enough()):
            search.ended_because = reason
            return


def next_to_profile(search: Search, space: SearchSpace, trainer: Trainer) -> Configuration | None:
    """What the plan asks for next, as things stand; None where it is fulfilled or nothing useful is left."""
    return next_configuration(
        search.plan,
        space,
        search.measurements,
        search.tried,
        ready=trainer.ready_on(space.offers[0].vm),
        setup_s=statistics.median(trainer.setup_s) if trainer.setup_s else 0.0,
    )


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
