"""The store's leases, fleet specs and intents: which VMs are wanted and requested, and which process may request them.

Every write of a provisioning process carries its fencing token. A write with an outdated token changes nothing and
returns that, so that the process reads the state again before it continues. States only move forwards and instance
ids never change, so a recorded fact stays true.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, cast

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from scavenger.domain.intent import (
    Ending,
    Fence,
    FleetSpec,
    Handover,
    Intent,
    IntentState,
    Lease,
    RegionSnapshot,
)
from scavenger.domain.vm import VmSeen
from scavenger.errors import LeaseLostError, StoreError
from scavenger.policy.funds import Funds
from scavenger.store.base import Part, job_row
from scavenger.store.handovers import hand_over, held_before_s
from scavenger.store.intent_rows import (
    COST_USD,
    SHORTAGES,
    fleet_spec_document,
    fleet_spec_of,
    intent_of,
    lease_of,
    past_of,
    row_of,
    settle,
)
from scavenger.store.ledger import note_vms
from scavenger.store.quarantine import is_restored, new_lease
from scavenger.store.records import LIVE_STATES
from scavenger.store.schema import FleetSpecRow, InstallationRow, IntentRow, JobRow, LeaseRow


class IntentsPart(Part):
    """The part of `Store` that holds leases, fleet specs and intents.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    def installation(self) -> str:
        """The tag of this store's VMs: created once, never changed; a valid label in every cloud."""
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

    def adopt_installation(self, owner: str) -> None:
        """Let a new store tag its VMs as those of another installation.

        Raises:
            StoreError: It has a tag of its own already.
        """
        with self._database.writing() as session:
            found = session.scalar(select(InstallationRow.id))
            if found is None:
                session.add(InstallationRow(id=owner))
            elif found != owner:
                raise StoreError(f"this store's VMs have the tag {found}, not {owner}")

    # ---- who acts ------------------------------------------------------------------------------------------

    def lease(self, name: str) -> Lease | None:
        """The present lease; None if it was never taken."""
        with self._database.reading() as session:
            return lease_of(session.get(LeaseRow, name))

    def take_lease(self, name: str, holder: str, seen: Lease | None) -> Lease | None:
        """Take a lease that has not changed since `seen`; None if it has.

        The caller has made sure that its holder is dead or has released it.
        """
        with self._database.writing() as session:
            row = session.get(LeaseRow, name)
            if lease_of(row) != seen:
                return None
            if row is None:
                row = new_lease(session, name)
            row.holder, row.token, row.beats = holder, row.token + 1, 0
            session.flush()
            return lease_of(row)

    def release_lease(self, fence: Fence) -> None:
        """Release a lease, so that the next holder need not wait; no effect if another process has it."""
        with self._database.writing() as session:
            if (row := held_lease(session, fence)) is not None:
                row.holder = ""

    def renew_lease(self, fence: Fence) -> bool:
        """Show that the holder of a lease is alive; False if another process has it."""
        with self._database.writing() as session:
            if (row := held_lease(session, fence)) is None:
                return False
            row.beats += 1
            return True

    def hand_over_lease(self, fence: Fence, holder: str) -> Lease | None:
        """Pass a lease on to another holder, with a higher token; None if another process has it."""
        with self._database.writing() as session:
            if (row := held_lease(session, fence)) is None:
                return None
            row.holder, row.token, row.beats = holder, row.token + 1, 0
            session.flush()
            return lease_of(row)

    def fence(self, fence: Fence) -> None:
        """From now on, refuse every write of this store once another process has taken the lease.

        The check is part of the transaction of each write, which then raises `LeaseLostError`.
        """

        def check(session: Session) -> None:
            if held_lease(session, fence) is None:
                raise LeaseLostError(
                    f"another process has taken over: {fence.name}, after token {fence.token}"
                )

        self._database.guard = check

    # ---- what is wanted ------------------------------------------------------------------------------------

    def want_vms(self, spec: FleetSpec) -> None:
        """Store the VMs that a job wants in a region, in place of an earlier spec; without slots it wants none.

        Raises:
            ConfigurationError: There is no such job.
        """
        with self._database.writing() as session:
            _put_spec(session, spec)

    def exchange_vms(self, specs: Collection[FleetSpec], handovers: Collection[Handover]) -> frozenset[str]:
        """Store what jobs want, as `want_vms`, and have VMs go over from one to another, in one transaction.

        Each VM is one job's at any time. Its part until now stays with the job that it leaves, as a record that has
        ended; its intent, by which the cloud knows it, goes on with the other's slot, as one that has not joined yet.

        Returns:
            The intents that went over. Not those that have changed meanwhile, whose slot is not vacant, or whose end
            the other's budget does not pay for.

        Raises:
            ConfigurationError: There is no such job.
        """
        with self._database.writing() as session:
            for spec in specs:
                _put_spec(session, spec)
            session.flush()
            moved = [one for one in handovers if hand_over(session, one, self._clock(), _may_take)]
            note_vms(session, {job for one in moved for job in (one.from_job, one.to_job)}, self._clock())
            return frozenset(one.intent_id for one in moved)

    def report_shortages(
        self, fence: Fence, job_id: str, provider: str, region: str, alarms: Mapping[str, str]
    ) -> bool:
        """Report what keeps a job from having its VMs, in place of the last report; `shortages` reads it.

        Args:
            fence: Fencing token of the region's lease holder.
            provider: Of the region.
            region: Its name.
            alarms: Messages by kind of alarm; empty if there is no problem.

        Returns:
            False where the lease is another's.
        """
        with self._database.writing() as session:
            if held_lease(session, fence) is None:
                return False
            row = session.get(FleetSpecRow, (job_id, provider, region))
            if row is not None:
                row.document = {**row.document, SHORTAGES: dict(alarms)}
            return True

    def shortages(self, job_id: str, provider: str, region: str) -> Mapping[str, str]:
        """The lease holder's report on a job's VMs: messages by kind of alarm."""
        with self._database.reading() as session:
            row = session.get(FleetSpecRow, (job_id, provider, region))
            return {} if row is None else dict(row.document.get(SHORTAGES, {}))

    def boot_key(self, job_id: str, provider: str, region: str) -> str:
        """See `FleetSpec.boot_key`; empty where the job wants nothing of the region."""
        with self._database.reading() as session:
            row = session.get(FleetSpecRow, (job_id, provider, region))
            return "" if row is None else str(row.document.get("boot_key", ""))

    def situation(self, provider: str, region: str, tokens: Collection[str] = ()) -> RegionSnapshot:
        """Read a consistent snapshot of the fleet specs and intents of a region.

        Args:
            provider: Of the region.
            region: Its name.
            tokens: Tokens of VMs that were seen; the result lists those whose intents have ended.
        """
        with self._database.reading() as session:
            rows = session.execute(
                select(FleetSpecRow, JobRow.attempts)
                .join(JobRow, JobRow.id == FleetSpecRow.job_id)
                .where(FleetSpecRow.provider == provider, FleetSpecRow.region == region)
                .where(JobRow.state.in_(LIVE_STATES))
                .order_by(JobRow.created_at, JobRow.id)
            ).all()
            specs = [(fleet_spec_of(row), attempts) for row, attempts in rows]
            # what an attempt wanted that was killed, its successor does not
            fleets = tuple(one for one, attempts in specs if one.attempt >= attempts)
            query = select(IntentRow).where(IntentRow.state != "GONE").order_by(IntentRow.number)
            here = query.where(IntentRow.provider == provider, IntentRow.region == region)
            intents = tuple(intent_of(row) for row in session.scalars(here))
            ended = select(IntentRow.id).where(IntentRow.id.in_(tokens), IntentRow.state == "GONE")
            attempts = {one.job_id: one.attempt for one in intents} | {
                one.job_id: one.attempt for one in fleets
            }
            return RegionSnapshot(
                fleets,
                intents,
                frozenset(session.scalars(ended)) if tokens else frozenset(),
                {
                    job_id: past_of(session, job_id, attempt, provider, region)
                    for job_id, attempt in attempts.items()
                },
                is_restored(session),
            )

    # ---- intents -------------------------------------------------------------------------------------------

    def write_intent(self, fence: Fence, intent: Intent) -> bool:
        """Store an intent before its VM is requested, and reserve the cost of ending that VM.

        Returns:
            False if nothing was written: the lease is another's, the slot's generation is taken, the job has ended,
            was resumed or wants nothing here any more, it or its pool has as many VMs as it may, or no money for one
            more.
        """
        with self._database.writing() as session:
            if held_lease(session, fence) is None or not _is_allowed(session, intent):
                return False
            session.add(row_of(intent, self._clock()))
            try:
                session.flush()
            except IntegrityError:
                session.rollback()
                return False
            return True

    def ask_again(self, fence: Fence, intent_id: str) -> Intent | None:
        """Record that a launch is about to be requested; None if the lease is another's or the intent has changed."""
        return self._change(fence, intent_id, ("PLAN",), asked=True)

    def never_asked(self, fence: Fence, intent_id: str) -> Intent | None:
        """Record that the only launch had no effect; returns as `ask_again`."""
        return self._change(fence, intent_id, ("PLAN",), asked=False, billed_s=0.0, spent_usd=0.0)

    def mark_up(self, fence: Fence, intent_id: str, vm: VmSeen) -> Intent | None:
        """Record the VM of an intent; an intent that is to end stays so. Returns as `ask_again`.

        Raises:
            StoreError: It has another VM: an id is never replaced.
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
        """Record that an intent's VM is to end, before it is ended; returns as `ask_again`."""
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
        """Record, on definite evidence, that an intent no longer has a VM, and its cost.

        Args:
            fence: None for a manual clean-up, which needs no lease: that a VM is gone is true for every process.
            ending: Why it ended, unless that was recorded before.
            reason: Explanation of `ending`.
            vm: The VM as last seen; if the cloud reports both its times, they replace the counted time.
            never: Whether there was no VM, so that nothing was paid.

        Returns:
            None if the lease is another's or this was already recorded.
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
                if row.taken_at is None:
                    row.launched_at = vm.launched_at or row.launched_at
                row.ended_at, row.disk_after_s = vm.ended_at, vm.disk_after_s
            if row.instance_id and not never:
                if fence is None and row.ended_at is None:
                    _charge_to_its_end(row, self._clock())
                settle(row, held_before_s(session, row))
            note_vms(session, [row.job_id], self._clock())
            return intent_of(row)

    def charge(self, fence: Fence, added: Mapping[str, tuple[float, float]], at: datetime) -> bool:
        """Add to the cost of live VMs, and renew the lease.

        Args:
            fence: Fencing token of the lease holder.
            added: Seconds and dollars by intent.
            at: Time up to which they count, by the local clock.

        Returns:
            False if the lease is another's; nothing was added.
        """
        with self._database.writing() as session:
            if (lease := held_lease(session, fence)) is None:
                return False
            lease.beats += 1
            charged = set()
            for row in session.scalars(
                select(IntentRow).where(IntentRow.id.in_(added), IntentRow.state != "GONE")
            ):
                seconds, usd = added[row.id]
                row.billed_s, row.spent_usd, row.charged_at = row.billed_s + seconds, row.spent_usd + usd, at
                charged.add(row.job_id)
            note_vms(session, charged, self._clock())
            return True

    def acknowledge_vm(self, intent_id: str) -> bool:
        """Record that the job has received a heartbeat of an intent's VM; False if it has ended, or never existed."""
        now = self._clock()
        with self._database.writing() as session:
            done = session.execute(
                update(IntentRow)
                .where(IntentRow.id == intent_id, IntentRow.state != "GONE")
                .values(
                    acks=IntentRow.acks + 1,
                    last_ack_at=now,
                    joined_at=func.coalesce(IntentRow.joined_at, now),
                )
            )
            return bool(cast(Any, done).rowcount)

    def intents(self, job_id: str | None = None, *, living: bool = False) -> tuple[Intent, ...]:
        """Intents of a job, or of all jobs, in the order in which they were written; `living` excludes `GONE` ones."""
        query = select(IntentRow).order_by(IntentRow.number)
        if job_id is not None:
            query = query.where(IntentRow.job_id == job_id)
        if living:
            query = query.where(IntentRow.state != "GONE")
        with self._database.reading() as session:
            return tuple(intent_of(row) for row in session.scalars(query))

    def parts_of(self, instance_ids: Collection[str]) -> tuple[Intent, ...]:
        """What jobs had of these VMs one after the other, and the intents that they are now."""
        query = select(IntentRow).where(IntentRow.instance_id.in_(instance_ids)).order_by(IntentRow.number)
        with self._database.reading() as session:
            return tuple(intent_of(row) for row in session.scalars(query))

    def vms_of_pool(self, pool: str, provider: str, region: str) -> tuple[Intent, ...]:
        """Intents of all jobs of a pool in a region that are not `GONE`, also of jobs that have ended."""
        with self._database.reading() as session:
            return tuple(map(intent_of, _of_pool(session, pool, provider, region)))

    def is_clean(self, job_id: str) -> bool:
        """Whether no VM of a job can be left: all of its intents are `GONE`."""
        query = select(func.count()).where(IntentRow.job_id == job_id, IntentRow.state != "GONE")
        with self._database.reading() as session:
            return session.scalar(query) == 0

    def vm_regions(self) -> tuple[tuple[str, str], ...]:
        """Every (provider, region) in which VMs were ever wanted or requested."""
        with self._database.reading() as session:
            found = {
                (provider, region)
                for table in (FleetSpecRow, IntentRow)
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


def _put_spec(session: Session, spec: FleetSpec) -> None:
    document = fleet_spec_document(spec)
    key = {"job_id": spec.job_id, "provider": spec.provider, "region": spec.region}
    job_row(session, spec.job_id)
    before = session.get(FleetSpecRow, tuple(key.values()))
    if before is not None and before.document.get("attempt") == spec.attempt:
        document[SHORTAGES] = before.document.get(SHORTAGES, {})
    session.merge(FleetSpecRow(**key, document=document))


def held_lease(session: Session, fence: Fence) -> LeaseRow | None:
    """The row of a lease; None if it was released, or another process has taken it."""
    row = session.get(LeaseRow, fence.name)
    return row if row is not None and row.token == fence.token and row.holder else None


def _living(
    session: Session, fence: Fence | None, intent_id: str, among: tuple[IntentState, ...]
) -> IntentRow | None:
    if fence is not None and held_lease(session, fence) is None:
        return None
    return session.scalar(select(IntentRow).where(IntentRow.id == intent_id, IntentRow.state.in_(among)))


def _charge_to_its_end(row: IntentRow, now: datetime) -> None:
    """Charge the most that a VM may have cost since it was charged last, where the cloud does not tell its end."""
    intent = intent_of(row)
    charged_at = intent.charges.charged_at or now
    seconds = min(max(0.0, (now - charged_at).total_seconds()), intent.uncharged_s_max)
    row.billed_s += seconds
    row.spent_usd += seconds / 3600.0 * row.price_usd_per_hour


def _is_allowed(session: Session, intent: Intent) -> bool:
    """Whether the job may have one more VM; checked in the transaction that writes its intent."""
    key = (intent.job_id, intent.provider, intent.region)
    row = session.get(FleetSpecRow, key)
    if row is None or not (spec := fleet_spec_of(row)).launches:
        return False
    if spec.pool and len(_of_pool(session, spec.pool, *key[1:])) >= spec.pool_vms_max:
        return False
    return _may_take(session, key, intent.attempt, intent.charges.reserved_usd)


def _of_pool(session: Session, pool: str, provider: str, region: str) -> list[IntentRow]:
    here = (IntentRow.state != "GONE", IntentRow.provider == provider, IntentRow.region == region)
    same = (
        (FleetSpecRow.job_id == IntentRow.job_id)
        & (FleetSpecRow.provider == IntentRow.provider)
        & (FleetSpecRow.region == IntentRow.region)
    )
    query = (
        select(IntentRow, FleetSpecRow.document)
        .join(FleetSpecRow, same)
        .where(*here)
        .order_by(IntentRow.number)
    )
    return [row for row, document in session.execute(query) if document.get("pool") == pool]


def _may_take(session: Session, key: tuple[str, str, str], attempt: int, reserved_usd: float) -> bool:
    """Whether a job may have one more VM in a region, and pay for its end."""
    job_id, *_ = key
    row, job = session.get(FleetSpecRow, key), session.get(JobRow, job_id)
    if row is None or job is None or job.state not in LIVE_STATES or attempt < job.attempts:
        return False
    spec = fleet_spec_of(row)
    living = session.scalars(
        select(IntentRow).where(IntentRow.job_id == job_id, IntentRow.state != "GONE")
    ).all()
    here = sum((one.job_id, one.provider, one.region) == key for one in living)
    reserved = sum(one.reserved_usd for one in living)
    spent = session.scalar(select(func.coalesce(func.sum(COST_USD), 0.0)).where(IntentRow.job_id == job_id))
    return here < spec.vms_max and Funds(spec.budget_usd, float(spent or 0.0), reserved).pays(reserved_usd)
