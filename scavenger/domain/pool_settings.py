"""The pools of this machine: tables `[pool.NAME]` of the settings file, or of a file for `scavenger serve --pool`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, StringConstraints

from scavenger.domain.forms import Duration, FrozenModel
from scavenger.domain.pool import MACHINE, PolicyName, Pool, UserPart

PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")]


class UserPartSettings(FrozenModel):
    """What a user has of a pool."""

    share: float = Field(default=1.0, gt=0, description="Part in relation to others, for policy: fair.")
    most: int | None = Field(default=None, ge=1, description="Most slots of all jobs of the user.")


class PoolSettings(FrozenModel):
    """A pool of slots on this machine."""

    slots: int | None = Field(
        default=None, ge=1, le=100_000, description="Workers at once; else one for each processor."
    )
    policy: PolicyName = Field(default="worth", description="Who gets how many slots.")
    users: dict[str, UserPartSettings] = Field(default={}, description="Users with other parts, by name.")
    starved: Duration = Field(
        default=3600.0, description="A job that has waited for so long goes before all others."
    )


def pools_of(settings: Mapping[str, PoolSettings], processors: int) -> dict[str, Pool]:
    """The pools of a server: those that are named, and that of jobs with `infra: local`.

    Without settings of its own, a job has the latter as a whole, so that none disturbs another's measurements.

    Args:
        settings: Of the pools, by name.
        processors: Of this machine.
    """
    named = {
        name: Pool(
            name,
            processors if one.slots is None else one.slots,
            one.policy,
            {user: UserPart(part.share, part.most) for user, part in one.users.items()},
            one.starved,
        )
        for name, one in settings.items()
    }
    return {MACHINE: Pool(MACHINE, processors, "fifo", whole=True), **named}
