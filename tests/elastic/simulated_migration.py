"""Migrations in the simulation: how an aggregator copies buckets of others, and what the supervisor asks for."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from simulated import Process, ViolationError

from scavenger.elastic.migration import BucketMap, Copied, Copy, MigrationEnded, RequestMigration, respread

if TYPE_CHECKING:
    from simulated_aggregator import Aggregator
    from simulation import World

_STEPS_MAX = 12
"""Steps per bucket within which a migration ends when all is calm."""


class Copying:
    """What one aggregator copies of others, and gives to them.

    The state of a step is read by a thread of its own, and so may change while it is read; nobody must use it then.
    """

    def __init__(self, aggregator: Aggregator) -> None:
        self._own = aggregator
        self.copy: Copy | None = None
        self._here: set[int] = set()

    def ordered(self, copy: Copy) -> None:
        """From the sequencer; said again, it asks for what is missing."""
        world, own = self._own.world, self._own
        if copy.number <= own.map.number and world.obeys("late copies are void"):
            return
        if self.copy is not None and copy.number < self.copy.number and world.obeys("late copies are void"):
            return
        if self.copy != copy:
            self.copy, self._here = copy, set()
        for bucket, source in copy.buckets:
            if world.memory[source] is world.memory[own.index]:
                self._here.add(bucket)
            elif bucket not in self._here:
                target = world.aggregators[source]
                world.send(own, target, lambda t, b=bucket: t.copying.asked(own, copy, b))  # type: ignore[misc]
        self._tell()

    def asked(self, target: Aggregator, copy: Copy, bucket: int) -> None:
        """Another aggregator asks for a bucket: it is sent if it is there."""
        own, world = self._own, self._own.world

        def read() -> None:
            found = section.weights, world.momentum[own.index][bucket] if world.in_place else section.momentum
            value = found if section.step == copy.step else (-1, -1)
            world.send(own, world.aggregators[target.index], lambda t: t.copying.arrived(copy, bucket, value))

        def answer() -> None:
            if own.initialised and section.step == copy.step:
                time = world.copying_s * world.random.random() + world.duration()
                world.after(time, lambda: read() if own.alive else None)

        section = world.memory[own.index][bucket][copy.step % 2]
        own.deliver(answer)

    def arrived(self, copy: Copy, bucket: int, value: tuple[int, int]) -> None:
        """The state of a bucket arrives."""

        def take() -> None:
            own, world = self._own, self._own.world
            if world.obeys("late copies are void") and (self.copy is None or self.copy.number != copy.number):
                return
            section = world.memory[own.index][bucket][copy.step % 2]
            section.step, (section.weights, section.momentum) = copy.step, value
            section.written += 1
            if world.in_place:
                world.momentum[own.index][bucket] = section.momentum
            own.point()
            if self.copy is not None:
                self._here.add(bucket)
                self._tell()

        self._own.deliver(take)

    def taken(self, number: int) -> None:
        """A map was taken: what was copied for it is in use, what was copied for one before counts for nothing."""
        if self.copy is not None and self.copy.number <= number:
            self.copy = None

    def _tell(self) -> None:
        copy, own = self.copy, self._own
        if copy is not None and {bucket for bucket, _ in copy.buckets} <= self._here:
            event = Copied(own.index, copy.number)
            own.world.send(own, own.world.aggregators[0], lambda t: t.hear(event))


class Requests:
    """The supervisor's requests for migrations, one at a time, each until it has ended."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._random = world, random.Random(seed)
        self._process = Process(world, "migrations")
        self._request: RequestMigration | None = None
        self._begun = self._numbers = 0
        self.done = self.abandoned = 0
        self.retired: set[int] = set()
        """Aggregators that hold nothing, and have ended."""

    def start(self) -> None:
        self._process.every(1.0, self._watch)
        self._world.after(3.0 * self._random.random(), self._mischief)

    def _mischief(self) -> None:
        world, draw = self._world, self._random
        if not world.chaos and self.done + self.abandoned > 2:
            return
        self._world.after(draw.expovariate(1.0) * draw.choice([0.1, 0.5, 2.0]), self._mischief)
        if self._request is not None and draw.random() < 0.8:
            return
        kind, parts = draw.random(), range(world.parts)
        now = world.map
        if kind < 0.4 and world.parts > 1:
            without = draw.randrange(world.parts)
            holders = respread(now, {*parts} - {without}, [1] * len(now.holders))
        elif kind < 0.6:
            to = draw.randrange(world.parts)
            holders = tuple(to if draw.random() < 0.5 else holder for holder in now.holders)
        else:
            holders = tuple(draw.randrange(world.parts) for _ in now.holders)
        self._numbers += 1
        self._request, self._begun = RequestMigration(self._numbers, holders), world.steps
        for index in sorted(self.retired & {*holders}):
            self.retired.discard(index)
            world.restart(index)
        self._ask()

    def _ask(self) -> None:
        if (request := self._request) is not None:
            self._world.send(self._process, self._world.aggregators[0], lambda t: t.hear(request))

    def _watch(self) -> None:
        world, request = self._world, self._request
        if world.chaos:
            self._begun = world.steps
        elif request is not None and world.steps - self._begun > _STEPS_MAX * len(world.map.holders):
            raise ViolationError(f"the migration to {request.holders} never ends: {world.map}")
        self._ask()

    def ended(self, sequencer: Process, end: MigrationEnded) -> None:
        """The sequencer reports the end of a migration."""

        def take(_: Process) -> None:
            if self._request is None or end.request != self._request.request:
                return
            if not end.reason and end.map.holders != self._request.holders:
                raise ViolationError(f"the migration to {self._request.holders} ended with {end.map}")
            self._request = None
            self.done += not end.reason
            self.abandoned += bool(end.reason)
            for index in range(1, self._world.parts):
                if not end.reason and index not in end.map.holders and self._random.random() < 0.5:
                    self.retired.add(index)
                    self._world.aggregators[index].die()

        self._world.send(sequencer, self._process, take)


def numbered(current: BucketMap, record_step: int, before: BucketMap) -> BucketMap | None:
    """The map before one that was decided for a step which the job's record does not have."""
    return before if current.since > record_step else None
