"""Has a worker run the job's callbacks when an epoch or step ends; training waits for its answer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from scavenger.errors import TrainingHungError
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.transport import messages as m


class CallbackRequests:
    """The request for a run of the callbacks, of which there is one at a time.

    It goes to one worker, to that of the run before if it still trains, and to another one only when the process of
    the first has ended: so no two run the callbacks at the same time. The owner repeats its request until there is an
    answer, since messages may be lost.

    Args:
        processes: The engine and the hub.
        limit_s: How long a run may take, seconds.
        warn: Warns the user.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        processes: Processes,
        registry: ProcessRegistry,
        *,
        limit_s: float,
        warn: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._processes, self._registry = processes, registry
        self._limit_s, self._warn, self._clock = limit_s, warn, clock
        self._request: m.RunCallbacks | None = None
        self._number = 0
        self._worker = ""
        self._asked_at = 0.0
        self._told = False

    def ask(self, request: m.RunCallbacks) -> None:
        """Send a request, or send it again; the number of the request is set here."""
        new = self._request is None or not request.repeats(self._request)
        if new:
            self._number += 1
            self._request = msgspec.structs.replace(request, number=self._number)
        running = self._worker in self._processes.engine.running
        if new or not running:
            able = self._registry.in_states("training") or self._registry.in_states("ready")
            if not able:
                return  # it is asked again
            self._worker = self._worker if self._worker in able else able[0]
            self._asked_at = self._clock()
            self._tell_where()
        assert self._request is not None
        self._processes.send(self._worker, self._request)

    def take(self, peer: str, answer: m.CallbacksRun) -> bool:
        """Handle an answer; returns whether it is the one that is awaited."""
        if self._request is None or (peer, answer.number) != (self._worker, self._number):
            return False
        self._request = None
        return True

    def forget(self) -> None:
        """Withdraw the request, since the epoch that it was about is undone."""
        self._request = None

    def watch(self, now: float) -> None:
        """End the job if a run takes too long.

        Raises:
            TrainingHungError: If it does.
        """
        if (
            self._request is None
            or self._worker not in self._processes.engine.running
            or now - self._asked_at <= self._limit_s
        ):
            return
        self._processes.show_stack(self._worker)
        raise TrainingHungError(
            f"the callbacks of epoch {self._request.epoch + 1}, step {self._request.step}, did not end within "
            f"{self._limit_s:.0f} s (limits.callbacks); the stack of {self._worker} is in "
            f"{self._processes.engine.log(self._worker)}"
        )

    def _tell_where(self) -> None:
        engine = self._processes.engine
        host = engine.host(self._worker)
        if not self._told and host != engine.leader_host:
            self._told = True
            self._warn(
                f"callbacks run in a worker, now on {host}: what they write to a local path stays there; name a path "
                "that all workers share, or a URL where Keras takes one"
            )
