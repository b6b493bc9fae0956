"""Commands and actions: the inputs and outputs of `scavenger.control.training.controller`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scavenger.domain import report
from scavenger.domain.configuration import Configuration
from scavenger.domain.measurement import StepRecord
from scavenger.train.supervisor.events import Event as WorkerEvent
from scavenger.train.transport import messages as m


@dataclass(frozen=True, slots=True)
class Situation:
    """The job's workers at the moment of an event.

    Attributes:
        at_s: Time since the job began, including earlier attempts, seconds.
        vms: VM type of each living worker, in the order of launch.
        starting: Number of workers that are starting.
        ready: Number of workers that train or are ready to.
        training: Number of workers that train.
        settled: Whether the newest requested change of view has taken effect.
        ending: Whether a released worker has not ended yet.
        vm, host: VM type and host of the worker that the event names; empty if it names none.
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
    """Start of the job's first workers."""

    workers: int


@dataclass(frozen=True, slots=True)
class Gather:
    """Start the workers that a configuration lacks.

    Attributes:
        meanwhile: Global batch size to train with while they start; None for the present one.
        keep: Whether to keep workers that the configuration does not need, since they will be needed soon.
    """

    target: Configuration
    meanwhile: int | None = None
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Switch:
    """Train on a configuration from the next step boundary on, using only workers on its VM type."""

    target: Configuration
    reason: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """Stop waiting for more workers.

    Attributes:
        workers: New number of wanted workers; None for the number that currently train.
    """

    workers: int | None = None


@dataclass(frozen=True, slots=True)
class GatherSpares:
    """Start a replacement for each of these workers."""

    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Swap:
    """Continue training with the replacements of these workers."""

    workers: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Continue training without these workers; `global_batch_size` is raised to one sample per worker if smaller."""

    workers: tuple[str, ...]
    global_batch_size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Departed:
    """A replaced worker has left with a change of view."""

    worker: str
    kind: Literal["failure", "eviction"]


@dataclass(frozen=True, slots=True)
class FollowNoise:
    """Update the learning rate if it follows the gradient noise and the noise has changed enough."""


@dataclass(frozen=True, slots=True)
class Look:
    """All received events have been handled; lost workers may be replaced now."""


@dataclass(frozen=True, slots=True)
class Close:
    """Training is being ended: from now on, events are recorded without reacting to them."""


Command = (
    Begin | Gather | Switch | Abandon | GatherSpares | Swap | Remove | Departed | FollowNoise | Look | Close
)
Event = WorkerEvent | Command


# ---- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Start workers on a VM type."""

    workers: int
    vm: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Train with this number of workers and this batch size from the next step boundary on."""

    workers: int
    global_batch_size: int
    reason: str
    lr_scale: float = 1.0
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """Release workers that no view needs, until `keep` are left."""

    keep: int


@dataclass(frozen=True, slots=True)
class GiveVerdict:
    """Answer the report of an epoch, or of a step within it; the workers wait for the answer."""

    epoch: int
    stop: bool
    keep_best: bool
    rate_scale: float = 1.0
    step: int | None = None


@dataclass(frozen=True, slots=True)
class RunCallbacks:
    """Have a worker run the callbacks of an epoch or step."""

    request: m.RunCallbacks


@dataclass(frozen=True, slots=True)
class Write:
    """Write a line to the journal or, with `audit`, to the audit if there is one."""

    kind: str
    value: Any
    audit: bool = False


@dataclass(frozen=True, slots=True)
class Notify:
    """Pass an event on to the user."""

    event: report.Event


@dataclass(frozen=True, slots=True)
class ReportStep:
    """Report a step to the user, with the progress and cost so far."""

    record: StepRecord


@dataclass(frozen=True, slots=True)
class Warn:
    """Warn the user, now and in the report."""

    message: str


@dataclass(frozen=True, slots=True)
class RecordNow:
    """Record the job's state now, before it is next due."""


Cause = Literal["code", "crash", "loss"]
"""What workers keep failing of; see `GiveUp`."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the job because its workers keep failing.

    Attributes:
        worker: The last worker that failed; its log has the details.
        cause: `code`, the training code is; `crash`, a signal of its own killed it, and its log may tell whose code
            ran; `loss`, anything else.
    """

    worker: str
    message: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class AskGoal:
    """End the job because the user must say what its goal means."""

    message: str


Action = (
    Launch
    | Resize
    | Release
    | GiveVerdict
    | RunCallbacks
    | Write
    | Notify
    | ReportStep
    | Warn
    | RecordNow
    | GiveUp
    | AskGoal
)
