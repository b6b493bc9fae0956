"""Conversion of rows of leases, wishes and intents to values, and the cost of intents."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from scavenger.domain.intent import Desired, Intent, Lease, Past, Place, Wish
from scavenger.domain.vm import VmRequest
from scavenger.errors import StoreError
from scavenger.store.schema import DesiredRow, IntentRow, JobRow, LeaseRow

__all__ = ["PLAIN", "TOLD", "desired_of", "intent_of", "lease_of", "past_of", "settle"]

HEALTH_LAST = 32
"""Number of a job's latest VMs whose health is reported; decisions use fewer."""

BILLED_MIN_S = 60.0
"""Minimum billed time: Google Cloud and AWS bill by the second, and at least a minute."""

TOLD = "told"
"""Key in a wish's document under which the lease holder reports the state of the wishes."""

_UNHEALTHY = ("never_joined", "died")

PLAIN = tuple(one.name for one in fields(Intent) if one.name not in ("request", "created_at"))
"""Fields of an intent that are columns of the same name and type."""


def settle(row: IntentRow) -> None:
    """Replace the counted seconds by the cloud's own if it reports them, at the mean price that was charged.

    If it does not, the counted seconds remain, or a minute if that is more.
    """
    seconds = row.billed_s
    if row.launched_at is not None and row.ended_at is not None:
        seconds = (row.ended_at - row.launched_at).total_seconds()
    seconds = max(BILLED_MIN_S, seconds)
    mean = row.spent_usd / row.billed_s if row.billed_s > 0 else row.price_usd_per_hour / 3600.0
    row.billed_s, row.spent_usd = seconds, mean * seconds


def past_of(session: Session, job_id: str, attempt: int, provider: str, region: str) -> Past:
    """Read a job's history in addition to its live intents in this region."""
    of_job = IntentRow.job_id == job_id
    last = select(IntentRow.slot, func.max(IntentRow.generation)).where(of_job).group_by(IntentRow.slot)
    sums = (
        select(
            IntentRow.state,
            IntentRow.provider,
            IntentRow.region,
            func.sum(IntentRow.spent_usd).label("spent"),
            func.sum(IntentRow.reserved_usd).label("reserved"),
        )
        .where(of_job)
        .group_by(IntentRow.state, IntentRow.provider, IntentRow.region)
    )
    latest = (
        select(IntentRow.acks)
        .where(of_job, IntentRow.attempt == attempt)
        .where((IntentRow.acks > 0) | IntentRow.ending.in_(_UNHEALTHY))
        .order_by(IntentRow.number.desc())
        .limit(HEALTH_LAST)
    )
    drained = (
        select(IntentRow.id)
        .where(of_job, IntentRow.attempt == attempt, IntentRow.ending == "budget")
        .limit(1)
    )
    pulse = session.scalar(select(JobRow.heartbeat_at).where(JobRow.id == job_id))
    return Past(
        generations={row.slot: row[1] for row in session.execute(last)},
        spent_usd=sum(
            row.spent + (0.0 if row.state == "GONE" else row.reserved)
            for row in session.execute(sums)
            if row.state == "GONE" or (row.provider, row.region) != (provider, region)
        ),
        health=tuple(acks > 0 for acks in session.scalars(latest)),
        pulse=str(pulse),
        drained=session.scalar(drained) is not None,
    )


def lease_of(row: LeaseRow | None) -> Lease | None:
    """Convert a row to a lease; None if there is no row."""
    return None if row is None else Lease(row.name, row.holder, row.token, row.beats)


def desired_of(row: DesiredRow) -> Desired:
    """The value of a row.

    Raises:
        StoreError: Its document is not of this version.
    """
    try:
        given = {name: value for name, value in row.document.items() if name != TOLD}
        budget = given.pop("budget_usd")
        return Desired(
            job_id=row.job_id,
            provider=row.provider,
            region=row.region,
            wishes=tuple(_wish_of(one) for one in given.pop("wishes")),
            places=tuple(Place(**one) for one in given.pop("places")),
            budget_usd=float("inf") if budget is None else budget,
            labels=_pairs(given.pop("labels")),
            **given,
        )
    except (TypeError, ValueError, KeyError) as error:
        raise StoreError(f"what job {row.job_id[:8]} wants cannot be read: {error}") from error


def _wish_of(given: Mapping[str, Any]) -> Wish:
    return Wish(**{**given, "places": tuple(Place(**one) for one in given.get("places", ()))})


def intent_of(row: IntentRow) -> Intent:
    """The value of a row.

    Raises:
        StoreError: Its request is not of this version.
    """
    try:
        given = dict(row.request)
        request = VmRequest(**(given | {"labels": _pairs(given["labels"])}))
    except (TypeError, ValueError, KeyError) as error:
        raise StoreError(f"intent {row.id} cannot be read: {error}") from error
    plain = {name: getattr(row, name) for name in PLAIN}
    return replace(Intent(request=request, **plain), created_at=row.created_at)


def _pairs(found: Collection[Collection[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in found)
