"""The progress of a running job: a live display on terminals, plain lines everywhere else.

Both receive up to a few hundred steps per second. The live display keeps only the last one and redraws at a
fixed rate; the plain display writes a step every ten seconds at most, and more and more rarely unless it is verbose.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from scavenger.domain.report import (
    EpochEnded,
    EpochsForecast,
    Event,
    Forecasted,
    Noted,
    Observer,
    PhaseChanged,
    Predicted,
    StepDone,
    ViewChanged,
    WorkerChanged,
)
from scavenger.pipelines.progress import LiveDisplay, is_live, is_plain, live_console
from scavenger.presentation.event_words import event_words
from scavenger.presentation.formatting import beside_target, clean, duration, money, quantity
from scavenger_cli.ui.outlet import Outlet, unblocked

PLAIN_INTERVAL_S = 10.0
"""Shortest time between two lines about steps."""
PLAIN_INTERVAL_MAX_S = 300.0
"""Longest time between two lines about steps: a job that hangs is noticed."""
PLAIN_GROWTH = 0.5
"""The time between two lines about steps as a share of the phase so far: five lines tell its first minute, and about
twenty its first hour."""
DRAIN_S = 2.0
"""Longest wait until the last lines are read."""


class CliObserver(Observer):
    """The base of all displays: it remembers the goal's metric and describes steps.

    Args:
        verbose: Show every event; else what a user waits for: phases, measurements, the choice, warnings, losses.
    """

    def __init__(self, *, verbose: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._verbose = clock, verbose
        self._goal: tuple[str, float | None] | None = None
        self._metric: float | None = None
        self._forecast: EpochsForecast | None = None

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

    def _remember(self, event: Event) -> None:
        if isinstance(event, Forecasted):
            self._forecast = event.forecast
        if isinstance(event, EpochEnded) and event.goal_metric is not None:
            self._goal = (event.goal_metric, event.target)
            self._metric = event.record.metrics.get(event.goal_metric)

    def _line(self, event: Event) -> str | None:
        """An event in one line; None if it is not shown."""
        if isinstance(event, ViewChanged | EpochEnded | Forecasted) and not self._verbose:
            return None
        return event_words(event)

    def _metric_words(self) -> str:
        if self._goal is None:
            return ""
        name, target = self._goal
        value, towards = beside_target(self._metric, target)
        return f"{clean(name)} {value}{f' (target {towards})' if towards else ''}"

    def _of_epochs(self) -> str:
        if self._forecast is None:
            return ""
        if not self._forecast.is_known:
            return " (end not known yet)"
        low, high = self._forecast.epochs_interval
        return f" of about {self._forecast.epochs:.0f} ({low:.0f}-{high:.0f})"

    def _step_words(self, event: StepDone) -> tuple[str, str]:
        """Two rows: the step with its configuration and time, and the loss, metric and cost so far."""
        record = event.record
        did = (
            f"step {record.step}",
            f"epoch {record.epoch + 1}{self._of_epochs()}",
            f"{record.workers} x batch {record.global_batch_size}",
            f"{duration(record.step_time_s)} a step",
        )
        so_far = (f"loss {quantity(record.loss)}", self._metric_words(), money(event.cost_usd))
        return ", ".join(did), ", ".join(word for word in so_far if word)


class PlainObserver(CliObserver):
    """Lines with fixed first words, for files, pipes and screen readers."""

    def __init__(
        self, stream: TextIO, *, verbose: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(verbose=verbose, clock=clock)
        self._stream = stream
        self._since = clock()
        self._next_at = float("-inf")

    def on_event(self, event: Event) -> None:
        self._remember(event)
        now = self._clock()
        if isinstance(event, StepDone):
            if now >= self._next_at:
                grown_s = (
                    0.0 if self._verbose else min(PLAIN_GROWTH * (now - self._since), PLAIN_INTERVAL_MAX_S)
                )
                self._next_at = now + max(PLAIN_INTERVAL_S, grown_s)
                self._write(self._plain_step(event), progress=True)
            return
        if isinstance(event, PhaseChanged):
            self._since = now
        line = self._line(event)
        if line is not None:
            self._write(line)

    def _plain_step(self, event: StepDone) -> str:
        """A step in one line; of 80 columns if it is not verbose."""
        share = "" if event.progress is None else f"{100 * event.progress:.0f} %"
        did, so_far = self._step_words(event)
        if self._verbose:
            return ", ".join(word for word in (did, so_far, share) if word)
        if self._forecast is not None and not self._forecast.is_known:
            share = ""  # of a whole that may be anything
        record = event.record
        epoch = f"epoch {record.epoch + 1}{self._of_epochs()}"
        value = "" if self._goal is None else f"{clean(self._goal[0])} {quantity(self._metric)}"
        words = (f"step {record.step}", share, epoch, value or f"loss {quantity(record.loss)}")
        return ", ".join(word for word in (*words, money(event.cost_usd)) if word)

    def stop(self) -> None:
        _drain(self._stream)

    def say(self, line: str) -> None:
        self._write(line)

    def _write(self, line: str, *, progress: bool = False) -> None:
        text = clean(line) + "\n"
        try:
            if progress and isinstance(self._stream, Outlet):
                self._stream.write_progress(text)
                return
            self._stream.write(text)
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            pass  # the reader is gone: that must not end the training


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
        if self._verbose and (line := self._line(event)) is not None:
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
