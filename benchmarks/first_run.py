"""Forecasts of a first run: the demo job without a hint of its epochs, by several seeds, against how it went on."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.figures import Benchmark, Result
from benchmarks.live import job_file
from scavenger.control.job_file.load import load_job, override_job
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.platform import prepare_job
from scavenger.domain.job import JobSpec
from scavenger.domain.report import EpochEnded, EpochsForecast, Event, Forecasted, Observer, RunReport
from scavenger.store import Store

__all__ = ["BENCHMARK"]

_SHARES = (0.25, 0.5, 0.75)
_AIM = 0.25


class _Heard(Observer):
    """Keeps every forecast with the time of the evaluation before it, in seconds since the job began."""

    def __init__(self) -> None:
        self.forecasts: list[tuple[float, EpochsForecast]] = []
        self._at_s = 0.0

    def on_event(self, event: Event) -> None:
        if isinstance(event, EpochEnded):
            self._at_s = event.record.at_s
        if isinstance(event, Forecasted):
            self.forecasts.append((self._at_s, event.forecast))


def _run(job: JobSpec, folder: Path) -> tuple[RunReport, _Heard]:
    heard = _Heard()
    job = override_job(job, {"output": str(folder / "output")})
    with Store.open(f"sqlite:///{folder / 'store.db'}") as store:
        parts = prepare_job(job, job_file("digits"))
        report = JobRun(parts, store=store, observer=heard, run=True, confirm=None).run()
    if report.result.actual is None or report.job.state not in ("succeeded", "target_missed"):
        raise RuntimeError(f"the job ended {report.job.state}: {report.error}")
    return report, heard


def run(repetitions: int, work_dir: Path) -> Result:
    """One run per seed, one after the other."""
    written = load_job(job_file("digits")).written()
    written["goal"].pop("epochs_hint")
    rows: list[tuple[str, ...]] = []
    runs: list[dict[str, object]] = []
    errors: dict[float, list[float]] = {share: [] for share in _SHARES}
    for seed in range(repetitions):
        (work_dir / str(seed)).mkdir()
        report, heard = _run(JobSpec.model_validate({**written, "seed": seed}), work_dir / str(seed))
        assert report.result.actual is not None
        actual, cells = report.result.actual, []
        for share in _SHARES:
            known = [one for at_s, one in heard.forecasts if at_s <= share * actual.time_s]
            if not known:
                cells.append("-")
                continue
            error = known[-1].time_s / actual.time_s - 1.0
            errors[share].append(abs(error))
            cells.append(f"{known[-1].time_s:.0f} ({100 * error:+.0f} %)")
        rows.append((str(seed), report.job.state, f"{actual.epochs:.0f}", f"{actual.time_s:.0f}", *cells))
        runs.append(
            {
                "seed": seed,
                "time_s": actual.time_s,
                "epochs": actual.epochs,
                "forecasts": [(at_s, one.time_s, one.epochs) for at_s, one in heard.forecasts],
            }
        )
    medians = ", ".join(
        f"{100 * statistics.median(errors[share]):.0f} % of {len(errors[share])} at {share:.0%}"
        for share in _SHARES
        if errors[share]
    )
    return Result(
        headers=(
            "seed",
            "ended",
            "epochs",
            "time, s",
            *(f"forecast after {s:.0%} of the time, s" for s in _SHARES),
        ),
        rows=tuple(rows),
        verdict=f"aim: within {_AIM:.0%} after a quarter of the time; median error: {medians}",
        figures={"runs": runs, "errors": {str(share): values for share, values in errors.items()}},
        remarks=(
            "no hint, and nothing stored; the forecast is the last before that part of the time, in brackets its error",
            "a dash: fewer than two epochs were evaluated until then",
        ),
    )


BENCHMARK = Benchmark("first_run", 5, run)
