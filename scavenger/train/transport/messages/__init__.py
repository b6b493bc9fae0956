"""Messages between the processes of a job: msgpack structs, validated on arrival.

There are two channels, both ZeroMQ with CURVE: *control* (all processes through the supervisor's hub, mostly to the
coordinator) and *data* (workers and aggregators to aggregators). The socket identifies the sender. Between processes
of one host, messages carry no payloads; those are in the shared-memory block
(`scavenger.train.transport.shared_memory`).
"""

from __future__ import annotations

from scavenger.train.transport.codec import Codec
from scavenger.train.transport.messages.control import *  # noqa: F403
from scavenger.train.transport.messages.control import ControlMessage
from scavenger.train.transport.messages.data import *  # noqa: F403
from scavenger.train.transport.messages.data import DataMessage

# a process that sends or receives imports only this module, which has all messages
from scavenger.train.transport.messages.values import *  # noqa: F403

Message = ControlMessage | DataMessage

_codec: Codec[Message] = Codec(Message)
encode, decode = _codec.encode, _codec.decode
