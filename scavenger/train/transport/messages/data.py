"""What is said on the data channel: between workers and aggregators, and among aggregators."""

from __future__ import annotations

from scavenger.train.transport.messages.values import PieceBody, Tagged, ViewBody

__all__ = [
    "ApplyPart",
    "AskView",
    "Check",
    "Chunk",
    "Contributed",
    "DataMessage",
    "Evaluation",
    "Finalise",
    "Finalised",
    "Held",
    "Join",
    "Joined",
    "KeepBest",
    "Lacking",
    "Order",
    "PartApplied",
    "PartSaved",
    "Pull",
    "SavePart",
    "Seed",
    "Summarise",
    "Summary",
    "TakeView",
]


# ---- worker <-> aggregator ---------------------------------------------------------------------------------


class Join(Tagged, frozen=True):
    """A worker has connected; an aggregator can reach only those that have spoken to it."""


class Joined(Tagged, frozen=True):
    """The aggregator can reach the worker."""


class Contributed(Tagged, frozen=True):
    """A gradient lies in the worker's slot. `half_sqnorm`: mean |g|^2 of its two halves, or 0.

    `held`: places of the aggregators that read the worker's memory, and so have it already. `samples`: those of
    the piece that are not quarantined.
    """

    view: int
    step: int
    piece: int
    samples: int
    held: tuple[int, ...]
    compute_s: float
    data_wait_s: float
    loss: float
    half_sqnorm: float


class Chunk(Tagged, frozen=True):
    """Bytes of a state section, from `offset` on, follow in the next frame.

    Towards an aggregator: of the gradient of `piece`, which lies in `slot`. Else of the weights of `step`, and
    `piece` is the number of the `Pull` or `Seed` that is answered.
    """

    step: int
    offset: int
    piece: int
    slot: int = -1
    view: int = 0


class Check(Tagged, frozen=True):
    """All chunks of a payload have been sent before this: which of them have not arrived?

    The payload is named as its chunks name it. `question`: see `scavenger.elastic.payloads.Delivery`.
    """

    step: int
    piece: int
    question: int
    slot: int = -1
    view: int = 0


class Lacking(Tagged, frozen=True):
    """The answer to `Check`: where the chunks begin that have not arrived. A payload that is complete has no answer."""

    step: int
    piece: int
    question: int
    offsets: tuple[int, ...]


class Pull(Tagged, frozen=True):
    """A worker on another host wants the aggregator's part of the weights of `step`, once they are there."""

    step: int
    number: int


class Seed(Tagged, frozen=True):
    """An aggregator wants its part of the worker's initial weights."""

    number: int


class Evaluation(Tagged, frozen=True):
    """The metric sums over a piece of the validation data lie in the worker's slot.

    `sums`: where the sequencer does not share the worker's memory.
    """

    view: int
    step: int
    piece: int
    sums: tuple[bytes, ...] = ()


class Summarise(Tagged, frozen=True):
    """To a worker: turn the sums into metrics."""

    view: int
    step: int
    training: tuple[bytes, ...]
    validation: tuple[bytes, ...]


class Summary(Tagged, frozen=True):
    """The answer to `Summarise`."""

    view: int
    step: int
    metrics: dict[str, float]


class Order(Tagged, frozen=True):
    """To a worker: `train`, `evaluate`, `idle` or `stop`; the weights of `step` can be read.

    Attributes:
        view: The number of a view that a `TakeView` has brought before.
        quarantined: Samples to leave out.
        cautious: Workers have died of something: read nothing but what is to be computed.
    """

    action: str
    step: int
    view: int
    pieces: tuple[PieceBody, ...]
    quarantined: tuple[int, ...]
    cautious: bool


class TakeView(Tagged, frozen=True):
    """To a worker, before the first order under a view: orders only name its number."""

    view: ViewBody


class AskView(Tagged, frozen=True):
    """From a worker: an order names a view that it has not received."""

    number: int


# ---- sequencer <-> the other aggregators -------------------------------------------------------------------


class Held(Tagged, frozen=True):
    """An aggregator has received all of its part of a piece."""

    index: int
    worker: str
    view: int
    step: int
    piece: int


class ApplyPart(Tagged, frozen=True):
    """Apply a step. `pieces`: number, samples and slot of each, in order; the same for every aggregator."""

    step: int
    view: int
    lr_scale: float
    pieces: tuple[tuple[int, int, int], ...]


class PartApplied(Tagged, frozen=True):
    index: int
    step: int
    finite: bool
    mean_worker_sqnorm: float
    mean_sqnorm: float
    update_s: float


class KeepBest(Tagged, frozen=True):
    """The weights of `step` are the best so far."""

    step: int


class Finalise(Tagged, frozen=True):
    step: int
    best: bool


class Finalised(Tagged, frozen=True):
    index: int
    step: int


class SavePart(Tagged, frozen=True):
    """Write the part as it is after `step` into a checkpoint, in the background."""

    step: int
    attempt: str
    url: str
    best: bool


class PartSaved(Tagged, frozen=True):
    """`error` is empty where it was written; then `parts` are (name, sha256, bytes, finite)."""

    index: int
    step: int
    attempt: str
    parts: tuple[tuple[str, str, int, bool], ...]
    error: str


DataMessage = (
    Join
    | Joined
    | Contributed
    | Chunk
    | Check
    | Lacking
    | Pull
    | Seed
    | Evaluation
    | Summarise
    | Summary
    | Order
    | TakeView
    | AskView
    | Held
    | ApplyPart
    | PartApplied
    | KeepBest
    | Finalise
    | Finalised
    | SavePart
    | PartSaved
)
