"""Events and actions of the sums of an aggregator, `elastic.sums`."""

from __future__ import annotations

from dataclasses import dataclass, field

# ---- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    """A piece as a part of a sum.

    Attributes:
        piece: Its number; numbers only grow.
        worker: Who has it.
        samples: Its weight; at least 1.
        unasked: How many of its buckets, the first ones, the worker sends without being asked for.
    """

    piece: int
    worker: str
    samples: int
    unasked: int = 0


@dataclass(frozen=True, slots=True, order=True)
class PieceList:
    """The sequencer's list for a step, in the order in which the pieces are added.

    Attributes:
        step, view, number: Of two lists, the one with the lower numbers is outdated.
        terms: A list without terms ends the sums of the step: nothing is added any more.
    """

    step: int
    view: int
    number: int
    terms: tuple[Term, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class PieceOffered:
    """The whole gradient of a piece is in its worker's slot; `own` if that is the aggregator's own memory."""

    worker: str
    piece: int
    own: bool = False


@dataclass(frozen=True, slots=True)
class BucketArrived:
    """A bucket of a piece is here."""

    worker: str
    piece: int
    bucket: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A worker has sent all that it was asked for up to a question."""

    worker: str
    piece: int
    question: int


@dataclass(frozen=True, slots=True)
class HoldBuckets:
    """The aggregator holds these buckets from now on, ascending, and has another budget. A new list follows."""

    buckets: tuple[int, ...]
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class NothingArrived:
    """Nothing has arrived for a while."""


Event = PieceList | PieceOffered | BucketArrived | Answered | HoldBuckets | NothingArrived


# ---- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchBuckets:
    """Ask a worker for buckets of a piece; for none, whether what was asked for has been sent."""

    worker: str
    piece: int
    question: int
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Add:
    """Add a bucket of a piece, which has just arrived, is kept, or is in the aggregator's own memory.

    `position` is that of the piece in the list; the first one begins the sum, whatever was there.
    """

    piece: int
    bucket: int
    position: int


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep a bucket of a piece, which has just arrived, until `Add` or `Drop`."""

    piece: int
    bucket: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Free a bucket of a piece, which is kept."""

    piece: int
    bucket: int


@dataclass(frozen=True, slots=True)
class ListSummed:
    """Every bucket is the sum of all pieces of the list."""

    expected: PieceList


Action = FetchBuckets | Add | Keep | Drop | ListSummed
