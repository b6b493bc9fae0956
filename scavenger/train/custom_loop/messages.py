"""Messages between the workers of a custom training loop and the process that runs it (`LoopSupervisor`).

As in `transport.messages`, messages are msgpack structs over ZeroMQ with CURVE, validated on arrival. Arrays follow
a message as frames of plain bytes, which its `tensors` field describes; the two are checked against each other before
any array is made, and nothing is ever unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from scavenger.errors import MessageError
from scavenger.train.transport.codec import Codec
from scavenger.train.transport.messages import Beat, Failed

Array = npt.NDArray[Any]

_FRAME_BYTES = 16 << 20  # well below the sockets' limit on the size of a frame
_TENSORS_BYTES_MAX = 16 << 30  # of one message; a larger size is an error of its sender
_KINDS = "fiub"
_Count = Annotated[int, msgspec.Meta(ge=0)]


class TensorHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name, type and shape of an array whose bytes follow."""

    name: str
    dtype: Annotated[str, msgspec.Meta(pattern=r"^[<|][fiub][0-9]{1,2}$")]
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=32)]

    @property
    def bytes(self) -> int:
        """Size of the array's data."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class _Message(msgspec.Struct, frozen=True, tag_field="loop", tag=True, forbid_unknown_fields=True):
    pass


# ---- from workers ------------------------------------------------------------------------------------------


class ReplicaBuilt(_Message, frozen=True):
    """A worker has built its replica.

    Attributes:
        sizes: The samples of each shard, which every worker must agree on.
        tensors: The arrays of its state, without their data.
        metrics: Names of the metrics that its evaluation yields.
        apart: Whether any sample can be read: a step then takes the next ones of the only shard.
    """

    sizes: tuple[int, ...]
    tensors: tuple[TensorHeader, ...] = ()
    metrics: tuple[str, ...] = ()
    apart: bool = False


class AskMessage(_Message, frozen=True):
    """A worker asks for samples; see `scavenger.elastic.rounds.Asked`.

    Attributes:
        left: Whether its training code has left its loop over epochs, and asks for none.
    """

    step: int
    epoch: int
    left: bool = False


class Push(_Message, frozen=True):
    """A worker's gradients of samples `start` to `stop` of a shard, and the lease attempt that it read them under.

    Attributes:
        shared: Whether the arrays are in the worker's place of the shared memory, and no frames follow.
        compute_s: How long the worker read and computed.
        held: Whether the gradients among them are where they were computed, until they are asked for.
        device, group, failure: See `scavenger.elastic.exchange_ways.ExchangeWays.pushed`.
    """

    view: int
    step: int
    shard: int
    attempt: tuple[int, int]
    start: int
    stop: int
    tensors: tuple[TensorHeader, ...]
    shared: bool = False
    compute_s: float = 0.0
    held: bool = False
    device: str = ""
    group: int = 0
    failure: str = ""


class Reduced(_Message, frozen=True):
    """A process group has formed the mean of the gradients that this worker holds, unless there is a `failure`.

    Attributes:
        request: Number of the `Reduce` that this answers.
        own_sqnorm, sqnorm: Squared norms of this worker's gradient and of the mean.
        own_bad, bad: The array of this worker's gradient, and of the mean, that is not finite; empty if all are.
    """

    request: int
    own_sqnorm: float = 0.0
    sqnorm: float = 0.0
    own_bad: str = ""
    bad: str = ""
    failure: str = ""


class DonatedState(_Message, frozen=True):
    """A worker's replica in the state after `step`; it follows, or is at a place of the shared memory."""

    step: int
    tensors: tuple[TensorHeader, ...]
    place: int = -1


class Stepped(_Message, frozen=True):
    """A worker has applied a step, in `update_s`; the loss, if there is one, is over this worker's samples.

    Attributes:
        sums: If the mean was one to `compare`, sum and norm of each array of the replica.
        exchange_s: From its gradients to their mean, where its device computes; 0 if that is not known.
    """

    step: int
    epoch: int
    samples: int
    loss: float | None
    update_s: float = 0.0
    sums: dict[str, tuple[float, float]] | None = None
    exchange_s: float = 0.0


class EvaluatedMessage(_Message, frozen=True):
    """A worker has evaluated its replica after an epoch."""

    epoch: int
    metrics: dict[str, float]
    took_s: float


class FinishedMessage(_Message, frozen=True):
    """A worker's training function has returned; `tensors` are its final replica."""

    step: int
    tensors: tuple[TensorHeader, ...]


# ---- to workers --------------------------------------------------------------------------------------------


class StartMessage(_Message, frozen=True):
    """Start to train; see `scavenger.elastic.rounds.Start`. If `load`, the state to load follows.

    Attributes:
        share: Samples that the worker reads in a step; 0 if it chooses that itself.
        lr_scale: Factor for the learning rate.
        place: The worker's place in the shared memory; -1 for none.
        state: The place of the state in it; -1 if it follows.
        stride: Samples of a step; 0 if workers choose that themselves.
    """

    step: int
    epoch: int
    view: int
    members: int
    load: bool
    tensors: tuple[TensorHeader, ...] = ()
    share: int = 0
    lr_scale: float = 1.0
    place: int = -1
    state: int = -1
    stride: int = 0


class GrantMessage(_Message, frozen=True):
    """Lease of samples for a worker to read; see `scavenger.elastic.leases.Grant`."""

    shard: int
    attempt: tuple[int, int]
    start: int
    stop: int
    stride: int = 0


class MeanMessage(_Message, frozen=True):
    """Mean of a step's gradients, which follows or is in the shared memory; see `scavenger.elastic.rounds.Publish`.

    The share and the factor are as in `StartMessage`, and hold from the next step on. The step has so many `samples`.
    One that is shared is at a `place` of its own for a worker that follows the others, and may be behind them.
    If told to `compare`, the worker sums up its replica after the step.

    Attributes:
        own: Whether the mean is what the worker has pushed, as nobody else has; no arrays follow.
        reduced: Whether each worker has the mean of its gradients by a process group; the other arrays are as told.
        group: Number of the group for which gradients of the next step are to be held; 0 for none.
    """

    step: int
    epoch: int
    over: bool
    view: int
    members: int
    tensors: tuple[TensorHeader, ...]
    share: int = 0
    lr_scale: float = 1.0
    shared: bool = False
    samples: int = 0
    compare: bool = False
    place: int = 0
    own: bool = False
    reduced: bool = False
    group: int = 0


class MakeGroup(_Message, frozen=True):
    """Make a process group with others, beside the training; they meet at a file.

    Attributes:
        rank, size: This worker's rank, and the number of all.
        limit_s: How long it may take.
    """

    number: int
    rank: int
    size: int
    file: str
    limit_s: float


class Reduce(_Message, frozen=True):
    """Form the mean of the gradients that are held, in the newest group; this worker has a share of the samples."""

    request: int
    share: float


class GiveGradients(_Message, frozen=True):
    """Push the gradients that are held, so that the mean is formed without the group."""


class OverMessage(_Message, frozen=True):
    """An epoch is over; see `scavenger.elastic.rounds.Over`."""

    epoch: int


class Evaluate(_Message, frozen=True):
    """Request to evaluate the replica after an epoch, which is over."""

    epoch: int


class DonateMessage(_Message, frozen=True):
    """Request for a worker's replica, at a place of the shared memory if one is given; see `elastic.rounds.Donate`."""

    step: int
    place: int = -1


class LeaveMessage(_Message, frozen=True):
    """Order for a worker to end; see `scavenger.elastic.rounds.Leave`."""

    reason: str


LoopMessage = (
    ReplicaBuilt
    | AskMessage
    | Push
    | Reduced
    | DonatedState
    | Stepped
    | EvaluatedMessage
    | FinishedMessage
    | StartMessage
    | GrantMessage
    | MeanMessage
    | MakeGroup
    | Reduce
    | GiveGradients
    | OverMessage
    | Evaluate
    | DonateMessage
    | LeaveMessage
)
_loop: Codec[LoopMessage] = Codec(LoopMessage)
_process: Codec[Beat | Failed] = Codec(Beat | Failed)
encode = _loop.encode


def decode(data: bytes) -> LoopMessage | Beat | Failed:
    """Decode a message of a loop, or one that every process sends (`Beat`, `Failed`).

    Raises:
        MessageError: If the bytes are no valid message of either kind.
    """
    try:
        return _loop.decode(data)
    except MessageError:
        return _process.decode(data)


def headers_of(tensors: Mapping[str, Array]) -> tuple[TensorHeader, ...]:
    """Describe arrays of numbers, whose bytes are little-endian and in C order wherever they are sent."""
    return tuple(
        TensorHeader(name, tensor.dtype.newbyteorder("<").str, tensor.shape)
        for name, tensor in tensors.items()
    )


def pack(tensors: Mapping[str, Array]) -> tuple[tuple[TensorHeader, ...], list[Any]]:
    """Turn arrays into headers and frames. A frame may share the array's memory, which must then not be changed.

    Raises:
        ValueError: If an array is of a type that cannot be sent.
    """
    headers, frames = [], []
    for name, tensor in tensors.items():
        if tensor.dtype.kind not in _KINDS:
            raise ValueError(f"{name!r} is {tensor.dtype}: only arrays of numbers and booleans can be sent")
        little = np.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("<"))
        headers.append(TensorHeader(name, little.dtype.str, tensor.shape))
        flat = little.reshape(-1).view(np.uint8)
        frames += [flat[at : at + _FRAME_BYTES].data for at in range(0, flat.size, _FRAME_BYTES)]
    return tuple(headers), frames


def unpack(headers: Sequence[TensorHeader], frames: Sequence[bytes]) -> dict[str, Array]:
    """Turn headers and frames back into the arrays that `pack` took; they are read-only.

    Raises:
        ValueError: If the frames do not fit the headers, or two headers have the same name.
    """
    if len({header.name for header in headers}) < len(headers):
        raise ValueError("two arrays have the same name")
    if sum(header.bytes for header in headers) > _TENSORS_BYTES_MAX:
        raise ValueError(f"the headers announce more than {_TENSORS_BYTES_MAX} bytes")
    expected = [
        min(_FRAME_BYTES, header.bytes - at)
        for header in headers
        for at in range(0, header.bytes, _FRAME_BYTES)
    ]
    if [len(frame) for frame in frames] != expected:
        raise ValueError("the frames do not fit the headers")
    tensors, rest = {}, list(reversed(frames))
    for header in headers:
        count = -(-header.bytes // _FRAME_BYTES)
        parts = [rest.pop() for _ in range(count)]
        data = parts[0] if count == 1 else b"".join(parts)
        tensors[header.name] = np.frombuffer(data, header.dtype).reshape(header.shape)
    return tensors
