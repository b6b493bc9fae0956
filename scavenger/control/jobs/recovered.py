"""Makes a job's record anew where only its checkpoints and its job file are left."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from pathlib import Path

from scavenger.control.job_file.load import load_job
from scavenger.errors import ConfigurationError
from scavenger.store.owner import this_process
from scavenger.store.records import JobRecord
from scavenger.train.checkpoints.checkpoint import CheckpointStore

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def record_of_checkpoints(location: str, job_file: Path) -> JobRecord:
    """A record by which `resume` continues a job from its newest checkpoint, at the checkpoint's step and epoch.

    Its cost, its choice and the course of its metric are lost: a search is made again, and the budget is whole.

    Args:
        location: Path or URL of the job's checkpoints. The job keeps the id that is in it.
        job_file: The job file, beside its training module. It is the caller's own, since `resume` runs that module.

    Raises:
        JobFileError: If the job file cannot be read or is invalid.
        ConfigurationError: If there is no checkpoint that can be read.
        TransientError: If the location cannot be read now.
    """
    job = load_job(job_file)
    if "://" not in location:
        location = str(Path(location).resolve())
    checkpoints = CheckpointStore(location)
    newest = checkpoints.latest(finite=True)
    if newest is None:
        why = f": {checkpoints.problems[0]}" if checkpoints.problems else ""
        raise ConfigurationError(f"{location} has no checkpoint that can be read{why}")
    ids, now = _ID.findall(location), datetime.now(UTC)
    return JobRecord(
        id=ids[-1] if ids else str(uuid.uuid4()),
        name=job.name,
        state="interrupted",
        phase="",
        detail="",
        spec=job.written(),
        job_file=str(job_file.resolve()),
        owner=this_process(),
        heartbeat_at=now,
        created_at=newest.manifest.created_at,
        started_at=None,
        ended_at=now,
        step=newest.manifest.step,
        cost_usd=None,
        fingerprint=None,
        chosen=None,
        predicted=None,
        actual=None,
        report=None,
        error="",
        exit_code=None,
        model_path=None,
        measurements_path=None,
        checkpoint=location,
    )
