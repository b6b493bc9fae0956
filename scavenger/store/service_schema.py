"""The tables of servers: who they are, their users, and what they have answered and sent."""

from __future__ import annotations

from datetime import datetime
from typing import Any, get_args

from sqlalchemy import (
    ForeignKey,
    Index,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from scavenger.domain.access import ROLES
from scavenger.domain.notification import NotificationKind, NotificationState
from scavenger.store.columns import (
    Base,
    not_negative,
    one_of,
    positive,
)


class ServerRow(Base):
    """See `scavenger.domain.submission.ServerRecord`."""

    __tablename__ = "servers"
    __table_args__ = (*positive("pid"), *not_negative("uid"))

    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    started_at_s: Mapped[float]
    birth: Mapped[str | None]
    installation: Mapped[str | None]
    user: Mapped[str]
    uid: Mapped[int]
    address: Mapped[str]
    version: Mapped[str]
    background: Mapped[bool]
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime]
    pools: Mapped[dict[str, Any] | None]


class AllotmentRow(Base):
    """See `scavenger.domain.pool.PoolAllotment`; a pool is one installation's and account's."""

    __tablename__ = "allotments"
    __table_args__ = (*positive("number"),)

    installation: Mapped[str] = mapped_column(primary_key=True)
    uid: Mapped[int] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    document: Mapped[dict[str, Any]]


class UserRow(Base):
    """See `scavenger.domain.access.User`."""

    __tablename__ = "users"
    __table_args__ = (one_of("role", ROLES),)

    name: Mapped[str] = mapped_column(primary_key=True)
    role: Mapped[str]
    created_at: Mapped[datetime]


class TokenRow(Base):
    """See `scavenger.domain.access.Token`; `digest` is of its text, which is not stored."""

    __tablename__ = "tokens"
    __table_args__ = (UniqueConstraint("digest"), Index(None, "user"), Index(None, "parent"))

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str]
    user: Mapped[str] = mapped_column(ForeignKey("users.name", ondelete="CASCADE"))
    label: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    parent: Mapped[int | None]
    is_session: Mapped[bool | None]


class AuditRow(Base):
    """See `scavenger.domain.access.AuditRecord`."""

    __tablename__ = "audit"
    __table_args__ = (Index(None, "user"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    user: Mapped[str]
    action: Mapped[str]
    object: Mapped[str]
    status: Mapped[int]
    client: Mapped[str]


class AnswerRow(Base):
    """See `scavenger.store.idempotency_keys`: the answer to a request that a user sent under a key."""

    __tablename__ = "answers"
    __table_args__ = (Index(None, "at"),)

    user: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    answer: Mapped[dict[str, Any]]
    at: Mapped[datetime]


class NotificationRow(Base):
    """See `scavenger.domain.notification.QueuedNotification`; one per notification and webhook.

    `due_at` is when it is sent next; while it is being sent, when another process may take it.
    """

    __tablename__ = "notifications"
    __table_args__ = (
        one_of("kind", get_args(NotificationKind)),
        one_of("state", get_args(NotificationState)),
        *not_negative("attempts"),
        UniqueConstraint("webhook", "id"),
        Index(None, "state", "webhook", "due_at"),
    )

    number: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str]
    webhook: Mapped[str]
    kind: Mapped[str]
    at: Mapped[datetime]
    text: Mapped[str]
    data: Mapped[dict[str, Any]]
    state: Mapped[str]
    attempts: Mapped[int]
    due_at: Mapped[datetime]
    error: Mapped[str]
