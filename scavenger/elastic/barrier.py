"""The aggregator's half of the protocol: when a step is complete, when a view takes effect, who may go on.

Events in, instructions out; nothing here touches a gradient. Table of phases (rows) and events (columns); an
entry says what follows, `-` that the event is refused or ignored::

    phase      Announce       Contribution       Applied            Evaluated       Summed          Verdict
    IDLE       -> STEP        refused            -                  refused         -               -
    STEP       urgent: redo   all: APPLY         -                  refused         -               -
               else: pending
    APPLY      pending        refused            STEP, or EVALUATE  refused         -               -
                                                 at epoch's end
    EVALUATE   urgent: redo   refused            -                  all: SUMMARISE  -               -
               else: pending
    SUMMARISE  urgent: back   refused            -                  refused         VERDICT         -
               to EVALUATE
    VERDICT    pending        refused            -                  refused         -          STEP or STOPPED
    STOPPED    -              refused            -                  refused         -               -

`Halt` leads from every phase to STOPPED at once, so that a step which may never be complete holds up nobody:
the last applied step stays the last.

A view that is *pending* takes effect at the next step boundary, so no work is lost. An *urgent* one (a member
died) takes effect at once: the contributions of the unfinished step are thrown away and its samples are
computed again by the new members, at the same weights. So each sample of each step is applied exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from scavenger.elastic.view import Member, Position, StepPlan, View, plan_step

__all__ = [
    "Announce",
    "Applied",
    "Apply",
    "Barrier",
    "Contribution",
    "Evaluated",
    "Halt",
    "Installed",
    "Instruction",
    "Phase",
    "Proceed",
    "Refuse",
    "Report",
    "Sum",
    "Summed",
    "Verdict",
]


class Phase(Enum):
    IDLE = "idle"
    STEP = "step"
    APPLY = "apply"
    EVALUATE = "evaluate"
    SUMMARISE = "summarise"
    VERDICT = "verdict"
    STOPPED = "stopped"


# ---- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Announce:
    """The coordinator wants these members and this batch from the next boundary on (`urgent`: at once)."""

    number: int
    members: tuple[Member, ...]
    global_batch_size: int
    urgent: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Contribution:
    """A worker's gradient for its share of a step lies in its slot."""

    worker: str
    view: int
    step: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The shell has applied the step and published its weights."""

    step: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A worker's metric sums over its share of the validation data lie in its slot."""

    worker: str
    view: int
    step: int


@dataclass(frozen=True, slots=True)
class Summed:
    """The member that was asked has turned the sums into metrics."""

    worker: str
    view: int
    step: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """The coordinator has seen the epoch's metrics: go on or stop."""

    stop: bool


@dataclass(frozen=True, slots=True)
class Halt:
    """The job ends with the last applied step; an unfinished one is forgotten."""


Event = Halt | Announce | Contribution | Applied | Evaluated | Summed | Verdict


# ---- instructions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Apply:
    """Average the members' slots by samples, apply the optimizer, publish; then say `Applied`."""

    plan: StepPlan
    view: View


@dataclass(frozen=True, slots=True)
class Proceed:
    """Tell a worker that the weights of `step` can be read, and what to do with them.

    `action`: `train` (compute `step + 1` under `view`), `evaluate`, `idle` (no member any more) or `stop`.
    """

    worker: str
    action: str
    step: int
    view: View


@dataclass(frozen=True, slots=True)
class Sum:
    """Add up the members' metric sums and have the first member turn them into metrics."""

    plan: StepPlan
    view: View


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the coordinator that the epoch's metrics are known, and wait for its verdict."""

    plan: StepPlan


@dataclass(frozen=True, slots=True)
class Installed:
    """Tell the coordinator that a view took effect."""

    view: View


@dataclass(frozen=True, slots=True)
class Refuse:
    """A message that came too late or from a stranger; nothing follows from it but a note."""

    worker: str
    reason: str


Instruction = Apply | Proceed | Sum | Report | Installed | Refuse


class Barrier:
    """One aggregator's view of one job. Not thread-safe; feed it one event at a time.

    Args:
        dataset_size: D, training samples per epoch.
        step: The last applied step (0 at the start of a job).
        position: Where the next step begins.
    """

    def __init__(self, dataset_size: int, *, step: int = 0, position: Position | None = None) -> None:
        if dataset_size < 1:
            raise ValueError("a job needs at least one training sample")
        self.dataset_size = dataset_size
        self.phase = Phase.IDLE
        self.step = step
        self.position = position or Position()
        self.view: View | None = None
        self._pending: Announce | None = None
        self._number = 0
        self._plan: StepPlan | None = None
        self._arrived: set[str] = set()

    @property
    def missing(self) -> tuple[str, ...]:
        """The members that the current phase waits for."""
        if self.view is None:
            return ()
        if self.phase in (Phase.STEP, Phase.EVALUATE):
            return tuple(m.worker for m in self.view.members if m.worker not in self._arrived)
        if self.phase is Phase.SUMMARISE:
            return (self.view.members[0].worker,)
        return ()

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event; returns what follows from it, in order."""
        match event:
            case Halt():
                return self._stop()
            case Announce():
                return self._announce(event)
            case Contribution():
                return self._contribution(event)
            case Applied():
                return self._applied(event)
            case Evaluated():
                return self._evaluated(event)
            case Summed():
                return self._summed(event)
            case Verdict():
                return self._verdict(event)

    # ---- one method per event ------------------------------------------------------------------------------

    def _announce(self, event: Announce) -> list[Instruction]:
        if event.number <= self._number or self.phase is Phase.STOPPED:
            return []
        self._number = event.number
        # a newer view knows of every loss that an older one told, but must not make it less urgent
        urgent = event.urgent or (self._pending is not None and self._pending.urgent)
        self._pending = replace(event, urgent=urgent)
        if self.phase is Phase.IDLE:
            return self._begin_step()
        if event.urgent and self.phase is Phase.STEP:
            return self._begin_step()
        if event.urgent and self.phase in (Phase.EVALUATE, Phase.SUMMARISE):
            return self._begin_evaluation()
        return []

    def _contribution(self, event: Contribution) -> list[Instruction]:
        if refusal := self._refusal(event, Phase.STEP, self.step + 1):
            return [refusal]
        self._arrived.add(event.worker)
        if self.missing:
            return []
        assert self.view is not None
        self.phase = Phase.APPLY
        self._plan = plan_step(self.view, self.step + 1, self.dataset_size)
        return [Apply(self._plan, self.view)]

    def _applied(self, event: Applied) -> list[Instruction]:
        if self.phase is not Phase.APPLY or event.step != self.step + 1 or self._plan is None:
            raise ValueError(f"step {event.step} was not to be applied in phase {self.phase.value}")
        self.step = event.step
        self.position = self._plan.next_position
        if self._plan.ends_epoch:
            return self._begin_evaluation()
        return self._begin_step()

    def _evaluated(self, event: Evaluated) -> list[Instruction]:
        if refusal := self._refusal(event, Phase.EVALUATE, self.step):
            return [refusal]
        self._arrived.add(event.worker)
        if self.missing:
            return []
        assert self.view is not None
        assert self._plan is not None
        self.phase = Phase.SUMMARISE
        return [Sum(self._plan, self.view)]

    def _summed(self, event: Summed) -> list[Instruction]:
        if refusal := self._refusal(event, Phase.SUMMARISE, self.step):
            return [refusal]
        assert self._plan is not None
        self.phase = Phase.VERDICT
        return [Report(self._plan)]

    def _verdict(self, event: Verdict) -> list[Instruction]:
        if self.phase is not Phase.VERDICT:
            return []
        return self._stop() if event.stop else self._begin_step()

    # ---- what several events lead to -----------------------------------------------------------------------

    def _stop(self) -> list[Instruction]:
        if self.view is None or self.phase is Phase.STOPPED:
            self.phase = Phase.STOPPED
            return []
        self.phase = Phase.STOPPED
        return [Proceed(m.worker, "stop", self.step, self.view) for m in self.view.members]

    def _begin_step(self) -> list[Instruction]:
        self.phase = Phase.STEP
        return self._open("train")

    def _begin_evaluation(self) -> list[Instruction]:
        self.phase = Phase.EVALUATE
        # a pending view that is not urgent waits for the boundary behind the evaluation
        if self._pending is not None and not self._pending.urgent:
            self._arrived.clear()
            assert self.view is not None
            return [Proceed(m.worker, "evaluate", self.step, self.view) for m in self.view.members]
        return self._open("evaluate")

    def _open(self, action: str) -> list[Instruction]:
        """Install a pending view, and send every member into the phase that begins."""
        self._arrived.clear()
        instructions: list[Instruction] = []
        before = self.view
        if self._pending is not None:
            announced, self._pending = self._pending, None
            self.view = View(
                number=announced.number,
                first_step=self.step + 1,
                global_batch_size=announced.global_batch_size,
                members=announced.members,
                position=self.position,
                reason=announced.reason,
            )
            instructions.append(Installed(self.view))
        assert self.view is not None
        instructions += [Proceed(m.worker, action, self.step, self.view) for m in self.view.members]
        if before is not None and before is not self.view:
            stayed = {m.worker for m in self.view.members}
            instructions += [
                Proceed(m.worker, "idle", self.step, self.view)
                for m in before.members
                if m.worker not in stayed
            ]
        return instructions

    def _refusal(self, event: Contribution | Evaluated | Summed, phase: Phase, step: int) -> Refuse | None:
        if self.view is None or self.phase is not phase:
            return Refuse(event.worker, f"not awaited in phase {self.phase.value}")
        if event.view != self.view.number or event.step != step:
            return Refuse(
                event.worker, f"view {event.view} step {event.step}, not view {self.view.number} step {step}"
            )
        if event.worker not in self.missing:
            return Refuse(event.worker, "no member of the view, or counted already")
        return None
