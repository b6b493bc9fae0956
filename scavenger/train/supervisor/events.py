"""Events that a supervisor reports to the code that drives it."""

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
    "ProgramBegan",
    "Recovered",
    "Refused",
    "RolledBack",
    "Started",
    "Told",
    "Warned",
]


@dataclass(frozen=True, slots=True)
class Started:
    """A worker is ready to train, `setup_s` seconds after its launch."""

    worker: str
    setup_s: float


@dataclass(frozen=True, slots=True)
class ProgramBegan:
    """A program that is started anew for each view has done its first step, `took_s` seconds after its start."""

    took_s: float


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker that no view needs is being ended."""

    worker: str


@dataclass(frozen=True, slots=True)
class Warned:
    """A problem occurred that does not end the job."""

    message: str


@dataclass(frozen=True, slots=True)
class Told:
    """Something was decided that the user may want to know."""

    message: str


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of one process of the job.

    Attributes:
        name: The process's name.
        role: `worker`, `aggregator` or `coordinator`.
        pid: Its process id on its host.
        host: The host that it runs on.
        state: The state to show to users, such as `training` or `lost`.
        view: The newest view that it reported.
        step: The newest step that it reported.
        detail: Why it was ended, or ended unexpectedly; empty otherwise.
    """

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
    | m.BatchReport
    | m.CallbacksRun
    | m.ViewInstalled
    | m.CheckpointWritten
    | m.CheckpointFailed
    | m.CheckpointReady
    | m.MemoryExceeded
    | m.Migrated
    | Started
    | ProgramBegan
    | PreemptionNotice
    | Leaving
    | Lost
    | Refused
    | Recovered
    | RolledBack
    | Told
    | Warned
    | m.SamplesQuarantined
)
