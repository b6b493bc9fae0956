"""VMs that go over from one job to another, as a study's trials have them one after another.

The intent, by whose id the cloud knows the VM, goes on as the other job's. What the first job had of the VM becomes a
record of its own, which has ended: so all that adds up intents, such as budgets and bills, needs to know nothing of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from scavenger.domain.intent import Handover
from scavenger.store.schema import IntentRow

MayTake = Callable[[Session, tuple[str, str, str], int, float], bool]


def hand_over(session: Session, handover: Handover, now: datetime, may_take: MayTake) -> bool:
    """Have a VM go over; False if that is not possible, and nothing was changed.

    Args:
        handover: What goes where.
        now: The time, with a time zone.
        may_take: Whether a job in a region may have one more VM in an attempt, which sets so much aside.
    """
    row = session.scalar(
        select(IntentRow).where(
            IntentRow.id == handover.intent_id,
            IntentRow.job_id == handover.from_job,
            IntentRow.state == "UP",
            IntentRow.acks > 0,
        )
    )
    if row is None:
        return False
    in_slot = (IntentRow.job_id == handover.to_job, IntentRow.slot == handover.slot)
    taken = select(IntentRow.id).where(*in_slot, IntentRow.state.in_(("PLAN", "UP"))).limit(1)
    key = (handover.to_job, row.provider, row.region)
    if session.scalar(taken) is not None or not may_take(
        session, key, handover.attempt, handover.reserved_usd
    ):
        return False
    last = session.scalar(select(func.max(IntentRow.generation)).where(*in_slot))
    generation = max(handover.generation, -1 if last is None else last + 1)
    ended = _ended_part(row, handover, now)
    at = ended.ended_at
    row.job_id, row.slot, row.generation = handover.to_job, handover.slot, generation
    row.attempt, row.reserved_usd = handover.attempt, handover.reserved_usd
    tags = {"job_id": handover.to_job, "slot": handover.slot, "generation": generation}
    row.request = {**row.request, **tags}
    if row.launched_at is not None:
        row.launched_at = at
    row.taken_at = row.created_at = row.charged_at = now if at is None else at
    row.joined_at = row.last_ack_at = None
    row.acks, row.billed_s, row.spent_usd = 0, 0.0, 0.0
    session.flush()  # its slot is free from here on
    session.add(ended)
    session.flush()
    return True


def _ended_part(row: IntentRow, handover: Handover, now: datetime) -> IntentRow:
    """What the first job had of a VM; parts of a VM follow each other without a gap, so they add up to its life."""
    part = IntentRow(
        **{
            column.key: getattr(row, column.key)
            for column in IntentRow.__table__.columns
            if column.key != "number"
        }
    )
    part.id = str(uuid.uuid4())
    part.request = {**row.request, "token": part.id}
    part.state, part.ending = "GONE", "unwanted"
    part.reason = f"it went over to job {handover.to_job[:8]}"
    part.ended_at = now if row.launched_at is None else max(now, row.launched_at)
    if row.launched_at is not None:
        seconds = (part.ended_at - row.launched_at).total_seconds()
        mean = row.spent_usd / row.billed_s if row.billed_s > 0 else row.price_usd_per_hour / 3600.0
        part.billed_s, part.spent_usd = seconds, mean * seconds
    return part


def held_before_s(session: Session, row: IntentRow) -> float:
    """For how long other jobs had a VM before."""
    if row.taken_at is None:
        return 0.0
    parts = (IntentRow.instance_id == row.instance_id, IntentRow.id != row.id, IntentRow.state == "GONE")
    return float(
        session.scalar(select(func.coalesce(func.sum(IntentRow.billed_s), 0.0)).where(*parts)) or 0.0
    )
