"""Events and orders of the rounds of a custom training loop, `elastic.rounds`."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.elastic.leases import EpochCommitted, Found, Grant, LeasedSamples, Requeued, Revoke
from scavenger.elastic.quarantine import Cause

# ---- what happens ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerLaunched:
    """A worker is being started, under a name that was never used."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerArrived:
    """A worker has built its replica and could join."""

    worker: str
    host: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A current worker that has applied `step` wants samples of an epoch."""

    worker: str
    step: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Pushed:
    """A worker's part of a step has arrived completely."""

    worker: str
    view: int
    step: int
    part: LeasedSamples


@dataclass(frozen=True, slots=True)
class Averaged:
    """The mean that `Average` requested is available."""

    step: int


@dataclass(frozen=True, slots=True)
class Donated:
    """A copy of a replica has arrived, as it is after `step`."""

    worker: str
    step: int


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker has ended, for any reason."""

    worker: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class WorkerFinished:
    """A worker's training function has returned."""

    worker: str


@dataclass(frozen=True, slots=True)
class Resized:
    """Train with this many of the workers that have arrived, from the next boundary on.

    Attributes:
        workers: K.
        without: Workers that leave first, and for good.
        global_batch_size: B, samples; 0 if each worker chooses how many it reads.
        lr_scale: Factor for the learning rate.
    """

    workers: int
    reason: str
    without: tuple[str, ...] = ()
    global_batch_size: int = 0
    lr_scale: float = 1.0


Happening = (
    WorkerLaunched
    | WorkerArrived
    | Asked
    | Pushed
    | Averaged
    | Donated
    | WorkerGone
    | WorkerFinished
    | Resized
)


# ---- what is to be done ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Tell a worker that it is a member, from the step after `step` on.

    With `load` it first takes the state that was donated for `step`; the others take the one that it has.
    """

    worker: str
    step: int
    epoch: int
    view: int
    load: bool


@dataclass(frozen=True, slots=True)
class Donate:
    """Ask a current worker for a copy of its replica as it is after `step`."""

    worker: str
    step: int


@dataclass(frozen=True, slots=True)
class Average:
    """Form the sample-weighted mean of what these workers pushed for a step, then send `Averaged`."""

    step: int
    contributions: tuple[tuple[str, LeasedSamples], ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Send the mean of a step to all that apply it. `view` and its members hold from the next step on.

    Attributes:
        followers: Workers that apply it and are no members: they may be some steps behind.
    """

    step: int
    epoch: int
    over: bool
    view: int
    members: int
    workers: tuple[str, ...]
    followers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Over:
    """Tell a worker that the epoch which it wants to read is over, though no step has ended it."""

    worker: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Tell a worker to end, since it is no longer a member."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Evict:
    """End a worker that broke the protocol, then send `WorkerGone`: the state of its replica is unknown."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Stranded:
    """Every replica that held the steps applied so far is gone."""

    step: int


Order = (
    StartWorker
    | Donate
    | Average
    | Publish
    | Over
    | Leave
    | Evict
    | Stranded
    | Grant
    | Revoke
    | Requeued
    | Found
    | EpochCommitted
)
