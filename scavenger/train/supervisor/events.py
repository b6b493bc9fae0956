"""What a supervisor tells its owner."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.elastic.recovery import Lost, Recovered, Refused, RolledBack
from scavenger.train.engines.base import PreemptionNotice
from scavenger.train.transport import messages as m

__all__ = [
    "Event",
    "Leaving",
    "Lost",
    "PreemptionNotice",
    "ProcessState",
    "Recovered",
    "Refused",
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
