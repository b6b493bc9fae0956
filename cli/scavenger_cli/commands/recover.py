"""`store recover`: restore the records of jobs from the jobs' own folders, or a record from a job's checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import clean
from scavenger_cli.ui import console


def recover(folders: Sequence[str], job_file: Path | None, *, store_url: str | None, as_json: bool) -> int:
    """Restore the records that are missing in the store; those that it has are left as they are.

    Every folder is read before anything is written.

    Args:
        folders: Output folders of jobs; with a job file, the location of that job's checkpoints.
        job_file: The file of the one job of which nothing else is left; None if the folders have records.

    Raises:
        ConfigurationError: A folder has no record of a job, or a damaged one, or no checkpoint.
    """
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
    if as_json:
        console.emit_json({"schema_version": console.SCHEMA_VERSION, "store": name, "jobs": rows})
        return 0
    for row in rows:
        what = "recovered" if row["recovered"] else "is on record already"
        console.emit(f"{clean(row['name'])} ({str(row['id'])[:8]}), {row['state']}: {what}")
    return 0
