"""Events and instructions of the sequencer, `scavenger.elastic.barrier`."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from scavenger.elastic import quarantine as q
from scavenger.elastic.migration import BucketMap, MigrationEvent, MigrationInstruction
from scavenger.elastic.view import Member, Piece, StepPlan, View

# ---- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lead:
    """A coordinator takes the lead; those with a lower token are refused from now on."""

    token: int


@dataclass(frozen=True, slots=True)
class Death:
    """How a lost worker died; `hosts` is the number of the job's hosts."""

    worker: str
    host: str
    cause: q.Cause
    hosts: int = 1


@dataclass(frozen=True, slots=True)
class Announce:
    """The coordinator wants these members and this batch from the next boundary on.

    Attributes:
        lost: Workers that may still be awaited but will not answer; others do their part at once.
        deaths: How they died, if known.
        token: The coordinator's fencing token.
    """

    number: int
    members: tuple[Member, ...]
    global_batch_size: int
    lost: tuple[str, ...] = ()
    deaths: tuple[Death, ...] = ()
    token: int = 0
    lr_scale: float = 1.0
    reason: str = ""


class Contribution(msgspec.Struct, frozen=True, gc=False):
    """A worker has computed a piece; an aggregator (by its index; None for none) has the gradient in its memory."""

    worker: str
    view: int
    step: int
    piece: int
    aggregator: int | None = 0


@dataclass(frozen=True, slots=True)
class Formed:
    """An aggregator has formed the sums of the list of pieces of that number."""

    view: int
    step: int
    number: int
    aggregator: int


@dataclass(frozen=True, slots=True)
class Applied:
    """An aggregator has applied the step and published its weights."""

    step: int
    aggregator: int = 0


@dataclass(frozen=True, slots=True)
class PieceEvaluated:
    """A worker's metric sums over a piece of the validation data lie in its slot."""

    worker: str
    view: int
    step: int
    piece: int


@dataclass(frozen=True, slots=True)
class Summed:
    """The worker that was asked has turned the sums into metrics."""

    worker: str
    view: int
    step: int


@dataclass(frozen=True, slots=True)
class EpochDecision:
    """The decision on the epoch's metrics, or on a step within the epoch: continue or stop.

    Attributes:
        step: The step within the epoch; None at the end of the epoch.
    """

    epoch: int
    stop: bool
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Halt:
    """The job ends with the last applied step; an unfinished one is forgotten."""


@dataclass(frozen=True, slots=True)
class Tick:
    """No message has arrived for a while: repeat the open requests."""


Event = (
    Lead
    | Announce
    | Contribution
    | Formed
    | Applied
    | PieceEvaluated
    | Summed
    | EpochDecision
    | MigrationEvent
    | Halt
    | Tick
)


# ---- instructions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Apply:
    """Average the pieces by samples, apply the optimizer, publish; then send `Applied`.

    `aggregators`: who is to do it; all that hold something, or those that have not answered. `number`: of the list of
    pieces. `map`: who holds which bucket.
    """

    plan: StepPlan
    view: View
    pieces: tuple[Piece, ...]
    aggregators: tuple[int, ...]
    number: int
    map: BucketMap


@dataclass(frozen=True, slots=True)
class Expect:
    """Form the sums of a list of pieces as they arrive; then send `Formed`. What an earlier list has led to is void.

    `aggregators`: who is to do it, all of them or those that have not answered, each with the pieces that are known to
    be in its memory: the worker, which tells it, may have died. `map`: who holds which bucket.
    """

    plan: StepPlan
    view: View
    pieces: tuple[Piece, ...]
    aggregators: tuple[tuple[int, tuple[int, ...]], ...]
    number: int
    map: BucketMap


class Proceed(msgspec.Struct, frozen=True, gc=False):
    """Tell a worker that the weights of `step` can be read, and what to do with them.

    `action`: `train` (compute the pieces of `step + 1`), `evaluate` (the pieces of the validation data),
    `idle` (no member any more) or `stop`.
    """

    worker: str
    action: str
    step: int
    view: View
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Sum:
    """Add up the pieces' metric sums and have `worker` turn them into metrics."""

    plan: StepPlan
    view: View
    pieces: tuple[Piece, ...]
    worker: str


@dataclass(frozen=True, slots=True)
class ReportMetrics:
    """Report the epoch's metrics, or a step that does not end its epoch, and wait for the verdict."""

    plan: StepPlan


@dataclass(frozen=True, slots=True)
class Installed:
    """Tell the coordinator that a view took effect."""

    view: View


@dataclass(frozen=True, slots=True)
class Inform:
    """Report the job's progress to a coordinator that takes the lead. `number` is that of the newest view received."""

    token: int
    number: int
    view: View | None
    step: int


@dataclass(frozen=True, slots=True)
class QuarantineSamples:
    """Workers died of this piece of the epoch's order again and again: its samples are left out from now on."""

    piece: q.SampleRange
    reason: str


@dataclass(frozen=True, slots=True)
class Despair:
    """Workers die of so many samples that the data cannot be the cause; the job cannot continue."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """A message came too late or from an unknown sender; it is only noted."""

    sender: str
    reason: str


Instruction = (
    Apply
    | Expect
    | Proceed
    | Sum
    | ReportMetrics
    | Installed
    | Inform
    | QuarantineSamples
    | Despair
    | Refuse
    | MigrationInstruction
)
