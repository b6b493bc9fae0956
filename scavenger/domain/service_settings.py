"""Limits of a server, the table `[service]` of the settings file."""

from __future__ import annotations

from pydantic import Field

from scavenger.domain.forms import FrozenModel, Money


class ServiceSettings(FrozenModel):
    """What a server that runs submitted jobs allows."""

    jobs: int = Field(default=16, ge=1, description="Most jobs at once.")
    jobs_per_user: int | None = Field(default=None, ge=1, description="Most jobs at once of one user.")
    budget: Money | None = Field(
        default=None, description="Most that all jobs of a calendar month (UTC) may cost, such as $200."
    )
    budget_per_user: Money | None = Field(
        default=None, description="Most that the jobs of one user may cost in a calendar month."
    )
    budgets: dict[str, Money] = Field(
        default_factory=dict, description="The same for single users by name, instead of budget_per_user."
    )
