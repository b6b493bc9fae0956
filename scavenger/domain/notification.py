"""Notifications: what is told outside, and what is known of a job when that is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from scavenger.domain.report import JobState

NotificationKind = Literal[
    "ping",
    "job.done",
    "job.failed",
    "job.stopped",
    "job.paused",
    "job.budget",
    "user.budget",
    "service.budget",
    "vms.leftover",
]
"""`ping`: the webhook is new; `job.done`: `succeeded` or `target_missed`; `job.stopped`: by a limit or a person;
`job.paused`: by its pool, and it waits for slots;
`job.budget`: 80 % of its budget is spent; `user.budget`, `service.budget`: 80 % of what the jobs of a user, or all, may
cost this month; `vms.leftover`: VMs were found that no job uses."""
NOTIFICATION_KINDS: tuple[NotificationKind, ...] = get_args(NotificationKind)

NotificationState = Literal["waiting", "delivered", "refused"]
"""`refused`: by the receiver for good, after too many attempts, or because too many others wait."""


@dataclass(frozen=True, slots=True)
class Notification:
    """Something to be told.

    Attributes:
        id: The same for the same fact, whoever finds it, so that nothing is told twice.
        at: When it happened.
        text: One line for people, without secrets.
        data: The same for programs, JSON.
    """

    id: str
    kind: NotificationKind
    at: datetime
    text: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueuedNotification:
    """A notification on its way to one webhook.

    Attributes:
        number: Its place in the queue.
        attempts: How often it was sent, with the attempt that this was taken for.
    """

    number: int
    webhook: str
    attempts: int
    notification: Notification


@dataclass(frozen=True, slots=True)
class NotificationCount:
    """How many notifications of a webhook are in one state; `error` of the latest that has one."""

    webhook: str
    state: NotificationState
    count: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class NotifiedJob:
    """What decides whether something is told of a job.

    Attributes:
        user: Who submitted it; of a job that was not submitted, the account that ran it.
        cost_usd: So far.
        budget_usd: None if it has no budget.
        attempts: 1, and one more for each time that it was resumed.
        ended_at: None while it lives.
    """

    id: str
    name: str
    user: str
    state: JobState
    error: str
    cost_usd: float
    budget_usd: float | None
    attempts: int
    created_at: datetime
    ended_at: datetime | None
