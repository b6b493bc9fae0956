"""Progress of jobs in notebooks and terminals."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from html import escape
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from scavenger.domain import report as report
from scavenger.presentation.event_words import event_words
from scavenger.presentation.formatting import beside_target, clean, duration, money, quantity
from scavenger.presentation.live import COLUMNS_MAX, ROWS_MAX, JobWatch, Row, cells, rows

if TYPE_CHECKING:
    from rich.console import Console, ConsoleRenderable, RenderableType

__all__ = [
    "LineProgress",
    "LiveDisplay",
    "NotebookProgress",
    "Observers",
    "is_live",
    "is_plain",
    "live_console",
    "new_live",
    "shown_progress",
]

_REDRAW_S = 0.125
"""Time between two drawings: as many as the eye follows, so that training is not slowed."""
LINE_S = 10.0
"""Shortest time between two lines about steps."""
LINE_MAX_S = 300.0
"""Longest time between two lines about steps: a job that hangs is noticed."""
_LINE_GROWTH = 0.5
"""The time between two lines about steps as a share of the phase so far: five lines tell its first minute, and about
twenty its first hour."""


class Observers(report.Observer):
    """Passes events on to several observers."""

    def __init__(self, observers: Sequence[report.Observer]) -> None:
        self._observers = tuple(observers)

    def on_event(self, event: report.Event) -> None:
        """See `Observer`."""
        for observer in self._observers:
            observer.on_event(event)


def is_live(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a stream is a terminal whose rows can be redrawn, before somebody who looks at it."""
    try:
        drawn = stream.isatty() and environ.get("TERM", "") not in ("dumb", "unknown")
    except ValueError:  # closed
        return False
    return drawn and environ.get("CI", "").lower() in ("", "0", "false")


def is_plain(stream: TextIO) -> bool:
    """Whether a stream can show ASCII alone."""
    return not (stream.encoding or "").lower().startswith("utf")


def live_console(stream: TextIO) -> Console:
    """The console of a terminal that is redrawn; it interprets no text, and NO_COLOR has it without colours."""
    from rich.console import Console, ConsoleDimensions

    class OfStream(Console):
        """Has the size of its own terminal, as it is now: standard streams may lead elsewhere."""

        @property  # type: ignore[misc]
        def size(self) -> ConsoleDimensions:
            try:
                columns, lines = os.get_terminal_size(stream.fileno())
            except (OSError, ValueError):
                return super().size
            return ConsoleDimensions(columns, lines) if columns and lines else super().size

    return OfStream(
        file=stream, force_terminal=True, markup=False, emoji=False, highlight=False, legacy_windows=False
    )


def new_live(console: Console, shown: Callable[[], list[Row]], *, over_prints: bool) -> _Live:
    """Rows that are redrawn, below what is printed meanwhile; not begun yet.

    Args:
        shown: Gives the rows.
        over_prints: Whether Python's standard streams, where they are a terminal, print above.
    """
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    styles = {"": "", "bold": "bold", "dim": "dim", "warning": "yellow"}

    class Resized(Live):
        """Erases what it has drawn also where a terminal that was made narrower has wrapped it."""

        drawn: tuple[int, ...] = ()
        _next: tuple[int, ...] = ()

        def get_renderable(self) -> RenderableType:
            found = shown()
            self._next = tuple(cells(row.text) for row in found)
            texts = (Text(row.text, style=styles[row.style], no_wrap=True, overflow="crop") for row in found)
            return Group(*texts)

        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            with self._lock:
                if self.drawn and self._live_render._shape is not None:
                    width = self.console.width
                    wrapped = sum(max(1, -(-taken // width)) for taken in self.drawn)
                    self._live_render._shape = (width, wrapped)
                made = super().process_renderables(renderables)
                self.drawn = self._next
            return made

    return Resized(
        console=console,
        refresh_per_second=1.0 / _REDRAW_S,
        transient=True,
        redirect_stdout=over_prints and is_live(sys.stdout),
        redirect_stderr=over_prints,
    )


class _Live(Protocol):
    """What `new_live` makes."""

    drawn: tuple[int, ...]
    """Columns of each row that is on the terminal."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class LiveDisplay(report.Observer):
    """What is known of a job, redrawn at a fixed rate at the bottom of a terminal, whatever its size is then.

    Args:
        console: Of the terminal.
        plain: Whether it can show ASCII alone.
        over_prints: Whether what this program prints meanwhile is shown above.
    """

    def __init__(
        self,
        console: Console,
        *,
        plain: bool = False,
        over_prints: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._plain, self._over_prints = console, plain, over_prints
        self._clock = clock
        self._live: _Live | None = None
        self.watch = JobWatch(clock())

    @property
    def drawn(self) -> int:
        """Rows on the terminal now; safe in a signal handler."""
        return 0 if (live := self._live) is None else len(live.drawn)

    def begin(self) -> None:
        """Draw it, until `end` is called."""
        if self._live is None:
            self._live = new_live(self._console, self._rows, over_prints=self._over_prints)
            self._live.start()

    def end(self) -> None:
        """Remove it from the terminal."""
        if self._live is not None:
            with suppress(OSError):  # the terminal may be closed
                self._live.stop()
            self._live = None

    def on_event(self, event: report.Event) -> None:
        self.watch.on_event(event, self._clock())

    def say(self, line: str, *, warning: bool = False) -> None:
        """Print a line above it."""
        self._console.print(clean(line), style="yellow" if warning else None)

    def _rows(self) -> list[Row]:
        columns, lines = self._console.size
        return rows(self.watch.now(self._clock()), columns=columns, most=max(lines - 1, 1), plain=self._plain)


class LineProgress(report.Observer):
    """Lines with fixed first words, for files, pipes, logs and screen readers: events, and now and then a step.

    Args:
        verbose: Show every event; else what a user waits for: phases, measurements, the choice, warnings, losses, and
            steps of 80 columns, more and more rarely.
        write_step: Writes the line of a step, which may be left out; None to write it as any other.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        verbose: bool = True,
        write_step: Callable[[str], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._verbose, self._clock = stream, verbose, clock
        self._write_step = write_step
        self._since, self._next_at = clock(), float("-inf")
        self._goal: tuple[str, float | None] | None = None
        self._metric: float | None = None
        self._forecast: report.EpochsForecast | None = None

    def begin(self) -> None:
        """Nothing is drawn beforehand."""

    def end(self) -> None:
        """Nothing is left."""

    def on_event(self, event: report.Event) -> None:
        now = self._clock()
        if isinstance(event, report.StepDone):
            if now >= self._next_at:
                grown_s = 0.0 if self._verbose else min(_LINE_GROWTH * (now - self._since), LINE_MAX_S)
                self._next_at = now + max(LINE_S, grown_s)
                self._write(self._step(event), self._write_step)
            return
        if isinstance(event, report.PhaseChanged):
            self._since = now
        if isinstance(event, report.Forecasted):
            self._forecast = event.forecast
        if isinstance(event, report.EpochEnded) and event.goal_metric is not None:
            self._goal = (event.goal_metric, event.target)
            self._metric = event.record.metrics.get(event.goal_metric)
        if self._verbose or not isinstance(event, report.ViewChanged | report.EpochEnded | report.Forecasted):
            self.say(event_words(event))

    def say(self, line: str | None) -> None:
        """Write a line; None for nothing."""
        if line is not None:
            self._write(line)

    def _write(self, line: str, write: Callable[[str], object] | None = None) -> None:
        try:
            (write or self._stream.write)(clean(line) + "\n")
            if write is None:
                self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads: that must not end the training

    def _step(self, event: report.StepDone) -> str:
        record, forecast = event.record, self._forecast
        step, epoch = f"step {record.step}", f"epoch {record.epoch + 1}"
        share = "" if event.progress is None else f"{100 * event.progress:.0f} %"
        loss, cost = f"loss {quantity(record.loss)}", money(event.cost_usd)
        if forecast is not None and forecast.is_known:
            low, high = forecast.epochs_interval
            epoch += f" of about {forecast.epochs:.0f} ({low:.0f}-{high:.0f})"
        elif forecast is not None:
            epoch += " (end not known yet)"
            share = share if self._verbose else ""  # of a whole that may be anything
        name, target = (None, None) if self._goal is None else self._goal
        if self._verbose:
            at = f"{record.workers} x batch {record.global_batch_size}, {duration(record.step_time_s)} a step"
            value, towards = beside_target(self._metric, target)
            aim = f" (target {towards})" if towards else ""
            words = [step, epoch, at, loss, "" if name is None else f"{name} {value}{aim}", cost, share]
        else:
            words = [step, share, epoch, loss if name is None else f"{name} {quantity(self._metric)}", cost]
        return ", ".join(word for word in words if word)


class NotebookProgress(report.Observer):
    """What is known of a job, below a notebook's cell.

    Args:
        display: `IPython.display.display`.
    """

    def __init__(self, display: Callable[..., Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._display, self._clock = display, clock
        self._handle: Any = None
        self._next_at = float("-inf")
        self.watch = JobWatch(clock())

    def begin(self) -> None:
        """Begin to show."""
        self._handle = self._display(self, display_id=True)

    def end(self) -> None:
        """Show the last state, which stays."""
        self._show()

    def on_event(self, event: report.Event) -> None:
        self.watch.on_event(event, self._clock())
        if not isinstance(event, report.StepDone) or self._clock() >= self._next_at:
            self._show()

    def _show(self) -> None:
        self._next_at = self._clock() + _REDRAW_S
        if self._handle is not None:
            self._handle.update(self)

    def _rows(self) -> list[Row]:
        return rows(self.watch.now(self._clock()), columns=COLUMNS_MAX, most=ROWS_MAX)

    def __repr__(self) -> str:
        return "\n".join(row.text for row in self._rows())

    def _repr_html_(self) -> str:
        lines = (
            f"<b>{escape(row.text)}</b>" if row.style == "bold" else escape(row.text) for row in self._rows()
        )
        return "<pre>" + "\n".join(lines) + "</pre>"


def _notebook_display() -> Callable[..., Any] | None:
    """How to show something in the notebook that this program runs in; None if it runs in none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or "IPKernelApp" not in getattr(shell, "config", {}):
        return None
    from importlib import import_module

    display: Callable[..., Any] = import_module("IPython.display").display
    return display


@contextmanager
def shown_progress(
    wanted: bool | None, extra: report.Observer | None = None, *, budget_usd: float | None = None
) -> Iterator[report.Observer]:
    """An observer that shows the progress of one job.

    Args:
        wanted: Whether progress is shown; None: in notebooks and on terminals.
        extra: Receives the events, too.
        budget_usd: The most that the job may cost; None without a limit.
    """
    display = None if wanted is False else _notebook_display()
    progress: LiveDisplay | LineProgress | NotebookProgress | None = None
    if display is not None:
        progress = NotebookProgress(display)
    elif wanted is not False and is_live(sys.stderr):
        progress = LiveDisplay(live_console(sys.stderr), plain=is_plain(sys.stderr), over_prints=True)
    elif wanted or (wanted is None and sys.stderr.isatty()):
        progress = LineProgress(sys.stderr)
    observers = [one for one in (progress, extra) if one is not None]
    if progress is None:
        yield Observers(observers)
        return
    if not isinstance(progress, LineProgress):
        progress.watch.limit(budget_usd=budget_usd)
    progress.begin()
    try:
        yield Observers(observers)
    finally:
        progress.end()
