"""What the training controller takes in and asks for: the values of `scavenger.control.training.controller`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scavenger.domain import report
from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import StepRecord
from scavenger.train.supervisor.events import Event as WorkerEvent

__all__ = [
    "Abandon",
    "Action",
    "Begin",
    "Close",
    "Command",
    "Departed",
    "Event",
    "FollowNoise",
    "Gather",
    "GatherSpares",
    "GiveUp",
    "GiveVerdict",
    "Launch",
    "Look",
    "RecordNow",
    "Release",
    "Remove",
    "ReportStep",
    "Resize",
    "Situation",
    "Swap",
    "Switch",
    "Notify",
    "Warn",
    "Write",
]


@dataclass(frozen=True, slots=True)
class Situation:
    """The job's workers at the moment of an event.

    Attributes:
        at_s: Time since the job began, with that of earlier attempts.
        vms: Living workers in the order of their launch, each with its type of VM.
        starting: How many of them still start.
        ready: How many of them train or could.
        training: How many of them train.
        settled: The newest change of view that was asked for has taken effect.
        ending: Some worker was let go and has not ended yet.
        vm, host: Where the worker that the event names runs or ran; empty where the event names none.
    """

    at_s: float = 0.0
    vms: Mapping[str, str] = field(default_factory=dict)
    starting: int = 0
    ready: int = 0
    training: int = 0
    settled: bool = True
    ending: bool = False
    vm: str = ""
    host: str = ""


# ---- commands ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """The job's first workers are being started."""

    workers: int


@dataclass(frozen=True, slots=True)
class Gather:
    """Start the workers that a configuration lacks.

    Attributes:
        meanwhile: Batch size to train with while they start; None for the present one.
        keep: Workers that the configuration does not need stay, since they will be needed soon.
    """

    target: Configuration
    meanwhile: int | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Switch:
    """Train at a configuration from the next step boundary on, with workers of its type of VM alone."""

    target: Configuration
    reason: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """Wait for no more workers.

    Attributes:
        workers: How many are wanted from now on; None for as many as train.
    """

    workers: int | None = None


@dataclass(frozen=True, slots=True)
class GatherSpares:
    """Start one more worker for each of these, which are to be replaced."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Swap:
    """Train on without these workers, of which each has a spare."""

    workers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Train on with fewer workers; `global_batch_size` is raised to one sample for each."""

    workers: tuple[str, ...]
    global_batch_size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Departed:
    """A change of view has left a worker out that others have replaced."""

    worker: str
    kind: Literal["failure", "eviction"]


@dataclass(frozen=True, slots=True)
class FollowNoise:
    """Change the learning rate where it follows the noise and that has moved."""


@dataclass(frozen=True, slots=True)
class Look:
    """All events that have come are taken in."""


@dataclass(frozen=True, slots=True)
class Close:
    """Training is being ended: only what still stands is recorded from now on."""


Command = (
    Begin | Gather | Switch | Abandon | GatherSpares | Swap | Remove | Departed | FollowNoise | Look | Close
)
Event = WorkerEvent | Command


# ---- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Start workers on a type of VM."""

    workers: int
    vm: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Train with so many workers and this batch from the next step boundary on."""

    workers: int
    global_batch_size: int
    reason: str
    lr_scale: float = 1.0
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """Let workers go that no view needs, until so many are left."""

    keep: int


@dataclass(frozen=True, slots=True)
class GiveVerdict:
    """Answer the report of an epoch, for which the workers wait."""

    epoch: int
    stop: bool
    keep_best: bool


@dataclass(frozen=True, slots=True)
class Write:
    """Write a line to the journal, or, with `audit`, to the audit where there is one."""

    kind: str
    value: Any
    audit: bool = False


@dataclass(frozen=True, slots=True)
class Notify:
    """Pass an event on to the user."""

    event: report.Event


@dataclass(frozen=True, slots=True)
class ReportStep:
    """Notify the user of a step, with the progress and the cost so far."""

    record: StepRecord


@dataclass(frozen=True, slots=True)
class Warn:
    """Warn the user, now and in the report."""

    message: str


@dataclass(frozen=True, slots=True)
class RecordNow:
    """Record the job's state without waiting for the next time that it is due."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the job, as its workers die.

    Attributes:
        worker: The last one that died, whose log tells more.
        by_code: The training code is to blame.
    """

    worker: str
    message: str
    by_code: bool


Action = Launch | Resize | Release | GiveVerdict | Write | Notify | ReportStep | Warn | RecordNow | GiveUp
