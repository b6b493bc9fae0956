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
from scavenger.pipelines.study import Study, Trial

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
        name = event.phase if isinstance(event, PhaseChanged) else type(event).__name__
        if isinstance(event, (PhaseChanged, StepDone)):
            self.first_s.setdefault(name, time.perf_counter() - self.asked_s)


@dataclass(frozen=True, slots=True)
class _Measured:
    """One trial.

    Attributes:
        start_s: From the request until its first step.
        end_s: From its last step until its processes have ended.
        overhead_s: What the client takes before the job begins and after it has ended.
        search_s: What the search took besides training.
        corrected: Whether its first steps corrected the stored model.
    """

    trial: Trial
    start_s: float
    end_s: float
    overhead_s: float
    search_s: float
    corrected: bool


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


def _trial(job: Job, client: Client, study: Study, rate: float) -> _Measured:
    clock = _Clock()
    trial = study.run(job, {"learning_rate": rate}, observer=clock)
    took_s = time.perf_counter() - clock.asked_s
    if not trial.complete:
        raise RuntimeError(f"a trial ended {trial.state}: {trial.error}")
    report = client.result(trial.id).report
    return _Measured(
        trial,
        start_s=clock.first_s["StepDone"],
        end_s=clock.first_s["done"] - clock.first_s["saving"],
        overhead_s=clock.first_s["starting"] + took_s - clock.first_s["done"],
        search_s=report.search.overhead_s or 0.0,
        corrected="corrected" in report.search.reason,
    )


def run(repetitions: int, work_dir: Path) -> Result:
    """So many trials, as a study, and in turn with them as jobs that share nothing, at fixed K and B."""
    rates = [10 ** (-3.0 + 2.0 * number / max(1, repetitions - 1)) for number in range(repetitions)]
    workers, batch_size = _FIXED
    fixed = _job(work_dir / "apart").with_settings(
        {"search.workers": workers, "search.batch_size": batch_size}
    )
    shared, apart = [], []
    with Client(store=str(work_dir / "study.db"), progress=False) as client:
        study = client.study("digits")
        for number, rate in enumerate(rates):
            shared.append(_trial(_job(work_dir / "study"), client, study, rate))
            with Client(store=str(work_dir / f"{number}.db"), progress=False) as alone:
                apart.append(_trial(fixed, alone, alone.study("digits"), rate))
    rows: list[tuple[str, ...]] = []
    figures: dict[str, dict[str, Any]] = {}
    for name, kept in (("study, first", shared[:1]), ("study, others", shared[1:]), ("jobs apart", apart)):
        if kept:
            row, figures[name.replace(", ", "_").replace(" ", "_")] = _row(name, kept)
            rows.append(row)
    whole, others = (math.fsum(one.trial.cost_usd for one in kept) for kept in (shared, apart))
    guessed = math.fsum(one.trial.predicted_usd or 0.0 for one in shared)
    best, best_apart = (max(kept, key=lambda one: one.trial.value or 0.0).trial for kept in (shared, apart))
    figures["whole"] = {
        "study_usd": whole,
        "apart_usd": others,
        "predicted_usd": guessed,
        "best_value": best.value,
        "best_value_apart": best_apart.value,
    }
    against, off = 100 * (whole / others - 1), 100 * (guessed / whole - 1)
    return Result(
        headers=(
            "trials",
            "n",
            "until the first step, s",
            "end, s",
            "client, ms",
            "profiled",
            "search, s",
            "$ / 1000 each",
        ),
        rows=tuple(rows),
        verdict=f"a study of {repetitions} trials costs {against:+.0f} % of jobs apart at {workers} workers, batch "
        f"{batch_size} (aim: -40 %); the prediction of its cost is off by {off:+.0f} % (aim: 10 %); best val_accuracy "
        f"{_best(best)}, apart {_best(best_apart)}",
        figures=figures,
        remarks=(
            "jobs apart have a store, a fork server and one configuration each, which counts as profiled; they take "
            "turns with the study's trials",
            "client: before the job begins and after it has ended; search: time that the search took besides training",
            f"trials after the first whose first steps corrected the stored model: "
            f"{sum(one.corrected for one in shared[1:])} of {len(shared) - 1}",
        ),
    )


def _best(trial: Trial) -> str:
    return f"{trial.value:.4f} at learning rate {trial.params['learning_rate']:.3g}"


def _row(name: str, kept: list[_Measured]) -> tuple[tuple[str, ...], dict[str, Any]]:
    start, end = Spread.of(one.start_s for one in kept), Spread.of(one.end_s for one in kept)
    overhead = Spread.of(one.overhead_s for one in kept)
    usd = math.fsum(one.trial.cost_usd for one in kept)
    profiled = sum(one.trial.profiled for one in kept)
    search_s = math.fsum(one.search_s for one in kept)
    cells = (
        name,
        str(len(kept)),
        start.text(),
        end.text(digits=2),
        overhead.text(1e3, 0),
        str(profiled),
        f"{search_s:.1f}",
        f"{1e3 * usd / len(kept):.3f}",
    )
    return cells, {
        "start_s": start,
        "end_s": end,
        "overhead_s": overhead,
        "profiled": profiled,
        "search_s": search_s,
        "corrected": sum(one.corrected for one in kept),
        "cost_usd": usd,
    }


BENCHMARK = Benchmark("study", 6, run)
