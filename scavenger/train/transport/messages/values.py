"""What messages are made of: the values inside them, and what a process is told before all else."""

from __future__ import annotations

import hashlib

import msgspec

from scavenger.elastic.quarantine import Cause
from scavenger.elastic.view import Member, Piece, Position, Share, View

__all__ = [
    "AggregatorAddress",
    "CheckpointPlan",
    "DeathBody",
    "LogSettings",
    "Manifest",
    "MemberBody",
    "PieceBody",
    "ProcessConfiguration",
    "Restore",
    "SlotSpec",
    "TensorSpec",
    "ViewBody",
    "piece_body",
    "piece_of",
    "view_body",
    "view_of",
]


class Tagged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A message: told from the others by its name."""


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of messages."""


class LogSettings(Body, frozen=True):
    """What a process logs, and how; see `scavenger.logs`."""

    job_id: str = ""
    level: str = ""
    format: str = "text"


class ProcessConfiguration(Body, frozen=True):
    """What a process is told on its standard input, before all else. It holds keys, so never in argv.

    Attributes:
        coordinator: Address of the hub.
        memory_fd: Descriptor of the job's block, inherited; -1 where the process makes its own.
        memory: Where else the block can be opened; empty for nowhere.
        index: An aggregator's place.
        token: A coordinator's.
        logs: What it logs.
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
    logs: LogSettings = LogSettings()


class TensorSpec(Body, frozen=True):
    """One tensor of the model's state.

    `role`: `trainable` (has a gradient), `mean` (a float that the forward pass updates, averaged over workers
    by samples, as BatchNorm's statistics), `first` (any other state, taken from the first piece) or `slot`
    (the optimizer's).
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    role: str


class SlotSpec(TensorSpec, frozen=True):
    """One array of an optimizer's state. Its path is for people: several may have the same.

    Attributes:
        tensor: The tensor that it belongs to, by its place among the optimizer's; -1 for none, as what depends on the
            number of steps alone.
        number: Tells it from the others of the same tensor.
    """

    tensor: int
    number: int


class Manifest(Body, frozen=True):
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
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:32]


class AggregatorAddress(Body, frozen=True):
    """`memory` names the block that the aggregator works on: who has the same shares it."""

    address: str
    key: str
    memory: str


class MemberBody(Body, frozen=True):
    worker: str
    slot: int


class ViewBody(Body, frozen=True):
    number: int
    first_step: int
    global_batch_size: int
    members: tuple[MemberBody, ...]
    epoch: int
    consumed: int
    lr_scale: float
    reason: str

    def __post_init__(self) -> None:
        view_of(self)  # one that is none is refused where it arrives


class PieceBody(Body, frozen=True):
    number: int
    start: int
    stop: int
    worker: str
    slot: int


class DeathBody(Body, frozen=True):
    """`cause`: of `scavenger.elastic.quarantine.Cause`; `hosts`: how many the job has."""

    worker: str
    host: str
    cause: str
    hosts: int

    def __post_init__(self) -> None:
        Cause(self.cause)


class Restore(Body, frozen=True):
    """Begin with a checkpoint instead of a worker's initial weights."""

    url: str


class CheckpointPlan(Body, frozen=True):
    """Where and how often checkpoints are written; either cadence may be absent (0)."""

    url: str
    every_s: float
    every_steps: int


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
