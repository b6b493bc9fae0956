"""Builds the policy that a job file specifies."""

from __future__ import annotations

from collections.abc import Callable

from scavenger.domain.elastic import ScalingPolicy, StragglerSpec
from scavenger.domain.job import JobSpec
from scavenger.policy.base import Chain, Policy
from scavenger.policy.batch import batch_rule
from scavenger.policy.failures import AvoidFailures
from scavenger.policy.limits import StayWithinLimits
from scavenger.policy.scaling import FollowModel, KeepSize, ScaleByThroughput, ScaleByUtility
from scavenger.policy.schedule import Schedule
from scavenger.policy.stragglers import ReplaceStragglers, SlowInARow, SlowOnAverage, StragglerRule


def schedule_for(job: JobSpec) -> Schedule:
    """The sizes that the job may have while it runs."""
    elastic, (low, high) = job.elastic, job.elastic_range
    batch_max = job.batch_sizes[-1] if elastic.batch_max is None else elastic.batch_max
    return Schedule(
        workers_min=low,
        workers_max=high,
        add=elastic.add,
        every_steps=elastic.every_steps,
        batch=batch_rule(elastic.batch, batch_max=batch_max),
    )


def _by_utility(job: JobSpec) -> Policy:
    if job.utility is None:
        raise ValueError("policy: utility needs an objective with a utility by time")
    return ScaleByUtility(schedule_for(job), job.utility, job.elastic.efficiency)


SCALING: dict[ScalingPolicy, Callable[[JobSpec], Policy]] = {
    "model": lambda job: FollowModel(),
    "throughput": lambda job: ScaleByThroughput(schedule_for(job), job.elastic.efficiency),
    "utility": _by_utility,
    "fixed": lambda job: KeepSize(),
}
"""Scaling policies by the value of `elastic.policy`."""

STRAGGLER_RULES: dict[str, Callable[[StragglerSpec], StragglerRule]] = {
    "ewma": lambda spec: SlowOnAverage(fraction_min=spec.limit),
    "edl": lambda spec: SlowInARow(slowdown_max=spec.limit),
}
"""Straggler rules by the value of `elastic.straggler.rule`."""

_STEERED: frozenset[ScalingPolicy] = frozenset({"throughput", "utility"})
"""Scaling policies that try sizes; only with these may the limits policy try sizes too, else it only stops."""


def policy_for(job: JobSpec) -> Chain:
    """Build the job's policy: limits first, then failures, then stragglers, then scaling.

    Raises:
        ValueError: If the job asks for `policy: utility` without a utility; `JobSpec` refuses that too.
    """
    elastic, failures, replacing = job.elastic, job.elastic.failures, job.elastic.replacing
    policies: list[Policy] = [
        StayWithinLimits(schedule_for(job) if elastic.policy in _STEERED else None),
        AvoidFailures(failures.per_host, failures.window, failures.cooldown, failures.give_up),
    ]
    if replacing is not None:
        rule = STRAGGLER_RULES[replacing.rule](replacing)
        policies.append(ReplaceStragglers(rule, fraction_max=replacing.at_once))
    policies.append(SCALING[elastic.policy](job))
    return Chain(tuple(policies))
