"""Messages between the leader and the agents on its VMs: msgpack structs, validated on arrival.

One port accepts two kinds of keys. With a one-time key, a VM can only fetch the package that it installs (`Fetch`) and
send the public key of its agent (`Join`). With the agent's own key, all other messages travel in numbered packets (see
`channel`).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from scavenger.train.checkpoints.remote_folder import FRAME_BYTES_MAX
from scavenger.train.transport.codec import Codec
from scavenger.train.transport.messages.values import ProcessConfiguration, Tagged

PROTOCOL = 8
"""Incremented when an older agent or leader would misread a message."""
CHUNK_BYTES = 1 << 20
"""Chunk size of the job's folder and of the package: small enough to arrive before the packet would be resent."""
LOG_PART_BYTES = 64 << 10
IDENTITY_CHARACTERS_MAX = 16 << 10
"""Longest proof of a VM's identity; EC2's document and Google's token have 2,000 characters or so."""
MESSAGE_BYTES_MAX = 4 << 20
"""Longest accepted message; a chunk and a process configuration are much shorter."""
AGENT_BYTES_MAX = FRAME_BYTES_MAX + (64 << 10)
"""Longest message accepted from an agent, whose longest message is a `FileAsk`."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
_Key = Annotated[str, msgspec.Meta(min_length=40, max_length=40)]
_Text = Annotated[str, msgspec.Meta(max_length=2000)]
_Status = Annotated[int, msgspec.Meta(ge=-128, le=255)]


# ---- with a one-time key -----------------------------------------------------------------------------------


class Join(Tagged, frozen=True):
    """Request of an agent to be admitted with a key that it has generated; repeated until it is answered.

    `identity`: the cloud's proof that the agent is on this VM; empty if the cloud gives none.
    """

    protocol: _Count
    version: _Text
    public_key: _Key
    identity: Annotated[str, msgspec.Meta(max_length=IDENTITY_CHARACTERS_MAX)] = ""


class Admitted(Tagged, frozen=True):
    """The agent is admitted, and uses its own key from now on."""


class Refused(Tagged, frozen=True):
    """The agent is refused for good."""

    reason: str


# ---- agent -> leader ---------------------------------------------------------------------------------------


class Hello(Tagged, frozen=True):
    """First message under the agent's own key: the address by which other VMs reach it, and what its machine has.

    `cpus`: processors that it may use. `memory_bytes`: all of the machine's. `bytes_per_s`: what its network interface
    carries, as its driver says; 0 if it says nothing. `node`: the machine that it is on, where its environment names
    one.
    """

    address: _Text
    cpus: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)] = 0
    memory_bytes: _Count = 0
    bytes_per_s: _Count = 0
    node: _Text = ""


class Placed(Tagged, frozen=True):
    """A process was started."""

    launch: _Count
    pid: _Count


class Report(Tagged, frozen=True):
    """Changes of a process since its last report; `status` is None as long as it runs.

    `working`: whether it was seen to use a processor, or to wait for one, since the last report. `reason`: what the
    agent knows beyond the status; may be empty. `cpu_s` and `waited_s`: for a tenant of a pool, the processor time that
    it has used with all that it runs, and the time that it was kept waiting for a processor, both since its begin.
    """

    launch: _Count
    log: Annotated[bytes, msgspec.Meta(max_length=LOG_PART_BYTES)] = b""
    suspended: bool = False
    memory_bytes: _Count = 0
    working: bool = False
    cpu_s: _Seconds = 0.0
    waited_s: _Seconds = 0.0
    status: _Status | None = None
    reason: _Text = ""


class Fetch(Tagged, frozen=True):
    """Requests a chunk: with a one-time key of the package, with the agent's own key of the job's folder."""

    offset: _Count


class FileAsk(Tagged, frozen=True):
    """A process's question about the leader's files, encoded by `scavenger.train.checkpoints.remote_folder`.

    Attributes:
        number: Number of the operation; never reused.
        body: The encoded question.
    """

    number: _Count
    body: Annotated[bytes, msgspec.Meta(max_length=FRAME_BYTES_MAX)]


class FileEnd(Tagged, frozen=True):
    """The process no longer waits for this operation."""

    number: _Count


class Preemption(Tagged, frozen=True):
    """Preemption notice: the cloud will end the VM in `in_s` seconds; None if no time is set."""

    in_s: _Seconds | None
    reason: _Text


class Renewed(Tagged, frozen=True):
    """The answer to `Renew`; `error` is empty if the VM's timer was restarted."""

    number: _Count
    error: _Text


class Ending(Tagged, frozen=True):
    """The agent is about to exit and end its processes."""

    reason: _Text


class Warned(Tagged, frozen=True):
    """A warning for users."""

    text: _Text


# ---- leader -> agent ---------------------------------------------------------------------------------------


class Start(Tagged, frozen=True):
    """Run a process.

    Attributes:
        launch: Number that identifies the process; never reused.
        env: Variables in addition to the agent's own.
        folder: SHA-256 of the job's folder, which must be fetched first; empty if it is not needed.
        command: Command to run; empty: the training process, with the agent's own Python.
    """

    launch: _Count
    boot: ProcessConfiguration
    env: dict[str, str]
    folder: str
    command: tuple[str, ...]


class Kill(Tagged, frozen=True):
    """End a process at once; no effect if it has ended."""

    launch: _Count


class Stop(Tagged, frozen=True):
    """See `Engine.stop`."""

    launch: _Count
    grace_s: _Seconds


class ShowStack(Tagged, frozen=True):
    """See `Engine.show_stack`."""

    launch: _Count


class Chunk(Tagged, frozen=True):
    """A chunk of the package, or of the archive of the job's folder, which has `total` bytes."""

    offset: _Count
    total: _Count
    data: bytes


class FileAnswer(Tagged, frozen=True):
    """The answer to one `FileAsk`, in their order; there is none if the operation was cancelled."""

    number: _Count
    body: bytes


class Renew(Tagged, frozen=True):
    """Restart the VM's timer with `life_s` seconds."""

    number: _Count
    life_s: _Seconds


class Farewell(Tagged, frozen=True):
    """The leader ends, and the VM is no longer needed."""


class Move(Tagged, frozen=True):
    """Join another leader, as after a boot: nothing of this one's stays on the VM, and its time limit goes on.

    Attributes:
        endpoint, server_key, secret: As of `scavenger.train.engines.vm.agent.Ticket`.
        intent: The name by which the other leader expects the agent.
    """

    endpoint: _Text
    server_key: _Key
    intent: _Text
    secret: _Key


AgentMessage = (
    Hello
    | Placed
    | Report
    | Fetch
    | FileAsk
    | FileEnd
    | Preemption
    | Renewed
    | Ending
    | Warned
    | Start
    | Kill
    | Stop
    | ShowStack
    | Chunk
    | FileAnswer
    | Renew
    | Farewell
    | Move
)


class Packet(Tagged, frozen=True):
    """Envelope of a numbered message, with an acknowledgement.

    Attributes:
        number: Number of the message; 0 if there is none.
        heard: Number of the last message that the sender has received in order.
        word: The message; None in a heartbeat.
    """

    number: _Count
    heard: _Count
    word: AgentMessage | None = None


SocketMessage = Join | Admitted | Refused | Packet | Fetch | Chunk

_codec: Codec[SocketMessage] = Codec(SocketMessage)
encode, decode = _codec.encode, _codec.decode
