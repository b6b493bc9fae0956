"""A job in virtual time: the real `Barrier`, `Membership` and `Liveness`, simulated processes, and a bad network.

Processes die and are stopped at any point and are replaced as the supervisor replaces them: a sequencer comes back with
what the job's record says, an aggregator with its part's, a coordinator with a higher token, while the one before
may wake up and go on talking. Messages are delayed and lost; in *disorder* they are doubled and overtake each
other too. Whatever breaks a law of the protocol raises `ViolationError`.

The laws: every sample of every epoch is applied exactly once on every aggregator; weights and optimizers are, bit
for bit, those of a run in which nothing happens; the pieces of a step cover it exactly; what is applied was
computed at weights that nobody overwrote, and lies in slots that nobody else writes; views and tokens only grow;
and once the chaos is over, the job ends.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulated import MODULUS, Order, Process, Section, ViolationError, Worker, Written, gradient
from simulated_aggregator import Aggregator
from simulated_coordinator import WATCH_S, Coordinator, Resize
from simulated_migration import Requests

from scavenger.elastic import steps as st
from scavenger.elastic.barrier import Barrier
from scavenger.elastic.liveness import Liveness
from scavenger.elastic.membership import Membership
from scavenger.elastic.migration import AdoptMap, BucketMap, Migration
from scavenger.elastic.view import Position, StepPlan, View

__all__ = ["ViolationError", "World"]

_STUCK_S = 1000.0
"""More than any step needs once the chaos is over: 460 s where one worker is left with 36 pieces, and room for two."""
RULES = {
    "asks again": "the sequencer says again what has had no answer",
    "refuses the old": "what is older than what one has is refused; in order, nothing is",
    "double buffer": "a step is written beside the one before it, weights and optimizer alike",
    "steps are recorded": "the job's record is written with the weights of a step",
    "views are recorded": "the job's record has a view's number before the view's first order",
    "parts know their view": "a part's record tells under which view its step was applied",
    "slots are kept": "a dead worker's slots are kept until a view without it is in effect",
    "serves the step before": "weights can be pulled for as long as an aggregator has them",
    "maps are recorded": "a map of buckets is recorded before anybody hears of it",
    "late copies are void": "what is copied counts for the newest request alone, and not once its map is taken",
}
"""What the shells must hold to, besides what `scavenger.elastic` decides."""

_MISCHIEF = {
    "launch": 6,
    "kill worker": 6,
    "kill aggregator": 4,
    "kill sequencer": 4,
    "kill coordinator": 3,
    "kill two": 2,
    "kill all workers": 1,
    "stall": 10,
    "resize": 8,
    "release": 4,
}


@dataclass(frozen=True, slots=True)
class Record:
    """Where the job stands; see `scavenger.train.transport.shared_memory.ProgressRecord`."""

    step: int = 0
    position: Position = field(default_factory=Position)
    number: int = 0


class World:
    """One job under one seed.

    Args:
        seed: Of everything that is left to chance.
        barrier: A broken one should be caught.
        membership: The same.
        disorder: Whether messages may be doubled and overtake each other; drawn where None.
        without: A rule, one of `RULES`, that is to be left out.
        asks_each: Whether every step waits for a verdict.
        migrates: Whether buckets move between aggregators.
        in_place: Whether optimizers are updated in place, by aggregators with memory of their own.
        migration: A broken one should be caught.
    """

    def __init__(
        self,
        seed: int,
        *,
        barrier: type[Barrier] = Barrier,
        membership: type[Membership] = Membership,
        disorder: bool | None = None,
        without: str = "",
        asks_each: bool = False,
        migrates: bool = False,
        in_place: bool = False,
        migration: type[Migration] = Migration,
    ) -> None:
        self._asks_each, self._migration, self.in_place = asks_each, migration, in_place
        self.random = random.Random(seed)
        draw = self.random
        self._barrier, self._membership = barrier, membership
        if without and without not in RULES:
            raise ValueError(f"there is no rule {without}")
        self._without = without
        drawn = draw.random() < 0.5
        self.disorder = drawn if disorder is None else disorder
        self.dataset_size = draw.choice([draw.randint(1, 6), draw.randint(20, 200), draw.randint(20, 200)])
        self.validation_size = draw.choice([0, 1, 7, 40])
        self.epochs = draw.randint(1, 5)
        self.parts = max(2 if migrates else 1, draw.choice([1, 1, 2, 3, 4]))
        self.batches = (1, 8) if self.dataset_size < 7 else (self.dataset_size // 20, self.dataset_size // 2)
        self.remoteness = draw.choice([0.0, 0.3, 1.0])
        if in_place:
            self.remoteness = 1.0
        self.deadliness = draw.choice([0.0, 0.005, 0.02])
        self.loss = draw.choice([0.0, 0.02, 0.1])
        self.chaos, self.chaos_s = True, draw.choice([5.0, 15.0, 30.0])

        self.now, self._sequence, self._serial = 0.0, 0, 0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._links: dict[tuple[int, int], float] = {}

        # what outlives every process
        own = random.Random(seed)
        buckets = range(own.randint(self.parts, 7) if migrates else self.parts)
        start = BucketMap(0, 0, tuple(bucket * self.parts // len(buckets) for bucket in buckets))
        self.map_record, self.part_maps = (start, start), [(start, start)] * self.parts
        self.is_shared, self.copying_s = migrates and own.random() < 0.5, own.choice([0.0, 1.0, 10.0])
        self.is_shared = self.is_shared and not in_place
        self.memory = [_memory(len(buckets)) for _ in range(self.parts)]
        if self.is_shared:
            self.memory = self.memory[:1] * self.parts
        self.updates: dict[tuple[int, int, int, int], int] = {}
        self.momentum = [[0] * len(buckets)] * self.parts
        if in_place:
            self.momentum = [[0] * len(buckets) for _ in range(self.parts)]
        self.slots: list[dict[int, Written]] = [{} for _ in range(self.parts)]
        self.slot_of: dict[int, int] = {}
        self.budget = seed % 7
        self.part_records = [(0, 0, 0)] * self.parts
        self.job_record = Record()

        self.reference = [(bucket + 1, 0) for bucket in buckets]
        self.steps = 0
        self.position = Position()
        self.view: View | None = None
        self.reported = -1
        self._progress_at = 0.0
        self.led = 0
        self.done = False
        self.losses = self.recoveries = self.views = self.maps = 0

        self.workers: dict[str, Worker] = {}
        self.unfreed: set[str] = set()
        self._expelled: set[str] = set()
        self._ended: set[str] = set()
        self.wanted = self._draw_resize()
        self.token = 0
        self._supervisor = Process(self, "supervisor")
        self.requests, self._migrates = Requests(self, seed), migrates
        self._watching = Liveness()
        self._lead()
        self.aggregators = [Aggregator(self, a) for a in range(self.parts)]
        for _ in range(draw.randint(1, 3)):
            self._launch()

    def obeys(self, rule: str) -> bool:
        return rule != self._without

    def new_barrier(
        self, step: int, position: Position, number: int, current: BucketMap, before: BucketMap | None
    ) -> Barrier:
        return self._barrier(
            self.dataset_size,
            self.validation_size,
            aggregators=self.parts,
            step=step,
            position=position,
            number=number,
            asks_each=self._asks_each,
            sums=self.remoteness > 0,
            in_place=self.in_place,
            migration=self._migration(
                current, aggregators=self.parts, sizes=[4 << 20] * len(current.holders), before=before
            ),
        )

    def new_membership(self, token: int) -> Membership:
        return self._membership(token, gone_kept=2)

    # ---- time and network ----------------------------------------------------------------------------------

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    def duration(self) -> float:
        """Of a piece of work, and of a message on its way: mostly short."""
        chance = self.random.random()
        return 0.01 + 0.1 * chance if chance < 0.95 else 3.0 * self.random.random()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        self._at(self.now + seconds, action)

    def _at(self, time: float, action: Callable[[], object]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (time, self._sequence, action))

    def send(
        self, source: Process, target: Any, action: Callable[[Any], object], *, lossy: bool = True
    ) -> None:
        """Deliver in order on one link, or never; in disorder also twice, and whenever it pleases."""
        copies = 1
        disorder = lossy and self.disorder and self.chaos
        if lossy and self.chaos:
            chance = self.random.random()
            copies = 0 if chance < self.loss else 2 if disorder and chance > 0.9 else 1
        for _ in range(copies):
            arrival = self.now + self.duration()
            if not disorder:
                key = (source.serial, target.serial)
                arrival = self._links[key] = max(arrival, self._links.get(key, 0.0))
            self._at(arrival, lambda: action(target))  # to the bit, or what is in order would overtake

    def run(self) -> None:
        """Chaos, then calm: the job must come to its end."""
        self.after(self.duration() * 3, self._mischief)
        self.after(self.chaos_s, self._calm)
        self._supervisor.every(WATCH_S, self._watch)
        if self._migrates:
            self.requests.start()
        while not self.done:
            self.now, _, action = heapq.heappop(self._queue)
            if self.now > max(self.chaos_s, self._progress_at) + _STUCK_S:
                raise ViolationError(f"stuck: {self._state()}")
            action()
        if self.position != Position(self.epochs, 0) or self.reported != self.epochs - 1:
            raise ViolationError(f"ended at {self.position} after {self.reported + 1} reports")

    def _state(self) -> str:
        barrier = self.aggregators[0].barrier
        where = "no barrier" if barrier is None else f"{barrier.phase} of step {barrier.step + 1}"
        missing = () if barrier is None else barrier.missing
        return f"{where}, waits for {missing}; there are {self.alive}; led by {self.token}"

    # ---- what befalls it -----------------------------------------------------------------------------------

    def _mischief(self) -> None:
        if not self.chaos:
            return
        draw = self.random
        kind = draw.choices(list(_MISCHIEF), list(_MISCHIEF.values()))[0]
        living = [worker for worker in self.workers.values() if worker.alive]
        match kind:
            case "launch" if len(living) < 5:
                self._launch()
            case "kill worker" if living:
                draw.choice(living).die()
            case "kill all workers":
                for worker in living:
                    worker.die()
            case "kill aggregator":
                draw.choice(self.aggregators).die()
            case "kill sequencer":
                self.aggregators[0].die()
            case "kill coordinator":
                self.coordinator.die()
            case "kill two":
                self.coordinator.die()
                draw.choice([self.aggregators[0], *self.aggregators, *living]).die()
            case "stall":
                process = draw.choice([*living, *self.aggregators, self.coordinator])
                process.stall(draw.choice([0.3, 3.0, 9.0]) * draw.random())
            case "resize":
                self.wanted = self._draw_resize()
                wanted, coordinator = self.wanted, self.coordinator
                self.send(self._supervisor, coordinator, lambda c: c.resize(wanted), lossy=False)
            case "release":
                keep, coordinator = draw.randint(1, 3), self.coordinator
                self.send(self._supervisor, coordinator, lambda c: c.release(keep), lossy=False)
            case _:
                pass
        self.after(draw.expovariate(1.0) * draw.choice([0.05, 0.5, 2.0]), self._mischief)

    def _draw_resize(self) -> Resize:
        draw = self.random
        workers = draw.randint(1, 4)
        batch = max(workers, draw.randint(*self.batches))
        names = tuple(name for name in self.workers if draw.random() < 0.2)
        return Resize(workers, batch, names, draw.choice([1, 1, 2]))

    def _calm(self) -> None:
        self.chaos = False
        for process in (*self.workers.values(), *self.aggregators, self.coordinator):
            process.wake()

    # ---- the supervisor ------------------------------------------------------------------------------------------

    @property
    def alive(self) -> list[str]:
        """Workers that are there to stay, as far as the supervisor knows."""
        return [
            name
            for name, worker in self.workers.items()
            if name not in self._ended and name not in self._expelled and not worker.quitting
        ]

    def _launch(self) -> None:
        remote = tuple(a for a in range(self.parts) if self.random.random() < self.remoteness)
        if remote and self.is_shared:
            remote = tuple(range(self.parts))
        worker = Worker(self, f"w{len(self.workers)}", remote)
        self.workers[worker.name] = worker
        self.send(self._supervisor, self.coordinator, lambda c: c.launched(worker.name), lossy=False)

        def get_ready() -> None:
            worker.ready = True
            self.to_leader(worker, lambda c: c.worker_ready(worker.name))

        self.after(self.duration() * 3, lambda: worker.deliver(get_ready))

    def called(self, worker: Worker, coordinator: Coordinator) -> None:
        """The roll is called: who is ready says so."""

        def answer() -> None:
            if worker.ready:
                self.to_leader(worker, lambda c: c.worker_ready(worker.name), coordinator)

        worker.deliver(answer)

    def quit(self, worker: Worker) -> None:
        worker.quitting = True
        worker.deliver(worker.die)

    def to_leader(
        self, source: Process, action: Callable[[Coordinator], object], to: Process | None = None
    ) -> None:
        """Through the hub, which knows who leads."""

        def pass_on(supervisor: Process) -> None:
            if to is None or to is self.coordinator:
                self.send(supervisor, self.coordinator, action, lossy=False)

        self.send(source, self._supervisor, pass_on, lossy=False)

    def from_leader(self, coordinator: Coordinator, target: Any, action: Callable[[Any], object]) -> None:
        """Through the hub, which passes on nothing of one that leads no more."""

        def pass_on(supervisor: Process) -> None:
            if coordinator is self.coordinator:
                self.send(supervisor, target, action, lossy=False)

        self.send(coordinator, self._supervisor, pass_on, lossy=False)

    def to_supervisor(self, coordinator: Coordinator, action: Callable[[], object]) -> None:
        self.from_leader(coordinator, self._supervisor, lambda _: action())

    def expel(self, name: str) -> None:
        """The coordinator counts a process as lost: end it, so that it is."""
        if name in self.workers:
            self._expelled.add(name)
            self.workers[name].die()
        else:
            self.aggregators[int(name[1:])].die()

    def died(self, process: Process) -> None:
        self.losses += 1
        self.after(self.duration(), lambda: self._notice(process))

    def _notice(self, process: Process) -> None:
        match process:
            case Worker():
                self._ended.add(process.name)
                self.unfreed.add(process.name)
                if not self.obeys("slots are kept"):
                    self.free(process.name)
                self.send(self._supervisor, self.coordinator, lambda c: c.ended(process.name), lossy=False)
            case Aggregator() if process.index not in self.requests.retired:
                self.after(self.duration() * 3, lambda: self.restart(process.index))
            case Coordinator() if process is self.coordinator:
                self._lead()
            case _:
                pass

    def restart(self, index: int) -> None:
        if index in self.requests.retired or self.aggregators[index].alive:
            return
        self.recoveries += 1
        self.aggregators[index] = Aggregator(self, index)
        self.to_leader(self.aggregators[index], lambda c: c.aggregator_ready(index))

    def _lead(self) -> None:
        self.token += 1
        self.recoveries += self.token > 1
        self.coordinator = Coordinator(self, self.token)

    def _watch(self) -> None:
        leader = self.coordinator
        if not self.chaos and not self.alive:
            self._launch()
        if not leader.stalled:
            self._watching.heard(leader.name, self.now)
        for name in self._watching.suspects(self.now):
            self._watching.forget(name)
            if name == leader.name and leader.alive:
                # another leads before this one is ended: it may wake up meanwhile, and talk
                self._lead()
                self.after(self.random.choice([0.0, 3.0, 10.0]), leader.die)

    def free(self, name: str) -> None:
        if name in self.unfreed:
            self.unfreed.discard(name)
            for slots in self.slots:
                for slot in [slot for slot, written in slots.items() if written.worker == name]:
                    del slots[slot]

    def report(self, sequencer: Process, plan: StepPlan) -> None:
        """The epoch's metrics are known, or a step within it is applied, and the supervisor gives its verdict."""
        epoch = plan.epoch
        if not plan.ends_epoch:
            if (plan.step, epoch) != (self.steps, self.position.epoch):
                raise ViolationError(f"step {plan.step} is reported at step {self.steps}, {self.position}")
            verdict = st.EpochDecision(epoch, stop=False, step=plan.step)
            self.send(
                sequencer,
                self._supervisor,
                lambda s: self.send(s, sequencer, lambda to: to.hear(verdict)),
            )
            return
        if epoch != self.position.epoch - 1 or epoch not in (self.reported, self.reported + 1):
            raise ViolationError(f"epoch {epoch} is reported at {self.position}, after {self.reported}")

        def hear(supervisor: Process) -> None:
            if epoch > self.reported:
                self.reported, self._progress_at = epoch, self.now
            if epoch + 1 >= self.epochs:
                self.done = True
            self.send(supervisor, sequencer, lambda s: s.hear(st.EpochDecision(epoch, stop=False)))

        self.send(sequencer, self._supervisor, hear)

    # ---- laws ----------------------------------------------------------------------------------------------

    def install(self, sequencer: Process, barrier: Barrier, view: View) -> None:
        if view != self.view:
            if self.view is not None and view.number <= self.view.number:
                raise ViolationError(f"view number {view.number} comes after {self.view.number}")
            if (view.first_step, view.position) != (self.steps + 1, self.position):
                raise ViolationError(f"{view} begins after step {self.steps} at {self.position}")
            self.view = view
            self.views += 1
            if self.obeys("views are recorded"):
                self.job_record = Record(barrier.step, barrier.position, barrier.number)
        coordinator = self.coordinator
        self.send(sequencer, coordinator, lambda c: c.installed(view))

    def check_cover(self, instruction: st.Apply) -> None:
        plan, at = instruction.plan, instruction.plan.shares[0].start
        for piece in instruction.pieces:
            if piece.share.start != at or not piece.share.samples:
                raise ViolationError(f"{instruction.pieces} do not cover step {plan.step} exactly")
            at = piece.share.stop
        if at != plan.shares[-1].stop:
            raise ViolationError(f"{instruction.pieces} do not cover step {plan.step} exactly")
        if len({piece.slot for piece in instruction.pieces}) != len(instruction.pieces):
            raise ViolationError(f"{instruction.pieces} have a slot in common")

    def check_evaluated(self, instruction: st.Sum) -> None:
        places = [place for p in instruction.pieces for place in range(p.share.start, p.share.stop)]
        if places != list(range(self.validation_size)):
            raise ViolationError(f"{instruction.pieces} do not cover the validation data exactly")

    def complete(self, instruction: st.Apply, number: int) -> None:
        """Every aggregator has applied a step: is it the one that follows, and are the weights right?"""
        plan, lr_scale = instruction.plan, int(instruction.view.lr_scale)
        start, stop = plan.shares[0].start, plan.shares[-1].stop
        if plan.step != self.steps + 1 or Position(plan.epoch, start) != self.position:
            raise ViolationError(
                f"step {plan.step} at {plan.epoch}, {start} follows step {self.steps} at {self.position}"
            )
        weights = sum((bucket + 1) * value for bucket, (value, _) in enumerate(self.reference))
        step = gradient(plan.epoch, start, stop, weights)
        for bucket, (value, momentum) in enumerate(self.reference):
            momentum = (3 * momentum + lr_scale * step + plan.step) % MODULUS
            self.reference[bucket] = (31 * value + momentum) % MODULUS, momentum
            a = instruction.map.holders[bucket]
            section = self.memory[a][bucket][plan.step % 2]
            if (section.step, section.weights, section.momentum) != (plan.step, *self.reference[bucket]):
                raise ViolationError(
                    f"the weights of bucket {bucket} of a{a} after step {plan.step} are wrong"
                )
            key = (plan.step, instruction.view.number, instruction.number, bucket)
            if self.updates.get(key, a) != a:
                raise ViolationError(f"bucket {bucket} is updated by a{self.updates[key]}, held by a{a}")
        self.updates = {key: a for key, a in self.updates.items() if key[0] > plan.step}
        before = Record(plan.step - 1, self.position, number)
        self.steps, self.position, self._progress_at = plan.step, plan.next_position, self.now
        after = Record(plan.step, self.position, number)
        self.job_record = after if self.obeys("steps are recorded") else before

    # ---- migration -----------------------------------------------------------------------------------------

    @property
    def map(self) -> BucketMap:
        """The map that was decided last."""
        return self.map_record[0]

    def maps_known_to(self, index: int) -> tuple[BucketMap, BucketMap]:
        """What an aggregator that starts knows: what is recorded in the memory that it uses."""
        return self.map_record if self.is_shared or index == 0 else self.part_maps[index]

    def adopt(self, instruction: AdoptMap) -> None:
        """A map is decided, which is to be recorded before anything else."""
        new, before = instruction.map, instruction.before
        if self.obeys("maps are recorded"):
            if before != self.map or new.number <= before.number or new.since != self.steps + 1:
                raise ViolationError(f"{new} follows {self.map} in step {self.steps + 1}")
            self.map_record = new, before
        self.maps += 1

    def updated(self, order: Order, aggregator: int, buckets: list[int]) -> None:
        """An aggregator has applied a step to buckets: no other one may, of the same list."""
        for bucket in buckets:
            key = (order.step, order.view, order.number, bucket)
            if self.updates.setdefault(key, aggregator) != aggregator:
                raise ViolationError(f"bucket {bucket} is updated by a{aggregator} and a{self.updates[key]}")


def _memory(buckets: int) -> list[list[Section]]:
    return [[Section(0, bucket + 1, 0), Section(-1, 0, 0)] for bucket in range(buckets)]
