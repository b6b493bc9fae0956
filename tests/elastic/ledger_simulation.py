"""A job over opaque shards in virtual time: the real `ShardLedger`, simulated workers, a network that breaks its word.

Workers ask, read, contribute, die, hang on poisoned samples, stall and wake up late; messages are delayed,
doubled, lost and sent again; steps are aborted; the ledger's holder dies and comes back, with the weights of the
last checkpoint or beside weights that lived on. Whatever breaks a law raises `ViolationError`.

The laws: of every epoch, the steps that survive hold each sample exactly once, but for the poisoned ones, and
exactly those are reported as quarantined; every gradient was computed at the weights that it is applied to; and
the job ends.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scavenger.elastic import leases as le
from scavenger.elastic.ledger import ShardLedger
from scavenger.elastic.quarantine import Cause, NotTheData, Quarantined, Suspects

_CHAOS_S = 60.0
_END_S = 3_000.0
_CHANCE_CRASHES = 1
"""Fewer than condemn a sample: more of them on one would be no chance."""
_MISCHIEF = ["kill", "kill", "stall", "stall", "suspect", "crash", "resize", "restart", "restart"]

Action = Callable[[], None]
Sample = tuple[int, int]


class ViolationError(AssertionError):
    """A law of the ledger was broken."""


@dataclass(frozen=True)
class Applied:
    """A step in the weights; `version` names the weights that it made."""

    step: int
    epoch: int
    parts: tuple[le.LeasedSamples, ...]
    version: int


@dataclass(frozen=True)
class Contribution:
    worker: str
    step: int
    parts: tuple[le.LeasedSamples, ...]
    version: int


class Worker:
    """Reads what it is granted, and takes for applied what it has sent until it is told otherwise."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world, self.name, self.host = world, name, host
        self.alive, self.stalled_until = True, 0.0
        self.leases: dict[le.LeaseAttempt, tuple[int, int, int]] = {}
        self.step = self.version = self.incarnation = 0
        self._turn = 0
        self.next(0.0)

    def next(self, delay: float) -> None:
        """Go on after a while; whatever was to happen before does not."""
        self._turn += 1
        turn = self._turn
        self.world.after(delay, lambda: self._wake(turn))

    def _wake(self, turn: int) -> None:
        if not self.alive or turn != self._turn:
            return
        if self.stalled_until > self.world.now:
            self.world.after(self.stalled_until - self.world.now, lambda: self._wake(turn))
            return
        if self.leases and self.world.random.random() < 0.8:
            self._compute()
        else:
            self._ask()

    def _ask(self) -> None:
        holds = tuple(self.leases) if self.world.random.random() < 0.8 else ()
        self.world.send(lambda: self.world.holder.ask(self, holds))
        self.next(2.0)

    def told(self, incarnation: int, step: int, version: int, instructions: list[le.Instruction]) -> None:
        """The holder's answer; an old one may do no harm."""
        if not self.alive or incarnation < self.incarnation:
            return
        self.incarnation = incarnation
        for instruction in instructions:
            match instruction:
                case le.Grant():
                    place = (instruction.shard, instruction.start, instruction.stop)
                    self.leases[instruction.attempt] = place
                case le.Revoke():
                    self.leases.pop(instruction.attempt, None)
                case le.RefuseParts(part=le.LeasedSamples() as part):
                    self.leases.pop(part.attempt, None)
                case _:
                    pass
        self.step, self.version = step, version
        self.next(0.1 if self.leases else 1.0)

    def _compute(self) -> None:
        parts: list[le.LeasedSamples] = []
        left = self.world.batch
        for attempt in sorted(self.leases):
            shard, start, stop = self.leases[attempt]
            end = min(stop, start + left)
            parts.append(le.LeasedSamples(shard, attempt, start, end))
            left -= end - start
            if left == 0:
                break
            if self.world.poisoned(parts[-1]):  # it does not live to read the next
                break
        contribution = Contribution(self.name, self.step + 1, tuple(parts), self.version)
        if any(self.world.poisoned(part) for part in parts):
            self.world.after(0.2, lambda: self.world.poison(self))
            return
        self._turn += 1
        turn = self._turn
        self.world.after(self.world.random.uniform(0.1, 1.0), lambda: self._computed(turn, contribution))

    def _computed(self, turn: int, contribution: Contribution) -> None:
        if not self.alive or turn != self._turn:
            return
        if self.stalled_until > self.world.now:
            self.world.after(self.stalled_until - self.world.now, lambda: self._computed(turn, contribution))
            return
        for part in contribution.parts:
            if part.attempt in self.leases:
                shard, _, stop = self.leases.pop(part.attempt)
                if part.stop < stop:
                    self.leases[part.attempt] = (shard, part.stop, stop)
        for _ in range(1 + (self.world.random.random() < 0.2)):
            self.world.send(lambda: self.world.holder.contribute(contribution))
        self.next(3.0)


class Holder:
    """The shell around the ledger and the weights: collects a step, has it applied, saves both."""

    def __init__(self, world: World, ledger: ShardLedger, applied: list[Applied]) -> None:
        self.world, self.ledger, self.applied = world, ledger, applied
        self.alive = True
        self._round: list[Contribution] = []
        self._sealed: le.Proposed | None = None
        self.latest = self._saved()
        self.checkpoint = (self.latest, len(applied))
        self.log: list[le.Committed | le.BeginEpoch | Quarantined] = []
        if ledger.ended is not None:
            world.check(ledger.ended, applied)
        self._every(world.random.uniform(1.0, 8.0), self.save)
        self._every(2.0, self._begin)

    @property
    def version(self) -> int:
        return self.applied[-1].version if self.applied else 0

    def handle(self, event: le.Event) -> list[le.Instruction]:
        try:
            instructions = self.ledger.handle(event)
        except (ValueError, KeyError, IndexError) as error:
            raise ViolationError(f"{event}: {error!r}") from error
        for instruction in instructions:
            match instruction:
                case le.Found(finding=Quarantined() as finding):
                    self.log.append(finding)
                case le.Found(finding=NotTheData() as finding):
                    raise ViolationError(finding.reason)
                case le.EpochCommitted():
                    self.world.check(instruction, self.applied)
                case _:
                    pass
        return instructions

    # ---- messages from workers -----------------------------------------------------------------------------

    def ask(self, worker: Worker, holds: tuple[le.LeaseAttempt, ...]) -> None:
        if not self.alive:
            return
        answer = self.handle(le.RequestSamples(worker.name, worker.host, holds))
        self._tell(worker, answer)
        if worker.name in self.world.suspected:
            self.world.send(lambda: self.world.quit(worker))

    def contribute(self, contribution: Contribution) -> None:
        if not self.alive:
            return
        if contribution.step != self.ledger.step + 1 or self._sealed is not None:
            self._tell(self.world.workers[contribution.worker], [])
            return
        if not self._round:
            self._later(self.world.random.uniform(0.1, 1.5), self._close)
        self._round.append(contribution)

    def lost(self, worker: str, cause: Cause) -> None:
        if self.alive:
            self.handle(le.HolderLost(worker, cause))

    def _tell(self, worker: Worker, instructions: list[le.Instruction]) -> None:
        incarnation, step, version = self.ledger.incarnation, self.ledger.step, self.version
        self.world.send(lambda: worker.told(incarnation, step, version, instructions))

    # ---- a step --------------------------------------------------------------------------------------------

    def _close(self) -> None:
        contributions, self._round = self._round, []
        parts = [(part, each) for each in contributions for part in each.parts]
        while parts:
            proposal = le.Proposed(self.ledger.step + 1, tuple(part for part, _ in parts))
            answer = self.handle(proposal)
            if answer == [le.ApplyParts(proposal.step, proposal.parts)]:
                self._seal(proposal, [each for _, each in parts])
                return
            for refusal in answer:
                if not isinstance(refusal, le.RefuseParts) or refusal.part is None:
                    raise ViolationError(f"{proposal} is answered with {refusal}")
                # of a part that came twice, the last is refused
                at = max(place for place, (part, _) in enumerate(parts) if part == refusal.part)
                _, each = parts.pop(at)
                if all(part != refusal.part for part, _ in parts):
                    self._tell(self.world.workers[each.worker], [refusal])
        self.world.refused += 1

    def _seal(self, proposal: le.Proposed, contributions: list[Contribution]) -> None:
        self._sealed = proposal
        for contribution in contributions:
            if contribution.version != self.version:
                raise ViolationError(f"{contribution} was computed at other weights than {self.version}")
        self._later(self.world.random.uniform(0.05, 1.5), lambda: self._finish(proposal))

    def _finish(self, proposal: le.Proposed) -> None:
        committed = self._apply(proposal)
        for _ in range(1 + (self.world.random.random() < 0.1)):
            self.handle(committed)
        self.latest = self._saved()
        for worker in list(self.world.workers.values()):
            if worker.alive:
                self._tell(worker, [])

    def _apply(self, proposal: le.Proposed) -> le.Committed:
        self._sealed = None
        self.world.versions += 1
        self.applied.append(Applied(proposal.step, self.ledger.epoch, proposal.parts, self.world.versions))
        committed = le.Committed(proposal.step, proposal.parts)
        self.log.append(committed)
        return committed

    def _begin(self) -> None:
        if not self.ledger.over:
            return
        if self.ledger.epoch + 1 == self.world.epochs:
            self.world.done = True
            return
        begin = le.BeginEpoch(self.ledger.epoch + 1)
        self.log.append(begin)
        self.handle(begin)

    # ---- death and return ----------------------------------------------------------------------------------

    def _saved(self) -> dict[str, Any]:
        saved: dict[str, Any] = json.loads(json.dumps(self.ledger.snapshot()))
        return saved

    def save(self) -> None:
        self.checkpoint = (self._saved(), len(self.applied))
        self.log = []

    def die(self) -> Callable[[], Holder]:
        """The end of it; returns what brings a successor."""
        self.alive = False
        world, ledger = self.world, type(self.ledger)
        snapshot, steps = self.checkpoint
        if world.random.random() < 0.4:  # the aggregators lived on, and may have finished the step
            if self._sealed is not None and world.random.random() < 0.5:
                self._apply(self._sealed)
            world.replays += 1
            return lambda: self._succeed(ledger, snapshot, self.applied, self.log)
        if world.saved_apart:
            snapshot = self.latest
        return lambda: self._succeed(ledger, snapshot, self.applied[:steps], [])

    def _succeed(
        self,
        ledger: type[ShardLedger],
        snapshot: dict[str, Any],
        applied: list[Applied],
        log: list[le.Committed | le.BeginEpoch | Quarantined],
    ) -> Holder:
        world = self.world
        world.incarnation += 1
        try:
            restored = ledger.restore(snapshot, incarnation=world.incarnation, log=log)
        except ValueError as error:
            raise ViolationError(f"cannot be restored: {error}") from error
        return Holder(world, restored, list(applied))

    def _later(self, delay: float, action: Action) -> None:
        self.world.after(delay, lambda: action() if self.alive else None)

    def _every(self, period: float, action: Callable[[], object]) -> None:
        def again() -> None:
            action()
            self._later(period, again)

        self._later(period, again)


class World:
    """One job under one seed.

    Args:
        seed: Of everything that is left to chance.
        ledger: A broken one should be caught.
        saved_apart: Break the rule that the ledger is saved with the weights.
        blames_all: Tell the ledger of every death as of a crash.
    """

    def __init__(
        self,
        seed: int,
        *,
        ledger: type[ShardLedger] = ShardLedger,
        saved_apart: bool = False,
        blames_all: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        draw = self.random
        shards = draw.choice([1, 2, draw.randint(3, 6)])
        self.sizes = [draw.choice([draw.randint(0, 3), draw.randint(4, 30)]) for _ in range(shards)]
        self.sizes[0] += 1
        every = [(shard, place) for shard, size in enumerate(self.sizes) for place in range(size)]
        self.samples = set(every)
        self.poisons = set(draw.sample(every, min(len(every) - 1, draw.choice([0, 0, 1, 2]))))
        self.epochs, self.batch = draw.randint(1, 3), draw.randint(1, 8)
        self.hosts = [f"h{number}" for number in range(draw.randint(1, 3))]
        self.saved_apart, self.blames_all = saved_apart, blames_all
        self.now, self._sequence, self.done = 0.0, 0, False
        self._queue: list[tuple[float, int, Action]] = []
        self.incarnation = self.versions = 0
        self.deaths: list[tuple[str, Cause]] = []
        self.restarts = self.replays = self.refused = self.crashes = self.ended = 0
        self.suspected: set[str] = set()
        self.workers: dict[str, Worker] = {}
        self.target = draw.randint(1, 4)
        suspects = Suspects(samples_max=len(self.poisons))
        self.holder = Holder(self, ledger(self.sizes, seed, suspects=suspects), [])
        for _ in range(self.target):
            self._launch()
        self.after(draw.expovariate(0.3), self._mischief)

    # ---- time and the network ------------------------------------------------------------------------------

    @property
    def chaos(self) -> bool:
        return self.now < _CHAOS_S

    def after(self, delay: float, action: Action) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay, self._sequence, action))

    def send(self, action: Action) -> None:
        """Deliver once, twice or never, now or much later."""
        copies = self.random.choices([0, 1, 2], [0.08, 0.84, 0.08])[0] if self.chaos else 1
        for _ in range(copies):
            late = self.chaos and self.random.random() < 0.08
            self.after(self.random.uniform(0.0, 12.0 if late else 0.2), action)

    def run(self) -> None:
        while not self.done:
            if not self._queue or self.now > _END_S:
                raise ViolationError(f"hangs in epoch {self.holder.ledger.epoch}")
            self.now, _, action = heapq.heappop(self._queue)
            action()
        if self.ended < self.epochs:
            raise ViolationError(f"{self.ended} of {self.epochs} epochs were told to have ended")

    # ---- what happens to workers ---------------------------------------------------------------------------

    def poisoned(self, part: le.LeasedSamples) -> bool:
        return any((part.shard, place) in self.poisons for place in range(part.start, part.stop))

    def poison(self, worker: Worker) -> None:
        """A sample ends the worker, or holds it for good until the watchdog ends it."""
        if not worker.alive:
            return
        hangs = self.random.random() < 0.2
        worker.next(_END_S)
        cause = Cause.HUNG if hangs else self.random.choice([Cause.CRASHED, Cause.OUT_OF_MEMORY])
        self.after(self.random.uniform(2, 8) if hangs else 0.0, lambda: self.die(worker, cause))

    def die(self, worker: Worker, cause: Cause) -> None:
        if not worker.alive:
            return
        worker.alive = False
        self._report(worker.name, cause)

    def _report(self, worker: str, cause: Cause) -> None:
        told = Cause.CRASHED if self.blames_all else cause
        self.deaths.append((worker, told))
        for _ in range(1 + (self.random.random() < 0.1)):
            self.after(self.random.uniform(0.0, 3.0), lambda: self.holder.lost(worker, told))
        self.after(self.random.uniform(0.1, 2.0), self._refill)

    def quit(self, worker: Worker) -> None:
        """One that was taken for lost, and replaced, woke up."""
        worker.alive = False

    def _refill(self) -> None:
        while sum(w.alive and w.name not in self.suspected for w in self.workers.values()) < self.target:
            self._launch()

    def _launch(self) -> None:
        name = f"w{len(self.workers)}"
        self.workers[name] = Worker(self, name, self.random.choice(self.hosts))

    def _mischief(self) -> None:
        if not self.chaos:
            return
        self.after(self.random.expovariate(0.3), self._mischief)
        alive = [worker for worker in self.workers.values() if worker.alive]
        kind = self.random.choice(_MISCHIEF)
        if kind == "restart":
            self._restart()
        elif kind == "resize":
            self.target = self.random.randint(1, 4)
            self._refill()
        elif alive:
            worker = self.random.choice(alive)
            if kind == "stall":
                worker.stalled_until = self.now + self.random.uniform(0.5, 15.0)
            elif kind == "suspect" and worker.name not in self.suspected:
                self.suspected.add(worker.name)
                worker.stalled_until = self.now + self.random.uniform(0.0, 5.0)
                self._report(worker.name, Cause.SILENT)
            elif kind == "crash" and self.crashes < _CHANCE_CRASHES:
                self.crashes += 1
                self.die(worker, Cause.CRASHED)
            elif kind == "kill":
                self.die(worker, self.random.choice([Cause.KILLED, Cause.PREEMPTED, Cause.EVICTED]))

    def _restart(self) -> None:
        if not self.holder.alive:
            return
        self.restarts += 1
        succeed = self.holder.die()
        # whoever stalls through it wakes up with leases and weights of a life that is undone
        for worker in self.workers.values():
            if worker.alive and self.random.random() < 0.5:
                worker.stalled_until = self.now + self.random.uniform(1.0, 15.0)

        def back() -> None:
            self.holder = succeed()
            for worker, cause in self.deaths:
                self.holder.lost(worker, cause)

        self.after(self.random.uniform(0.0, 3.0), back)

    # ---- laws ----------------------------------------------------------------------------------------------

    def check(self, ended: le.EpochCommitted, applied: list[Applied]) -> None:
        """At the end of an epoch: what is applied of it and of those before it."""
        self.ended = max(self.ended, ended.epoch + 1)
        reported = {
            (entry.piece.scope, place)
            for entry in ended.quarantined
            for place in range(entry.piece.start, entry.piece.stop)
        }
        if reported != self.poisons or ended.whole != (not self.poisons):
            raise ViolationError(f"{reported} is reported as quarantined, not {self.poisons}")
        for epoch in range(ended.epoch + 1):
            counts: Counter[Sample] = Counter(
                (part.shard, place)
                for step in applied
                if step.epoch == epoch
                for part in step.parts
                for place in range(part.start, part.stop)
            )
            if counts != Counter(self.samples - self.poisons):
                raise ViolationError(f"epoch {epoch} holds {counts}")
        if [step.step for step in applied] != list(range(1, len(applied) + 1)):
            raise ViolationError("steps are missing")
