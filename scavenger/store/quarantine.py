"""The store's restores from backups, and the VMs that it does not know since."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from scavenger.domain.restore import QuarantinedVm, Restore
from scavenger.domain.vm import VmSeen
from scavenger.errors import NotFoundError
from scavenger.store.base import Part
from scavenger.store.schema import LeaseRow, QuarantineRow, RestoreRow

_FIELDS = tuple(QuarantinedVm.__dataclass_fields__)


class QuarantinePart(Part):
    """The part of `Store` that tells of restores, and of VMs that are in quarantine since.

    Every method raises `StoreBusyError`, `StoreReadOnlyError` or `StoreError` where the database cannot serve it.
    """

    def last_restore(self) -> Restore | None:
        """The last restore from a backup; None if there was none."""
        with self._database.reading() as session:
            row = session.scalar(select(RestoreRow).order_by(RestoreRow.id.desc()).limit(1))
            return None if row is None else Restore(row.at, row.backup_at, row.looked_at)

    def set_quarantine(self, provider: str, region: str, vms: Sequence[VmSeen]) -> None:
        """Record the VMs of a region that the cloud lists and the store does not know, in place of earlier ones.

        Who keeps a VM stays on record.
        """
        rows = [
            QuarantineRow(
                provider=provider,
                region=region,
                instance_id=vm.instance_id,
                vm=vm.vm,
                zone=vm.zone,
                job_id=vm.tags.job_id,
                launched_at=vm.launched_at,
            )
            for vm in vms
        ]
        here = (QuarantineRow.provider == provider, QuarantineRow.region == region)
        with self._database.writing() as session:
            before = select(QuarantineRow.instance_id, QuarantineRow.kept_by).where(*here)
            kept = {row.instance_id: row.kept_by for row in session.execute(before)}
            session.execute(delete(QuarantineRow).where(*here))
            for row in rows:
                row.kept_by = kept.get(row.instance_id)
            session.add_all(rows)
            last = session.scalar(select(RestoreRow).order_by(RestoreRow.id.desc()).limit(1))
            if last is not None:
                last.looked_at = self._clock()

    def keep_quarantined(self, key: str, user: str | None) -> QuarantinedVm:
        """Record that a VM in quarantine stays, or, with None for the user, that nobody has decided so.

        Args:
            key: As of `QuarantinedVm`.
            user: Who decides.

        Raises:
            NotFoundError: No such VM is in quarantine.
        """
        provider, region, instance_id = (*key.split("/", 2), "", "")[:3]
        with self._database.writing() as session:
            row = session.get(QuarantineRow, (provider, region, instance_id))
            if row is None:
                raise NotFoundError(f"no VM {key!r} is in quarantine; `scavenger gc` shows those that are")
            row.kept_by = user
            session.flush()
            return _vm(row)

    def quarantined_vms(self) -> tuple[QuarantinedVm, ...]:
        """VMs in quarantine, as of the last look at their clouds."""
        query = select(QuarantineRow).order_by(
            QuarantineRow.provider, QuarantineRow.region, QuarantineRow.instance_id
        )
        with self._database.reading() as session:
            return tuple(map(_vm, session.scalars(query)))


def _vm(row: QuarantineRow) -> QuarantinedVm:
    return QuarantinedVm(**{name: getattr(row, name) for name in _FIELDS})


def is_restored(session: Session) -> bool:
    """Whether the store was ever restored from a backup."""
    return session.scalar(select(RestoreRow.id).limit(1)) is not None


def new_lease(session: Session, name: str) -> LeaseRow:
    """The row of a lease that was never taken; its first token is above all that were given before a restore."""
    row = LeaseRow(name=name, token=session.scalar(select(func.max(RestoreRow.token_floor))) or 0)
    session.add(row)
    return row
