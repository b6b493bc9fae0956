"""The shard ledger: assigns the samples of a source that can only be read shard by shard.

Streams, and scripts with their own loop, cannot read any sample at any place, so their data is handed out: a
shard is leased to one worker at a time, which reads it in order. What an applied step has consumed of it is
committed, and only that; whatever happens to the worker, the next one begins where the last applied step left
off (Wu et al., "Elastic Deep Learning in Multi-Tenant GPU Clusters", section 4.3). Events in, instructions out.
A shard's states (rows) and events (columns)::

    state        RequestSamples Proposed         Committed                       HolderLost
    FREE         -> LEASED      refused          -                               -
    LEASED       its holder:    all parts hold:  -                               -> FREE at the committed
                 granted again  -> SEALED                                        offset, or QUARANTINED
    SEALED       as LEASED      its own again:   offset moves; then LEASED,      kept until Committed,
                                ApplyParts; else FREE (end of the piece) or      then as LEASED
                                refused          COMMITTED
    COMMITTED,   -              refused          -                               -
    QUARANTINED

An epoch is over when every shard is COMMITTED or QUARANTINED; `BeginEpoch` opens the next.

*Exactly once* rests on three things. A part of a step names the attempt (the lease) and the offset from which it
was read, so one that is late, repeated, or read beyond a part that was never applied is refused *before* the step
is applied. Between `ApplyParts` and `Committed` the step is sealed: no lease in it can end. And the ledger of step
s is saved in the checkpoint of the weights of step s, so both are undone together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from scavenger.elastic import leases as le
from scavenger.elastic.order import epoch_order
from scavenger.elastic.quarantine import Quarantined, SampleRange, Suspects
from scavenger.elastic.sealed_steps import SealedSteps

_QUARANTINED_FRACTION_MAX = 0.01
"""Largest share of the samples that may be quarantined."""
_QUARANTINED_ALWAYS = 1
"""Samples that may be quarantined however small the data set is."""


class ShardStatus(Enum):
    FREE = "free"
    LEASED = "leased"
    SEALED = "sealed"
    COMMITTED = "committed"
    QUARANTINED = "quarantined"


@dataclass(slots=True)
class _Lease:
    worker: str
    attempt: le.LeaseAttempt
    stop: int


class ShardLedger(SealedSteps):
    """The ledger of one job. Not thread-safe; feed it one event at a time.

    Args:
        sizes: Samples of each shard.
        seed: Seed of the job; with the epoch, it determines the order of the shards.
        incarnation: A number that no earlier holder of this job's ledger had, such as that of its view.
        suspects: Suspected samples; by default none, and 1 % may be quarantined.

    Raises:
        ValueError: If there is no sample.
    """

    def __init__(
        self, sizes: Sequence[int], seed: int, *, incarnation: int = 0, suspects: Suspects | None = None
    ) -> None:
        if min(sizes, default=0) < 0 or sum(sizes) < 1:
            raise ValueError("a ledger needs at least one sample")
        super().__init__()
        self.sizes, self.seed, self.incarnation = tuple(sizes), seed, incarnation
        samples_max = max(_QUARANTINED_ALWAYS, int(sum(sizes) * _QUARANTINED_FRACTION_MAX))
        self._suspects = suspects or Suspects(samples_max=samples_max)
        self._attempts = 0
        self._hosts: dict[str, str] = {}
        self._gone: set[str] = set()
        self._leases: dict[int, _Lease] = {}
        self._open(0)

    # ---- what is -------------------------------------------------------------------------------------------

    @property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """Pieces that are left out; the scope of a piece is its shard."""
        return self._suspects.quarantined

    @property
    def over(self) -> bool:
        """Whether the epoch is over."""
        return self._unfinished == 0

    @property
    def ended(self) -> le.EpochCommitted | None:
        """See `SealedSteps.ended`."""
        return le.EpochCommitted(self.epoch, self.step, self.quarantined) if self.over else None

    def offset(self, shard: int) -> int:
        """Where the committed part of a shard ends."""
        return self._offsets[shard]

    def state(self, shard: int) -> ShardStatus:
        if self._sealed is not None and any(part.shard == shard for part in self._sealed.parts):
            return ShardStatus.SEALED
        if shard in self._leases:
            return ShardStatus.LEASED
        if self._offsets[shard] < self.sizes[shard]:
            return ShardStatus.FREE
        left_out = sum(entry.piece.samples for entry in self.quarantined if entry.piece.scope == shard)
        whole = left_out == self.sizes[shard] > 0
        return ShardStatus.QUARANTINED if whole else ShardStatus.COMMITTED

    # ---- what happens --------------------------------------------------------------------------------------

    def _ask(self, event: le.RequestSamples) -> list[le.Instruction]:
        worker = event.worker
        if worker in self._gone:
            return [le.Revoke(worker, attempt) for attempt in event.holds] or [
                le.Wait(worker, "taken for lost")
            ]
        self._hosts[worker] = event.host
        leased = {self._leases[shard].attempt: shard for shard in self._leased(worker)}
        instructions: list[le.Instruction] = [
            le.Revoke(worker, attempt) for attempt in event.holds if attempt not in leased
        ]
        again = [shard for attempt, shard in leased.items() if attempt not in event.holds]
        if again:
            return instructions + [self._grant(shard) for shard in again]
        return [*instructions, self._lease(event)]

    def _lease(self, event: le.RequestSamples) -> le.Instruction:
        """Lease the first free shard in the epoch's order that this host may read."""
        mine = self._leased(event.worker)
        if any(self._suspects.watches(self._rest(shard)) for shard in mine):
            return le.Wait(event.worker, "what it reads is suspected, and must be read alone")
        passed_over: list[int] = []
        granted: le.Instruction | None = None
        while self._free and granted is None:
            rank = heapq.heappop(self._free)
            shard = self._order[rank]
            piece = self._ahead(shard)
            if piece is None:  # quarantined to its end while it was free
                continue
            alone = self._suspects.watches(piece)
            if (alone and mine) or event.host in self._suspects.avoid(piece, self._hosts.values()):
                passed_over.append(rank)
                continue
            attempt = le.LeaseAttempt(self.incarnation, self._attempts)
            self._attempts += 1
            self._leases[shard] = _Lease(event.worker, attempt, piece.stop)
            granted = self._grant(shard)
        for rank in passed_over:
            heapq.heappush(self._free, rank)
        reason = "the epoch is over" if self.over else "what is left is leased, or to be tried elsewhere"
        return granted or le.Wait(event.worker, reason)

    def _refusals(self, event: le.Proposed) -> list[le.Instruction]:
        offsets: dict[int, int] = {}
        refusals: list[le.Instruction] = []
        for part in event.parts:
            reason = self._refusal(part, offsets)
            if reason is None:
                offsets[part.shard] = part.stop
            else:
                refusals.append(le.RefuseParts(part, reason))
        return refusals

    def _refusal(self, part: le.LeasedSamples, offsets: dict[int, int]) -> str | None:
        """Why a part cannot be in the next step, whose parts before it end at `offsets`."""
        lease = self._leases.get(part.shard)
        if lease is None or lease.attempt != part.attempt:
            return "the lease has ended"
        expected = offsets.get(part.shard, self._offsets[part.shard])
        if part.start != expected:
            return f"begins at {part.start}, but {expected} is next"
        if not part.start < part.stop <= lease.stop:
            return f"ends at {part.stop}, but the lease at {lease.stop}"
        return None

    def _advance(self, event: le.Committed) -> None:
        """Advance the offsets by a committed step, also in a replay."""
        self.step = event.step
        for part in event.parts:
            shard, lease = part.shard, self._leases.get(part.shard)
            self._suspects.passed(SampleRange(shard, part.start, part.stop))
            self._move(shard, part.stop)
            if lease is not None and part.stop == lease.stop:
                del self._leases[shard]
                self._queue(shard)

    def _lost(self, event: le.HolderLost) -> list[le.Instruction]:
        worker = event.worker
        if worker in self._gone:
            return []
        self._gone.add(worker)
        over = self.over
        hosts = len(set(self._hosts.values()))
        host = self._hosts.pop(worker, None)
        leased = self._leased(worker)
        pieces = [self._rest(shard) for shard in leased]
        instructions: list[le.Instruction] = []
        if len(pieces) > 1 and event.cause.blames_data:
            # which of them killed it is not known: each is tried alone from now on
            instructions += [le.Found(self._suspects.watch(piece)) for piece in pieces]
        elif len(pieces) == 1 and host is not None:
            [piece] = pieces
            finding = self._suspects.crashed(worker, host, piece, self.step + 1, event.cause, hosts=hosts)
            instructions.append(le.Found(finding))
            if isinstance(finding, Quarantined):
                self._move(piece.scope, self._offsets[piece.scope])
        for shard in leased:
            instructions += self._requeue(shard)
        return instructions if over else [*instructions, *self._if_over()]

    # ---- what several events lead to -----------------------------------------------------------------------

    def _open(self, epoch: int) -> None:
        self.epoch = epoch
        self._order = [int(shard) for shard in epoch_order(self.seed, epoch, len(self.sizes))]
        self._ranks = {shard: rank for rank, shard in enumerate(self._order)}
        self._offsets = [0] * len(self.sizes)
        self._unfinished = sum(size > 0 for size in self.sizes)
        self._free: list[int] = []
        for shard in {entry.piece.scope for entry in self.quarantined}:
            self._move(shard, 0)
        for shard in range(len(self.sizes)):
            self._queue(shard)

    def _ahead(self, shard: int) -> SampleRange | None:
        """The next piece of a shard to compute, separate from suspected pieces."""
        offset, size = self._offsets[shard], self.sizes[shard]
        pieces = self._suspects.cut(SampleRange(shard, offset, size)) if offset < size else ()
        return pieces[0] if pieces else None

    def _rest(self, shard: int) -> SampleRange:
        """The part of a shard that is leased and not yet committed."""
        return SampleRange(shard, self._offsets[shard], self._leases[shard].stop)

    def _move(self, shard: int, offset: int) -> None:
        """Commit a shard up to an offset, and skip quarantined samples after it."""
        unfinished = self._offsets[shard] < self.sizes[shard]
        self._offsets[shard] = offset
        ahead = self._ahead(shard)
        self._offsets[shard] = self.sizes[shard] if ahead is None else ahead.start
        if unfinished and ahead is None:
            self._unfinished -= 1

    def _queue(self, shard: int) -> None:
        if self._offsets[shard] < self.sizes[shard]:
            heapq.heappush(self._free, self._ranks[shard])

    def _leased(self, worker: str) -> list[int]:
        """A worker's shards, in the order of their leases."""
        mine = [(lease.attempt, shard) for shard, lease in self._leases.items() if lease.worker == worker]
        return [shard for _, shard in sorted(mine)]

    def _requeue(self, shard: int) -> list[le.Instruction]:
        lease = self._leases.pop(shard)
        if self._offsets[shard] == self.sizes[shard]:
            return []
        self._queue(shard)
        return [le.Requeued(shard, lease.attempt, self._offsets[shard])]

    def _grant(self, shard: int) -> le.Grant:
        lease = self._leases[shard]
        return le.Grant(lease.worker, shard, lease.attempt, self._offsets[shard], lease.stop)

    # ---- in the checkpoint ---------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The state after the last committed step, as plain values that JSON can hold.

        It belongs into the checkpoint of the weights of exactly `step`. It does not contain leases: shards are leased
        again after a restore.
        """
        return {
            "sizes": list(self.sizes),
            "seed": self.seed,
            "incarnation": self.incarnation,
            "epoch": self.epoch,
            "step": self.step,
            "offsets": list(self._offsets),
            "suspects": self._suspects.snapshot(),
        }

    @classmethod
    def restore(
        cls,
        snapshot: dict[str, Any],
        *,
        incarnation: int,
        log: Iterable[le.Committed | le.BeginEpoch | Quarantined] = (),
    ) -> ShardLedger:
        """Restore the ledger in a new process.

        Args:
            snapshot: From the checkpoint that the weights came from.
            incarnation: Greater than that of any holder before, also of one that left no snapshot.
            log: Later events that were not undone, in order; for a process that died while the weights survived.

        Raises:
            ValueError: If the snapshot is invalid, the incarnation is not new, or the log does not follow it.
        """
        try:
            if incarnation <= snapshot["incarnation"]:
                raise ValueError(f"incarnation {incarnation} is not new")
            suspects = Suspects.restore(snapshot["suspects"])
            ledger = cls(snapshot["sizes"], snapshot["seed"], incarnation=incarnation, suspects=suspects)
            ledger._open(snapshot["epoch"])
            ledger.step = snapshot["step"]
            for shard, (size, offset) in enumerate(zip(ledger.sizes, snapshot["offsets"], strict=True)):
                if not 0 <= offset <= size:
                    raise ValueError(f"offset {offset} in shard {shard} of {size}")
                ledger._move(shard, offset)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no snapshot of a ledger: {error!r}") from error
        for entry in log:
            ledger._replay(entry)
        ledger._free = []
        for shard in range(len(ledger.sizes)):
            ledger._queue(shard)
        return ledger

    def _replay(self, entry: le.Committed | le.BeginEpoch | Quarantined) -> None:
        match entry:
            case le.BeginEpoch():
                self._begin(entry)
            case Quarantined():
                self._suspects.quarantine(entry)
                self._move(entry.piece.scope, self._offsets[entry.piece.scope])
            case le.Committed():
                if entry.step != self.step + 1:
                    raise ValueError(f"step {entry.step} does not follow {self.step}")
                for part in entry.parts:
                    if part.start != self._offsets[part.shard] or part.stop > self.sizes[part.shard]:
                        raise ValueError(f"{part} does not follow what is committed")
                    self._advance(le.Committed(entry.step, (part,)))
