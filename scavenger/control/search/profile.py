"""The search's measuring part: runs one configuration after another; what they compute is training."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from scavenger.control.training.measure import measure
from scavenger.control.training.recorder import Recorder
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.job import ProfileSpec
from scavenger.domain.measurement import Measurement
from scavenger.domain.report import PhaseChanged, Profiled
from scavenger.models.noise import NoiseStability
from scavenger.search.plan import SearchPlan, next_configuration

__all__ = ["Search", "Spent", "next_to_profile", "profile"]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a job had taken at one moment, since it began: seconds and US dollars."""

    time_s: float
    cost_usd: float

    @classmethod
    def by_now(cls, trainer: Trainer) -> Spent:
        """As of now."""
        return cls(trainer.elapsed_s, trainer.cost_usd)


@dataclass(frozen=True, slots=True)
class Search:
    """A search, as far as it has come.

    Attributes:
        began, ended: What the job had taken by then; `ended` is None until the choice was made.
        measurements: One per configuration that was measured, in order.
        tried: Configurations that the job went to, measured or not.
        ended_because: Why fewer configurations were profiled than the plan allows; empty where none was left out.
    """

    plan: SearchPlan
    began: Spent
    measurements: tuple[Measurement, ...] = ()
    tried: tuple[Configuration, ...] = ()
    ended_because: str = ""
    ended: Spent | None = None


def profile(
    search: Search,
    trainer: Trainer,
    recorder: Recorder,
    spec: ProfileSpec,
    space: SearchSpace,
    *,
    enough: Callable[[Search], str],
    samples: float | None,
) -> Iterator[Search]:
    """Measure what the plan asks for, until nothing is left, `spec` is used up, or training is finished.

    Args:
        search: As it begins.
        space: What may be profiled. While workers start, its smallest batch is trained: samples go furthest there.
        enough: Asked after each configuration why what is known suffices; empty where it does not.
        samples: That the run is expected to take; None where nothing is known.

    Yields:
        The search after each configuration; the caller keeps the newest, whatever ends the next one.
    """
    plan, count = search.plan, search.plan.count
    recorder.on_event(PhaseChanged("profiling", f"{count} configurations at most: {plan.reason}"))

    def spent() -> bool:
        time_s, usd = trainer.elapsed_s - search.began.time_s, trainer.cost_usd - search.began.cost_usd
        return (spec.max_time is not None and time_s >= spec.max_time) or (
            spec.max_cost is not None and usd > spec.max_cost
        )

    while (configuration := next_to_profile(search, space, trainer)) is not None:
        measurement = _measured(search, configuration, trainer, space, give_up=spent, samples=samples)
        search = replace(search, tried=(*search.tried, configuration))
        if measurement is not None:
            search = replace(search, measurements=(*search.measurements, measurement))
            trainer.journal.add("measurement", measurement)
            recorder.measured(measurement)
            recorder.on_event(Profiled(measurement, len(search.tried), count))
        yield search
        if trainer.finished:
            return
        if shortage := _why_no_more(configuration, trainer, used_up=spent()):
            trainer.note(
                f"profiling ended after {len(search.measurements)} of at most {count} configurations: {shortage}"
            )
            return
        if len(plan.configurations) <= len(search.tried) < count and (reason := enough(search)):
            yield replace(search, ended_because=reason)
            return


def _measured(
    search: Search,
    configuration: Configuration,
    trainer: Trainer,
    space: SearchSpace,
    *,
    give_up: Callable[[], bool],
    samples: float | None,
) -> Measurement | None:
    """Go to a configuration and train there for long enough; None where not one undisturbed step came of it."""
    if not trainer.move(
        configuration, "profiling", meanwhile=space.global_batch_sizes[0], give_up=give_up, keep=True
    ):
        return None
    begin = trainer.step
    wanted = _Enough(
        trainer, configuration, begin, search.plan.steps_per_configuration, settle=not search.tried
    )
    trainer.until(lambda: wanted.reached() or give_up())
    if unsettled := wanted.unsettled:
        trainer.note(f"profiling goes on though the {unsettled}")
    window = trainer.history.window(configuration, begin)
    if not window:
        return None
    done = sum(trainer.history.samples_by_batch.values())
    behind = None if samples is None else min(1.0, done / samples)
    return measure(configuration, window, trainer.history.noise, trainer.worker_memory_bytes(), behind or None)


def _why_no_more(configuration: Configuration, trainer: Trainer, *, used_up: bool) -> str:
    """Why no other configuration can be measured; empty where one can."""
    if used_up:
        return "profile.max_time or profile.max_cost is used up"
    if trainer.wanted < configuration.workers:
        return f"{configuration.workers} workers could not be kept alive"
    return ""


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
            for record in trainer.history.steps_since(self._seen):
                self._stability = self._stability.update(record)
            self._seen = trainer.step
            if not self._stability.ended:
                return False
        return len(trainer.history.window(self._configuration, self._begin)) >= self._steps
