"""A simulated coordinator: what `scavenger.train.coordinator.coordinator` does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from simulated import Process

from scavenger.elastic import steps as st
from scavenger.elastic.liveness import Liveness
from scavenger.elastic.steps import Announce
from scavenger.elastic.view import View

if TYPE_CHECKING:
    from simulation import World

WATCH_S = 0.5
_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Resize:
    """What the supervisor last wanted."""

    workers: int
    batch: int
    without: tuple[str, ...] = ()
    lr_scale: int = 1


class Coordinator(Process):
    """Leads the job until another one does; see `scavenger.train.coordinator.coordinator`."""

    def __init__(self, world: World, token: int) -> None:
        super().__init__(world, f"coordinator {token}")
        self.token = token
        self.membership = world.new_membership(token)
        self._liveness = Liveness()
        self._begun = self._informed = False
        self._present: set[str] = set()
        self._wanted: Resize | None = None
        self._announced_at = 0.0
        world.after(world.duration(), lambda: self.deliver(self._begin))

    def _begin(self) -> None:
        world = self.world
        self._begun, self._wanted = True, world.wanted
        for name in world.alive:
            self.membership.launch(name)
            world.from_leader(self, world.workers[name], lambda w: world.called(w, self))
        for a in range(world.parts):
            self._ready_aggregator(a)
        self.every(WATCH_S, self._watch)

    def _ready_aggregator(self, index: int) -> None:
        """It may be another one than before: it takes up its part where that stands, or is told again."""
        world, number = self.world, self.membership.number if self._informed else 0
        world.from_leader(self, world.aggregators[index], lambda a: a.initialise(number, self.token))
        if index == 0 and self._informed:
            self._announce(self.membership.renew())
        elif index == 0:
            world.from_leader(self, world.aggregators[0], lambda a: a.roll_call(self.token, self))

    def aggregator_ready(self, index: int) -> None:
        self.deliver(lambda: self._ready_aggregator(index) if self._begun else None)

    def informed(self, inform: st.Inform | None) -> None:
        def take() -> None:
            if inform is None or self._informed or inform.token != self.token:
                return
            self._informed = True
            self.membership.restore(inform.number, inform.view, self._present)
            for name in sorted(self._present):
                self._announce(self.membership.ready(name))
            if self._wanted is not None:
                self._resize(self._wanted)

        self.deliver(take)

    def launched(self, worker: str) -> None:
        def take() -> None:
            if self._begun and not self.membership.knows(worker):
                self.membership.launch(worker)

        self.deliver(take)

    def worker_ready(self, worker: str) -> None:
        def take() -> None:
            if not self._begun or not self.membership.knows(worker):
                return
            self._liveness.heard(worker, self.world.now)
            if self._informed:
                self._announce(self.membership.ready(worker))
            else:
                self._present.add(worker)

        self.deliver(take)

    def ended(self, worker: str) -> None:
        def take() -> None:
            self._liveness.forget(worker)
            if self._begun and self.membership.knows(worker):
                self._announce(self.membership.lost(worker))
                self._present.discard(worker)
                self._free()

        self.deliver(take)

    def resize(self, wanted: Resize) -> None:
        def take() -> None:
            self._wanted = wanted
            if self._informed:
                self._resize(wanted)

        self.deliver(take)

    def _resize(self, wanted: Resize) -> None:
        self._announce(
            self.membership.resize(
                wanted.workers, wanted.batch, "", without=wanted.without, lr_scale=float(wanted.lr_scale)
            )
        )

    def release(self, keep: int) -> None:
        def take() -> None:
            for name in self.membership.spare(keep) if self._informed else ():
                self.membership.release(name)
                self._liveness.forget(name)
                self.world.from_leader(self, self.world.workers[name], self.world.quit)

        self.deliver(take)

    def installed(self, view: View) -> None:
        def take() -> None:
            if self._informed:
                self._announce(
                    self.membership.installed(view.number, [member.worker for member in view.members])
                )
                self._free()

        self.deliver(take)

    def _free(self) -> None:
        for name in sorted(self.world.unfreed) if self._informed else ():
            known = self.membership.knows(name)
            if self.membership.forgotten(name) if known else self.membership.settled:
                self.world.to_supervisor(self, partial(self.world.free, name))

    def _announce(self, announce: Announce | None) -> None:
        if announce is not None and self._informed:
            self._announced_at = self.world.now
            self.world.send(self, self.world.aggregators[0], lambda a: a.hear(announce))
            self.point(10.0)

    def _watch(self) -> None:
        world, now = self.world, self.world.now
        for process in (*world.aggregators, *(world.workers[name] for name in world.alive)):
            if process.alive and not process.stalled and process.ready:
                self._liveness.heard(process.name, now)
        sequencer = world.aggregators[0]
        barrier = sequencer.barrier if sequencer.alive else None
        for name in self._liveness.suspects(
            now,
            awaited=() if barrier is None else barrier.missing,
            awaited_for_s=now - sequencer.moved_at,
            step_time_s=0.3,
        ):
            self._liveness.forget(name)
            if self.membership.knows(name):
                self._announce(self.membership.lost(name))
            world.to_supervisor(self, partial(world.expel, name))
        if self._informed and now - self._announced_at > _AGAIN_S:
            self._announce(self.membership.announce_again())
