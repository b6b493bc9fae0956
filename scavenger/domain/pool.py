"""A pool as it is on record: what it is, who has how many of its slots, and how its jobs stand.

A job of a pool is a submission. Three numbers of slots are on record of each, since a change of them takes time:

| number | meaning |
|---|---|
| slots | what it shall have: 0 while it waits, or is to be paused |
| told | what it may have by the last that it was told, or was begun with |
| counts | what nobody else may have: it is above `told` until the job has answered and its processes are gone |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, get_args

import msgspec

POOL = "pool"
"""Provider of `infra: pool/NAME`."""
MACHINE = "local"
"""The pool of jobs with `infra: local`, which is there without any settings."""

ANOTHERS = "another user's"
"""The name of a job for who may not see it."""

PolicyName = Literal[
    "fifo", "even", "srtf", "fair", "throughput", "tiresias", "elastic-tiresias", "goodput", "worth"
]
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)

StandingState = Literal["waiting", "starting", "searching", "training", "changing", "pausing", "ending"]
"""`waiting` for slots; `starting` its first workers; `searching` for its best size; `training`; `changing` its number
of workers; `pausing`: it saves, and gives all slots back; `ending`: its training is over."""


@dataclass(frozen=True, slots=True)
class UserPart:
    """What a user has of a pool.

    Attributes:
        share: His part in relation to those of others, above 0, for the policy `fair`.
        most: Most slots of all his jobs together; None for no limit.
    """

    share: float = 1.0
    most: int | None = None


NodeState = Literal["open", "draining", "lost", "taken"]
"""`open` to shares; `draining`: jobs leave it, and it gets none; `lost`: it is not reached; `taken`: something else
than the pool's jobs has it."""


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A machine of a pool, with its name.

    Attributes:
        type: Of its hardware; nodes of one type can stand for each other.
        slots: Of the pool that it is.
        cpus: Its processors.
        since: When it became what its state says.
        spot: Whether it may be taken back.
        per_slot: Workers on each of its slots: of a host or VM, one for each GPU.
    """

    name: str
    type: str
    slots: int
    cpus: int
    usd_per_hour: float
    state: NodeState
    since: datetime | None
    spot: bool = False
    per_slot: int = 1


@dataclass(frozen=True, slots=True)
class PoolVms:
    """VMs that are rented for the jobs of a pool, or hosts that one has, each one slot.

    Attributes:
        infra: Where, such as `gcp/us-central1` or `ssh/lab`.
        vm: Their type; empty for hosts, which may be of several.
        spot: Whether workers have spot VMs.
        usd_per_hour: Price of one, with its disk and address; of the dearest host.
        budget_usd: What all of them may cost in a calendar month, in UTC; None for no limit.
        job_usd_per_hour: What it is worth that a job ends an hour sooner; None for what the slots that it asked for
            cost in it.
        least: So many stay, once jobs have rented them, however long they are idle.
        idle_s: A VM without a job is kept for so long; None for as long as a VM takes to start.
        per_slot: Workers on each VM, one for each GPU; what hosts have is seen of them.
    """

    infra: str
    vm: str
    spot: bool
    usd_per_hour: float
    budget_usd: float | None = None
    job_usd_per_hour: float | None = None
    least: int = 0
    idle_s: float | None = None
    per_slot: int = 1

    @property
    def owned(self) -> bool:
        """Whether they are hosts that one has."""
        return not self.vm


@dataclass(frozen=True, slots=True)
class Pool:
    """What a pool is.

    Attributes:
        slots: Workers that all its jobs may have together; VMs, where these are rented; pods; hosts, reached or not.
        policy: See `scavenger.scheduler.jobs.policy_table`.
        users: Parts of those who have others than `UserPart()`.
        starved_s: A wait after which a job goes before all others; None for never.
        whole: Whether each job has all of it, with as many workers as it chooses, and none is stopped for another.
        vms: What is rented for its jobs; None for slots of this machine, or for pods.
        per_pod: Workers on each slot that is a pod, one for each GPU.
    """

    name: str
    slots: int
    policy: str = "worth"
    users: Mapping[str, UserPart] = field(default_factory=dict)
    starved_s: float | None = None
    whole: bool = False
    vms: PoolVms | None = None
    per_pod: int = 1

    @property
    def per_slot(self) -> int:
        """Workers on each slot, whatever it is; what hosts have is seen of them."""
        return self.per_pod if self.vms is None else self.vms.per_slot


def differing(mine: Mapping[str, Pool], theirs: Mapping[str, Pool]) -> str:
    """What differs between the pools of two servers of one machine, in words; empty if nothing does.

    A pool that each job has as a whole is the same with any number of slots.
    """
    for name in sorted({*mine, *theirs}):
        one, other = mine.get(name), theirs.get(name)
        if one is None or other is None:
            return f"pool {name} is {'there alone' if one is None else 'not there'}"
        if one.whole and other.whole:
            continue
        for field_name in ("whole", "slots", "policy", "users", "starved_s", "vms"):
            here, there = getattr(one, field_name), getattr(other, field_name)
            if here != there:
                shown = (f"{value:g} s" if isinstance(value, float) else value for value in (here, there))
                return f"pool {name}: {field_name.removesuffix('_s')} is {next(shown)} here, and {next(shown)} there"
    return ""


@dataclass(frozen=True, slots=True)
class RatePoint:
    """A point of a job's curve.

    Attributes:
        slots: Workers, whether a slot is one or, with several GPUs, has several.
        rate: Samples a second with so many, at the batch size that the job has then.
        measured: Whether it was measured with this number; else a model predicts it.
    """

    slots: int
    rate: float
    measured: bool


@dataclass(frozen=True, slots=True)
class WorkLeft:
    """What a job has still to do.

    Attributes:
        samples: Expected samples until its goal.
        log_sd: Standard deviation of their natural logarithm; 0 if the number is certain.
        whole: Those of all its work, what it has done among them; None if they are not known.
    """

    samples: float
    log_sd: float = 0.0
    whole: float | None = None


@dataclass(frozen=True, slots=True)
class JobStanding:
    """How a job stands, as its runner writes it with each renewal of its lease.

    Attributes:
        token: Of the runner's lease: what an earlier runner wrote says nothing of the processes of this one.
        held: Slots of worker processes that are there: they train, start or end; or rented VMs for them, if these are
            more. For a moment there are more than workers, while one that was lost is ended and replaced.
        obeyed: Number of the last allotment that it has answered, whether it could do as told or not.
        refusing: Why its share cannot change now; empty if it can.
        attained_slot_s: Slot-seconds that it has had, by all its runners.
        ran_s: Since it has slots, seconds; 0 while it has none.
        rate: Samples a second now; None before they are known.
        left: None if it is not known.
        change_s: Seconds of training that its last change of size cost it; None before the first.
        curve: By growing workers; empty before there is a model or a measurement.
        size: Slots of the workers that it trains with, or is to have; None for as many as are there.
        start_s: From its begin to its first step, seconds; None before it was known once.
        worker_s: From a worker's start until it can join, seconds, as its workers so far; None before the first could.
        vm: Type of the nodes that it has; empty in a pool of one type.
        others: Its curves on the other types of nodes that it has had.
    """

    token: int
    state: StandingState
    held: int = 0
    obeyed: int = 0
    refusing: str = ""
    attained_slot_s: float = 0.0
    ran_s: float = 0.0
    rate: float | None = None
    left: WorkLeft | None = None
    change_s: float | None = None
    curve: tuple[RatePoint, ...] = ()
    size: int | None = None
    start_s: float | None = None
    worker_s: float | None = None
    vm: str = ""
    others: Mapping[str, tuple[RatePoint, ...]] = field(default_factory=dict)

    def under(self, token: int | None) -> JobStanding:
        """What it says of a job whose runner has this token: of an earlier runner's processes, nothing."""
        if token == self.token:
            return self
        return replace(self, state="starting", held=0, obeyed=0, refusing="", ran_s=0.0, size=None)


@dataclass(frozen=True, slots=True)
class PoolShare:
    """The slots of one job, as decided; see the module.

    Attributes:
        since: Number of the allotment by which `told` was set.
        reason: What the next slots would bring it and who has them, in words and numbers, when `told` was set.
        level: Its queue, as its policy last said.
        promoted_slot_s: What it had attained when it was promoted last; 0 if it never was.
        at: When `told` became, or ceased to be, 0: since then it waits, or has slots. None if it never had any.
        changed: When `told` was last changed while it trained; None if it never was since it began.
        late: Why it has not done what it was told within its `limits.change`; empty if it has, or may still.
        waited_s: How long it had waited when it was begun last, by which it has its turn.
        promised: Whether it was promised to be done by its deadline, which is kept for it from then on.
        vm: Type of the nodes that it has, or had last; empty in a pool of one type.
    """

    slots: int
    told: int
    counts: int
    since: int
    reason: str = ""
    level: int = 0
    promoted_slot_s: float = 0.0
    at: datetime | None = None
    changed: datetime | None = None
    late: str = ""
    waited_s: float = 0.0
    promised: bool = False
    vm: str = ""


@dataclass(frozen=True, slots=True)
class PoolAllotment:
    """Who has how many slots of a pool, as it was decided.

    Attributes:
        pool: The pool as it was then.
        number: Grows by one with each on record.
        shares: Of all its jobs that waited or ran, by their ids.
        moves: What was done, one line each.
        nodes: The hosts of a pool that has some, as they were seen.
        drained: Names of the nodes that jobs leave, and that get no shares.
    """

    pool: Pool
    number: int
    shares: Mapping[str, PoolShare]
    moves: tuple[str, ...]
    at: datetime
    nodes: tuple[PoolNode, ...] = ()
    drained: tuple[str, ...] = ()

    def per_slot(self, vm: str) -> int:
        """Workers on a slot of a type of nodes."""
        return min((one.per_slot for one in self.nodes if one.type == vm), default=self.pool.per_slot)


def workers_of(slots: int, per_slot: int, most: int) -> int:
    """Workers of a job with so many slots: one on each GPU, but no more than its most.

    Args:
        per_slot: Workers on a slot.
        most: That the job may have.
    """
    return min(slots * per_slot, most)


def slots_for(workers: int, per_slot: int) -> int:
    """The fewest slots with room for so many workers."""
    return -(-workers // per_slot)


def document_of(value: JobStanding | PoolAllotment | Pool) -> dict[str, Any]:
    """A value as JSON types; `standing_of`, `allotment_of` and `pool_from` read it."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return document


def standing_of(document: Mapping[str, Any]) -> JobStanding:
    """Read a standing."""
    return msgspec.convert(document, JobStanding)


def allotment_of(document: Mapping[str, Any]) -> PoolAllotment:
    """Read an allotment."""
    return msgspec.convert(document, PoolAllotment)


def pool_from(document: Mapping[str, Any]) -> Pool:
    """Read what a pool is."""
    return msgspec.convert(document, Pool)


def pool_of(spec: Mapping[str, Any], *, rents: bool) -> str:
    """Name of the pool of a submitted job; empty if it runs on machines of its own.

    Args:
        spec: The validated job file as JSON.
        rents: Whether running it rents VMs.
    """
    infra = spec.get("infra") or MACHINE
    if rents or not isinstance(infra, str):
        return ""
    provider, _, name = infra.partition("/")
    return name if provider == POOL else MACHINE
