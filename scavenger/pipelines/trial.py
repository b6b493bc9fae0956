"""`Trial`: one trial of a study, and what makes it the same one as another."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scavenger.domain.report import JobState
from scavenger.errors import ConfigurationError, TrainingError
from scavenger.pipelines.results import Run

__all__ = ["PRUNED", "Trial", "trial_key", "trial_of", "union_s"]

PRUNED = "pruned"
"""Why a trial was stopped that was not worth its rest."""
_OVER: tuple[JobState, ...] = ("succeeded", "target_missed")
_ITS_OWN = (ConfigurationError.exit_code, TrainingError.exit_code)
_OTHERWISE_ALIKE = ("name", "constraints", "search", "output", "trackers")
"""Keys of a job that do not make another trial of it: where and under which limits it runs."""
_SIZE = ("min", "max", "policy", "straggler", "aggregators", "aggregator_vms")
"""Keys of `elastic` that do not, either: how many workers it may have when, and on how many VMs they are summed up
(of which a record has the number that was chosen)."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a study.

    Attributes:
        id: The id of its job.
        params: The arguments that it was made with.
        state: How its job ended; `interrupted` with `pruned` if it was stopped as not worth its rest.
        value: Best value of the goal's metric; None if it has none.
        cost_usd: What it has cost.
        time_s: How long it took.
        profiled: Configurations that were measured for it; 0 if a stored model was used.
        predicted_usd: Predicted cost, made at its choice; None if there was none.
        error: Why it failed; may be empty.
        exit_code: Of the command that it would have been; see `scavenger.errors`.
        known: Whether it was on record already, and was not run again.
        model_path: The saved `.keras` model; None if there is none.
    """

    id: str
    params: Mapping[str, Any]
    state: JobState
    value: float | None
    cost_usd: float
    time_s: float
    profiled: int
    predicted_usd: float | None
    error: str
    exit_code: int = 0
    known: bool = False
    model_path: str | None = None

    @property
    def complete(self) -> bool:
        """Whether it reached its target or last epoch."""
        return self.state in _OVER

    @property
    def pruned(self) -> bool:
        """Whether it was stopped as not worth its rest."""
        return self.error == PRUNED

    @property
    def over(self) -> bool:
        """Whether it is not run again: it is complete, was pruned, or failed for a reason of its own."""
        return self.complete or self.pruned or (self.state == "failed" and self.exit_code in _ITS_OWN)


def trial_key(spec: Mapping[str, Any]) -> str:
    """What makes a trial the same one: the job without its name, limits, search and size; equal for equal arguments."""
    kept = {key: value for key, value in spec.items() if key not in _OTHERWISE_ALIKE}
    elastic = {key: value for key, value in kept.pop("elastic", {}).items() if key not in _SIZE}
    return json.dumps({**kept, **({"elastic": elastic} if elastic else {})}, sort_keys=True)


def union_s(intervals: Iterable[tuple[datetime, datetime]]) -> float:
    """The time that intervals cover together, seconds."""
    covered, reached = 0.0, None
    for begin, end in sorted(intervals):
        start = begin if reached is None else max(begin, reached)
        covered += max(0.0, (end - start).total_seconds())
        reached = end if reached is None else max(end, reached)
    return covered


def trial_of(run: Run, params: Mapping[str, Any], cost_usd: float, *, known: bool = False) -> Trial:
    predicted = None if run.predicted is None else run.predicted.cost_usd
    return Trial(
        run.id,
        dict(params),
        run.state,
        run.value,
        cost_usd,
        run.time_s,
        run.profiled,
        predicted,
        run.report.error,
        run.report.exit_code,
        known,
        run.model_path,
    )
