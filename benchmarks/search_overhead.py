"""The cost of the search: the demo job compared with the same job started at the configuration that it chose."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.live import job_file
from scavenger.control.job_file.load import load_job, override_job
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.prepared import prepare_job
from scavenger.domain.curve import Choice
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Actual, Observer, RunReport
from scavenger.store import Store

_EXAMPLE = "digits"
_AIM = 0.10


def _run(job: JobSpec, folder: Path) -> tuple[RunReport, Actual]:
    """A whole run that knows nothing beforehand.

    Raises:
        RuntimeError: If the job fails.
    """
    job = override_job(job, {"output": str(folder / "output")})
    with Store.open(f"sqlite:///{folder / 'store.db'}") as store:
        report = JobRun(
            prepare_job(job, job_file(_EXAMPLE)), store=store, observer=Observer(), run=True, confirm=None
        ).run()
    if report.result.actual is None or report.job.state not in ("succeeded", "target_missed"):
        raise RuntimeError(f"the job ended {report.job.state}: {report.error}")
    return report, report.result.actual


def _startup_s(report: RunReport) -> float:
    """From the job's beginning until its first step began."""
    assert report.measurements_path is not None  # every job that trained has written its steps
    with Path(report.measurements_path).open() as journal:
        steps = (record for record in map(json.loads, journal) if record["kind"] == "step")
        first = next(steps)
    return float(first["at_s"] - first["step_time_s"])


def at_epochs(time_s: float, startup_s: float, epochs: float, wanted: float) -> float:
    """The time, in seconds, that a run would have taken for another number of epochs."""
    return startup_s + (time_s - startup_s) * wanted / epochs


def run(repetitions: int, work_dir: Path) -> Result:
    """Pairs of runs, one after the other, so that both see the same machine."""
    job = load_job(job_file(_EXAMPLE))
    rows: list[tuple[str, ...]] = []
    pairs: list[dict[str, object]] = []
    times, costs, even_times, even_costs, claims, epochs = [], [], [], [], [], []
    for index in range(repetitions):
        report, searched = _run(job, work_dir / f"searched-{index}")
        assert isinstance(report.choice, Choice)  # else the job would not have run
        chosen = report.choice.configuration
        forced = {"search.workers": chosen.workers, "search.batch_size": chosen.global_batch_size}
        direct_report, direct = _run(override_job(job, forced), work_dir / f"direct-{index}")
        claimed_s = report.search.overhead_s or 0.0
        claim = claimed_s / (searched.time_s - claimed_s)
        times.append(searched.time_s / direct.time_s - 1.0)
        costs.append(searched.cost_usd / direct.cost_usd - 1.0)
        even_s = at_epochs(direct.time_s, _startup_s(direct_report), direct.epochs, searched.epochs)
        even_times.append(searched.time_s / even_s - 1.0)
        even_costs.append(searched.cost_usd / (direct.cost_usd * even_s / direct.time_s) - 1.0)
        epochs.append(searched.epochs / direct.epochs - 1.0)
        claims.append(claim)
        for name, kind, actual in (("search", report, searched), ("direct", direct_report, direct)):
            rows.append(
                (
                    f"{name} {index + 1}",
                    f"K = {chosen.workers}, B = {chosen.global_batch_size}",
                    kind.job.state,
                    f"{actual.time_s:.1f}",
                    f"{actual.cost_usd:.5f}",
                    f"{actual.epochs:.1f}",
                    f"{claimed_s:.1f}" if kind is report else "-",
                )
            )
        pairs.append(
            {
                "workers": chosen.workers,
                "global_batch_size": chosen.global_batch_size,
                "search_time_s": searched.time_s,
                "direct_time_s": direct.time_s,
                "search_cost_usd": searched.cost_usd,
                "direct_cost_usd": direct.cost_usd,
                "search_epochs": searched.epochs,
                "direct_epochs": direct.epochs,
                "direct_time_at_equal_epochs_s": even_s,
                "claimed_overhead_s": claimed_s,
                "search_states": [report.job.state, direct_report.job.state],
            }
        )
    time, cost, claim_, epoch = (Spread.of(values) for values in (times, costs, claims, epochs))
    even_time, even_cost = Spread.of(even_times), Spread.of(even_costs)
    return Result(
        headers=("run", "configuration", "ended", "time, s", "cost, $", "epochs", "overhead as reported, s"),
        rows=tuple(rows),
        verdict=f"aim: below {_AIM:.0%} more time; search / direct - 1, in %: time {time.text(100)}, "
        f"cost {cost.text(100)}; at equal epochs: time {even_time.text(100)}, cost {even_cost.text(100)}; "
        f"as the report claims: time {claim_.text(100)}",
        figures={
            "pairs": pairs,
            "time_overhead": time,
            "cost_overhead": cost,
            "time_overhead_at_equal_epochs": even_time,
            "cost_overhead_at_equal_epochs": even_cost,
            "claimed_time_overhead": claim_,
            "epochs_difference": epoch,
        },
        remarks=(
            "both from launch to target, starting the workers included; the direct run starts all at once",
            "the two follow different batch sizes, and so need different epochs to the target: "
            f"{epoch.text(100)} % more with search, which is luck",
            "at equal epochs: with the direct run's training stretched to as many as the other's",
        ),
    )


BENCHMARK = Benchmark("search_overhead", 2, run)
