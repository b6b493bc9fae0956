"""How a job begins, and begins again, under random schedules: processes that start, speak late and die in any order.

`Initialization` and `Recovery` are the real ones. Around them stands a job of values: workers, aggregators with memory
of their own or shared, a supervisor that passes messages on, and coordinators that die. What aggregators hold moves to
others and back meanwhile.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from properties import examples

from scavenger.elastic import initialization as i
from scavenger.elastic import recovery as r

pytestmark = pytest.mark.slow

Content = tuple[str, int]
"""What a part of the model is: whose initial weights, and how many steps were applied to them."""
SHARED = "shared"
"""The memory of the host on which most processes run."""
_SETTLED_WITHIN = 5000
NOTHING: Content = ("nothing", 0)
"""What a spare part consists of that was taken up as one."""


@dataclass(eq=False)
class Process:
    """A process, and the messages on their way from and to it."""

    name: str
    memory: str
    alive: bool = True
    connected: bool = False
    said: deque[object] = field(default_factory=deque)
    heard: deque[object] = field(default_factory=deque)


@dataclass(eq=False)
class Worker(Process):
    prepared: bool = False
    seeded: bool = False


@dataclass(eq=False)
class Aggregator(Process):
    index: int = 0
    endpoint: i.Endpoint = field(default_factory=lambda: i.Endpoint("", "", ""))
    content: Content | None = None
    asks: str = ""


@dataclass(frozen=True)
class RollCall:
    """A coordinator asks who is there."""


@dataclass(frozen=True)
class Inform:
    """The sequencer tells where the job stands."""


@dataclass(frozen=True)
class Rewind:
    """The aggregators are ended; those that follow begin with this."""

    restore: Content | None


@dataclass(frozen=True)
class Initialize:
    """An action, and what else its message carries."""

    action: i.InitializePart
    restore: Content | None


@dataclass(eq=False)
class Coordinator:
    """One coordinator process: the machine, and what is on its way to it and from it."""

    token: int
    machine: i.Initialization
    restore: Content | None = None
    briefed: bool = False
    alive: bool = True
    heard: deque[object] = field(default_factory=deque)
    said: deque[object] = field(default_factory=deque)

    def take(self, event: object) -> None:
        match event:
            case (i.TakeOver() as takeover, restore):
                self.restore = restore
                self.act(takeover)
                if not takeover.informed:
                    self.said.append(RollCall())
            case Inform():
                if not self.machine.informed:
                    self.act(i.Informed())
            case Rewind():
                self.restore = event.restore
                self.act(i.Rewound(event.restore is not None))
            case i.PartReady() if event.index == 0 and not event.holds and not self.machine.informed:
                self.act(event)
                self.act(i.Informed())
            case _:
                self.act(event)

    def act(self, event: object) -> None:
        for action in self.machine.handle(event):  # type: ignore[arg-type]
            said = Initialize(action, self.restore) if isinstance(action, i.InitializePart) else action
            self.said.append(said)


class Job:
    """One job. Whatever happens, no two parts of a model ever have different origins.

    Args:
        seed: Of what happens when.
        machine: What a coordinator decides with.
        moving: Whether what aggregators hold moves to others and back; then few processes die but those without any.
    """

    def __init__(
        self, seed: int, machine: Callable[[], i.Initialization] = i.Initialization, *, moving: bool = False
    ) -> None:
        self.random, self.machine, self.moving = Random(seed), machine, moving
        self.now_s = 0.0
        self.workers: dict[str, Worker] = {}
        self.aggregators: dict[str, Aggregator] = {}
        self.ended: deque[Process | Coordinator] = deque()
        self.memories: dict[str, Content | None] = {SHARED: None}
        self.kept: dict[tuple[str, int], Content] = {}
        self.checkpoint: Content | None = None
        self.restore: Content | None = ("before", 7) if self.random.random() < 0.2 else None
        self.launched = 0
        self.count: Counter[str] = Counter()
        self.spare: frozenset[int] = frozenset()
        self.own = [self.random.random() < 0.5 for _ in range(self.random.randint(1, 3))]
        self.recovery = r.Recovery([f"a{index}" for index in range(len(self.own))])
        self.coordinator = Coordinator(1, self.machine())
        for index in range(len(self.own)):
            self.start_aggregator(f"a{index}")
        for _ in range(self.random.randint(1, 3)):
            self.launch()

    def run(self, events: int = 200) -> Counter[str]:
        """Have things happen, and then let all that was begun come to its end; returns how often what happened."""
        for _ in range(events):
            weights, able = zip(*self.possible(), strict=True)
            self.random.choices(able, weights)[0]()
            self.look()
        self.settle()
        return self.count

    # ---- processes -----------------------------------------------------------------------------------------

    def start_aggregator(self, name: str) -> None:
        self.launched += 1
        index = int(name[1:])
        memory = f"memory of {name}, {self.launched}" if self.own[index] else SHARED
        self.memories.setdefault(memory, None)
        endpoint = i.Endpoint("tcp://host:1", f"key {self.launched}", memory)
        self.aggregators[name] = Aggregator(name, memory, index=index, endpoint=endpoint)

    def launch(self) -> None:
        name = f"w{len(self.workers)}"
        memory = f"memory of {name}" if self.random.random() < 0.5 else SHARED
        self.memories.setdefault(memory, None)
        self.workers[name] = Worker(name, memory)

    @property
    def everybody(self) -> list[Process]:
        return [*self.workers.values(), *self.aggregators.values()]

    @property
    def living(self) -> list[Process]:
        return [process for process in self.everybody if process.alive]

    # ---- what may happen -----------------------------------------------------------------------------------

    def possible(self) -> list[tuple[float, Callable[[], object]]]:
        """What may happen next, each with its weight."""
        found = [(1.0, do) for do in self.unfinished()]
        death = 0.01 if self.moving else 0.05
        found += [(death, partial(self.kill, process)) for process in self.living]
        if self.coordinator.alive:
            found.append((2 * death, self.kill_coordinator))
        if len(self.workers) < 8:
            found.append((0.1, self.launch))
        if self.moving:
            found += [(0.5, partial(self.move, index)) for index in range(1, len(self.own))]
            found += [(0.5, partial(self.kill, self.aggregators[f"a{index}"])) for index in self.spare]
        return [*found, (1.0, self.step), (0.1, self.write_checkpoint)]

    def unfinished(self) -> list[Callable[[], object]]:
        """What will happen some time, if nothing dies."""
        coordinator, found = self.coordinator, list[Callable[[], object]]()
        if self.ended:
            found.append(lambda: self.see_end(self.ended.popleft()))
        if coordinator.alive and not coordinator.briefed:
            found.append(self.brief)
        if coordinator.said:
            found.append(lambda: self.obey(coordinator.said.popleft()))
        if coordinator.alive and coordinator.briefed and coordinator.heard:
            found.append(lambda: coordinator.take(coordinator.heard.popleft()))
        found += [partial(self.connect, process) for process in self.living if not process.connected]
        found += [partial(self.hear, process) for process in self.everybody if process.said]
        found += [partial(self.deliver, process) for process in self.living if process.heard]
        found += [partial(self.get_weights, p) for p in self.aggregators.values() if self.can_get_weights(p)]
        return [*found, *(partial(self.find_out, part) for part in self.living if self.lacks(part))]

    def connect(self, process: Process) -> None:
        """It has started, and says so."""
        process.connected = True
        if isinstance(process, Aggregator):
            self.greet(process)
        else:
            process.said.append(i.Greeted(process.name))

    def greet(self, process: Aggregator) -> None:
        holds, own = process.content is not None, process.memory != SHARED
        process.said.append(i.PartReady(process.index, process.endpoint, holds=holds, own_memory=own))

    def step(self) -> None:
        """A step is applied, if every part is held and somebody computes."""
        parts = [part for part in self.aggregators.values() if part.index not in self.spare]
        computing = any(worker.alive and worker.prepared for worker in self.workers.values())
        if not computing or not self.trains:
            return
        self.count["steps"] += 1
        for part in parts:
            assert part.content is not None
            lineage, step = part.content
            part.content = self.kept[part.memory, part.index] = (lineage, step + 1)
        for part in parts:
            self.memories[part.memory] = part.content

    def move(self, index: int) -> None:
        """All that one part consists of moves to others, or something of theirs to it, or to one that just died."""
        part = self.aggregators[f"a{index}"]
        others = [
            other for other in self.aggregators.values() if other is not part or index not in self.spare
        ]
        if not self.serve(others) or self.recovery.phase is not r.RecoveryPhase.RUNNING:
            return
        self.count["moves"] += 1
        if index in self.spare and (part.memory == SHARED or self.serve([part])):
            self.hold_in(part, self.aggregators["a0"].content)
        self.spare = self.spare ^ {index}
        self.to_coordinator(i.Spared(self.spare))

    def lacks(self, process: Process) -> bool:
        """Whether something moved to a part whose process ended, and the next one has taken up nothing."""
        return (
            isinstance(process, Aggregator)
            and process.content == NOTHING
            and process.index not in self.spare
            and self.aggregators[process.name] is process
        )

    def find_out(self, process: Process) -> None:
        """It does so by the first order."""
        self.count["found out"] += 1
        self.kill(process)

    def write_checkpoint(self) -> None:
        if self.trains and self.recovery.phase is r.RecoveryPhase.RUNNING:
            self.checkpoint = self.aggregators["a0"].content

    def kill_coordinator(self) -> None:
        self.coordinator.alive = False
        self.ended.append(self.coordinator)

    # ---- how it follows ------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        if not process.alive:
            return
        process.alive = False
        process.heard.clear()
        self.ended.append(process)
        if process.memory != SHARED:
            self.memories[process.memory] = None
            for key in [key for key in self.kept if key[0] == process.memory]:
                del self.kept[key]

    def see_end(self, process: Process | Coordinator) -> None:
        self.now_s += 100.0
        match process:
            case Coordinator():
                actions = self.recovery.handle(r.CoordinatorEnded(process.token, "died", self.now_s))
            case Aggregator():
                while process.said:  # its last words
                    self.hear(process)
                actions = self.recovery.handle(r.AggregatorEnded(process.name, "died", self.now_s))
            case _:
                process.said.clear()
                self.to_coordinator(i.WorkerLeft(process.name))
                actions = []
        for action in actions:
            match action:
                case r.StartCoordinator():
                    assert action.token == self.coordinator.token + 1
                    self.count["coordinators"] += 1
                    self.coordinator = Coordinator(action.token, self.machine())
                case r.StartAggregator():
                    self.count["aggregators"] += 1
                    self.start_aggregator(action.name)

    def brief(self) -> None:
        known = tuple(name for name, worker in self.workers.items() if worker.alive)
        first = self.coordinator.token == 1
        takeover = i.TakeOver(
            tuple(self.aggregators),
            restoring=self.restore is not None,
            held=self.recovery.held,
            rewinding=self.recovery.rewinding,
            workers=() if first else known,
            informed=first,
            spare=self.spare,
        )
        self.coordinator.briefed = True
        self.coordinator.heard.appendleft((takeover, self.restore))

    def to_coordinator(self, event: object) -> None:
        if self.coordinator.briefed or self.coordinator.token == 1:
            self.coordinator.heard.append(event)

    def hear(self, process: Process) -> None:
        """The supervisor takes what a process has said, and passes it on; not from one that was replaced."""
        said = process.said.popleft()
        if self.aggregators.get(process.name, process) is not process:
            return
        if isinstance(process, Aggregator) and isinstance(said, tuple):
            step = said[1]
            for action in self.recovery.handle(r.PartHeld(process.name, step, self.now_s)):
                assert not isinstance(action, r.PartsDiffer), action
                if isinstance(action, r.RolledBack):
                    self.count["roll-backs"] += 1
            said = i.PartLoaded(process.index)
        if not process.alive and isinstance(process, Worker):
            return
        self.to_coordinator(said)

    def obey(self, said: object) -> None:
        """The supervisor passes on, or does, what the coordinator says."""
        match said:
            case RollCall() | i.ReconnectAll():
                for process in self.living:
                    if process.connected:
                        process.heard.append(said)
            case i.PrepareWorker():
                self.count["seeds"] += said.initial
                if self.workers[said.worker].alive:
                    self.workers[said.worker].heard.append(said)
            case Initialize():
                aggregator = self.aggregators[f"a{said.action.index}"]
                if aggregator.connected and aggregator.alive:
                    aggregator.heard.append(said)
            case i.RestartAggregators() if self.coordinator.alive:
                if self.checkpoint is not None:
                    self.restore = self.checkpoint
                running = [p.name for p in self.aggregators.values() if p.alive or p in self.ended]
                for action in self.recovery.handle(r.RollBack(said.cause, running, self.now_s)):
                    if isinstance(action, r.EndAggregator):
                        self.kill(self.aggregators[action.name])
                self.to_coordinator(Rewind(self.restore))

    def deliver(self, process: Process) -> None:
        said = process.heard.popleft()
        match process:
            case Worker():
                self.to_worker(process, said)
            case Aggregator():
                self.to_aggregator(process, said)

    def to_worker(self, worker: Worker, said: object) -> None:
        match said:
            case RollCall():
                worker.said.append(
                    i.WorkerPresent(worker.name, worker.prepared, worker.seeded, worker.memory)
                )
            case i.PrepareWorker():
                worker.prepared = True
                if said.initial and not worker.seeded:
                    worker.seeded = True
                    self.memories[worker.memory] = (worker.name, 0)
                    worker.said.append(i.WeightsSeeded(worker.name, worker.memory))

    def to_aggregator(self, part: Aggregator, said: object) -> None:
        match said:
            case RollCall():
                self.greet(part)
                if part.index == 0:
                    part.said.append(Inform())
            case Initialize() if part.content is not None:
                part.said.append(("held", part.content[1]))
            case Initialize() if said.action.endpoints[part.index] == part.endpoint:
                # otherwise it is for the process that had the name before
                self.take_up(part, said.action, said.restore)

    def take_up(self, part: Aggregator, order: i.InitializePart, restore: Content | None) -> None:
        part.asks = ""
        if order.spare and part.memory != SHARED:
            self.count["spared"] += 1
            self.hold(part, NOTHING)
            return
        kept = self.kept.get((part.memory, part.index))
        if order.recover and kept is not None:
            self.hold(part, kept)
            return
        self.kept.pop((part.memory, part.index), None)
        if restore is not None:
            self.hold(part, restore)
        elif order.seeder:
            part.asks = order.seeder
        else:
            content = self.memories[part.memory]
            assert content is not None, f"{part.name} takes up weights that nobody has written"
            assert content[1] == 0, f"{part.name} takes weights of step {content[1]} for initial ones"
            self.hold(part, content)

    def can_get_weights(self, part: Aggregator) -> bool:
        seeder = self.workers.get(part.asks)
        return part.alive and seeder is not None and seeder.alive and seeder.prepared

    def get_weights(self, part: Aggregator) -> None:
        self.hold(part, (part.asks, 0))
        part.asks = ""

    def hold(self, part: Aggregator, content: Content) -> None:
        self.hold_in(part, content)
        part.said.append(("held", content[1]))

    def hold_in(self, part: Aggregator, content: Content | None) -> None:
        assert content is not None
        part.content = self.kept[part.memory, part.index] = content

    # ---- laws ----------------------------------------------------------------------------------------------

    @property
    def trains(self) -> bool:
        """Every part is held."""
        return self.serve(self.aggregators.values())

    def serve(self, parts: Iterable[Aggregator]) -> bool:
        """Whether parts are held."""
        return all(part.alive and part.content is not None and not self.lacks(part) for part in parts)

    def look(self) -> None:
        if self.trains:
            contents = {part.content for part in self.aggregators.values() if part.index not in self.spare}
            assert len(contents) == 1, f"parts of different origins: {contents}"

    def settle(self) -> None:
        """When nothing dies any more, every part is taken up and every worker prepared."""
        if not any(worker.alive for worker in self.workers.values()):
            self.launch()
        for _ in range(_SETTLED_WITHIN):
            if not (todo := self.unfinished()):
                break
            todo[0]()
            self.look()
        else:
            raise AssertionError("it never comes to rest")
        assert self.trains, "a part is never taken up"
        assert all(worker.prepared for worker in self.workers.values() if worker.alive), (
            "a worker waits for ever"
        )
        assert self.recovery.phase is r.RecoveryPhase.RUNNING
        assert not self.recovery.rewinding
        assert self.recovery.held == tuple(range(len(self.own)))


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=8913)  # a takeover in mid roll-back, with only some of the parts heard of
@examples(200)
def test_every_part_is_of_one_origin_and_nothing_waits_for_ever_whatever_happens_when(seed: int) -> None:
    Job(seed).run()
    Job(seed, moving=True).run()


def test_the_schedules_have_every_kind_of_event() -> None:
    count: Counter[str] = Counter()
    for seed in range(200):
        count += Job(seed).run()

    # a simulation in which nothing happens would prove nothing
    assert all(
        count[event] > 50 for event in ("steps", "roll-backs", "coordinators", "aggregators", "seeds")
    ), count
    moving: Counter[str] = Counter()
    for seed in range(150):
        moving += Job(seed, moving=True).run()
    assert all(moving[event] > 10 for event in ("steps", "moves", "spared", "roll-backs")), moving
    assert moving["found out"], moving


class AsksAtOnce(i.Initialization):
    """Does not wait for the workers that an earlier coordinator led."""

    def _take_over(self, event: i.TakeOver) -> None:
        super()._take_over(replace(event, workers=()))


class KeepsHalves(i.Initialization):
    """Goes on with another source where the one that some parts were asked to read is gone."""

    def _lost(self, worker: str) -> str | None:
        if super()._lost(worker) is not None:
            self.phase, self._source = i.WeightsPhase.ABSENT, type(self._source)()
        return None


class ForgetsTheSource(i.Initialization):
    """Does not miss a source that is gone."""

    def _lost(self, worker: str) -> str | None:
        self._workers.remove(worker)
        return None


class Recovers(i.Initialization):
    """Has an aggregator go on from its memory also after a roll-back."""

    def _initialize(self) -> list[i.Action]:
        return [
            replace(action, recover=True) if isinstance(action, i.InitializePart) else action
            for action in super()._initialize()
        ]


class BelievesTheDead(i.Initialization):
    """Takes the word of a process that was ended for a roll-back."""

    def _part_held(self, part: Any) -> str | None:
        part.holds = part.held = True
        part.rewinding = False
        return None


class GoesOnAlone(i.Initialization):
    """Does not roll back where one part was lost with its memory."""

    def _part_ready(self, event: i.PartReady) -> str | None:
        return super()._part_ready(replace(event, own_memory=False))


class SparesForEver(i.Initialization):
    """Goes on to take a part for spare to which something has moved."""

    def handle(self, event: i.Event) -> list[i.Action]:
        if isinstance(event, i.Spared):
            event = i.Spared(self._spare.union(event.parts))
        return super().handle(event)


class SparesAfterRollBack(i.Initialization):
    """Has a part that was spare begin with nothing where all begin again."""

    def _initialize(self) -> list[i.Action]:
        return [
            replace(action, spare=action.index in self._spare, recover=True)
            if isinstance(action, i.InitializePart)
            else action
            for action in super()._initialize()
        ]


@pytest.mark.parametrize(
    ("broken", "moving"),
    [
        (AsksAtOnce, False),
        (KeepsHalves, False),
        (ForgetsTheSource, False),
        (Recovers, False),
        (BelievesTheDead, False),
        (GoesOnAlone, False),
        (SparesForEver, True),
        (SparesAfterRollBack, True),
    ],
)
def test_the_simulation_catches_a_machine_that(broken: type[i.Initialization], moving: bool) -> None:
    for seed in range(3000):
        try:
            Job(seed, broken, moving=moving).run()
        except AssertionError:
            return
    pytest.fail("no schedule shows it")
