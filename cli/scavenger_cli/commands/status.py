"""`status`: the latest jobs, or one job with its processes, requested operations and events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.control.documents.costs import all_billed, billed
from scavenger.control.documents.jobs import jobs_document, progress_of, status_document, status_of
from scavenger.domain.operation import describe
from scavenger.domain.progress import Progress
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, duration, duration_range, money, plural, quantity, when
from scavenger.presentation.panel import FINISHED
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from scavenger.store.records import JobRecord, OperationRecord, ProcessRecord
    from scavenger.store.store import Store

__all__ = ["Filters", "show_status"]

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

    states: tuple[str, ...] = ()
    name: str | None = None


def show_status(key: str | None, filters: Filters, *, store_url: str | None, as_json: bool) -> int:
    """Print the latest jobs, or one job with its progress, processes, operations and events.

    Raises:
        ConfigurationError: There is no such job, or filters are given with a job.
    """
    from scavenger.store import Store

    if key is not None and filters != Filters():
        raise ConfigurationError("--state and --name filter the list of jobs: leave out the job")
    with Store.open(store_url) as store:
        if key is None:
            _list_jobs(store, filters, as_json=as_json)
            _tell_of_quarantine(store)
        else:
            _show_job(store, billed(store, store.job(key)), as_json=as_json)
    return 0


def _state(store: Store, job: JobRecord) -> str:
    words = job.state.replace("_", " ")
    if job.ended or store.is_alive(job):
        return words
    waits = "waits for its next runner" if store.has_runner(job.id) else "dead"
    return f"{waits} ({words} when last seen)"


def _list_jobs(store: Store, filters: Filters, *, as_json: bool) -> None:
    """Print the latest jobs; their owners are shown only if one is not the calling user's."""
    from scavenger.store.owner import this_process

    found = store.jobs(JOBS_SHOWN, states=filters.states, name=filters.name)
    jobs = all_billed(store, found)
    if as_json:
        console.emit_json(jobs_document(store, jobs))
        return
    if not jobs and filters != Filters():
        console.emit(Text("No such job."))
        return
    if not jobs:
        console.emit(Text("No jobs yet: `scavenger plan JOB.yaml` starts one."))
        return
    here = this_process()
    shared = not all(job.owner.is_same_account(here) for job in jobs)
    grid = render.table(
        ("id", "left"),
        ("name", "left"),
        *((("owner", "left"),) if shared else ()),
        ("state", "left"),
        ("trains on", "left"),
        ("spent", "right"),
        ("began", "left"),
    )
    for job in jobs:
        progress = progress_of(store, job)
        now = job.chosen if progress is None else progress.configuration
        trains_on = "-" if now is None else f"{now.workers} x batch {now.global_batch_size}"
        spent = "-" if job.cost_usd is None else money(job.cost_usd)
        owner = (clean(job.owner.account),) if shared else ()
        grid.add_row(
            job.id[:8],
            clean(job.name),
            *owner,
            _state(store, job),
            trains_on,
            spent,
            when(job.created_at)[5:16],
        )
    console.emit(grid)


def _tell_of_quarantine(store: Store) -> None:
    """Say that VMs are in quarantine, or may be, since the store was restored from a backup."""
    restore = store.last_restore()
    if restore is None:
        return
    since = f"the store was restored from its backup of {when(restore.backup_at)}"
    if vms := store.quarantined_vms():
        console.note(
            f"in quarantine, since {since}: {plural(len(vms), 'VM')}; `scavenger gc` shows them, and "
            "`scavenger gc --quarantined` ends them"
        )
    elif restore.looked_at is None and store.vm_regions():
        console.note(f"{since}: `scavenger gc` looks for VMs that it does not know, and ends none of them")


def _show_job(store: Store, job: JobRecord, *, as_json: bool) -> None:
    status = status_of(store, job)
    if as_json:
        console.emit_json(status_document(store, status))
        return
    progress, processes, operations = status.progress, status.processes, status.operations
    facts = render.table((f"{'Job':<{FACTS_WIDTH}}", "left"), (f"{clean(job.name)} ({job.id})", "left"))
    phase = f"{job.phase}: {clean(job.detail)}" if job.detail else job.phase
    ended = job.ended_at or datetime.now(UTC)
    rows = (
        ("state", _state(store, job)),
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
    console.emit(
        facts,
        *render.paths(
            (("job file", job.job_file), ("model", job.model_path), ("checkpoint", job.checkpoint)),
            indent=0,
            width=FACTS_WIDTH,
        ),
    )
    if job.predicted is not None or job.actual is not None:
        console.emit("", *render.comparison(job.predicted, job.actual, finished=job.state in FINISHED))
    # of a job that has ended, show only the processes that explain its end
    shown = [each for each in processes if not job.ended or each.state in ("lost", "failed")]
    if shown:
        _emit_processes(shown, job.owner.host)
    if operations:
        _emit_operations(operations)
    if status.events:
        grid = render.table(("when", "left"), ("what", "left"))
        for event in status.events:
            grid.add_row(when(event.at)[5:], clean(event.message))
        console.emit("", grid)


def _progress_rows(job: JobRecord, progress: Progress | None) -> Iterator[tuple[str, str]]:
    """How far the job is, as rows of (name, text)."""
    if progress is None:
        return
    yield "trained on" if job.ended else "trains on", clean(progress.configuration)
    of_about = ""
    if progress.epochs_interval is not None and not job.ended:
        low, high = progress.epochs_interval
        of_about = f" of {low:.0f} to {high:.0f} (90 %)"
    yield "epoch", f"{progress.epoch + 1:,}{of_about}"
    yield "loss", quantity(progress.loss, 4)
    if progress.value is not None:
        target = "" if progress.target is None else f" (target {quantity(progress.target, 4)})"
        yield "metric", f"{clean(progress.metric)} {quantity(progress.value, 4)}{target}"
    if progress.left_s is not None and progress.left_interval_s is not None and not job.ended:
        yield "left", f"{duration(progress.left_s)} (90 %: {duration_range(*progress.left_interval_s)})"


def _emit_processes(processes: list[ProcessRecord], here: str) -> None:
    """Print the processes; hosts are shown only if one differs from that of the job's own process."""
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
    console.emit("", grid)


def _emit_operations(operations: tuple[OperationRecord, ...]) -> None:
    grid = render.table(("asked", "left"), ("to", "left"), ("", "left"), ("", "left"))
    for operation in operations:
        answer = clean(operation.message) or f"asked by {clean(operation.requested_by)}"
        grid.add_row(
            when(operation.requested_at)[5:], clean(describe(operation.operation)), operation.state, answer
        )
    console.emit("", grid)
