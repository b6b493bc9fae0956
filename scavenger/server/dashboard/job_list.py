"""The values of the page that lists jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scavenger.domain.forms import is_number
from scavenger.domain.progress import Progress
from scavenger.domain.submission import Submission
from scavenger.presentation.formatting import beside_target, clean, duration, money
from scavenger.server.dashboard.words import (
    Fact,
    JobLink,
    Meter,
    Moment,
    State,
    left_fact,
    link_of,
    moment,
    percent,
    spent_meter,
    state_of,
)
from scavenger.store.records import JobRecord

PAGE_SIZE = 50
"""Jobs on one page."""


@dataclass(frozen=True, slots=True)
class JobListLine:
    """One job in the list.

    Attributes:
        progress: How far it is on its way to its expected end; None if that is not known.
        left: Time until the expected end with its interval; None if unknown.
        cost: So far, or in all if it has ended; `-` if none was recorded.
        spent: The share of its budget; None if it has none.
        trains_on: Workers and batch size in effect, or chosen.
    """

    job: JobLink
    state: State
    progress: Meter | None
    metric: str
    left: Fact | None
    cost: str
    spent: Meter | None
    trains_on: str
    began: Moment
    took: str
    error: str


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """A submitted job that is not on record yet: it waits for its turn, or for its runner to begin."""

    job: JobLink
    state: State
    reason: str
    job_file: str
    submitted: Moment


@dataclass(frozen=True, slots=True)
class JobListPage:
    """A page of the list.

    Attributes:
        waiting: Submitted jobs that are not on record yet; on the first page only.
        running: How many of these jobs are live.
        older: Query of the next page; empty on the last one.
        filtered: Whether only some jobs were asked for, so that an empty list means no match.
        state, name: What was asked for.
    """

    waiting: tuple[WaitingLine, ...]
    lines: tuple[JobListLine, ...]
    running: int
    older: str
    filtered: bool
    state: str
    name: str
    store: str
    at: Moment


def budget_of(spec: Mapping[str, Any]) -> float | None:
    """The budget of a job file, US dollars; None if it has none, or one that cannot be read."""
    written = (spec.get("constraints") or {}).get("budget")
    return float(written) if is_number(written) else None


def progress_meter(job: JobRecord, progress: Progress | None, now: datetime) -> Meter | None:
    """How far a live job is: the time so far as a share of the expected whole."""
    if job.ended or progress is None or progress.left_s is None:
        return None
    spent_s = max(0.0, (now - job.created_at).total_seconds())
    whole_s = spent_s + progress.left_s
    if whole_s <= 0.0:
        return None
    share = spent_s / whole_s
    return Meter(100.0 * share, f"{percent(share)} of about {duration(whole_s)}")


def job_line(job: JobRecord, progress: Progress | None, *, alive: bool, now: datetime) -> JobListLine:
    """One job in the list.

    Args:
        job: Its record, as `Store.jobs` lists it.
        progress: Its last progress; None before its first step.
        alive: Whether its process is.
        now: With a time zone.
    """
    at = job.chosen if progress is None else progress.configuration
    trains_on = "-" if at is None else f"{at.workers:,} × {clean(at.vm)}, batch {at.global_batch_size:,}"
    metric = ""
    if progress is not None and progress.value is not None:
        value, target = beside_target(progress.value, progress.target)
        metric = f"{clean(progress.metric)} {value}{f' (target {target})' if target else ''}"
    ended = job.ended_at or now
    return JobListLine(
        job=link_of(job),
        state=state_of(job, alive=alive),
        progress=progress_meter(job, progress, now) if alive else None,
        metric=metric,
        left=left_fact(progress.left_s, progress.left_interval_s)
        if progress is not None and not job.ended and alive
        else None,
        cost="-" if job.cost_usd is None else money(job.cost_usd),
        spent=spent_meter(job.cost_usd, budget_of(job.spec)),
        trains_on=trains_on,
        began=moment(job.created_at, now),
        took=duration(float(round((ended - job.created_at).total_seconds()))),
        error=clean(job.error),
    )


def waiting_line(submission: Submission, now: datetime) -> WaitingLine:
    """A submitted job that is not on record yet."""
    return WaitingLine(
        job=JobLink(submission.id, clean(submission.job.name), clean(submission.job.user)),
        state=State("starting" if submission.state == "running" else submission.state, "idle"),
        reason=clean(submission.reason),
        job_file=clean(submission.job.job_file),
        submitted=moment(submission.submitted_at, now),
    )


def jobs_page(
    lines: Sequence[JobListLine],
    waiting: Sequence[WaitingLine],
    *,
    more: bool,
    older: str,
    state: str,
    name: str,
    store: str,
    now: datetime,
) -> JobListPage:
    """The page of these jobs; `older` is the query of the next page, if there are `more`."""
    return JobListPage(
        waiting=tuple(waiting),
        lines=tuple(lines),
        running=sum(line.state.live for line in lines),
        older=older if more else "",
        filtered=bool(state or name),
        state=state,
        name=name,
        store=store,
        at=moment(now, now),
    )
