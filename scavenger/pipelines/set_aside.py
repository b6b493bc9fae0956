"""What a client has set aside for jobs that others run, until their bills are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from scavenger.errors import LimitReachedError
from scavenger.pipelines.budget import Allowance, Budget
from scavenger.presentation.formatting import money
from scavenger.store.records import JobRecord

__all__ = ["Handing", "SetAside", "check_own_limit", "own_limit_usd"]

_ROUNDING_USD = 1e-6
"""By how much sums of the same costs may differ."""


class Handing:
    """A job that is being handed over.

    Attributes:
        usd: What it may cost; None without a limit.
        job_id: Its id; to be set once it is handed over, else nothing stays set aside.
    """

    def __init__(self, usd: float | None) -> None:
        self.usd, self.job_id = usd, ""


@dataclass(frozen=True, slots=True)
class _Handed:
    allowance: Allowance
    until_settled: ExitStack
    before_usd: float


class SetAside:
    """What is set aside of a budget for jobs that others run; safe to use from several threads."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._handed: dict[str, _Handed] = {}

    @contextmanager
    def handing(self, most_usd: float | None, before_usd: float = 0.0) -> Iterator[Handing]:
        """Set aside what a job may cost, for as long as it is not settled.

        Args:
            most_usd: What it may cost by itself from now on; None without a limit.
            before_usd: What it had cost before.

        Raises:
            LimitReachedError: If nothing is left.
        """
        with ExitStack() as undo:
            allowance = undo.enter_context(self._budget.allowance(most_usd))
            handing = Handing(allowance.usd)
            yield handing
            if handing.job_id:
                self._handed[handing.job_id] = _Handed(allowance, undo.pop_all(), before_usd)

    def settle(self, job_id: str, cost_since: Callable[[str, float], float | None]) -> None:
        """Count what a job that has ended has cost, instead of what was set aside for it.

        Args:
            job_id: Any job's; those of others are left alone.
            cost_since: Of a job, and what it had cost before; None if it is not known.
        """
        if (found := self._handed.pop(job_id, None)) is not None:
            with found.until_settled:
                found.allowance.cost_usd = cost_since(job_id, found.before_usd)


def own_limit_usd(record: JobRecord, before_usd: float) -> float | None:
    """What a job may cost from now on by its own budget; None if it has none."""
    own: float | None = record.spec.get("constraints", {}).get("budget")
    return None if own is None else max(0.0, own - before_usd)


def check_own_limit(record: JobRecord, before_usd: float, left_usd: float | None) -> None:
    """Refuse to have a job go on whose own budget, which a server keeps to, is more than what is left.

    Args:
        left_usd: None without a limit.

    Raises:
        LimitReachedError: It is.
    """
    own_usd = own_limit_usd(record, before_usd)
    if left_usd is not None and (own_usd is None or own_usd > left_usd + _ROUNDING_USD):
        own = (
            "has no budget of its own" if own_usd is None else f"has {money(own_usd)} left by its own budget"
        )
        raise LimitReachedError(
            f"job {record.name} ({record.id[:8]}) {own}, to which its server keeps, and {money(left_usd)} are left "
            "for it: raise the budget"
        )
