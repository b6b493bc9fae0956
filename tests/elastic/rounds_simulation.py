"""A training loop of one's own in virtual time: the real `Rounds`, with `ShardLedger` or `SampleQueue`,
simulated workers, slow lines.

Workers start, read, push, are killed, stall and wake up after they were given up, join and leave; messages are late,
and some to the leader come twice; the leader asks for states to keep, and takes one up again when every replica is
lost. Whatever breaks a law raises `ViolationError`.

The laws: each epoch's steps hold every sample exactly once; every gradient was computed at the weights that it is
applied to; all replicas of a step are the same; a worker that keeps the protocol is not expelled, and hears nothing
that it cannot understand where it stands; and the job ends.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scavenger.elastic import round_events as r
from scavenger.elastic.leases import EpochCommitted, Grant, LeasedSamples
from scavenger.elastic.ledger import ShardLedger
from scavenger.elastic.quarantine import Cause
from scavenger.elastic.rounds import Rounds
from scavenger.elastic.sample_queue import SampleQueue

_CHAOS_S = 40.0
_END_S = 2_000.0
_HOST = "h0"

Action = Callable[[], None]
Replica = tuple[Any, ...]
"""Names the initial weights and every mean that was applied since: equal if and only if the weights are."""


class ViolationError(AssertionError):
    """A law was broken."""


@dataclass(frozen=True)
class Mean:
    """What a worker gets of `Publish`."""

    said: r.Publish
    mean: Any


@dataclass(frozen=True)
class State:
    """What a worker gets of `Start`."""

    said: r.StartWorker
    replica: Replica | None
    follows: bool = False


class Worker:
    """Does what `LoopLink` and `Job` do: one message at a time, none while it computes or applies."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.stalled_until = 0.0
        self.replica: Replica = (name,)
        self.step = self.epoch = self.view = 0
        self.granted: Grant | None = None
        self.taken = 0
        self.inbox: list[Any] = []
        self.waits = True
        self.follows = False
        world.after(
            world.random.uniform(0.1, 3.0),
            lambda: self._later(lambda: self._say(r.WorkerArrived(name, _HOST))),
        )

    def _later(self, action: Action) -> None:
        """Now, or when it runs again."""
        if not self.alive:
            return
        left = self.stalled_until - self.world.now
        if left > 0:
            self.world.after(left, lambda: self._later(action))
        else:
            action()

    def _say(self, event: r.Happening, extra: Any = None) -> None:
        self.world.up(self, event, extra)

    def deliver(self, message: Any) -> None:
        self.inbox.append(message)
        self._later(self._read)

    def _read(self) -> None:
        while self.alive and self.waits and self.inbox:
            self._take(self.inbox.pop(0))

    def _take(self, message: Any) -> None:
        match message:
            case r.Leave():
                self.alive = False
                self.world.left.add(self.name)
            case r.Donate():
                self._say(r.Donated(self.name, self.step), self.replica)
            case State(said=said):
                if message.replica is not None:
                    self.replica = message.replica
                self.step, self.epoch, self.view = said.step, said.epoch, said.view
                self.follows = message.follows
                self._go_on()
            case Grant():
                self.granted, self.taken = message, message.start
                self._go_on()
            case Mean():
                self.waits = False
                self.world.after(self._short(), lambda: self._later(lambda: self._apply(message)))
            case r.Over():
                self.epoch += 1
                self._go_on()

    def _short(self) -> float:
        return self.world.random.uniform(0.0, 0.3)

    def _go_on(self) -> None:
        if self.epoch >= self.world.epochs:
            self.world.final[self.name] = (self.step, self.replica)
            self._say(r.WorkerFinished(self.name))
        elif self.granted is None:
            self._say(r.Asked(self.name, self.step, self.epoch))
        else:
            self.waits = False
            self.world.after(self.world.random.uniform(0.1, 1.0), lambda: self._later(self._push))

    def _push(self) -> None:
        grant = self.granted
        assert grant is not None
        stop = grant.stop if self.world.apart else min(self.taken + self.world.batch, grant.stop)
        part = LeasedSamples(grant.shard, grant.attempt, self.taken, stop)
        self.taken = stop
        self._say(r.Pushed(self.name, self.view, self.step + 1, part), self.replica)
        self.waits = True
        self._read()

    def _apply(self, mean: Mean) -> None:
        said = mean.said
        if said.step != self.step + 1:
            raise ViolationError(f"{self.name}, at step {self.step}, gets the mean of {said.step}")
        if self.follows and said.epoch == self.epoch + 1:
            self.epoch += 1  # no step has ended the one before
        if said.epoch != self.epoch:
            raise ViolationError(f"{self.name}, in epoch {self.epoch}, gets a mean of epoch {said.epoch}")
        self.replica = (*self.replica, mean.mean)
        self.step, self.view = said.step, said.view
        stays = self.name not in self.world.given_up
        if stays and self.replica != self.world.replicas[self.step]:
            raise ViolationError(f"{self.name} holds another replica of step {self.step}")
        if self.granted is not None and (self.taken == self.granted.stop or said.over):
            self.granted = None
        if said.over:
            self.epoch += 1
        for message in self.inbox:
            if not isinstance(message, r.Donate | r.Leave) and not (
                self.follows and isinstance(message, Mean)
            ):
                raise ViolationError(f"{self.name} hears {message} at the boundary of step {self.step}")
        self.waits = True
        self._read()
        if self.alive:
            self._go_on()


class World:
    """One job under one seed.

    Args:
        seed: Of everything that is left to chance.
        rounds: A broken one should be caught.
        apart: Whether any sample can be read, so that the ledger is a queue.
    """

    def __init__(self, seed: int, *, rounds: type[Rounds] = Rounds, apart: bool = False) -> None:
        self.random = random.Random(seed)
        draw = self.random
        self.sizes = [
            draw.choice([0, draw.randint(1, 6), draw.randint(5, 25)]) for _ in range(draw.randint(1, 6))
        ]
        self.sizes[0] += 1
        self.apart = apart
        if apart:
            self.sizes = [sum(self.sizes)]
        self.epochs, self.batch, self.target = draw.randint(1, 3), draw.randint(1, 6), draw.randint(1, 3)
        self.now, self._sequence = 0.0, 0
        self._queue: list[tuple[float, int, Action]] = []
        self._up: dict[str, float] = {}
        self._down: dict[str, float] = {}
        ledger = SampleQueue(self.sizes[0], seed) if apart else ShardLedger(self.sizes, seed)
        self._behind_max = random.Random(~seed).choice([0, 1, 3, 100])
        self._kind, self.rounds = rounds, rounds(ledger, behind_max=self._behind_max)
        self.workers: dict[str, Worker] = {}
        self.left: set[str] = set()
        self.given_up: set[str] = set()
        self.replicas: dict[int, Replica] = {}
        self.applied: list[tuple[int, tuple[LeasedSamples, ...]]] = []
        self.pushed: dict[tuple[str, int], Replica] = {}
        self.kept: tuple[dict[str, Any], int, Replica] | None = None
        self._ledgers: dict[int, dict[str, Any]] = {}
        self._donation: Replica | None = None
        self._held: Replica | None = None
        self.final: dict[str, tuple[int, Replica]] = {}
        self.begun = self.lost_for_good = False
        self.kills = self.joins = self.leaves = self.given = self.rollbacks = self.late = self.followed = 0
        self._incarnation = 0
        self._ended: set[int] = set()
        for _ in range(self.target):
            self._launch()
        self.after(draw.uniform(0.5, 4.0), self._begin)
        self.after(draw.expovariate(0.4), self._mischief)
        if draw.random() < 0.7:
            self.after(draw.uniform(0.5, 3.0), self._keep)

    # ---- time and lines ------------------------------------------------------------------------------------

    @property
    def chaos(self) -> bool:
        return self.now < _CHAOS_S

    def after(self, delay: float, action: Action) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (self.now + delay, self._sequence, action))

    def _line(self, lines: dict[str, float], name: str, action: Action) -> None:
        """In order, but late."""
        slow = self.chaos and self.random.random() < 0.1
        at = max(lines.get(name, 0.0), self.now + self.random.uniform(0.0, 4.0 if slow else 0.1))
        lines[name] = at
        self.after(at - self.now, action)

    def up(self, worker: Worker, event: r.Happening, extra: Any) -> None:
        for _ in range(1 + (self.random.random() < 0.1)):
            self._line(self._up, worker.name, lambda: self._heard(worker.name, event, extra))

    def _say(self, name: str, message: Any) -> None:
        self._line(self._down, name, lambda: self.workers[name].deliver(message))

    def run(self) -> None:
        while not (self.rounds.done or self.lost_for_good):
            if not self._queue or self.now > _END_S:
                raise ViolationError(f"hangs at step {self.rounds.step}, missing {self.rounds.missing}")
            self.now, _, action = heapq.heappop(self._queue)
            action()
        if not self.lost_for_good:
            self._check_end()

    # ---- the leader ----------------------------------------------------------------------------------------

    def _heard(self, name: str, event: r.Happening, extra: Any) -> None:
        if name in self.given_up and isinstance(event, r.Pushed):
            self.late += 1
        match event:
            case r.Pushed():
                self.pushed.setdefault((name, event.step), extra)
            case r.Donated():
                self._donation = extra
                if name in self.rounds.members and event.step > 0 and event.step in self._ledgers:
                    self.kept = (self._ledgers.pop(event.step), event.step, extra)
            case _:
                pass
        self.handle(event)
        self._donation = None

    def handle(self, event: r.Happening) -> None:
        try:
            orders = self.rounds.handle(event)
        except (ValueError, KeyError, IndexError) as error:
            raise ViolationError(f"{event}: {error!r}") from error
        self._obey(orders)

    def _obey(self, orders: list[r.Order]) -> None:
        for order in orders:
            match order:
                case r.Average():
                    if self.random.random() < 0.5:
                        self._average(order)
                    else:
                        self.after(
                            self.random.uniform(0.0, 0.5),
                            lambda order=order, rounds=self.rounds: self._average_of(rounds, order),
                        )
                case r.Publish():
                    self.followed += len(order.followers)
                    for name in (*order.workers, *order.followers):
                        self._say(name, Mean(order, self.replicas[order.step][-1]))
                case r.StartWorker():
                    follows = order.worker not in self.rounds.members
                    self._say(order.worker, State(order, self._state_for(order), follows))
                case r.Donate():
                    self._ledgers[order.step] = json.loads(json.dumps(self.rounds.ledger.snapshot()))
                    self._say(order.worker, order)
                case Grant() | r.Over() | r.Leave():
                    self._say(order.worker, order)
                case r.Evict():
                    raise ViolationError(f"{order}")
                case r.Stranded():
                    self._roll_back()
                    return
                case EpochCommitted():
                    self._check_epoch(order.epoch)
                case _:
                    pass

    def _state_for(self, order: r.StartWorker) -> Replica | None:
        if not order.load:
            if order.step == 0:
                self.replicas[0] = (order.worker,)
            return None
        replica = self._donation or self._held
        if replica != self.replicas[order.step]:
            raise ViolationError(f"{order.worker} is to load another replica than that of step {order.step}")
        return replica

    def _average_of(self, rounds: Rounds, order: r.Average) -> None:
        if rounds is self.rounds:
            self._average(order)

    def _average(self, order: r.Average) -> None:
        base = self.replicas[order.step - 1]
        for name, part in order.contributions:
            if self.pushed[name, order.step] != base:
                raise ViolationError(f"{part} of {name} was computed at other weights")
        self.replicas[order.step] = (*base, order.contributions)
        self.applied.append((self.rounds.ledger.epoch, tuple(part for _, part in order.contributions)))
        self.handle(r.Averaged(order.step))

    def _begin(self) -> None:
        self.begun = True
        self._resize(())

    def _resize(self, without: tuple[str, ...]) -> None:
        if self.begun:
            batch = self.target + self.random.randrange(self.target * self.batch) if self.apart else 0
            self.handle(r.Resized(self.target, "", without, batch))

    def _keep(self) -> None:
        if not self.rounds.finishing:
            self._obey(self.rounds.want_state())
        self.after(self.random.uniform(0.5, 6.0), self._keep)

    def _roll_back(self) -> None:
        """The successor has none of the workers that were members, and begins where the kept state ends."""
        if self.kept is None:
            self.lost_for_good = True
            return
        self.rollbacks += 1
        ledger, step, replica = self.kept
        self._incarnation = max(self._incarnation, ledger["incarnation"]) + 1
        view = self.rounds.view
        self.applied = self.applied[:step]
        self.replicas = {number: kept for number, kept in self.replicas.items() if number <= step}
        self.pushed, self._ledgers, self._held = {}, {}, replica
        before, self.rounds = (
            self.rounds,
            self._kind(
                (SampleQueue if self.apart else ShardLedger).restore(ledger, incarnation=self._incarnation),
                held=True,
                view=view,
                behind_max=self._behind_max,
            ),
        )
        for name in before.alive():
            self.handle(r.WorkerLaunched(name))
            if name in before._hosts:
                self.handle(r.WorkerArrived(name, _HOST))
        self._resize(())

    # ---- what happens to workers ---------------------------------------------------------------------------

    def _launch(self) -> None:
        name = f"w{len(self.workers)}"
        self.handle(r.WorkerLaunched(name))
        self.workers[name] = Worker(self, name)

    def _mischief(self) -> None:
        if not self.chaos or self.rounds.finishing:
            return
        self.after(self.random.expovariate(0.4), self._mischief)
        alive = [
            worker for worker in self.workers.values() if worker.alive and worker.name not in self.given_up
        ]
        kind = self.random.choice(["kill", "kill", "stall", "give up", "join", "leave", "everybody"])
        if kind == "join" and len(alive) < 6:
            self.joins += 1
            self.target += 1
            self._launch()
            self._resize(())
        elif kind == "leave" and len(self.rounds.members) > 1:
            self.leaves += 1
            self.target = max(1, self.target - 1)
            self._resize((self.random.choice(self.rounds.members),))
        elif kind == "everybody" and self.random.random() < 0.15:
            for worker in alive:
                self._lose(worker, Cause.KILLED)
        elif alive:
            worker = self.random.choice(alive)
            if kind == "stall":
                worker.stalled_until = self.now + self.random.uniform(0.5, 8.0)
            elif kind == "give up":
                self.given += 1
                worker.stalled_until = self.now + self.random.uniform(0.0, 3.0)
                self._lose(worker, Cause.SILENT)
            elif kind == "kill":
                self._lose(worker, self.random.choice([Cause.KILLED, Cause.PREEMPTED, Cause.EVICTED]))

    def _lose(self, worker: Worker, cause: Cause) -> None:
        self.kills += 1
        if cause is Cause.SILENT:
            self.given_up.add(worker.name)
        else:
            worker.alive = False

        def noticed() -> None:
            for _ in range(1 + (self.random.random() < 0.1)):
                self.handle(r.WorkerGone(worker.name, cause))
            if not self.rounds.finishing and not self.lost_for_good:
                self._launch()

        self.after(0.0 if cause is Cause.SILENT else self.random.uniform(0.0, 2.0), noticed)

    # ---- laws ----------------------------------------------------------------------------------------------

    def _check_epoch(self, epoch: int) -> None:
        expected = Counter((shard, place) for shard, size in enumerate(self.sizes) for place in range(size))
        counts = Counter(
            (part.shard, place)
            for of, parts in self.applied
            if of == epoch
            for part in parts
            for place in range(part.start, part.stop)
        )
        if counts != expected:
            raise ViolationError(
                f"epoch {epoch} holds {counts - expected} too often, {expected - counts} not"
            )
        self._ended.add(epoch)

    def _check_end(self) -> None:
        if len(self.applied) != self.rounds.step:
            raise ViolationError("steps are missing")
        finished = {name: end for name, end in self.final.items() if name not in self.given_up}
        if not any(step == self.rounds.step for step, _ in finished.values()):
            return  # all that had finished were lost before they could say so
        for epoch in range(self.epochs):
            self._check_epoch(epoch)
