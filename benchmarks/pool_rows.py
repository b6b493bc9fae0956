"""Rows of the tables about many jobs on one pool: what came out of runs in virtual time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scavenger.scheduler.jobs.simulation import Run, Workload, simulate

Row = tuple[str, ...]
HEADERS = ("jobs and policy", "mean, s", "median", "95 %", "GPU hours", "decisions", "CPU, s", "reported")


@dataclass(frozen=True, slots=True)
class Timed:
    """Runs of one policy, each of its own jobs, and the seconds of one processor that they took."""

    runs: tuple[Run, ...]
    took_s: float

    @classmethod
    def of(cls, workloads: Sequence[Workload], *pool: Any, **how: Any) -> Timed:
        """Simulate each workload on the same pool."""
        begin = time.process_time()
        runs = tuple(simulate(jobs, *pool, **how) for jobs in workloads)
        return cls(runs, time.process_time() - begin)

    @property
    def completion_s(self) -> np.ndarray:
        """From submission to end, of the jobs of all runs."""
        return np.concatenate([run.completion_s for run in self.runs])

    @property
    def mean_s(self) -> float:
        """Mean time from submission to end."""
        return float(self.completion_s.mean())

    @property
    def statistics(self) -> tuple[float, float, float]:
        """Mean, median and 95th percentile, seconds."""
        done = self.completion_s
        return self.mean_s, float(np.median(done)), float(np.quantile(done, 0.95))

    @property
    def gpu_hours(self) -> float:
        """Hours of GPUs, whether they trained or changed."""
        return float(sum(run.slot_s.sum() for run in self.runs)) / 3600.0

    def row(self, name: str, said: str, digits: int = 0) -> Row:
        """One line of a table, beside what is reported."""
        mean, median, late = self.statistics
        return (
            name,
            f"{mean:,.{digits}f}",
            f"{median:,.0f}",
            f"{late:,.0f}",
            f"{self.gpu_hours:,.0f}",
            f"{sum(run.events for run in self.runs):,}",
            f"{self.took_s:.1f}",
            said,
        )
