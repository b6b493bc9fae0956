"""A budget that several jobs share: what they have cost, and what is set aside for those that run here or elsewhere."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from scavenger.domain.forms import parse_money
from scavenger.errors import ConfigurationError, LimitReachedError
from scavenger.policy.funds import Funds
from scavenger.presentation.formatting import money
from scavenger.store.records import JobRecord

__all__ = ["Allowance", "Budget", "check_own_limit", "dollars", "own_limit_usd"]

_ROUNDING_USD = 1e-6
"""By how much sums of the same costs may differ."""


class Allowance:
    """What one job may cost, set aside until it has ended.

    Attributes:
        usd: US dollars; None without a limit.
        cost_usd: What it has cost; to be set at its end. None if that is not known: then all that was set aside counts.
        job_id: To be set if it goes on elsewhere: it is then set aside until `Budget.settle`.
        before_usd: What the job had cost before.
    """

    def __init__(self, usd: float | None, before_usd: float = 0.0) -> None:
        self.usd, self.before_usd, self.job_id = usd, before_usd, ""
        self.cost_usd: float | None = 0.0


class Budget:
    """US dollars that several jobs may cost together; safe to use from several threads.

    Args:
        usd: The budget; None without a limit.
        spent_usd: What was spent of it before; see `spent_before`.
    """

    def __init__(self, usd: float | None, spent_usd: float = 0.0) -> None:
        self.usd, self._spent_usd, self._before_usd = usd, spent_usd, spent_usd
        self._waiting: dict[Hashable, tuple[float, float]] = {}
        self._aside: list[Allowance] = []
        self._lock = threading.Lock()

    @property
    def spent_usd(self) -> float:
        """What ended jobs have cost, and VMs that waited between them."""
        return self._spent_usd + math.fsum(spent_usd for spent_usd, _ in tuple(self._waiting.values()))

    @property
    def left_usd(self) -> float:
        """What is neither spent nor set aside; infinite without a limit."""
        with self._lock:
            return self._funds().left_usd

    def _funds(self) -> Funds:
        aside = [more_usd for _, more_usd in self._waiting.values()]
        aside += [one.usd for one in self._aside if one.usd is not None]
        return Funds(self.usd, self.spent_usd, math.fsum(aside), len(self._aside))

    def spent_before(self, usd: float) -> None:
        """Note what others have spent of it by now, and set aside, in place of what was noted before."""
        with self._lock:
            self._spent_usd += usd - self._before_usd
            self._before_usd = usd

    def wait_for(
        self, what: Hashable, spent_usd: float, more_usd: float, *, returned_usd: float = 0.0
    ) -> bool:
        """Note what VMs have cost that waited between jobs, and set aside what they may cost yet.

        Args:
            what: Of whom; in place of what was noted before.
            spent_usd, more_usd: These costs.
            returned_usd: What a job that ends now will leave of what is set aside for it.

        Returns:
            Whether the budget has that; else nothing is set aside for them.
        """
        with self._lock:
            self._waiting[what] = (spent_usd, 0.0)
            if not self._funds().pays(more_usd - returned_usd):
                return False
            self._waiting[what] = (spent_usd, more_usd)
            return True

    @contextmanager
    def allowance(
        self, most_usd: float | None, *, at_once: int = 1, before_usd: float = 0.0
    ) -> Iterator[Allowance]:
        """Set aside what a job may cost while it runs; what it has cost is counted at the end.

        Args:
            most_usd, at_once: As of `Funds.grant`.
            before_usd: See `Allowance`.

        Raises:
            LimitReachedError: If nothing is left.
        """
        with self._lock:
            allowance = Allowance(self._funds().grant(most_usd, at_once=at_once), before_usd)
            self._aside.append(allowance)
        try:
            yield allowance
        finally:
            if not allowance.job_id:
                self._count(allowance)

    def settle(self, job_id: str, cost_since: Callable[[str, float], float | None]) -> None:
        """Count what a job that went on elsewhere has cost, instead of what was set aside for it.

        Args:
            job_id: Any job's; those of others are left alone.
            cost_since: Of a job, and what it had cost before; None if it is not known.
        """
        for allowance in [one for one in self._aside if one.job_id == job_id]:
            allowance.cost_usd = cost_since(job_id, allowance.before_usd)
            self._count(allowance)

    def _count(self, allowance: Allowance) -> None:
        with self._lock:
            self._aside.remove(allowance)
            cost_usd = allowance.usd if allowance.cost_usd is None else allowance.cost_usd
            self._spent_usd += cost_usd or 0.0


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


def dollars(given: str | float | None) -> float | None:
    """US dollars as a job file takes them, with or without `$`.

    Raises:
        ConfigurationError: If they are no amount.
    """
    if given is None:
        return None
    text = f"${given}" if isinstance(given, str) and not given.startswith("$") else given
    try:
        return parse_money(text)
    except ValueError as error:
        raise ConfigurationError(f"budget {error}", key="constraints.budget") from error
