"""Processes that hold leases on this machine: whether they live, and their end."""

from __future__ import annotations

import contextlib
import signal

import psutil

from scavenger.control.provisioning.lease_holder import is_known_dead
from scavenger.policy.runners import Holder

__all__ = ["end_holder", "state_of"]

_TOLERANCE_S = 2.0
"""Tolerance in comparing start times, as in `scavenger.store.owner`."""


def state_of(holder: str) -> Holder:
    """Whether the holder of a lease may live."""
    return "dead" if not holder or is_known_dead(holder) else "alive"


def end_holder(holder: str, number: signal.Signals) -> None:
    """Send a signal to the holder of a lease; no effect if it has ended, or is a process of another machine."""
    with contextlib.suppress(ValueError, psutil.Error):
        _, pid, started_at_s = holder.rsplit("/", 2)
        process = psutil.Process(int(pid))
        if abs(process.create_time() - float(started_at_s)) < _TOLERANCE_S:
            process.send_signal(number)
