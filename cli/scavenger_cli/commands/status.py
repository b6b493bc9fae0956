"""`status`: the latest jobs, or one job with its processes, requested operations and events."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.console import Group
from rich.text import Text

from scavenger.api.jobs import JobAnswer, JobDocument, events_of, list_jobs, show_job
from scavenger.api.leftovers import QuarantineAnswer, list_quarantine
from scavenger.api.opening import open_source
from scavenger.domain.document import traceback_of
from scavenger.domain.operation import describe
from scavenger.domain.progress import Progress
from scavenger.domain.report import JobState
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import (
    beside_target,
    clean,
    duration,
    duration_within,
    money,
    moneys,
    plural,
    quantity,
    traceback_lines,
    when,
)
from scavenger.presentation.picture import FINISHED
from scavenger_cli.options import ListedJobKey, Output, OutputOption, StoreOption
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from scavenger.api.calls import Source
    from scavenger.api.operations import OperationDocument
    from scavenger.store.records import JobRecord, ProcessRecord

    StateName = JobState
else:
    StateName = StrEnum("StateName", get_args(JobState))  # Typer takes a list of these, and none of a Literal

FACTS_WIDTH = len("checkpoint")
"""Width of the names in the list of a job's facts; `checkpoint` is the longest."""
JOBS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Filters:
    """Which jobs are listed.

    Attributes:
        states: Those in one of these states; empty: in any.
        name: Those whose name matches this pattern, as `digits*`; None: of any name.
    """

    states: tuple[JobState, ...] = ()
    name: str | None = None


def status(
    job: ListedJobKey = None,
    state: Annotated[
        list[StateName] | None,
        typer.Option("--state", help="List only jobs in this state. Repeat for several."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="List only jobs of this name; * stands for any characters."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show the job as it changes, until it has ended.")
    ] = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Show the latest jobs, or one job with its progress and processes."""
    filters = Filters(tuple(state or ()), name)
    if job is not None and filters != Filters():
        raise ConfigurationError("--state and --name filter the list of jobs: leave out the job")
    if follow and (job is None or output.is_json):
        raise ConfigurationError("-f shows one job as it changes: name the job, and leave out -o json")
    with open_source(store_url) as source:
        if job is None:
            _list_jobs(source, filters, as_json=output.is_json)
            if source.sees_all:
                _tell_of_quarantine(list_quarantine(source))
        elif follow:
            _follow(source, job)
        else:
            found = show_job(source, job)
            if output.is_json:
                assert found.begun
                console.emit_answer(found, "submission")
            else:
                console.emit(*_parts(found))
    return 0


def state_words(state: str, *, ended: bool, alive: bool, has_runner: bool) -> str:
    """The state of a job in words: of one that has not ended, whose process is gone, that it is."""
    words = state.replace("_", " ")
    if ended or alive:
        return words
    waits = "waits for its next runner" if has_runner else "dead"
    return f"{waits} ({words} when last seen)"


def _state(seen: JobDocument) -> str:
    return state_words(seen.state, ended=seen.ended, alive=seen.alive, has_runner=seen.has_runner)


def _list_jobs(source: Source, filters: Filters, *, as_json: bool) -> None:
    """Print the latest jobs; their owners are shown only if one is not the calling user's."""
    from scavenger.store.owner import this_process

    page = list_jobs(source, list(filters.states) or None, filters.name, True, JOBS_SHOWN)
    if as_json:
        console.emit_answer(page)
        return
    found = page.jobs
    if not found and filters != Filters():
        console.emit(Text("No such job."))
        return
    if not found:
        console.emit(Text("No jobs yet: `scavenger plan JOB.yaml` starts one."))
        return
    here = this_process()
    shared = not all(seen.owner.is_same_account(here) for seen in found)
    grid = render.table(
        ("id", "left"),
        ("name", "left"),
        *((("owner", "left"),) if shared else ()),
        ("state", "left"),
        ("trains on", "left"),
        ("spent", "right"),
        ("began", "left"),
    )
    spents = moneys([seen.cost_usd for seen in found])
    for seen, usd in zip(found, spents, strict=True):
        job = seen
        now = None if seen.progress is None else seen.progress.configuration
        trains_on = "-" if now is None else f"{now.workers} x batch {now.global_batch_size}"
        spent = "-" if job.cost_usd is None else usd
        owner = (clean(job.owner.account),) if shared else ()
        grid.add_row(
            job.id[:8],
            clean(job.name),
            *owner,
            _state(seen),
            trains_on,
            spent,
            when(job.created_at)[5:16],
        )
    console.emit(grid)


def _tell_of_quarantine(quarantine: QuarantineAnswer) -> None:
    """Say that VMs are in quarantine, or may be, since the store was restored from a backup."""
    if quarantine.restore is None:
        return
    since = f"the store was restored from its backup of {when(quarantine.restore.backup_at)}"
    if vms := [one for one in quarantine.vms if not one.kept_by]:
        console.note(
            f"in quarantine, since {since}: {plural(len(vms), 'VM')}; `scavenger gc` shows them, and "
            "`scavenger gc --quarantined` ends them"
        )
    elif quarantine.awaits_look:
        console.note(f"{since}: `scavenger gc` looks for VMs that it does not know, and ends none of them")


def _follow(source: Source, key: str) -> None:
    """Show a job anew with each of its events, until it has ended; on no terminal, one line for each state."""
    from rich.live import Live

    status = show_job(source, key)
    job_id = status.begun.id
    if not console.is_terminal(sys.stdout):
        told = ""
        for _ in chain((None,), events_of(source, job_id, _last_event(status))):
            status = show_job(source, job_id)
            line = f"{_state(status.begun)}: {status.progress or status.begun.phase or '-'}"
            if line != told and not console.write(sys.stdout, f"{clean(line)}\n"):
                return
            told = line
    else:
        with Live(console=console.console(sys.stdout), auto_refresh=False, transient=True) as live:
            live.update(Group(*_parts(status)), refresh=True)
            for _ in events_of(source, job_id, _last_event(status)):
                status = show_job(source, job_id)
                live.update(Group(*_parts(status)), refresh=True)
    console.emit(*_parts(show_job(source, job_id)))


def _last_event(status: JobAnswer) -> int:
    return status.events[-1].id if status.events else 0


def _parts(status: JobAnswer) -> Iterator[RenderableType]:
    """What is shown of one job."""
    job, progress = status.begun, status.progress
    facts = render.table((f"{'Job':<{FACTS_WIDTH}}", "left"), (f"{clean(job.name)} ({job.id})", "left"))
    phase = f"{job.phase}: {clean(job.detail)}" if job.detail else job.phase
    ended = job.ended_at or datetime.now(UTC)
    rows = (
        ("state", _state(job)),
        ("phase", "" if job.ended else phase),
        ("began", f"{when(job.created_at)}, {duration((ended - job.created_at).total_seconds())}"),
        ("owner", clean(job.owner.account) + ("" if job.owner.uid is None else f" (uid {job.owner.uid})")),
        ("run by", "" if job.ended else f"process {job.owner.pid} on {clean(job.owner.host)}"),
        ("attempt", "" if job.attempts == 1 else str(job.attempts)),
        ("chosen", "" if job.chosen is None else clean(job.chosen)),
        *_progress_rows(job, progress),
        ("step", "" if job.step is None else f"{job.step:,}"),
        ("spent", "" if job.cost_usd is None else money(job.cost_usd)),
        ("error", clean(job.error)),
    )
    for name, value in rows:
        if value:
            facts.add_row(name, value)
    yield facts
    for line in traceback_lines(traceback_of(job.report)):
        yield Text(line, no_wrap=True, overflow="ignore")
    yield from render.paths(
        (("job file", job.job_file), ("model", job.model_path), ("checkpoint", job.checkpoint)),
        indent=0,
        width=FACTS_WIDTH,
    )
    if job.predicted is not None or job.actual is not None:
        yield ""
        yield from render.comparison(job.predicted, job.actual, finished=job.state in FINISHED)
    # of a job that has ended, show only the processes that explain its end
    shown = [each for each in status.processes if not job.ended or each.state in ("lost", "failed")]
    if shown:
        yield from ("", _processes(shown, job.owner.host))
    if status.operations:
        yield from ("", _operations(status.operations))
    if status.events:
        grid = render.table(("when", "left"), ("what", "left"))
        for event in status.events:
            grid.add_row(when(event.at)[5:], clean(event.message))
        yield from ("", grid)


def _progress_rows(job: JobRecord, progress: Progress | None) -> Iterator[tuple[str, str]]:
    """How far the job is, as rows of (name, text)."""
    if progress is None:
        return
    if progress.moved is not None:
        yield "moved", clean(progress.moved)
    on = clean(progress.configuration)
    if not job.ended and progress.moved is None and job.chosen not in (None, progress.configuration):
        on += ", until the workers of what was chosen are ready"
    yield ("measured last" if job.state == "planned" else "trained on" if job.ended else "trains on"), on
    of_about = ""
    if progress.epochs_interval is not None and not job.ended:
        low, high = progress.epochs_interval
        of_about = f" of {low:.0f} to {high:.0f} (90 %)"
    yield "epoch", f"{progress.epoch + 1:,}{of_about}"
    yield "loss", quantity(progress.loss)
    if progress.value is not None:
        value, target = beside_target(progress.value, progress.target)
        yield "metric", f"{clean(progress.metric)} {value}{f' (target {target})' if target else ''}"
    if progress.left_s is not None and progress.left_interval_s is not None and not job.ended:
        yield "left", duration_within(progress.left_s, *progress.left_interval_s)


def _processes(processes: list[ProcessRecord], here: str) -> Table:
    """The processes; hosts are shown only if one differs from that of the job's own process."""
    several = any(process.host not in (None, here) for process in processes)
    grid = render.table(
        ("process", "left"),
        ("role", "left"),
        ("pid", "right"),
        *((("host", "left"),) if several else ()),
        ("view", "right"),
        ("state", "left"),
        ("step", "right"),
        ("", "left"),
    )
    for process in processes:
        pid, view, step = (
            "-" if value is None else str(value) for value in (process.pid, process.view, process.step)
        )
        host = (clean(process.host or "-"),) if several else ()
        grid.add_row(
            clean(process.process), process.role, pid, *host, view, process.state, step, clean(process.detail)
        )
    return grid


def _operations(operations: tuple[OperationDocument, ...]) -> Table:
    grid = render.table(("asked", "left"), ("to", "left"), ("", "left"), ("", "left"))
    for operation in operations:
        answer = clean(operation.message) or f"asked by {clean(operation.requested_by)}"
        grid.add_row(
            when(operation.requested_at)[5:], clean(describe(operation.asked)), operation.state, answer
        )
    return grid
