"""`jobs rm`: delete the records of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scavenger.api.logs import log_folder
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, plural
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from scavenger.store.records import JobRecord


def remove_jobs(keys: list[str], *, yes: bool, dry_run: bool, store_url: str | None, as_json: bool) -> int:
    """Delete the records of jobs after asking: all or, if one of them may not be deleted, none.

    Raises:
        ConfigurationError: There is no such job, it rented VMs, or there is no terminal to ask on.
        TransientError: A job is running.
    """
    from scavenger.api.jobs import delete_jobs
    from scavenger.api.opening import open_source

    with open_source(store_url) as source:
        source.end_dead()
        jobs = list({job.id: job for job in map(source.job, keys)}.values())
        delete_jobs(source, [job.id for job in jobs], dry_run=True)
        if not dry_run:
            if not yes and not console.is_interactive():
                raise ConfigurationError("there is no terminal to ask on: use --yes to delete the jobs")
            if not yes and not console.ask(f"Delete {plural(len(jobs), 'job')} ({_names(jobs)})?"):
                console.note("nothing was deleted")
                return 0
            delete_jobs(source, [job.id for job in jobs])
    if as_json:
        ids = [job.id for job in jobs]
        console.emit_json(
            {
                "schema_version": console.SCHEMA_VERSION,
                "deleted": [] if dry_run else ids,
                "dry_run": dry_run,
                "would_delete": ids if dry_run else [],
            }
        )
        return 0
    words = "would delete" if dry_run else "deleted"
    for job in jobs:
        line = (
            f"{words} job {clean(job.name)} ({job.id[:8]}), {job.state.replace('_', ' ')}; its files stay in"
        )
        console.emit(line, *render.paths((("", str(log_folder(job).parent)),), width=0))
    return 0


def _names(jobs: list[JobRecord]) -> str:
    return ", ".join(f"{clean(job.name)} {job.id[:8]}" for job in jobs)
