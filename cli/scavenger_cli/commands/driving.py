"""Running a job to its end: `optimize` and `resume` share the display, Ctrl-C handling and report."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Protocol, TextIO

from scavenger import logs
from scavenger.api.logs import log_folder
from scavenger.domain.curve import Choice, TradeoffCurve
from scavenger.domain.document import report_document
from scavenger.domain.forms import parse_money
from scavenger.domain.report import Event, Observer, Predicted, RunReport
from scavenger.errors import ConfigurationError, Interrupted, ScavengerError
from scavenger_cli.options import Invocation
from scavenger_cli.ui import console, render
from scavenger_cli.ui.apart import Apart
from scavenger_cli.ui.observer import CliObserver, make_observer
from scavenger_cli.ui.outlet import has_room

if TYPE_CHECKING:
    from scavenger.store import Store
    from scavenger.store.records import JobRecord

_LAST_S = 5.0
"""Longest wait at the end for notifications that are being sent; the rest stays in the queue."""

Confirm = Callable[[TradeoffCurve, Choice, Predicted], bool]


class Stoppable(Protocol):
    """The part of a running job that Ctrl-C uses."""

    @property
    def processes(self) -> int:
        """The number of its live processes; safe in a signal handler."""

    @property
    def vms(self) -> int:
        """The number of VMs that it pays for; safe in a signal handler."""

    @property
    def job_id(self) -> str:
        """Its id; empty before it is on record; safe in a signal handler."""

    def request_stop(self, reason: str) -> None:
        """Ask the job to stop in an orderly way; safe in a signal handler."""

    def kill_now(self) -> None:
        """Kill all processes of the job, before this process exits; safe in a signal handler."""


class Driver(Stoppable, Protocol):
    """A job that is ready to run, as `scavenger.control.jobs.job_run.JobRun`."""

    def run(self) -> RunReport:
        """Run it to its end."""


def refuse_to_ask_nobody(*, yes: bool) -> None:
    """Refuse to start a job that will ask a question if there is no terminal to answer it on.

    Raises:
        ConfigurationError: There is no terminal, and `--yes` was not given.
    """
    if not yes and not console.is_interactive():
        raise ConfigurationError(
            "there is no terminal on which to confirm the run before it costs money: use --yes to confirm "
            "beforehand, or `plan` to see what it would cost"
        )


def drive(
    begin: Callable[[Store, Observer, Confirm | None], Driver],
    invocation: Invocation,
    *,
    ask: bool,
    reports: Callable[[RunReport], bool] = lambda report: True,
) -> int:
    """Run a job to its end, with its progress on stderr and its report on stdout.

    Args:
        begin: Creates the job, given the store, the observer of its progress, and the question that is asked
            before the run costs money (None: no question).
        ask: Whether that question is asked.
        reports: Whether this report is printed.

    Returns:
        The exit code: the report's own.

    Raises:
        ScavengerError: The job cannot start.
    """
    from scavenger.control.notifying.settings import notifying
    from scavenger.store import Store

    apart = Apart()
    with Store.open(invocation.store_url) as store, notifying(store, only_mine=True, within_s=_LAST_S):
        with apart.kept():
            report, confirmed = _run(begin, store, invocation, apart, ask=ask)
        resumable = _can_resume(store, report)
    if not reports(report):
        return report.exit_code
    with_curve = not (confirmed and console.is_terminal(sys.stdout))
    show_report(report, invocation, with_curve=with_curve)
    if resumable:
        console.note(f"scavenger: to continue from its last checkpoint: scavenger resume {report.job.id[:8]}")
    return report.exit_code


def _run(
    begin: Callable[[Store, Observer, Confirm | None], Driver],
    store: Store,
    invocation: Invocation,
    apart: Apart,
    *,
    ask: bool,
) -> tuple[RunReport, bool]:
    """Run a job with its display; returns its report, and whether the user was asked before it was paid for."""
    observer = make_observer(apart.own, quiet=invocation.quiet, verbose=invocation.verbose)
    interrupts = Interrupts(observer, apart.own)
    confirmed = False

    def confirm(curve: TradeoffCurve, choice: Choice, predicted: Predicted) -> bool:
        nonlocal confirmed
        confirmed = True
        observer.stop()
        try:
            with interrupts.asking(), apart.lifted():
                console.emit(
                    *render.curve_table(curve, choice, verbose=invocation.verbose),
                    "",
                    *render.choice_lines(choice, relative_only=curve.relative_only),
                    "",
                    *render.confirmation(curve, choice, predicted),
                    stream=sys.stderr,
                )
                agreed = console.ask("Run it?")
            if agreed:
                observer.limit(approved_usd=predicted.cost_usd)
            return agreed
        except Interrupted:
            return False
        finally:
            observer.start()

    seen = _Placed(observer, apart, store)
    started = seen.job = begin(store, seen, confirm if ask else None)
    with logs.shown_by(observer.say), interrupts.handled_by(started):
        observer.start()
        try:
            return started.run(), confirmed
        finally:
            observer.stop()


class _Placed(Observer):
    """Passes events on; once there is a job, other libraries write to its log, and the display knows its limits."""

    def __init__(self, observer: CliObserver, apart: Apart, store: Store) -> None:
        self._observer, self._apart, self._store = observer, apart, store
        self.job: Stoppable | None = None
        self._known = False

    def on_event(self, event: Event) -> None:
        self._observer.on_event(event)
        if not self._known and self.job is not None and self.job.job_id:
            self._known = True
            with suppress(ScavengerError):  # the libraries write where they do, and the display goes without
                self._know(self._store.job(self.job.job_id))

    def _know(self, record: JobRecord) -> None:
        self._apart.move(log_folder(record))
        budget = (record.spec.get("constraints") or {}).get("budget")
        self._observer.limit(budget_usd=None if budget is None else parse_money(budget))
        if record.predicted is not None:
            self._observer.predict(record.predicted)


def _can_resume(store: Store, report: RunReport) -> bool:
    """Whether a job that was cut short can be resumed."""
    if report.job.state not in ("interrupted", "failed"):
        return False
    try:
        store.check_resumable(store.job(report.job.id))
    except ScavengerError:
        return False
    return True


def show_report(report: RunReport, invocation: Invocation, *, with_curve: bool = True) -> None:
    """Print the report on stdout, and its error, if it has one, on stderr."""
    if invocation.as_json:
        console.emit_json(report_document(report))
    else:
        console.emit(*render.report_text(report, with_curve=with_curve, verbose=invocation.verbose))
    if report.job.state == "interrupted":
        console.note(f"scavenger: {report.error or 'interrupted'}")  # the user asked for it: not an error
    elif report.error:
        console.error(report.error, frames=report.result.traceback)


class Interrupts:
    """Signal handlers. The first Ctrl-C stops the job in order, the second kills it.

    SIGTERM and a closed terminal count as a Ctrl-C.
    """

    def __init__(self, observer: CliObserver, terminal: TextIO) -> None:
        self._observer, self._terminal = observer, terminal
        self._job: Stoppable | None = None
        self._presses = 0
        self._asking = False

    @contextmanager
    def handled_by(self, job: Stoppable) -> Iterator[None]:
        """Direct the signals to a job while it runs."""
        self._job = job
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup: the job outlives its terminal
            wanted.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While a question waits for its answer, Ctrl-C also cancels it: the body raises `Interrupted`."""
        self._asking = True
        try:
            yield
        finally:
            self._asking = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        assert self._job is not None
        self._presses += 1
        if self._presses == 1:
            self._job.request_stop("interrupted")
            count = self._job.processes
            running = "1 process of this job is" if count == 1 else f"{count} processes of this job are"
            rows = self._observer.rows
            self._write(
                # the live display is above the cursor, and its next redraw needs the same number of rows
                (f"\r\x1b[{rows - 1}A\x1b[J" if rows else "\n")
                + f"scavenger: stopping in order; {running} still running. "
                + f"To kill them now: Ctrl-C again, or kill {os.getpid()}\n"
                + "\n" * max(rows - 1, 0)
            )
            if self._asking:
                raise Interrupted
            return
        self._job.kill_now()
        if console.is_terminal(self._terminal):
            self._write("\x1b[?25h")  # the live display hides the cursor
        self._write(
            "\nscavenger: killed; every process of this job was killed. To continue from its last checkpoint, "
            f"if it has one: scavenger resume {self._job.job_id[:8] or 'JOB'}\n"
        )
        if self._job.vms:
            self._write(
                f"scavenger: {self._job.vms} VMs of this job may still cost money until they end themselves, within "
                "about 15 minutes; to end them now: scavenger gc\n"
            )
        os._exit(Interrupted.exit_code)

    def _write(self, text: str) -> None:
        """Write to the descriptor: the interrupted code may hold the lock of a buffered stream."""
        if has_room(self._terminal, 0.0):
            with suppress(OSError, ValueError):
                os.write(self._terminal.fileno(), text.encode("ascii"))
