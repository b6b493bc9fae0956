"""Values of the cloud interface: VM requests, what VMs install, VMs as a cloud lists them, quotas and notices."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

VmState = Literal["pending", "running", "stopping", "gone"]
"""`pending`: accepted, not yet up. `stopping`: ending, may still be paid for. `gone`: not paid for any more."""


@dataclass(frozen=True, slots=True)
class VmTags:
    """The tags of a VM, by which it is recognised; empty or -1 where it has none.

    Attributes:
        owner: Tag of this installation, which distinguishes its VMs from others.
        token: The intent's id, a UUID as text: idempotency token of the launch.
        job_id, slot, generation: The job and slot of the VM; its replacement has the next generation.
    """

    owner: str = ""
    token: str = ""
    job_id: str = ""
    slot: int = -1
    generation: int = -1


@dataclass(frozen=True, slots=True)
class VmSettings:
    """Network and identity of VMs, by the cloud's own names; empty for the cloud's defaults.

    Attributes:
        network: VPC (AWS) or network (Google Cloud).
        subnets: At most one per zone (AWS), or one (Google Cloud).
        firewalls: Security groups (AWS) or network tags (Google Cloud).
        public_address: Whether VMs have an address in the internet; None: as the subnet has it.
        identity: Instance profile (AWS) or service account (Google Cloud).
        kms_key: Key that encrypts the disks.
        proxy: URL of an HTTP proxy for what VMs load.
        logins_from: Networks from which alone SSH reaches them, as CIDR; empty for VMs that nobody logs in to.
    """

    network: str = ""
    subnets: tuple[str, ...] = ()
    firewalls: tuple[str, ...] = ()
    public_address: bool | None = None
    identity: str = ""
    kms_key: str = ""
    proxy: str = ""
    logins_from: tuple[str, ...] = ()


DEFAULT_SETTINGS = VmSettings()


@dataclass(frozen=True, slots=True)
class LaunchTemplate:
    """The launch parameters that all VMs of a job share.

    Attributes:
        run_max_s: Longest run time of the VM, even if renewed; enforced by the platform if it can, and by the VM.
        user_data: User data for cloud-init; contains no long-lived secret.
        image: The cloud's name of the boot image; empty for the default.
        disk_gib: Size of the boot disk.
        labels: Additional tags.
        settings: Network and identity.
        avoided: Names of machines, such as the nodes of a cluster, on which VMs are only if no other could hold them;
            for providers that tell a VM the name of its machine.
        drained: Names of machines on which no VM is launched.
    """

    run_max_s: float
    user_data: str = ""
    image: str = ""
    disk_gib: int = 20
    labels: tuple[tuple[str, str], ...] = field(default=())
    settings: VmSettings = DEFAULT_SETTINGS
    avoided: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()

    @property
    def run_max_tag(self) -> str:
        """The tag by which others can tell that a VM should have ended: whole seconds; 0 if it has no limit."""
        return str(math.ceil(self.run_max_s)) if math.isfinite(self.run_max_s) else "0"


@dataclass(frozen=True, slots=True)
class VmPackage:
    """What a VM installs, unless its image has it: the leader's own wheel, or a requirement that the user has named.

    Attributes:
        wheel: File name of the wheel, which the VM fetches from its leader.
        sha256: Digest of the wheel, hexadecimal.
        extras: Extras of the wheel whose requirements are installed, too.
        tools: Requirements, with their versions, of the program that fetches the wheel.
        requirement: A requirement as pip reads it, which is installed from the package index instead; empty for none.
    """

    wheel: str = ""
    sha256: str = ""
    extras: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    requirement: str = ""

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.requirement or self.wheel


@dataclass(frozen=True, slots=True)
class VmRequest:
    """The parameters of a VM launch; two launches with the same token are the same launch.

    Attributes:
        zone: The zone; a launch tries only one.
        life_s: The VM ends itself so long after its start, or after its life was last renewed.
        usd_per_hour_max: What a spot VM may cost in an hour, where its cloud keeps to that: it takes the VM back before
            it asks more. None: whatever it asks.
    """

    tags: VmTags
    vm: str
    zone: str
    spot: bool
    template: LaunchTemplate
    life_s: float = 900.0
    usd_per_hour_max: float | None = None


@dataclass(frozen=True, slots=True)
class OwnedMachine:
    """A machine that one has, and who has it now.

    Attributes:
        vm: Its type.
        reached: Whether it answers.
        lost: Whether it has not answered for so long that what was there counts as ended.
        held: Whether anything has it.
        instance_id: Of the VM there, which ends with the token of its launch; empty if it is none of this account.
    """

    name: str
    vm: str
    cpus: int
    gpus: int
    usd_per_hour: float
    reached: bool
    lost: bool
    held: bool
    instance_id: str


@dataclass(frozen=True, slots=True)
class VmSeen:
    """A VM as the cloud lists it.

    Attributes:
        instance_id: The cloud's id, never reused.
        address: Address of its first network interface; empty if it has none yet.
        public_address: Its address in the internet; empty if it has none, or the cloud's adapter does not read it.
        launched_at, ended_at: Start and end, by the cloud's clock; None if it does not report them.
        reason: Why it is stopping or gone, in the cloud's words; empty if it does not report one.
        run_max_s: Time after its launch at which it ends itself in any case, as its tags say; 0 if they do not.
        queued: Whether its launch is accepted and waits in a queue: it is not there yet, and nothing is paid for it.
        disk_after_s: For how long its disk was there after its end.
    """

    instance_id: str
    vm: str
    zone: str
    spot: bool
    state: VmState
    tags: VmTags = VmTags()
    address: str = ""
    public_address: str = ""
    launched_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str = ""
    run_max_s: int = 0
    queued: bool = False
    disk_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit of the account in a region; `limit` and `used` in the quota's own unit (vCPUs, VMs, GPUs).

    Attributes:
        spot_too: Whether spot VMs count against one of VMs on demand, as they have none of their own.
    """

    name: str
    region: str
    limit: float
    used: float
    spot_too: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice from the cloud that a VM will end.

    Attributes:
        kind: `preemption`: it ends at `at`. `rebalance`: it is at risk, no time is set.
        at: Time of the end; None if none is set.
    """

    kind: Literal["preemption", "rebalance"]
    at: datetime | None = None
