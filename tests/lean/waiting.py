"""Waits of tests: for what other processes and threads do, of which nobody tells."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 240.0
"""The machine may be shared, and only a test that fails waits for so long."""
_SOON_S = 5.0
_PAUSE_S, _PAUSE_MAX_S = 0.02, 0.1
"""Looking takes time of the processor that is waited for, so what takes longer is looked for less often."""


def eventually(what: Callable[[], Any], *, within_s: float = _SOON_S) -> Any:
    """Look until there is something, or for long enough; returns what was seen last, which says whether it came."""
    deadline = time.monotonic() + within_s
    while not (found := what()) and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
    return found


def wait_for(
    what: Callable[[], Any],
    process: subprocess.Popen[str] | None = None,
    *,
    within_s: float | None = None,
) -> Any:
    """Look until there is something, and return it.

    Args:
        process: What is to do it; nothing more is waited for once it has ended.
        within_s: None: `PATIENCE_S`.

    Raises:
        AssertionError: If it does not happen.
    """
    limit_s, pause_s = PATIENCE_S if within_s is None else within_s, _PAUSE_S
    deadline = time.monotonic() + limit_s
    while not (found := what()):
        if process is not None and process.poll() is not None:
            raise AssertionError(f"it ended first, {process.returncode}: {process.communicate()}")
        if time.monotonic() > deadline:
            if process is None:
                raise AssertionError(f"it did not happen within {limit_s:g} s")
            process.kill()
            raise AssertionError(f"it did not happen within {limit_s:g} s: {process.communicate()}")
        time.sleep(pause_s)
        pause_s = min(_PAUSE_MAX_S, 1.3 * pause_s)
    return found
