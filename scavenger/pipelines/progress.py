"""Progress of jobs in notebooks and terminals."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, TextIO

from scavenger.domain.report import EpochEnded, Event, Observer, PhaseChanged, StepDone
from scavenger.presentation.event_words import event_words
from scavenger.presentation.formatting import clean, duration, money, quantity

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["LineProgress", "NotebookProgress", "Observers", "TerminalProgress", "shown_progress"]

_REDRAW_S = 0.25
_LINE_S = 10.0
_LINES = 8
"""Last events that a notebook shows."""


class Observers(Observer):
    """Passes events on to several observers."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def on_event(self, event: Event) -> None:
        """See `Observer`."""
        for observer in self._observers:
            observer.on_event(event)


class _Progress(Observer):
    """Keeps the last step and the phase, and shows them at most so often."""

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._next_at = float("-inf")
        self._phase, self._metrics = "starting", ""
        self._step: StepDone | None = None

    def begin(self) -> None:
        """Begin to show."""

    def end(self) -> None:
        """End the showing."""

    def on_event(self, event: Event) -> None:
        """See `Observer`."""
        if isinstance(event, PhaseChanged):
            self._phase, self._step = event.phase, None
        if isinstance(event, EpochEnded):
            self._metrics = ", ".join(
                f"{name} {quantity(value, 4)}" for name, value in event.record.metrics.items()
            )
        if isinstance(event, StepDone):
            self._step = event
            if self._clock() >= self._next_at:
                self._next_at = self._clock() + self._every_s
                self._show()
        elif (line := event_words(event)) is not None:
            self._tell(clean(line))

    def _show(self) -> None:
        """Show the present step."""

    def _tell(self, line: str) -> None:
        """Show an event."""

    def _words(self) -> str:
        if self._step is None:
            return self._phase
        record, share = self._step.record, self._step.progress
        parts = [
            self._phase + ("" if share is None else f" {100 * share:.0f} %"),
            f"step {record.step}, epoch {record.epoch + 1}",
            f"{record.workers} x batch {record.global_batch_size}, {duration(record.step_time_s)} a step",
            f"loss {quantity(record.loss, 4)}",
            self._metrics,
            money(self._step.cost_usd),
        ]
        return "; ".join(clean(part) for part in parts if part)


class LineProgress(_Progress):
    """Lines of text, for files and logs."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(_LINE_S)
        self._stream = stream

    def _show(self) -> None:
        self._tell(self._words())

    def _tell(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads: that must not end the training


class TerminalProgress(_Progress):
    """One line that is redrawn, below the events."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(_REDRAW_S)
        self._stream = stream
        self._live: Live | None = None

    def begin(self) -> None:
        """See `_Progress.begin`."""
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._live = Live(
            get_renderable=lambda: Text(self._words(), no_wrap=True, overflow="ellipsis"),
            console=Console(file=self._stream, highlight=False, markup=False),
            refresh_per_second=1.0 / _REDRAW_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def end(self) -> None:
        """See `_Progress.end`."""
        if self._live is not None:
            self._live.stop()

    def _tell(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line)


class NotebookProgress(_Progress):
    """The present step and the last events below a notebook's cell.

    Args:
        display: `IPython.display.display`.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        super().__init__(_REDRAW_S)
        self._display = display
        self._handle: Any = None
        self._lines: deque[str] = deque(maxlen=_LINES)

    def begin(self) -> None:
        """See `_Progress.begin`."""
        self._handle = self._display(self, display_id=True)

    def end(self) -> None:
        """See `_Progress.end`."""
        self._show()

    def _show(self) -> None:
        if self._handle is not None:
            self._handle.update(self)

    def _tell(self, line: str) -> None:
        self._lines.append(line)
        self._show()

    def __repr__(self) -> str:
        return "\n".join((self._words(), *self._lines))

    def _repr_html_(self) -> str:
        lines = "".join(f"<div>{escape(line)}</div>" for line in self._lines)
        return f"<div><b>{escape(self._words())}</b><small>{lines}</small></div>"


def _notebook_display() -> Callable[..., Any] | None:
    """How to show something in the notebook that this program runs in; None if it runs in none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or "IPKernelApp" not in getattr(shell, "config", {}):
        return None
    from importlib import import_module

    display: Callable[..., Any] = import_module("IPython.display").display
    return display


@contextmanager
def shown_progress(wanted: bool | None, extra: Observer | None = None) -> Iterator[Observer]:
    """An observer that shows the progress of one job.

    Args:
        wanted: Whether progress is shown; None: in notebooks and on terminals.
        extra: Receives the events, too.
    """
    display = None if wanted is False else _notebook_display()
    progress: _Progress | None = None
    if display is not None:
        progress = NotebookProgress(display)
    elif wanted is not False and sys.stderr.isatty():
        progress = TerminalProgress(sys.stderr)
    elif wanted:
        progress = LineProgress(sys.stderr)
    observers = [one for one in (progress, extra) if one is not None]
    if progress is None:
        yield Observers(observers)
        return
    progress.begin()
    try:
        yield Observers(observers)
    finally:
        progress.end()
