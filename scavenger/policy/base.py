"""What every policy is, and how several of them become one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from scavenger.domain.decision import Decision, Hold
from scavenger.domain.snapshot import JobSnapshot

__all__ = ["Chain", "Policy"]


class Policy(Protocol):
    """Decides by the snapshot alone: the same snapshot always gets the same decision."""

    def decide(self, job: JobSnapshot) -> Decision:
        """What should happen to the job now, and why.

        A decision that is not carried out at once is made again at the next look, until the snapshot shows
        its effect: whoever carries decisions out need not remember them.
        """
        ...


@dataclass(frozen=True, slots=True)
class Chain:
    """Asks policies in their order of importance; the first that does not hold wins.

    What the others said before it stays with the decision, in `considered`. Where all hold, the last one's
    reason is the chain's: the first ones only say that nothing is wrong.
    """

    policies: tuple[Policy, ...]

    def __post_init__(self) -> None:
        if not self.policies:
            raise ValueError("a chain needs a policy")

    def decide(self, job: JobSnapshot) -> Decision:
        """See `Policy.decide`."""
        considered: list[str] = []
        for policy in self.policies:
            decision = policy.decide(job)
            if not isinstance(decision, Hold):
                return replace(decision, considered=(*considered, *decision.considered))
            considered += [*decision.considered, decision.reason]
        return Hold(considered[-1], tuple(considered[:-1]))
