"""What the leader and the agents on its VMs say to each other: msgpack structs, validated on arrival.

Two ways in by one port: with a one-time key, by which an agent may do nothing but tell its own public key (`Join`),
and with that key, by which everything else travels as the words of numbered packets (see `channel`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from scavenger.train.checkpoints.remote_folder import FRAME_BYTES_MAX
from scavenger.train.transport.codec import Codec
from scavenger.train.transport.messages.values import ProcessConfiguration, Tagged

__all__ = [
    "AGENT_BYTES_MAX",
    "CHUNK_BYTES",
    "LOG_PART_BYTES",
    "MESSAGE_BYTES_MAX",
    "PROTOCOL",
    "Admitted",
    "AgentMessage",
    "Chunk",
    "Doom",
    "Ending",
    "Farewell",
    "Fetch",
    "FileAnswer",
    "FileAsk",
    "FileEnd",
    "Hello",
    "Join",
    "Kill",
    "Packet",
    "Placed",
    "Refused",
    "Renew",
    "Renewed",
    "Report",
    "ShowStack",
    "SocketMessage",
    "Start",
    "Stop",
    "Tell",
    "Warned",
    "decode",
    "encode",
]

PROTOCOL = 2
"""Rises when an older agent, or an older leader, would misread what is said."""
CHUNK_BYTES = 1 << 20
"""Of the job's folder, at a time: on its way for less than a packet waits before it is said again."""
LOG_PART_BYTES = 64 << 10
MESSAGE_BYTES_MAX = 4 << 20
"""What is longer is not taken in: a chunk and a bootstrap are far below."""
AGENT_BYTES_MAX = FRAME_BYTES_MAX + (64 << 10)
"""What is longer does not come from an agent: its longest word is a `FileAsk`."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
_Key = Annotated[str, msgspec.Meta(min_length=40, max_length=40)]
_Text = Annotated[str, msgspec.Meta(max_length=2000)]
_Status = Annotated[int, msgspec.Meta(ge=-128, le=255)]


# ---- with a one-time key -----------------------------------------------------------------------------------


class Join(Tagged, frozen=True):
    """An agent asks to be let in under a key that it has made itself; said until it is answered."""

    protocol: _Count
    version: _Text
    public_key: _Key


class Admitted(Tagged, frozen=True):
    """It is: by that key from now on."""


class Refused(Tagged, frozen=True):
    """It is not, and will not be."""

    reason: str


# ---- agent -> leader ---------------------------------------------------------------------------------------


class Hello(Tagged, frozen=True):
    """The first word under the agent's own key: by which address other VMs reach it."""

    address: _Text


class Placed(Tagged, frozen=True):
    """A process runs."""

    launch: _Count
    pid: _Count


class Report(Tagged, frozen=True):
    """What has come up since the last report of a process; `status` is None as long as it runs.

    `reason`: what the agent knows beyond the status; empty if nothing.
    """

    launch: _Count
    log: Annotated[bytes, msgspec.Meta(max_length=LOG_PART_BYTES)] = b""
    suspended: bool = False
    memory_bytes: _Count = 0
    status: _Status | None = None
    reason: _Text = ""


class Fetch(Tagged, frozen=True):
    """Asks for a part of the job's folder."""

    offset: _Count


class FileAsk(Tagged, frozen=True):
    """What a process asks of the leader's files, as `scavenger.train.checkpoints.remote_folder` says it.

    Attributes:
        number: Of the operation; never given twice.
    """

    number: _Count
    body: Annotated[bytes, msgspec.Meta(max_length=FRAME_BYTES_MAX)]


class FileEnd(Tagged, frozen=True):
    """Nobody waits for this operation any more."""

    number: _Count


class Doom(Tagged, frozen=True):
    """The cloud has told the VM that it will end, in so many seconds; None where no time is set."""

    in_s: _Seconds | None
    reason: _Text


class Renewed(Tagged, frozen=True):
    """The answer to `Renew`; `error` is empty where the VM's timer began anew."""

    number: _Count
    error: _Text


class Ending(Tagged, frozen=True):
    """The agent ends, and its processes with it."""

    reason: _Text


class Warned(Tagged, frozen=True):
    """What a person should know."""

    text: _Text


# ---- leader -> agent ---------------------------------------------------------------------------------------


class Start(Tagged, frozen=True):
    """Run a process.

    Attributes:
        launch: Names it from now on; never given twice.
        env: Variables beside the agent's own.
        folder: SHA-256 of the job's folder, which must be there first; empty where it is not needed.
        command: What it runs; empty: the training process, by the agent's own Python.
    """

    launch: _Count
    boot: ProcessConfiguration
    env: dict[str, str]
    folder: str
    command: tuple[str, ...]


class Kill(Tagged, frozen=True):
    """End a process at once; nothing if it has ended."""

    launch: _Count


class Stop(Tagged, frozen=True):
    """See `Engine.stop`."""

    launch: _Count
    grace_s: _Seconds


class Tell(Tagged, frozen=True):
    """See `Engine.tell`."""

    launch: _Count
    line: bytes


class ShowStack(Tagged, frozen=True):
    """See `Engine.show_stack`."""

    launch: _Count


class Chunk(Tagged, frozen=True):
    """A part of the job's folder, of `total` bytes."""

    offset: _Count
    total: _Count
    data: bytes


class FileAnswer(Tagged, frozen=True):
    """The answer to one `FileAsk`, in their order; none where the operation was broken off."""

    number: _Count
    body: bytes


class Renew(Tagged, frozen=True):
    """Start the VM's timer anew, for `life_s` seconds."""

    number: _Count
    life_s: _Seconds


class Farewell(Tagged, frozen=True):
    """The leader ends: the VM is of no more use."""


AgentMessage = (
    Hello
    | Placed
    | Report
    | Fetch
    | FileAsk
    | FileEnd
    | Doom
    | Renewed
    | Ending
    | Warned
    | Start
    | Kill
    | Stop
    | Tell
    | ShowStack
    | Chunk
    | FileAnswer
    | Renew
    | Farewell
)


class Packet(Tagged, frozen=True):
    """What travels.

    Attributes:
        number: Of the word; 0 where there is none.
        heard: The last number, in order, that the sender has taken of the other's words.
    """

    number: _Count
    heard: _Count
    word: AgentMessage | None = None


SocketMessage = Join | Admitted | Refused | Packet

_codec: Codec[SocketMessage] = Codec(SocketMessage)
encode, decode = _codec.encode, _codec.decode
