"""A job in virtual time: the real `Membership` and `Barrier`, simulated workers, and a slow network.

Messages on one link stay in order; nothing else is promised. Workers die at any moment, also between writing
a gradient and saying so, and are noticed at any later moment. Whatever breaks a law of the protocol raises
`ViolationError`.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from scavenger.elastic import barrier as b
from scavenger.elastic.barrier import Announce, Barrier, Phase
from scavenger.elastic.membership import Membership, WorkerState
from scavenger.elastic.view import Member, View, plan_step, split

Action = Callable[[], None]

_CHAOS_S = 300.0
_END_S = 100_000.0


class ViolationError(AssertionError):
    """A law of the protocol was broken."""


@dataclass(frozen=True)
class Written:
    """What a worker put into its slot; `weights_held` if nobody overwrote its weights meanwhile."""

    kind: str
    step: int
    start: int
    stop: int
    weights_held: bool


class Worker:
    """Does what it is told, one order after the other, each taking its time."""

    def __init__(self, world: World, member: Member) -> None:
        self.world, self.name, self.slot = world, member.worker, member.slot
        self.alive = True
        self.inbox: deque[Action] = deque()
        self.busy = False

    def take(self, work: Action) -> None:
        if self.alive:
            self.inbox.append(work)
            self._next()

    def occupied(self, then: Action) -> None:
        """Be busy for a while, unless death comes first."""
        self.busy = True

        def done() -> None:
            if self.alive:
                self.busy = False
                then()
                self._next()

        self.world.after(self.world.duration(), done)

    def _next(self) -> None:
        while self.inbox and not self.busy and self.alive:
            self.inbox.popleft()()

    def train(self, step: int, view: View) -> None:
        rank = view.rank(self.name)
        if rank is None:
            raise ViolationError(f"{self.name} is told to train in a view without it")
        share = plan_step(view, step, self.world.dataset_size).shares[rank]
        self._compute(
            "gradient", step, step - 1, share.start, share.stop, b.Contribution(self.name, view.number, step)
        )

    def evaluate(self, step: int, view: View) -> None:
        rank = view.rank(self.name)
        if rank is None:
            raise ViolationError(f"{self.name} is told to evaluate in a view without it")
        share = split(0, self.world.validation_size, view.workers)[rank]
        self._compute(
            "metrics", step, step, share.start, share.stop, b.Evaluated(self.name, view.number, step)
        )

    def _compute(self, kind: str, step: int, reads: int, start: int, stop: int, says: b.Event) -> None:
        began = self.world.weights[reads % 2] == reads

        def done() -> None:
            held = began and self.world.weights[reads % 2] == reads
            self.world.slots[self.slot] = Written(kind, step, start, stop, held)
            # it may die here, with its work written and nobody told
            self.occupied(lambda: self.world.to_aggregator(self.name, says))

        self.occupied(done)

    def summarise(self, step: int, view: View) -> None:
        self.occupied(lambda: self.world.to_aggregator(self.name, b.Summed(self.name, view.number, step)))


class World:
    """One job under one seed.

    Args:
        seed: Of everything that is left to chance.
        barrier: Takes the data set's size; a broken one should be caught.
        membership: The same.
        empty_at_once: Break the rule that a dead worker's slot is kept until a view without it took effect.
        kill_all: Kill every worker in the middle, and start one afterwards.
    """

    def __init__(
        self,
        seed: int,
        *,
        barrier: Callable[[int], Barrier] = Barrier,
        membership: Callable[[], Membership] = Membership,
        empty_at_once: bool = False,
        kill_all: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.dataset_size = self.random.choice([self.random.randint(1, 6), self.random.randint(20, 200)])
        self.validation_size = self.random.choice([0, 1, 7, 40])
        self.epochs = self.random.randint(1, 6)
        self.slowness_s = self.random.choice([0.01, 0.1, 1.0])
        self.barrier, self.membership = barrier(self.dataset_size), membership()
        self.empty_at_once, self.kill_all = empty_at_once, kill_all
        self.now, self._sequence = 0.0, 0
        self._queue: list[tuple[float, int, Action]] = []
        self._links: dict[tuple[str, str], float] = {}
        self._aggregator: deque[Action] = deque()
        self._applying = False
        self.workers: dict[str, Worker] = {}
        self.joined: set[str] = set()
        self.slots: dict[int, Written | None] = {}
        self.weights = [0, -1]
        self.covered: list[tuple[int, int, int]] = []
        self.reported: list[int] = []
        self.installed: list[int] = []
        self.losses = 0
        self._undetected: set[str] = set()
        self._unfreed: set[str] = set()

    # ---- time and network ----------------------------------------------------------------------------------

    def duration(self) -> float:
        long = 20.0 if self.random.random() < 0.05 else 1.0
        return self.random.expovariate(1.0) * self.slowness_s * long

    def after(self, seconds: float, action: Action) -> None:
        self._at(self.now + seconds, action)

    def _at(self, time: float, action: Action) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (time, self._sequence, action))

    def link(self, source: str, target: str, deliver: Action) -> None:
        """Deliver after any delay, but behind what went the same way before."""
        arrival = max(self.now + self.duration(), self._links.get((source, target), 0.0))
        self._links[source, target] = arrival
        self._at(arrival, deliver)

    def run(self) -> None:
        """Chaos, then calm: the job must come to its end."""
        self.launch(self.random.randint(1, 3))
        self.after(self.duration(), self._chaos)
        while self._queue and self.barrier.phase is not Phase.STOPPED:
            self.now, _, action = heapq.heappop(self._queue)
            if self.now > _END_S:
                break
            action()
        if self.barrier.phase is not Phase.STOPPED:
            alive = [w.name for w in self.workers.values() if w.alive]
            raise ViolationError(
                f"stuck in {self.barrier.phase} waiting for {self.barrier.missing}; alive: {alive}"
            )
        self._check_coverage()

    # ---- what befalls it -----------------------------------------------------------------------------------

    def _chaos(self) -> None:
        if self.now > _CHAOS_S * self.slowness_s:
            self._calm()
            return
        match self.random.randrange(5):
            case 0:
                self.launch(1)
            case 1:
                self.kill()
            case 2 | 3:
                self._resize()
            case 4:
                self._release()
        self.after(self.duration() * self.random.choice([0.1, 1.0, 5.0]), self._chaos)

    def _calm(self) -> None:
        if self.kill_all:
            for worker in self.workers.values():
                self._die(worker)
        if not any(worker.alive for worker in self.workers.values()):
            self.launch(1)

    def launch(self, count: int) -> None:
        for _ in range(count):
            worker = Worker(self, self.membership.launch())
            self.workers[worker.name] = worker
            self._start(worker)

    def _start(self, worker: Worker) -> None:
        self.after(self.duration() * 3, lambda: self._join(worker) if worker.alive else None)

    def _join(self, worker: Worker) -> None:
        def joined() -> None:
            self.joined.add(worker.name)
            self.link("aggregator", worker.name, ready)

        def ready() -> None:
            worker.take(lambda: self.link(worker.name, "coordinator", lambda: self._ready(worker.name)))

        self.link(worker.name, "aggregator", lambda: self._aggregate(joined))

    def kill(self) -> None:
        living = [worker for worker in self.workers.values() if worker.alive]
        if living:
            self._die(self.random.choice(living))

    def _die(self, worker: Worker) -> None:
        if worker.alive:
            worker.alive = False
            self.losses += 1
            self.after(self.duration(), lambda: self._noticed(worker.name))

    # ---- coordinator ---------------------------------------------------------------------------------------

    def _ready(self, name: str) -> None:
        if self.membership.state(name) is not WorkerState.STARTING:
            return
        announce = self.membership.ready(name)
        if self.membership.announced is None and announce is None and not self.installed:
            announce = self.membership.resize(1, self.random.randint(1, 30), "start")
        self._announce(announce)

    def _resize(self) -> None:
        if not self.membership.count(WorkerState.STANDBY, WorkerState.TRAINING):
            return
        workers = self.random.randint(1, 5)
        self._announce(self.membership.resize(workers, self.random.randint(workers, 40), "chaos"))

    def _release(self) -> None:
        if not self.membership.settled:
            return
        for name in self.membership.workers(WorkerState.STANDBY)[:1]:
            self.membership.release(name)
            self._quit(self.workers[name])

    def _quit(self, worker: Worker) -> None:
        self.link("coordinator", worker.name, lambda: worker.take(lambda: self._die(worker)))

    def _noticed(self, name: str) -> None:
        self._announce(self.membership.lost(name))
        self._unfreed.add(name)
        self._free_slots()

    def _free_slots(self) -> None:
        for name in sorted(self._unfreed):
            if self.empty_at_once or self.membership.forgotten(name):
                self._unfreed.discard(name)
                self.slots[self.workers[name].slot] = None

    def _announce(self, announce: Announce | None) -> None:
        if announce is not None:
            self.link("coordinator", "aggregator", lambda: self._feed(announce))

    def _installed(self, view: View) -> None:
        self.membership.installed(view.number)
        self._free_slots()

    # ---- aggregator ----------------------------------------------------------------------------------------

    def to_aggregator(self, name: str, event: b.Event) -> None:
        self.link(name, "aggregator", lambda: self._feed(event))

    def _feed(self, event: b.Event) -> None:
        self._aggregate(lambda: self._carry_out(self.barrier.handle(event)))

    def _aggregate(self, work: Action) -> None:
        """One thing at a time: while a step is being applied, messages wait."""
        self._aggregator.append(work)
        while self._aggregator and not self._applying:
            self._aggregator.popleft()()

    def _carry_out(self, instructions: list[b.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case b.Apply():
                    self._apply(instruction)
                case b.Proceed():
                    self._proceed(instruction)
                case b.Sum():
                    self._sum(instruction)
                case b.Report():
                    self._report(instruction)
                case b.Installed():
                    self._install(instruction.view)
                case b.Refuse():
                    pass

    def _install(self, view: View) -> None:
        if self.installed and view.number <= self.installed[-1]:
            raise ViolationError(f"view {view.number} after view {self.installed[-1]}")
        if view.first_step != self.barrier.step + 1:
            raise ViolationError(
                f"view {view.number} begins at {view.first_step}, after step {self.barrier.step}"
            )
        self.installed.append(view.number)
        self.link("aggregator", "coordinator", lambda: self._installed(view))

    def _proceed(self, order: b.Proceed) -> None:
        if order.worker not in self.joined:
            raise ViolationError(
                f"{order.worker} has never spoken to the aggregator, so it cannot be reached"
            )
        worker = self.workers[order.worker]
        work: dict[str, Action] = {
            "train": lambda: worker.train(order.step + 1, order.view),
            "evaluate": lambda: worker.evaluate(order.step, order.view),
        }
        if order.action in work:
            self.link("aggregator", worker.name, lambda: worker.take(work[order.action]))

    def _apply(self, apply: b.Apply) -> None:
        """Read every member's slot over a stretch of time, then publish."""
        plan = apply.plan

        def look() -> None:
            for member, share in zip(apply.view.members, plan.shares, strict=True):
                wanted = Written("gradient", plan.step, share.start, share.stop, True)
                if self.slots.get(member.slot) != wanted:
                    raise ViolationError(
                        f"step {plan.step} reads {self.slots.get(member.slot)}, not {wanted}"
                    )

        def done() -> None:
            look()
            self._applying = False
            self.weights[plan.step % 2] = plan.step
            self.covered.append((plan.epoch, plan.shares[0].start, plan.shares[-1].stop))
            sizes = [share.samples for share in plan.shares]
            if max(sizes) - min(sizes) > 1 or sum(sizes) != plan.samples:
                raise ViolationError(f"shares {sizes}")
            if any(x.stop != y.start for x, y in zip(plan.shares, plan.shares[1:], strict=False)):
                raise ViolationError(f"shares are not contiguous: {plan.shares}")
            self._carry_out(self.barrier.handle(b.Applied(plan.step)))
            while self._aggregator and not self._applying:
                self._aggregator.popleft()()

        look()
        if plan.step != len(self.covered) + 1:
            raise ViolationError(f"step {plan.step} is applied after {len(self.covered)} others")
        self._applying = True
        self.after(self.duration(), done)

    def _sum(self, order: b.Sum) -> None:
        shares = split(0, self.validation_size, order.view.workers)
        for member, share in zip(order.view.members, shares, strict=True):
            wanted = Written("metrics", order.plan.step, share.start, share.stop, True)
            if self.slots.get(member.slot) != wanted:
                raise ViolationError(f"metrics of step {order.plan.step} read {self.slots.get(member.slot)}")
        first = self.workers[order.view.members[0].worker]
        work: Action = lambda: first.summarise(order.plan.step, order.view)  # noqa: E731
        self.link("aggregator", first.name, lambda: first.take(work))

    def _report(self, report: b.Report) -> None:
        if self.reported != list(range(report.plan.epoch)):
            raise ViolationError(f"epoch {report.plan.epoch} is reported after {self.reported}")
        self.reported.append(report.plan.epoch)
        stop = len(self.reported) >= self.epochs
        self.link(
            "aggregator",
            "coordinator",
            lambda: self.link("coordinator", "aggregator", lambda: self._feed(b.Verdict(stop))),
        )

    def _check_coverage(self) -> None:
        expected = (0, 0)
        for epoch, start, stop in self.covered:
            if (epoch, start) != expected:
                raise ViolationError(f"samples {start}..{stop} of epoch {epoch} follow {expected}")
            expected = (epoch, stop) if stop < self.dataset_size else (epoch + 1, 0)
        if expected != (self.epochs, 0) or len(self.reported) != self.epochs:
            raise ViolationError(
                f"ended at {expected} with {self.reported} reported, not after {self.epochs} epochs"
            )
