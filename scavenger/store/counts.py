"""Counts of what is on record, for the server's metrics and lists."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, select

from scavenger.domain.metrics import Census, LiveJob, VmSums
from scavenger.store.base import Part
from scavenger.store.documents import budget_of
from scavenger.store.intent_rows import USD_PER_HOUR
from scavenger.store.records import LIVE_STATES
from scavenger.store.schema import IntentRow, JobRow, ProcessRow, SubmissionRow
from scavenger.store.service_schema import NotificationRow

_PAID = ("UP", "DELETING")
_ENDED = ("lost", "failed", "gone")


class CountsPart(Part):
    """The part of `Store` that counts.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    def census(self) -> Census:
        """Count jobs, submissions and VMs; with the price, steps and workers of jobs that have not ended."""
        notes = (NotificationRow.webhook, NotificationRow.state)
        vms = (IntentRow.provider, IntentRow.region, IntentRow.state)
        price = (
            select(IntentRow.job_id, func.sum(USD_PER_HOUR).label("usd"))
            .where(IntentRow.state.in_(_PAID))
            .group_by(IntentRow.job_id)
            .subquery()
        )
        workers = (
            select(ProcessRow.job_id, func.count().label("count"))
            .where(ProcessRow.role == "worker", ProcessRow.state.not_in(_ENDED))
            .group_by(ProcessRow.job_id)
            .subquery()
        )
        live = (
            select(
                JobRow.id,
                JobRow.name,
                JobRow.created_at,
                JobRow.cost_usd,
                price.c.usd,
                JobRow.step,
                workers.c.count,
                JobRow.spec,
            )
            .outerjoin(price, price.c.job_id == JobRow.id)
            .outerjoin(workers, workers.c.job_id == JobRow.id)
            .where(JobRow.state.in_(LIVE_STATES))
        )
        with self._database.reading() as session:
            jobs = session.execute(select(JobRow.state, func.count()).group_by(JobRow.state)).all()
            queue = session.execute(
                select(SubmissionRow.state, func.count()).group_by(SubmissionRow.state)
            ).all()
            paid = session.execute(
                select(*vms, func.count()).where(IntentRow.state.in_(_PAID)).group_by(*vms)
            ).all()
            told = session.execute(select(*notes, func.count()).group_by(*notes)).all()
            rows = session.execute(live.order_by(JobRow.created_at, JobRow.id)).all()
        return Census(
            {row[0]: row[1] for row in jobs},
            {row[0]: row[1] for row in queue},
            {(provider, region, state): count for provider, region, state, count in paid},
            tuple(
                LiveJob(
                    job_id,
                    name,
                    at,
                    cost or 0.0,
                    usd or 0.0,
                    0 if step is None else step,
                    count or 0,
                    budget_of(spec),
                )
                for job_id, name, at, cost, usd, step, count, spec in rows
            ),
            {(webhook, state): count for webhook, state, count in told},
        )

    def vm_sums(self, ids: Collection[str]) -> dict[str, VmSums]:
        """Sums over the VMs of each of the jobs, by job; those that have rented none are left out."""
        row = IntentRow
        sums = (
            func.count(),
            func.count().filter(row.state != "GONE"),
            func.sum(row.billed_s),
            func.sum(row.spent_usd),
            func.count(row.ended_at),
        )
        query = select(row.job_id, *sums).where(row.job_id.in_(ids)).group_by(row.job_id)
        with self._database.reading() as session:
            return {row[0]: VmSums(*row[1:]) for row in session.execute(query)}

    def jobs_with_vms(self, ids: Collection[str]) -> frozenset[str]:
        """Those of the jobs that have rented VMs."""
        query = select(IntentRow.job_id).where(IntentRow.job_id.in_(ids)).distinct()
        with self._database.reading() as session:
            return frozenset(session.scalars(query))
