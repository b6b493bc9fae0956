"""How long the coordinator waits: for workers that start, and for what the sequencer waits for."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from scavenger.elastic.liveness import evaluation_limit_s
from scavenger.train.transport.messages.coordination import Brief
from scavenger.train.transport.messages.reports import Beat


class SequencerProgress:
    """The progress of training, from the sequencer's heartbeats.

    Attributes:
        beat: The last heartbeat.
        step_time_s: How long a step takes, seconds; 0 if unknown.
        validation_size: Number of samples of an evaluation.
    """

    def __init__(self) -> None:
        self.beat = Beat()
        self.step_time_s = 0.0
        self.validation_size = 0
        self._stepped: tuple[int, float] | None = None

    def heard(self, beat: Beat, now: float) -> None:
        """Handle a heartbeat of the sequencer."""
        self.beat = beat
        if self._stepped is not None and beat.step > self._stepped[0]:
            steps, since = beat.step - self._stepped[0], now - self._stepped[1]
            self.step_time_s = since / steps
        if self._stepped is None or beat.step != self._stepped[0]:
            self._stepped = (beat.step, now)

    def limit_s(self, brief: Brief, *, workers: int, global_batch_size: int | None) -> float:
        """Return the time limit of the step or evaluation that the sequencer waits for, seconds.

        Args:
            brief: The job's limits.
            workers: Number of workers that train.
            global_batch_size: The requested batch size; None before the first request.
        """
        if not self.beat.evaluating:
            return brief.step_s
        if brief.evaluation_s is not None:
            return brief.evaluation_s
        workers = max(1, workers)
        return evaluation_limit_s(
            self.validation_size,
            workers=workers,
            global_batch_size=workers if global_batch_size is None else global_batch_size,
            step_s=brief.step_s,
            step_time_s=self.step_time_s,
        )

    def overdue(self, limit_s: float) -> tuple[Beat, str, str]:
        """Stop to wait, since the time limit has passed.

        Returns:
            The last heartbeat, what it waits for, and that with the limit, in words.
        """
        beat, self.beat = self.beat, Beat(step=self.beat.step)
        what, key = f"step {beat.step + 1}", "limits.step"
        if beat.evaluating:
            what, key = f"the evaluation after step {beat.step}", "limits.evaluation"
        return beat, what, f"within {limit_s:.0f} s ({key})"


class StartTimes:
    """When each worker was launched, and since when it can connect to all aggregators; monotonic seconds."""

    def __init__(self) -> None:
        self._launched_at: dict[str, float] = {}
        self._connectable_at = 0.0

    def launched(self, worker: str, now: float) -> None:
        """Record the launch of a worker."""
        self._launched_at[worker] = now

    def slow(
        self, starting: Iterable[str], now: float, limit_s: float, *, connectable: bool
    ) -> tuple[str, ...]:
        """Return the workers that take longer to start than the limit.

        Args:
            starting: The workers that are not ready.
            now: Monotonic seconds.
            limit_s: The limit, seconds.
            connectable: Whether all aggregators can be reached. A worker that waits for aggregators, which may
                still boot, is not slow.
        """
        if not connectable:
            self._connectable_at = now
        return tuple(
            worker
            for worker in starting
            if now - max(self._launched_at[worker], self._connectable_at) > limit_s
        )

    def keep(self, workers: Collection[str]) -> None:
        """Drop all other workers."""
        self._launched_at = {name: at for name, at in self._launched_at.items() if name in workers}
