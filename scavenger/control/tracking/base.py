"""What every tracker can do, and the values that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The job as its trackers know it.

    Attributes:
        job_id: The same after the job was resumed, and so is the run.
        experiment: Name of the experiment or project.
        group: Name of the run that it is nested under, as of a study; None: it stands alone.
        folder: The job file's, to which paths are relative.
        step: The last step of earlier attempts that counts; None for a new job.
        params: Its parameters.
        log: File for the records of the tracker's own library; it and its folder may be missing. None: as they are.
    """

    job_id: str
    name: str
    experiment: str
    group: str | None
    folder: Path
    step: int | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None


class Tracker(Protocol):
    """One run in another project's records. Calls come from one thread, `begin` first and `end` last.

    Any exception is allowed: `Tracking` keeps it from the job.
    """

    def begin(self, run: TrackedRun) -> None:
        """Create the run, or go on with it."""
        ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Add figures of a step."""
        ...

    def event(self, step: int, name: str, text: str) -> None:
        """Add what happened at a step."""
        ...

    def end(self, *, succeeded: bool, state: str) -> None:
        """End the run with the state of its job."""
        ...
