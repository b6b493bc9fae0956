"""How long the step or evaluation in progress takes, and how long nothing has happened."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

_REPEAT_S = 1.0
"""Time without progress after which pending requests are repeated."""


class SequencerTimer:
    """Times of the sequencer, monotonic seconds; a time of 0 means that there is none."""

    def __init__(self) -> None:
        self._step_since = self._evaluation_since = 0.0
        self._progress_at = self._repeated_at = time.perf_counter()

    def ordered(self, action: str) -> None:
        """Record an order to a worker: the first one after the start or an evaluation begins a step."""
        if action == "train" and self._evaluation_since:
            self._evaluation_since, self._step_since = 0.0, time.perf_counter()
        elif self._step_since == 0.0:
            self._step_since = time.perf_counter()

    def progressed(self) -> None:
        """Begin to wait for something new."""
        self._progress_at = time.perf_counter()

    def step_ended(self) -> float:
        """Begin the next step; returns the time that the last one took."""
        began, self._step_since = self._step_since, time.perf_counter()
        self._progress_at = self._step_since
        return self._step_since - began

    def evaluation_began(self) -> None:
        """Count the time since the end of the step as that of an evaluation."""
        self._evaluation_since = self._step_since

    def evaluation_ended(self) -> float:
        """Return the time that the evaluation took."""
        self._progress_at = now = time.perf_counter()
        return now - (self._evaluation_since or now)

    @property
    def waiting_s(self) -> float:
        """Time since the last progress."""
        return time.perf_counter() - self._progress_at

    def is_repeat_due(self) -> bool:
        """Whether nothing has happened and nothing was repeated for a second."""
        return time.perf_counter() - max(self._progress_at, self._repeated_at) > _REPEAT_S

    @contextlib.contextmanager
    def repeating(self) -> Iterator[None]:
        """Repeat requests meanwhile, which is no progress: the wait goes on since the first request."""
        self._repeated_at, progress_at = time.perf_counter(), self._progress_at
        yield
        self._progress_at = progress_at
