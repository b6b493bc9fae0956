"""A study of the digits example: trials that share a model and warm workers, against jobs that share nothing."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Benchmark, Result, Spread
from scavenger import Client, Job
from scavenger.domain.report import Event, Observer, PhaseChanged, StepDone
from scavenger.pipelines.study import Trial

__all__ = ["BENCHMARK"]

_EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "study"
_EPOCHS = 10
_FIXED = (2, 32)
"""Workers and batch size of the jobs that share nothing, as a user fixes them."""


@dataclass
class _Clock(Observer):
    """When a trial began, made its first step, and was done; seconds since it was asked for."""

    asked_s: float = field(default_factory=time.perf_counter)
    first_s: dict[str, float] = field(default_factory=dict)

    def on_event(self, event: Event) -> None:
        """See `Observer`."""
        name = event.phase if isinstance(event, PhaseChanged) else type(event).__name__
        if isinstance(event, (PhaseChanged, StepDone)):
            self.first_s.setdefault(name, time.perf_counter() - self.asked_s)


@dataclass(frozen=True, slots=True)
class _Measured:
    """One trial.

    Attributes:
        start_s: From the request until its first step.
        overhead_s: What the client takes before the job begins and after it has ended.
    """

    trial: Trial
    start_s: float
    overhead_s: float


def _job(folder: Path) -> Job:
    goal = {"metric": "val_accuracy", "max_epochs": _EPOCHS}
    return Job(
        "train:model",
        data="train:data",
        goal=goal,
        workers=[1, 2],
        batch_size=[32],
        settings={"output": str(folder)},
        folder=_EXAMPLE,
    )


def _trials(job: Job, client: Client, rates: list[float]) -> list[_Measured]:
    measured = []
    for rate in rates:
        clock = _Clock()
        trial = client.study("digits").run(job, {"learning_rate": rate}, observer=clock)
        took_s = time.perf_counter() - clock.asked_s
        if not trial.complete:
            raise RuntimeError(f"a trial ended {trial.state}: {trial.error}")
        overhead_s = clock.first_s["starting"] + took_s - clock.first_s["done"]
        measured.append(_Measured(trial, clock.first_s["StepDone"], overhead_s))
    return measured


def run(repetitions: int, work_dir: Path) -> Result:
    """So many trials, as a study, and as jobs of programs of their own at fixed K and B with stores of their own."""
    rates = [10 ** (-3.0 + 2.0 * number / max(1, repetitions - 1)) for number in range(repetitions)]
    with Client(store=str(work_dir / "study.db"), progress=False) as client:
        shared = _trials(_job(work_dir / "study"), client, rates)
    workers, batch_size = _FIXED
    fixed = _job(work_dir / "apart").with_settings(
        {"search.workers": workers, "search.batch_size": batch_size}
    )
    apart = []
    for number, rate in enumerate(rates):
        with Client(store=str(work_dir / f"{number}.db"), progress=False) as alone:
            apart += _trials(fixed, alone, [rate])
    rows: list[tuple[str, ...]] = []
    figures: dict[str, dict[str, Any]] = {}
    for name, kept in (("study, first", shared[:1]), ("study, others", shared[1:]), ("jobs apart", apart)):
        if kept:
            row, figures[name.replace(", ", "_").replace(" ", "_")] = _row(name, kept)
            rows.append(row)
    whole, others = (math.fsum(one.trial.cost_usd for one in kept) for kept in (shared, apart))
    guessed = math.fsum(one.trial.predicted_usd or 0.0 for one in shared)
    figures["whole"] = {"study_usd": whole, "apart_usd": others, "predicted_usd": guessed}
    against, off = 100 * (whole / others - 1), 100 * (guessed / whole - 1)
    return Result(
        headers=("trials", "n", "until the first step, s", "client, ms", "profiled", "$ / 1000 each"),
        rows=tuple(rows),
        verdict=f"a study of {repetitions} trials costs {against:+.0f} % of jobs apart at {workers} workers, batch "
        f"{batch_size} (aim: -40 %); the prediction of its cost is off by {off:+.0f} % (aim: 10 %)",
        figures=figures,
        remarks=(
            "jobs apart have a store, a fork server and one configuration each, which counts as profiled",
        ),
    )


def _row(name: str, kept: list[_Measured]) -> tuple[tuple[str, ...], dict[str, Any]]:
    start, overhead = Spread.of(one.start_s for one in kept), Spread.of(one.overhead_s for one in kept)
    usd = math.fsum(one.trial.cost_usd for one in kept)
    profiled = sum(one.trial.profiled for one in kept)
    each = f"{1e3 * usd / len(kept):.3f}"
    cells = (name, str(len(kept)), start.text(), overhead.text(1e3, 0), str(profiled), each)
    return cells, {"start_s": start, "overhead_s": overhead, "profiled": profiled, "cost_usd": usd}


BENCHMARK = Benchmark("study", 6, run)
