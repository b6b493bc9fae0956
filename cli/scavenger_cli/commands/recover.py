"""`store recover`: restore the records of jobs from the jobs' own folders, or a record from a job's checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean
from scavenger_cli.options import Output, OutputOption, StoreOption
from scavenger_cli.ui import console


def recover(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER...",
            help="Output folders of jobs, named by the jobs' ids; with --job, the folder or URL of checkpoints.",
        ),
    ],
    job_file: Annotated[
        Path | None,
        typer.Option(
            "--job", metavar="JOB.yaml", help="The job's file, where nothing but its checkpoints is left."
        ),
    ] = None,
    store_url: StoreOption = None,
    output: OutputOption = Output.TEXT,
) -> int:
    """Restore the records of jobs from their folders or checkpoints, after the database was lost."""
    from scavenger.store import Store
    from scavenger.store.record_file import read_record

    if job_file is None:
        found = [(str(Path(folder).resolve()), read_record(Path(folder))) for folder in folders]
    else:
        from scavenger.control.jobs.recovered import record_of_checkpoints

        if len(folders) != 1:
            raise ConfigurationError("--job: one job has its checkpoints in one place")
        found = [(folders[0], record_of_checkpoints(folders[0], job_file))]
    rows = []
    with Store.open(store_url) as store:
        for folder, job in found:
            recovered = store.recover_job(job)
            if recovered:
                store.add_event(job.id, "note", f"the record was restored from {folder}")
            rows.append({"id": job.id, "name": job.name, "state": job.state, "recovered": recovered})
        name = store.name
    if output.is_json:
        console.emit_json({"schema_version": console.SCHEMA_VERSION, "store": name, "jobs": rows})
        return 0
    for row in rows:
        what = "recovered" if row["recovered"] else "is on record already"
        console.emit(f"{clean(row['name'])} ({str(row['id'])[:8]}), {row['state']}: {what}")
    return 0
