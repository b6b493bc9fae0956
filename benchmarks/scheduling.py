"""Many jobs on one pool: published traces in virtual time, by the policies that pools decide by.

`python -m benchmarks scheduling:tiresias,6c71a0` takes some of its parts: `tiresias`, a virtual cluster, `speed` and
`sizes`. All of them take hours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Benchmark, Result
from benchmarks.public_steps import DATA
from scavenger.control.pools.traces import NamedCurves, Trace, interpolated, read_trace, workload
from scavenger.control.search.tables import number, read_table
from scavenger.domain.curve import FloatArray, IntArray
from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.placing import Placement
from scavenger.scheduler.jobs.policies import Fifo, Policy, Srtf
from scavenger.scheduler.jobs.simulation import Run, simulate
from scavenger.scheduler.jobs.tiresias import ElasticTiresias, Tiresias
from scavenger.scheduler.jobs.values import Curves, Nodes, Plan, PoolSeen
from scavenger.scheduler.jobs.worth import Worth

_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_CLUSTERS = {"6c71a0": 48, "6214e9": 56, "b436b2": 64}
"""Virtual clusters of Philly, and GPUs with which they are crowded."""
_QUANTA = (500.0, 10_000.0)
_SIZES = (384, 512, 768, 1024, 2304)
_A_NODE = 8
_OFF = 0.35
"""Standard deviation of the logarithm of the work left that `worth` is told."""

Row = tuple[str, ...]


def read_philly(vc: str | None = None) -> Trace:
    """The jobs of Philly, or of one of its virtual clusters.

    Raises:
        SystemExit: The trace is not there.
    """
    path = DATA / "philly" / "philly_compact.csv.gz"
    if not path.is_file():
        raise SystemExit(f"the trace is not at {path}: nothing to simulate")
    return _only(read_trace(path), lambda trace, row: vc is None or trace.user[row] == vc)


def _only(trace: Trace, wanted: Callable[[Trace, int], bool]) -> Trace:
    rows = np.array([row for row in range(len(trace)) if wanted(trace, row)], dtype=np.int64)
    return Trace(
        submitted_s=trace.submitted_s[rows] - trace.submitted_s[rows[0]],
        lasts_s=trace.lasts_s[rows],
        slots=trace.slots[rows],
        priority=trace.priority[rows],
        user=tuple(trace.user[row] for row in rows),
        model=tuple(trace.model[row] for row in rows),
    )


def a100_curves() -> NamedCurves:
    """Steps a second on one to 64 A100s at a fixed global batch size, of each model and batch size of ElasticFlow."""
    names, rows = [], []
    for path in sorted((DATA / "elasticflow" / "throughputs_A100").glob("*.csv")):
        columns = [str(count) for count in _COUNTS]
        for row in read_table(path, ("global_batch_size",), optional=columns):
            rates = {count: number(row[str(count)]) for count in _COUNTS}
            names.append(f"{path.stem} {row['global_batch_size']}")
            rows.append(interpolated({count: rate for count, rate in rates.items() if rate > 0.0}, 64))
    return NamedCurves(tuple(names), Curves(np.stack(rows)))


@dataclass(frozen=True, slots=True)
class _TheirTimes(Tiresias):
    """Looks for used quanta when the published simulator does: it takes GPU-seconds for seconds there."""

    def leaves_s(self, seen: PoolSeen, plan: Plan, slots: IntArray) -> float:
        """See `Tiresias.leaves_s`."""
        asked = np.maximum(seen.claims.asked, 1)
        bounds = np.append(self.quanta_slot_s, np.inf)[plan.level]
        looks: FloatArray = np.where(
            slots > 0, np.ceil((bounds - seen.standing.attained_slot_s / asked) / asked), np.inf
        )
        return float(looks.min(initial=np.inf))


def _timed(
    trace: Trace, policy: Policy, nodes: Nodes, *, placement: Placement | None = None, **how: Any
) -> tuple[Run, float]:
    """A run and its seconds of one processor."""
    jobs = workload(trace, **how)
    begin = time.process_time()
    run = simulate(jobs, nodes, Rules(policy, placement=placement or Placement()))
    return run, time.process_time() - begin


def tiresias() -> Iterable[Row]:
    """The 60 jobs of Tiresias on 8 GPUs, beside what its own simulator says."""
    trace = read_trace(DATA / "tiresias" / "60_job.csv")
    cases: Sequence[tuple[str, Policy, float]] = (
        ("fifo", Fifo(), 1556.5),
        ("2D-LAS, 3250 and 7200", Tiresias(), 715.3),
        ("2D-LAS, 500 and 10,000", Tiresias(_QUANTA), 791.2),
        ("the same, looking when it looks", _TheirTimes(_QUANTA), 791.2),
        ("srtf", Srtf(), 563.4),
    )
    for name, policy, reported in cases:
        run, took_s = _timed(trace, policy, Nodes.of(8))
        yield _row(f"60 jobs, 8 GPUs: {name}", run, took_s, f"{reported:,.1f}", digits=1)


def cluster(vc: str) -> Iterable[Row]:
    """A crowded virtual cluster of Philly, without machines, work left off by 35 % for `worth`."""
    gpus = _CLUSTERS[vc]
    reported = {
        "6c71a0": ("51,158", "36,553", "26,122", "0.65 of it"),
        "6214e9": ("66,707", "58,183", "29,362", "0.50 of it"),
        "b436b2": ("32,137", "28,732", "23,933", "0.80 of it"),
    }[vc]
    trace = read_philly(vc)
    trace = _only(trace, lambda jobs, row: bool(jobs.slots[row] <= gpus))
    cases: Sequence[tuple[str, Policy, str, float]] = (
        ("tiresias", Tiresias(_QUANTA), reported[0], 0.0),
        ("elastic-tiresias", ElasticTiresias(), reported[1], 0.0),
        ("srtf", Srtf(), reported[2], 0.0),
        ("worth", Worth(), f"aim {reported[3]}", _OFF),
        ("worth, off by 4.5", Worth(), "aim below it", 1.5),
    )
    known, elastic_s = a100_curves(), None
    for name, policy, said, off in cases:
        run, took_s = _timed(trace, policy, Nodes.of(gpus), known=known, error_log_sd=off, seed=1)
        elastic_s = run.mean_s if name == "elastic-tiresias" else elastic_s
        told = f": {run.mean_s / elastic_s:.2f}" if elastic_s and name.startswith("worth") else ""
        yield _row(f"{vc}, {len(trace):,} jobs, {gpus} GPUs: {name}", run, took_s, said + told)


def speed() -> Iterable[Row]:
    """All of Philly on 512 GPUs, counted only: how long a policy takes."""
    trace, known = read_philly(), a100_curves()
    for name, policy in (("fifo", Fifo()), ("srtf", Srtf()), ("tiresias", Tiresias(_QUANTA))):
        run, took_s = _timed(trace, policy, Nodes.of(512), known=known)
        yield _row(f"{len(trace):,} jobs, 512 GPUs: {name}", run, took_s, "aim < 60 s")


def sizes() -> Iterable[Row]:
    """All of Philly by number of GPUs and way of placing: Elastic-Tiresias over Tiresias."""
    trace, known = read_philly(), a100_curves()
    ways = {
        "machines of 8, best fit": (_A_NODE, Placement("best")),
        "machines of 8, roomiest": (_A_NODE, Placement("roomiest", displace=False)),
    }
    for gpus in _SIZES:
        for way, (slots, placement) in ways.items():
            nodes = Nodes.of(*[slots] * (gpus // slots))
            base = None
            for name, policy in (("tiresias", Tiresias(_QUANTA)), ("elastic-tiresias", ElasticTiresias())):
                run, took_s = _timed(trace, policy, nodes, placement=placement, known=known)
                said = "" if base is None else _reductions(base, run)
                base = base or run
                yield _row(f"all of Philly, {gpus:,} GPUs, {way}: {name}", run, took_s, said)


def _reductions(base: Run, run: Run) -> str:
    """Of mean, median and 95th percentile, percent."""
    of = [
        100.0 * (run_s / base_s - 1.0)
        for run_s, base_s in zip(_statistics(run), _statistics(base), strict=True)
    ]
    return ", ".join(f"{change:+.0f}" for change in of) + " %"


def _statistics(run: Run) -> tuple[float, float, float]:
    done = run.completion_s
    return run.mean_s, float(np.median(done)), float(np.quantile(done, 0.95))


def _row(name: str, run: Run, took_s: float, said: str, digits: int = 0) -> Row:
    mean, median, late = _statistics(run)
    return (
        name,
        f"{mean:,.{digits}f}",
        f"{median:,.0f}",
        f"{late:,.0f}",
        f"{run.slot_s.sum() / 3600.0:,.0f}",
        f"{run.events:,}",
        f"{took_s:.1f}",
        said,
    )


_PARTS: dict[str, Callable[[], Iterable[Row]]] = {
    "tiresias": tiresias,
    **{vc: partial(cluster, vc) for vc in _CLUSTERS},
    "speed": speed,
    "sizes": sizes,
}


def of_parts(parts: Sequence[str]) -> Benchmark:
    """The benchmark with some of its parts."""

    def run(repetitions: int, work_dir: Path) -> Result:
        rows = []
        for part in parts:
            for row in _PARTS[part]():
                print(*row, sep=" | ", flush=True)
                rows.append(row)
        return Result(
            headers=(
                "jobs and policy",
                "mean, s",
                "median",
                "95 %",
                "GPU hours",
                "decisions",
                "CPU, s",
                "reported",
            ),
            rows=tuple(rows),
            verdict="the function that real pools ask, in virtual time; changes cost nothing",
            figures={
                row[0]: dict(zip(("mean_s", "median_s", "p95_s"), row[1:4], strict=True)) for row in rows
            },
            remarks=(
                "seconds from submission to end; CPU: of one processor, without reading",
                "reported: of the 60 jobs by Tiresias's own simulator, which takes GPU-seconds for seconds where it "
                "plans its next look at used quanta; of Philly by a prototype in C; of Elastic-Tiresias over Tiresias: "
                "mean, median, 95th percentile, which its paper gives as -89.5, -48.1 and -95.4 %",
                "curves of jobs: ElasticFlow's on A100s, drawn at random; strong scaling",
            ),
        )

    return Benchmark("scheduling", 1, run)


BENCHMARK = replace(of_parts(tuple(_PARTS)), repetitions=1)
