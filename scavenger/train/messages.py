"""What the processes of a job say to each other: msgpack structs, validated on arrival.

Two channels, both ZeroMQ with CURVE: *control* (everyone through the crew's hub, most of it to the coordinator)
and *data* (workers and aggregators to aggregators). The socket tells who speaks. Between processes of one host
payloads never travel here; they lie in the shared block (`scavenger.train.memory`).
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from scavenger.elastic.view import Member, Piece, Position, Share, View

__all__ = [
    "AggregatorAddress",
    "AggregatorReady",
    "Announcement",
    "ApplyPart",
    "Beat",
    "Bootstrap",
    "Brief",
    "CheckpointFailed",
    "CheckpointPlan",
    "CheckpointWritten",
    "Chunk",
    "Contributed",
    "DeathBody",
    "Done",
    "Ended",
    "EpochReport",
    "Evaluation",
    "Expel",
    "Failed",
    "Finalise",
    "Finalised",
    "Finish",
    "Forget",
    "Held",
    "Hello",
    "Inform",
    "Initialise",
    "Initialised",
    "Join",
    "Joined",
    "KeepBest",
    "Launched",
    "Manifest",
    "Message",
    "Order",
    "PartApplied",
    "PartSaved",
    "PieceBody",
    "Prepare",
    "Present",
    "Pull",
    "Quarantined",
    "Quit",
    "Ready",
    "Reconnect",
    "Release",
    "Resize",
    "Restore",
    "Rewind",
    "RollBack",
    "RollCall",
    "Roster",
    "Save",
    "SavePart",
    "Saved",
    "SavedPart",
    "Seed",
    "Seeded",
    "StepReport",
    "Summarise",
    "Summary",
    "TensorSpec",
    "VerdictGiven",
    "ViewBody",
    "ViewInstalled",
    "decode",
    "encode",
    "piece_body",
    "piece_of",
    "view_body",
    "view_of",
]


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Bootstrap(_Body, frozen=True):
    """What a process is told on its standard input, before all else. It holds keys, so never in argv.

    Attributes:
        coordinator: Address of the hub.
        memory_fd: Descriptor of the job's block, inherited; -1 where the process makes its own.
        memory: Where else the block can be opened; empty for nowhere.
        index: An aggregator's place.
        token: A coordinator's.
    """

    role: str
    name: str
    coordinator: str
    server_key: str
    public_key: str
    secret_key: str
    memory_fd: int
    memory: str = ""
    index: int = 0
    token: int = 0
    train: str = ""
    job_dir: str = ""
    seed: int = 0
    threads: int = 1
    data_public_key: str = ""
    data_secret_key: str = ""


class TensorSpec(_Body, frozen=True):
    """One tensor of the model's state.

    `role`: `trainable` (has a gradient), `mean` (a float that the forward pass updates, averaged over workers
    by samples, as BatchNorm's statistics), `first` (any other state, taken from the first piece) or `slot`
    (the optimizer's).
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    role: str


class Manifest(_Body, frozen=True):
    """What a worker found in the user's module. Every worker of a job must find the same.

    Attributes:
        architecture: See `scavenger.domain.fingerprint.Fingerprint`.
        metrics: Shapes of the metric variables, whose sums over workers and steps make the metrics.
        optimizer: Keras's serialised optimizer, JSON.
        metric_names: Names that a goal may use.
    """

    tensors: tuple[TensorSpec, ...]
    metrics: tuple[tuple[int, ...], ...]
    optimizer: str
    architecture: str
    parameters: int
    dataset_size: int
    validation_size: int
    sample_bytes: int
    metric_names: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Tells a model and its data from another; of 32 hexadecimal digits."""
        return hashlib.sha256(_encoder.encode(self)).hexdigest()[:32]


class AggregatorAddress(_Body, frozen=True):
    """`memory` names the block that the aggregator works on: who has the same shares it."""

    address: str
    key: str
    memory: str


class MemberBody(_Body, frozen=True):
    worker: str
    slot: int


class ViewBody(_Body, frozen=True):
    number: int
    first_step: int
    global_batch_size: int
    members: tuple[MemberBody, ...]
    epoch: int
    consumed: int
    lr_scale: float
    reason: str


class PieceBody(_Body, frozen=True):
    number: int
    start: int
    stop: int
    worker: str
    slot: int


class DeathBody(_Body, frozen=True):
    """`cause`: of `scavenger.elastic.quarantine.Cause`; `hosts`: how many the job has."""

    worker: str
    host: str
    cause: str
    hosts: int


class Restore(_Body, frozen=True):
    """Begin with a checkpoint instead of a worker's initial weights."""

    url: str


class CheckpointPlan(_Body, frozen=True):
    """Where and how often checkpoints are written; either cadence may be absent (0)."""

    url: str
    every_s: float
    every_steps: int


# ---- worker, aggregator -> coordinator or crew -------------------------------------------------------------


class Hello(_Message, frozen=True):
    """A worker has built the model."""

    manifest: Manifest


class Ready(_Message, frozen=True):
    """A worker has mapped the block, traced its functions and connected to every aggregator."""


class Present(_Message, frozen=True):
    """The answer to `RollCall`: how far a worker is."""

    manifest: Manifest
    prepared: bool
    seeded: bool
    ready: bool
    memory: str


class Beat(_Message, frozen=True):
    """A process lives.

    Attributes:
        step: The last step that it computed, or applied.
        view: The newest view that it has heard of.
        missing: From the sequencer: workers that are awaited.
        waiting_s: For how long.
        behind: From the sequencer: places of aggregators that are awaited.
    """

    step: int = 0
    view: int = 0
    missing: tuple[str, ...] = ()
    waiting_s: float = 0.0
    behind: tuple[int, ...] = ()


class Failed(_Message, frozen=True):
    """The process ends. `kind`: `code` (the user's code), `unsupported`, `nonfinite` or `internal`."""

    kind: str
    message: str


class Saved(_Message, frozen=True):
    """A worker has written the model."""


class SavedPart(_Message, frozen=True):
    """Bytes of the model's file, from a worker that was asked to send it; `Saved` follows the last."""

    offset: int
    data: bytes


class AggregatorReady(_Message, frozen=True):
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


class Seeded(_Message, frozen=True):
    """A worker has put its initial weights where, in its memory, the job's weights begin."""

    memory: str


class Initialised(_Message, frozen=True):
    """An aggregator holds its part, as it is after `step`; `epoch` and `consumed` tell where the next begins."""

    index: int
    step: int
    epoch: int
    consumed: int


class StepReport(_Message, frozen=True):
    """A step was applied; see `scavenger.domain.measurement.StepRecord` for the fields.

    `update_s`: averaging and the optimizer. `data_wait_s`: for the samples, of the worker that waited longest.
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
    worker_compute_s: dict[str, float] = {}
    pieces: tuple[tuple[str, int, int], ...] = ()


class EpochReport(_Message, frozen=True):
    """An epoch was evaluated; the sequencer waits for the verdict."""

    epoch: int
    step: int
    metrics: dict[str, float]
    evaluation_s: float


class ViewInstalled(_Message, frozen=True):
    view: ViewBody


class Inform(_Message, frozen=True):
    """The sequencer's answer to a `RollCall`. `view` is None before the first; `number`: newest heard of."""

    initialised: bool
    number: int
    view: ViewBody | None
    step: int


class Quarantined(_Message, frozen=True):
    """Samples, by their indices in the data, are left out from now on: workers died of them."""

    samples: tuple[int, ...]
    reason: str


class Done(_Message, frozen=True):
    """The aggregators have finalised the weights."""

    step: int


class CheckpointWritten(_Message, frozen=True):
    step: int
    epoch: int
    written_s: float
    bytes: int


class CheckpointFailed(_Message, frozen=True):
    step: int
    message: str


# ---- crew <-> coordinator ----------------------------------------------------------------------------------


class Brief(_Message, frozen=True):
    """What a coordinator must know to lead: limits, who is there, and what was last asked for.

    Attributes:
        number: Of the newest view that the crew has heard of.
        begun: The aggregators hold the model, or did.
        rewinding: Places of those that are to begin anew, whatever their memory says.
        quarantined: Samples that are left out.
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
    begun: bool
    rewinding: tuple[int, ...]
    quarantined: tuple[int, ...]


class RollBack(_Message, frozen=True):
    """From the coordinator: a part of the model is lost, so all aggregators must be started anew."""

    cause: str


class Rewind(_Message, frozen=True):
    """The crew's answer to `RollBack`: they are ended; those that follow begin with this, or with initial weights."""

    restore: Restore | None


class Launched(_Message, frozen=True):
    worker: str


class Ended(_Message, frozen=True):
    """A process is gone; how, where it was a worker that was not told to go."""

    name: str
    death: DeathBody | None = None


class Resize(_Message, frozen=True):
    """Train on so many workers with such a batch from the next boundary on; see `Membership.resize`."""

    command: int
    workers: int
    global_batch_size: int
    reason: str
    without: tuple[str, ...] = ()
    lr_scale: float = 1.0


class Release(_Message, frozen=True):
    """Let spare workers go, until `keep` are alive."""

    command: int
    keep: int


class Roster(_Message, frozen=True):
    """The coordinator's book: states by worker, the newest command it has carried out, what has settled.

    `forgotten`: workers that are gone and whose slots nobody reads any more.
    """

    command: int
    states: dict[str, str]
    settled: bool
    number: int
    forgotten: tuple[str, ...]


class Expel(_Message, frozen=True):
    """A process must be ended. `hung`: by limits, so its stack is wanted first; `cause` in words."""

    name: str
    cause: str
    hung: bool
    fatal: str = ""


# ---- coordinator or crew -> worker or aggregator -----------------------------------------------------------


class RollCall(_Message, frozen=True):
    """A coordinator takes the lead and asks who is there. To all."""

    token: int


class Prepare(_Message, frozen=True):
    """To a worker whose manifest fits. `initial`: its initial weights become the job's."""

    manifest: Manifest
    aggregators: tuple[AggregatorAddress, ...]
    initial: bool


class Reconnect(_Message, frozen=True):
    """To workers and aggregators: an aggregator was restarted and has another address now."""

    aggregators: tuple[AggregatorAddress, ...]


class Initialise(_Message, frozen=True):
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


class Announcement(_Message, frozen=True):
    number: int
    members: tuple[MemberBody, ...]
    global_batch_size: int
    lost: tuple[str, ...]
    deaths: tuple[DeathBody, ...]
    token: int
    lr_scale: float
    reason: str


class VerdictGiven(_Message, frozen=True):
    """`keep_best`: the weights of this epoch are the best so far and are to be kept."""

    epoch: int
    stop: bool
    keep_best: bool


class Finish(_Message, frozen=True):
    """To the sequencer: stop, and finalise the weights (`best`: put the best ones in their place)."""

    best: bool


class Save(_Message, frozen=True):
    """To a worker: write the model with the weights of `step` to `path`, or send it where `path` is empty."""

    path: str
    step: int


class Forget(_Message, frozen=True):
    """To aggregators: the worker is gone, and nobody will read its gradients any more."""

    worker: str


class Quit(_Message, frozen=True):
    """End; nothing more is needed of the process."""


# ---- worker <-> aggregator ---------------------------------------------------------------------------------


class Join(_Message, frozen=True):
    """A worker has connected; an aggregator can reach only those that have spoken to it."""


class Joined(_Message, frozen=True):
    """The aggregator can reach the worker."""


class Contributed(_Message, frozen=True):
    """A gradient lies in the worker's slot. `half_sqnorm`: mean |g|^2 of its two halves, or 0.

    `held`: places of the aggregators that read the worker's memory, and so have it already. `samples`: those of
    the piece that are not quarantined.
    """

    view: int
    step: int
    piece: int
    samples: int
    held: tuple[int, ...]
    compute_s: float
    data_wait_s: float
    loss: float
    half_sqnorm: float


class Chunk(_Message, frozen=True):
    """Bytes of a state section, from `offset` on, follow in the next frame.

    Towards an aggregator: of the gradient of `piece`, which lies in `slot`. Else of the weights of `step`, and
    `piece` is the number of the `Pull` or `Seed` that is answered.
    """

    step: int
    offset: int
    piece: int
    slot: int = -1
    view: int = 0


class Pull(_Message, frozen=True):
    """A worker on another host wants the aggregator's part of the weights of `step`, once they are there."""

    step: int
    number: int


class Seed(_Message, frozen=True):
    """An aggregator wants its part of the worker's initial weights."""

    number: int


class Evaluation(_Message, frozen=True):
    """The metric sums over a piece of the validation data lie in the worker's slot.

    `sums`: where the sequencer does not share the worker's memory.
    """

    view: int
    step: int
    piece: int
    sums: tuple[bytes, ...] = ()


class Summarise(_Message, frozen=True):
    """To a worker: turn the sums into metrics."""

    view: int
    step: int
    training: tuple[bytes, ...]
    validation: tuple[bytes, ...]


class Summary(_Message, frozen=True):
    """The answer to `Summarise`."""

    view: int
    step: int
    metrics: dict[str, float]


class Order(_Message, frozen=True):
    """To a worker: `train`, `evaluate`, `idle` or `stop`; the weights of `step` can be read.

    Attributes:
        quarantined: Samples to leave out.
        cautious: Workers have died of something: read nothing but what is to be computed.
    """

    action: str
    step: int
    view: ViewBody
    pieces: tuple[PieceBody, ...]
    quarantined: tuple[int, ...]
    cautious: bool


# ---- sequencer <-> the other aggregators -------------------------------------------------------------------


class Held(_Message, frozen=True):
    """An aggregator has received all of its part of a piece."""

    index: int
    worker: str
    view: int
    step: int
    piece: int


class ApplyPart(_Message, frozen=True):
    """Apply a step. `pieces`: number, samples and slot of each, in order; the same for every aggregator."""

    step: int
    view: int
    lr_scale: float
    pieces: tuple[tuple[int, int, int], ...]


class PartApplied(_Message, frozen=True):
    index: int
    step: int
    finite: bool
    mean_worker_sqnorm: float
    mean_sqnorm: float
    update_s: float


class KeepBest(_Message, frozen=True):
    """The weights of `step` are the best so far."""

    step: int


class Finalise(_Message, frozen=True):
    step: int
    best: bool


class Finalised(_Message, frozen=True):
    index: int
    step: int


class SavePart(_Message, frozen=True):
    """Write the part as it is after `step` into a checkpoint, in the background."""

    step: int
    attempt: str
    url: str
    best: bool


class PartSaved(_Message, frozen=True):
    """`error` is empty where it was written; then `parts` are (name, sha256, bytes, finite)."""

    index: int
    step: int
    attempt: str
    parts: tuple[tuple[str, str, int, bool], ...]
    error: str


Message = (
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
    | Join
    | Joined
    | Contributed
    | Chunk
    | Pull
    | Seed
    | Evaluation
    | Summarise
    | Summary
    | Order
    | Held
    | ApplyPart
    | PartApplied
    | KeepBest
    | Finalise
    | Finalised
    | SavePart
    | PartSaved
)

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Any) -> bytes:
    """A message as msgpack."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """A message from msgpack.

    Raises:
        msgspec.DecodeError: If it is none of ours, or not valid.
    """
    return _decoder.decode(data)


def view_body(view: View) -> ViewBody:
    """A view as it travels."""
    return ViewBody(
        number=view.number,
        first_step=view.first_step,
        global_batch_size=view.global_batch_size,
        members=tuple(MemberBody(member.worker, member.slot) for member in view.members),
        epoch=view.position.epoch,
        consumed=view.position.consumed,
        lr_scale=view.lr_scale,
        reason=view.reason,
    )


def view_of(body: ViewBody) -> View:
    """A view that has travelled."""
    return View(
        number=body.number,
        first_step=body.first_step,
        global_batch_size=body.global_batch_size,
        members=tuple(Member(member.worker, member.slot) for member in body.members),
        position=Position(body.epoch, body.consumed),
        lr_scale=body.lr_scale,
        reason=body.reason,
    )


def piece_body(piece: Piece) -> PieceBody:
    """A piece as it travels."""
    return PieceBody(piece.number, piece.share.start, piece.share.stop, piece.worker, piece.slot)


def piece_of(body: PieceBody) -> Piece:
    """A piece that has travelled."""
    return Piece(body.number, Share(body.start, body.stop), body.worker, body.slot)
