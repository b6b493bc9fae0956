"""Migration of buckets between the aggregators of a job while it trains.

A *map* names the aggregator that holds each bucket. A new one is decided within a step, as lists of pieces are. The
state after step s is not overwritten before step s + 2, so whoever is to hold a bucket from step s + 1 on copies its
state after s while the workers compute step s + 1. Events in, instructions out; one batch of buckets, to one
aggregator, is moved at a time::

    phase       begin of a step     Copied              Taken             last result of the step
    RESTING     -> COPYING (Copy)   -                   -                 -
    COPYING     -                   -> RELEASING        -                 -> RESTING; patient: the step waits
                                    (Adopt, Take)
    RELEASING   -                   -                   the last source:  the step waits
                                                        -> RESTING

**Decision.** With `AdoptMap` the new map is decided, and recorded before anybody hears of it: from then on it holds for
the step in progress, whoever dies. If the copy is not whole when the workers are done, there is no decision: the old
holder applies the step, what was copied counts for nothing, and the next batch is smaller. A single bucket that was
late is waited for the next time (*patient*), so that every migration makes progress. Nothing else waits for a copy.

**One writer.** Sums of a step are formed, and its update is written, in memory that the old and the new holder may
share. So the new holder hears of the new map only when all old ones have `Taken` it, and so write nothing more of what
they gave up. Whoever has taken a map refuses orders under an older one. A sequencer that is restarted in the step for
which a map was decided asks again, since it does not know who has confirmed it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

_NUMBERS_PER_VIEW = 1 << 32
"""Range of map numbers of a view, larger than a view ever needs: a restarted sequencer, which always has a newer view,
never reuses a number of its predecessor."""
_ROOM_BYTES = 16 << 20
"""Size of the first batch."""
_TICKS_MAX = 30
"""How often a copy that the step waits for is asked for again before the migration is given up."""


class BucketMap(msgspec.Struct, frozen=True, array_like=True):
    """Which aggregator holds each bucket.

    Attributes:
        number: Grows with every map that takes effect.
        since: The first step that is applied under it.
        holders: The aggregator of each bucket.
    """

    number: int
    since: int
    holders: tuple[int, ...]

    @property
    def participants(self) -> tuple[int, ...]:
        """The aggregators that take part in steps: those that hold something, and the first, which has the metrics."""
        return tuple(sorted({0, *self.holders}))

    def if_begun(self, step: int) -> BucketMap | None:
        """The map itself if it begins with a step that is in progress; else None."""
        return self if self.since >= step else None

    def sources(self, later: BucketMap) -> tuple[int, ...]:
        """Return the aggregators that give something up in a later map."""
        pairs = zip(self.holders, later.holders, strict=True)
        return tuple(sorted({old for old, new in pairs if old != new}))


# ---- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestMigration:
    """Buckets are wanted elsewhere; replaces an earlier request.

    Attributes:
        request: Its number, by which a repetition is recognised.
        holders: The aggregator that is to hold each bucket.
    """

    request: int
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """An aggregator has the whole state of the buckets that `Copy` of that number names."""

    aggregator: int
    number: int


@dataclass(frozen=True, slots=True)
class Taken:
    """An aggregator has taken the map of that number: it writes nothing of what it gave up."""

    aggregator: int
    number: int


# ---- instructions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Copy:
    """Have `target` copy buckets in their state after a step, then send `Copied`. Any other copy is void.

    Attributes:
        number: That of the map if it is adopted.
        target: The aggregator that is to copy.
        buckets: Each bucket, with the aggregator that holds it.
    """

    number: int
    step: int
    target: int
    buckets: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class AdoptMap:
    """Record a map, and the one before it, before anything else is done: it holds from now on."""

    map: BucketMap
    before: BucketMap


@dataclass(frozen=True, slots=True)
class Take:
    """Tell aggregators that give something up in a map, which then send `Taken`."""

    map: BucketMap
    aggregators: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MigrationEnded:
    """Report that a migration has ended; `reason` is why it was abandoned, and empty if it is done."""

    request: int
    map: BucketMap
    reason: str = ""


MigrationEvent = RequestMigration | Copied | Taken
MigrationInstruction = Copy | AdoptMap | Take | MigrationEnded


class MigrationPhase(Enum):
    RESTING = "resting"
    COPYING = "copying"
    RELEASING = "releasing"


class Migration:
    """The migrations of one job. Not thread-safe; feed it one event at a time.

    Args:
        current: The newest map that was decided.
        sizes: Bytes of each bucket; by default all are alike.
        aggregators: Number of aggregators that there may be.
        before: The map before it, if `current` was decided for the step in progress when a sequencer died.
        refusal: Why nothing may be moved; empty if it may.

    Attributes:
        map: The map of the step in progress.
        phase: See the table of the module.
    """

    def __init__(
        self,
        current: BucketMap,
        *,
        aggregators: int,
        sizes: Sequence[int] | None = None,
        before: BucketMap | None = None,
        refusal: str = "",
    ) -> None:
        self.map, self.phase = current, MigrationPhase.RESTING
        self._sizes = tuple(sizes) if sizes is not None else (1,) * len(current.holders)
        if len(self._sizes) != len(current.holders):
            raise ValueError(f"{len(self._sizes)} sizes for {len(current.holders)} buckets")
        self._aggregators, self._refusal = aggregators, refusal
        self._number = current.number
        self._before = current if before is None else before
        self._undone = before is not None
        self._goal: RequestMigration | None = None
        self._ended: MigrationEnded | None = None
        self._newest = 0
        self._copy: Copy | None = None
        self._patient = False
        self._ticks = 0
        self._waiting: set[int] = set()
        self._room, self._ceiling = _ROOM_BYTES, max(_ROOM_BYTES, sum(self._sizes))
        if before is not None and (sources := before.sources(current)):
            self.phase, self._waiting = MigrationPhase.RELEASING, set(sources)

    @property
    def holds_up(self) -> bool:
        """Whether the step cannot be applied yet, whatever the workers have done."""
        return self.phase is MigrationPhase.RELEASING or (
            self.phase is MigrationPhase.COPYING and self._patient
        )

    @property
    def settled(self) -> BucketMap:
        """The map under which the last step was applied, and its weights are held."""
        return self._before if self._undone else self.map

    @property
    def releasing(self) -> tuple[int, ...]:
        """The aggregators that have not confirmed that they have given something up."""
        return tuple(sorted(self._waiting))

    def new_view(self, number: int) -> None:
        """Number the maps from here on in the range of a view."""
        self._number = max(self._number, number * _NUMBERS_PER_VIEW)

    def handle(self, event: MigrationEvent) -> list[MigrationInstruction]:
        """Process one event; returns the resulting instructions, in order. After `AdoptMap`, `map` is another one."""
        match event:
            case RequestMigration():
                return self._migrate(event)
            case Copied():
                return self._copied(event)
            case Taken():
                if event.number == self.map.number:
                    self._waiting.discard(event.aggregator)
                if self.phase is MigrationPhase.RELEASING and not self._waiting:
                    self.phase = MigrationPhase.RESTING
                return []

    def begin(self, step: int) -> list[MigrationInstruction]:
        """Begin a step, after `step`: have the next batch copied."""
        if self.phase is MigrationPhase.RELEASING:
            return self.repeat()
        if self._goal is None or self._undone:
            return []
        pairs = zip(self.map.holders, self._goal.holders, strict=True)
        wanted = [bucket for bucket, (now, then) in enumerate(pairs) if now != then]
        target = self._goal.holders[wanted[0]]
        batch = self._fitting([bucket for bucket in wanted if self._goal.holders[bucket] == target])
        self._number, self._ticks, self.phase = self._number + 1, 0, MigrationPhase.COPYING
        buckets = tuple((bucket, self.map.holders[bucket]) for bucket in batch)
        self._copy = Copy(self._number, step, target, buckets)
        return [self._copy]

    def results_complete(self) -> None:
        """Note that the workers are done with the step: a copy that is not whole is late, unless it is waited for."""
        if self.phase is not MigrationPhase.COPYING or self._patient:
            return
        assert self._copy is not None
        size = self._size(self._copy)
        self._patient = len(self._copy.buckets) == 1
        self._room = self._ceiling = size // 2
        self._rest()

    def applied(self) -> list[MigrationInstruction]:
        """Note that the step was applied everywhere; returns the end of a migration that is done."""
        self._undone = False
        if self._goal is None or self._goal.holders != self.map.holders:
            return []
        return self._end()

    def repeat(self) -> list[MigrationInstruction]:
        """Repeat what is unanswered; a copy that the step waits for is given up after a while."""
        if self.phase is MigrationPhase.RELEASING:
            return [Take(self.map, self.releasing)]
        if self.phase is MigrationPhase.RESTING or self._copy is None:
            return []
        self._ticks += self._patient
        if self._ticks > _TICKS_MAX:
            return self._end(f"aggregator {self._copy.target} did not copy its state in time")
        return [self._copy]

    # ---- what several of them lead to ----------------------------------------------------------------------

    def _migrate(self, event: RequestMigration) -> list[MigrationInstruction]:
        if event.request <= self._newest:
            again = self._ended is not None and self._ended.request == event.request
            return [self._ended] if again and self._ended is not None else []
        replaced = [] if self._goal is None else self._end("another request has replaced it")
        self._newest, self._goal = event.request, event
        if self._refusal:
            return [*replaced, *self._end(self._refusal)]
        if len(event.holders) != len(self.map.holders) or not {*event.holders} <= {*range(self._aggregators)}:
            what = f"{len(self.map.holders)} buckets and {self._aggregators} aggregators"
            return [*replaced, *self._end(f"the job has {what}, and not those of the request")]
        done = event.holders == self.map.holders and not self._undone
        return [*replaced, *(self._end() if done else [])]

    def _copied(self, event: Copied) -> list[MigrationInstruction]:
        copy = self._copy
        if self.phase is not MigrationPhase.COPYING or copy is None:
            return []
        if (event.aggregator, event.number) != (copy.target, copy.number):
            return []
        before, moved = self.map, {bucket for bucket, _ in copy.buckets}
        holders = tuple(copy.target if b in moved else a for b, a in enumerate(before.holders))
        self._before, self._undone = before, True
        self.map = BucketMap(copy.number, copy.step + 1, holders)
        self._grow(self._size(copy))
        self._rest()
        self.phase, self._waiting, self._patient = (
            MigrationPhase.RELEASING,
            set(before.sources(self.map)),
            False,
        )
        return [AdoptMap(self.map, before), Take(self.map, self.releasing)]

    def _grow(self, size: int) -> None:
        """Move more at a time: twice as much, but little more than what was late."""
        if size * 2 <= self._ceiling:
            self._room = max(self._room, size * 2)
        else:
            self._room = self._ceiling = self._ceiling + max(1, self._ceiling // 8)

    def _fitting(self, buckets: Sequence[int]) -> list[int]:
        """Return as many of the first buckets as there is room for, but at least one, and one if it is waited for."""
        batch, size = [buckets[0]], self._sizes[buckets[0]]
        for bucket in buckets[1:]:
            size += self._sizes[bucket]
            if self._patient or size > self._room:
                break
            batch.append(bucket)
        return batch

    def _size(self, copy: Copy) -> int:
        return sum(self._sizes[bucket] for bucket, _ in copy.buckets)

    def _rest(self) -> None:
        self.phase, self._copy = MigrationPhase.RESTING, None

    def _end(self, reason: str = "") -> list[MigrationInstruction]:
        assert self._goal is not None
        self._ended = MigrationEnded(self._goal.request, self.map, reason)
        self._goal, self._patient = None, False
        if self.phase is MigrationPhase.COPYING:
            self._rest()
        return [self._ended]


def respread(current: BucketMap, over: Collection[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the holders of a map in which some aggregators hold everything, each about as much; few buckets move.

    What the others hold goes where least is. Then the fullest gives a bucket to the one that holds least, as long as
    that has less than the fullest afterwards.

    Args:
        over: The aggregators that are to hold something.
        sizes: Bytes of each bucket.

    Raises:
        ValueError: If there are none.
    """
    if not over:
        raise ValueError("no other aggregator can take what is held")
    held: dict[int, list[int]] = {holder: [] for holder in sorted(over)}
    loads, homeless = dict.fromkeys(held, 0), list[int]()
    for bucket, holder in enumerate(current.holders):
        if holder in held:
            held[holder].append(bucket)
            loads[holder] += sizes[bucket]
        else:
            homeless.append(bucket)
    for bucket in sorted(homeless, key=lambda one: (-sizes[one], one)):
        least = min(loads, key=lambda holder: (loads[holder], holder))
        held[least].append(bucket)
        loads[least] += sizes[bucket]
    while True:
        fullest = max(loads, key=lambda holder: (loads[holder], -holder))
        least = min(loads, key=lambda holder: (loads[holder], holder))
        gap = loads[fullest] - loads[least]
        place = next(
            (n for n in reversed(range(len(held[fullest]))) if 0 < sizes[held[fullest][n]] < gap), None
        )
        if place is None:
            break
        bucket = held[fullest].pop(place)
        held[least].append(bucket)
        loads[fullest] -= sizes[bucket]
        loads[least] += sizes[bucket]
    holders = {bucket: holder for holder, some in held.items() for bucket in some}
    return tuple(holders[bucket] for bucket in range(len(current.holders)))


def spared(before: Collection[int], current: BucketMap, aggregators: int, *, settled: bool) -> frozenset[int]:
    """Return the aggregators that can be lost with their memory, and nothing with them; never the first.

    A map that was decided for the step in progress takes an aggregator out, but spares none before that step was
    applied: until then the state of the step before is asked for.

    Args:
        before: Those that were spared under the map before.
        current: The newest map.
        aggregators: Number of aggregators.
        settled: Whether its first step was applied.
    """
    idle = frozenset(range(1, aggregators)) - {*current.holders}
    return idle if settled else idle.intersection(before)
