"""A view: which worker computes which samples from one step on."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import pairwise

import msgspec

SLOTS_PER_WORKER = 64
"""A worker's own slots: one for its share, the others for what it computes in place of lost workers."""


# What each of a thousand workers is sent has no names of fields, which would be most of it.
class Position(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Where the next step begins: `consumed` samples into `epoch` (0-based)."""

    epoch: int = 0
    consumed: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A worker in a view.

    `slot` is the first of `SLOTS_PER_WORKER` slots that no other worker ever has. Their memory is reused only after
    this worker's process has ended, so that a late write does no harm.
    """

    worker: str
    slot: int


@dataclass(frozen=True, slots=True)
class View:
    """Members, batch and positions that hold from `first_step` on.

    Attributes:
        number: Increases with every view; messages carry it, and those of an older view are refused.
        first_step: The first step computed under it (steps count from 1).
        global_batch_size: B.
        members: In a fixed order, which gives each its share.
        position: Where `first_step` begins in the data.
        lr_scale: Factor on the optimizer's learning rate.
        reason: Why the view changed, for messages.
    """

    number: int
    first_step: int
    global_batch_size: int
    members: tuple[Member, ...]
    position: Position
    lr_scale: float = 1.0
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.members:
            raise ValueError("a view needs a member")
        if self.global_batch_size < len(self.members):
            raise ValueError("a view's batch must give every member a sample")

    @property
    def workers(self) -> int:
        return len(self.members)


class WorkerView(msgspec.Struct, frozen=True, array_like=True):
    """What one worker has to know of a view. Its size does not grow with the number of workers.

    Attributes:
        workers: K, the number of members.
        rank: The worker's index among the members; None if it is no member.

    The others are those of the `View`.
    """

    number: int
    first_step: int
    global_batch_size: int
    position: Position
    workers: int
    rank: int | None

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= self.global_batch_size:
            raise ValueError("a view needs a member, and its batch must give every member a sample")
        if self.rank is not None and not 0 <= self.rank < self.workers:
            raise ValueError(f"no member has rank {self.rank}")

    @property
    def local_batch_size(self) -> int:
        """The largest share of a full step."""
        return -(-self.global_batch_size // self.workers)


# Shares and pieces are made anew for every worker in every step, which takes a dataclass several times as long.
class Share(msgspec.Struct, frozen=True, gc=False):
    """Positions `start` to `stop` (exclusive) of the epoch's order."""

    start: int
    stop: int

    @property
    def samples(self) -> int:
        return self.stop - self.start


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A range of samples that one worker computes in a step, or evaluates after it, and where it puts that.

    `number` is unique within the step: a piece that was given to another has a new one, so that what the
    first says of it later is refused.
    """

    number: int
    share: Share
    worker: str
    slot: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a step is made of: one share per member, in their order."""

    step: int
    epoch: int
    shares: tuple[Share, ...]
    ends_epoch: bool

    @property
    def samples(self) -> int:
        return self.shares[-1].stop - self.shares[0].start

    @property
    def next_position(self) -> Position:
        if self.ends_epoch:
            return Position(self.epoch + 1, 0)
        return Position(self.epoch, self.shares[-1].stop)


@functools.lru_cache(maxsize=4)  # a step is planned when it begins and when it is applied
def split(start: int, samples: int, parts: int) -> tuple[Share, ...]:
    """Cut `samples` positions from `start` on into contiguous shares that differ by at most one sample.

    Earlier shares are the larger ones; with fewer samples than parts, the last shares are empty.
    """
    if parts < 1 or samples < 0:
        raise ValueError(f"cannot split {samples} samples into {parts} parts")
    size, extra = divmod(samples, parts)
    bounds = [start + part * size + min(part, extra) for part in range(parts + 1)]
    return tuple(Share(low, high) for low, high in pairwise(bounds))


def share_of(whole: Share, parts: int, rank: int) -> Share:
    """Return one of the shares that `split` cuts, without the others."""
    size, extra = divmod(whole.samples, parts)
    low = whole.start + rank * size + min(rank, extra)
    return Share(low, low + size + (rank < extra))


@dataclass(frozen=True, slots=True)
class StepRange:
    """The samples of a step, in the order of their epoch."""

    epoch: int
    samples: Share


def step_range(view: View | WorkerView, step: int, dataset_size: int) -> StepRange:
    """Return the samples of a step; see `plan_step`, which also cuts them into shares."""
    ahead = step - view.first_step
    if ahead < 0:
        raise ValueError(f"step {step} lies before view {view.number}, which begins at {view.first_step}")
    batch, position = view.global_batch_size, view.position
    left_in_first = -(-(dataset_size - position.consumed) // batch)
    if ahead < left_in_first:
        epoch, start = position.epoch, position.consumed + ahead * batch
    else:
        epochs, steps = divmod(ahead - left_in_first, -(-dataset_size // batch))
        epoch, start = position.epoch + 1 + epochs, steps * batch
    return StepRange(epoch, Share(start, min(start + batch, dataset_size)))


def plan_step(view: View, step: int, dataset_size: int) -> StepPlan:
    """The plan of a step under a view.

    A pure function, so no process has to assign samples, and none is lost or repeated.

    Steps take the next B samples of the epoch; the last step of an epoch takes what is left.

    Args:
        view: The view, which knows where its first step begins.
        step: At least `view.first_step`.
        dataset_size: D, samples per epoch.

    Raises:
        ValueError: If the step lies before the view.
    """
    place = step_range(view, step, dataset_size)
    return StepPlan(
        step=step,
        epoch=place.epoch,
        shares=split(place.samples.start, place.samples.samples, view.workers),
        ends_epoch=place.samples.stop == dataset_size,
    )
