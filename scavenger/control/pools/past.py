"""Jobs that have ended as a workload for virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from scavenger.control.pools.traces import NamedCurves, Trace, workload
from scavenger.domain.pool import RatePoint
from scavenger.scheduler.jobs.seeing import rates_of
from scavenger.scheduler.jobs.simulation import Workload
from scavenger.scheduler.jobs.values import Curves


class Past(Protocol):
    """A job that has ended; see `scavenger.api.history.PastJob`."""

    @property
    def user(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def submitted_s(self) -> float: ...
    @property
    def lasts_s(self) -> float: ...
    @property
    def slots(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def most(self) -> int: ...
    @property
    def curve(self) -> tuple[RatePoint, ...]: ...


def past_trace(jobs: Sequence[Past]) -> Trace:
    """The jobs as a trace, with the row of each in place of its model."""
    return Trace(
        submitted_s=np.array([job.submitted_s for job in jobs]),
        lasts_s=np.array([job.lasts_s for job in jobs]),
        slots=np.array([job.slots for job in jobs], dtype=np.int64),
        priority=np.array([job.priority for job in jobs], dtype=np.int64),
        user=tuple(job.user for job in jobs),
        model=tuple(str(row) for row in range(len(jobs))),
    )


def past_workload(
    jobs: Sequence[Past], slots: int, *, change_s: float = 0.0, error_log_sd: float = 0.0, seed: int = 0
) -> Workload:
    """What past jobs have to do: the work that they did, by their curves.

    A job whose speed with other numbers of workers is not known has what it had, or nothing.

    Args:
        slots: Of the pool: no job has more.
    """
    trace = past_trace(jobs)
    most = max(slots, int(trace.slots.max()))
    rates = [rates_of(job.curve, most) for job in jobs]
    known = NamedCurves(trace.model, Curves(np.stack(rates)))
    made = workload(trace, known, change_s=change_s, error_log_sd=error_log_sd, seed=seed)
    elastic = np.array([bool(job.curve) for job in jobs])
    least = np.where(elastic, [job.least for job in jobs], trace.slots)
    highest = np.where(elastic, [min(job.most, most) for job in jobs], trace.slots)
    claims = replace(made.claims, least=least, most=np.maximum(highest, trace.slots))
    return replace(made, claims=claims)
