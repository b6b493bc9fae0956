"""A VM as it is asked for and as a cloud shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

__all__ = ["Notice", "Quota", "VmRequest", "VmSeen", "VmState"]

VmState = Literal["pending", "running", "stopping", "gone"]
"""`pending`: accepted, not yet up. `stopping`: on its way out, may still be paid for. `gone`: not paid for any more."""


@dataclass(frozen=True, slots=True)
class VmRequest:
    """All that a launch needs; two launches with the same token are the same launch.

    Attributes:
        token: The intent's id, a UUID as text: idempotency token and tag.
        owner: Of this installation: the tag by which its VMs are told from others'.
        job_id, slot, generation: What it is for; a slot's VM is replaced by one of the next generation.
        zone: Where; a launch tries one place.
        image: The cloud's own name of it; empty for the cloud's default.
        user_data: For cloud-init; holds no lasting secret.
        run_max_s: After that the VM ends, whoever renews it: by the platform where it has such a limit, and by itself.
        disk_gib: Of the boot disk.
        labels: More tags.
        life_s: The VM ends itself so long after its start, or after its life was last renewed.
    """

    token: str
    owner: str
    job_id: str
    slot: int
    generation: int
    vm: str
    zone: str
    spot: bool
    run_max_s: float
    user_data: str = ""
    image: str = ""
    disk_gib: int = 20
    labels: tuple[tuple[str, str], ...] = field(default=())
    life_s: float = 900.0


@dataclass(frozen=True, slots=True)
class VmSeen:
    """A VM as the cloud shows it.

    Attributes:
        instance_id: The cloud's, never given twice.
        token: That it was launched with, from its tag; empty where it has none.
        owner, job_id, slot, generation: From its tags; empty and -1 where it has none.
        address: Of its first network interface; empty where there is none yet.
        launched_at, ended_at: By the cloud's own clock; None where it does not say.
        reason: Why it is stopping or gone, in the cloud's words; empty where it does not say.
    """

    instance_id: str
    vm: str
    zone: str
    spot: bool
    state: VmState
    owner: str = ""
    token: str = ""
    job_id: str = ""
    slot: int = -1
    generation: int = -1
    address: str = ""
    launched_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of the account in a region; `limit` and `used` in the quota's own unit (vCPUs, VMs, GPUs)."""

    name: str
    region: str
    limit: float
    used: float


@dataclass(frozen=True, slots=True)
class Notice:
    """What a VM is told of its end.

    Attributes:
        kind: `preemption`: it ends at `at`. `rebalance`: it is at risk, no time is set.
        at: When; None where no time is set.
    """

    kind: Literal["preemption", "rebalance"]
    at: datetime | None = None
