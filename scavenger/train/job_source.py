"""What is trained, and how long it may take about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["JobSource", "Timeouts"]


@dataclass(frozen=True, slots=True)
class JobSource:
    """Where the training code is: `module:object` beside `job_dir`, and the seed it is built with.

    `job_id`: of the job, for log records; empty where it has none.
    """

    train: str
    job_dir: Path
    seed: int
    threads: int
    job_id: str = ""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a worker may take to start, and a step to be applied, before it counts as hung; seconds."""

    start_s: float
    step_s: float
