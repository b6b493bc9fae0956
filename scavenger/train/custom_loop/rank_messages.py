"""Messages between the processes of a worker, and what each further one gets at its start; see `ranks`."""

from __future__ import annotations

import msgspec

from scavenger.sdk import loop as sdk
from scavenger.train.custom_loop import messages as lm
from scavenger.train.transport.messages.values import ProcessConfiguration

MEAN, STATISTICS = 1, 2
"""Places of the memory of the ranks: of the mean, and of the statistics of rank 0; place 0 is of gradients."""


class RankConfiguration(msgspec.Struct, frozen=True):
    """What a further process of a worker gets at its start, by its standard input.

    Attributes:
        of: The worker's.
        rank: Of this process.
        port: Of the store by which `torch.distributed` of the worker's processes meet.
        connection: Descriptor of this rank's end of its connection to rank 0.
        memory: Descriptor of the memory that the ranks share.
    """

    of: ProcessConfiguration
    rank: int
    port: int
    connection: int
    memory: int


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class Entered(_Message, frozen=True):
    """A rank has prepared its model; see `Link.enter`."""

    sizes: tuple[int, ...]


class Loaded(_Message, frozen=True):
    """A rank has loaded the state that it was given."""


class Allocating(_Message, frozen=True):
    """A rank asks for memory for the arrays that it will push."""

    tensors: tuple[lm.TensorHeader, ...]


class Pushed(_Message, frozen=True):
    """A rank's gradients are where its part of the worker's is, and its statistics in a place of its own."""

    statistics: tuple[lm.TensorHeader, ...]


class Applied(_Message, frozen=True):
    """A rank has applied a step; the loss is that of its samples."""

    loss: float | None


class Broken(_Message, frozen=True):
    """The script has failed at a rank."""

    kind: str
    words: str


class Begin(_Message, frozen=True):
    """The worker is a member of the job; see `sdk.Progress`."""

    progress: sdk.Progress


class Grant(_Message, frozen=True):
    """The worker's samples of the next step."""

    granted: sdk.Granted


class Arrays(_Message, frozen=True):
    """Where arrays of the whole worker are.

    Attributes:
        jobs: Whether in the memory that all workers of the job share, or in that of this worker's ranks.
        place: See `GradientMemory`.
    """

    jobs: bool
    place: int
    tensors: tuple[lm.TensorHeader, ...]


class Mean(_Message, frozen=True):
    """A step is made; see `sdk.Step`."""

    step: int
    epoch_over: bool
    workers: int
    share: int
    lr_scale: float
    samples: int
    mean: Arrays


class Over(_Message, frozen=True):
    """The epoch is over."""


class Go(_Message, frozen=True):
    """The step is reported."""


class TakeState(_Message, frozen=True):
    """The first rank needs the whole state, for which each has to give its part."""


class TakeLoad(_Message, frozen=True):
    """A state to load lies in the memory."""

    tensors: tuple[lm.TensorHeader, ...]


class End(_Message, frozen=True):
    """The worker is not needed any more."""

    reason: str


FromRank = Entered | Loaded | Allocating | Pushed | Applied | Broken
ToRank = Begin | Grant | Arrays | Mean | Over | Go | TakeState | TakeLoad | End
from_rank = msgspec.msgpack.Decoder(FromRank)
to_rank = msgspec.msgpack.Decoder(ToRank)
encode = msgspec.msgpack.Encoder().encode
