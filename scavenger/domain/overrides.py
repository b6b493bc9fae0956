"""Values that a submission gives in place of those of its job file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from scavenger.domain.pool import POOL
from scavenger.errors import ConfigurationError

ObjectiveName = Literal["time", "cost", "knee"]
Strategy = Literal["auto", "reuse", "full", "partial", "extremes", "none", "universal"]


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values of the command line or of a request; None where one was not given."""

    objective: ObjectiveName | None = None
    strategy: Strategy | None = None
    budget: str | None = None
    deadline: str | None = None
    workers: str | None = None
    batch_size: str | None = None
    epochs_fixed: bool | None = None
    target: str | None = None
    pool: str | None = None

    def changes(self) -> dict[str, object]:
        """The overrides as keys and values of the job file.

        Raises:
            ConfigurationError: If sizes cannot be read; the message names the option.
        """
        # imported here, since commands that send overrides to a server need no job file
        from scavenger.domain.ranges import batch_sizes_of_text, workers_of_text

        given = {
            "objective": self.objective,
            "search.strategy": self.strategy,
            "constraints.budget": _dollars(self.budget),
            "constraints.deadline": self.deadline,
            "search.workers": sizes("--workers", self.workers, workers_of_text),
            "search.batch_size": sizes("--batch-size", self.batch_size, batch_sizes_of_text),
            "goal.epochs_fixed": self.epochs_fixed,
            **_goal(self.target),
            "infra": None if self.pool is None else f"{POOL}/{self.pool}",
        }
        return {key: value for key, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a job is resumed with in place of its own; None for its own.

    Attributes:
        budget, deadline, max_epochs: Limits of all its attempts together.
        output: Folder for what it writes, absolute or relative to the job file.
    """

    budget: str | None = None
    deadline: str | None = None
    max_epochs: int | None = None
    output: str | None = None

    def changes(self) -> dict[str, object]:
        """The limits as keys and values of the job file, read as it reads them."""
        given = {
            "constraints.budget": _dollars(self.budget),
            "constraints.deadline": self.deadline,
            "goal.max_epochs": self.max_epochs,
        }
        return {key: value for key, value in given.items() if value is not None}


UNCHANGED = Renewal()
"""A job goes on with what it was started with."""


def _goal(target: str | None) -> dict[str, object]:
    """The metric and the target of an option such as `val_accuracy=0.98`.

    Raises:
        ConfigurationError: If it is no name with a number.
    """
    if target is None:
        return {}
    metric, _, value = target.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not metric or not math.isfinite(number):
        raise ConfigurationError(f"--target must be METRIC=NUMBER such as val_accuracy=0.98, not {target}")
    return {"goal.metric": metric.strip(), "goal.target": number}


def _dollars(budget: str | None) -> str | None:
    """A budget as the job file has it: shells eat a `$`, so it may be left out."""
    return None if budget is None else f"${budget.removeprefix('$')}"


def sizes(option: str, text: str | None, read: Callable[[str], list[int]]) -> list[int] | None:
    """Read the sizes that an option gives; None if it was not given.

    Raises:
        ConfigurationError: If they cannot be read; the message names the option.
    """
    try:
        return None if text is None else read(text)
    except ValueError as error:
        raise ConfigurationError(f"{option} {error}") from error
