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
    """How long workers may take before they count as hung, seconds.

    Attributes:
        start_s: For a worker to get ready.
        step_s: For a step to be applied.
        evaluation_s: For an evaluation; None for `scavenger.elastic.liveness.evaluation_limit_s`.
    """

    start_s: float
    step_s: float
    evaluation_s: float | None = None
