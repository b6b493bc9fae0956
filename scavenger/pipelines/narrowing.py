"""Jobs with less to choose or to spend than their files say: one configuration, or a lower budget."""

from __future__ import annotations

from scavenger.domain.configuration import Configuration
from scavenger.domain.curve import Choice, CurvePoint
from scavenger.errors import ConfigurationError
from scavenger.pipelines.job import Job, check_is_job
from scavenger.pipelines.results import Plan

__all__ = ["Choices", "fixed", "limited"]

Choices = Plan | Choice | CurvePoint | Configuration


def limited(job: Job, usd: float | None) -> Job:
    """The job with this budget; with its own without one."""
    return job if usd is None else job.with_settings({"constraints.budget": usd})


def fixed(job: Job, choice: Choices | None, workers: int | None, batch_size: int | None) -> Job:
    """The job with one configuration to search."""
    check_is_job(job)
    if (choice is None) != (workers is not None and batch_size is not None):
        raise ConfigurationError(
            "run takes one configuration: give a plan or a point of its curve, or workers and batch_size"
        )
    changes: dict[str, object] = {"search.workers": workers, "search.batch_size": batch_size}
    if choice is not None:
        found = choice.choice if isinstance(choice, Plan) else choice
        at = found if isinstance(found, Configuration) else found.configuration
        point = found.point if isinstance(found, Choice) else found
        if job.spec.goal.target is None and isinstance(point, CurvePoint):
            changes["goal.max_epochs"] = max(1, round(point.epochs))  # those that were compared
        changes = changes | {"search.workers": at.workers, "search.batch_size": at.global_batch_size}
        if job.spec.infra.capabilities.rents:
            changes["resources"] = {"vm": at.vm}
    if job.spec.search.strategy == "auto":
        changes["search.strategy"] = "reuse"
    return job.with_settings(changes)
