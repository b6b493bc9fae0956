"""A budget that several jobs share: what they have cost, and what is set aside for those that run."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from scavenger.domain.forms import parse_money
from scavenger.errors import ConfigurationError
from scavenger.policy.funds import Funds

__all__ = ["Allowance", "Budget", "dollars"]


class Allowance:
    """What one job may cost, set aside until it has ended.

    Attributes:
        usd: US dollars; None without a limit.
        cost_usd: What it has cost; to be set at its end. None if that is not known: then all that was set aside counts.
    """

    def __init__(self, usd: float | None) -> None:
        self.usd = usd
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
        self._aside: dict[int, float] = {}
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
        aside = (*(more_usd for _, more_usd in self._waiting.values()), *self._aside.values())
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
    def allowance(self, most_usd: float | None, *, at_once: int = 1) -> Iterator[Allowance]:
        """Set aside what a job may cost while it runs; what it has cost is counted at the end.

        Args:
            most_usd, at_once: As of `Funds.grant`.

        Raises:
            LimitReachedError: If nothing is left.
        """
        with self._lock:
            allowance = Allowance(self._funds().grant(most_usd, at_once=at_once))
            self._aside[id(allowance)] = allowance.usd or 0.0
        try:
            yield allowance
        finally:
            with self._lock:
                aside = self._aside.pop(id(allowance))
                self._spent_usd += aside if allowance.cost_usd is None else allowance.cost_usd


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
