"""The ledger: what each job has cost in each month, by item; and budgets, which are held against it.

Nothing deletes a row: neither the end of a job, nor its resumption, nor the deletion of its record gives money back.
An item is booked by its total so far, of which the present month gets what earlier months do not have; so booking
the same twice is booking it once, and a correction by the cloud's times falls into the month in which it is known.

Whatever decides on money does so in the transaction that also records the decision: on PostgreSQL as on SQLite, one
process writes at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from scavenger.domain.submission import OPEN_SUBMISSIONS, NewSubmission, Spending, StoredBudgets
from scavenger.errors import LimitReachedError
from scavenger.presentation.formatting import used_up
from scavenger.store.base import Part, open_submissions
from scavenger.store.documents import budget_of
from scavenger.store.operations import KEPT, POOL
from scavenger.store.owner import is_owner_alive, owner_of, this_process
from scavenger.store.records import LIVE_STATES, Owner
from scavenger.store.schema import BudgetRow, ClaimRow, IntentRow, JobRow, LedgerRow, SubmissionRow

Item = Literal["job", "vms", "share", "pool", "leader"]


@dataclass(frozen=True, slots=True)
class Means:
    """What a study has spent and set aside, over all programs that run it.

    Attributes:
        spent_usd: Cost of all its jobs and of the VMs that it kept, ended or not, on record or deleted.
        aside_usd: What the running ones may cost besides, where they have a limit.
        running: How many run, or are about to.
        granted_usd: What the job that asked may cost; None without a limit.
    """

    spent_usd: float
    aside_usd: float
    running: int
    granted_usd: float | None = None


class Ledger(Part):
    """The part of `Store` that holds what was spent, and what may be.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    def book(self, job_id: str, item: Item, usd: float, *, name: str = "", user: str = "") -> None:
        """Book what an item of a job has cost so far.

        Args:
            job_id: The job, which need not be on record.
            usd: Its total, over all months.
            name, user: Of a job that is not on record.
        """
        with self._database.writing() as session:
            book(session, job_id, item, usd, self._clock(), name=name, user=user)

    def booked(self, job_id: str, item: Item) -> float:
        """What is booked of an item of a job, over all months."""
        with self._database.reading() as session:
            query = select(func.coalesce(func.sum(LedgerRow.usd), 0.0)).where(
                LedgerRow.job_id == job_id, LedgerRow.item == item
            )
            return float(session.scalar(query) or 0.0)

    def spending(self, since: datetime) -> Spending:
        """What jobs have cost from the month of `since` on, and what those that run may cost besides."""
        with self._database.reading() as session:
            return spending_of(session, since, self._clock())

    # ---- budgets of the service ----------------------------------------------------------------------------

    def budgets(self) -> StoredBudgets:
        """The budgets that hold for every server of this store."""
        with self._database.reading() as session:
            found = {row.name: row.usd for row in session.scalars(select(BudgetRow))}
        return StoredBudgets(found.get("all"), found.get("each"))

    def set_budgets(self, budgets: StoredBudgets) -> None:
        """Record the budgets that hold for every server of this store, in place of those on record."""
        with self._database.writing() as session:
            for name, usd in (("all", budgets.budget_usd), ("each", budgets.user_budget_usd)):
                row = session.get(BudgetRow, name)
                if usd is not None:
                    session.merge(BudgetRow(name=name, usd=usd))
                elif row is not None:
                    session.delete(row)

    # ---- budgets of studies --------------------------------------------------------------------------------

    def means_of(self, study: str) -> Means:
        """What a study has spent and set aside."""
        with self._database.reading() as session:
            return _means(session, study, self._clock(), without="")

    def claim(
        self, study: str, job_id: str, budget_usd: float | None, most_usd: float | None, *, at_once: int = 1
    ) -> Means:
        """Set aside of a study's budget what a job may cost that begins, until `release`, or the end of this process.

        Args:
            study: The study, whose name its jobs have.
            job_id: Of the job, on record or not.
            budget_usd: The study's budget; None without a limit.
            most_usd: What the job may cost by itself from now on; None without a limit.
            at_once: Among how many running jobs what is left is shared.

        Returns:
            What there was before, with what the job may cost; nothing is set aside where that is 0.
        """
        with self._database.writing() as session:
            now = self._clock()
            means = _means(session, study, now, without=job_id)
            shared = max(1, at_once - means.running)
            left = None if budget_usd is None else budget_usd - means.spent_usd - means.aside_usd
            limits = [usd for usd in (most_usd, None if left is None else left / shared) if usd is not None]
            granted = max(0.0, min(limits)) if limits else None
            if granted is None or granted > 0.0:
                me = this_process()
                claim = ClaimRow(
                    job_id=job_id,
                    name=study,
                    usd=granted or 0.0,
                    before_usd=_totals(session, {job_id}).get(job_id, 0.0),
                    owner_pid=me.pid,
                    owner_host=me.host,
                    owner_started_at_s=me.started_at_s,
                    owner_birth=me.birth or None,
                    at=now,
                )
                session.merge(claim)
            return Means(means.spent_usd, means.aside_usd, means.running, granted)

    def release(self, job_id: str) -> None:
        """Give back what was set aside for a job; what it has cost is in the ledger."""
        with self._database.writing() as session:
            if (row := session.get(ClaimRow, job_id)) is not None:
                session.delete(row)


def book(
    session: Session, job_id: str, item: Item, usd: float, at: datetime, *, name: str = "", user: str = ""
) -> None:
    """See `Ledger.book`; `at` is now."""
    month = _month(at)
    job = session.get(JobRow, job_id)
    if job is not None and POOL in job.spec and item in ("job", "vms"):
        item = "pool" if item == "job" else item
    rows = session.scalars(select(LedgerRow).where(LedgerRow.job_id == job_id, LedgerRow.item == item)).all()
    here = next((row for row in rows if row.month == month), None)
    more = usd - sum(row.usd for row in rows if row is not here)
    if here is not None:
        here.usd = more
    elif more:
        if job is not None:
            name = str(job.spec.get(KEPT) or job.name)
            query = select(SubmissionRow.user).where(SubmissionRow.id == job_id)
            user = session.scalar(query) or (rows[0].user if rows else job.owner_user or "")
        session.add(LedgerRow(job_id=job_id, item=item, month=month, name=name, user=user, usd=more))
        session.flush()


def book_vms(session: Session, job_ids: Iterable[str], at: datetime) -> None:
    """Book what the VMs of jobs have been charged."""
    session.flush()
    query = (
        select(IntentRow.job_id, func.sum(IntentRow.spent_usd))
        .where(IntentRow.job_id.in_(set(job_ids)))
        .group_by(IntentRow.job_id)
    )
    for job_id, usd in session.execute(query).all():
        book(session, job_id, "vms", float(usd), at)


def left_of_study(session: Session, study: str, user: str, budget_usd: float, now: datetime) -> float:
    """What is left of a user's study for a job that is submitted, in the transaction that submits it.

    Args:
        session: The transaction.
        study: The study, whose name its jobs have.
        user: Whose study it is: others may have one of the same name.
        now: Tells which owners are silent.

    Raises:
        LimitReachedError: Nothing is left.
    """
    means = _means(session, study, now, without="", user=user)
    left_usd = budget_usd - means.spent_usd - means.aside_usd
    if left_usd <= 0.0:
        raise LimitReachedError(used_up(budget_usd, means.spent_usd, means.aside_usd))
    return left_usd


def check_left_of_study(
    session: Session, job_id: str, new: NewSubmission, budget_usd: float, now: datetime
) -> None:
    """Refuse that a job of a study goes on if more than what is left of the study's budget might be spent.

    Raises:
        LimitReachedError: It might.
    """
    means = _means(session, new.name, now, without=job_id, user=new.user)
    left_usd = budget_usd - means.spent_usd - means.aside_usd
    before_usd = _totals(session, {job_id}).get(job_id, 0.0)
    if left_usd <= 0.0 or new.reserved_usd is None or new.reserved_usd - before_usd > left_usd:
        raise LimitReachedError(used_up(budget_usd, means.spent_usd, means.aside_usd))


def spending_of(session: Session, since: datetime, now: datetime) -> Spending:
    """See `Ledger.spending`; `now` tells which owners are silent."""
    items: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    users: dict[str, str] = {}
    for row in session.scalars(select(LedgerRow).where(LedgerRow.month >= _month(since))):
        items[row.job_id][row.item] += row.usd
        users[row.job_id] = row.user
    spent: dict[str, float] = defaultdict(float)
    shared_usd = sum(found.get("share", 0.0) for found in items.values())
    for job_id, found in items.items():
        usd = _sum_of(found)
        if "pool" in found:  # what jobs have paid of it is counted with them
            paid_usd = min(usd, shared_usd)
            usd, shared_usd = usd - paid_usd, shared_usd - paid_usd
        spent[users[job_id]] += usd
    reserved: dict[str, float] = defaultdict(float)
    waiting: list[str] = []
    submissions = select(SubmissionRow).where(SubmissionRow.state.in_(OPEN_SUBMISSIONS))
    limits: dict[str, tuple[str, float]] = {}
    for one in session.scalars(submissions):
        if one.state == "running":
            limits[one.id] = one.user, one.reserved_usd or 0.0
        else:
            waiting.append(one.id)
    for job in _live_jobs(session, now):
        limits[job.id] = job.owner_user or "", budget_of(job.spec) or 0.0
    totals = _totals(session, {*limits, *waiting})
    for job_id, (user, most_usd) in limits.items():
        if (more_usd := max(0.0, most_usd - totals.get(job_id, 0.0))) or user in spent:
            reserved[user] += more_usd
    return Spending(dict(spent), dict(reserved), {job_id: totals.get(job_id, 0.0) for job_id in waiting})


def _live_jobs(session: Session, now: datetime, name: str | None = None) -> list[JobRow]:
    """Jobs that a command or a program runs itself."""
    query = select(JobRow).where(JobRow.state.in_(LIVE_STATES), JobRow.id.not_in(open_submissions()))
    query = query if name is None else query.where(JobRow.name == name)
    return [job for job in session.scalars(query) if is_owner_alive(owner_of(job), job.heartbeat_at, at=now)]


def _means(session: Session, study: str, now: datetime, *, without: str, user: str | None = None) -> Means:
    """What a study has spent and set aside, but for one job; with a user, only that user's."""
    by_job: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in session.scalars(select(LedgerRow).where(LedgerRow.name == study)):
        if user is not None and row.user != user:
            continue
        by_job[row.job_id][row.item] += row.usd
    aside: dict[str, float] = {}
    totals = {job_id: _sum_of(found) for job_id, found in by_job.items()}
    for job in _live_jobs(session, now, study):
        if user is not None and job.owner_user != user:
            continue
        aside[job.id] = (budget_of(job.spec) or 0.0) - totals.get(job.id, 0.0)
    waiting = select(SubmissionRow).where(
        SubmissionRow.name == study, SubmissionRow.state.in_(OPEN_SUBMISSIONS)
    )
    for one in session.scalars(waiting):
        if user is not None and one.user != user:
            continue
        aside[one.id] = (one.reserved_usd or 0.0) - totals.get(one.id, 0.0)
    for claim in session.scalars(select(ClaimRow).where(ClaimRow.name == study)):
        if user is not None and user != this_process().user:  # programs set aside under this account alone
            continue
        owner = Owner(
            claim.owner_pid, claim.owner_host, claim.owner_started_at_s, birth=claim.owner_birth or ""
        )
        if claim.job_id in aside or is_owner_alive(owner, claim.at, at=now):
            # of a job that goes on, the job file's limit may be more than what it was given this time
            aside[claim.job_id] = claim.usd - (totals.get(claim.job_id, 0.0) - claim.before_usd)
    aside.pop(without, None)
    return Means(
        sum(totals.values()),
        sum(max(0.0, usd) for usd in aside.values()),
        len(aside),
    )


def _totals(session: Session, job_ids: Collection[str]) -> dict[str, float]:
    """What jobs have cost over all months."""
    items: dict[str, dict[str, float]] = defaultdict(dict)
    query = (
        select(LedgerRow.job_id, LedgerRow.item, func.sum(LedgerRow.usd))
        .where(LedgerRow.job_id.in_(job_ids))
        .group_by(LedgerRow.job_id, LedgerRow.item)
    )
    for job_id, item, usd in session.execute(query):
        items[job_id][item] = usd
    return {job_id: _sum_of(found) for job_id, found in items.items()}


def _sum_of(items: Mapping[str, float]) -> float:
    """What a job has cost: as it has counted itself, or what its VMs were charged since it was killed."""
    counted = max(items.get("job", 0.0), items.get("vms", 0.0), items.get("pool", 0.0))
    return counted + items.get("leader", 0.0)


def _month(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m}"
