"""The decisions of a policy: each is a value with its reason as a sentence and the numbers behind it.

A decision changes nothing by itself; `scavenger.control` carries it out. Every decision has `reason`, and
`considered`, the decisions of the other policies (ignored when decisions are compared).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

StopCause = Literal["budget", "deadline", "failures"]


@dataclass(frozen=True, slots=True)
class Hold:
    """Change nothing."""

    reason: str
    considered: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class ChangeSize:
    """Continue with this many workers and this global batch; new workers warm up before they join."""

    workers: int
    global_batch_size: int
    reason: str
    considered: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if self.workers < 1 or self.global_batch_size < self.workers:
            raise ValueError(
                f"cannot scale to {self.workers} workers with a global batch of {self.global_batch_size}"
            )


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace each of these workers by a new one.

    The replacement joins first and the named worker leaves in the same view, so the job is never smaller than
    before, and never slower than with the named worker.
    """

    workers: tuple[str, ...]
    reason: str
    considered: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Blacklist:
    """Place no new worker on these hosts until `until_s`, seconds since the job began; those there stay."""

    hosts: tuple[str, ...]
    until_s: float
    reason: str
    considered: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Pause:
    """Save the training state, release all VMs, and resume when workers are available again."""

    reason: str
    considered: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Stop:
    """End the run: save, drain, release. `cause` distinguishes a limit that was reached from a failing run."""

    reason: str
    cause: StopCause
    considered: tuple[str, ...] = field(default=(), compare=False)


Decision = Hold | ChangeSize | Replace | Blacklist | Pause | Stop
