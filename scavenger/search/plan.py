"""The search plan: which configurations to profile, and in which order.

`full` profiles every configuration. `extremes` profiles the corners of the (K, B) plane, as in Tyagi and Sharma,
"Scavenger", §IV, and, where workers share processors, the cluster size at which those are all in use, since the law of
the step time has its kink there; K only grows along these two, so that a worker once started is used until the search
ends. `partial` starts with the fewest workers and the smallest batch and asks `models.design` again after each
measurement which one is most informative for its cost. `none` and `universal` profile nothing and use stored models.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from scavenger.domain.configuration import Configuration, Offer, SearchSpace
from scavenger.domain.measurement import Measurement
from scavenger.domain.overrides import Strategy
from scavenger.errors import ConfigurationError, NoFeasiblePlanError
from scavenger.models.design import Candidate, ProfilingCost, propose
from scavenger.models.job_model import TRANSFER_MAX, step_times
from scavenger.models.overlap_law import beliefs_of

STRATEGIES: tuple[str, ...] = get_args(Strategy)

NO_MODEL = {
    "none": "search strategy 'none' needs a stored model of the same job on the same hardware, and there is none; "
    "'auto' or 'partial' profiles one",
    "universal": "search strategy 'universal' needs stored models, and there are none; use 'partial'",
}
"""The refusal of a strategy for which no model is stored."""

POINTS = 6
"""Most points of a partial search: as many as determine the coefficients of the overlap law (see docs/models.md)."""

AXIS_MAX = 64
"""Cluster sizes, and batch sizes, that a proposal weighs where there are more: as many, evenly in their logarithms. The
next one lies within a few percent, while weighing all of a hundred thousand configurations takes seconds."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The planned measurements.

    Attributes:
        strategy: The strategy that is used: `full`, `partial`, `extremes`, `none` or `universal`.
        reason: Why this strategy, in one sentence.
        configurations: Configurations in order; if `points` is larger than their number, the first ones.
        steps_per_configuration: Most undisturbed steps of each.
        points: Highest number of configurations; those after `configurations` follow from what is measured.
    """

    strategy: str
    reason: str
    configurations: tuple[Configuration, ...]
    steps_per_configuration: int
    points: int = 0

    @property
    def count(self) -> int:
        """Largest number of configurations to profile."""
        return max(self.points, len(self.configurations))


def plan_search(
    space: SearchSpace,
    strategy: str,
    *,
    has_same: bool,
    has_any: bool,
    steps: int,
    points: int = POINTS,
) -> SearchPlan:
    """Plan which configurations to profile.

    Args:
        strategy: One of `STRATEGIES`; `auto` and `reuse` are `none` where a model of the same job on the same hardware
            is stored, else `partial`.
        has_same: Whether such a model is stored; for `reuse` and `none`, also one of a job with other settings.
        has_any: Whether a model of any job is stored.
        steps: Number of steps to profile each configuration for.
        points: Highest number of configurations of a partial search; of several VM types each gets `TRANSFER_MAX` of
            them at least, as what is not known of a whole type weighs more than another point of one.

    Raises:
        ConfigurationError: If the strategy is unknown, or needs a stored model that does not exist.
        NoFeasiblePlanError: If no configuration gives each worker a sample.
        ValueError: If `steps` or `points` is not positive.
    """
    if steps < 1 or points < 1:
        raise ValueError(
            f"at least one configuration is profiled for at least one step, not {points} for {steps}"
        )
    if strategy not in STRATEGIES:
        raise ConfigurationError(f"search strategy {strategy!r} is none of {', '.join(STRATEGIES)}")
    # In the space's own order (offer, K, B), so that K only grows.
    allowed = space.configurations()
    if not allowed:
        raise NoFeasiblePlanError("no configuration gives every worker at least one sample per step")
    if strategy in ("auto", "reuse"):
        strategy, reason = (
            ("none", "a model of the same job on the same hardware is stored")
            if has_same
            else ("partial", "no model of the same job on the same hardware is stored")
        )
    else:
        reason = f"the job file asks for {strategy}"
    if strategy == "none" and not has_same:
        raise ConfigurationError(NO_MODEL["none"])
    if strategy == "universal" and not has_any:
        raise ConfigurationError(NO_MODEL["universal"])
    if strategy == "full":
        return SearchPlan("full", reason, allowed, steps)
    if strategy == "extremes":
        corners = [c for offer in space.offers for c in _corners(offer, allowed)]
        return SearchPlan("extremes", reason, tuple(corners), steps)
    if strategy == "partial":
        types = len(space.offers)
        count = points if types == 1 else max(points, TRANSFER_MAX * types)
        return SearchPlan("partial", reason, allowed[:1], steps, min(count, len(allowed)))
    return SearchPlan(strategy, reason, (), steps)


def next_configuration(
    plan: SearchPlan,
    space: SearchSpace,
    measured: Sequence[Measurement],
    tried: Collection[Configuration],
    *,
    ready: int = 0,
    setup_s: float = 0.0,
    too_many: int | None = None,
    favourite: Configuration | None = None,
) -> Configuration | None:
    """The next configuration to profile; None if the plan is complete or no useful one is left.

    The last point of a search on one VM type goes to the present choice, if its number of workers was never measured:
    what is then chosen was. Of several types it corrects what is carried over to one of them, which is worth more.

    Of several VM types the first is explored; of each other one `TRANSFER_MAX` configurations correct what is
    carried over to it.

    Args:
        measured: Measurements so far.
        tried: Configurations that are not to be proposed again, measured or not.
        ready: Number of workers that are already running.
        setup_s: Time from the launch of a worker until it can join.
        too_many: Samples per worker from which on nothing is proposed, as memory did not hold them; None if all fit.
        favourite: What would be chosen by the measurements so far; None if that is not known.
    """

    def fits(configuration: Configuration) -> bool:
        return too_many is None or configuration.local_batch_size < too_many

    for configuration in plan.configurations:
        if configuration not in tried and fits(configuration):
            return configuration
    if len(tried) >= plan.points:
        return None
    last, known = len(tried) == plan.points - 1, {m.configuration.workers for m in measured}
    unknown = favourite is not None and favourite.workers not in known and favourite not in tried
    if favourite is not None and unknown and fits(favourite) and last and len(space.offers) == 1:
        return favourite
    space = _thinned(space, most=max(AXIS_MAX, plan.points))
    for index, offer in enumerate(space.offers):
        here = [m for m in measured if m.configuration.vm == offer.vm]
        if index and len(here) >= TRANSFER_MAX:
            continue
        if not index and len(tried) >= plan.points - TRANSFER_MAX * (len(space.offers) - 1):
            continue
        everything = tuple(c for c in replace(space, offers=(offer,)).configurations() if fits(c))
        open_ = [c for c in everything if c not in tried]
        found = propose(
            [_candidate(offer, c) for c in open_],
            [step_times(offer, m) for m in here],
            target=[_candidate(offer, c) for c in everything],
            cost=ProfilingCost(plan.steps_per_configuration, setup_s, ready if not index else 0),
            beliefs=beliefs_of(offer.shared_cpus),
        )
        if found is not None:
            return open_[found]
    return None


def _thinned(space: SearchSpace, most: int) -> SearchSpace:
    return replace(
        space, workers=evenly(space.workers, most), global_batch_sizes=evenly(space.global_batch_sizes, most)
    )


def evenly(values: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Select at most `most` of positive, increasing values, evenly spaced in logarithm, including both ends."""
    if len(values) <= most:
        return values
    places = np.searchsorted(values, np.geomspace(values[0], values[-1], most))
    return tuple(values[place] for place in np.unique(places))


def _candidate(offer: Offer, configuration: Configuration) -> Candidate:
    workers = configuration.workers
    return Candidate(
        workers, configuration.global_batch_size, offer.workers_per_vm, offer.contention(workers)
    )


def _corners(offer: Offer, allowed: tuple[Configuration, ...]) -> Iterator[Configuration]:
    """The smallest and largest batch at the smallest, the kink's and the largest cluster size.

    The first is (Kmin, Bmin); between two cluster sizes the batch stays, so that one thing changes at a time.
    """
    by_workers: dict[int, list[Configuration]] = {}
    for configuration in allowed:
        if configuration.vm == offer.vm:
            by_workers.setdefault(configuration.workers, []).append(configuration)
    small_first = True
    for workers in _cluster_sizes(offer, sorted(by_workers)):
        batches = sorted(by_workers[workers], key=lambda c: c.global_batch_size)
        ends = list(dict.fromkeys((batches[0], batches[-1])))
        yield from ends if small_first else reversed(ends)
        small_first = not small_first


def _cluster_sizes(offer: Offer, workers: list[int]) -> list[int]:
    """Smallest and largest K, and between them the largest at which shared processors still suffice."""
    if not workers:
        return []
    full = [k for k in workers[1:-1] if offer.contention(k) == 1.0]
    kink = full[-1:] if offer.contention(workers[-1]) > 1.0 else []
    return list(dict.fromkeys((workers[0], *kink, workers[-1])))
