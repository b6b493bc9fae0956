"""`optimize` and `plan`: start a job, show it, stop it when asked to, report it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from scavenger.domain.curve import Choice, TradeoffCurve
from scavenger.domain.document import report_document
from scavenger.domain.report import Predicted, RunReport
from scavenger.errors import ConfigurationError, Interrupted
from scavenger_cli import console, render
from scavenger_cli.formatting import clean, duration, money, plural
from scavenger_cli.observer import CliObserver, make_observer

if TYPE_CHECKING:
    from scavenger.domain.job import JobSpec

__all__ = ["Interrupts", "Overrides", "Stoppable", "execute", "show_report"]


SPELLED_OUT_MAX = 6
"""Values that are listed; more are told by their ends."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says in place of the job file; None where it says nothing."""

    objective: str | None = None
    strategy: str | None = None
    budget: str | None = None
    deadline: str | None = None

    def changes(self) -> dict[str, str]:
        """By the job file's keys, as it would write them."""
        said = {
            "objective": self.objective,
            "search.strategy": self.strategy,
            # shells eat a `$`, so it may be left out here
            "constraints.budget": None if self.budget is None else f"${self.budget.removeprefix('$')}",
            "constraints.deadline": self.deadline,
        }
        return {key: value for key, value in said.items() if value is not None}


class Stoppable(Protocol):
    """What Ctrl-C needs of a running job."""

    @property
    def processes(self) -> int:
        """How many of its processes live; safe in a signal handler."""

    def request_stop(self, reason: str) -> None:
        """Ask it to end in order; safe in a signal handler."""

    def kill_now(self) -> None:
        """End every process of it at once; safe in a signal handler."""


def execute(
    job_file: Path,
    *,
    run: bool,
    overrides: Overrides,
    yes: bool,
    dry_run: bool,
    store_url: str | None,
    as_json: bool,
) -> int:
    """Run the job, or only plan it.

    Returns:
        The exit code: the report's own.

    Raises:
        ScavengerError: What kept the job from starting.
    """
    from scavenger.control.jobfile import load_job, override_job

    job = override_job(load_job(job_file), overrides.changes())
    if dry_run:
        _show_dry_run(job, job_file, run=run, yes=yes, as_json=as_json)
        return 0
    if run and not yes and not console.is_interactive():
        raise ConfigurationError(
            "there is no terminal to ask before the run is paid for: use --yes to agree beforehand, "
            "or `plan` to see what it would cost"
        )
    from scavenger.control.jobs import JobRun
    from scavenger.store import Store

    observer = make_observer(sys.stderr)
    interrupts = Interrupts(observer)
    confirmed = False

    def confirm(curve: TradeoffCurve, choice: Choice, predicted: Predicted) -> bool:
        nonlocal confirmed
        confirmed = True
        observer.stop()
        try:
            with interrupts.asking():
                console.emit(
                    *render.curve_table(curve, choice),
                    "",
                    *render.choice_lines(choice, relative_only=curve.relative_only),
                    "",
                    *render.confirmation(curve, choice, predicted),
                    stream=sys.stderr,
                )
                return console.ask("Run it?")
        except Interrupted:
            return False
        finally:
            observer.start()

    with Store.open(store_url) as store:
        started = JobRun(
            job,
            job_file=job_file,
            store=store,
            observer=observer,
            run=run,
            confirm=None if yes or not run else confirm,
        )
        with interrupts.handled_by(started):
            observer.start()
            try:
                report: RunReport = started.run()
            finally:
                observer.stop()
    show_report(report, as_json=as_json, with_curve=not (confirmed and console.is_terminal(sys.stdout)))
    return int(report.exit_code)


def show_report(report: RunReport, *, as_json: bool, with_curve: bool = True) -> None:
    """The report on stdout; its error, if it has one, on stderr."""
    if as_json:
        console.emit_json(report_document(report))
    else:
        console.emit(*render.report_text(report, with_curve=with_curve))
    if report.state == "interrupted":
        console.note(f"scavenger: {report.error or 'interrupted'}")  # the user's wish is no error
    elif report.error:
        console.error(report.error)


class Interrupts:
    """Ctrl-C once: end in order; twice: at once. SIGTERM and a closed terminal count as one."""

    def __init__(self, observer: CliObserver) -> None:
        self._observer = observer
        self._job: Stoppable | None = None
        self._presses = 0
        self._asking = False

    @contextmanager
    def handled_by(self, job: Stoppable) -> Iterator[None]:
        """Hand the signals to a job while it runs."""
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
        """While a question stands, Ctrl-C also takes it back; raises `Interrupted` out of the body."""
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
            _say(
                # the live display stands above the cursor, and its next redraw takes as many rows again
                (f"\r\x1b[{rows - 1}A\x1b[J" if rows else "\n")
                + f"scavenger: stopping in order; {running} still running. "
                + f"To end them at once: Ctrl-C again, or kill {os.getpid()}\n"
                + "\n" * max(rows - 1, 0)
            )
            if self._asking:
                raise Interrupted
            return
        self._job.kill_now()
        if console.is_terminal(sys.stderr):
            _say("\x1b[?25h")  # the live display hides the cursor
        _say("\nscavenger: left at once; every process of this job was killed\n")
        os._exit(Interrupted.exit_code)


def _say(text: str) -> None:
    """Straight to the terminal: the interrupted code may hold the lock of a buffered stream."""
    with suppress(OSError):
        os.write(2, text.encode("ascii"))


def _show_dry_run(job: JobSpec, job_file: Path, *, run: bool, yes: bool, as_json: bool) -> None:
    """Everything that is checked before a job starts is checked here too."""
    from scavenger.control.space import check_supported, check_training_module, open_cloud, search_space

    check_supported(job)
    check_training_module(job, job_file)
    space = search_space(job, open_cloud(job))
    count = len(space.configurations())
    document = {
        "schema_version": console.SCHEMA_VERSION,
        "dry_run": True,
        "job": job.model_dump(mode="json"),
        "configurations": count,
        "offers": [
            {
                "vm": offer.vm,
                "provider": offer.provider,
                "region": offer.region,
                "price_usd_per_hour": offer.price_usd_per_hour,
                "price_source": offer.price_source,
            }
            for offer in space.offers
        ],
        "profile": {
            "steps": job.profile.steps,
            "max_time_s": job.profile.max_time,
            "max_cost_usd": job.profile.max_cost,
        },
        "constraints": {"deadline_s": job.constraints.deadline, "budget_usd": job.constraints.budget},
        "runs": run,
        "asks": run and not yes,
    }
    if as_json:
        console.emit_json(console.plain(document))
        return
    grid = render.table(
        ("Would " + ("optimize" if run else "plan"), "left"), (f"{job.name} ({job_file})", "left")
    )
    workers, batches = space.workers, space.global_batch_sizes
    grid.add_row(
        "search",
        f"{job.search.strategy}, among {plural(count, 'configuration')}: "
        f"K {_span(workers)}, B {_span(batches)}",
    )
    for offer in space.offers:
        price = f"{money(offer.price_usd_per_hour)} an hour each: {clean(offer.price_source)}"
        grid.add_row("on", f"{clean(offer.vm)} ({job.infra}), {price}")
    profiling = _limits(job.profile.max_time, job.profile.max_cost)
    grid.add_row(
        "profile",
        f"{plural(job.profile.steps, 'step')} of each profiled configuration"
        + (f", {profiling} in all" if profiling else ""),
    )
    grid.add_row("choose", f"by {job.objective}")
    if run:
        question = "without asking" if yes else "after asking, with the predicted time and cost"
        grid.add_row("run", f"{question}, until {_goal(job)}")
    grid.add_row(
        "limits", _limits(job.constraints.deadline, job.constraints.budget) or "no deadline, no budget"
    )
    grid.add_row("", "Nothing was started, and nothing was spent.")
    console.emit(grid)


def _goal(job: JobSpec) -> str:
    epochs = plural(job.goal.max_epochs, "epoch")
    if job.goal.target is None:
        return f"{epochs} are done"
    return f"{job.goal.metric} reaches {job.goal.target}, or {epochs} are done"


def _span(values: tuple[int, ...]) -> str:
    if len(values) <= SPELLED_OUT_MAX:
        return ", ".join(map(str, values))
    return f"{values[0]} to {values[-1]} ({len(values)} values)"


def _limits(time_s: float | None, cost_usd: float | None) -> str:
    limits = [duration(time_s)] if time_s is not None else []
    limits += [money(cost_usd)] if cost_usd is not None else []
    return f"at most {' and '.join(limits)}" if limits else ""
