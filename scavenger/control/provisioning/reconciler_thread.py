"""Runs the reconciler periodically on a thread of its own until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

from scavenger.control.provisioning.reconciler import Reconciler


class ReconcilerThread:
    """Runs a reconciler in parallel to the job.

    Args:
        reconciler: The reconciler to run.
        failed: Called on the thread with the error of a failed iteration.
    """

    def __init__(self, reconciler: Reconciler, failed: Callable[[Exception], None]) -> None:
        self._reconciler = reconciler
        self._stopping, self._waking = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=reconciler.run,
            args=(self._stopping, failed),
            kwargs={"wake": self._waking},
            name="scavenger-fleet",
            daemon=True,
        )

    @property
    def acts(self) -> bool:
        """Whether this process holds the region's lease."""
        return self._reconciler.acts

    @property
    def denied(self) -> str:
        return self._reconciler.denied

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if not self._thread.ident:
            self._thread.start()

    def wake(self) -> None:
        """Start the next iteration at once."""
        self._waking.set()

    def stop(self, within_s: float) -> None:
        """Stop the thread, waiting at most `within_s` seconds for an iteration in progress."""
        self._stopping.set()
        self._waking.set()
        if self._thread.ident:
            self._thread.join(within_s)
