"""Messages of the control channel: between the supervisor, the coordinator, workers and aggregators."""

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
    """A worker's answer to `RollCall`.

    Attributes:
        manifest: The worker's model and data.
        prepared: Whether it has received `Prepare`.
        seeded: Whether its initial weights are in its memory.
        ready: Whether it is ready to train.
        memory: The identity of its block.
    """

    manifest: Manifest
    prepared: bool
    seeded: bool
    ready: bool
    memory: str


class Beat(Tagged, frozen=True):
    """A heartbeat. Only the sequencer sets the fields from `missing` on.

    Attributes:
        step: The last step that the process computed, or applied.
        view: The newest view that it knows.
        missing: Workers that the sequencer waits for.
        waiting_s: How long it has waited, seconds.
        behind: Indices of the aggregators that it waits for.
        evaluating: Whether it waits for an evaluation.
    """

    step: int = 0
    view: int = 0
    missing: tuple[str, ...] = ()
    waiting_s: float = 0.0
    behind: tuple[int, ...] = ()
    evaluating: bool = False


class Failed(Tagged, frozen=True):
    """A process ends with an error.

    `kind` is `code` (an error of the user's code), `unsupported`, `nonfinite`, `internal` or another kind that
    `scavenger.train.failure.error_of` knows.
    """

    kind: str
    message: str


class Saved(Tagged, frozen=True):
    """A worker has written the model."""


class SavedPart(Tagged, frozen=True):
    """Bytes of the model's file, from a worker that was asked to send it; `Saved` follows the last of them."""

    offset: Annotated[int, msgspec.Meta(ge=0)]
    data: bytes


class AggregatorReady(Tagged, frozen=True):
    """An aggregator accepts connections.

    Attributes:
        index: The aggregator's index.
        at: Its address.
        initialised: Whether it holds its model shard.
        own_memory: Whether only this process has its block, so that its state is lost when it ends.
    """

    index: int
    at: AggregatorAddress
    initialised: bool
    own_memory: bool


class Seeded(Tagged, frozen=True):
    """A worker has written its initial weights to its memory, in the place of the job's weights."""

    memory: str


class Initialised(Tagged, frozen=True):
    """An aggregator holds its model shard, in the state after `step`; the next step begins at `epoch`, `consumed`."""

    index: int
    step: int
    epoch: int
    consumed: int


class StepReport(Tagged, frozen=True):
    """A step was applied; see `scavenger.domain.measurement.StepRecord` for the fields.

    Attributes:
        compute_s: Time of the slowest worker, its waiting for samples included.
        update_s: Time for averaging and for the optimizer.
        data_wait_s: Time that the worker that waited longest waited for samples.
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
    """The sequencer has put a view into effect."""

    view: ViewBody


class Inform(Tagged, frozen=True):
    """The sequencer's answer to a `RollCall`.

    Attributes:
        initialised: Whether it holds its model shard.
        number: The number of the newest view that it knows.
        view: The view in effect; None before the first.
        step: The last applied step.
    """

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
    """A checkpoint was written and committed."""

    step: int
    epoch: int
    written_s: float
    bytes: int


class CheckpointFailed(Tagged, frozen=True):
    """A checkpoint could not be written."""

    step: int
    message: str


class CheckpointReady(Tagged, frozen=True):
    """All parts of a checkpoint are written; it is committed once all steps up to its own are stored.

    The sequencer repeats the message until `Recorded` answers it.
    """

    step: int


class Recorded(Tagged, frozen=True):
    """The supervisor's answer to `CheckpointReady`: all steps up to `step` are stored."""

    step: int


class Unsaved(Tagged, frozen=True):
    """A worker could not write the model because its disk is full, or has another error."""

    cause: str


# ---- supervisor <-> coordinator ----------------------------------------------------------------------------------


class Brief(Tagged, frozen=True):
    """What a coordinator must know to lead a job: time limits, processes, and the last request.

    Attributes:
        token: The coordinator's token.
        workers: The running workers.
        aggregators: The aggregators, the sequencer first.
        start_s: Longest time for a worker to become ready, seconds.
        step_s: Longest time for a step, seconds.
        restore: The checkpoint to begin with; None for initial weights.
        checkpoint: The checkpoint plan; None for none.
        resize: The last request for a configuration; None before the first.
        command: The number of the last command.
        number: The number of the newest view that the supervisor knows.
        held: Indices of the aggregators that hold their model shard, or whose memory does.
        rewinding: Indices of the aggregators that a rollback restarts, whatever their memory holds.
        quarantined: Samples that are left out.
        evaluation_s: Longest time for an evaluation, seconds; None to derive it from the size of the evaluation.
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
    """From the coordinator: a model shard is lost, so all aggregators must be restarted."""

    cause: str


class Rewind(Tagged, frozen=True):
    """The supervisor's answer to `RollBack`: all aggregators have ended, and their successors begin with `restore`.

    If `restore` is None, they begin with initial weights.
    """

    restore: Restore | None


class Launched(Tagged, frozen=True):
    """A worker was launched and has a host."""

    worker: str


class Ended(Tagged, frozen=True):
    """A process has ended; `death` has details for a worker, and is None otherwise."""

    name: str
    death: DeathBody | None = None


class Resize(Tagged, frozen=True):
    """Train on this number of workers with this batch from the next step boundary on; see `Membership.resize`."""

    command: int
    workers: int
    global_batch_size: int
    reason: str
    without: tuple[str, ...] = ()
    lr_scale: float = 1.0


class Release(Tagged, frozen=True):
    """Release spare workers until `keep` are alive."""

    command: int
    keep: int


class Roster(Tagged, frozen=True):
    """The coordinator's report on the workers.

    Attributes:
        command: The number of the last command that it has carried out.
        states: The state of each worker.
        settled: Whether the last request has taken effect.
        number: The number of the newest view.
        forgotten: Lost workers whose slots no process reads any more.
    """

    command: int
    states: dict[str, str]
    settled: bool
    number: int
    forgotten: tuple[str, ...]


class Expel(Tagged, frozen=True):
    """Order to end a process.

    Attributes:
        name: The process's name.
        cause: The reason, in words.
        hung: Whether it is over a time limit, so that its stack is logged first.
        fatal: The error that ends the job; empty if the job goes on.
    """

    name: str
    cause: str
    hung: bool
    fatal: str = ""


# ---- coordinator or supervisor -> worker or aggregator -----------------------------------------------------------


class RollCall(Tagged, frozen=True):
    """A coordinator takes over the job and asks all processes for their states."""

    token: int


class Prepare(Tagged, frozen=True):
    """To a worker whose manifest fits: prepare to train. If `initial`, its initial weights become the job's."""

    manifest: Manifest
    aggregators: tuple[AggregatorAddress, ...]
    initial: bool


class Reconnect(Tagged, frozen=True):
    """To workers and aggregators: an aggregator was restarted and has another address now."""

    aggregators: tuple[AggregatorAddress, ...]


class Initialise(Tagged, frozen=True):
    """To an aggregator: load your model shard; sent once a worker has described the model and seeded its weights.

    Attributes:
        manifest: The model.
        aggregators: The addresses of all aggregators.
        restore: The checkpoint to begin with; None for initial weights.
        checkpoint: The checkpoint plan; None for none.
        recover: Whether to continue with the state in the block, if its records show one.
        seeder: The worker to ask for the initial weights; empty if they are in the block.
        number: The number of the newest view.
        token: The coordinator's token.
        quarantined: Samples that are left out, besides those that a checkpoint lists.
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
    """To the sequencer: the next view; see `scavenger.elastic.barrier.Announce`."""

    number: int
    members: tuple[MemberBody, ...]
    global_batch_size: int
    lost: tuple[str, ...]
    deaths: tuple[DeathBody, ...]
    token: int
    lr_scale: float
    reason: str


class VerdictGiven(Tagged, frozen=True):
    """The answer to an `EpochReport`: whether to stop, and whether to keep this epoch's weights as the best so far."""

    epoch: int
    stop: bool
    keep_best: bool


class Finish(Tagged, frozen=True):
    """To the sequencer: stop, and finalise the weights.

    Attributes:
        best: Whether to use the best weights instead of the last ones.
        checkpoint: Whether to write a checkpoint first, so that the job can be resumed.
    """

    best: bool
    checkpoint: bool


class Save(Tagged, frozen=True):
    """To a worker: write the model with the weights of `step` to `path`, or send it if `path` is empty."""

    path: str
    step: int


class Forget(Tagged, frozen=True):
    """To aggregators: the worker is gone, and no process will read its gradients any more."""

    worker: str


class Quit(Tagged, frozen=True):
    """Order for a process to end."""


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
