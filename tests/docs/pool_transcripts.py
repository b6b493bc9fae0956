"""`python -m tests.docs.pool_transcripts`: writes what a pool shows into docs/many-jobs.md, as today's code shows it.

Three jobs share four slots: two train with two each, and one that was submitted last waits, of which nothing is known.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from rich.console import RenderableType
from scavenger_cli.commands.pool import pool_text, share_text, what_if_text
from scavenger_cli.ui import console

from scavenger.api.calls import Local
from scavenger.api.pools import PoolMove, brought, share_of, shared
from scavenger.control.pools.standing import PoolStanding
from scavenger.domain.pool import JobStanding, Pool, PoolAllotment, PoolShare, RatePoint, WorkLeft
from scavenger.scheduler.jobs.explaining import explain as explain_slots
from scavenger.scheduler.jobs.explaining import further
from scavenger.scheduler.jobs.forecast import NewJob
from scavenger.scheduler.jobs.seeing import PoolJob, Sizes
from tests.docs.transcripts import written

PAGE = Path(__file__).parents[2] / "docs" / "many-jobs.md"
AT = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
_CURVE = tuple(RatePoint(slots, 100.0 * slots**0.8, slots < 4) for slots in (1, 2, 4))
_IDS = {
    "digits": "3f1c09a2-7d52-4c0e-9d0f-0a4be8a1c001",
    "speech": "8be27714-22fa-4b8f-9e0e-5b6f9dd1c002",
    "wide": "c40d5e38-90cb-4be1-8a55-7e21d3a2c003",
}


def _job(name: str, number: int, samples: float | None) -> PoolJob:
    standing = None
    if samples is not None:
        standing = JobStanding(
            1, "training", 2, 1, rate=_CURVE[1].rate, left=WorkLeft(samples, 0.2), change_s=1.0, curve=_CURVE
        )
    return PoolJob(
        id=_IDS[name],
        user="ann",
        priority=0,
        number=number,
        sizes=Sizes(1, 4, 4),
        waited_s=0.0 if samples else 12.0,
        standing=standing,
        share=PoolShare(2, 2, 2, 1, at=AT) if samples else None,
        queued=samples is None,
    )


def _standing() -> PoolStanding:
    jobs = (_job("digits", 1, 400_000.0), _job("speech", 2, 120_000.0), _job("wide", 3, None))
    pool = Pool("gpu", 4, "even", starved_s=3600.0)
    shares = {job.id: job.share for job in jobs if job.share is not None}
    names = {job_id: name for name, job_id in _IDS.items()}
    return PoolStanding(pool, jobs, names, PoolAllotment(pool, 1, shares, (), AT), 0.13402)


def _printed(parts: Iterable[RenderableType]) -> str:
    stream = io.StringIO()
    console.emit(*parts, stream=stream)
    return stream.getvalue()


def pool() -> str:
    """`scavenger pool`."""
    standing = _standing()
    why = further(explain_slots(standing.decision.seen, standing.rules, 0), list(_IDS))
    moves = ("speech begins with 2 slots", f"digits shrinks to 2 slots: {why}")
    told = tuple(PoolMove(AT, move) for move in moves)
    return _printed(pool_text(shared(Local(), standing, {}, told, ())))


def explain() -> str:
    """`scavenger pool explain digits`."""
    return _printed(share_text(share_of(Local(), _standing(), 0)))


def what_if() -> str:
    """`scavenger pool what-if job.yaml`."""
    rates = np.array([0.0, *(slots**0.8 / 1800.0 for slots in (1, 2, 3, 4))])
    new = NewJob(1, 4, 4, rates, left=1.0, left_log_sd=0.25, change_s=1.0)
    known = "51d0aa17-6f0e-4a53-8f1c-9d1e2a77c004"
    return _printed(what_if_text(brought(Local(), _standing(), new, name="vision", known_by=known)))


TRANSCRIPTS: Mapping[str, Callable[[], str]] = {"pool": pool, "explain": explain, "what-if": what_if}


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8"), TRANSCRIPTS), "utf-8")
