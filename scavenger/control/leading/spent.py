"""What a leader's VM costs beside what its job has counted of it, booked in the ledger of the machine that rented it.

The leader counts its VM for the job from its launch to the end of the job, and that reaches this machine with the job's
record. Nobody there counts what follows: the VM waits until its result is fetched. Nor does anybody here hear of a job
that is still led, or whose result was never fetched. So this machine books the whole VM, from its own record of it,
less what the job's record has of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from scavenger.control.leading.record import LeaderRecord, Leaders
from scavenger.control.provisioning.bill import paid_for
from scavenger.domain.intent import Intent
from scavenger.domain.providers import capabilities_of
from scavenger.policy.provisioning.slots import LEADER_SLOT
from scavenger.store import Store
from scavenger.store.owner import this_process


def leader_usd(intents: Iterable[Intent], at: datetime, *, there: bool, seen_usd: float) -> float:
    """Cost of a leader's VMs: of one that has ended by the cloud's times, else up to when it was there last.

    A VM ends by itself, and not every cloud tells when that was.

    Args:
        intents: From the store of a leader; those of other VMs are left out.
        at: With a time zone.
        there: Whether the VM that has not ended is there at that time.
        seen_usd: What this was when the VM was there last.
    """
    known, spent_usd = True, 0.0
    for one in intents:
        if one.slot != LEADER_SLOT:
            continue
        ended = one.state == "GONE" and None not in (one.times.launched_at, one.times.ended_at)
        known = known and (ended or there)
        if ended or there:
            spent_usd += paid_for([one], at=at).total_usd
    return spent_usd if known else max(spent_usd, seen_usd)


def book_leader(
    store: Store, leaders: Leaders, record: LeaderRecord, at: datetime, *, there: bool
) -> LeaderRecord:
    """Book what a leader's VM has cost that its job's record does not have.

    One that has no job, and is not to be ended, is about to get one, under which it is booked then.

    Args:
        store: Of this machine's jobs.
        leaders: Records of leaders beside it.
        record: The leader; a pod has no price of its own.
        at: With a time zone.
        there: Whether its VM is there.

    Returns:
        The record, with what was seen.
    """
    if capabilities_of(record.provider).pods or not (record.job_id or record.ending):
        return record
    with leaders.open_store(record) as own:
        usd = leader_usd(own.intents(), at, there=there, seen_usd=record.seen_usd)
    more_usd = max(0.0, usd - record.counted_usd)
    store.note(
        record.job_id or record.id,
        "leader",
        0.0,
        record.before_usd + more_usd,
        name=record.name,
        user=this_process().user,
    )
    return record if usd == record.seen_usd else leaders.change(record, seen_usd=usd)
