"""What may still be spent: one rule for the budgets of a month, a user, a study, a program and a job.

What something may cost is reserved before it begins, until it has ended and what it has cost is spent instead. So
nothing is begun that a budget might not pay for, whoever keeps the numbers: the store, or a program for its own jobs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scavenger.domain.submission import Spending
from scavenger.errors import LimitReachedError
from scavenger.presentation.formatting import money


@dataclass(frozen=True, slots=True)
class Funds:
    """A budget, and what is gone of it.

    Attributes:
        budget_usd: None without a limit.
        reserved_usd: What those that run may cost yet.
        claims: How many they are.
    """

    budget_usd: float | None
    spent_usd: float = 0.0
    reserved_usd: float = 0.0
    claims: int = 0

    @property
    def left_usd(self) -> float:
        """What is neither spent nor reserved, at least 0; infinite without a limit."""
        gone_usd = self.spent_usd + self.reserved_usd
        return math.inf if self.budget_usd is None else max(0.0, self.budget_usd - gone_usd)

    def pays(self, usd: float | None) -> bool:
        """Whether something may begin that may cost so much yet; None for one that may cost anything."""
        if self.budget_usd is None:
            return True
        return usd is not None and self.spent_usd + self.reserved_usd + usd <= self.budget_usd

    def grant(self, most_usd: float | None, *, at_once: int = 1) -> float | None:
        """What something may cost that begins; None if nothing limits it.

        Args:
            most_usd: What it may cost by itself; None without a limit.
            at_once: Among so many, with those that run, is shared what is left.

        Raises:
            LimitReachedError: Nothing is left.
        """
        if self.left_usd <= 0.0:
            raise self.used_up()
        limits = (math.inf if most_usd is None else most_usd, self.left_usd / max(1, at_once - self.claims))
        return None if math.isinf(min(limits)) else max(0.0, min(limits))

    def used_up(self) -> LimitReachedError:
        """Nothing is left, as an error with the fix."""
        running = (
            f", and {money(self.reserved_usd)} are set aside for running jobs" if self.reserved_usd else ""
        )
        return LimitReachedError(
            f"the budget of {money(self.budget_usd)} is used up: {money(self.spent_usd)} are spent{running}; raise "
            "the budget"
        )


def funds_of(spending: Spending, budget_usd: float | None, user: str | None = None) -> Funds:
    """A budget of a month: that of one user, or of all."""
    if user is not None:
        return Funds(budget_usd, spending.spent.get(user, 0.0), spending.reserved.get(user, 0.0))
    return Funds(budget_usd, math.fsum(spending.spent.values()), math.fsum(spending.reserved.values()))
