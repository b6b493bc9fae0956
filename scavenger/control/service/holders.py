"""Processes that hold leases on this machine: whether they live, and their end."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from scavenger.control.provisioning.lease_holder import process_of
from scavenger.policy.runners import Holder
from scavenger.store.owner import fate


def state_of(holder: str) -> Holder:
    """Whether the holder of a lease lives, as far as that can be told; `unseen` if it was one of another machine."""
    if not holder:
        return "dead"
    process = process_of(holder)
    return "alive" if process is None else fate(process)


def end_holder(holder: str, number: signal.Signals) -> None:
    """Send a signal to the holder of a lease; no effect if it has ended, or is a process of another machine."""
    process = process_of(holder)
    if process is not None and fate(process) == "alive":
        with suppress(OSError):
            os.kill(process.pid, number)
