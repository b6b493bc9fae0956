"""The values of the page of budgets."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from scavenger.domain.submission import Spending
from scavenger.policy.admission import QueueLimits
from scavenger.presentation.formatting import clean, money
from scavenger.server.dashboard.words import Meter, Moment, spent_meter
from scavenger.server.dashboard.words import moment as moment_of


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """The budget of one user, or of all.

    Attributes:
        budget: What may be spent in the period; `no limit` if nothing says.
        used: Cost of the jobs so far.
        set_aside: What those that run may still cost, where they have a limit.
        left: What other jobs may cost; `-` without a budget.
        meter: Used and set aside as a share of the budget; None without one.
    """

    who: str
    budget: str
    used: str
    set_aside: str
    left: str
    meter: Meter | None


@dataclass(frozen=True, slots=True)
class BudgetsPage:
    """Budgets of users, and of all.

    Attributes:
        lines: By user.
        total: Of all users; None for a user who sees only their own.
        period: The month that counts.
    """

    lines: tuple[BudgetLine, ...]
    total: BudgetLine | None
    period: str
    at: Moment


def budgets_page(
    spending: Spending,
    limits: QueueLimits,
    users: Collection[str],
    *,
    only: str | None,
    since: datetime,
    now: datetime,
) -> BudgetsPage:
    """The page of budgets.

    Args:
        spending: Of the period.
        limits: Of the server.
        users: Who may use it; those whose jobs cost something, or who have a budget, are shown, too.
        only: The one user whose budget may be seen; None for all.
        since: Begin of the period.
        now: With a time zone.
    """
    names = sorted({*users, *spending.spent, *spending.reserved, *limits.user_budgets_usd})
    lines = tuple(
        _line(name, limits.budget_of(name), spending.spent.get(name, 0.0), spending.reserved.get(name, 0.0))
        for name in names
        if only in (None, name)
    )
    spent, reserved = (math.fsum(usd.values()) for usd in (spending.spent, spending.reserved))
    total = _line("all users", limits.budget_usd, spent, reserved) if only is None else None
    return BudgetsPage(lines, total, f"{since:%B %Y} (UTC)", moment_of(now, now))


def _line(who: str, budget_usd: float | None, spent_usd: float, reserved_usd: float) -> BudgetLine:
    committed_usd = spent_usd + reserved_usd
    return BudgetLine(
        clean(who),
        "no limit" if budget_usd is None else money(budget_usd),
        money(spent_usd),
        money(reserved_usd),
        "-" if budget_usd is None else money(max(0.0, budget_usd - committed_usd)),
        spent_meter(committed_usd, budget_usd),
    )
