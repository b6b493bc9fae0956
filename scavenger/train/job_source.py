"""The training code of a job and the time limits of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scavenger.domain.elastic import GradientExchange


@dataclass(frozen=True, slots=True)
class JobSource:
    """Where the training code is and how to run it.

    Attributes:
        train: The training code, as `module:object`.
        job_dir: Directory that the module is imported from.
        seed: Random seed that the model and data are built with.
        threads: Threads that a worker computes with.
        job_id: The job's id, for log records; empty if it has none.
        data: Where the data is, as `module:object`, if `train` returns a model alone; empty if it is not.
        params: Arguments by name for the function that `train` names.
        schedule_batch: See `Manifest.schedule_batch`.
        gradients: The form in which workers give their gradients: `float32`, or rounded to `bfloat16`.
        exchange: Who averages the gradients of a loop, as `elastic.exchange` of the job file says.
        processes: Of each worker of a script, as `elastic.processes` of the job file says.
        env: Environment variables of all its processes.
        secrets: Further ones of those that run the training code.
    """

    train: str
    job_dir: Path
    seed: int
    threads: int
    job_id: str = ""
    data: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    schedule_batch: int = 0
    gradients: str = "float32"
    exchange: GradientExchange = "auto"
    processes: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


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
