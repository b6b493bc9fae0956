"""Ways to break the protocol, each with the words of the law that must catch it.

Some leave out a rule of the shells, some put back a fault that the simulation has found in the state machines.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from scavenger.elastic.barrier import Barrier, BarrierPhase
from scavenger.elastic.membership import Membership, WorkerState, worker_slot
from scavenger.elastic.migration import Copied, Migration, MigrationEvent, MigrationInstruction, Taken
from scavenger.elastic.steps import Announce, Contribution, Instruction
from scavenger.elastic.view import View

# ---- the sequencer's state machine -------------------------------------------------------------------------


class LateIsWelcome(Barrier):
    """Counts whatever a worker has computed of the step for the piece that it has now."""

    def _contribution(self, event: Contribution) -> list[Instruction]:
        if self.view is not None and self.phase is BarrierPhase.STEP and event.step == self.step + 1:
            mine = [piece.number for piece in self._pieces.open if piece.worker == event.worker]
            if mine:
                event = msgspec.structs.replace(event, view=self.view.number, piece=mine[0])
        return super()._contribution(event)


class NobodyIsLost(Barrier):
    """Has the unfinished step wait for those that died."""

    def _announce(self, event: Announce) -> list[Instruction]:
        return super()._announce(replace(event, lost=()))


class DoneAndAgain(Barrier):
    """Has all that a lost worker had to do done again, and keeps what is complete of it."""

    def _reassign(self) -> list[Instruction]:
        complete = set(self._pieces.all) - set(self._pieces.open)
        again = sorted((piece.number, piece.share) for piece in complete if piece.worker in self._views.lost)
        self._pieces._orphans += [share for _, share in again]
        return super()._reassign()


class SomePartsSuffice(Barrier):
    """Takes a piece for complete once the first aggregator has it."""

    def _contribution(self, event: Contribution) -> list[Instruction]:
        if event.aggregator:
            return []
        follows: list[Instruction] = []
        for aggregator in self.map.participants:
            follows += super()._contribution(msgspec.structs.replace(event, aggregator=aggregator))
        return follows[:1]


class AnybodyLeads(Barrier):
    """Hears coordinators that have been replaced."""

    def _announce(self, event: Announce) -> list[Instruction]:
        return super()._announce(replace(event, token=max(event.token, self.token)))


class PiecesNumberedAnew(Barrier):
    """Begins at piece 1 whenever a sequencer is restarted."""

    def _install(self) -> list[Instruction]:
        made = self._pieces._made
        instructions = super()._install()
        self._pieces._made = made
        return instructions


class StandInsStay(Barrier):
    """Waits for those who were given pieces as members of a view that never came."""

    def _reassign(self) -> list[Instruction]:
        pending = self._views.pending
        assert pending is not None
        members = {member.worker: member for member in pending.members}
        for piece in self._pieces.open:
            members.setdefault(piece.worker, replace(pending.members[0], worker=piece.worker))
        self._views.pending = replace(pending, members=tuple(members.values()))
        instructions = super()._reassign()
        self._views.pending = pending
        return instructions


class SumsAreForever(Barrier):
    """Trusts that an aggregator which has formed its sums keeps them until the step is applied."""

    def _announce(self, event: Announce) -> list[Instruction]:
        phase = self.phase
        if phase is BarrierPhase.APPLY:
            self.phase = BarrierPhase.VERDICT
        try:
            return super()._announce(event)
        finally:
            if phase is BarrierPhase.APPLY:
                self.phase = phase


class StepsAreGivenUp(Barrier):
    """Lets a step go back that is being applied in place."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.in_place = False


# ---- the coordinator's state machine -----------------------------------------------------------------------


class LeaversAreForgotten(Membership):
    """Takes a worker in standby for one that nobody waits for, though the view without it is to come."""

    def lost(self, worker: str) -> Announce | None:
        if self.state(worker) is WorkerState.STANDBY:
            self._workers[worker].state = WorkerState.GONE
            return None
        return super().lost(worker)


class TheDeadRise(Membership):
    """Takes every member of the view in effect for living when it takes up a job."""

    def restore(self, number: int, view: View | None, present: Any) -> None:
        super().restore(number, view, present)
        for name, entry in self._workers.items():
            if view is not None and any(m.worker == name for m in view.members) and entry.lost:
                entry.state, entry.lost, entry.awaited_until = WorkerState.TRAINING, False, 0


class JoinersAreOverlooked(Membership):
    """Does not learn from another coordinator's view who has got ready."""

    def installed(self, number: int, members: Collection[str]) -> Announce | None:
        starting = [name for name in members if name in self.workers(WorkerState.STARTING)]
        announce = super().installed(number, members)
        for name in starting:
            self._workers[name].state = WorkerState.STARTING
        return announce


class SaysItOnce(Membership):
    """Trusts that what it announces arrives."""

    def announce_again(self) -> Announce | None:
        return None


class SlotsAreReused(Membership):
    """Gives the slots of workers that are gone to others."""

    def _announce(self, reason: str) -> Announce | None:
        announce = super()._announce(reason)
        if announce is None:
            return None
        free = [worker_slot(name) for name, entry in self._workers.items() if entry.state is WorkerState.GONE]
        members = tuple(
            replace(member, slot=free.pop()) if free and member.worker not in self._had else member
            for member in announce.members
        )
        self._had |= {member.worker for member in members}
        self._announced = replace(announce, members=members)
        return self._announced

    def __init__(self, token: int = 1, *, gone_kept: int = 100) -> None:
        super().__init__(token, gone_kept=gone_kept)
        self._had: set[str] = set()


# ---- migrations --------------------------------------------------------------------------------------------


class OldHoldersAreNotAsked(Migration):
    """Tells the new holder at once, while the old one may still be writing."""

    def handle(self, event: MigrationEvent) -> list[MigrationInstruction]:
        follows = super().handle(event)
        for aggregator in self.releasing:
            follows += super().handle(Taken(aggregator, self.map.number))
        return follows


class AnyAnswerWillDo(Migration):
    """Takes a copy for whole that was made for another request."""

    def _copied(self, event: Copied) -> list[MigrationInstruction]:
        number = event.number if self._copy is None else self._copy.number
        return super()._copied(replace(event, number=number))


class NothingIsLate(Migration):
    """Decides on a new map after the step was left to the old holders."""

    def results_complete(self) -> None:
        pass


class CopiesAreOrderedOnce(Migration):
    """Trusts that what it orders arrives."""

    def repeat(self) -> list[MigrationInstruction]:
        return []


class MapsNumberedAnew(Migration):
    """Numbers maps from the last one that was recorded, so that two requests may have the same number."""

    def new_view(self, number: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Mutant:
    """How to break a `World`, and what it must then complain of (a regular expression)."""

    complaint: str
    world: dict[str, Any] = field(default_factory=dict)


def _barrier(barrier: type[Barrier], complaint: str, **world: Any) -> Mutant:
    return Mutant(complaint, {"barrier": barrier, **world})


def _membership(membership: type[Membership], complaint: str) -> Mutant:
    return Mutant(complaint, {"membership": membership})


def _migration(migration: type[Migration], complaint: str) -> Mutant:
    return Mutant(complaint, {"migration": migration, "migrates": True})


def _without(rule: str, complaint: str, **world: Any) -> Mutant:
    return Mutant(complaint, {"without": rule, **world})


MUTANTS = {
    "late contributions count": _barrier(LateIsWelcome, "slot .* holds"),
    "the dead are waited for": _barrier(NobodyIsLost, "stuck"),
    "done, and done again": _barrier(DoneAndAgain, "do not cover"),
    "one part suffices": _barrier(SomePartsSuffice, "stuck|slot .* holds"),
    "old coordinators are heard": _barrier(AnybodyLeads, "is heard after"),
    "pieces are numbered anew": _barrier(PiecesNumberedAnew, "stuck"),
    "stand-ins stay": _barrier(StandInsStay, "stuck"),
    "sums are forever": _barrier(SumsAreForever, "stuck"),
    "steps are given up in place": _barrier(StepsAreGivenUp, "the weights of bucket", in_place=True),
    "leavers are forgotten": _membership(LeaversAreForgotten, "stuck|slot .* holds"),
    "the dead rise": _membership(TheDeadRise, "stuck"),
    "joiners are overlooked": _membership(JoinersAreOverlooked, "stuck|slot .* holds"),
    "views are announced once": _membership(SaysItOnce, "stuck"),
    "slots are reused": _membership(SlotsAreReused, "slot .* is given to"),
    "nothing is said again": _without("asks again", "stuck"),
    "the old is taken": _without("refuses the old", "applies step|slot .* holds|weights", disorder=True),
    "updates in place": _without("double buffer", "the weights of bucket"),
    "the record lags": _without("steps are recorded", "begins after step|follows step"),
    "view numbers are forgotten": _without("views are recorded", "view number .* comes after"),
    "a part forgets its view": _without("parts know their view", "weights|changed while"),
    "slots are emptied at once": _without("slots are kept", "slot .* holds|changed while"),
    "only the newest weights are served": _without("serves the step before", "stuck"),
    "old holders are not asked": _migration(
        OldHoldersAreNotAsked, "adds to what|has formed|another aggregator"
    ),
    "any copy will do": _migration(AnyAnswerWillDo, "weights"),
    "nothing is late": _migration(NothingIsLate, "weights|stuck|follows"),
    "copies are ordered once": _migration(CopiesAreOrderedOnce, "stuck"),
    "maps are numbered anew": _migration(MapsNumberedAnew, "weights"),
    "maps are not recorded": _without("maps are recorded", "weights|stuck|updated", migrates=True),
    "late copies count": _without("late copies are void", "weights|overwritten", migrates=True),
}
