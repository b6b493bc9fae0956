"""Failpoints: named points in the code where `SCAV_FAIL=name:kill|stop|raise@n[,...]` injects a fault.

The n-th time (from 1) that a process reaches the point, it kills itself, stops itself (SIGSTOP) or raises an exception.
`NAME/process` limits the fault to one process, such as `worker.computed/w1:kill@3`. Without the environment
variable, failpoints do nothing.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

VARIABLE = "SCAV_FAIL"

POINTS = (
    "worker.joining",
    "worker.leased",
    "worker.computed",
    "worker.pushed_some",
    "worker.pushed",
    "worker.reducing",
    "worker.reduced",
    "worker.pulling",
    "worker.evaluated",
    "worker.called",
    "aggregator.received",
    "aggregator.applying",
    "aggregator.applied",
    "aggregator.published",
    "aggregator.saving",
    "aggregator.copying",
    "aggregator.copied_some",
    "aggregator.copied",
    "aggregator.took",
    "sequencer.copying",
    "sequencer.adopting",
    "sequencer.adopted",
    "coordinator.greeted",
    "coordinator.announced",
    "coordinator.installed",
    "coordinator.lost",
)


class FailpointError(RuntimeError):
    """The exception that a failpoint with the action `raise` raises."""


@dataclass(slots=True)
class _Fault:
    action: str
    left: int


_faults: dict[str, _Fault] = {}


def load_failpoints(process: str) -> None:
    """Arm the faults that the environment variable requests for this process.

    Raises:
        ValueError: If it names an unknown failpoint or action: a test whose fault cannot fire proves nothing.
    """
    _faults.clear()
    for entry in filter(None, os.environ.get(VARIABLE, "").split(",")):
        where, _, rest = entry.partition(":")
        name, _, only = where.partition("/")
        action, _, count = rest.partition("@")
        if name not in POINTS or action not in ("kill", "stop", "raise") or not (count or "1").isdigit():
            raise ValueError(f"{VARIABLE} has no {entry!r}")
        if only in ("", process):
            _faults[name] = _Fault(action, int(count or "1"))


def fail_here(name: str) -> None:
    """Inject the fault that is armed for this failpoint, if there is one and its turn has come."""
    if not _faults:
        return
    fault = _faults.get(name)
    if fault is None:
        return
    fault.left -= 1
    if fault.left != 0:
        return
    os.write(2, f"failpoint {name}: {fault.action}\n".encode())  # unbuffered: the process may die next
    if fault.action == "raise":
        raise FailpointError(name)
    os.kill(os.getpid(), signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)
