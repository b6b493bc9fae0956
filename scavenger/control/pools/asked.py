"""Jobs of a pool that were asked to take another share, and what came of it.

One that does not do it is left alone for a while, longer each time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from scavenger.domain.pool import Pool
from scavenger.logs import of_job
from scavenger.scheduler.jobs.moving import Move
from scavenger.scheduler.jobs.seeing import PoolJob, counted

logger = logging.getLogger(__name__)

_REST_MAX_S = 60.0
"""Longest pause until a job that has refused is asked again."""


@dataclass(slots=True)
class Asked:
    """What a job was asked for, and what came of it.

    Attributes:
        slots: That it was asked for last.
        since_s: When it was first asked for what it has not done.
        answered: Whether it has answered since it was asked last.
        refused: How often in a row it came to nothing.
        until_s: It is not asked again before.
    """

    slots: int
    since_s: float
    answered: bool = False
    refused: int = 0
    until_s: float = -math.inf


class AskedJobs:
    """Jobs that have not done all that they were asked for.

    Args:
        clock: Monotonic seconds.

    Attributes:
        by_job: By the ids of jobs.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.by_job: dict[str, Asked] = {}

    def ask(self, move: Move) -> None:
        """Note that a job is asked to do this."""
        asked = self.by_job.setdefault(move.job, Asked(move.slots, self._clock()))
        asked.slots, asked.answered = move.slots, False

    def heard(self, pool: Pool, job: PoolJob) -> PoolJob:
        """The job, held back for a while if it has not done what it was asked for."""
        asked = self.by_job.get(job.id)
        if asked is None or not job.answered:
            return job
        settled = counted(pool, job)
        if not asked.answered and settled is not None:
            refused = settled.told != asked.slots
            asked.refused = asked.refused + 1 if refused else 0
            rest_s = min(_REST_MAX_S, 2.0**asked.refused) if refused else 0.0
            asked.answered, asked.until_s = True, self._clock() + rest_s
            if refused:
                of_job(logger, job.id).info(
                    "the job did not take its share; it is asked again in %.0f s", rest_s
                )
        return replace(job, held_back=self._clock() < asked.until_s)

    def settle(self, jobs: Collection[PoolJob], told: Collection[str]) -> None:
        """Forget those of these jobs that can change and have done all, but for those that were told just now."""
        at_rest = {job.id for job in jobs if job.answered and not job.held_back} - set(told)
        self.by_job = {key: one for key, one in self.by_job.items() if key not in at_rest}

    def forget(self, ids: Collection[str]) -> None:
        """Forget all jobs but these."""
        self.by_job = {key: one for key, one in self.by_job.items() if key in ids}
