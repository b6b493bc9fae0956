"""The values of a store that was restored from a backup: when, and which VMs it does not know."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore of the store from a backup.

    Attributes:
        at: When.
        backup_at: Time of the backup: what was recorded later is lost.
        looked_at: When the clouds' lists were last held against the store; None if never since.
    """

    at: datetime
    backup_at: datetime
    looked_at: datetime | None


@dataclass(frozen=True, slots=True)
class QuarantinedVm:
    """A VM that a cloud lists with this installation's tag, and the restored store does not know.

    It may train a job that was begun after the backup, so it is ended only when a user says so.

    Attributes:
        vm: Its type.
        job_id: Id of its job, by its tag; empty if it has none.
        kept_by: The user who has decided that it stays; None as long as nobody has.
    """

    provider: str
    region: str
    instance_id: str
    vm: str
    zone: str
    job_id: str
    launched_at: datetime | None
    kept_by: str | None = None

    @property
    def key(self) -> str:
        """Names it among the VMs of all clouds, as `Leftover.key`."""
        return f"{self.provider}/{self.region}/{self.instance_id}"
