"""The pools of a server: tables `[pool.NAME]` of the settings file, or of a file for `scavenger serve --pool`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from scavenger.domain.forms import Duration, FrozenModel, Money, VmName, fault
from scavenger.domain.pool import MACHINE, PolicyName, Pool, PoolVms, UserPart
from scavenger.errors import ConfigurationError

PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")]


class UserPartSettings(FrozenModel):
    """What a user has of a pool."""

    share: float = Field(default=1.0, gt=0, description="Part in relation to others, for policy: fair.")
    most: int | None = Field(default=None, ge=1, description="Most slots of all jobs of the user.")


class PoolSettings(FrozenModel):
    """A pool of slots on this machine, of VMs that are rented for its jobs, of hosts, or of pods for ElasticJobs."""

    slots: int | None = Field(
        default=None, ge=1, le=100_000, description="Workers at once; else one for each processor."
    )
    policy: PolicyName = Field(default="worth", description="Who gets how many slots.")
    users: dict[str, UserPartSettings] = Field(default={}, description="Users with other parts, by name.")
    starved: Duration = Field(
        default=3600.0, description="A job that has waited for so long goes before all others."
    )
    infra: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,40}/[a-z0-9-]{1,60}$")] | None = Field(
        default=None,
        description="Cloud and region whose VMs are rented for its jobs, or ssh/GROUP of hosts; each one slot.",
    )
    nodes: dict[str, str] | None = Field(
        default=None,
        description="For ElasticJobs: labels of their cluster's nodes, with as many slots as pods of `vm` fit.",
    )
    vm: VmName | None = Field(
        default=None, description="With infra: their type; with nodes: the size of pods."
    )
    spot: bool = Field(default=False, description="With infra: whether workers have spot VMs.")
    min: int = Field(
        default=0, ge=0, le=100_000, description="With infra: VMs that stay, once rented, without a job."
    )
    max: int | None = Field(default=None, ge=1, le=100_000, description="With infra: VMs at most.")
    idle_duration: Duration | None = Field(
        default=None, description="With infra: time that a VM waits for the next job; else that of a start."
    )
    budget: Money | None = Field(
        default=None, description="With infra: most that its VMs may cost in a calendar month (UTC)."
    )
    hour: Money | None = Field(
        default=None,
        description="With infra: what it is worth that a job ends an hour sooner; else what it asked for, in an hour.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.infra is None:
            rented = ("spot", "min", "max", "idle_duration", "budget", "hour")
            names = rented if self.nodes is not None else ("vm", *rented)
            given = [name for name in names if name in self.model_fields_set]
            if given:
                raise fault("is for VMs that are rented, and needs infra, such as gcp/us-central1", given[0])
            if self.nodes is not None and self.vm is None:
                raise fault("must be given with nodes: the size of the pods, such as 4cpu-16gib", "vm")
            return self
        if self.nodes is not None:
            raise fault("is for nodes that a cluster has; VMs that are rented have infra alone", "nodes")
        if (self.vm is None) != (self.max is None):
            raise fault(f"must be given, for VMs of {self.infra}", "max" if self.vm else "vm")
        if self.slots is not None:
            raise fault("is for this machine; of rented VMs, say max", "slots")
        if self.max is not None and self.min > self.max:
            raise fault(f"is above max, {self.max}", "min")
        return self


def pool_named(name: str, settings: PoolSettings, slots: int, vms: PoolVms | None = None) -> Pool:
    """A pool as its settings say, with so many slots."""
    users = {user: UserPart(part.share, part.most) for user, part in settings.users.items()}
    return Pool(name, slots, settings.policy, users, settings.starved, vms=vms)


def pools_of(
    settings: Mapping[str, PoolSettings],
    processors: int,
    rented: Callable[[PoolSettings], tuple[PoolVms, int]],
) -> dict[str, Pool]:
    """The pools of a server: those that are named, and that of jobs with `infra: local`.

    Without settings of its own, a job has the latter as a whole, so that none disturbs another's measurements.

    Args:
        settings: Of the pools, by name.
        processors: Of this machine.
        rented: What is rented by the settings of a pool with `infra`, and how many there may be.

    Raises:
        ConfigurationError: Of VMs that are to be rented no price is known; there are no such hosts.
    """
    named = {}
    for name, one in settings.items():
        if one.nodes is not None:
            raise ConfigurationError(f"pool.{name}.nodes is for ElasticJobs, whose operator shares them out")
        if one.infra is None:
            named[name] = pool_named(name, one, one.slots or processors)
            continue
        try:
            vms, most = rented(one)
        except ConfigurationError as error:
            raise ConfigurationError(f"pool.{name}: {error}") from error
        named[name] = pool_named(name, one, most, vms)
    return {MACHINE: Pool(MACHINE, processors, "fifo", whole=True), **named}
