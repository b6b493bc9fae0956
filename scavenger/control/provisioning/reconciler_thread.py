"""The reconciler on a thread of its own, which looks again and again until it is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

from scavenger.control.provisioning.reconciler import Reconciler

__all__ = ["ReconcilerThread"]


class ReconcilerThread:
    """Runs a reconciler beside the job.

    Args:
        reconciler: What looks.
        failed: Called from the thread with what went wrong in a look.
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
        """Whether this process acts for the region, and no other one does."""
        return self._reconciler.acts

    def start(self) -> None:
        """Begin to look. Idempotent."""
        if not self._thread.ident:
            self._thread.start()

    def wake(self) -> None:
        """Have it look at once."""
        self._waking.set()

    def stop(self, within_s: float) -> None:
        """Look no more; waits at most so long for a look that is under way."""
        self._stopping.set()
        self._waking.set()
        if self._thread.ident:
            self._thread.join(within_s)
