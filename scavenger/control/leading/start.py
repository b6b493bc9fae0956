"""A job that is to be led by a VM or pod of its own, and what can be checked before that is rented."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from scavenger.control.jobs.prepared import PreparedJob
from scavenger.control.places.vms import RentedVms
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import money


@dataclass(frozen=True, slots=True)
class LeaderStart:
    """A job that is to be led by a VM of its own.

    Attributes:
        prepared: The job, whose place has a `leader`.
        audit, priority: See `NewSubmission`.
        recover: URL of the job's checkpoints, with which it goes on; empty for a new job.
        job_id: The job that goes on; empty for a new one.
        led_usd: What was booked of the leaders that it had before.
    """

    prepared: PreparedJob
    audit: bool = False
    priority: int = 0
    recover: str = ""
    job_id: str = ""
    led_usd: float = 0.0

    @property
    def resources(self) -> RentedVms:
        """Of the cloud."""
        assert isinstance(self.prepared.place, RentedVms)
        return self.prepared.place

    @property
    def aside_usd(self) -> float:
        """What of the budget is set aside for the leader's VM after the end of the job."""
        leader = self.prepared.place.leader
        return 0.0 if leader is None else leader.usd_afterwards(self.prepared.job.limits.leader)


def check_start(start: LeaderStart) -> None:
    """Check what can be checked before anybody is asked and anything is rented.

    Raises:
        ConfigurationError: The settings name no identity for the leader's VM, OpenSSH is not installed, the budget
            is less than what the VM may cost after the end of the job, or prices are old, see `Place.check_prices`.
    """
    start.resources.check_prices()
    _ = start.resources.leader_identity
    budget, aside_usd = start.prepared.job.constraints.budget, start.aside_usd
    if budget is not None and budget <= aside_usd:
        raise ConfigurationError(
            f"the leader's VM may cost {money(aside_usd)} after the end of the job (limits.leader), which leaves "
            f"nothing of {money(budget)}",
            key="constraints.budget",
        )
    if start.prepared.job.infra.capabilities.pods:
        return
    if shutil.which("ssh") is None:
        raise ConfigurationError(
            "a leader's VM is reached by OpenSSH: install its client (ssh)", key="leader"
        )
