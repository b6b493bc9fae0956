"""What is said on the control channel: with the supervisor, the coordinator, and those whom it leads."""

from __future__ import annotations

from typing import Annotated

import msgspec

from scavenger.train.transport.messages.values import (
    AggregatorAddress,
    CheckpointPlan,
    DeathBody,
    Manifest,
    MemberBody,
    Restore,
    Tagged,
    ViewBody,
)

__all__ = [
    "AggregatorReady",
    "Announcement",
    "Beat",
    "Brief",
    "CheckpointFailed",
    "CheckpointReady",
    "CheckpointWritten",
    "ControlMessage",
    "Done",
    "Ended",
    "EpochReport",
    "Expel",
    "Failed",
    "Finish",
    "Forget",
    "Hello",
    "Inform",
    "Initialise",
    "Initialised",
    "Launched",
    "Prepare",
    "Present",
    "Quarantined",
    "Quit",
    "Ready",
    "Reconnect",
    "Recorded",
    "Release",
    "Resize",
    "Rewind",
    "RollBack",
    "RollCall",
    "Roster",
    "Save",
    "Saved",
    "SavedPart",
    "Seeded",
    "StepReport",
    "Unsaved",
    "VerdictGiven",
    "ViewInstalled",
]


# ---- worker, aggregator -> coordinator or supervisor -------------------------------------------------------------


class Hello(Tagged, frozen=True):
    """A worker has built the model."""

    manifest: Manifest


class Ready(Tagged, frozen=True):
    """A worker has mapped the block, traced its functions and connected to every aggregator."""


class Present(Tagged, frozen=True):
    """The answer to `RollCall`: how far a worker is."""

    manifest: Manifest
    prepared: bool
    seeded: bool
    ready: bool
    memory: str


class Beat(Tagged, frozen=True):
    """A process lives.

    Attributes:
        step: The last step that it computed, or applied.
        view: The newest view that it has heard of.
        missing: From the sequencer: workers that are awaited.
        waiting_s: For how long.
        behind: From the sequencer: places of aggregators that are awaited.
        evaluating: From the sequencer: what is awaited is an evaluation.
    """

    step: int = 0
    view: int = 0
    missing: tuple[str, ...] = ()
    waiting_s: float = 0.0
    behind: tuple[int, ...] = ()
    evaluating: bool = False


class Failed(Tagged, frozen=True):
    """The process ends. `kind`: `code` (the user's code), `unsupported`, `nonfinite` or `internal`."""

    kind: str
    message: str


class Saved(Tagged, frozen=True):
    """A worker has written the model."""


class SavedPart(Tagged, frozen=True):
    """Bytes of the model's file, from a worker that was asked to send it; `Saved` follows the last."""

    offset: Annotated[int, msgspec.Meta(ge=0)]
    data: bytes


class AggregatorReady(Tagged, frozen=True):
    """The aggregator can be connected to.

    Attributes:
        index: Its place.
        initialised: It holds its part.
        own_memory: What it holds, nobody else does: it dies with it.
    """

    index: int
    at: AggregatorAddress
    initialised: bool
    own_memory: bool


class Seeded(Tagged, frozen=True):
    """A worker has put its initial weights where, in its memory, the job's weights begin."""

    memory: str


class Initialised(Tagged, frozen=True):
    """An aggregator holds its part, as it is after `step`; `epoch` and `consumed` tell where the next begins."""

    index: int
    step: int
    epoch: int
    consumed: int


class StepReport(Tagged, frozen=True):
    """A step was applied; see `scavenger.domain.measurement.StepRecord` for the fields.

    `compute_s`: of the slowest worker, its waiting for samples included. `update_s`: averaging and the optimizer.
    `data_wait_s`: for the samples, of the worker that waited longest.
    """

    step: int
    view: int
    epoch: int
    workers: int
    global_batch_size: int
    samples: int
    step_time_s: float
    compute_s: float
    update_s: float
    data_wait_s: float
    loss: float
    mean_worker_sqnorm: float
    mean_sqnorm: float
    noise_parts: int
    worker_compute_s: dict[str, float] = msgspec.field(default_factory=dict)
    pieces: tuple[tuple[str, int, int], ...] = ()


class EpochReport(Tagged, frozen=True):
    """An epoch was evaluated; the sequencer waits for the verdict."""

    epoch: int
    step: int
    metrics: dict[str, float]
    evaluation_s: float


class ViewInstalled(Tagged, frozen=True):
    view: ViewBody


class Inform(Tagged, frozen=True):
    """The sequencer's answer to a `RollCall`. `view` is None before the first; `number`: newest heard of."""

    initialised: bool
    number: int
    view: ViewBody | None
    step: int


class Quarantined(Tagged, frozen=True):
    """Samples, by their indices in the data, are left out from now on: workers died of them."""

    samples: tuple[int, ...]
    reason: str


class Done(Tagged, frozen=True):
    """The aggregators have finalised the weights."""

    step: int


class CheckpointWritten(Tagged, frozen=True):
    step: int
    epoch: int
    written_s: float
    bytes: int


class CheckpointFailed(Tagged, frozen=True):
    step: int
    message: str


class CheckpointReady(Tagged, frozen=True):
    """All of a checkpoint is written, and it counts once all steps up to its own are on record; said until answered."""

    step: int


class Recorded(Tagged, frozen=True):
    """The answer: they are."""

    step: int


class Unsaved(Tagged, frozen=True):
    """A worker found no room for the model, or could not write it for another reason of the disk's."""

    cause: str


# ---- supervisor <-> coordinator ----------------------------------------------------------------------------------


class Brief(Tagged, frozen=True):
    """What a coordinator must know to lead: limits, who is there, and what was last asked for.

    Attributes:
        number: Of the newest view that the supervisor has heard of.
        held: Indices of the aggregators that hold their part, or whose memory does.
        rewinding: Indices of those that are to begin again, whatever their memory holds.
        quarantined: Samples that are left out.
        evaluation_s: Longest time for an evaluation; None for what its size suggests.
    """

    token: int
    workers: tuple[str, ...]
    aggregators: tuple[str, ...]
    start_s: float
    step_s: float
    restore: Restore | None
    checkpoint: CheckpointPlan | None
    resize: Resize | None
    command: int
    number: int
    held: tuple[int, ...]
    rewinding: tuple[int, ...]
    quarantined: tuple[int, ...]
    evaluation_s: float | None = None


class RollBack(Tagged, frozen=True):
    """From the coordinator: a part of the model is lost, so all aggregators must be started anew."""

    cause: str


class Rewind(Tagged, frozen=True):
    """The supervisor's answer to `RollBack`: all have ended; successors begin with this, or with initial weights."""

    restore: Restore | None


class Launched(Tagged, frozen=True):
    worker: str


class Ended(Tagged, frozen=True):
    """A process is gone; how, where it was a worker that was not told to go."""

    name: str
    death: DeathBody | None = None


class Resize(Tagged, frozen=True):
    """Train on so many workers with such a batch from the next boundary on; see `Membership.resize`."""

    command: int
    workers: int
    global_batch_size: int
    reason: str
    without: tuple[str, ...] = ()
    lr_scale: float = 1.0


class Release(Tagged, frozen=True):
    """Let spare workers go, until `keep` are alive."""

    command: int
    keep: int


class Roster(Tagged, frozen=True):
    """The coordinator's book: states by worker, the newest command it has carried out, what has settled.

    `forgotten`: workers that are gone and whose slots nobody reads any more.
    """

    command: int
    states: dict[str, str]
    settled: bool
    number: int
    forgotten: tuple[str, ...]


class Expel(Tagged, frozen=True):
    """A process must be ended. `hung`: by limits, so its stack is wanted first; `cause` in words."""

    name: str
    cause: str
    hung: bool
    fatal: str = ""


# ---- coordinator or supervisor -> worker or aggregator -----------------------------------------------------------


class RollCall(Tagged, frozen=True):
    """A coordinator takes the lead and asks who is there. To all."""

    token: int


class Prepare(Tagged, frozen=True):
    """To a worker whose manifest fits. `initial`: its initial weights become the job's."""

    manifest: Manifest
    aggregators: tuple[AggregatorAddress, ...]
    initial: bool


class Reconnect(Tagged, frozen=True):
    """To workers and aggregators: an aggregator was restarted and has another address now."""

    aggregators: tuple[AggregatorAddress, ...]


class Initialise(Tagged, frozen=True):
    """To an aggregator, once a worker has said what the model is and put its initial weights in place.

    Attributes:
        recover: Take the job up where the block says it stood, if it says so.
        seeder: Who is to be asked for the initial weights; empty where they lie in the block.
        quarantined: Samples that are left out, besides those that a checkpoint tells of.
    """

    manifest: Manifest
    aggregators: tuple[AggregatorAddress, ...]
    restore: Restore | None
    checkpoint: CheckpointPlan | None
    recover: bool
    seeder: str
    number: int
    token: int
    quarantined: tuple[int, ...]


class Announcement(Tagged, frozen=True):
    number: int
    members: tuple[MemberBody, ...]
    global_batch_size: int
    lost: tuple[str, ...]
    deaths: tuple[DeathBody, ...]
    token: int
    lr_scale: float
    reason: str


class VerdictGiven(Tagged, frozen=True):
    """`keep_best`: the weights of this epoch are the best so far and are to be kept."""

    epoch: int
    stop: bool
    keep_best: bool


class Finish(Tagged, frozen=True):
    """To the sequencer: stop, and finalise the weights.

    `best`: put the best ones in their place. `checkpoint`: write one first, for a job that may be gone on with.
    """

    best: bool
    checkpoint: bool


class Save(Tagged, frozen=True):
    """To a worker: write the model with the weights of `step` to `path`, or send it where `path` is empty."""

    path: str
    step: int


class Forget(Tagged, frozen=True):
    """To aggregators: the worker is gone, and nobody will read its gradients any more."""

    worker: str


class Quit(Tagged, frozen=True):
    """End; nothing more is needed of the process."""


ControlMessage = (
    Hello
    | Ready
    | Present
    | Beat
    | Failed
    | Saved
    | SavedPart
    | AggregatorReady
    | Seeded
    | Initialised
    | StepReport
    | EpochReport
    | ViewInstalled
    | Inform
    | Quarantined
    | Done
    | CheckpointWritten
    | CheckpointFailed
    | CheckpointReady
    | Recorded
    | Unsaved
    | Brief
    | RollBack
    | Rewind
    | Launched
    | Ended
    | Resize
    | Release
    | Roster
    | Expel
    | RollCall
    | Prepare
    | Reconnect
    | Initialise
    | Announcement
    | VerdictGiven
    | Finish
    | Save
    | Forget
    | Quit
)
