"""What the processes of a job say to each other: msgpack structs, validated on arrival.

Two channels, both ZeroMQ over loopback with CURVE: *control* (everyone to the coordinator) and *data*
(workers to the aggregator). The socket tells who speaks. Payloads never travel here; they lie in the shared
block (`scavenger.train.memory`).
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = [
    "AggregatorReady",
    "Announcement",
    "Bootstrap",
    "Contributed",
    "Done",
    "EpochReport",
    "Evaluation",
    "Failed",
    "Finish",
    "Hello",
    "Initialise",
    "Join",
    "Joined",
    "Manifest",
    "Missing",
    "Order",
    "Prepare",
    "Probe",
    "Quit",
    "Ready",
    "Save",
    "Saved",
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
]


class _Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    pass


class Bootstrap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a process is told on its standard input, before all else. It holds keys, so never in argv."""

    role: str
    name: str
    coordinator: str
    server_key: str
    public_key: str
    secret_key: str
    memory_fd: int
    slot: int = -1
    train: str = ""
    job_dir: str = ""
    seed: int = 0
    threads: int = 1


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of the model's state.

    `role`: `trainable` (has a gradient), `mean` (a float that the forward pass updates, averaged over workers
    by samples, as BatchNorm's statistics) or `first` (any other state, taken from the first member).
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    role: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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


# ---- worker or aggregator -> coordinator -------------------------------------------------------------------


class Hello(_Message, frozen=True):
    """A worker has built the model."""

    manifest: Manifest


class Ready(_Message, frozen=True):
    """A worker has mapped the block, traced its functions and connected to the aggregator."""


class Failed(_Message, frozen=True):
    """The process ends. `kind`: `code` (the user's code), `unsupported`, `nonfinite` or `internal`."""

    kind: str
    message: str


class Saved(_Message, frozen=True):
    """A worker has written the model."""


class AggregatorReady(_Message, frozen=True):
    """The aggregator can be connected to."""

    address: str


class Seeded(_Message, frozen=True):
    """A worker has put its initial weights where the job's weights begin."""


class StepReport(_Message, frozen=True):
    """A step was applied; see `scavenger.domain.measurement.StepRecord` for the fields."""

    step: int
    view: int
    epoch: int
    workers: int
    global_batch_size: int
    samples: int
    step_time_s: float
    compute_s: float
    loss: float
    mean_worker_sqnorm: float
    mean_sqnorm: float
    noise_parts: int


class EpochReport(_Message, frozen=True):
    """An epoch was evaluated; the aggregator waits for the verdict."""

    epoch: int
    step: int
    metrics: dict[str, float]
    evaluation_s: float


class ViewInstalled(_Message, frozen=True):
    view: int
    first_step: int
    workers: int
    global_batch_size: int
    reason: str


class Missing(_Message, frozen=True):
    """The answer to `Probe`."""

    step: int
    workers: tuple[str, ...]


class Done(_Message, frozen=True):
    """The aggregator has finalised the weights."""

    step: int


# ---- coordinator -> worker or aggregator -------------------------------------------------------------------


class Prepare(_Message, frozen=True):
    """To a worker whose manifest fits. `initial`: its initial weights become the job's."""

    manifest: Manifest
    slots: int
    aggregator: str
    aggregator_key: str
    initial: bool


class Initialise(_Message, frozen=True):
    """To the aggregator, once a worker has said what the model is and put its initial weights in place."""

    manifest: Manifest
    slots: int


class MemberBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker: str
    slot: int


class Announcement(_Message, frozen=True):
    number: int
    members: tuple[MemberBody, ...]
    global_batch_size: int
    urgent: bool
    reason: str


class VerdictGiven(_Message, frozen=True):
    """`keep_best`: the weights of this epoch are the best so far and are to be kept."""

    stop: bool
    keep_best: bool


class Probe(_Message, frozen=True):
    """Whom does the aggregator wait for?"""


class Finish(_Message, frozen=True):
    """To the aggregator: stop, and finalise the weights (`best`: put the best ones in their place)."""

    best: bool


class Save(_Message, frozen=True):
    """To a worker: write the model with the weights of `step` to `path`."""

    path: str
    step: int


class Quit(_Message, frozen=True):
    """End; nothing more is needed of the process."""


# ---- worker <-> aggregator ---------------------------------------------------------------------------------


class Join(_Message, frozen=True):
    """A worker has connected; an aggregator can reach only those that have spoken to it."""


class Joined(_Message, frozen=True):
    """The aggregator can reach the worker."""


class Contributed(_Message, frozen=True):
    """A gradient lies in the worker's slot. `half_sqnorm`: mean |g|^2 of its two halves, or 0."""

    view: int
    step: int
    compute_s: float
    loss: float
    half_sqnorm: float


class Evaluation(_Message, frozen=True):
    """The metric sums over a worker's share of the validation data lie in its slot."""

    view: int
    step: int


class Summarise(_Message, frozen=True):
    """To a member: turn the sums in the block into metrics."""

    view: int
    step: int


class Summary(_Message, frozen=True):
    """The answer to `Summarise`."""

    view: int
    step: int
    metrics: dict[str, float]


class ViewBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    number: int
    first_step: int
    global_batch_size: int
    members: tuple[MemberBody, ...]
    epoch: int
    consumed: int


class Order(_Message, frozen=True):
    """To a worker: `train`, `evaluate`, `idle` or `stop`; the weights of `step` can be read."""

    action: str
    step: int
    view: ViewBody


Message = (
    Hello
    | Ready
    | Failed
    | Saved
    | AggregatorReady
    | Seeded
    | StepReport
    | EpochReport
    | ViewInstalled
    | Missing
    | Done
    | Prepare
    | Initialise
    | Announcement
    | VerdictGiven
    | Probe
    | Finish
    | Save
    | Quit
    | Join
    | Joined
    | Contributed
    | Evaluation
    | Summarise
    | Summary
    | Order
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
