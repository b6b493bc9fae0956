"""The values of the page of budgets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from scavenger.domain.submission import Spending
from scavenger.policy.admission import QueueLimits
from scavenger.policy.funds import Funds, funds_of
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
        _line(name, funds_of(spending, limits.budget_of(name), name))
        for name in names
        if only in (None, name)
    )
    total = _line("all users", funds_of(spending, limits.budget_usd)) if only is None else None
    return BudgetsPage(lines, total, f"{since:%B %Y} (UTC)", moment_of(now, now))


def _line(who: str, funds: Funds) -> BudgetLine:
    return BudgetLine(
        clean(who),
        "no limit" if funds.budget_usd is None else money(funds.budget_usd),
        money(funds.spent_usd),
        money(funds.reserved_usd),
        "-" if funds.budget_usd is None else money(funds.left_usd),
        spent_meter(funds.spent_usd + funds.reserved_usd, funds.budget_usd),
    )
