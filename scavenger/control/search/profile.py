"""Profiling: runs one configuration after another and measures each; their steps are part of the training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from scavenger.control.training.measure import STEPS_MIN, is_known, measure
from scavenger.control.training.recorder import Recorder
from scavenger.control.training.trainer import Trainer
from scavenger.control.training.view_in_effect import VIEW_WARM_UP_STEPS
from scavenger.domain.configuration import Configuration, SearchSpace
from scavenger.domain.job import ProfileSpec
from scavenger.domain.measurement import Measurement
from scavenger.domain.report import PhaseChanged, Profiled
from scavenger.presentation.formatting import plural
from scavenger.search.plan import SearchPlan, next_configuration
from scavenger.search.replan import worth_repeating

SLOWER_MAX = 3.0
"""Times as long as expected that measuring a configuration again may take."""

VIEWS = 2
"""Changes of view of a configuration that is measured again: there, and on to the choice."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Time and cost of a job since it began: seconds and US dollars."""

    time_s: float
    cost_usd: float

    @classmethod
    def by_now(cls, trainer: Trainer) -> Spent:
        """Time and cost of the job up to now."""
        return cls(trainer.elapsed_s, trainer.cost_usd)


@dataclass(frozen=True, slots=True)
class Search:
    """State of a search.

    Attributes:
        began, ended: Time and cost of the job at the search's start and end; `ended` is None until the choice is made.
        measurements: One per measured configuration, in order.
        tried: Configurations that were tried, whether measured or not.
        first_at_s: Running time of the job when the first of them was made; None before.
        twice: The first of them, and the same configuration at the end of the search; empty if it was not measured
            again.
        favourite: What would be chosen by the measurements so far; None before that is known.
        ended_because: Why fewer configurations were profiled than the plan allows; empty if none was left out.
    """

    plan: SearchPlan
    began: Spent
    measurements: tuple[Measurement, ...] = ()
    tried: tuple[Configuration, ...] = ()
    first_at_s: float | None = None
    twice: tuple[Measurement, ...] = ()
    favourite: Configuration | None = None
    ended_because: str = ""
    ended: Spent | None = None


def profile(
    search: Search,
    trainer: Trainer,
    recorder: Recorder,
    spec: ProfileSpec,
    space: SearchSpace,
    *,
    judge: Callable[[Search], Search],
    samples: float | None,
    cut: Callable[[], bool] = lambda: False,
) -> Iterator[Search]:
    """Measure the planned configurations until the plan or the limits of `spec` are exhausted or training finishes.

    Args:
        space: What may be profiled. While workers start, its smallest batch is used, where
            samples are most effective.
        judge: Called after each configuration; returns the search with its favourite and, if the measurements suffice,
            why.
        samples: Expected samples of the whole run; None if unknown.
        cut: Whether the job's pool waits for the search to end, which it does once it has measured anything.

    Yields:
        The search after each configuration; the caller keeps the newest one.
    """
    plan, count = search.plan, search.plan.count
    configurations = plural(count, "configuration")
    recorder.on_event(PhaseChanged("profiling", f"{configurations} at most: {plan.reason}"))

    def spent() -> bool:
        time_s, usd = trainer.elapsed_s - search.began.time_s, trainer.cost_usd - search.began.cost_usd
        return (spec.max_time is not None and time_s >= spec.max_time) or (
            spec.max_cost is not None and usd > spec.max_cost
        )

    while (configuration := next_to_profile(search, space, trainer)) is not None:
        measurement = _measured(search, configuration, trainer, space, give_up=spent, samples=samples)
        search = replace(search, tried=(*search.tried, configuration))
        if measurement is not None:
            search = replace(
                search,
                measurements=(*search.measurements, measurement),
                first_at_s=trainer.elapsed_s if search.first_at_s is None else search.first_at_s,
            )
            trainer.journal.add("measurement", measurement)
            recorder.measured(measurement)
            recorder.on_event(Profiled(measurement, len(search.tried), count))
        yield search
        if trainer.finished:
            return
        cut_off = bool(search.measurements) and cut()
        if shortage := _why_no_more(configuration, trainer, used_up=spent(), cut_off=cut_off):
            trainer.note(
                f"profiling ended after {len(search.measurements)} of at most {configurations}: {shortage}"
            )
            return
        if len(plan.configurations) <= len(search.tried) < count:
            search = judge(search)
            if search.ended_because:
                yield search
                return


def _measured(
    search: Search,
    configuration: Configuration,
    trainer: Trainer,
    space: SearchSpace,
    *,
    give_up: Callable[[], bool],
    samples: float | None,
    steps: int | None = None,
) -> Measurement | None:
    """Move to a configuration and measure it; None if it had no undisturbed step, or its samples do not fit at once.

    Args:
        steps: Most undisturbed steps; None for as many as the plan says.
    """
    if not trainer.move(
        configuration, "profiling", meanwhile=space.global_batch_sizes[0], give_up=give_up, keep=True
    ):
        return None
    begin = trainer.step
    most = steps or search.plan.steps_per_configuration
    history, samples_each = trainer.history, configuration.local_batch_size

    def ended() -> bool:
        """Whether its median is known, its samples do not fit, or lost workers were not replaced."""
        if trainer.wanted < configuration.workers or give_up():
            return True
        if not history.fits(samples_each) and trainer.step > begin:
            return True  # a step in parts has shown how few may
        window = history.window(configuration, begin)
        return len(window) >= most or is_known(window)

    trainer.until(ended)
    window = history.window(configuration, begin)
    if not window or not history.fits(samples_each):
        return None
    done = sum(history.samples_by_batch.values())
    behind = None if samples is None else min(1.0, done / samples)
    return measure(configuration, window, history.noise, trainer.worker_memory_bytes(), behind or None)


def repeat_first(
    search: Search, trainer: Trainer, space: SearchSpace, *, lost: float, left_s: float
) -> Search:
    """Measure the first configuration again where that pays, see `worth_repeating`; no worker is started for it.

    Args:
        lost: Share of the time on that configuration in which the chosen one would have trained as much more.
        left_s: Predicted rest of the run.
    """
    if len(search.measurements) < 2 or search.first_at_s is None:
        return search
    first = search.measurements[0]
    configuration, steps = first.configuration, min(STEPS_MIN, search.plan.steps_per_configuration)
    present = trainer.ready_on(configuration.vm)
    if trainer.offer.vm != configuration.vm or present < configuration.workers:
        return search
    takes_s = (steps + VIEWS * VIEW_WARM_UP_STEPS) * first.step_time_s
    since_s = trainer.elapsed_s - search.first_at_s
    stall = trainer.stall(configuration)
    pause_s = 0.0 if stall is None else VIEWS * stall.mean_s
    if not worth_repeating(since_s=since_s, takes_s=takes_s, lost=lost, left_s=left_s, pause_s=pause_s):
        return search
    until_s = trainer.elapsed_s + SLOWER_MAX * takes_s
    again = _measured(
        search,
        configuration,
        trainer,
        space,
        give_up=lambda: trainer.elapsed_s >= until_s,
        samples=None,
        steps=steps,
    )
    return search if again is None else replace(search, twice=(first, again))


def _why_no_more(configuration: Configuration, trainer: Trainer, *, used_up: bool, cut_off: bool) -> str:
    """Reason why no other configuration can be measured; empty if one can."""
    if used_up:
        return "profile.max_time or profile.max_cost is used up"
    if cut_off:
        return "the job's pool has another use for its slots"
    if trainer.wanted < configuration.workers:
        return f"{plural(configuration.workers, 'worker')} could not be kept alive"
    return ""


def too_large_model(trainer: Trainer) -> str:
    """Why the aggregator VMs do not hold the model; empty if they do, or if it is not known."""
    vms = trainer.aggregator_vms()
    return "" if vms is None else vms.lack()


def next_to_profile(search: Search, space: SearchSpace, trainer: Trainer) -> Configuration | None:
    """The next configuration to profile; None if the plan is complete or nothing useful is left."""
    if too_large_model(trainer):
        return None
    return next_configuration(
        search.plan,
        space,
        search.measurements,
        search.tried,
        ready=trainer.ready_on(space.offers[0].vm),
        setup_s=trainer.setup_s,
        too_many=trainer.history.too_many,
        favourite=search.favourite,
    )
