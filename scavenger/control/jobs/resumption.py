"""Finds the checkpoint and the progress that a resumed job continues from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scavenger.control.training.history import EarlierAttempts
from scavenger.control.training.journal import read_history
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import CheckpointSpec
from scavenger.domain.report import Predicted
from scavenger.errors import ConfigurationError
from scavenger.store.records import JobRecord
from scavenger.train.checkpoints.checkpoint import CheckpointStore


@dataclass(frozen=True, slots=True)
class Resumption:
    """State of an earlier attempt from which a job is resumed.

    Attributes:
        folder: The checkpoint that is restored.
        before: Time, cost and progress up to the checkpoint that is restored.
        chosen: The chosen configuration; None if the search had not ended.
        spec: What it goes on with, for the record; None for what is on record.
        moved_from: The folder that the job has left for another output; None if it stays where it is.
    """

    job_id: str
    url: str
    folder: str
    before: EarlierAttempts
    chosen: Configuration | None
    predicted: Predicted | None
    spec: Mapping[str, Any] | None = None
    moved_from: Path | None = None


def checkpoint_url(spec: CheckpointSpec | None, folder: Path, work_dir: Path) -> str:
    """Location of a job's checkpoints: a folder per job, in the path of the job file or in the job's output folder.

    Args:
        folder: Folder of the job file; a relative path is resolved against it.
        work_dir: The job's output folder, named by the job's id.
    """
    if spec is None:
        return str(work_dir / "checkpoints")
    path = spec.path
    if "://" not in path:
        path = str((folder / Path(path).expanduser()).resolve())
    return f"{path.rstrip('/')}/{work_dir.name}"


def find_resumption(job: JobRecord, journal: Path) -> Resumption:
    """Find a job's newest valid checkpoint, with the job's progress at its step.

    Raises:
        ConfigurationError: If there is no valid checkpoint.
        TransientError: If the checkpoint location cannot be read.
    """
    url = job.checkpoint or ""
    store = CheckpointStore(url)
    checkpoint = store.latest(finite=True)
    if checkpoint is None:
        why = f": {store.problems[0]}" if store.problems else ""
        raise ConfigurationError(
            f"job {job.name} ({job.id[:8]}) has no checkpoint in {url} that can be read{why}"
        )
    manifest = checkpoint.manifest
    history = read_history(journal, manifest.step)
    before = EarlierAttempts(
        step=manifest.step,
        epoch=manifest.epoch,
        consumed=manifest.consumed,
        elapsed_s=history.elapsed_s,
        cost_usd=job.cost_usd or 0.0,
        epochs=history.epochs,
        samples_by_batch=history.samples_by_batch,
        callback_runs=history.callback_runs,
    )
    return Resumption(
        job_id=job.id,
        url=url,
        folder=manifest.folder,
        before=before,
        chosen=job.chosen,
        predicted=job.predicted,
    )
