"""What a policy may decide: one value, with its reason in plain words and the numbers behind it.

A decision changes nothing by itself; the shell carries it out. Every decision has `reason`, why this one, and
`considered`, what the other policies that were asked had to say (no part of equality).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Blacklist", "Decision", "Hold", "Pause", "Replace", "ScaleTo", "Stop", "StopCause"]

StopCause = Literal["budget", "deadline", "failures"]


@dataclass(frozen=True, slots=True)
class Hold:
    """Change nothing."""

    reason: str
    considered: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class ScaleTo:
    """Go on with this many workers and this global batch; joiners warm up before they are announced."""

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
    """Put another worker in the place of each of these.

    The replacement joins first and the named worker leaves in the same view, so the job is never smaller than
    before, and never slower than it is with the named worker in it.
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
    """Keep the training state, pay for nothing, and go on when workers can be had."""

    reason: str
    considered: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Stop:
    """End the run for good: save, drain, release. `cause` tells a limit reached from a run that is failing."""

    reason: str
    cause: StopCause
    considered: tuple[str, ...] = field(default=(), compare=False)


Decision = Hold | ScaleTo | Replace | Blacklist | Pause | Stop
