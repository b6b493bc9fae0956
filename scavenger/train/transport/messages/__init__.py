"""What the processes of a job say to each other: msgpack structs, validated on arrival.

Two channels, both ZeroMQ with CURVE: *control* (everyone through the supervisor's hub, most of it to the coordinator)
and *data* (workers and aggregators to aggregators). The socket tells who speaks. Between processes of one host
payloads never travel here; they lie in the shared block (`scavenger.train.transport.shared_memory`).
"""

from __future__ import annotations

from typing import Any

import msgspec

from scavenger.train.transport.messages.control import *  # noqa: F403
from scavenger.train.transport.messages.control import ControlMessage
from scavenger.train.transport.messages.data import *  # noqa: F403
from scavenger.train.transport.messages.data import DataMessage

# whoever speaks imports this module alone: one name for all that can be said
from scavenger.train.transport.messages.values import *  # noqa: F403

Message = ControlMessage | DataMessage

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
    try:
        return _decoder.decode(data)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(str(error)) from None
