"""A simulated aggregator: what `scavenger.train` does in `part`, `aggregator` and `sequencer`."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from simulated import MODULUS, REPEAT_S, Order, Process, Takes, ViolationError, Worker, Written
from simulated_migration import Copying, numbered

from scavenger.elastic import steps as st
from scavenger.elastic import sum_events
from scavenger.elastic import sums as s
from scavenger.elastic.barrier import Barrier
from scavenger.elastic.migration import AdoptMap, BucketMap, Copy, MigrationEnded, Take, Taken
from scavenger.elastic.view import Piece

if TYPE_CHECKING:
    from simulation import World


PARTS = 3
"""A bucket of the model arrives in so many parts."""


def expected(step: int, view: int, number: int, pieces: Iterable[Piece]) -> sum_events.PieceList:
    """The list of pieces for the state machine of sums."""
    terms = tuple(sum_events.Term(piece.number, piece.worker, piece.share.samples) for piece in pieces)
    return sum_events.PieceList(step, view, number, terms)


def key_of(order: Order) -> sum_events.PieceList:
    """The list that an order to apply a step consists of, which replaces the one before it."""
    return expected(order.step, order.view, 2 * order.number + 1, order.pieces)


class Aggregator(Process):
    """One part of the model; the first one sequences the job, once it has been told how to begin."""

    def __init__(self, world: World, index: int) -> None:
        super().__init__(world, f"a{index}")
        self.index = index
        self.step, self.view, self.number = 0, 0, 0
        self.initialised = False
        self.map, self._before = world.maps_known_to(index)
        self.copying = Copying(self)
        self.sums = s.Sums([1] * PARTS * len(self.map.holders), world.budget)
        self._kept: dict[tuple[int, int], Written] = {}
        self._hold()
        self._waiting: Order | None = None
        self.barrier: Barrier | None = None
        self._order: Order | None = None
        self._instruction: st.Apply | None = None
        self._applied: set[int] = set()
        self.moved_at = self.asked_at = 0.0

    def die(self) -> None:
        """In place, only one that holds nothing: with any other all go back to a checkpoint, which is another run."""
        if not self.world.in_place or self.index in self.world.requests.retired:
            super().die()

    # ---- the part ------------------------------------------------------------------------------------------

    def offered(self, said: st.Contribution, own: bool) -> None:
        """A worker has computed a piece."""
        self.deliver(lambda: self._form(sum_events.PieceOffered(said.worker, said.piece, own)))

    def payload(self, arrived: sum_events.BucketArrived, written: Written) -> None:
        """A bucket of a gradient arrives."""
        self.deliver(lambda: self._form(arrived, written))

    def answered(self, answer: sum_events.Answered) -> None:
        """A worker has sent what it was asked for."""
        self.deliver(lambda: self._form(answer))

    def expect(self, instruction: st.Expect, held: tuple[int, ...], sequencer: Process) -> None:
        """From the sequencer."""
        if self.deaf_to(sequencer):
            return

        def work() -> Takes | None:
            plan, view = instruction.plan, instruction.view
            if not self.initialised or not self._takes(instruction.map):
                return None
            known = (self.step, self.view, self.number)
            current = known < (plan.step, view.number, instruction.number) and view.number >= self.view
            if not current or plan.step > self.step + 1:
                return None
            if not self._is_remote(instruction.pieces):
                return self._form(sum_events.PieceList(plan.step, view.number, 2 * instruction.number))
            workers = {piece.number: piece.worker for piece in instruction.pieces}
            key = expected(plan.step, view.number, 2 * instruction.number, instruction.pieces)
            if (follows := self._form(key)) is not None:
                return follows
            for number in held:
                if (
                    follows := self._form(sum_events.PieceOffered(workers[number], number, own=True))
                ) is not None:
                    return follows
            return None

        self.deliver(work)

    def _is_remote(self, pieces: Iterable[Piece]) -> bool:
        """Whether some piece is not in this memory."""
        return any(self.index in self.world.workers[piece.worker].remote for piece in pieces)

    def _form(self, event: sum_events.Event, written: Written | None = None) -> Takes | None:
        """Form sums; returns what follows where they are complete."""
        world = self.world
        formed = False
        for action in self.sums.handle(event):
            match action:
                case sum_events.FetchBuckets():
                    worker = world.workers[action.worker]
                    world.send(self, worker, lambda w, ask=action: w.asked(self.index, ask))  # type: ignore[misc]
                case sum_events.Keep():
                    assert written is not None
                    self._kept[action.piece, action.bucket] = written
                case sum_events.Drop():
                    del self._kept[action.piece, action.bucket]
                case sum_events.Add():
                    self._add(action, written)
                case sum_events.ListSummed():
                    formed = True
        return self._formed() if formed else None

    def _add(self, action: sum_events.Add, written: Written | None) -> None:
        expected = self.sums.expected
        assert expected is not None
        term = expected.terms[action.position]
        if (value := self._kept.pop((action.piece, action.bucket), None)) is None:
            if self.index in self.world.workers[term.worker].remote:
                value = written
            else:
                slots = self.world.slots[self.index]
                value = slots.get(self.slot_of(action.piece))
        bucket, part = divmod(action.bucket, PARTS)
        section = self.world.memory[self.index][bucket][expected.step % 2]
        if action.position == 0:
            section.sums[part] = (self.serial, [])
        owner, total = section.sums[part]
        if owner != self.serial:
            raise ViolationError(f"{self.name} adds to what another forms of bucket {bucket}")
        total.append(value)
        if section.step != -1:  # sums are formed where the new weights will be
            section.step, section.written = -1, section.written + 1

    def slot_of(self, piece: int) -> int:
        """In the simulation, the world knows."""
        return self.world.slot_of[piece]

    def _formed(self) -> Takes | None:
        expected = self.sums.expected
        assert expected is not None
        if not expected.terms:
            return None
        if self._waiting is not None:
            order, self._waiting = self._waiting, None
            if key_of(order) == expected:
                return self._apply_and_tell(order)
        event = st.Formed(expected.view, expected.step, expected.number // 2, self.index)
        if self.index:
            self.world.send(self, self.world.aggregators[0], lambda t: t.hear(event))
            return None
        return None if self.barrier is None else self._feed(event)

    def pull(self, worker: Worker, step: int, buckets: BucketMap) -> None:
        """Answered once the step is there, and for as long as it is, of what is held under a map."""

        def answer() -> None:
            memory = self.world.memory[self.index]
            own = {bucket: memory[bucket][step % 2] for bucket in self._held_in(buckets)}
            there = all(section.step == step for section in own.values()) and (
                self.step == step or self.world.obeys("serves the step before")
            )
            if self.initialised and there and buckets in (self.map, self._before):
                value = (step, buckets.number), {bucket: section.weights for bucket, section in own.items()}
                self.world.send(self, worker, lambda t: t.mirror.__setitem__(self.index, value))

        self.deliver(answer)

    # ---- migration -----------------------------------------------------------------------------------------

    def _held_in(self, buckets: BucketMap) -> list[int]:
        return [bucket for bucket, holder in enumerate(buckets.holders) if holder == self.index]

    def _hold(self) -> None:
        parts = (bucket * PARTS + part for bucket in self._held_in(self.map) for part in range(PARTS))
        for action in self.sums.handle(sum_events.HoldBuckets(tuple(parts), self.world.budget)):
            if isinstance(action, sum_events.Drop):
                del self._kept[action.piece, action.bucket]
        if self.initialised and self.index in self.map.participants and self.step < self.map.since - 1:
            # what it gained was copied as of the step before
            self.step = self.map.since - 1
            self.world.part_records[self.index] = self.step, self.view, self.number

    def _takes(self, buckets: BucketMap) -> bool:
        """Take the map of an order; returns False if it is older than one that was taken."""
        if buckets.number < self.map.number:
            return False
        if buckets.number > self.map.number:
            self._before, self.map = self.map, buckets
            self.world.part_maps[self.index] = buckets, self._before
            self.copying.taken(buckets.number)
            self._hold()
        return True

    def copy(self, copy: Copy, sequencer: Process) -> None:
        """From the sequencer."""
        if not self.deaf_to(sequencer):
            self.deliver(lambda: self.copying.ordered(copy) if self.initialised else None)

    def take(self, buckets: BucketMap, sequencer: Process) -> None:
        """From the sequencer: what is given up in a map is not written any more."""
        if self.deaf_to(sequencer):
            return

        def work() -> None:
            if self.initialised and self._takes(buckets):
                event = Taken(self.index, buckets.number)
                self.world.send(self, self.world.aggregators[0], lambda t: t.hear(event))

        self.deliver(work)

    def apply(self, order: Order, sequencer: Process) -> None:
        """From the sequencer."""
        if self.deaf_to(sequencer):
            return

        self.deliver(lambda: self._apply_and_tell(order) if self.initialised else None)

    def _apply_and_tell(self, order: Order) -> Takes:
        if (yield from self._apply(order)):
            self.world.send(self, self.world.aggregators[0], lambda t: t.applied(self.index, order))

    def _apply(self, order: Order) -> Generator[float, None, bool]:
        world, step, a = self.world, order.step, self.index
        if not self._takes(order.map):
            return False
        if (step, order.view, order.number) == (self.step, self.view, self.number):
            return True  # said again
        if world.obeys("refuses the old") and (
            (order.view, order.number) < (self.view, self.number if order.view == self.view else 0)
            or not self.step <= step <= self.step + 1
        ):
            return False
        if self._is_remote(order.pieces):
            key, now = key_of(order), self.sums.expected
            alike = now is not None and (now.step, now.view, now.terms) == (key.step, key.view, key.terms)
            if not alike or not self.sums.formed:
                self._waiting = order
                todo = [self._form(key)]
                for piece in order.pieces:
                    own = a not in world.workers[piece.worker].remote
                    todo.append(self._form(sum_events.PieceOffered(piece.worker, piece.number, own)))
                for work in todo:
                    if work is not None:
                        yield from work
                return False
        self._form(sum_events.PieceList(step, order.view, 2 * order.number + 2))  # nothing is added any more
        memory, held = world.memory[a], self._held_in(order.map)
        sections = [(bucket, memory[bucket][(step - 1) % 2], memory[bucket][step % 2]) for bucket in held]
        for bucket, before, _ in sections:
            if before.step != step - 1:
                what = f"bucket {bucket} of step {before.step}"
                raise ViolationError(f"{self.name} applies step {step} to the weights of {what}")
        double, own = world.obeys("double buffer") and not world.in_place, world.momentum[a]
        momenta = [before.momentum if double else own[bucket] for bucket, before, _ in sections]
        total = self._read(order)
        for bucket, _, after in sections:
            after.step, after.written = -1, after.written + 1
            if not double:
                own[bucket] = (3 * own[bucket] + order.lr_scale * total + step) % MODULUS
        written = [after.written for _, _, after in sections]
        yield world.duration()
        self.point()
        if any(before.step != step - 1 for _, before, _ in sections) or (
            self._read(order) != total and self.world.aggregators[0]._order == order
        ):
            raise ViolationError(f"what step {step} is made of was changed while it was applied")
        if written != [after.written for _, _, after in sections]:
            raise ViolationError(f"another aggregator wrote what {self.name} applied of step {step}")
        for (_, before, after), momentum in zip(sections, momenta, strict=True):
            after.momentum = (3 * momentum + order.lr_scale * total + step) % MODULUS
            after.weights = (31 * before.weights + after.momentum) % MODULUS
            after.step = step
        world.updated(order, a, held)
        self.point()
        self.step, self.view, self.number = world.part_records[a] = step, order.view, order.number
        self.point()
        return True

    def _read(self, order: Order) -> int:
        if not self._is_remote(order.pieces):
            return self._total(
                order, [self.world.slots[self.index].get(piece.slot) for piece in order.pieces]
            )
        totals: list[int] = []
        for bucket in self._held_in(order.map):
            sums = self.world.memory[self.index][bucket][order.step % 2].sums
            for part in range(PARTS):
                owner, written = sums.get(part, (self.serial, []))
                if owner != self.serial or len(written) > len(order.pieces):
                    raise ViolationError(f"{self.name} applies what another has formed of bucket {bucket}")
                totals.append(self._total(order, [*written, *[None] * (len(order.pieces) - len(written))]))
        if any(total != totals[0] for total in totals):
            raise ViolationError(f"buckets of step {order.step} are sums of different pieces")
        return totals[0] if totals else 0

    def _total(self, order: Order, written: list[Written | None]) -> int:
        total = 0
        for piece, found in zip(order.pieces, written, strict=True):
            share = piece.share
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

    def _ask_again(self) -> Takes | None:
        if self.world.now - self.asked_at < REPEAT_S or self.sums.formed:
            return None
        self.asked_at = self.world.now
        return self._form(sum_events.NothingArrived())

    # ---- beginnings ----------------------------------------------------------------------------------------

    def initialise(self, number: int, token: int) -> None:
        """From the coordinator; said again, it changes nothing."""

        def begin() -> Takes | None:
            world = self.world
            if self.initialised:
                return None
            self.initialised = True
            self.step, self.view, self.number = world.part_records[self.index]
            self._hold()
            if world.remoteness:
                self.every(0.5, self._ask_again)
            if not world.obeys("parts know their view"):
                self.view = self.number = 0
            if self.index:
                world.send(self, world.aggregators[0], lambda t: t.repeat(), lossy=False)
                return None
            record = world.job_record
            before = numbered(self.map, record.step, world.map_record[1])
            number_now = max(record.number, number)
            self.barrier = world.new_barrier(record.step, record.position, number_now, self.map, before)
            self.barrier.token = token
            world.led = max(world.led, token)
            self.moved_at = world.now
            self.every(0.5, self._tick)
            return None

        self.deliver(begin)

    def roll_call(self, token: int, leader: Process) -> None:
        """From a coordinator that takes the lead."""

        def answer() -> Takes | None:
            inform: st.Inform | None = None
            if self.barrier is not None:
                for instruction in self.barrier.handle(st.Lead(token)):
                    if isinstance(instruction, st.Inform):
                        inform = instruction
                        self.world.led = max(self.world.led, token)
            self.world.to_leader(self, lambda c: c.informed(inform), leader)
            return None

        self.deliver(answer)

    # ---- the sequencer -------------------------------------------------------------------------------------

    def hear(self, event: st.Event) -> None:
        def work() -> Takes | None:
            return None if self.barrier is None else self._feed(event)

        self.deliver(work)

    def contributed(self, said: st.Contribution, held: list[int]) -> None:
        def work() -> Takes:
            for a in held or [None]:
                if self.barrier is not None:
                    yield from self._feed(st.Contribution(said.worker, said.view, said.step, said.piece, a))
            if self.world.remoteness and (
                follows := self._form(sum_events.PieceOffered(said.worker, said.piece, 0 in held))
            ):
                yield from follows

        self.deliver(work)

    def applied(self, index: int, order: Order) -> None:
        def work() -> Takes | None:
            if order != self._order:
                return None
            self._applied.add(index)
            return self._complete()

        self.deliver(work)

    def repeat(self) -> None:
        self.deliver(lambda: None if self.barrier is None else self._feed(st.Tick()))

    def _tick(self) -> Takes | None:
        if (
            self.barrier is None
            or self.world.now - self.moved_at < REPEAT_S
            or not self.world.obeys("asks again")
        ):
            return None
        return self._feed(st.Tick())

    def _feed(self, event: st.Event) -> Takes:
        assert self.barrier is not None
        instructions = self.barrier.handle(event)
        refused = any(isinstance(instruction, st.Refuse) for instruction in instructions)
        if isinstance(event, st.Announce) and event.token < self.world.led and not refused:
            raise ViolationError(f"a coordinator of token {event.token} is heard after {self.world.led}")
        if refused and len(instructions) > 1:
            raise ViolationError(f"{event} is refused, but {instructions} follow")
        yield from self._carry_out(instructions)

    def _carry_out(self, instructions: list[st.Instruction]) -> Takes:
        world = self.world
        assert self.barrier is not None
        for instruction in instructions:
            match instruction:
                case st.Apply():
                    yield from self._begin_apply(instruction)
                case st.Expect():
                    self._order = self._instruction = None
                    self._applied.clear()
                    for a, held in instruction.aggregators:
                        world.send(
                            self,
                            world.aggregators[a],
                            lambda t, i=instruction, h=held: t.expect(i, h, self),
                            lossy=a > 0,  # type: ignore[misc]
                        )
                case st.Proceed():
                    worker = world.workers[instruction.worker]
                    buckets = self.barrier.migration.settled
                    world.send(self, worker, lambda t, o=instruction, m=buckets: t.order(o, self, m))  # type: ignore[misc]
                case st.Sum(view=view, plan=plan):
                    summariser = world.workers[instruction.worker]
                    world.check_evaluated(instruction)
                    world.send(self, summariser, lambda t, v=view.number, s=plan.step: t.summarise(v, s))  # type: ignore[misc]
                case st.ReportMetrics(plan=plan):
                    world.report(self, plan)
                case st.Installed(view=view):
                    self.moved_at = world.now
                    world.install(self, self.barrier, view)
                case Copy():
                    target = world.aggregators[instruction.target]
                    world.send(self, target, lambda t, c=instruction: t.copy(c, self))  # type: ignore[misc]
                case AdoptMap():
                    self.point(5.0)
                    world.adopt(instruction)
                    self.point(5.0)
                case Take(map=buckets):
                    for a in instruction.aggregators:
                        world.send(self, world.aggregators[a], lambda t, m=buckets: t.take(m, self))  # type: ignore[misc]
                case MigrationEnded():
                    world.requests.ended(self, instruction)
                case _:
                    pass

    def _begin_apply(self, instruction: st.Apply) -> Takes:
        plan, view, world = instruction.plan, instruction.view, self.world
        order = Order(
            plan.step,
            view.number,
            plan.epoch,
            int(view.lr_scale),
            instruction.pieces,
            instruction.number,
            instruction.map,
        )
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
        if (
            instruction is None
            or self.barrier is None
            or not {*instruction.map.participants} <= self._applied
        ):
            return
        self._order = self._instruction = None
        self.moved_at = world.now
        world.complete(instruction, self.barrier.number)
        self.point()
        follows: list[st.Instruction] = []
        for a in instruction.map.participants:
            follows += self.barrier.handle(st.Applied(instruction.plan.step, a))
        yield from self._carry_out(follows)
