"""VMs as they are wanted and as they were asked for, and who may ask: leases, wishes and intents.

Every write of whoever acts on a cloud shows its fence. One that another has overtaken changes nothing and is told so:
it looks again before it does anything else. A state is never left backwards and an instance id never changes, so what
a write says stays true whoever reads it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, cast

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from scavenger.domain.intent import (
    Desired,
    Ending,
    Fence,
    Intent,
    IntentState,
    Lease,
    Situation,
)
from scavenger.domain.vm import VmSeen
from scavenger.errors import StoreError
from scavenger.store.base import Part, job_row
from scavenger.store.intent_rows import PLAIN, TOLD, desired_of, intent_of, lease_of, past_of, settle
from scavenger.store.records import LIVE_STATES
from scavenger.store.schema import DesiredRow, InstallationRow, IntentRow, JobRow, LeaseRow

__all__ = ["Intents"]


class Intents(Part):
    """The part of `Store` that holds what is asked of clouds.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    def installation(self) -> str:
        """The tag of this store's VMs: made once, never changed; fits into every cloud's rules for labels."""
        query = select(InstallationRow.id)
        with self._database.reading() as session:
            found: str | None = session.scalar(query)
        if found is not None:
            return found
        with self._database.writing() as session:
            found = session.scalar(query)
            if found is None:
                found = f"scavenger-{uuid.uuid4().hex[:12]}"
                session.add(InstallationRow(id=found))
            return found

    # ---- who acts ------------------------------------------------------------------------------------------

    def lease(self, name: str) -> Lease | None:
        """A lease as it is; None where nobody ever took it."""
        with self._database.reading() as session:
            return lease_of(session.get(LeaseRow, name))

    def take_lease(self, name: str, holder: str, seen: Lease | None) -> Lease | None:
        """Take a lease that is still as it was seen; None where it is not.

        Whoever asks has made sure that its holder is dead or has given it back.
        """
        with self._database.writing() as session:
            row = session.get(LeaseRow, name)
            if lease_of(row) != seen:
                return None
            if row is None:
                row = LeaseRow(name=name, token=0)
                session.add(row)
            row.holder, row.token, row.beats = holder, row.token + 1, 0
            session.flush()
            return lease_of(row)

    def release_lease(self, fence: Fence) -> None:
        """Give a lease back, so that the next one need not wait; nothing where another has it."""
        with self._database.writing() as session:
            if (row := _held(session, fence)) is not None:
                row.holder = ""

    # ---- what is wanted ------------------------------------------------------------------------------------

    def want_vms(self, desired: Desired) -> None:
        """Say what a job wants of a region, in place of what it wanted before; no wishes: nothing any more.

        Raises:
            ConfigurationError: There is no such job.
        """
        document = asdict(desired)
        key = {name: document.pop(name) for name in ("job_id", "provider", "region")}
        if document["budget_usd"] == float("inf"):
            document["budget_usd"] = None
        with self._database.writing() as session:
            job_row(session, desired.job_id)
            before = session.get(DesiredRow, tuple(key.values()))
            if before is not None and before.document.get("attempt") == desired.attempt:
                document[TOLD] = before.document.get(TOLD, {})
            session.merge(DesiredRow(**key, document=document))

    def tell(self, fence: Fence, job_id: str, provider: str, region: str, alarms: Mapping[str, str]) -> bool:
        """Say how a job's wishes stand, in place of what was said before; `told` reads it.

        Args:
            fence: Of whoever acts for the region.
            job_id: Whose.
            provider: Of the region.
            region: Its name.
            alarms: Words by kind; none: all is well.

        Returns:
            False where the lease is another's.
        """
        with self._database.writing() as session:
            if _held(session, fence) is None:
                return False
            row = session.get(DesiredRow, (job_id, provider, region))
            if row is not None:
                row.document = {**row.document, TOLD: dict(alarms)}
            return True

    def told(self, job_id: str, provider: str, region: str) -> Mapping[str, str]:
        """How a job's wishes stand, by whoever acts for the region: words by kind of alarm."""
        with self._database.reading() as session:
            row = session.get(DesiredRow, (job_id, provider, region))
            return {} if row is None else dict(row.document.get(TOLD, {}))

    def boot_key(self, job_id: str, provider: str, region: str) -> str:
        """See `Desired.boot_key`; empty where the job wants nothing of the region."""
        with self._database.reading() as session:
            row = session.get(DesiredRow, (job_id, provider, region))
            return "" if row is None else str(row.document.get("boot_key", ""))

    def situation(self, provider: str, region: str, tokens: Collection[str] = ()) -> Situation:
        """What is wanted and what was asked for in a region, in one moment.

        Args:
            provider: Of the region.
            region: Its name.
            tokens: Of VMs that were seen; which of them have ended is told.
        """
        with self._database.reading() as session:
            rows = session.execute(
                select(DesiredRow, JobRow.attempts)
                .join(JobRow, JobRow.id == DesiredRow.job_id)
                .where(DesiredRow.provider == provider, DesiredRow.region == region)
                .where(JobRow.state.in_(LIVE_STATES))
                .order_by(JobRow.created_at, JobRow.id)
            ).all()
            said = [(desired_of(row), attempts) for row, attempts in rows]
            # what an attempt wanted that was killed, its successor does not
            desired = tuple(one for one, attempts in said if one.attempt >= attempts)
            query = select(IntentRow).where(IntentRow.state != "GONE").order_by(IntentRow.number)
            here = query.where(IntentRow.provider == provider, IntentRow.region == region)
            intents = tuple(intent_of(row) for row in session.scalars(here))
            ended = select(IntentRow.id).where(IntentRow.id.in_(tokens), IntentRow.state == "GONE")
            attempts = {one.job_id: one.attempt for one in intents} | {
                one.job_id: one.attempt for one in desired
            }
            return Situation(
                desired,
                intents,
                frozenset(session.scalars(ended)) if tokens else frozenset(),
                {
                    job_id: past_of(session, job_id, attempt, provider, region)
                    for job_id, attempt in attempts.items()
                },
            )

    # ---- intents -------------------------------------------------------------------------------------------

    def write_intent(self, fence: Fence, intent: Intent) -> bool:
        """Write an intent before its VM is asked for, and with it set aside what ending that VM may cost.

        Returns:
            False where nothing was written: the lease is another's, the slot's generation is taken, the job has ended,
            was resumed or wants nothing here any more, has as many VMs as it may, or no money for one more.
        """
        with self._database.writing() as session:
            if _held(session, fence) is None or not _is_allowed(session, intent):
                return False
            row = IntentRow(
                **{name: getattr(intent, name) for name in PLAIN},
                request=asdict(intent.request),
                created_at=self._clock(),
            )
            row.charged_at = row.created_at
            session.add(row)
            try:
                session.flush()
            except IntegrityError:
                session.rollback()
                return False
            return True

    def ask_again(self, fence: Fence, intent_id: str) -> Intent | None:
        """Write that a launch is about to be asked for; None where the lease is another's or the intent moved on."""
        return self._change(fence, intent_id, ("PLAN",), asked=True)

    def never_asked(self, fence: Fence, intent_id: str) -> Intent | None:
        """Write that the only launch there was did nothing; as `ask_again`."""
        return self._change(fence, intent_id, ("PLAN",), asked=False, billed_s=0.0, spent_usd=0.0)

    def mark_up(self, fence: Fence, intent_id: str, vm: VmSeen) -> Intent | None:
        """Write which VM an intent has; one that is to end stays so. As `ask_again`.

        Raises:
            StoreError: It has another: an id is never replaced.
        """
        with self._database.writing() as session:
            row = _living(session, fence, intent_id, ("PLAN", "UP", "DELETING"))
            if row is None:
                return None
            if row.instance_id not in ("", vm.instance_id):
                raise StoreError(f"intent {intent_id} has VM {row.instance_id}, not {vm.instance_id}")
            row.instance_id, row.launched_at, row.asked = vm.instance_id, vm.launched_at, True
            if row.state == "PLAN":
                row.state = "UP"
            return intent_of(row)

    def mark_deleting(self, fence: Fence, intent_id: str, ending: Ending, reason: str) -> Intent | None:
        """Write that an intent's VM is to end, before it is ended; as `ask_again`."""
        return self._change(fence, intent_id, ("PLAN", "UP"), state="DELETING", ending=ending, reason=reason)

    def mark_gone(
        self,
        fence: Fence | None,
        intent_id: str,
        ending: Ending,
        reason: str,
        vm: VmSeen | None,
        *,
        never: bool,
    ) -> Intent | None:
        """Write that an intent has no VM any more, on definite evidence, and what it has cost.

        Args:
            fence: None for whoever ends leftovers by hand: that a VM is gone stays true whoever says it.
            intent_id: Which.
            ending: Why, unless it was known before.
            reason: The same in words.
            vm: As it was last seen; where the cloud tells both its times, they replace what was counted.
            never: There was no VM: nothing was paid.

        Returns:
            None where the lease is another's or it was written already.
        """
        with self._database.writing() as session:
            row = _living(session, fence, intent_id, ("PLAN", "UP", "DELETING"))
            if row is None:
                return None
            row.state = "GONE"
            if not row.ending:
                row.ending, row.reason = ending, reason
            if never:
                row.billed_s = row.spent_usd = 0.0
            elif vm is not None:
                row.instance_id = row.instance_id or vm.instance_id
                row.launched_at, row.ended_at = vm.launched_at or row.launched_at, vm.ended_at
            if row.instance_id and not never:
                settle(row)
            return intent_of(row)

    def charge(self, fence: Fence, added: Mapping[str, tuple[float, float]], at: datetime) -> bool:
        """Add to what living VMs have cost, and tell that the holder of the lease lives.

        Args:
            fence: The holder's.
            added: Seconds and dollars by intent.
            at: Up to when they count, by this side's clock.

        Returns:
            False where the lease is another's; nothing was added.
        """
        with self._database.writing() as session:
            if (lease := _held(session, fence)) is None:
                return False
            lease.beats += 1
            for row in session.scalars(
                select(IntentRow).where(IntentRow.id.in_(added), IntentRow.state != "GONE")
            ):
                seconds, usd = added[row.id]
                row.billed_s, row.spent_usd, row.charged_at = row.billed_s + seconds, row.spent_usd + usd, at
            return True

    def acknowledge_vm(self, intent_id: str) -> bool:
        """Say that an intent's VM was heard of by its job; False where it has ended, or never was."""
        with self._database.writing() as session:
            done = session.execute(
                update(IntentRow)
                .where(IntentRow.id == intent_id, IntentRow.state != "GONE")
                .values(acks=IntentRow.acks + 1, last_ack_at=self._clock())
            )
            return bool(cast(Any, done).rowcount)

    def intents(self, job_id: str | None = None, *, living: bool = False) -> tuple[Intent, ...]:
        """Intents in the order in which they were written: of a job, or of all; `living`: none that are `GONE`."""
        query = select(IntentRow).order_by(IntentRow.number)
        if job_id is not None:
            query = query.where(IntentRow.job_id == job_id)
        if living:
            query = query.where(IntentRow.state != "GONE")
        with self._database.reading() as session:
            return tuple(intent_of(row) for row in session.scalars(query))

    def is_clean(self, job_id: str) -> bool:
        """Whether no VM of a job can be left: every intent that it ever had is `GONE`."""
        query = select(func.count()).where(IntentRow.job_id == job_id, IntentRow.state != "GONE")
        with self._database.reading() as session:
            return session.scalar(query) == 0

    def vm_regions(self) -> tuple[tuple[str, str], ...]:
        """Every (provider, region) that VMs were ever wanted in or asked of."""
        with self._database.reading() as session:
            found = {
                (provider, region)
                for table in (DesiredRow, IntentRow)
                for provider, region in session.execute(select(table.provider, table.region).distinct())
            }
        return tuple(sorted(found))

    def _change(
        self, fence: Fence, intent_id: str, among: tuple[IntentState, ...], **changes: object
    ) -> Intent | None:
        with self._database.writing() as session:
            row = _living(session, fence, intent_id, among)
            if row is None:
                return None
            for name, value in changes.items():
                setattr(row, name, value)
            return intent_of(row)


def _held(session: Session, fence: Fence) -> LeaseRow | None:
    row = session.get(LeaseRow, fence.name)
    return row if row is not None and row.token == fence.token and row.holder else None


def _living(
    session: Session, fence: Fence | None, intent_id: str, among: tuple[IntentState, ...]
) -> IntentRow | None:
    if fence is not None and _held(session, fence) is None:
        return None
    return session.scalar(select(IntentRow).where(IntentRow.id == intent_id, IntentRow.state.in_(among)))


def _is_allowed(session: Session, intent: Intent) -> bool:
    """Whether the job may have one VM more: looked at in the transaction that writes it."""
    key = (intent.job_id, intent.provider, intent.region)
    row, job = session.get(DesiredRow, key), session.get(JobRow, intent.job_id)
    if row is None or job is None or job.state not in LIVE_STATES or intent.attempt < job.attempts:
        return False
    desired = desired_of(row)
    living = session.scalars(
        select(IntentRow).where(IntentRow.job_id == intent.job_id, IntentRow.state != "GONE")
    ).all()
    here = sum((one.job_id, one.provider, one.region) == key for one in living)
    reserved = sum(one.reserved_usd for one in living)
    spent = session.scalar(
        select(func.coalesce(func.sum(IntentRow.spent_usd), 0.0)).where(IntentRow.job_id == intent.job_id)
    )
    committed = float(spent or 0.0) + reserved + intent.reserved_usd
    return here < desired.vms_max and committed <= desired.budget_usd
