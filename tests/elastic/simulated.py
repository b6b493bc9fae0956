"""The processes of a simulated job: what the shells of `scavenger.train` do, in virtual time, without a gradient.

The arithmetic is exact. A gradient is a sum over sample numbers times what the weights were, so it does not
depend on how samples are split, but on every sample and on the weights that it was computed at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scavenger.elastic import steps as st
from scavenger.elastic import sum_events
from scavenger.elastic.membership import worker_slot
from scavenger.elastic.migration import BucketMap
from scavenger.elastic.view import SLOTS_PER_WORKER, Piece, plan_step

if TYPE_CHECKING:
    from simulation import World

Takes = Generator[float, None, None]
"""A procedure that takes time: yields seconds."""

MODULUS = (1 << 61) - 1
REPEAT_S = 1.0


class ViolationError(AssertionError):
    """A law of the protocol was broken."""


class DiedError(Exception):
    """A process died in the middle of what it did."""


def gradient(epoch: int, start: int, stop: int, weights: int) -> int:
    """Of the samples from `start` to `stop`; that of two ranges is the sum of theirs."""

    def squares(n: int) -> int:
        return n * (n + 1) * (2 * n + 1) // 6

    return (squares(stop) - squares(start) + 1_000_003 * (epoch + 1) * (stop - start)) * weights % MODULUS


@dataclass(slots=True)
class Section:
    """A bucket's weights and optimizer after a step; `step` is -1 while they are being written.

    Sums are formed in the same memory: of each part, who forms it, and what it consists of.
    """

    step: int
    weights: int
    momentum: int
    written: int = 0
    sums: dict[int, tuple[int, list[Written | None]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Written:
    """What a worker put into a slot; `clean` if nobody wrote the weights meanwhile."""

    worker: str
    step: int
    start: int
    stop: int
    value: int
    clean: bool


@dataclass(frozen=True, slots=True)
class Order:
    """To apply a step, for one aggregator."""

    step: int
    view: int
    epoch: int
    lr_scale: int
    pieces: tuple[Piece, ...]
    number: int
    map: BucketMap


class Process:
    """Does one thing at a time; may die or be stopped between any two."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.serial = world.serial()
        self.alive, self.stalled, self.ready = True, False, True
        self._inbox: deque[Callable[[], Takes | None]] = deque()
        self._sequencer = 0
        self._running: Takes | None = None
        self._interrupted = False

    def deliver(self, action: Callable[[], Takes | None]) -> None:
        if self.alive:
            self._inbox.append(action)
            self._pump()

    def deaf_to(self, sequencer: Process) -> bool:
        """In order, the connection to a sequencer is closed before another one can be heard."""
        self._sequencer = max(self._sequencer, sequencer.serial)
        return not self.world.disorder and sequencer.serial < self._sequencer

    def every(self, period: float, action: Callable[[], Takes | None]) -> None:
        """Act again and again; what a stopped process missed, it does once."""

        def again() -> Takes | None:
            self.world.after(period, lambda: self.deliver(again))
            return action()

        self.world.after(period * self.world.random.random(), lambda: self.deliver(again))

    def _pump(self) -> None:
        while self._inbox and self._running is None and self.alive and not self.stalled:
            try:
                self._running = self._inbox.popleft()()
            except DiedError:
                return
            if self._running is not None:
                self._advance()

    def _advance(self) -> None:
        if not self.alive or self._running is None:
            return
        if self.stalled:
            self._interrupted = True
            return
        try:
            seconds = next(self._running)
        except StopIteration:
            self._running = None
            self._pump()
        except DiedError:
            return
        else:
            self.world.after(seconds, self._advance)

    def stall(self, seconds: float) -> None:
        if self.alive and not self.stalled:
            self.stalled = True
            self.world.after(seconds, self.wake)

    def wake(self) -> None:
        if not self.stalled:
            return
        self.stalled = False
        if self._interrupted:
            self._interrupted = False
            self._advance()
        self._pump()

    def die(self) -> None:
        if self.alive:
            self.alive = False
            self._inbox.clear()
            self._running = None
            self.world.died(self)

    def point(self, times: float = 1.0) -> None:
        """A place where processes like to die; `times` as much where one comes there seldom."""
        if self.world.chaos and self.world.random.random() < self.world.deadliness * times:
            self.die()
            if not self.alive:
                raise DiedError


class Worker(Process):
    """Computes the pieces that it is told to, and says again what it has computed already.

    Attributes:
        remote: Aggregators that share no memory with it: they ask for gradients, and weights are pulled from them.
    """

    def __init__(self, world: World, name: str, remote: tuple[int, ...]) -> None:
        super().__init__(world, name)
        self.remote = remote
        self.ready = self.quitting = False
        self.newest = (0, 0)
        self.mirror: dict[int, tuple[tuple[int, int], dict[int, int]]] = {}
        """Of each remote aggregator, the step and the map of what was pulled last, and the weights by bucket."""
        self._done: dict[tuple[str, int, int], st.Contribution | st.PieceEvaluated] = {}
        self._own: dict[int, Written] = {}
        """What is in the slots, by piece."""
        self._in_slot: dict[int, int] = {}

    def order(self, order: st.Proceed, sequencer: Process, buckets: BucketMap) -> None:
        """An order arrives."""
        if self.deaf_to(sequencer):
            return
        key = (order.view.number, order.step)
        if self.world.obeys("refuses the old") and key < self.newest:
            return
        self.newest = max(self.newest, key)
        if order.action == "train":
            self.deliver(lambda: self._train(order, buckets))
        elif order.action == "evaluate":
            self.deliver(lambda: self._evaluate(order))

    def summarise(self, view: int, step: int) -> None:
        def work() -> Takes:
            yield self.world.duration()
            self._say(st.Summed(self.name, view, step))

        self.deliver(work)

    def _train(self, order: st.Proceed, buckets: BucketMap) -> Takes:
        step = order.step + 1
        self._done = {key: said for key, said in self._done.items() if key[1] >= step - 1}
        epoch = plan_step(order.view, step, self.world.dataset_size).epoch
        for piece in order.pieces:
            said = self._done.get(("train", step, piece.number))
            if said is None:
                if not (yield from self._compute(step, epoch, buckets, piece)):
                    return
                said = st.Contribution(self.name, order.view.number, step, piece.number)
                self._done["train", step, piece.number] = said
            assert isinstance(said, st.Contribution)
            self._push(said)

    def _compute(
        self, step: int, epoch: int, buckets: BucketMap, piece: Piece
    ) -> Generator[float, None, bool]:
        world = self.world
        asked, key = 0.0, (step - 1, buckets.number)
        remote = [a for a in self.remote if a in buckets.holders]
        while lacking := [a for a in remote if self.mirror.get(a, ((-1, 0), {}))[0] != key]:
            if self._inbox:
                return False  # what it waits for may never come; if it is still wanted, it is asked for again
            if asked <= 0.0:
                asked = REPEAT_S
                for a in lacking:
                    world.send(self, world.aggregators[a], lambda t: t.pull(self, step - 1, buckets))
            asked -= 0.1
            yield 0.1
        local = [
            (bucket, world.memory[a][bucket][(step - 1) % 2])
            for bucket, a in enumerate(buckets.holders)
            if a not in self.remote
        ]
        began = [section.written for _, section in local]
        clean = all(section.step == step - 1 for _, section in local)
        weights = sum((bucket + 1) * section.weights for bucket, section in local)
        weights += sum((bucket + 1) * value for a in remote for bucket, value in self.mirror[a][1].items())
        yield world.duration()
        clean = clean and began == [section.written for _, section in local]
        world.slot_of[piece.number] = piece.slot
        own = worker_slot(self.name)
        if not own <= piece.slot < own + SLOTS_PER_WORKER:
            raise ViolationError(f"slot {piece.slot} is given to {self.name}, whose own begin at {own}")
        share = piece.share
        self._own.pop(self._in_slot.pop(piece.slot, -1), None)
        shared = [a for a in range(world.parts) if a not in self.remote]
        for a in shared:
            world.slots[a].pop(piece.slot, None)
        yield 0.01
        value = gradient(epoch, share.start, share.stop, weights)
        written = Written(self.name, step, share.start, share.stop, value, clean)
        self._own.pop(self._in_slot.get(piece.slot, -1), None)
        self._own[piece.number], self._in_slot[piece.slot] = written, piece.number
        for a in shared:
            world.slots[a][piece.slot] = written
        self.point()
        return True

    def _push(self, said: st.Contribution) -> None:
        """Offer a gradient to all aggregators: those that do not share this memory ask for it."""
        world = self.world
        for a in range(world.parts):
            own = a not in self.remote
            if world.remoteness and a:
                world.send(self, world.aggregators[a], lambda t, own=own: t.offered(said, own))  # type: ignore[misc]
                self.point()
        held = [a for a in range(world.parts) if a not in self.remote]
        world.send(self, world.aggregators[0], lambda t: t.contributed(said, held))
        self.point()

    def asked(self, aggregator: int, ask: sum_events.FetchBuckets) -> None:
        """An aggregator asks for buckets of a gradient, which is sent if it is still in its slot."""

        def work() -> None:
            written = self._own.get(ask.piece)
            target = self.world.aggregators[aggregator]
            if written is None:
                return
            for bucket in ask.buckets:
                arrived = sum_events.BucketArrived(self.name, ask.piece, bucket)
                self.world.send(self, target, lambda t, a=arrived: t.payload(a, written))  # type: ignore[misc]
                self.point()
            answer = sum_events.Answered(self.name, ask.piece, ask.question)
            self.world.send(self, target, lambda t: t.answered(answer))

        self.deliver(work)

    def _evaluate(self, order: st.Proceed) -> Takes:
        for piece in order.pieces:
            key = "evaluate", order.step, piece.number
            if key not in self._done:
                yield self.world.duration()
                self._done[key] = st.PieceEvaluated(self.name, order.view.number, order.step, piece.number)
                self.point()
            self._say(self._done[key])

    def _say(self, event: st.Event) -> None:
        self.world.send(self, self.world.aggregators[0], lambda t: t.hear(event))
