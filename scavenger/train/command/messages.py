"""Messages between the hosts of a command, one on each worker, and the supervisor of the job."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from scavenger.errors import MessageError
from scavenger.frames import Frame
from scavenger.train.command.stored_folder import StoredFile
from scavenger.train.transport.codec import Codec
from scavenger.train.transport.messages import Beat, Failed

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Record(msgspec.Struct, frozen=True):
    """What the program told: a line of `scavenger.sdk.report`, or of its output by a log pattern.

    Attributes:
        kind: `begin`: it has begun to report. `step`: a step is done, `epoch`: an epoch, each with its number.
            `checkpoint`: it has saved one. `done`: training is over by its own decision. `raised`: it ends by an
            exception.
        at_s: When, on a monotonic clock of its own, seconds.
        step, epoch: Numbers; the step counts from 1, the epoch from 0. None if it was not told.
        samples: Samples of the step.
        norms: Mean squared norm of parts of the batch, squared norm of the whole, number of parts.
        successive: Squared norm of the gradient, and its products with those of the steps before, the newest first.
        every_rank: Whether every process saves a part of a checkpoint.
        live: Whether the program takes its batches from the job, which may change them between two steps.
        view: Of a step of such a program, the number of the newest view that it was told of.
        world: Number of the program's processes.
        done: Why training is over, by the program's own decision; empty if it is not.
        error: The exception.
    """

    kind: Literal["begin", "step", "epoch", "checkpoint", "done", "raised"]
    at_s: float
    step: _Count | None = None
    epoch: _Count | None = None
    samples: _Count | None = None
    loss: float | None = None
    metrics: dict[str, float] = {}
    norms: tuple[float, float, int] | None = None
    successive: tuple[float, ...] = ()
    compute_s: float | None = None
    samples_per_epoch: _Count | None = None
    every_rank: bool = False
    live: bool = False
    view: _Count = 0
    world: _Count | None = None
    done: Annotated[str, msgspec.Meta(max_length=500)] = ""
    path: str = ""
    error: Annotated[str, msgspec.Meta(max_length=500)] = ""


class _Message(msgspec.Struct, frozen=True, tag_field="command", tag=True, forbid_unknown_fields=True):
    pass


# ---- from hosts --------------------------------------------------------------------------------------------


class HostReady(_Message, frozen=True):
    """A host is ready to run the command.

    Attributes:
        port: A free port there, for the processes to find each other.
        folder: The folder of checkpoints there, if it has to be carried.
        threads: Threads that the process may compute with.
    """

    port: _Port
    folder: str = ""
    threads: _Count = 0


class Records(_Message, frozen=True):
    """What the program of an attempt told, in order; nothing, if it has only written some output."""

    attempt: int
    records: tuple[Record, ...]


class Doubt(_Message, frozen=True):
    """What a log pattern captures may not be what is meant; each group is told of once in an attempt."""

    attempt: int
    group: str
    message: str


class AttemptEnded(_Message, frozen=True):
    """The process of an attempt has ended, with everything that it had started.

    Attributes:
        status: Exit status; negative for a signal.
        cause: Why it could not be started, as the predicate of a sentence; else empty.
        port: Another free port.
        raised: The error in the last traceback of its output; empty if there is none.
        frames: The user's frames of that; without one, the last lines of its output.
    """

    attempt: int
    status: int
    cause: str
    port: _Port
    raised: str = ""
    frames: tuple[Frame, ...] = ()


class Stored(_Message, frozen=True):
    """The folder of checkpoints of a host, as it was stored.

    Attributes:
        number: How many checkpoints the program had told of in the attempt.
        last: Whether the process has ended.
        files: The whole folder; empty if it could not be stored.
        problem: Why not, for users.
    """

    attempt: int
    number: _Count
    last: bool
    files: dict[str, StoredFile]
    problem: str = ""


class Carrying(_Message, frozen=True):
    """The folder of checkpoints of a host is being carried, and that goes on."""

    attempt: int


class MemoryUsed(_Message, frozen=True):
    """The private memory of a host with everything that its process has started."""

    memory_bytes: _Count


# ---- to hosts ----------------------------------------------------------------------------------------------


class SetUp(_Message, frozen=True):
    """Order to run a command that prepares the machine; the host tells again that it has arrived when it is over."""

    words: tuple[str, ...]


class StartProgram(_Message, frozen=True):
    """Order to start the command.

    Attributes:
        words: The program and its arguments.
        env: Environment variables besides the host's own.
        without: Variables of the host that the program must not see.
        log: Log patterns; empty if the program reports by itself.
        metric: The name of the metric that the group `metric` stands for.
        storage: URL of the storage from which and to which the folder of checkpoints is carried; empty if it is the
            same folder everywhere.
        folder: The folder, on the machine of the process, if it is carried.
        files: What is in that folder when the program begins.
        carry_every_s: How often it is stored if the program does not report by itself.
    """

    attempt: int
    words: tuple[str, ...]
    env: dict[str, str]
    without: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    metric: str = ""
    storage: str = ""
    folder: str = ""
    files: dict[str, StoredFile] = {}
    carry_every_s: float = 0.0


class AskProgram(_Message, frozen=True):
    """A request for the program: the content of its file `request`, see `scavenger.sdk.report`."""

    attempt: int
    save_at: int = -1
    end_at: int = -1
    epoch: int = -1
    stop: bool = False
    view: int = 0
    view_at: int = -1
    global_batch_size: int = 0
    lr_scale: float = 1.0


class End(_Message, frozen=True):
    """Order to end the process: SIGTERM, and SIGKILL `grace_s` later; at once if that is 0.

    `store`: whether what it leaves counts as its checkpoint, since it was asked to save.
    """

    attempt: int
    grace_s: float
    store: bool = False


class EndHost(_Message, frozen=True):
    """Order for a host to end, which ends its process."""

    reason: str


CommandMessage = (
    HostReady
    | Records
    | Doubt
    | AttemptEnded
    | Stored
    | Carrying
    | MemoryUsed
    | SetUp
    | StartProgram
    | AskProgram
    | End
    | EndHost
)
_command: Codec[CommandMessage] = Codec(CommandMessage)
_process: Codec[Beat | Failed] = Codec(Beat | Failed)
encode = _command.encode


def decode(data: bytes) -> CommandMessage | Beat | Failed:
    """Decode a message of a command job, or one that every process sends (`Beat`, `Failed`).

    Raises:
        MessageError: If the bytes are no valid message of either kind.
    """
    try:
        return _command.decode(data)
    except MessageError:
        return _process.decode(data)
