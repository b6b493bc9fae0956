"""A simulated aggregator: what `scavenger.train` does in `part`, `aggregator` and `sequencer`."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from simulated import MODULUS, REPEAT_S, Order, Process, Takes, ViolationError, Worker, Written

from scavenger.elastic import barrier as b

if TYPE_CHECKING:
    from simulation import World


class Aggregator(Process):
    """One part of the model; the first one sequences the job, once it has been told how to begin."""

    def __init__(self, world: World, index: int) -> None:
        super().__init__(world, f"a{index}")
        self.index = index
        self.step, self.view = 0, 0
        self.initialised = False
        self.barrier: b.Barrier | None = None
        self._labels: dict[int, tuple[int, int, int]] = {}
        self._order: Order | None = None
        self._instruction: b.Apply | None = None
        self._applied: set[int] = set()
        self.moved_at = 0.0

    # ---- the part ------------------------------------------------------------------------------------------

    def push(self, said: b.Contribution, slot: int, data: Written) -> None:
        """A worker that shares no memory pushes a piece."""

        def take() -> None:
            label = (said.view, said.step, said.piece)
            if self.world.obeys("refuses the old") and label < self._labels.get(slot, (0, 0, 0)):
                return
            self._labels[slot] = label
            self.world.slots[self.index][slot] = data
            held = b.Contribution(said.worker, said.view, said.step, said.piece, self.index)
            self.world.send(self, self.world.aggregators[0], lambda t: t.hear(held))

        self.deliver(take)

    def check(self, worker: Worker, said: b.Contribution, slot: int, question: int) -> None:
        """A worker asks whether what it has pushed has arrived."""

        def answer() -> None:
            label = (said.view, said.step, said.piece)
            if self._labels.get(slot, (0, 0, 0)) == label:
                held = b.Contribution(said.worker, said.view, said.step, said.piece, self.index)
                self.world.send(self, self.world.aggregators[0], lambda t: t.hear(held))
            elif self._labels.get(slot, (0, 0, 0)) < label:
                self.world.send(self, worker, lambda w: w.lacking(self.index, said, slot, question))

        self.deliver(answer)

    def pull(self, worker: Worker, step: int) -> None:
        """Answered once the step is there, and for as long as it is."""

        def answer() -> None:
            section = self.world.sections[self.index][step % 2]
            there = section.step == step and (self.step == step or self.world.obeys("serves the step before"))
            if self.initialised and there:
                value = (step, section.weights)
                self.world.send(self, worker, lambda t: t.mirror.__setitem__(self.index, value))

        self.deliver(answer)

    def apply(self, order: Order, sequencer: Process) -> None:
        """From the sequencer."""
        if self.deaf_to(sequencer):
            return

        def work() -> Takes:
            if self.initialised and (yield from self._apply(order)):
                self.world.send(self, self.world.aggregators[0], lambda t: t.applied(self.index, order))

        self.deliver(work)

    def _apply(self, order: Order) -> Generator[float, None, bool]:
        world, step, a = self.world, order.step, self.index
        if (step, order.view) == (self.step, self.view):
            return True  # said again
        if world.obeys("refuses the old") and (
            order.view < self.view or not self.step <= step <= self.step + 1
        ):
            return False
        before, after = world.sections[a][(step - 1) % 2], world.sections[a][step % 2]
        if before.step != step - 1:
            raise ViolationError(f"{self.name} applies step {step} to the weights of step {before.step}")
        momentum = before.momentum if world.obeys("double buffer") else world.momentum[a]
        total = self._read(order)
        after.step, after.written = -1, after.written + 1
        if not world.obeys("double buffer"):
            world.momentum[a] = (3 * momentum + order.lr_scale * total + step) % MODULUS
        yield world.duration()
        self.point()
        if before.step != step - 1 or (
            self._read(order) != total and self.world.aggregators[0]._order == order
        ):
            raise ViolationError(f"what step {step} is made of was changed while it was applied")
        after.momentum = (3 * momentum + order.lr_scale * total + step) % MODULUS
        after.weights = (31 * before.weights + after.momentum) % MODULUS
        after.step = step
        self.point()
        world.part_records[a] = self.step, self.view = step, order.view
        self.point()
        return True

    def _read(self, order: Order) -> int:
        total = 0
        for piece in order.pieces:
            found, share = self.world.slots[self.index].get(piece.slot), piece.share
            wanted = (piece.worker, order.step, share.start, share.stop)
            if (
                found is not None
                and found.clean
                and ((found.worker, found.step, found.start, found.stop) == wanted)
            ):
                total += found.value
                continue
            sequencer = self.world.aggregators[0]
            if not sequencer.alive or sequencer._order != order:
                return total % MODULUS  # of a sequencer that died: whatever it is, it will be done again
            if found is not None and not found.clean:
                raise ViolationError(f"{found} was computed at weights that were being overwritten")
            raise ViolationError(
                f"step {order.step}, view {order.view}: slot {piece.slot} holds {found}, not {wanted}"
            )
        return total % MODULUS

    # ---- beginnings ----------------------------------------------------------------------------------------

    def initialise(self, number: int, token: int) -> None:
        """From the coordinator; said again, it changes nothing."""

        def begin() -> Takes | None:
            world = self.world
            if self.initialised:
                return None
            self.initialised = True
            self.step, self.view = world.part_records[self.index]
            if not world.obeys("parts know their view"):
                self.view = 0
            if self.index:
                world.send(self, world.aggregators[0], lambda t: t.repeat(), lossy=False)
                return None
            record = world.job_record
            self.barrier = world.new_barrier(record.step, record.position, max(record.number, number))
            self.barrier.token = token
            world.led = max(world.led, token)
            self.moved_at = world.now
            self.every(0.5, self._tick)
            return None

        self.deliver(begin)

    def roll_call(self, token: int, leader: Process) -> None:
        """From a coordinator that takes the lead."""

        def answer() -> Takes | None:
            inform: b.Inform | None = None
            if self.barrier is not None:
                for instruction in self.barrier.handle(b.Lead(token)):
                    if isinstance(instruction, b.Inform):
                        inform = instruction
                        self.world.led = max(self.world.led, token)
            self.world.to_leader(self, lambda c: c.informed(inform), leader)
            return None

        self.deliver(answer)

    # ---- the sequencer -------------------------------------------------------------------------------------

    def hear(self, event: b.Event) -> None:
        def work() -> Takes | None:
            return None if self.barrier is None else self._feed(event)

        self.deliver(work)

    def contributed(self, said: b.Contribution, held: list[int]) -> None:
        def work() -> Takes:
            for a in held:
                if self.barrier is not None:
                    yield from self._feed(b.Contribution(said.worker, said.view, said.step, said.piece, a))

        self.deliver(work)

    def applied(self, index: int, order: Order) -> None:
        def work() -> Takes | None:
            if order != self._order:
                return None
            self._applied.add(index)
            return self._complete()

        self.deliver(work)

    def repeat(self) -> None:
        self.deliver(lambda: None if self.barrier is None else self._feed(b.Tick()))

    def _tick(self) -> Takes | None:
        if (
            self.barrier is None
            or self.world.now - self.moved_at < REPEAT_S
            or not self.world.obeys("asks again")
        ):
            return None
        return self._feed(b.Tick())

    def _feed(self, event: b.Event) -> Takes:
        assert self.barrier is not None
        instructions = self.barrier.handle(event)
        refused = any(isinstance(instruction, b.Refuse) for instruction in instructions)
        if isinstance(event, b.Announce) and event.token < self.world.led and not refused:
            raise ViolationError(f"a coordinator of token {event.token} is heard after {self.world.led}")
        if refused and len(instructions) > 1:
            raise ViolationError(f"{event} is refused, but {instructions} follow")
        yield from self._carry_out(instructions)

    def _carry_out(self, instructions: list[b.Instruction]) -> Takes:
        world = self.world
        assert self.barrier is not None
        for instruction in instructions:
            match instruction:
                case b.Apply():
                    yield from self._begin_apply(instruction)
                case b.Proceed():
                    worker = world.workers[instruction.worker]
                    world.send(self, worker, lambda t, order=instruction: t.order(order, self))  # type: ignore[misc]
                case b.Sum(view=view, plan=plan):
                    summariser = world.workers[instruction.worker]
                    world.check_evaluated(instruction)
                    world.send(self, summariser, lambda t, v=view.number, s=plan.step: t.summarise(v, s))  # type: ignore[misc]
                case b.Report(plan=plan):
                    world.report(self, plan)
                case b.Installed(view=view):
                    self.moved_at = world.now
                    world.install(self, self.barrier, view)
                case _:
                    pass

    def _begin_apply(self, instruction: b.Apply) -> Takes:
        plan, view, world = instruction.plan, instruction.view, self.world
        order = Order(plan.step, view.number, plan.epoch, int(view.lr_scale), instruction.pieces)
        if order != self._order:
            world.check_cover(instruction)
            self._order, self._instruction = order, instruction
            self._applied.clear()
        for a in instruction.aggregators:
            if a and a not in self._applied:
                world.send(self, world.aggregators[a], lambda t: t.apply(order, self))
        if 0 not in self._applied and (yield from self._apply(order)):
            self._applied.add(0)
        yield from self._complete()

    def _complete(self) -> Takes:
        world, instruction = self.world, self._instruction
        if instruction is None or self.barrier is None or len(self._applied) < world.parts:
            return
        self._order = self._instruction = None
        self.moved_at = world.now
        world.complete(instruction, self.barrier.number)
        self.point()
        follows: list[b.Instruction] = []
        for a in range(world.parts):
            follows += self.barrier.handle(b.Applied(instruction.plan.step, a))
        yield from self._carry_out(follows)
