"""Decides what is told of jobs and VMs, and when a notification that did not arrive is sent again."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scavenger.domain.notification import Notification, NotificationKind, NotifiedJob
from scavenger.domain.operation import PAUSED_BY
from scavenger.domain.submission import Spending
from scavenger.masking import mask
from scavenger.policy.admission import QueueLimits, budget_period
from scavenger.presentation.formatting import clean, duration, money, plural

BUDGET_SHARE = 0.8
"""Share of a job's budget whose spending is told."""
GIVE_UP = timedelta(days=3)
"""Age at which a notification is not sent again."""
_FIRST_S, _LONGEST_S = 5.0, 3600.0
_TEXT_MAX = 500
_AGAIN = frozenset({408, 409, 425, 429})
"""Answers below 500 after which the same request may succeed later."""
_NAMESPACE = uuid.UUID("b1b3f8a3-6a2b-5c0e-9a35-6a1f0d6f7c11")

_KINDS: Mapping[str, NotificationKind] = {
    "succeeded": "job.done",
    "target_missed": "job.done",
    "failed": "job.failed",
    "stopped": "job.stopped",
    "interrupted": "job.stopped",
}
"""What the end of a job in a state is told as; of a plan, nothing is."""


def job_notifications(job: NotifiedJob, now: datetime, *, address: str = "") -> tuple[Notification, ...]:
    """What is to be told of a job as it stands: the end of each of its attempts, and once that its budget runs out.

    Args:
        now: Time of a budget that is found to run out.
        address: URL of the dashboard; empty if there is none.
    """
    told = []
    budget = job.budget_usd
    if budget and job.cost_usd >= BUDGET_SHARE * budget:
        share = job.cost_usd / budget
        text = f"has spent {100.0 * share:.0f} % of its budget: {money(job.cost_usd)} of {money(budget)}"
        told.append(_of_job(job, "job.budget", job.ended_at or now, text, address, key="budget"))
    paused = job.state == "interrupted" and job.error.startswith(PAUSED_BY)
    kind = "job.paused" if paused else _KINDS.get(job.state)
    if kind is not None and job.ended_at is not None:
        took = duration((job.ended_at - job.created_at).total_seconds())
        of_budget = "" if budget is None else f" of {money(budget)}"
        state = "paused" if paused else job.state.replace("_", " ")
        text = f"{state} after {took} for {money(job.cost_usd)}{of_budget}"
        if job.error:
            text += f": {job.error}"
        told.append(_of_job(job, kind, job.ended_at, text, address, key=f"end {job.attempts}"))
    return tuple(told)


def _of_job(
    job: NotifiedJob, kind: NotificationKind, at: datetime, text: str, address: str, *, key: str
) -> Notification:
    data: dict[str, Any] = {
        "job": job.id,
        "name": job.name,
        "user": job.user,
        "state": job.state,
        "error": mask(job.error)[:_TEXT_MAX],
        "cost_usd": job.cost_usd,
        "budget_usd": job.budget_usd,
        "attempts": job.attempts,
        "created_at": job.created_at.isoformat(),
        "ended_at": None if job.ended_at is None else job.ended_at.isoformat(),
    }
    if address:
        data["url"] = f"{address}/jobs/{job.id}"
    return _notification(f"{job.id} {key}", kind, at, f"Job {job.name} ({job.id[:8]}) {text}", data)


def budget_notifications(
    spending: Spending, limits: QueueLimits, now: datetime, *, address: str = ""
) -> tuple[Notification, ...]:
    """What is to be told of a month's budgets: once that of a user, and that of all jobs, runs out.

    Args:
        spending: Of the calendar month.
        limits: Have the budgets.
        now: In that month.
        address: URL of the dashboard; empty if there is none.
    """
    month = f"{budget_period(now):%Y-%m}"
    told = []
    for user, spent_usd in sorted(spending.spent.items()):
        budget_usd = limits.budget_of(user)
        if _runs_out(spent_usd, budget_usd):
            words = f"the jobs of {user} have"
            data = {"user": user, "month": month, "cost_usd": spent_usd, "budget_usd": budget_usd}
            told.append(_of_month("user.budget", f"{month} {user}", now, words, data, address))
    total_usd = math.fsum(spending.spent.values())
    if _runs_out(total_usd, limits.budget_usd):
        data = {"month": month, "cost_usd": total_usd, "budget_usd": limits.budget_usd}
        told.append(_of_month("service.budget", month, now, "all jobs together have", data, address))
    return tuple(told)


def _runs_out(spent_usd: float, budget_usd: float | None) -> bool:
    return budget_usd is not None and spent_usd > 0.0 and spent_usd >= BUDGET_SHARE * budget_usd


def _of_month(
    kind: NotificationKind, key: str, at: datetime, who: str, data: dict[str, Any], address: str
) -> Notification:
    spent_usd, budget_usd = data["cost_usd"], data["budget_usd"]
    share = f"{100.0 * spent_usd / budget_usd:.0f} % of" if budget_usd else "more than"
    text = f"{who} spent {share} this month's budget: {money(spent_usd)} of {money(budget_usd)}"
    url = {"url": f"{address}/budgets"} if address else {}
    return _notification(key, kind, at, text, {**data, **url})


def leftover_notification(vms: Sequence[Mapping[str, Any]], at: datetime) -> Notification:
    """Tell of VMs that cost money and that no job uses, once for each set of them.

    Args:
        vms: Of each `provider`, `region`, `instance_id`, `vm` (its type) and `reason`.
        at: When they were found.
    """
    ids = sorted(f"{one['provider']}/{one['region']}/{one['instance_id']}" for one in vms)
    shown = ", ".join(ids[:5]) + ("" if len(ids) <= 5 else f" and {len(ids) - 5} more")
    text = f"no job uses {plural(len(ids), 'VM')} that cost money: {shown}"
    return _notification(" ".join(ids), "vms.leftover", at, text, {"vms": [dict(one) for one in vms]})


def ping(webhook: str, at: datetime) -> Notification:
    """The first notification of a webhook: it tells that what happens from now on is told there."""
    text = "Scavenger tells here what becomes of jobs from now on"
    return _notification(f"ping {webhook}", "ping", at, text, {"webhook": webhook})


def _notification(
    key: str, kind: NotificationKind, at: datetime, text: str, data: Mapping[str, Any]
) -> Notification:
    line = " ".join(mask(clean(text)).split())
    shown = line if len(line) <= _TEXT_MAX else f"{line[: _TEXT_MAX - 1]}…"
    return Notification(f"msg_{uuid.uuid5(_NAMESPACE, f'{kind} {key}').hex}", kind, at, shown, data)


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver has it."""


@dataclass(frozen=True, slots=True)
class SendAgain:
    """It is sent again later."""

    wait_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class DeliveryRefused:
    """It is not sent again."""

    reason: str


def after_answer(
    status: int | None, reason: str, *, attempts: int, age: timedelta, retry_after_s: float, chance: float
) -> Delivered | SendAgain | DeliveryRefused:
    """What follows from an answer, or from none.

    The wait doubles from 5 seconds up to an hour; a random half of it keeps senders apart.

    Args:
        status: Of the answer; None if there was none.
        reason: Why there was none, or what the answer said.
        attempts: How often it was sent, at least 1.
        age: Time since it happened.
        retry_after_s: How long the receiver asked to wait; 0 if it did not.
        chance: Uniform in [0, 1).
    """
    if status is not None and 200 <= status < 300:
        return Delivered()
    if status is not None and status < 500 and status not in _AGAIN:
        return DeliveryRefused(f"the receiver answered {status}")
    told = reason if status is None else f"the receiver answered {status}"
    if age >= GIVE_UP:
        return DeliveryRefused(f"given up after {attempts} attempts: {told}")
    longest_s = min(_FIRST_S * 2.0 ** min(attempts - 1, 20), _LONGEST_S)
    wait_s = max(longest_s * (0.5 + 0.5 * chance), min(retry_after_s, _LONGEST_S))
    return SendAgain(wait_s, told)
