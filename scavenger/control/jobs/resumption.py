"""What a job leaves behind to be gone on with, and how it is found again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scavenger.control.training.history import EarlierAttempts
from scavenger.control.training.journal import read_history
from scavenger.domain.configuration import Configuration
from scavenger.domain.job import CheckpointSpec
from scavenger.domain.report import Predicted
from scavenger.errors import ConfigurationError
from scavenger.store.records import JobRecord
from scavenger.train.checkpoints.checkpoint import CheckpointStore

__all__ = ["Resumption", "checkpoint_url", "find_resumption"]


@dataclass(frozen=True, slots=True)
class Resumption:
    """An earlier attempt at a job.

    Attributes:
        url: Of its checkpoints.
        before: What it had come to at the one that is taken up.
        chosen: Where it ran; None where its search had not ended.
    """

    job_id: str
    url: str
    before: EarlierAttempts
    chosen: Configuration | None
    predicted: Predicted | None


def checkpoint_url(spec: CheckpointSpec | None, folder: Path, work_dir: Path) -> str:
    """Where a job's checkpoints go: a folder of its own in the place that the job file names, or with its output.

    Args:
        folder: That the job file is in, which a path may be relative to.
        work_dir: The job's own, named by its id.
    """
    if spec is None:
        return str(work_dir / "checkpoints")
    place = spec.path
    if "://" not in place:
        place = str((folder / Path(place).expanduser()).resolve())
    return f"{place.rstrip('/')}/{work_dir.name}"


def find_resumption(job: JobRecord, journal: Path) -> Resumption:
    """The newest checkpoint of a job that verifies, with what the job had come to.

    Raises:
        ConfigurationError: If there is none.
        TransientError: If the place cannot be looked at.
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
    )
    return Resumption(job_id=job.id, url=url, before=before, chosen=job.chosen, predicted=job.predicted)
