"""The store's pools: who has how many slots, as decided, and how their jobs stand.

An allotment is decided on, recorded and acted upon in one transaction (`Store.together`), so that of two servers each
sees what the other has done.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import ColumnElement, delete, func, select

from scavenger.domain.intent import Fence
from scavenger.domain.pool import (
    JobStanding,
    PoolAllotment,
    allotment_of,
    document_of,
    standing_of,
)
from scavenger.errors import TransientError
from scavenger.store.base import Part
from scavenger.store.intents import held_lease
from scavenger.store.schema import SubmissionRow
from scavenger.store.service_schema import AllotmentRow

ALLOTMENTS_MAX = 10_000
"""Most allotments that are kept of a pool, the newest."""


class PoolsPart(Part):
    """The part of `Store` that holds the pools of this installation and account.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    def stand(self, fence: Fence, job_id: str, standing: JobStanding) -> bool:
        """Renew the lease of a job's runner, and record how the job stands; False if another process has the lease."""
        with self._database.writing() as session:
            if (lease := held_lease(session, fence)) is None:
                return False
            lease.beats += 1
            row = session.scalar(select(SubmissionRow).where(SubmissionRow.id == job_id))
            if row is not None:
                row.standing = document_of(standing)
            return True

    def standings(self, ids: Collection[str]) -> dict[str, JobStanding]:
        """How submitted jobs stand, or last stood, by their ids; without those that never had slots."""
        if not ids:
            return {}
        query = select(SubmissionRow.id, SubmissionRow.standing).where(
            SubmissionRow.id.in_(ids), SubmissionRow.standing.is_not(None)
        )
        with self._database.reading() as session:
            return {job_id: standing_of(document) for job_id, document in session.execute(query) if document}

    def pools(self) -> tuple[PoolAllotment, ...]:
        """The newest allotment of each pool, by name."""
        newest = (
            select(AllotmentRow.pool, func.max(AllotmentRow.number).label("number"))
            .where(*self._here())
            .group_by(AllotmentRow.pool)
            .subquery()
        )
        query = (
            select(AllotmentRow)
            .join(newest, (newest.c.pool == AllotmentRow.pool) & (newest.c.number == AllotmentRow.number))
            .where(*self._here())
            .order_by(AllotmentRow.pool)
        )
        with self._database.reading() as session:
            return tuple(allotment_of(row.document) for row in session.scalars(query))

    def allotments(
        self, pool: str, limit: int = 1, *, since: datetime | None = None
    ) -> tuple[PoolAllotment, ...]:
        """The newest allotments of a pool, newest first.

        Args:
            limit: Most of them.
            since: Only those that were decided then or later.
        """
        query = select(AllotmentRow).where(*self._here(), AllotmentRow.pool == pool)
        if since is not None:
            query = query.where(AllotmentRow.at >= since)
        with self._database.reading() as session:
            rows = session.scalars(query.order_by(AllotmentRow.number.desc()).limit(limit))
            return tuple(allotment_of(row.document) for row in rows)

    def allotment(self, pool: str) -> PoolAllotment | None:
        """The newest allotment of a pool; None before the first."""
        return next(iter(self.allotments(pool)), None)

    def put_allotment(self, allotment: PoolAllotment) -> None:
        """Record an allotment; those before the newest `ALLOTMENTS_MAX` are deleted.

        Raises:
            TransientError: Its number is not above the last, as another server has decided meanwhile.
        """
        name, number = allotment.pool.name, allotment.number
        with self._database.writing() as session:
            here = (*self._here(), AllotmentRow.pool == name)
            last = session.scalar(select(func.max(AllotmentRow.number)).where(*here)) or 0
            if number <= last:
                raise TransientError(f"allotment {number} of pool {name} comes after {last}")
            session.add(
                AllotmentRow(
                    installation=self._database.installation,
                    uid=os.getuid(),
                    pool=name,
                    number=number,
                    at=allotment.at,
                    document=document_of(allotment),
                )
            )
            session.execute(delete(AllotmentRow).where(*here, AllotmentRow.number <= number - ALLOTMENTS_MAX))

    def _here(self) -> tuple[ColumnElement[bool], ...]:
        return (
            AllotmentRow.installation == self._database.installation,
            AllotmentRow.uid == os.getuid(),
        )
