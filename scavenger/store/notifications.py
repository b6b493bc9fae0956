"""The store's queue of notifications, and the jobs of which something may have to be told.

A notification is in the queue once for each webhook, by its id, so several processes may find the same fact. A row that
was delivered or refused is kept for a month: as long as it is there, the same fact is not queued again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import cast

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from scavenger.domain.document import without_nonfinite
from scavenger.domain.notification import (
    Notification,
    NotificationCount,
    NotificationKind,
    NotificationState,
    NotifiedJob,
    QueuedNotification,
)
from scavenger.domain.report import JobState
from scavenger.store.base import Part
from scavenger.store.documents import budget_of
from scavenger.store.records import LIVE_STATES, Owner
from scavenger.store.schema import JobRow, SubmissionRow
from scavenger.store.service_schema import NotificationRow

WAITING_MAX = 1000
"""Most notifications of one webhook that wait; the oldest beyond it are not sent any more."""
KEPT = timedelta(days=30)
"""How long a notification that does not wait any more is kept."""
_LOST = "too many others wait"


class NotificationsPart(Part):
    """The part of `Store` that holds notifications.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    def queue_notifications(self, wanted: Mapping[str, Iterable[Notification]]) -> int:
        """Queue notifications by webhook; one that is, or was, in the queue already is left out.

        Returns:
            The number that was added; nothing is written if there is none.
        """
        pairs = {(webhook, one.id): one for webhook, notes in wanted.items() for one in notes}
        with self._database.reading() as session:
            if not self._missing(session, pairs):
                return 0
        now = self._clock()
        with self._database.writing() as session:
            missing = self._missing(session, pairs)
            for webhook, key in sorted(missing, key=lambda pair: pairs[pair].at):
                session.add(_row(webhook, pairs[webhook, key], now))
            session.flush()
            for webhook in {webhook for webhook, _ in missing}:
                _bound(session, webhook)
            session.execute(
                delete(NotificationRow).where(
                    NotificationRow.state != "waiting",
                    NotificationRow.kind != "ping",
                    NotificationRow.at < now - KEPT,
                )
            )
            return len(missing)

    @staticmethod
    def _missing(session: Session, pairs: Mapping[tuple[str, str], Notification]) -> set[tuple[str, str]]:
        ids, missing = sorted({key for _, key in pairs}), set(pairs)
        for begin in range(0, len(ids), 500):  # databases limit the parameters of a query
            query = select(NotificationRow).where(NotificationRow.id.in_(ids[begin : begin + 500]))
            missing -= {(row.webhook, row.id) for row in session.scalars(query)}
        return missing

    def webhooks_since(self) -> dict[str, datetime]:
        """When each webhook was first used; what happened before is not told there."""
        query = select(NotificationRow).where(NotificationRow.kind == "ping")
        with self._database.reading() as session:
            return {row.webhook: row.at for row in session.scalars(query)}

    def take_notification(self, webhook: str, *, for_s: float) -> QueuedNotification | None:
        """Take the next notification that is due, so that no other process sends it for `for_s` seconds.

        Returns:
            None if none is due.
        """
        now = self._clock()
        query = (
            select(NotificationRow)
            .where(
                NotificationRow.state == "waiting",
                NotificationRow.webhook == webhook,
                NotificationRow.due_at <= now,
            )
            .order_by(NotificationRow.due_at, NotificationRow.number)
            .limit(1)
        )
        with self._database.reading() as session:
            if session.scalar(query) is None:
                return None
        with self._database.writing() as session:
            row = session.scalar(query.with_for_update(skip_locked=True))
            if row is None:
                return None
            row.attempts, row.due_at = row.attempts + 1, now + timedelta(seconds=for_s)
            session.flush()
            return _queued(row)

    def settle_notification(
        self, number: int, state: NotificationState, error: str = "", *, wait_s: float = 0.0
    ) -> None:
        """Record what became of one that was taken; `waiting`: it is due again in `wait_s` seconds."""
        with self._database.writing() as session:
            row = session.get(NotificationRow, number)
            if row is not None and row.state == "waiting":
                row.state, row.error = state, error
                row.due_at = self._clock() + timedelta(seconds=wait_s)

    def notification_counts(self) -> tuple[NotificationCount, ...]:
        """Count the notifications of each webhook by state, with the latest error of each."""
        keys = (NotificationRow.webhook, NotificationRow.state)
        failed = func.max(NotificationRow.number).filter(NotificationRow.error != "")
        with self._database.reading() as session:
            rows = session.execute(select(*keys, func.count(), failed).group_by(*keys).order_by(*keys)).all()
            latest = [row[3] for row in rows if row[3] is not None]
            told = select(NotificationRow).where(NotificationRow.number.in_(latest))
            errors = {row.number: row.error for row in session.scalars(told)}
        return tuple(
            NotificationCount(webhook, cast(NotificationState, state), count, errors.get(number, ""))
            for webhook, state, count, number in rows
        )

    def job_standings(self, since: datetime, *, owner: Owner | None = None) -> tuple[NotifiedJob, ...]:
        """Live jobs, those that have ended since a time, and submissions since then that ended without a job.

        Args:
            since: Start of the period, as the store's clock goes.
            owner: Only jobs that this process runs; None: all.
        """
        jobs = (
            select(JobRow, SubmissionRow.user)
            .outerjoin(SubmissionRow, SubmissionRow.id == JobRow.id)
            .where(JobRow.state.in_(LIVE_STATES) | (JobRow.ended_at >= since))
        )
        begun = select(JobRow.id).where(JobRow.id == SubmissionRow.id)
        never = select(SubmissionRow).where(
            SubmissionRow.state == "ended", SubmissionRow.ended_at >= since, ~begun.exists()
        )
        if owner is not None:
            here = (JobRow.owner_host == owner.host) | (
                JobRow.owner_installation == self._database.installation
            )
            jobs = jobs.where(here, JobRow.owner_pid == owner.pid)
        with self._database.reading() as session:
            found = [_standing(row, user) for row, user in session.execute(jobs)]
            if owner is None:
                found += map(_never_begun, session.scalars(never))
        return tuple(found)


def _bound(session: Session, webhook: str) -> None:
    """Refuse the oldest that wait, beyond `WAITING_MAX`."""
    waiting = (
        select(NotificationRow)
        .where(NotificationRow.webhook == webhook, NotificationRow.state == "waiting")
        .order_by(NotificationRow.number.desc())
        .offset(WAITING_MAX)
    )
    for row in session.scalars(waiting):
        row.state, row.error = "refused", _LOST


def _row(webhook: str, one: Notification, now: datetime) -> NotificationRow:
    return NotificationRow(
        id=one.id,
        webhook=webhook,
        kind=one.kind,
        at=one.at,
        text=one.text,
        data=without_nonfinite(one.data),
        state="waiting",
        attempts=0,
        due_at=now,
        error="",
    )


def _queued(row: NotificationRow) -> QueuedNotification:
    one = Notification(row.id, cast(NotificationKind, row.kind), row.at, row.text, row.data)
    return QueuedNotification(row.number, row.webhook, row.attempts, one)


def _standing(row: JobRow, user: str | None) -> NotifiedJob:
    return NotifiedJob(
        row.id,
        row.name,
        user or row.owner_user or "",
        cast(JobState, row.state),
        row.error,
        row.cost_usd or 0.0,
        budget_of(row.spec),
        row.attempts,
        row.created_at,
        row.ended_at,
    )


def _never_begun(row: SubmissionRow) -> NotifiedJob:
    """A submission whose job could not begin: it counts as a job that has failed."""
    budget, at = budget_of(row.spec), row.submitted_at
    return NotifiedJob(row.id, row.name, row.user, "failed", row.reason, 0.0, budget, 1, at, row.ended_at)
