"""What is wanted of a cloud, what was asked of it, and what it has come to: the values of provisioning.

An **intent** is written down before a VM is asked for, and lives until it is known that its VM does not::

    PLAN ──launch answered, or seen in a listing──> UP ──not wanted any more──> DELETING ──seen gone──> GONE
      │                                              └──────────seen gone─────────────────────────────────^
      ├──asked for, not wanted any more──> DELETING                                                       │
      └──a definite no, or never asked for────────────────────────────────────────────────────────────────┘

No state is ever left backwards, and an instance id, once known, never changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from scavenger.domain.vm import VmRequest

__all__ = [
    "Desired",
    "Ending",
    "Fence",
    "Intent",
    "IntentState",
    "Lease",
    "Past",
    "Place",
    "Situation",
    "Wish",
]

IntentState = Literal["PLAN", "UP", "DELETING", "GONE"]
"""`PLAN`: nobody knows of a VM. `UP`: there is one. `DELETING`: it is to end. `GONE`: there is none any more."""

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
"""Why an intent ends; empty while it does not. The last three: its launch was refused."""


@dataclass(frozen=True, slots=True)
class Place:
    """One way to have a VM, with its price.

    Raises:
        ValueError: If the price is not a positive number: an unknown price is never taken for 0.
    """

    vm: str
    zone: str
    spot: bool
    price_usd_per_hour: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.price_usd_per_hour) and self.price_usd_per_hour > 0):
            raise ValueError(f"{self.vm} in {self.zone} has no price: {self.price_usd_per_hour}")

    @property
    def key(self) -> tuple[str, str, bool]:
        """What it is, whatever it costs."""
        return self.vm, self.zone, self.spot

    def __str__(self) -> str:
        return f"{self.vm}{' (spot)' if self.spot else ''} in {self.zone}"


@dataclass(frozen=True, slots=True)
class Wish:
    """One VM is wanted in a slot, of this generation or a later one: raise it to have the VM replaced.

    Attributes:
        places: Where and what it may be, in the order to try; none: those of the job.
    """

    slot: int
    generation: int = 0
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Desired:
    """What one job wants of one region of one cloud.

    Attributes:
        wishes: One per slot.
        places: Where and what its VMs may be, in the order to try, unless their wish says so.
        vms_max: Never more VMs than that, those included that are still to end.
        budget_usd: What its VMs may cost in all, past ones included; infinite where there is no limit.
        drain_s: What the job needs to save itself; reserved for each VM beside what it takes to end it.
        run_max_s, user_data, image, disk_gib, labels: As in `VmRequest`.
        boot_key: From which the keys are derived that VMs join with, once each; whoever acts for the region needs it,
            so it is kept as long as the job wants VMs. Hexadecimal.
        attempt: Raised when the job is resumed: neither VMs that died in an earlier attempt nor a budget that was
            used up then are held against it.
    """

    job_id: str
    provider: str
    region: str
    wishes: tuple[Wish, ...]
    places: tuple[Place, ...]
    vms_max: int
    budget_usd: float
    run_max_s: float
    drain_s: float = 60.0
    user_data: str = ""
    image: str = ""
    disk_gib: int = 20
    labels: tuple[tuple[str, str], ...] = field(default=())
    boot_key: str = field(default="", repr=False)
    attempt: int = 1

    def places_of(self, wish: Wish) -> tuple[Place, ...]:
        """Where and what the VM of a wish may be."""
        return wish.places or self.places

    @property
    def all_places(self) -> tuple[Place, ...]:
        """Those of the job and of every wish, each once."""
        return tuple(dict.fromkeys((*self.places, *(one for wish in self.wishes for one in wish.places))))

    def __post_init__(self) -> None:
        slots = [wish.slot for wish in self.wishes]
        if len(set(slots)) != len(slots):
            raise ValueError(f"a slot is wished for twice: {slots}")
        if not self.places and not all(wish.places for wish in self.wishes):
            raise ValueError("VMs are wished for, but no place to have them is named")
        if self.vms_max < len(slots):
            raise ValueError(f"{len(slots)} VMs are wished for, and at most {self.vms_max} allowed")
        if math.isnan(self.budget_usd) or self.budget_usd < 0:
            raise ValueError(f"no budget: {self.budget_usd}")
        if not (self.run_max_s > 0 and self.drain_s >= 0):
            raise ValueError(f"a VM that runs {self.run_max_s} s and is drained in {self.drain_s} s")


@dataclass(frozen=True, slots=True)
class Intent:
    """That a VM is to be, or was; see the module for its states.

    Attributes:
        id: A UUID as text: the launch's idempotency token and the VM's tag; `request.token` is the same.
        asked: A launch may have been accepted.
        instance_id: Empty until known; never changed after that.
        reserved_usd: What it may cost from the decision to end it until it has ended, set aside when it was written.
        acks: How often its VM was heard of by the job; 0: it has not joined.
        billed_s, spent_usd: Counted so far; replaced by the cloud's own times when it has ended.
        charged_at: Up to when they are counted, by this side's clock.
        launched_at, ended_at: By the cloud's clock.
        attempt: See `Desired`.
        reason: The ending in words.
        created_at, last_ack_at: By this side's clock, for people: nothing is decided by them.
    """

    id: str
    job_id: str
    slot: int
    generation: int
    provider: str
    region: str
    request: VmRequest
    price_usd_per_hour: float
    reserved_usd: float
    attempt: int = 1
    state: IntentState = "PLAN"
    asked: bool = True
    instance_id: str = ""
    acks: int = 0
    billed_s: float = 0.0
    spent_usd: float = 0.0
    charged_at: datetime | None = None
    launched_at: datetime | None = None
    ended_at: datetime | None = None
    ending: Ending = ""
    reason: str = ""
    created_at: datetime | None = None
    last_ack_at: datetime | None = None

    @property
    def place(self) -> Place:
        """Where it is asked for."""
        return Place(self.request.vm, self.request.zone, self.request.spot, self.price_usd_per_hour)

    def __str__(self) -> str:
        name = self.instance_id or f"the VM of intent {self.id}"
        return f"{name} ({self.request.vm} in {self.request.zone}, job {self.job_id[:8]} slot {self.slot})"


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of a job beside its living intents.

    Attributes:
        generations: The last one of each slot, over all its intents.
        spent_usd: By intents that have ended; of those in other regions, with what is reserved for them.
        health: Of the latest VMs of this attempt, the newest first: whether each joined; those that still may are
            left out.
        pulse: Changes whenever the process that drives the job says that it lives.
        drained: VMs of this attempt were ended because the budget was used up.
    """

    generations: Mapping[int, int] = field(default_factory=dict)
    spent_usd: float = 0.0
    health: tuple[bool, ...] = ()
    pulse: str = ""
    drained: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """What the store says of one region of one cloud, in one moment.

    Attributes:
        desired: Of jobs that have not ended.
        intents: All that are not `GONE`.
        ended: Those of the ids that were asked about whose intents are `GONE`.
        past: Of every job in `desired` or `intents`.
    """

    desired: tuple[Desired, ...]
    intents: tuple[Intent, ...]
    ended: frozenset[str]
    past: Mapping[str, Past]


@dataclass(frozen=True, slots=True)
class Lease:
    """Who acts; it is told alive by `beats`, which its holder raises, not by any clock.

    Attributes:
        holder: Empty: given back.
        token: Raised with every change of holder.
    """

    name: str
    holder: str
    token: int
    beats: int


@dataclass(frozen=True, slots=True)
class Fence:
    """Shown with every write: one with an older token than the lease has changes nothing."""

    name: str
    token: int
