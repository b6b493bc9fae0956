"""The sample queue: assigns the samples of a source of which any can be read, step by step.

It is the ledger of loops whose data has no shards (`scavenger.elastic.ledger` is that of those that have). The samples
of an epoch are positions in an order that every worker knows; each step takes the next `B` that are left, cut into the
shares of the view in the order of its members. So the batches are those of one process, whoever computes them, and a
worker can tell ahead what it will read. Events and instructions are those of the shard ledger. A position is::

    left --a member's, at the first request of a step--> leased --Proposed--> sealed --Committed--> done
    leased --HolderLost, or another division--> left, and next of all

*Exactly once* rests on the same three things as in the shard ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scavenger.elastic import leases as le
from scavenger.elastic.quarantine import DEATHS_MIN, NotTheData, Quarantined
from scavenger.elastic.sealed_steps import SealedSteps

_SCOPE = 0
"""What stands for a shard in parts and grants: there is one source."""


@dataclass(frozen=True, slots=True)
class _Lease:
    attempt: le.LeaseAttempt
    start: int
    stop: int


class SampleQueue(SealedSteps):
    """The queue of one job. Not thread-safe; feed it one event at a time.

    Args:
        samples: Samples of an epoch.
        seed: Seed of the job, kept for who makes the order of an epoch.
        incarnation: A number that no earlier holder of this job's queue had, such as that of its view.

    Raises:
        ValueError: If there is no sample.
    """

    quarantined: tuple[Quarantined, ...] = ()
    """None is left out: what kills its workers again and again ends the job."""

    def __init__(self, samples: int, seed: int, *, incarnation: int = 0) -> None:
        if samples < 1:
            raise ValueError("a queue needs at least one sample")
        super().__init__()
        self.sizes, self.seed, self.incarnation = (samples,), seed, incarnation
        self._attempts = 0
        self._gone: set[str] = set()
        self._shares: tuple[tuple[str, int], ...] = ()
        self._leases: dict[str, _Lease] = {}
        self._deaths: dict[int, int] = {}
        """By the first position of a lease, workers that ended by their own fault while they had it."""
        self._open(0)

    def _open(self, epoch: int) -> None:
        self.epoch, self._done = epoch, 0
        self._left: list[tuple[int, int]] = [(0, self.sizes[0])]
        """Ranges of positions that nobody has, in order."""
        self._deaths.clear()

    # ---- what is -------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the epoch is over."""
        return self._done == self.sizes[0]

    @property
    def ended(self) -> le.EpochCommitted | None:
        """See `SealedSteps.ended`."""
        return le.EpochCommitted(self.epoch, self.step, ()) if self.over else None

    @property
    def stride(self) -> int:
        """Samples of a step, if nothing changes."""
        return sum(share for member, share in self._shares if member not in self._gone)

    # ---- what happens --------------------------------------------------------------------------------------

    def divide(self, shares: Sequence[tuple[str, int]]) -> None:
        """Divide each step from now on among members, with the samples of each; nobody may be reading."""
        self._shares = tuple(shares)
        for worker in list(self._leases):
            self._put_back(worker)

    def _ask(self, event: le.RequestSamples) -> list[le.Instruction]:
        worker = event.worker
        if worker in self._gone:
            return [le.Wait(worker, "taken for lost")]
        if not self._leases:
            for member, share in self._shares:
                if member not in self._gone:
                    self._lease(member, share)
        if worker not in self._leases:  # somebody's may have become free since
            self._lease(worker, dict(self._shares).get(worker, 0))
        lease = self._leases.get(worker)
        if lease is None:
            return [le.Wait(worker, "the epoch is over" if self.over else "what is left is leased")]
        return [le.Grant(worker, _SCOPE, lease.attempt, lease.start, lease.stop, self.stride)]

    def _lease(self, worker: str, share: int) -> None:
        """Lease the next positions to a worker; a rest of one, of which some layers have no statistics, is avoided."""
        if not self._left or share < 1:
            return
        start, stop = self._left[0]
        taken = min(share, stop - start)
        if taken > 2 and stop - start - taken == 1:
            taken -= 1
        self._leases[worker] = _Lease(le.LeaseAttempt(self.incarnation, self._attempts), start, start + taken)
        self._attempts += 1
        self._left[:1] = [(start + taken, stop)] if start + taken < stop else []

    def _put_back(self, worker: str) -> _Lease | None:
        lease = self._leases.pop(worker, None)
        if lease is not None:
            self._left = _merged([*self._left, (lease.start, lease.stop)])
        return lease

    def _refusals(self, event: le.Proposed) -> list[le.Instruction]:
        held = {lease.attempt: lease for lease in self._leases.values()}
        refused: list[le.Instruction] = []
        for part in event.parts:
            lease = held.pop(part.attempt, None)  # no lease is in a step twice
            if lease is None or (part.start, part.stop) != (lease.start, lease.stop):
                refused.append(
                    le.RefuseParts(part, "the lease has ended" if lease is None else "another range")
                )
        return refused

    def _advance(self, event: le.Committed) -> None:
        self.step = event.step
        applied = {part.attempt for part in event.parts}
        for worker, lease in list(self._leases.items()):
            if lease.attempt in applied:
                del self._leases[worker]
                self._done += lease.stop - lease.start
            else:
                self._put_back(worker)

    def _lost(self, event: le.HolderLost) -> list[le.Instruction]:
        if event.worker in self._gone:
            return []
        self._gone.add(event.worker)
        lease = self._put_back(event.worker)
        if lease is None:
            return []
        found: list[le.Instruction] = [le.Requeued(_SCOPE, lease.attempt, lease.start)]
        if event.cause.blames_data:
            deaths = self._deaths[lease.start] = self._deaths.get(lease.start, 0) + 1
            if deaths >= DEATHS_MIN:
                words = (
                    f"{deaths} workers ended while they read positions {lease.start} to {lease.stop - 1} of the order "
                    f"of epoch {self.epoch + 1}: the data or the training code ends them"
                )
                found.append(le.Found(NotTheData(words)))
        return found

    # ---- in the checkpoint ---------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The state after the last committed step; see `ShardLedger.snapshot`. What is leased is left."""
        ranges = _merged([*self._left, *((lease.start, lease.stop) for lease in self._leases.values())])
        return {
            "sizes": list(self.sizes),
            "seed": self.seed,
            "incarnation": self.incarnation,
            "epoch": self.epoch,
            "step": self.step,
            "offsets": [self._done],
            "left": [list(one) for one in ranges],
            "suspects": {},
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any], *, incarnation: int) -> SampleQueue:
        """Restore the queue in a new process; see `ShardLedger.restore`.

        Raises:
            ValueError: If the snapshot is invalid, or the incarnation is not new.
        """
        try:
            if incarnation <= snapshot["incarnation"]:
                raise ValueError(f"incarnation {incarnation} is not new")
            queue = cls(snapshot["sizes"][0], snapshot["seed"], incarnation=incarnation)
            queue._open(snapshot["epoch"])
            queue.step, [queue._done] = snapshot["step"], snapshot["offsets"]
            left = [(int(start), int(stop)) for start, stop in snapshot["left"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"no snapshot of a queue: {error!r}") from error
        ends = [0, *(at for one in left for at in one), queue.sizes[0]]
        held = sum(stop - start for start, stop in left)
        if ends != sorted(ends) or any(a == b for a, b in left) or held + queue._done != queue.sizes[0]:
            raise ValueError(f"{left} and {queue._done} samples are not those of an epoch")
        queue._left = left
        return queue


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same positions in order, as few ranges."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return merged
