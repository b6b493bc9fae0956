"""The values of provisioning: the VMs that jobs want, the launches that were requested, and their states.

An **intent** is stored before a VM is requested, and kept until its VM is known to be gone::

    PLAN ──launch answered, or seen in a listing──> UP ──not wanted any more──> DELETING ──seen gone──> GONE
      │                                              └──────────seen gone─────────────────────────────────^
      ├──asked for, not wanted any more──> DELETING                                                       │
      └──a definite no, or never asked for────────────────────────────────────────────────────────────────┘

States only move forwards, and an instance id, once known, never changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from scavenger.domain.cost import VmExtras
from scavenger.domain.vm import LaunchTemplate, VmRequest

IntentState = Literal["PLAN", "UP", "DELETING", "GONE"]
"""`PLAN`: no VM is known. `UP`: the VM exists. `DELETING`: it is to end. `GONE`: it no longer exists."""

Ending = Literal[
    "",
    "unwanted",
    "budget",
    "never_joined",
    "silent",
    "died",
    "preempted",
    "unanswered",
    "stock_out",
    "quota",
    "refused",
]
"""Why an intent ends; empty while it is wanted. The last three: its launch was refused."""


HEARD_LATE_S = 60.0
"""By how much a VM may have been heard, and renewed, after the last record of that."""


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """A placement option: a VM type in a zone, on-demand or spot, with its price, and that of what a VM has beside it.

    Raises:
        ValueError: If the price is no number of at least 0; an unknown price is never taken for 0.
    """

    vm: str
    zone: str
    spot: bool
    price_usd_per_hour: float
    extras: VmExtras = field(default_factory=VmExtras)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.price_usd_per_hour) and self.price_usd_per_hour >= 0):
            raise ValueError(f"{self.vm} in {self.zone} has no price: {self.price_usd_per_hour}")

    @property
    def usd_per_hour(self) -> float:
        """Price with the extras."""
        return self.price_usd_per_hour + self.extras.usd_per_hour

    @property
    def key(self) -> tuple[str, str, bool]:
        """Identity of the placement option, without its price: VM type, zone and spot."""
        return self.vm, self.zone, self.spot

    def __str__(self) -> str:
        return f"{self.vm}{' (spot)' if self.spot else ''} in {self.zone}"


@dataclass(frozen=True, slots=True)
class VmSlot:
    """A slot in which one VM is wanted, of this generation or a later one; a higher generation replaces the VM.

    Attributes:
        options: Placement options in the order to try; if empty, those of the fleet.
    """

    number: int
    generation: int = 0
    options: tuple[PlacementOption, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """The VMs that one job wants in one region of one cloud.

    Attributes:
        slots: The wanted VMs, one per slot.
        options: Placement options in the order to try, for slots that have none of their own.
        template: The launch parameters that all its VMs share.
        vms_max: Largest number of VMs at any time, including those that are being deleted.
        budget_usd: Limit on the cost of all its VMs, past ones included; infinite if there is no limit.
        drain_s: Time that the job needs to save its state; reserved for each VM in addition to the time to end it.
        boot_key: Key from which the single-use join keys of the VMs are derived, hexadecimal. Every process that
            launches VMs in the region needs it, so it is stored as long as the job wants VMs.
        register_s: Time within which a VM has to join, else it is ended; never more than the reconciler's own limit.
        launches: Whether VMs are launched for it; False: it has only those that it takes over from other jobs.
        attempt: Incremented when the job is resumed: VMs that died and budget that ran out in an earlier attempt
            then no longer count.
        pool: Of rented VMs, that the job is in; empty if it is in none.
        pool_vms_max: No VM is launched for it while so many of the pool's jobs are there, those that end among them.

    Raises:
        ValueError: If a slot occurs twice or has no placement option, or a limit is impossible.
    """

    job_id: str
    provider: str
    region: str
    slots: tuple[VmSlot, ...]
    options: tuple[PlacementOption, ...]
    template: LaunchTemplate
    vms_max: int
    budget_usd: float
    drain_s: float = 60.0
    boot_key: str = field(default="", repr=False)
    attempt: int = 1
    register_s: float = 600.0
    launches: bool = True
    pool: str = ""
    pool_vms_max: int = 0

    def options_of(self, slot: VmSlot) -> tuple[PlacementOption, ...]:
        """Placement options for the VM of a slot."""
        return slot.options or self.options

    @property
    def all_options(self) -> tuple[PlacementOption, ...]:
        """Placement options of the fleet and of every slot, without duplicates."""
        return tuple(dict.fromkeys((*self.options, *(one for slot in self.slots for one in slot.options))))

    def __post_init__(self) -> None:
        numbers = [slot.number for slot in self.slots]
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"a slot occurs twice: {numbers}")
        if self.launches and not self.options and not all(slot.options for slot in self.slots):
            raise ValueError("VMs are wanted, but no placement option is given")
        if self.vms_max < len(numbers):
            raise ValueError(f"{len(numbers)} VMs are wanted, and at most {self.vms_max} allowed")
        if math.isnan(self.budget_usd) or self.budget_usd < 0:
            raise ValueError(f"no budget: {self.budget_usd}")
        if not self.register_s > 0:
            raise ValueError(f"a VM cannot join within {self.register_s} s")
        if not (self.template.run_max_s > 0 and self.drain_s >= 0):
            raise ValueError(f"a VM that runs {self.template.run_max_s} s and is drained in {self.drain_s} s")


@dataclass(frozen=True, slots=True)
class VmCharges:
    """Price, reserve and cost so far of one VM.

    Attributes:
        reserved_usd: Reserved when the intent was stored: the cost from the decision to end the VM to its end.
        billed_s, spent_usd: Counted so far, without its extras; corrected by the cloud's own timestamps when the VM
            has ended.
        charged_at: Time up to which they are counted, by Scavenger's clock.
        extras: What it has beside its type.
        disk_after_s: For how long its disk was paid for after the VM had ended.
    """

    price_usd_per_hour: float
    reserved_usd: float
    billed_s: float = 0.0
    spent_usd: float = 0.0
    charged_at: datetime | None = None
    extras: VmExtras = field(default_factory=VmExtras)
    disk_after_s: float = 0.0

    @property
    def usd_per_hour(self) -> float:
        """Price with the extras."""
        return self.price_usd_per_hour + self.extras.usd_per_hour

    @property
    def cost_usd(self) -> float:
        """What is counted so far, with the extras."""
        after_usd = self.disk_after_s / 3600.0 * (self.extras.disk_usd_per_hour or 0.0)
        return self.spent_usd + self.billed_s / 3600.0 * self.extras.usd_per_hour + after_usd

    def plus(self, seconds: float, usd: float) -> VmCharges:
        """These charges with more billed time and cost."""
        return replace(self, billed_s=self.billed_s + seconds, spent_usd=self.spent_usd + usd)


@dataclass(frozen=True, slots=True)
class VmTimes:
    """When a VM was requested, ran, and was last heard of.

    Attributes:
        created_at, last_ack_at: Of its intent, and of its latest heartbeat, by Scavenger's clock; for display only:
            no decision depends on them.
        joined_at: Of its first heartbeat, by Scavenger's clock; tells the usual boot time to later jobs.
        launched_at, ended_at: Start and end of the VM, by the cloud's clock; where it went over from one job to
            another, of the part that this one had of it.
        taken_at: When it went over to this job, by Scavenger's clock; None if it was launched for it.
    """

    created_at: datetime | None = None
    launched_at: datetime | None = None
    ended_at: datetime | None = None
    last_ack_at: datetime | None = None
    joined_at: datetime | None = None
    taken_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Handover:
    """A VM is to go over from one job to another.

    Attributes:
        slot: Its slot of the second one, at least of this generation.
        attempt: That of the second job.
        reserved_usd: What the second job sets aside for its end.
    """

    intent_id: str
    from_job: str
    to_job: str
    slot: int
    attempt: int
    reserved_usd: float
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Intent:
    """The record of one VM from before its launch until after its end; see the module for the states.

    Attributes:
        request: The launch; its tags identify the intent.
        asked: Whether a launch was requested and may have been accepted.
        instance_id: Empty until known; never changed after that.
        acks: How many heartbeats of its VM the job has received; 0: it has not joined.
        attempt: See `FleetSpec`.
        reason: Why the VM ended, as text.
    """

    request: VmRequest
    provider: str
    region: str
    charges: VmCharges
    attempt: int = 1
    state: IntentState = "PLAN"
    asked: bool = True
    instance_id: str = ""
    acks: int = 0
    times: VmTimes = VmTimes()
    ending: Ending = ""
    reason: str = ""

    @property
    def id(self) -> str:
        """A UUID as text: the launch's idempotency token and the VM's tag."""
        return self.request.tags.token

    def is_on(self, machines: Collection[str]) -> bool:
        """Whether its VM is one of these machines: by its id, or by the name of its host, which is before a point."""
        return self.instance_id in machines or self.instance_id.rpartition(".")[0] in machines

    @property
    def job_id(self) -> str:
        """The job that wants the VM."""
        return self.request.tags.job_id

    @property
    def slot(self) -> int:
        """Number of the job's slot that the VM fills."""
        return self.request.tags.slot

    @property
    def generation(self) -> int:
        """Number of the VM among those of its slot."""
        return self.request.tags.generation

    @property
    def option(self) -> PlacementOption:
        """The placement option that was requested."""
        request = self.request
        charges = self.charges
        return PlacementOption(
            request.vm, request.zone, request.spot, charges.price_usd_per_hour, charges.extras
        )

    @property
    def ends_itself_by(self) -> datetime | None:
        """When its VM has ended itself at the latest, if nothing more is heard of it; None if there are no times."""
        times = self.times
        known = [at for at in (times.created_at, times.launched_at, times.last_ack_at) if at is not None]
        return max(known) + timedelta(seconds=self.request.life_s + HEARD_LATE_S) if known else None

    @property
    def uncharged_s_max(self) -> float:
        """For how long its VM may have run since it was charged last, if nothing was heard of it."""
        by, charged_at = self.ends_itself_by, self.charges.charged_at
        return math.inf if by is None or charged_at is None else max(0.0, (by - charged_at).total_seconds())

    def __str__(self) -> str:
        name = self.instance_id or f"the VM of intent {self.id}"
        return f"{name} ({self.request.vm} in {self.request.zone}, job {self.job_id[:8]} slot {self.slot})"


@dataclass(frozen=True, slots=True)
class IntentHistory:
    """What is known of a job in addition to its live intents.

    Attributes:
        generations: The last generation of each slot, over all intents of the job.
        spent_usd: Cost of intents that have ended, and of those in other regions with their reserved amounts.
        health: For the latest VMs of this attempt, newest first: whether each joined; those that still may join are
            left out.
        pulse: A value that changes with every heartbeat of the process that runs the job.
        drained: Whether VMs of this attempt were ended because the budget was used up.
    """

    generations: Mapping[int, int] = field(default_factory=dict)
    spent_usd: float = 0.0
    health: tuple[bool, ...] = ()
    pulse: str = ""
    drained: bool = False


@dataclass(frozen=True, slots=True)
class RegionSnapshot:
    """A consistent snapshot of the store for one region of one cloud.

    Attributes:
        fleets: Wanted VMs of jobs that have not ended.
        intents: All intents that are not `GONE`.
        ended: The requested ids whose intents are `GONE`.
        past: History of every job in `fleets` or `intents`.
        restored: Whether the store was restored from a backup: VMs that it does not know may be of use.
    """

    fleets: tuple[FleetSpec, ...]
    intents: tuple[Intent, ...]
    ended: frozenset[str]
    past: Mapping[str, IntentHistory]
    restored: bool = False


@dataclass(frozen=True, slots=True)
class Fence:
    """Fencing token sent with every write: a write with a token older than the lease's is rejected."""

    name: str
    token: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease on something. Its holder shows that it is alive by incrementing `beats`; no clock is compared.

    Attributes:
        holder: Name of the holder; empty if the lease was released.
        token: Incremented with every change of holder.
    """

    name: str
    holder: str
    token: int
    beats: int

    @property
    def fence(self) -> Fence:
        """The fencing token of its holder."""
        return Fence(self.name, self.token)
