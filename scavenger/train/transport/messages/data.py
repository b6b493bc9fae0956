"""Messages of the data channel: between workers and aggregators, and among aggregators."""

from __future__ import annotations

from scavenger.elastic.migration import BucketMap
from scavenger.elastic.view import Piece, WorkerView
from scavenger.train.transport.messages.values import PayloadOffer, RowCounts, Tagged

# ---- worker <-> aggregator ---------------------------------------------------------------------------------


class Join(Tagged, frozen=True):
    """A worker has connected; an aggregator can send only to workers that have sent something to it.

    `memory` identifies the worker's memory block.
    """

    memory: str = ""


class Joined(Tagged, frozen=True):
    """The answer to `Join`: the aggregator can send to the worker, and may offer a stream for payloads."""

    payloads: PayloadOffer | None = None


class Contributed(Tagged, frozen=True, gc=False):
    """The gradient of a piece is in the worker's slot.

    It goes to the sequencer, and to every other aggregator if not all processes share one memory.

    Attributes:
        samples: Number of the piece's samples that are not quarantined.
        held: Indices of the aggregators that share the worker's memory, and so have the gradient already.
        compute_s: Time to compute it, without `noise_s`.
        half_sqnorm: Mean |g|^2 of the gradient's two halves, or 0.
        rows: Which segments have a sparse gradient.
        sqnorm: |g|^2 of the gradient.
        rate: Factor on the learning rate of the step, the same for all pieces, that a schedule of the user's gives.
        pulled_s: For the step's first piece, the time that each aggregator's share of the weights took to arrive, by
            the aggregator's index; only of aggregators on other hosts.
        noise_s: Time to measure the gradient noise; 0 if that was not done.
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
    rows: RowCounts = ()
    sqnorm: float = 0.0
    rate: float = 1.0
    pulled_s: tuple[tuple[int, float], ...] = ()
    noise_s: float = 0.0


class Chunk(Tagged, frozen=True):
    """Bytes of a state section, from `offset` on, follow in the next frame.

    They belong to the weights of `step`; `number` is that of the `Pull` or `Seed` that is answered.
    """

    step: int
    offset: int
    number: int


class ChunkQuery(Tagged, frozen=True):
    """Question which chunks of a payload have not arrived; it is sent after all of them.

    It identifies the payload by the same fields as the chunks. For `question`, see
    `scavenger.elastic.payloads.Delivery`.
    """

    step: int
    number: int
    question: int


class Lacking(Tagged, frozen=True):
    """The answer to `ChunkQuery`: offsets of the chunks that have not arrived. None is sent for a complete payload."""

    step: int
    number: int
    question: int
    offsets: tuple[int, ...]


class AskBuckets(Tagged, frozen=True):
    """An aggregator asks for buckets of a piece; a worker answers `BucketsSent` after them.

    Of no buckets, it asks whether what it asked for before has been sent.
    """

    piece: int
    question: int
    buckets: tuple[int, ...]


class BucketsSent(Tagged, frozen=True):
    """A worker has sent all buckets of a piece for which it was asked up to a question."""

    piece: int
    question: int


class GradientBucket(Tagged, frozen=True):
    """A bucket of a piece's gradient follows in the next frame; for `counts`, see `transport.buckets.packed`."""

    piece: int
    bucket: int
    counts: tuple[int, ...] = ()


class Pull(Tagged, frozen=True):
    """A worker on another host requests the aggregator's share of the weights of `step`, as soon as they exist.

    That is its share under the map of buckets under which the step was applied. With `optimizer`, it also requests the
    optimizer's state; offsets from the size of a state section on are its bytes.
    """

    step: int
    number: int
    optimizer: bool = False


class PullBuckets(Tagged, frozen=True):
    """An aggregator requests the state after `step` of buckets that another one holds, as soon as it exists.

    That is their weights and the optimizer's state, and with `best` also the best weights; for the chunks' offsets, see
    `scavenger.train.transport.arrivals`.
    """

    step: int
    number: int
    buckets: tuple[int, ...]
    best: bool = False


class Seed(Tagged, frozen=True):
    """An aggregator requests its share of the worker's initial weights.

    Attributes:
        number: The number of the request.
        holders: The aggregator of each bucket: a job that begins again does so under its newest map, of which the
            worker may not have heard.
    """

    number: int
    holders: tuple[int, ...]


class Evaluation(Tagged, frozen=True):
    """The metric sums over a piece of the validation data are in the worker's slot.

    `sums` also has them if the sequencer does not share the worker's memory.
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
    """To a worker: do `action`, which is `train`, `evaluate`, `idle` or `stop`; the weights of `step` can be read.

    Attributes:
        action: What to do.
        step: The step whose weights to use.
        view: The number of the view, which an earlier `TakeView` has sent.
        pieces: The pieces to compute.
        quarantined: Samples to leave out.
        cautious: Whether workers have died of an unknown cause, so that only the samples to compute may be read.
        loss_scale: Factor on the loss, whose gradients are divided by it again.
        map: The number of the map of buckets under which the weights of `step` are held, which an earlier `TakeMap` has
            sent.
    """

    action: str
    step: int
    view: int
    pieces: tuple[Piece, ...]
    quarantined: tuple[int, ...]
    cautious: bool
    loss_scale: float = 1.0
    map: int = 0


class Go(Tagged, frozen=True, gc=False):
    """To a worker: an `Order` to train with the share that the view gives it, and with nothing out of the ordinary.

    That is almost every order. It has a tenth of the bytes, which counts with a thousand workers.

    Attributes:
        step: The step whose weights to use.
        view: The number of the view.
        piece: The number of the piece, counted from the first of the view's.
        map: The number of the map of buckets under which the weights are held.
    """

    step: int
    view: int
    piece: int
    map: int


class TakeView(Tagged, frozen=True):
    """To a worker, before the first order under a view: what it has to know of the view, which orders only name."""

    view: WorkerView


class AskView(Tagged, frozen=True):
    """From a worker: an order names a view that it has not received."""

    number: int


# ---- sequencer <-> the other aggregators -------------------------------------------------------------------


class ExpectPieces(Tagged, frozen=True):
    """Form the sums of a list of pieces as they arrive.

    Attributes:
        step, view, number: The list; one with lower numbers is outdated.
        workers: Number of workers of the view.
        pieces: Number, slot and samples of each piece, in the order in which they are added.
        held: Numbers and sparse gradients of pieces that are in the aggregator's memory already.
        map: The map of buckets of the step. An order under an older one than the receiver has taken is outdated.
        changed: The map itself if it begins with this step; None if it is known since an earlier one.
    """

    step: int
    view: int
    number: int
    workers: int
    pieces: tuple[tuple[int, int, int], ...]
    held: tuple[tuple[int, RowCounts], ...]
    map: int = 0
    changed: BucketMap | None = None


class SumsFormed(Tagged, frozen=True):
    """An aggregator has formed the sums of a list of pieces."""

    index: int
    step: int
    view: int
    number: int


class ApplyPart(Tagged, frozen=True):
    """Apply a step.

    `pieces` has number, samples, slot and sparse gradients of each piece, in the same order for every aggregator;
    `number` is that of the list of pieces in the view. `held` has the indices of the aggregators that have each piece
    in their memory; it is empty if all have all. For `map` and `changed`, see `ExpectPieces`. `best_step` is the step
    after which the weights were best so far, 0 if unknown: `KeepBest` may have been lost with a process. For
    `schedule_step`, see `Manifest.schedule_step`; None if it is `step - 1`.
    """

    step: int
    view: int
    lr_scale: float
    pieces: tuple[tuple[int, int, int, RowCounts], ...]
    number: int = 0
    held: tuple[tuple[int, ...], ...] = ()
    map: int = 0
    changed: BucketMap | None = None
    best_step: int = 0
    schedule_step: int | None = None


class TakeMap(Tagged, frozen=True):
    """To an aggregator or a worker: buckets are held so from now on; see `scavenger.elastic.migration`.

    An aggregator answers `MapTaken` once it writes nothing more of what it gave up, and reads nothing of it for a
    checkpoint.
    """

    map: BucketMap


class MapTaken(Tagged, frozen=True):
    """An aggregator has taken the map of that number."""

    index: int
    number: int


class CopyBuckets(Tagged, frozen=True):
    """Copy buckets in their state after `step`, then answer `BucketsCopied`. Any other copy is void.

    It goes to the target, and to the aggregators that hold the buckets, which prepare to give them up.

    Weights, the optimizer's state and the best weights are copied, so that the aggregator can apply the next step to
    them. Its own record is as of `step` then, too, even if it held nothing. Where they share a block, nothing is
    copied.

    Attributes:
        number: The number that the map of buckets gets if it is adopted.
        target: The aggregator that is to copy.
        buckets: Each bucket, with the aggregator that holds it.
        best_step: The step whose weights are the best; 0 for none.
    """

    number: int
    step: int
    target: int
    buckets: tuple[tuple[int, int], ...]
    best_step: int = 0


class BucketsCopied(Tagged, frozen=True):
    """An aggregator has the whole state of the buckets that `CopyBuckets` of that number names."""

    index: int
    number: int


class PartApplied(Tagged, frozen=True):
    """An aggregator has applied a step to its model shard; the norm of the mean gradient is over that shard."""

    index: int
    step: int
    finite: bool
    mean_sqnorm: float
    update_s: float
    view: int = 0
    number: int = 0


class KeepBest(Tagged, frozen=True):
    """The weights of `step` are the best so far. Nobody answers it; the next order to an aggregator says so again."""

    step: int


class Finalise(Tagged, frozen=True):
    """Finalise the weights of a step, or, if `best`, replace them by the best; for `best_step`, see `ApplyPart`."""

    step: int
    best: bool
    best_step: int = 0


class Finalised(Tagged, frozen=True):
    """An aggregator has finalised its weights."""

    index: int
    step: int


class SavePart(Tagged, frozen=True):
    """Write the model shard, in the state after `step`, to a checkpoint, in the background.

    `best`: With the best weights. For `best_step`, see `ApplyPart`.
    """

    step: int
    attempt: str
    url: str
    best: bool
    best_step: int = 0


class PartSaved(Tagged, frozen=True):
    """An aggregator has written its part of a checkpoint, or failed to.

    `error` is empty if it was written; then `parts` are (name, sha256, bytes, finite).
    """

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
    | ChunkQuery
    | Lacking
    | Pull
    | PullBuckets
    | Seed
    | Evaluation
    | Summarise
    | Summary
    | Order
    | Go
    | TakeView
    | AskView
    | ExpectPieces
    | SumsFormed
    | AskBuckets
    | BucketsSent
    | GradientBucket
    | ApplyPart
    | PartApplied
    | KeepBest
    | Finalise
    | Finalised
    | SavePart
    | PartSaved
    | TakeMap
    | MapTaken
    | CopyBuckets
    | BucketsCopied
)
