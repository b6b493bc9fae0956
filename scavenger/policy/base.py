"""The policy interface, and the chain that combines several policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from scavenger.domain.decision import Decision, Hold
from scavenger.domain.snapshot import JobSnapshot


class Policy(Protocol):
    """Decides from the snapshot alone: the same snapshot always gives the same decision."""

    def decide(self, job: JobSnapshot) -> Decision:
        """Decide what should happen to the job now, with the reason.

        A decision that is not carried out at once is repeated with the next snapshot, until a snapshot shows its
        effect, so the caller need not remember decisions.
        """
        ...


@dataclass(frozen=True, slots=True)
class Chain:
    """Asks policies in order of priority; the first decision other than `Hold` wins.

    The decisions of the policies before it are kept in `considered`. If all hold, the chain gives the reason of the
    last one: the earlier ones only report that nothing is wrong.
    """

    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        if not self.policies:
            raise ValueError("a chain needs a policy")

    def decide(self, job: JobSnapshot) -> Decision:
        considered: list[str] = []
        for policy in self.policies:
            decision = policy.decide(job)
            if not isinstance(decision, Hold):
                return replace(decision, considered=(*considered, *decision.considered))
            considered += [*decision.considered, decision.reason]
        return Hold(considered[-1], tuple(considered[:-1]))
