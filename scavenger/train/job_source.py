"""The training code of a job and the time limits of its workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["JobSource", "Timeouts"]


@dataclass(frozen=True, slots=True)
class JobSource:
    """Where the training code is and how to run it.

    Attributes:
        train: The training code, as `module:object`.
        job_dir: Directory that the module is imported from.
        seed: Random seed that the model and data are built with.
        threads: Threads that a worker computes with.
        job_id: The job's id, for log records; empty if it has none.
    """

    train: str
    job_dir: Path
    seed: int
    threads: int
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits, in seconds, after which workers count as hung.

    Attributes:
        start_s: Limit for a worker to become ready.
        step_s: Limit for a step to be applied.
        evaluation_s: Limit for an evaluation; None to use `scavenger.elastic.liveness.evaluation_limit_s`.
        callbacks_s: Limit for the callbacks of an epoch.
    """

    start_s: float
    step_s: float
    evaluation_s: float | None = None
    callbacks_s: float = 600.0
