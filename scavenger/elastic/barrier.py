"""The sequencer's half of the protocol: the content of a step, when it is complete, when a view takes effect.

A job's first aggregator sequences its steps for all of them. Events in, instructions out; nothing here touches
a gradient. Table of phases (rows) and events (columns); an entry gives the transition, `-` that the event is
refused or ignored::

    phase      Announce            Contribution        Applied            PieceEvaluated   Summed    EpochDecision
    IDLE       -> STEP             refused             -                  refused          -         -
    STEP       lost: reassign      last piece: APPLY   -                  refused          -         -
               else: pending
    APPLY      sums lost: STEP     refused             last aggregator:   refused          -         -
               else: pending                           STEP or VERDICT;
                                                       EVALUATE at
                                                       epoch's end
    EVALUATE   lost: reassign      refused             -                  last piece:      -         -
               else: pending                                              SUMMARISE
    SUMMARISE  lost: ask another   refused             -                  refused          VERDICT   -
    VERDICT    pending             refused             -                  refused          -         STEP or
                                                                                                     STOPPED
    STOPPED    -                   refused             -                  refused          -         -

Migrations of buckets between aggregators are decided within STEP (`scavenger.elastic.migration`): a new map of buckets
begins a new list of pieces, and a migration that has to be waited for delays APPLY.

Where callbacks decide on the learning rate of the first step, too, the first view leads from IDLE to VERDICT: the job
reports epoch -1 and begins with its verdict. Where they decide on every step, a step within an epoch leads from APPLY
to VERDICT; a verdict that stops training there leads to EVALUATE, since the epoch ends with that step.

`Halt` leads from every phase to STOPPED at once, so that nothing waits for a step which may never be complete:
the last applied step stays the last. `Tick` repeats the requests that are still unanswered, since a message may have
been lost; receivers recognise repetitions. `Lead` makes a coordinator the only one whose messages are accepted.

**Exactly once.** A step is a set of *pieces* that cover its samples without overlap. A piece counts once every
aggregator has it. If a worker is lost, each of its pieces that some aggregator lacks is divided among the others,
at the same weights, and late messages of the lost worker about it are refused; complete pieces are kept. All
aggregators apply the one list of pieces that is decided here, so each sample of each step is applied exactly
once on each of them.

**Sums.** An aggregator that does not share a worker's memory has the worker's pieces only as part of its sums, which it
forms of the whole list (`Expect`, `Formed`; `scavenger.elastic.sums`). If such a worker is lost before the step is
applied everywhere, the list changes, and with it all sums: those pieces are divided among the others, and what the
others have computed stays in their memory, from which it is sent again. That is also so in APPLY, since an aggregator
that is restarted there has lost its sums; the step is then applied again, to the state that it was applied to.

**In place.** Where no aggregator can lose its sums without the job going back to a checkpoint, a step that is being
applied never goes back to STEP. So aggregators may overwrite the state that it is applied to.

**Whom a death blames.** While pieces are suspected of killing their workers, a worker has at most one piece at a time:
the next is ordered when the result of the one before has arrived. So a death blames the one piece that is outstanding,
whatever results were lost with the worker. Who died of one of several pieces leaves each of them to be tried alone.

A view that is *pending* takes effect at the next step boundary: no worker stops for it, and no work is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from scavenger.elastic import quarantine as q
from scavenger.elastic import steps as st
from scavenger.elastic.inquiry import Inquiry
from scavenger.elastic.migration import BucketMap, Copied, Migration, RequestMigration, Taken
from scavenger.elastic.pieces import Pieces
from scavenger.elastic.view import Piece, Position, Share, StepPlan, View, plan_step, split
from scavenger.elastic.views import Views


class BarrierPhase(Enum):
    IDLE = "idle"
    STEP = "step"
    APPLY = "apply"
    EVALUATE = "evaluate"
    SUMMARISE = "summarise"
    VERDICT = "verdict"
    STOPPED = "stopped"


class Barrier:
    """The sequencing of one job. Not thread-safe; feed it one event at a time.

    Args:
        dataset_size: D, training samples per epoch.
        validation_size: Samples evaluated at the end of each epoch.
        aggregators: Number of aggregators that hold parts of the model.
        step: The last applied step (0 at the start of a job).
        position: Where the next step begins. At the start of a later epoch, the one before it is evaluated
            (again), since its verdict is not known.
        number: Number of the newest view that has been in effect.
        suspects: Distinguishes bad data from bad machines; None to disable the quarantine.
        asks_first: Whether a job at its beginning waits for the verdict on epoch -1 before its first step.
        asks_each: Whether every step is followed by a verdict before the next begins.
        sums: Whether some aggregator may not share the memory of some worker, and so needs the lists of pieces.
        in_place: Whether aggregators may apply steps in place: each is lost with its memory, if it is lost.
        migration: The map of buckets and its changes; by default, every aggregator holds one bucket.
    """

    def __init__(
        self,
        dataset_size: int,
        validation_size: int = 0,
        *,
        aggregators: int = 1,
        step: int = 0,
        position: Position | None = None,
        number: int = 0,
        suspects: q.Suspects | None = None,
        asks_first: bool = False,
        asks_each: bool = False,
        sums: bool = False,
        in_place: bool = False,
        migration: Migration | None = None,
    ) -> None:
        if dataset_size < 1:
            raise ValueError("a job needs at least one training sample")
        if aggregators < 1:
            raise ValueError("a job needs at least one aggregator")
        self.dataset_size, self.validation_size = dataset_size, validation_size
        every = BucketMap(0, 0, tuple(range(aggregators)))
        self.migration = migration or Migration(every, aggregators=aggregators)
        self.phase = BarrierPhase.IDLE
        self.step = step
        self.position = position or Position()
        self.number = number
        self.token = 0
        self._plan: StepPlan | None = None
        self._pieces = Pieces(self.map.participants)
        self._unapplied: set[int] = set()
        self._views = Views()
        self._inquiry = Inquiry(suspects, dataset_size)
        self._asks_first, self._asks_each = asks_first, asks_each
        self._sums, self.in_place = sums, in_place
        self._summariser: str | None = None

    @property
    def suspicious(self) -> bool:
        """Whether workers have died of samples that are not identified yet."""
        return self._inquiry.open

    @property
    def view(self) -> View | None:
        """The view in effect; None before the first."""
        return self._views.current

    @property
    def map(self) -> BucketMap:
        """The map of buckets of the step in progress."""
        return self.migration.map

    @property
    def participants(self) -> frozenset[int]:
        """The aggregators that must have each piece of the step in progress."""
        return self._pieces.aggregators

    def awaits(self, verdict: st.EpochDecision) -> bool:
        """Whether this is the verdict that is awaited."""
        if self.phase is not BarrierPhase.VERDICT or self._plan is None or verdict.epoch != self._plan.epoch:
            return False
        return verdict.step == (None if self._plan.ends_epoch else self._plan.step)

    @property
    def missing(self) -> tuple[str, ...]:
        """The workers that the current phase waits for."""
        if self.phase in (BarrierPhase.STEP, BarrierPhase.EVALUATE):
            return tuple(dict.fromkeys(piece.worker for piece in self._pieces.awaited))
        if self.phase is BarrierPhase.SUMMARISE and self._summariser is not None:
            return (self._summariser,)
        return ()

    def handle(self, event: st.Event) -> list[st.Instruction]:
        """Process one event; returns the resulting instructions, in order."""
        match event:
            case st.Contribution():  # first, since most events are
                return self._contribution(event)
            case st.Lead():
                return self._lead(event)
            case st.Announce():
                return self._announce(event)
            case st.Formed():
                return self._formed(event)
            case st.Applied():
                return self._applied(event)
            case st.PieceEvaluated():
                return self._evaluated(event)
            case st.Summed():
                return self._summed(event)
            case st.EpochDecision():
                return self._verdict(event)
            case RequestMigration() | Copied() | Taken():
                return self._migrate(event)
            case st.Halt():
                return self._stop()
            case st.Tick():
                return self._repeat()

    # ---- one method per event ------------------------------------------------------------------------------

    def _lead(self, event: st.Lead) -> list[st.Instruction]:
        if event.token < self.token:
            return [st.Refuse("coordinator", f"token {event.token} is older than {self.token}")]
        self.token = event.token
        return [st.Inform(self.token, self.number, self.view, self.step)]

    def _announce(self, event: st.Announce) -> list[st.Instruction]:
        if event.token < self.token:
            return [st.Refuse("coordinator", f"token {event.token} is older than {self.token}")]
        self.token = event.token
        if event.number <= self.number or self.phase is BarrierPhase.STOPPED:
            # a repeated announcement; the answer is repeated too
            return [st.Installed(self.view)] if self.view else []
        self.number = event.number
        self._views.announce(event)
        if self.phase is BarrierPhase.IDLE:
            if self.position.consumed == 0 and self.step > 0:
                return self._evaluate_again()
            if self.step > 0:
                return self._ask_again() if self._asks_each else self._begin_step()
            return self._ask_first() if self._asks_first else self._begin_step()
        if self.phase is BarrierPhase.APPLY and not self.in_place and self._pieces.loses(self._views.is_gone):
            self.phase = BarrierPhase.STEP
        if self.phase in (BarrierPhase.STEP, BarrierPhase.EVALUATE):
            return self._reassign()
        if self.phase is BarrierPhase.SUMMARISE and self._summariser not in {
            m.worker for m in self._views.able()
        }:
            return self._summarise()
        return []

    def _contribution(self, event: st.Contribution) -> list[st.Instruction]:
        piece = self._awaited(event, BarrierPhase.STEP, self.step + 1)
        if isinstance(piece, st.Refuse):
            return [piece]
        pieces = self._pieces
        if pieces.report(piece.number, event.aggregator):
            assert self.view is not None
            self._inquiry.passed(self.view, self.step + 1, piece.share)
        if pieces.reported:
            self.migration.results_complete()
            if self._complete:
                return self._begin_apply()
        return self._order()

    def _formed(self, event: st.Formed) -> list[st.Instruction]:
        if self.phase is not BarrierPhase.STEP or self.view is None:
            return []
        if (event.view, event.step, event.number) != (self.view.number, self.step + 1, self._pieces.number):
            return []  # of another list
        self._pieces.form(event.aggregator)
        return self._begin_apply() if self._complete else []

    def _migrate(self, event: RequestMigration | Copied | Taken) -> list[st.Instruction]:
        if self.phase is BarrierPhase.STOPPED:
            return []
        map_before, waited = self.map, bool(self.migration.releasing)
        follows: list[st.Instruction] = [*self.migration.handle(event)]
        if self.map != map_before:
            # sums under the map before are void; the new list is told once no old holder writes to its own
            self._pieces.share_out(self.map.participants)
        if waited and not self.migration.releasing and self.phase is BarrierPhase.STEP:
            follows += self._begin_apply() if self._complete else self._expect()
        return follows

    @property
    def _complete(self) -> bool:
        """Whether the step in progress can be applied."""
        return self._pieces.complete and not self.migration.holds_up

    def _begin_apply(self) -> list[st.Instruction]:
        """Start to apply the step, now that no piece is missing."""
        assert self.view is not None
        self.migration.results_complete()
        self.phase = BarrierPhase.APPLY
        self._plan = plan_step(self.view, self.step + 1, self.dataset_size)
        self._unapplied = set(self.map.participants)
        return [self._apply()]

    def _applied(self, event: st.Applied) -> list[st.Instruction]:
        if self.phase is not BarrierPhase.APPLY or event.step != self.step + 1 or self._plan is None:
            return []  # a repetition
        self._unapplied.discard(event.aggregator)
        if self._unapplied:
            return []
        self.step = event.step
        self.position = self._plan.next_position
        migrated: list[st.Instruction] = [*self.migration.applied()]
        if self._plan.ends_epoch:
            return migrated + self._begin_evaluation()
        return migrated + (self._ask() if self._asks_each else self._begin_step())

    def _evaluated(self, event: st.PieceEvaluated) -> list[st.Instruction]:
        piece = self._awaited(event, BarrierPhase.EVALUATE, self.step)
        if isinstance(piece, st.Refuse):
            return [piece]
        self._pieces.finish(event.piece)
        return self._summarise() if self._pieces.complete else []

    def _summed(self, event: st.Summed) -> list[st.Instruction]:
        told = (self.phase, event.worker, event.step, event.view)
        if self.view is None or told != (
            BarrierPhase.SUMMARISE,
            self._summariser,
            self.step,
            self.view.number,
        ):
            return [st.Refuse(event.worker, f"metrics of step {event.step} are not awaited")]
        return self._ask()

    def _verdict(self, event: st.EpochDecision) -> list[st.Instruction]:
        if not self.awaits(event):
            return []
        if not event.stop:
            return self._begin_step()
        assert self._plan is not None
        if self._plan.ends_epoch:
            return self._stop()
        # the rest of the epoch is left out
        self._plan = replace(self._plan, ends_epoch=True)
        return self._begin_evaluation()

    def _repeat(self) -> list[st.Instruction]:
        match self.phase:
            case BarrierPhase.STEP:
                follows: list[st.Instruction] = [*self.migration.repeat()]
                if self._complete:  # a copy that was waited for was given up
                    return follows + self._begin_apply()
                return follows + self._expect() + self._orders(self._pieces.outstanding)
            case BarrierPhase.EVALUATE:
                return self._orders(self._pieces.outstanding)
            case BarrierPhase.APPLY:
                return [replace(self._apply(), aggregators=tuple(sorted(self._unapplied)))]
            case BarrierPhase.SUMMARISE if self._summariser is not None:
                return self._summarise()
            case BarrierPhase.VERDICT:
                assert self._plan is not None
                return [st.ReportMetrics(self._plan)]
            case _:
                return []

    # ---- what several events lead to -----------------------------------------------------------------------

    def _stop(self) -> list[st.Instruction]:
        stopped = self.phase is BarrierPhase.STOPPED
        self.phase = BarrierPhase.STOPPED
        if self.view is None or stopped:
            return []
        return [st.Proceed(m.worker, "stop", self.step, self.view) for m in self.view.members]

    def _begin_step(self) -> list[st.Instruction]:
        instructions = self._install()
        assert self.view is not None
        self.phase = BarrierPhase.STEP
        # no member of a new view is known to be lost
        self._pieces.cut(plan_step(self.view, self.step + 1, self.dataset_size).shares, self.view.members)
        return [*instructions, *self.migration.begin(self.step), *self._expect(), *self._order()]

    def _begin_evaluation(self) -> list[st.Instruction]:
        assert self.view is not None
        self.phase = BarrierPhase.EVALUATE
        able = self._views.able()
        self._pieces.cut(split(0, self.validation_size, max(1, len(able))), able)
        if self._pieces.complete:
            # even without validation data, one worker has to turn the sums into metrics
            return self._summarise()
        return self._order()

    def _evaluate_again(self) -> list[st.Instruction]:
        """Repeat the evaluation if the job was resumed at the end of an epoch, under a new view."""
        epoch, everything = self.position.epoch - 1, Share(0, self.dataset_size)
        self._plan = StepPlan(self.step, epoch, (everything,), ends_epoch=True)
        return self._install() + self._begin_evaluation()

    def _ask(self) -> list[st.Instruction]:
        """Report the epoch, or the step, and wait for the verdict."""
        assert self._plan is not None
        self.phase = BarrierPhase.VERDICT
        return [st.ReportMetrics(self._plan)]

    def _ask_first(self) -> list[st.Instruction]:
        """Report epoch -1, so that training begins with its verdict."""
        self._plan = StepPlan(self.step, -1, (Share(0, 0),), ends_epoch=True)
        return self._install() + self._ask()

    def _ask_again(self) -> list[st.Instruction]:
        """Report the last step if the job was resumed within an epoch, since its verdict is not known."""
        epoch, consumed = self.position.epoch, self.position.consumed
        self._plan = StepPlan(self.step, epoch, (Share(0, consumed),), ends_epoch=False)
        return self._install() + self._ask()

    def _install(self) -> list[st.Instruction]:
        """Put a pending view into effect, and notify the workers that it leaves out."""
        if self._views.pending is None:
            return []
        view, left = self._views.install(self._views.pending, self.step, self.position)
        self._pieces.new_view(view.number)
        self.migration.new_view(view.number)
        return [st.Installed(view), *(st.Proceed(worker, "idle", self.step, view) for worker in left)]

    def _order(self) -> list[st.Instruction]:
        """Order the pieces that are due: in a suspicious step, a worker's next one only when it has no other."""
        if not self._pieces.withholds:
            return []
        one_by_one = self.suspicious and self.phase is BarrierPhase.STEP
        return self._orders(self._pieces.order(one_by_one=one_by_one))

    def _orders(self, pieces: Sequence[Piece]) -> list[st.Instruction]:
        """One order for each worker, with all of its pieces."""
        if not pieces:
            return []
        assert self.view is not None
        action = "train" if self.phase is BarrierPhase.STEP else "evaluate"
        by_worker: dict[str, list[Piece]] = {}
        for piece in pieces:
            by_worker.setdefault(piece.worker, []).append(piece)
        return [
            st.Proceed(worker, action, self.step, self.view, tuple(own)) for worker, own in by_worker.items()
        ]

    def _reassign(self) -> list[st.Instruction]:
        """Assign the open pieces of lost workers to others; wait if there is no other worker."""
        assert self.view is not None
        found: list[st.Instruction] = []
        before = self._pieces.number
        orphaned = self._pieces.withdraw(self._views.is_gone)
        for worker, outstanding in orphaned.items():
            death = self._views.death_of(worker)
            if death is not None and self.phase is BarrierPhase.STEP:  # no weights depend on evaluations
                found += self._inquiry.into(self.view, self.step + 1, death, outstanding)
        able = self._views.able()
        if not self._pieces.orphans or not able:
            return found + self._order()
        parts = self._parted(self._pieces.adopt())
        if not self._pieces.has_room(able, len(parts)):
            # no worker has slots left for this step: restart it with as few pieces as possible
            shares = [*self._pieces.covered, *(share for share, _ in parts)]
            low, high = min(share.start for share in shares), max(share.stop for share in shares)
            self._pieces.cut((), ())
            parts = self._parted([Share(low, high)])
        self._pieces.divide(parts, able)
        if self._complete and self.phase is BarrierPhase.STEP:
            return found + self._begin_apply()  # all remaining samples are left out
        # a list that has not changed is told by repetition
        return found + (self._expect() if self._pieces.number != before else []) + self._order()

    def _expect(self) -> list[st.Instruction]:
        """Tell the aggregators the list of pieces; an incomplete one is not told, nor one under an unconfirmed map."""
        waits = self._pieces.orphans or self.migration.releasing
        if not self._sums or self.phase is not BarrierPhase.STEP or waits:
            return []
        assert self.view is not None
        plan = plan_step(self.view, self.step + 1, self.dataset_size)
        pieces, unformed = self._pieces.by_samples, self._pieces.unformed
        held = tuple((index, self._pieces.held_by(index)) for index in unformed)
        return [st.Expect(plan, self.view, pieces, held, self._pieces.number, self.map)]

    def _parted(self, shares: list[Share]) -> list[tuple[Share, bool]]:
        """The parts of some shares that are to be computed, and whether each has to be computed alone."""
        if self.phase is not BarrierPhase.STEP:
            return [(share, False) for share in shares]
        assert self.view is not None
        return self._inquiry.apart(self.view, self.step + 1, shares)

    def _apply(self) -> st.Apply:
        assert self.view is not None
        assert self._plan is not None
        pieces, number = self._pieces.by_samples, self._pieces.number
        return st.Apply(self._plan, self.view, pieces, self.map.participants, number, self.map)

    def _summarise(self) -> list[st.Instruction]:
        assert self.view is not None
        assert self._plan is not None
        self.phase = BarrierPhase.SUMMARISE
        able = self._views.able()
        self._summariser = able[0].worker if able else None
        if self._summariser is None:
            return []
        return [st.Sum(self._plan, self.view, self._pieces.by_samples, self._summariser)]

    def _awaited(
        self, event: st.Contribution | st.PieceEvaluated, phase: BarrierPhase, step: int
    ) -> Piece | st.Refuse:
        """Return the piece that an event is about, or why it is refused."""
        view = self.view
        if view is None or self.phase is not phase:
            return st.Refuse(event.worker, f"not awaited in phase {self.phase.value}")
        if event.view != view.number or event.step != step:
            return st.Refuse(
                event.worker, f"view {event.view} step {event.step}, not view {view.number} step {step}"
            )
        piece = self._pieces.of(event.worker, event.piece)
        if piece is None:
            return st.Refuse(event.worker, f"piece {event.piece} of step {event.step} is no longer its own")
        return piece
