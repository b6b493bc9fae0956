"""`jobs rm`: delete the records of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scavenger.api.jobs import delete_jobs, end_dead, job_of
from scavenger.api.logs import log_folder
from scavenger.api.opening import open_source
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean, plural
from scavenger_cli.options import DryRunOption, Output, OutputOption, StoreOption, YesOption
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from scavenger.store.records import JobRecord


def rm(
    keys: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...", help="Ids of jobs, starts of ids, or names (the latest job of a name)."
        ),
    ],
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Delete the records of jobs that have ended; their files are kept."""
    with open_source(store_url) as source:
        end_dead(source)
        jobs = list({job.id: job for job in (job_of(source, key) for key in keys)}.values())
        delete_jobs(source, [job.id for job in jobs], dry_run=True)
        if not dry_run:
            if not yes and not console.is_interactive():
                raise ConfigurationError("there is no terminal to ask on: use --yes to delete the jobs")
            if not yes and not console.ask(f"Delete {plural(len(jobs), 'job')} ({_names(jobs)})?"):
                console.note("nothing was deleted")
                return 0
            delete_jobs(source, [job.id for job in jobs])
    if output.is_json:
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
