"""A description of the machine on which figures were measured."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import psutil

from scavenger.cloud.local import LocalCloud

_WATCH_S = 2.0
_BUSY_MAX = 0.1
"""Largest load by other processes, over all processors: above it, they influence the figures."""
_LIBRARIES = ("keras", "tensorflow-cpu", "numpy", "pyzmq")


def conditions() -> dict[str, Any]:
    """The machine, its software, the day, and how busy it was before the measurement began."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": LocalCloud().hardware(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.system(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "busy_before": psutil.cpu_percent(interval=_WATCH_S) / 100.0,
    }


def describe(found: dict[str, Any]) -> str:
    """The conditions in a line."""
    libraries = ", ".join(f"{name} {number}" for name, number in found["libraries"].items())
    return (
        f"{found['hardware']}, {found['memory_bytes'] / 2**30:.0f} GiB; {found['system']}; "
        f"Python {found['python']}, {libraries}; {found['date']}; "
        f"processors {found['busy_before']:.0%} busy with other things before"
        + (" **(too busy: measure again)**" if found["busy_before"] > _BUSY_MAX else "")
    )
