"""Counts what the VM of a job's leader costs, on that VM, and records it for the job's bill."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from scavenger.domain.cost import LeaderUse
from scavenger.errors import ConfigurationError
from scavenger.store import Store

LEADER_VARIABLE = "SCAVENGER_LEADER"
"""Environment variable of a leader's VM: its type, its price, when it was launched, and its zone; see `leader_text`."""

_KIND = "leader"
"""Kind of the event that holds what the leader's VM has cost so far."""
_RECORD_S = 60.0


def leader_text(vm: str, usd_per_hour: float, launched_at_s: float, zone: str = "") -> str:
    """The value of the variable.

    Args:
        vm: VM type.
        usd_per_hour: Price of the VM with its disk.
        launched_at_s: Seconds since the epoch.
        zone: Where the VM is; empty if that is not known.
    """
    return f"{vm} {usd_per_hour:.8g} {launched_at_s:.0f} {zone}".rstrip()


def leader_zone(environment: Mapping[str, str]) -> str:
    """The zone of the VM on which this process runs; empty if it is no leader's, or its zone is not known."""
    words = environment.get(LEADER_VARIABLE, "").split()
    return words[3] if len(words) > 3 else ""


def leader_of(environment: Mapping[str, str], now_s: float) -> LeaderUse | None:
    """What the VM on which this process runs has cost; None if it is no leader's.

    Args:
        environment: Environment variables.
        now_s: Seconds since the epoch.

    Raises:
        ConfigurationError: The variable cannot be read.
    """
    text = environment.get(LEADER_VARIABLE)
    if not text:
        return None
    try:
        vm, price, launched, *_ = text.split()
        return LeaderUse(vm, max(0.0, now_s - float(launched)), float(price))
    except ValueError:
        raise ConfigurationError(f"{LEADER_VARIABLE}={text}: not a VM type, a price and a time") from None


def recorded_leader(store: Store, job_id: str) -> LeaderUse | None:
    """What the leader's VM of a job has cost; None if it had none."""
    found = store.events(job_id, limit=1, kind=_KIND)
    if not found:
        return None
    return leader_use(found[0].data)


def leader_use(data: Mapping[str, Any]) -> LeaderUse:
    """What the event tells of a leader's VM.

    Raises:
        ConfigurationError: It tells no cost: a leader that is not ours may say anything.
    """
    try:
        return LeaderUse(str(data["vm"]), float(data["seconds"]), float(data["usd_per_hour"]))
    except (KeyError, TypeError, ValueError):
        raise ConfigurationError(f"the cost of a leader's VM cannot be read: {str(data)[:80]}") from None


class LeaderMeter:
    """The cost of the VM that leads one job, from its launch on: there is no other job on it.

    Args:
        environment: Environment variables.
        before_usd: What was counted in earlier attempts.
        clock: Seconds since the epoch; by default a clock that no correction of the date moves.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        before_usd: float = 0.0,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._environment, self._before_usd = environment, before_usd
        self._clock = _steady_clock() if clock is None else clock
        self._recorded_at_s = 0.0

    @property
    def use(self) -> LeaderUse | None:
        """So far; None if this is no leader's VM."""
        return leader_of(self._environment, self._clock())

    @property
    def attempt_usd(self) -> float:
        """Cost in this attempt; the first one has the time of the boot, too."""
        use = self.use
        return 0.0 if use is None else max(0.0, use.usd - self._before_usd)

    def record(self, store: Store, job_id: str, now_s: float, *, at_once: bool = False) -> None:
        """Record the cost, about once a minute.

        Raises:
            StoreBusyError, StoreReadOnlyError, StoreUnavailableError: Try again later.
        """
        use = self.use
        if use is None or not (at_once or now_s - self._recorded_at_s >= _RECORD_S):
            return
        text = f"leader's VM ({use.vm}): ${use.usd:.4f}"
        store.add_event(job_id, _KIND, text, data=asdict(use), replacing=True)
        self._recorded_at_s = now_s


def _steady_clock() -> Callable[[], float]:
    """Seconds since the epoch as of now, which go on by the monotonic clock: what is billed depends on no jump."""
    ahead_s = datetime.now(UTC).timestamp() - time.monotonic()
    return lambda: time.monotonic() + ahead_s
