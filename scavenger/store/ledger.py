"""The ledger: what each job has used and cost in each month, by item. Bills, reports and all budgets read it alone.

An item has no other's dollars, so what a job has cost is their sum, whatever items there will be. Nothing deletes a
row: neither the end of a job, nor its resumption, nor the deletion of its record gives money back. An item is noted by
its total so far, of which the present month gets what earlier months do not have; so noting the same twice is noting
it once, and a correction by the cloud's times falls into the month in which it is known.

Whatever decides on money does so in the transaction that also records the decision: on PostgreSQL as on SQLite, one
process writes at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import NamedTuple, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from scavenger.domain.cost import Item, LedgerEntry
from scavenger.domain.submission import OPEN_SUBMISSIONS, NewSubmission, Spending, StoredBudgets
from scavenger.policy.funds import Funds
from scavenger.store.base import Part, open_submissions
from scavenger.store.documents import budget_of
from scavenger.store.intent_rows import ADDRESS_USD, DISK_USD
from scavenger.store.operations import KEPT, POOL
from scavenger.store.owner import is_owner_alive, owner_of, this_process
from scavenger.store.records import LIVE_STATES, Owner
from scavenger.store.schema import (
    BudgetRow,
    ClaimRow,
    FleetSpecRow,
    IntentRow,
    JobRow,
    LedgerRow,
    SubmissionRow,
)


class LedgerPart(Part):
    """The part of `Store` that holds what was spent, and what may be.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    def note(
        self,
        job_id: str,
        item: Item,
        quantity: float,
        usd: float,
        basis: str = "",
        *,
        name: str = "",
        user: str = "",
    ) -> None:
        """Note what a job has used of an item so far.

        Args:
            job_id: The job, which need not be on record.
            quantity, usd: Totals over all months and attempts.
            basis: See `LedgerEntry`.
            name, user: Of a job that is not on record.
        """
        with self._database.writing() as session:
            note(
                session,
                job_id,
                item,
                LedgerEntry(quantity, usd, basis),
                self._clock(),
                name=name,
                user=user,
            )

    def entries(self, job_id: str) -> dict[Item, LedgerEntry]:
        """What a job has used, by item, over all months."""
        with self._database.reading() as session:
            return entries_of(session, job_id)

    def entry(self, job_id: str, item: Item) -> LedgerEntry:
        """What a job has used of an item, over all months."""
        return self.entries(job_id).get(item, LedgerEntry())

    def spent_usd(self, job_id: str) -> float:
        """What all attempts of a job have cost, over all months."""
        with self._database.reading() as session:
            return _totals(session, [job_id]).get(job_id, 0.0)

    def spent_by(self, job_ids: Collection[str], since: datetime) -> float:
        """What these jobs have cost together from the month of `since` on."""
        query = select(func.coalesce(func.sum(LedgerRow.usd), 0.0)).where(
            LedgerRow.month >= _month(since), LedgerRow.job_id.in_(job_ids)
        )
        with self._database.reading() as session:
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

    def funds_of_study(self, study: str, budget_usd: float | None = None) -> Funds:
        """What all programs and users have spent of a study, and reserved; of jobs on record or deleted."""
        with self._database.reading() as session:
            return study_funds(session, study, budget_usd, self._clock())

    def claim(
        self, study: str, job_id: str, budget_usd: float | None, most_usd: float | None
    ) -> float | None:
        """Reserve of a study's budget what a job may cost that begins, until `release`, or the end of this process.

        Args:
            study: The study, whose name its jobs have.
            job_id: Of the job, on record or not.
            budget_usd: The study's budget; None without a limit.
            most_usd: What the job may cost by itself from now on; None without a limit.

        Returns:
            What the job may cost; None without a limit.

        Raises:
            LimitReachedError: Nothing is left.
        """
        with self._database.writing() as session:
            now = self._clock()
            granted = study_funds(session, study, budget_usd, now, without=job_id).grant(most_usd)
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
            return granted

    def release(self, job_id: str) -> None:
        """Give back what was set aside for a job; what it has cost is in the ledger."""
        with self._database.writing() as session:
            if (row := session.get(ClaimRow, job_id)) is not None:
                session.delete(row)


def note(
    session: Session,
    job_id: str,
    item: Item,
    entry: LedgerEntry,
    at: datetime,
    *,
    name: str = "",
    user: str = "",
) -> None:
    """See `LedgerPart.note`; `at` is now."""
    month = _month(at)
    rows = session.scalars(select(LedgerRow).where(LedgerRow.job_id == job_id, LedgerRow.item == item)).all()
    here = next((row for row in rows if row.month == month), None)
    earlier = [row for row in rows if row is not here]
    usd = entry.usd - sum(row.usd for row in earlier)
    quantity = entry.quantity - sum(row.quantity for row in earlier)
    if here is not None:
        here.quantity, here.usd, here.basis = quantity, usd, entry.basis
    elif usd or quantity:
        if (job := session.get(JobRow, job_id)) is not None:
            name = str(job.spec.get(KEPT) or job.name)
            query = select(SubmissionRow.user).where(SubmissionRow.id == job_id)
            user = session.scalar(query) or (rows[0].user if rows else job.owner_user or "")
        session.add(
            LedgerRow(
                job_id=job_id,
                item=item,
                month=month,
                name=name,
                user=user,
                quantity=quantity,
                usd=usd,
                basis=entry.basis,
            )
        )
        session.flush()


def note_vms(session: Session, job_ids: Iterable[str], at: datetime) -> None:
    """Note what the VMs of jobs, and their extras, have been charged."""
    session.flush()
    sums = map(func.sum, (IntentRow.billed_s, IntentRow.spent_usd, DISK_USD, ADDRESS_USD))
    of_jobs = IntentRow.job_id.in_(set(job_ids))
    query = select(IntentRow.job_id, *sums).where(of_jobs).group_by(IntentRow.job_id)
    for job_id, *found in session.execute(query).all():
        seconds, *costs = map(float, found)
        job = session.get(JobRow, job_id)
        if job is not None and POOL in job.spec:
            note(session, job_id, "pool", LedgerEntry(seconds, sum(costs)), at)
            continue
        items: tuple[Item, ...] = ("vms", "disks", "addresses")
        for item, usd in zip(items, costs, strict=True):
            note(session, job_id, item, LedgerEntry(seconds, usd) if usd else LedgerEntry(), at)


def note_counted(session: Session, job: JobRow, usd: float, at: datetime) -> None:
    """Note what a job has counted itself, with all that it has used.

    Of one that rents VMs nothing is to be noted: each of its items is. Of another one, what no other item has is what
    its workers have cost.
    """
    if POOL in job.spec:
        note(session, job.id, "pool", LedgerEntry(0.0, usd), at)
        return
    wanted = session.scalars(select(FleetSpecRow.document).where(FleetSpecRow.job_id == job.id))
    if any(document.get("attempt", 1) == job.attempts for document in wanted):
        return
    others = (
        one.usd for item, one in entries_of(session, job.id).items() if item not in ("workers", "leader")
    )
    note(session, job.id, "workers", LedgerEntry(0.0, max(0.0, usd - sum(others))), at)


def entries_of(session: Session, job_id: str) -> dict[Item, LedgerEntry]:
    """See `LedgerPart.entries`."""
    found: dict[Item, LedgerEntry] = {}
    for row in session.scalars(select(LedgerRow).where(LedgerRow.job_id == job_id).order_by(LedgerRow.month)):
        item = cast(Item, row.item)
        found[item] = found.get(item, LedgerEntry()) + LedgerEntry(row.quantity, row.usd, row.basis)
    return found


def check_left_of_study(
    session: Session, job_id: str, new: NewSubmission, budget_usd: float, now: datetime
) -> None:
    """Refuse that a job of a study goes on if more than what is left of the study's budget might be spent.

    Raises:
        LimitReachedError: It might.
    """
    funds = study_funds(session, new.name, budget_usd, now, without=job_id, user=new.user)
    before_usd = _totals(session, {job_id}).get(job_id, 0.0)
    still_usd = None if new.reserved_usd is None else new.reserved_usd - before_usd
    if funds.left_usd <= 0.0 or not funds.pays(still_usd):
        raise funds.used_up()


def spending_of(session: Session, since: datetime, now: datetime) -> Spending:
    """See `LedgerPart.spending`; `now` tells which owners are silent."""
    spent: dict[str, float] = defaultdict(float)
    pooled: dict[str, float] = defaultdict(float)
    shared_usd = 0.0
    for row in session.scalars(select(LedgerRow).where(LedgerRow.month >= _month(since))):
        (pooled if row.item == "pool" else spent)[row.user] += row.usd
        shared_usd += row.usd if row.item == "share" else 0.0
    for user, usd in pooled.items():  # what jobs have paid of it is counted with them
        paid_usd = min(usd, shared_usd)
        shared_usd -= paid_usd
        spent[user] += usd - paid_usd
    reserved: dict[str, float] = defaultdict(float)
    for one in _reserved(session, now).values():
        if one.begun and (one.usd > 0.0 or one.user in spent):
            reserved[one.user] += max(0.0, one.usd)
    waiting = session.scalars(select(SubmissionRow.id).where(SubmissionRow.state == "queued")).all()
    totals = _totals(session, waiting)
    return Spending(dict(spent), dict(reserved), {job_id: totals.get(job_id, 0.0) for job_id in waiting})


class _Reserve(NamedTuple):
    """What a job may cost yet, as of whose.

    Attributes:
        begun: Whether it runs, or is about to; False in the queue, where its budgets are decided on later.
    """

    user: str
    usd: float
    begun: bool = True


def _reserved(session: Session, now: datetime, study: str | None = None) -> dict[str, _Reserve]:
    """What jobs have not spent yet of what they may cost, of all or of a study, each job once.

    The latest limit is the one that holds: a program that sets something aside for a job may give it less than the
    limit in its job file, and a submission is what a server goes by.
    """
    limits: dict[str, tuple[str, float, bool]] = {}
    for job in _live_jobs(session, now, study):
        limits[job.id] = job.owner_user or "", budget_of(job.spec) or 0.0, True
    submissions = select(SubmissionRow).where(SubmissionRow.state.in_(OPEN_SUBMISSIONS))
    claims = select(ClaimRow)
    if study is not None:
        submissions = submissions.where(SubmissionRow.name == study)
        claims = claims.where(ClaimRow.name == study)
    for one in session.scalars(submissions):
        limits[one.id] = one.user, one.reserved_usd or 0.0, one.state == "running"
    claimed = [claim for claim in session.scalars(claims) if claim.job_id in limits or _holds(claim, now)]
    totals = _totals(session, {*limits, *(claim.job_id for claim in claimed)})
    found = {
        job_id: _Reserve(user, usd - totals.get(job_id, 0.0), begun)
        for job_id, (user, usd, begun) in limits.items()
    }
    for claim in claimed:
        spent_usd = totals.get(claim.job_id, 0.0) - claim.before_usd
        user, _, begun = limits.get(claim.job_id, (this_process().user, 0.0, True))
        found[claim.job_id] = _Reserve(user, claim.usd - spent_usd, begun)
    return found


def _holds(claim: ClaimRow, now: datetime) -> bool:
    """Whether the program lives that has set something aside."""
    owner = Owner(claim.owner_pid, claim.owner_host, claim.owner_started_at_s, birth=claim.owner_birth or "")
    return is_owner_alive(owner, claim.at, at=now)


def _live_jobs(session: Session, now: datetime, name: str | None = None) -> list[JobRow]:
    """Jobs that a command or a program runs itself."""
    query = select(JobRow).where(JobRow.state.in_(LIVE_STATES), JobRow.id.not_in(open_submissions()))
    query = query if name is None else query.where(JobRow.name == name)
    return [job for job in session.scalars(query) if is_owner_alive(owner_of(job), job.heartbeat_at, at=now)]


def study_funds(
    session: Session,
    study: str,
    budget_usd: float | None,
    now: datetime,
    *,
    without: str = "",
    user: str | None = None,
) -> Funds:
    """What is spent and reserved of a study, but for what one job has reserved; with a user, only that user's.

    Args:
        study: Its jobs have its name, and so do the VMs that it keeps.
        now: Tells which owners are silent.
    """
    spent = select(func.coalesce(func.sum(LedgerRow.usd), 0.0)).where(LedgerRow.name == study)
    if user is not None:  # others may have a study of the same name
        spent = spent.where(LedgerRow.user == user)
    reserved = [
        max(0.0, one.usd)
        for job_id, one in _reserved(session, now, study).items()
        if job_id != without and user in (None, one.user)
    ]
    return Funds(budget_usd, float(session.scalar(spent) or 0.0), sum(reserved), len(reserved))


def _totals(session: Session, job_ids: Collection[str]) -> dict[str, float]:
    """What jobs have cost over all months."""
    query = (
        select(LedgerRow.job_id, func.sum(LedgerRow.usd))
        .where(LedgerRow.job_id.in_(job_ids))
        .group_by(LedgerRow.job_id)
    )
    return {job_id: float(usd) for job_id, usd in session.execute(query)}


def _month(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m}"
