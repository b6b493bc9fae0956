"""Messages between the processes of a job: msgpack structs, validated on arrival.

There are two channels, both ZeroMQ with CURVE: *control* (all processes through the supervisor's hub, mostly to the
coordinator) and *data* (workers and aggregators to aggregators). The socket identifies the sender. Between processes
of one host, messages carry no payloads; those are in the shared-memory block
(`scavenger.train.transport.shared_memory`). Between hosts, payloads have streams of their own
(`scavenger.train.transport.payload_streams`).
"""

from __future__ import annotations

from scavenger.train.transport.codec import Codec
from scavenger.train.transport.messages.coordination import *
from scavenger.train.transport.messages.data import *
from scavenger.train.transport.messages.reports import *
from scavenger.train.transport.messages.requests import *
from scavenger.train.transport.messages.values import *

ControlMessage = CoordinationMessage | ReportMessage | RequestMessage
Message = ControlMessage | DataMessage

_codec: Codec[Message] = Codec(Message)
encode, decode = _codec.encode, _codec.decode
