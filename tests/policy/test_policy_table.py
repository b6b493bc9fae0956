"""From the job file to the policy."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from policy_jobs import at, job

from scavenger.domain.decision import ChangeSize, Hold, Stop
from scavenger.domain.elastic import ScalingPolicy
from scavenger.domain.job import JobSpec
from scavenger.policy.batch import StrongScaling, WeakScaling
from scavenger.policy.failures import AvoidFailures
from scavenger.policy.limits import StayWithinLimits
from scavenger.policy.scaling import FollowModel, KeepSize, ScaleByThroughput, ScaleByUtility
from scavenger.policy.stragglers import ReplaceStragglers, SlowInARow, SlowOnAverage
from scavenger.policy.table import SCALING, policy_for, schedule_for

CURVE = {"utility": {"linear": {"worth": 50, "until": "8h"}}}


def spec(elastic: dict[str, Any] | None = None, **rest: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "version": 1,
            "name": "digits",
            "train": "train:job",
            "goal": {"max_epochs": 3},
            "search": {"workers": "1..8", "batch_size": [64, 512]},
            "elastic": elastic or {},
        }
        | rest
    )


def test_without_a_word_the_model_decides_and_nobody_is_replaced() -> None:
    limits, failures, scaling = policy_for(spec()).policies

    assert limits == StayWithinLimits(None)
    assert failures == AvoidFailures()
    assert scaling == FollowModel()


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        ("model", FollowModel),
        ("throughput", ScaleByThroughput),
        ("utility", ScaleByUtility),
        ("fixed", KeepSize),
    ],
)
def test_every_policy_of_the_job_file_has_its_class(policy: str, kind: type) -> None:
    chain = policy_for(spec({"policy": policy}, objective=CURVE))

    assert isinstance(chain.policies[-1], kind)
    assert set(SCALING) == set(get_args(ScalingPolicy))


def test_every_key_reaches_its_policy() -> None:
    elastic = {
        "min": 2,
        "max": 6,
        "policy": "throughput",
        "efficiency": 0.3,
        "every_steps": 7,
        "add": 2,
        "batch": "weak",
        "batch_max": 300,
        "straggler": {"rule": "edl", "threshold": 1.5, "at_once": 0.5},
        "failures": {"per_host": 4, "window": "5m", "cooldown": "1h", "give_up": 9},
    }
    limits, failures, stragglers, scaling = policy_for(spec(elastic)).policies
    schedule = schedule_for(spec(elastic))

    assert (schedule.workers_min, schedule.workers_max, schedule.add, schedule.every_steps) == (2, 6, 2, 7)
    assert schedule.batch == WeakScaling(300)
    assert limits == StayWithinLimits(schedule)
    assert failures == AvoidFailures(4, 300.0, 3600.0, 9)
    assert stragglers == ReplaceStragglers(SlowInARow(1.5), fraction_max=0.5)
    assert scaling == ScaleByThroughput(schedule, 0.3)


def test_defaults_fill_in_what_is_not_said() -> None:
    assert schedule_for(spec()).batch == StrongScaling()
    assert schedule_for(spec({"batch": "weak"})).batch == WeakScaling(512)
    assert policy_for(spec({"straggler": "replace"})).policies[2] == ReplaceStragglers(SlowOnAverage())
    assert policy_for(spec({"straggler": {"rule": "edl"}})).policies[2] == ReplaceStragglers(SlowInARow(1.2))


def test_the_whole_chain_puts_money_before_size_and_keeps_what_was_said() -> None:
    chain = policy_for(spec({"policy": "throughput"}))

    grown = chain.decide(job({4: 400.0}))
    assert isinstance(grown, ChangeSize)
    assert len(grown.considered) == 2
    assert isinstance(chain.decide(job({4: 400.0}, budget_usd=1.0, look_every_s=10.0)), Stop)


def test_a_model_that_changes_its_mind_is_followed_only_under_policy_model() -> None:
    planned = job(planned=at(6))

    assert isinstance(policy_for(spec()).decide(planned), ChangeSize)
    assert isinstance(policy_for(spec({"policy": "fixed"})).decide(planned), Hold)
