"""The progress of a running job: a live display on terminals, plain lines everywhere else.

Both receive up to a few hundred steps per second. The live display keeps only the last one and redraws at a
fixed rate; the plain display writes a step every ten seconds at most, and more and more rarely unless it is verbose.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from scavenger.domain.report import Event, Noted, Observer, Predicted, WorkerChanged
from scavenger.pipelines.progress import LineProgress, LiveDisplay, is_live, is_plain, live_console
from scavenger.presentation.event_words import event_words
from scavenger_cli.ui.outlet import Outlet, unblocked

DRAIN_S = 2.0
"""Longest wait until the last lines are read."""


class CliObserver(Observer):
    """The base of all displays.

    Args:
        verbose: Show every event; else what a user waits for: phases, measurements, the choice, warnings, losses.
    """

    def __init__(self, *, verbose: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._verbose = clock, verbose

    def start(self) -> None:
        """Start the display, or restart it after `stop`."""

    def stop(self) -> None:
        """Remove the display from the terminal, for a question or at the end."""

    def say(self, line: str) -> None:
        """Show a line that is no event, such as a log record."""

    def limit(self, *, budget_usd: float | None = None, approved_usd: float | None = None) -> None:
        """Take what the job may cost, US dollars, where it is given."""

    def predict(self, predicted: Predicted) -> None:
        """Take what was predicted of the job before it was resumed."""

    @property
    def rows(self) -> int:
        """The number of terminal rows that are redrawn; safe in a signal handler."""
        return 0


class PlainObserver(CliObserver):
    """Lines with fixed first words, for files, pipes and screen readers."""

    def __init__(
        self, stream: TextIO, *, verbose: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(verbose=verbose, clock=clock)
        self._stream = stream
        write_step = stream.write_progress if isinstance(stream, Outlet) else None
        self._lines = LineProgress(stream, verbose=verbose, write_step=write_step, clock=clock)

    def on_event(self, event: Event) -> None:
        self._lines.on_event(event)

    def stop(self) -> None:
        _drain(self._stream)

    def say(self, line: str) -> None:
        self._lines.say(line)


class LiveObserver(CliObserver):
    """What is known of the job, redrawn; with `verbose` all events are printed above it, too."""

    def __init__(
        self, stream: TextIO, *, verbose: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(verbose=verbose, clock=clock)
        self._stream = stream
        self._display = LiveDisplay(live_console(stream), plain=is_plain(stream), clock=clock)

    def start(self) -> None:
        self._display.begin()

    def stop(self) -> None:
        self._display.end()
        _drain(self._stream)

    @property
    def rows(self) -> int:
        return self._display.drawn

    def limit(self, *, budget_usd: float | None = None, approved_usd: float | None = None) -> None:
        self._display.watch.limit(budget_usd=budget_usd, approved_usd=approved_usd)

    def predict(self, predicted: Predicted) -> None:
        self._display.watch.predict(predicted)

    def on_event(self, event: Event) -> None:
        self._display.on_event(event)
        if self._verbose and (line := event_words(event)) is not None:
            warn = (isinstance(event, Noted) and event.level == "warning") or isinstance(event, WorkerChanged)
            self._display.say(line, warning=warn)

    def say(self, line: str) -> None:
        self._display.say(line)


class QuietObserver(PlainObserver):
    """Shows only warnings and lost workers."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, WorkerChanged) or (isinstance(event, Noted) and event.level == "warning"):
            super().on_event(event)


def make_observer(stream: TextIO, *, quiet: bool = False, verbose: bool = False) -> CliObserver:
    """A live display if `stream` is a terminal, else plain lines; a reader that stops reading delays no job.

    Args:
        quiet: Show only warnings.
        verbose: Show every event.
    """
    outlet = unblocked(stream)
    if quiet:
        return QuietObserver(outlet)
    return (LiveObserver if is_live(stream) else PlainObserver)(outlet, verbose=verbose)


def _drain(stream: TextIO) -> None:
    """Wait until the text is written, before something else is written to the same terminal or pipe."""
    if isinstance(stream, Outlet):
        stream.drain(DRAIN_S)
