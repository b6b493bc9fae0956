"""What the VM of a job's leader costs, as a process on that VM knows it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from scavenger.domain.cost import LedgerEntry
from scavenger.errors import ConfigurationError

LEADER_VARIABLE = "SCAVENGER_LEADER"
"""Environment variable of a leader's VM: its type, its price, when it was launched, and its zone; see `leader_text`."""


@dataclass(frozen=True, slots=True)
class LeaderPrice:
    """The VM on which a job is led: there is no other job on it.

    Attributes:
        usd_per_hour: Price of the VM with its extras.
        launched_at_s: Seconds since the epoch.
    """

    vm: str
    usd_per_hour: float
    launched_at_s: float

    def used(self, now_s: float) -> LedgerEntry:
        """What it has cost since its launch; `now_s` is seconds since the epoch."""
        seconds = max(0.0, now_s - self.launched_at_s)
        return LedgerEntry(seconds, seconds / 3600.0 * self.usd_per_hour, self.vm)


def leader_text(vm: str, usd_per_hour: float, launched_at_s: float, zone: str = "") -> str:
    """The value of the variable.

    Args:
        usd_per_hour: Price of the VM with its extras.
        launched_at_s: Seconds since the epoch.
        zone: Where the VM is; empty if that is not known.
    """
    return f"{vm} {usd_per_hour:.8g} {launched_at_s:.0f} {zone}".rstrip()


def leader_zone(environment: Mapping[str, str]) -> str:
    """The zone of the VM on which this process runs; empty if it is no leader's, or its zone is not known."""
    words = environment.get(LEADER_VARIABLE, "").split()
    return words[3] if len(words) > 3 else ""


def leader_of(environment: Mapping[str, str]) -> LeaderPrice | None:
    """The VM on which this process runs; None if it is no leader's.

    Args:
        environment: Environment variables.

    Raises:
        ConfigurationError: The variable cannot be read.
    """
    text = environment.get(LEADER_VARIABLE)
    if not text:
        return None
    try:
        vm, price, launched, *_ = text.split()
        found = LeaderPrice(vm, float(price), float(launched))
        if not 0.0 < found.usd_per_hour < math.inf:
            raise ValueError(price)
        return found
    except ValueError:
        raise ConfigurationError(f"{LEADER_VARIABLE}={text}: not a VM type, a price and a time") from None


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch as of now, which go on by the monotonic clock: what is billed depends on no jump."""
    ahead_s = datetime.now(UTC).timestamp() - time.monotonic()
    return lambda: time.monotonic() + ahead_s
