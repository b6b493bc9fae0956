"""What a supervisor tells its owner."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.train.engines.base import PreemptionNotice
from scavenger.train.transport import messages as m

__all__ = [
    "Event",
    "Leaving",
    "Lost",
    "PreemptionNotice",
    "ProcessState",
    "Recovered",
    "RolledBack",
    "Started",
    "Warned",
]


@dataclass(frozen=True, slots=True)
class Started:
    """A worker is ready to train; `setup_s` since its launch."""

    worker: str
    setup_s: float


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker that no view needs was told to end."""

    worker: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker died without an error of its code; the others go on.

    `crashed`: by its own fault, so that what it computed may have done it.
    """

    worker: str
    cause: str
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no place for a worker that was launched; it never ran."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recovered:
    """An aggregator or the coordinator died, and another one has taken its place."""

    process: str
    cause: str
    took_s: float


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A part of the model was lost with its memory: the job goes on after `step`, and later ones are done again.

    Reports of steps and epochs after it, and what was concluded from them, count no more.
    """

    step: int
    cause: str
    took_s: float


@dataclass(frozen=True, slots=True)
class Warned:
    """Something is not as it should be, and the job goes on."""

    message: str


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process of the job."""

    name: str
    role: str
    pid: int
    host: str
    state: str
    view: int
    step: int
    detail: str = ""


Event = (
    m.StepReport
    | m.EpochReport
    | m.ViewInstalled
    | m.CheckpointWritten
    | m.CheckpointFailed
    | m.CheckpointReady
    | Started
    | PreemptionNotice
    | Leaving
    | Lost
    | Refused
    | Recovered
    | RolledBack
    | Warned
    | m.Quarantined
)
