"""Ending pools of aggregators."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
from waiting import eventually


def end_pool(folder: Path) -> None:
    """End all managers of a pool.

    There may be several: each job that misses one starts one, and those that come late give up only if another serves
    by then.
    """
    assert eventually(lambda: not _end_managers(folder), within_s=60.0), "a manager was left behind"


def _end_managers(folder: Path) -> int:
    """Ask all to end that run; returns their number."""
    found = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                process.terminate()
                found += 1
    return found
