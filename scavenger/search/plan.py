"""Which configurations to profile, and in which order.

K only grows along a plan (of one VM type), as in Tyagi and Sharma, "Scavenger", §IV: a worker that has been
started is used until the search ends. `full` profiles every configuration; `partial` the corners of the (K,
B) plane, and, where workers share processors, the cluster size at which those are all in use, since the law
of the step time has its kink there; `none` and `universal` profile nothing and rest on stored models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scavenger.domain.configuration import Configuration, Offer, SearchSpace
from scavenger.errors import ConfigurationError, NoFeasiblePlanError

__all__ = ["STRATEGIES", "SearchPlan", "plan_search"]

STRATEGIES = ("auto", "full", "partial", "none", "universal")


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The measurements intended.

    Attributes:
        strategy: What is really done: `full`, `partial`, `none` or `universal`.
        reason: Why, in one sentence.
        configurations: In order; of one VM type, K only grows.
        steps_per_configuration: Undisturbed steps of each; of the first, at least so many: it lasts until the
            gradient noise has settled.
    """

    strategy: str
    reason: str
    configurations: tuple[Configuration, ...]
    steps_per_configuration: int


def plan_search(
    space: SearchSpace,
    strategy: str,
    *,
    has_same: bool,
    has_any: bool,
    steps: int,
) -> SearchPlan:
    """Choose what to profile.

    Args:
        strategy: One of `STRATEGIES`; `auto` is `none` where a model of the same job on the same hardware is
            stored, else `partial`.
        has_same: Such a model is stored.
        has_any: A model of any job is stored.
        steps: To profile each configuration for.

    Raises:
        ConfigurationError: If the strategy is unknown, or needs a stored model that there is not.
        NoFeasiblePlanError: If no configuration gives each worker a sample.
        ValueError: If `steps` is not positive.
    """
    if steps < 1:
        raise ValueError(f"a configuration is profiled for at least one step, not {steps}")
    if strategy not in STRATEGIES:
        raise ConfigurationError(f"search strategy {strategy!r} is none of {', '.join(STRATEGIES)}")
    # In the space's own order (offer, K, B), so that K only grows.
    allowed = space.configurations()
    if not allowed:
        raise NoFeasiblePlanError("no configuration gives every worker at least one sample per step")
    if strategy == "auto":
        strategy, reason = (
            ("none", "a model of the same job on the same hardware is stored")
            if has_same
            else ("partial", "no model of the same job on the same hardware is stored")
        )
    else:
        reason = f"the job file asks for {strategy}"
    if strategy == "none" and not has_same:
        raise ConfigurationError(
            "search strategy 'none' needs a stored model of the same job on the same hardware, and there is "
            "none; 'auto' or 'partial' profiles one"
        )
    if strategy == "universal" and not has_any:
        raise ConfigurationError(
            "search strategy 'universal' needs stored models, and there are none; use 'partial'"
        )
    if strategy == "full":
        return SearchPlan("full", reason, allowed, steps)
    if strategy == "partial":
        corners = [c for offer in space.offers for c in _corners(offer, allowed)]
        return SearchPlan("partial", reason, tuple(corners), steps)
    return SearchPlan(strategy, reason, (), steps)


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
