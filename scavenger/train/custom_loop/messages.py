"""What the workers of a training loop of one's own and its leader say to each other.

As in `transport.messages`: msgpack structs over ZeroMQ with CURVE, validated on arrival. Arrays follow a
message as frames of plain bytes, which its `tensors` describe; both are checked against each other before any
array is made, and nothing is ever unpickled.
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

__all__ = [
    "Array",
    "Ask",
    "Donate",
    "DonatedState",
    "Finished",
    "Grant",
    "Hello",
    "Leave",
    "LoopMessage",
    "Mean",
    "Over",
    "Push",
    "Start",
    "Stepped",
    "TensorHeader",
    "decode",
    "encode",
    "pack",
    "unpack",
]

Array = npt.NDArray[Any]

_FRAME_BYTES = 16 << 20  # well below what a socket takes in one piece
_TENSORS_BYTES_MAX = 16 << 30  # of one message: beyond, its sender is broken
_KINDS = "fiub"
_Count = Annotated[int, msgspec.Meta(ge=0)]


class TensorHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name, type and shape of an array whose bytes follow."""

    name: str
    dtype: Annotated[str, msgspec.Meta(pattern=r"^[<|][fiub][0-9]{1,2}$")]
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=32)]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class _Message(msgspec.Struct, frozen=True, tag_field="loop", tag=True, forbid_unknown_fields=True):
    pass


# ---- from workers ------------------------------------------------------------------------------------------


class Hello(_Message, frozen=True):
    """The replica is built; `sizes` are the samples of each shard, and the same at every worker."""

    sizes: tuple[int, ...]


class Ask(_Message, frozen=True):
    """See `scavenger.elastic.rounds.Asked`."""

    step: int
    epoch: int


class Push(_Message, frozen=True):
    """Gradients of samples `start` to `stop` of a shard, read under an attempt."""

    view: int
    step: int
    shard: int
    attempt: tuple[int, int]
    start: int
    stop: int
    tensors: tuple[TensorHeader, ...]


class DonatedState(_Message, frozen=True):
    """The replica as it is after `step`."""

    step: int
    tensors: tuple[TensorHeader, ...]


class Stepped(_Message, frozen=True):
    """A step is applied; the loss, where there is one, is of this worker's samples."""

    step: int
    epoch: int
    samples: int
    loss: float | None


class Finished(_Message, frozen=True):
    """The training function has returned; the replica as it is then."""

    step: int
    tensors: tuple[TensorHeader, ...]


# ---- to workers --------------------------------------------------------------------------------------------


class Start(_Message, frozen=True):
    """See `scavenger.elastic.rounds.Start`; with `load`, the state follows."""

    step: int
    epoch: int
    view: int
    members: int
    load: bool
    tensors: tuple[TensorHeader, ...] = ()


class Grant(_Message, frozen=True):
    """See `scavenger.elastic.leases.Grant`."""

    shard: int
    attempt: tuple[int, int]
    start: int
    stop: int


class Mean(_Message, frozen=True):
    """See `scavenger.elastic.rounds.Publish`; the mean follows."""

    step: int
    epoch: int
    over: bool
    view: int
    members: int
    tensors: tuple[TensorHeader, ...]


class Over(_Message, frozen=True):
    """See `scavenger.elastic.rounds.Over`."""

    epoch: int


class Donate(_Message, frozen=True):
    """See `scavenger.elastic.rounds.Donate`."""

    step: int


class Leave(_Message, frozen=True):
    """See `scavenger.elastic.rounds.Leave`."""

    reason: str


LoopMessage = (
    Hello | Ask | Push | DonatedState | Stepped | Finished | Start | Grant | Mean | Over | Donate | Leave
)
_loop: Codec[LoopMessage] = Codec(LoopMessage)
_process: Codec[Beat | Failed] = Codec(Beat | Failed)
encode = _loop.encode


def decode(data: bytes) -> LoopMessage | Beat | Failed:
    """A message of a loop, or what every process says of itself.

    Raises:
        MessageError: If it is neither, or not valid.
    """
    try:
        return _loop.decode(data)
    except MessageError:
        return _process.decode(data)


def pack(tensors: Mapping[str, Array]) -> tuple[tuple[TensorHeader, ...], list[Any]]:
    """Arrays as headers and frames. A frame may be the array's own memory, so it must not change in place.

    Raises:
        ValueError: If an array is of a type that does not travel.
    """
    headers, frames = [], []
    for name, tensor in tensors.items():
        if tensor.dtype.kind not in _KINDS:
            raise ValueError(f"{name!r} is {tensor.dtype}: only numbers and truth values travel")
        little = np.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("<"))
        headers.append(TensorHeader(name, little.dtype.str, tensor.shape))
        flat = little.reshape(-1).view(np.uint8)
        frames += [flat[at : at + _FRAME_BYTES].data for at in range(0, flat.size, _FRAME_BYTES)]
    return tuple(headers), frames


def unpack(headers: Sequence[TensorHeader], frames: Sequence[bytes]) -> dict[str, Array]:
    """The arrays that `pack` took, read-only.

    Raises:
        ValueError: If the frames are not what the headers say, or a name comes twice.
    """
    if len({header.name for header in headers}) < len(headers):
        raise ValueError("a name comes twice")
    if sum(header.bytes for header in headers) > _TENSORS_BYTES_MAX:
        raise ValueError(f"more than {_TENSORS_BYTES_MAX} bytes are announced")
    expected = [
        min(_FRAME_BYTES, header.bytes - at)
        for header in headers
        for at in range(0, header.bytes, _FRAME_BYTES)
    ]
    if [len(frame) for frame in frames] != expected:
        raise ValueError("the frames are not what was announced")
    tensors, rest = {}, list(reversed(frames))
    for header in headers:
        count = -(-header.bytes // _FRAME_BYTES)
        parts = [rest.pop() for _ in range(count)]
        data = parts[0] if count == 1 else b"".join(parts)
        tensors[header.name] = np.frombuffer(data, header.dtype).reshape(header.shape)
    return tensors
