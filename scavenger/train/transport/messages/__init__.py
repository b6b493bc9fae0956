"""What the processes of a job say to each other: msgpack structs, validated on arrival.

Two channels, both ZeroMQ with CURVE: *control* (everyone through the supervisor's hub, most of it to the coordinator)
and *data* (workers and aggregators to aggregators). The socket tells who speaks. Between processes of one host
payloads never travel here; they lie in the shared block (`scavenger.train.transport.shared_memory`).
"""

from __future__ import annotations

from scavenger.train.transport.codec import Codec
from scavenger.train.transport.messages.control import *  # noqa: F403
from scavenger.train.transport.messages.control import ControlMessage
from scavenger.train.transport.messages.data import *  # noqa: F403
from scavenger.train.transport.messages.data import DataMessage

# a process that sends or receives imports this module alone: one name for all that can be said
from scavenger.train.transport.messages.values import *  # noqa: F403

Message = ControlMessage | DataMessage

_codec: Codec[Message] = Codec(Message)
encode, decode = _codec.encode, _codec.decode
