"""What searches of other projects ask of a trial that has ended, and of what the study has left."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from scavenger.errors import ConfigurationError, LimitReachedError

if TYPE_CHECKING:
    from scavenger.pipelines.job import Job
    from scavenger.pipelines.study import Study, Trial

__all__ = ["Ending", "ending_of", "pays_for_another", "searched_job", "usual_cost_usd"]

Ending = Literal["complete", "pruned", "interrupted", "used_up", "failed"]
"""How a trial ended, for a search: `used_up` if a limit of the study stopped it, so it may go on with a higher one."""


def searched_job(
    job: Job, metric: str | None, direction: str | None = None, *, changes: Mapping[str, Any] | None = None
) -> Job:
    """The job whose trials are compared by a metric.

    Args:
        job: The job that is searched.
        metric: What the search compares; None: the metric of the job's goal.
        direction: `max` or `min`; None: that of the job's goal.
        changes: Other keys of the job file that the search sets.

    Raises:
        ConfigurationError: If there is no metric, or the job's goal has another one or another direction.
    """
    goal = job.spec.goal
    if metric is None and goal.metric is None:
        raise ConfigurationError("the search needs a metric; name goal.metric", key="goal.metric")
    if metric is not None and goal.metric not in (None, metric):
        raise ConfigurationError(
            f"the search compares {metric}, and the job's goal has {goal.metric}; name the same metric",
            key="goal.metric",
        )
    made = job.with_settings({"goal.metric": metric, **dict(changes or {})})
    made_goal = made.spec.goal
    if direction is not None and (made_goal.direction != direction or made_goal.direction_guessed):
        if goal.mode != "auto":
            raise ConfigurationError(
                f"the search wants the {direction}imum of {made_goal.metric}, and the job's goal the "
                f"{goal.direction}imum; set the same in goal.mode",
                key="goal.mode",
            )
        made = made.with_settings({"goal.mode": direction})
    return made


def usual_cost_usd(study: Study) -> float:
    """What a trial of this study costs, by the median of the complete ones; 0 if there is none yet."""
    costs = [trial.cost_usd for trial in study.trials if trial.complete]
    return statistics.median(costs) if costs else 0.0


def pays_for_another(study: Study) -> bool:
    """Whether time is left, and what is left of the study's budget pays for another trial of the usual cost."""
    try:
        _ = study.left_s
    except LimitReachedError:
        return False
    left_usd = study.left_usd
    return left_usd > 0.0 and (math.isinf(left_usd) or left_usd > usual_cost_usd(study))


def ending_of(study: Study, trial: Trial) -> Ending:
    """How a trial ended, for a search that decides what is next."""
    if trial.complete and trial.value is not None:
        return "complete"
    if trial.pruned:
        return "pruned"
    if trial.state == "interrupted":
        return "interrupted"
    if trial.state == "stopped" and not pays_for_another(study):
        return "used_up"
    return "failed"
