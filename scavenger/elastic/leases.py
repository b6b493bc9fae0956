"""Events and instructions of the shard ledger, `scavenger.elastic.ledger`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from scavenger.elastic.quarantine import Cause, Finding, Quarantined


class LeaseAttempt(NamedTuple):
    """Identifier of one lease of one shard, unique even across restarts of the ledger's process."""

    incarnation: int
    number: int


class LeasedSamples(NamedTuple):
    """Samples `start` to `stop` (exclusive) of a shard, read under an attempt, whose gradient is in a step."""

    shard: int
    attempt: LeaseAttempt
    start: int
    stop: int


# ---- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestSamples:
    """A worker requests samples. A lease ends with its worker, whose heartbeats are monitored.

    `holds` are the attempts it knows of: a grant that was lost on the way is given again, and one that it holds
    in vain is revoked. It may ask ahead, while it still reads one.
    """

    worker: str
    host: str
    holds: tuple[LeaseAttempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposed:
    """The contributions to a step are complete, and are to be checked before they are applied."""

    step: int
    parts: tuple[LeasedSamples, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """The step was applied, with exactly these parts."""

    step: int
    parts: tuple[LeasedSamples, ...]


@dataclass(frozen=True, slots=True)
class HolderLost:
    """A worker is gone, for any reason; its name is never reused."""

    worker: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """The previous epoch is evaluated; begin this one."""

    epoch: int


Event = RequestSamples | Proposed | Committed | HolderLost | BeginEpoch


# ---- instructions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grant:
    """Tell a worker to read samples `start` to `stop` of a shard.

    If nothing changes, the worker's next samples begin `stride` after these; 0 if that is not known.
    """

    worker: str
    shard: int
    attempt: LeaseAttempt
    start: int
    stop: int
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """Tell a worker that no samples are available now; it asks again after the next step."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Revoke:
    """Tell a worker to drop an attempt: what it reads under it will be refused."""

    worker: str
    attempt: LeaseAttempt


@dataclass(frozen=True, slots=True)
class ApplyParts:
    """Apply the step with these parts, then send `Committed`."""

    step: int
    parts: tuple[LeasedSamples, ...]


@dataclass(frozen=True, slots=True)
class RefuseParts:
    """Do not apply this. Nothing has changed; without the part, the step may be proposed again."""

    part: LeasedSamples | None
    reason: str


@dataclass(frozen=True, slots=True)
class Requeued:
    """A shard is free again from `offset` on."""

    shard: int
    attempt: LeaseAttempt
    offset: int


@dataclass(frozen=True, slots=True)
class Found:
    """A finding on the data after a death; report it, and end the job if it is `NotTheData`."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class EpochCommitted:
    """Every sample of the epoch has been applied once, except those in quarantine."""

    epoch: int
    step: int
    quarantined: tuple[Quarantined, ...]

    @property
    def whole(self) -> bool:
        """Whether no sample was left out."""
        return not self.quarantined


Instruction = Grant | Wait | Revoke | ApplyParts | RefuseParts | Requeued | Found | EpochCommitted
