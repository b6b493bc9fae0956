"""Messages of the control channel from workers and aggregators, to the coordinator or the supervisor."""

from __future__ import annotations

from typing import Annotated

import msgspec

from scavenger.elastic.initialization import Endpoint
from scavenger.elastic.migration import BucketMap
from scavenger.elastic.view import View
from scavenger.frames import Frame
from scavenger.train.transport.messages.values import Manifest, Tagged


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
    `scavenger.train.failure.error_of` knows. `frames` are those of the user's code.
    """

    kind: str
    message: str
    frames: tuple[Frame, ...] = ()


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
        initialised: Whether it holds its model shard.
        own_memory: Whether only this process has its block, so that its state is lost when it ends.
    """

    index: int
    at: Endpoint
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
        step_time_s: Without `noise_s`.
        compute_s: Time of the slowest worker, its waiting for samples included.
        update_s: Time for averaging and for the optimizer.
        data_wait_s: Time that the worker that waited longest waited for samples.
        aggregator_wait_s: By the index of each aggregator that holds something, what the step waited for it: until its
            sums were formed since the last worker was done, its update, and its share of the weights on the way to
            the worker that waited longest. Only where workers push to aggregators on other hosts.
        noise_s: Time that a worker alone spent on measuring the gradient noise, which it does in some steps only.
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
    aggregator_wait_s: tuple[tuple[int, float], ...] = ()
    noise_s: float = 0.0


class EpochReport(Tagged, frozen=True):
    """An epoch was evaluated; the sequencer waits for the verdict.

    A job with callbacks also reports epoch -1, without metrics, before its first step.

    Attributes:
        callbacks: Whether the job has callbacks, which run before the verdict.
        batch_hooks: Whether they run after every step, too.
        stopped_by: Who has ended training with this epoch, with the reason, as of a command; empty if nobody has.
    """

    epoch: int
    step: int
    metrics: dict[str, float]
    evaluation_s: float
    callbacks: bool = False
    batch_hooks: bool = False
    stopped_by: str = ""


class BatchReport(Tagged, frozen=True):
    """A step that does not end its epoch was applied; the sequencer waits until the hooks of batches have run.

    Attributes:
        sums: The epoch's sums of the metric variables as of this step, as in `Summarise`.
    """

    epoch: int
    step: int
    sums: tuple[bytes, ...]


class CallbacksRun(Tagged, frozen=True):
    """The answer to `RunCallbacks`.

    Attributes:
        number, epoch, step, ends_epoch: Those of the request.
        state: State of the callbacks, JSON, from which another process can go on.
        rate_scale: The learning rate that they have set, over the one that the model was compiled with.
        learning_rate: The learning rate that they have set; None if the optimizer follows a schedule.
        stopped_by: The class of the callback that stops training; empty if none does.
        keep_best: Whether this epoch's weights are those to restore at the end; None if no callback decides that.
        notes: What the user should know about them.
        rates_ahead: At the beginning of training, the learning rate of each epoch over the compiled one, where it is
            known beforehand; else empty.
    """

    number: int
    epoch: int
    step: int
    state: str
    rate_scale: float
    learning_rate: float | None
    stopped_by: str
    keep_best: bool | None
    notes: tuple[str, ...]
    ends_epoch: bool = True
    rates_ahead: tuple[float, ...] = ()


class ViewInstalled(Tagged, frozen=True):
    """The sequencer has put a view into effect."""

    view: View


class MapChanged(Tagged, frozen=True):
    """The sequencer has decided on a map of buckets, which holds from now on."""

    map: BucketMap


class Migrated(Tagged, frozen=True):
    """A migration has ended; see `scavenger.elastic.migration.MigrationEnded`."""

    request: int
    map: BucketMap
    reason: str = ""


class SequencerState(Tagged, frozen=True):
    """The sequencer's answer to a `RollCall`.

    Attributes:
        initialised: Whether it holds its model shard.
        number: The number of the newest view that it knows.
        view: The view in effect; None before the first.
        step: The last applied step.
    """

    initialised: bool
    number: int
    view: View | None
    step: int


class SamplesQuarantined(Tagged, frozen=True):
    """Samples, by their indices in the data, are left out from now on: workers died of them."""

    samples: tuple[int, ...]
    reason: str


class MemoryExceeded(Tagged, frozen=True):
    """So many samples at once did not fit into the memory of a worker's device; it computes them in parts."""

    samples: Annotated[int, msgspec.Meta(ge=2)]


class Done(Tagged, frozen=True):
    """The aggregators have finalised the weights of `step`, which was applied with a factor on the learning rate."""

    step: int
    lr_scale: float = 1.0


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


class Unsaved(Tagged, frozen=True):
    """A worker could not write the model because its disk is full, or has another error."""

    cause: str


ReportMessage = (
    AggregatorReady
    | BatchReport
    | Beat
    | CallbacksRun
    | CheckpointFailed
    | CheckpointReady
    | CheckpointWritten
    | Done
    | EpochReport
    | Failed
    | Hello
    | SequencerState
    | Initialised
    | MapChanged
    | MemoryExceeded
    | Migrated
    | Present
    | SamplesQuarantined
    | Ready
    | Saved
    | SavedPart
    | Seeded
    | StepReport
    | Unsaved
    | ViewInstalled
)
