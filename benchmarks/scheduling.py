"""Many jobs on one pool: published traces in virtual time, by the policies that pools decide by.

`python -m benchmarks scheduling:tiresias,6c71a0` takes some of its parts: `tiresias`, a virtual cluster, `speed`,
`whole`, a number of GPUs, or VMs that are rented for `week`, `cluster04` or `cluster07`. All of them take hours.
`python -m benchmarks job_models` are those whose jobs follow models of their speed, by name `pollux`, `types` and
`deadlines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import pollux_jobs
from benchmarks.figures import Benchmark, Result
from benchmarks.pool_rows import HEADERS, Row, Timed
from benchmarks.public_steps import DATA
from scavenger.control.pools.traces import NamedCurves, Trace, interpolated, read_trace, workload
from scavenger.control.provisioning.prices import open_catalog
from scavenger.control.search.tables import number, read_table
from scavenger.domain.curve import FloatArray, IntArray
from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.bound import alone_mean, srpt_mean
from scavenger.scheduler.jobs.deadlines import CAUTIOUS, CERTAIN, Caution, Edf, promise
from scavenger.scheduler.jobs.placing import Placement
from scavenger.scheduler.jobs.policies import Fifo, Patience, Policy, Srtf, ranked, rigid
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.renting import Rental
from scavenger.scheduler.jobs.simulation import Workload
from scavenger.scheduler.jobs.tiresias import ElasticTiresias, Tiresias
from scavenger.scheduler.jobs.values import Curves, Nodes, Plan, PoolSeen
from scavenger.scheduler.jobs.worth import Goodput, Worth

_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_CLUSTERS = {"6c71a0": 48, "6214e9": 56, "b436b2": 64}
"""Virtual clusters of Philly, and GPUs with which they are crowded."""
_QUANTA = (500.0, 10_000.0)
_SIZES = (384, 512, 768, 1024, 2304)
_A_NODE = 8
_OFF = 0.35
"""Standard deviation of the logarithm of the work left that `worth` is told."""


def read_philly(vc: str | None = None) -> Trace:
    """The jobs of Philly, or of one of its virtual clusters.

    Raises:
        ConfigurationError: The trace is not there.
    """
    path = DATA / "philly" / "philly_compact.csv.gz"
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
) -> Timed:
    return Timed.of([workload(trace, **how)], nodes, Rules(policy, placement=placement or Placement()))


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
        run = _timed(trace, policy, Nodes.of(8))
        yield run.row(f"60 jobs, 8 GPUs: {name}", f"{reported:,.1f}", digits=1)


def cluster(vc: str) -> Iterable[Row]:
    """A crowded virtual cluster of Philly, without machines, work left off by 35 % for `worth`."""
    gpus = _CLUSTERS[vc]
    reported = {
        "6c71a0": ("51,158", "36,553", "26,122", "0.65 of it", "8,586"),
        "6214e9": ("66,707", "58,183", "29,362", "0.50 of it", "21,709"),
        "b436b2": ("32,137", "28,732", "23,933", "0.80 of it", "11,102"),
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
        run = _timed(trace, policy, Nodes.of(gpus), known=known, error_log_sd=off, seed=1)
        elastic_s = run.mean_s if name == "elastic-tiresias" else elastic_s
        told = f": {run.mean_s / elastic_s:.2f}" if elastic_s and name.startswith("worth") else ""
        yield run.row(f"{vc}, {len(trace):,} jobs, {gpus} GPUs: {name}", said + told)
    jobs = workload(trace, known)
    least_s = max(srpt_mean(jobs, gpus), alone_mean(jobs, gpus))
    yield (
        f"{vc}, {len(trace):,} jobs, {gpus} GPUs: no policy below",
        f"{least_s:,.0f}",
        *[""] * 5,
        reported[4],
    )


def speed() -> Iterable[Row]:
    """All of Philly on 512 GPUs, counted only: how long each policy takes."""
    trace, known = read_philly(), a100_curves()
    for name, policy in {**POLICIES, "tiresias": Tiresias(_QUANTA)}.items():
        run = _timed(trace, policy, Nodes.of(512), known=known)
        yield run.row(f"{len(trace):,} jobs, 512 GPUs: {name}", "aim < 60 s")


def whole() -> Iterable[Row]:
    """All of Philly, without machines: `worth`, work left off by 35 %, beside Elastic-Tiresias."""
    trace, known = read_philly(), a100_curves()
    for gpus, reported in ((512, "14,676, 1,129, 41,689"), (768, "6,943, 578, 18,473")):
        base = _timed(trace, ElasticTiresias(), Nodes.of(gpus), known=known)
        yield base.row(f"all of Philly, {gpus} GPUs: elastic-tiresias", reported)
        run = _timed(trace, Worth(), Nodes.of(gpus), known=known, error_log_sd=_OFF, seed=1)
        aim = "aim +0, -15, -10 %"
        yield run.row(f"all of Philly, {gpus} GPUs: worth", f"{aim}: {_reductions(base, run)}")


def size(gpus: int) -> Iterable[Row]:
    """All of Philly by way of placing and cost of a change: Elastic-Tiresias over Tiresias."""
    trace, known = read_philly(), a100_curves()
    ways = {
        "counted only": (gpus, Placement()),
        "machines of 8, best fit": (_A_NODE, Placement("best")),
        "machines of 8, roomiest": (_A_NODE, Placement("roomiest", displace=False)),
    }
    for way, (slots, placement) in ways.items():
        nodes = Nodes.of(*[slots] * (gpus // slots))
        for change_s in (0.0, 30.0):
            base = None
            for name, policy in (("tiresias", Tiresias(_QUANTA)), ("elastic-tiresias", ElasticTiresias())):
                run = _timed(trace, policy, nodes, placement=placement, known=known, change_s=change_s)
                said = "" if base is None else _reductions(base, run)
                base = base or run
                yield run.row(f"{gpus:,} GPUs, {way}, {change_s:.0f} s a change: {name}", said)


def _reductions(base: Timed, run: Timed) -> str:
    """Of mean, median and 95th percentile, percent."""
    of = [
        100.0 * (run_s / base_s - 1.0) for run_s, base_s in zip(run.statistics, base.statistics, strict=True)
    ]
    return ", ".join(f"{change:+.0f}" for change in of) + " %"


_VM = ("gcp", "us-central1", "a2-highgpu-1g")
"""A VM with the GPU of the curves."""
_START_S = 120.0
_IDLE_S = 120.0
"""As long as a start costs: at most twice the best that could be done by who knew when the next job comes."""
_TRACES = {"week": 600, "cluster04": 550, "cluster07": 300}
"""Jobs that rent their GPUs, and VMs with which a pool of them is crowded."""


def _busiest_week() -> Trace:
    """The jobs of the seven days in which Philly had most of them, each with all of its work."""
    trace, week_s = read_philly(), 7 * 86_400.0
    ends = np.searchsorted(trace.submitted_s, trace.submitted_s + week_s)
    begin = int(np.argmax(ends - np.arange(len(trace))))
    return _only(trace, lambda jobs, row: begin <= row < ends[begin])


def rented(name: str) -> Iterable[Row]:
    """A set of VMs for each job, on demand and with what it asked for, beside a pool that rents its VMs.

    An hour of a job is worth what it asked for, or so much that jobs by themselves, each on VMs of its own, would have
    the mean time of the first row.
    """
    trace = _busiest_week() if name == "week" else read_trace(DATA / "itp" / f"{name}.csv.gz")
    usd_per_s = open_catalog().price(*_VM).usd_per_hour / 3600.0
    jobs = workload(trace, a100_curves(), change_s=30.0, error_log_sd=_OFF, seed=1)
    begin, done = f"{name}, {len(trace):,} jobs", trace.lasts_s + _START_S
    own_usd, own_s = float((done * trace.slots).sum()) * usd_per_s, float(done.mean())
    yield (
        f"{begin}: own VMs",
        f"{own_s:,.0f}",
        f"{np.median(done):,.0f}",
        f"{np.quantile(done, 0.95):,.0f}",
        f"{(trace.lasts_s * trace.slots).sum() / 3600.0:,.0f}",
        "",
        "",
        f"${own_usd:,.0f}",
    )
    rental = Rental(usd_per_s, _START_S, 100_000, idle_s=_IDLE_S)
    equal = replace(rental, job_usd_per_s=usd_per_s * _slots_of_an_hour(jobs, own_s))
    few = replace(equal, most=_TRACES[name])
    for said, policy, what in (
        ("worth", Worth(), rental),
        ("worth, equal mean", Worth(), equal),
        (f"worth, {few.most} VMs", Worth(), few),
        (f"even, {few.most} VMs", POLICIES["even"], few),
    ):
        run = Timed.of([jobs], what, Rules(policy))
        vms = run.runs[0].vms
        assert vms is not None
        dollars, mean = (
            100.0 * (ours / own - 1.0) for ours, own in ((vms.usd, own_usd), (run.mean_s, own_s))
        )
        found = f"${vms.usd:,.0f}: {dollars:+.1f} %, mean {mean:+.1f} %"
        yield run.row(f"{begin}: {said}", found)


def _slots_of_an_hour(jobs: Workload, mean_s: float) -> float:
    """What an hour of a job is worth, in slots, if jobs that have what they are worth take so long in the mean."""
    rates = jobs.curves.rates[jobs.claims.curve][:, 1:]
    slots, lasts_s = (
        np.arange(1, rates.shape[1] + 1),
        jobs.work[:, None] / rates + _START_S + jobs.change_s[:, None],
    )

    def taken_s(worth: float) -> float:
        at = np.argmin((slots + worth) * lasts_s, axis=1)
        return float(lasts_s[np.arange(len(jobs)), at].mean())

    low, high = 0.01, 64.0
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if taken_s(middle) > mean_s else (low, middle)
    return high


POLLUX_QUANTA = (57_600.0,)
"""GPU-seconds after which its simulator takes a job from the first queue."""


@dataclass(frozen=True, slots=True)
class _InOrder(Tiresias):
    """Tiresias as Pollux's simulator has it: within a queue in the order of arrival, whoever has slots."""

    def plan(self, seen: PoolSeen, patience: Patience) -> Plan:
        """See `Policy.plan`."""
        level, promoted = self.levels(seen)
        return replace(rigid(seen, ranked(seen, patience, level)), level=level, promoted=promoted)


def pollux() -> Iterable[Row]:
    """The eight workloads of Pollux on 16 nodes of four T4s, decisions each 60 s; the last row at events."""
    nodes = Nodes.of(*[pollux_jobs.A_NODE] * 16)
    jobs = [workload(pollux_jobs.rigid(number), change_s=30.0) for number in pollux_jobs.WORKLOADS]
    adaptive = {
        change_s: [pollux_jobs.adaptive(number, change_s=change_s) for number in pollux_jobs.WORKLOADS]
        for change_s in (30.0, 1.0)
    }
    rng = np.random.default_rng(1)
    off = [replace(one, told=one.work * rng.lognormal(0.0, _OFF, len(one))) for one in adaptive[30.0]]
    cases: Sequence[tuple[str, Policy, Sequence[Workload], float, str]] = (
        ("tiresias", Tiresias(POLLUX_QUANTA), jobs, 60.0, "1.122, 16.0, 24.1"),
        ("tiresias, a queue in its order", _InOrder(POLLUX_QUANTA), jobs, 60.0, "1.122, 16.0, 24.1"),
        ("goodput, 30 s", Goodput(), adaptive[30.0], 60.0, "0.764, 13.0, 16.7"),
        ("worth, 30 s", Worth(), adaptive[30.0], 60.0, "aim 0.76"),
        ("worth, 30 s, left off by 35 %", Worth(), off, 60.0, "aim 0.76"),
        ("worth, 1 s, at events", Worth(), adaptive[1.0], 0.0, "aim 0.70"),
    )
    for name, policy, ours, every_s, said in cases:
        run = Timed.of(ours, nodes, Rules(policy), every_s=every_s)
        done = run.completion_s / 3600.0
        makespan = np.mean([one.makespan_s for one in run.runs]) / 3600.0
        found = f"{done.mean():.3f}, {np.quantile(done, 0.99):.1f}, {makespan:.1f}"
        yield run.row(f"pollux, 8 x 160 jobs: {name}", f"{said} h: {found}")


@dataclass(frozen=True, slots=True)
class _Whichever(Worth):
    """Worth, but the type of nodes is whichever fits."""

    def types_worth(self, seen: PoolSeen) -> FloatArray | None:
        """See `Policy.types_worth`."""
        return None


def types() -> Iterable[Row]:
    """The same workloads on 8 nodes of four T4s and 4 nodes of eight GPUs that compute faster."""
    nodes = Nodes(np.array([4] * 8 + [8] * 4), np.ones(12, dtype=bool), np.array([0] * 8 + [1] * 4))
    adaptive = {
        change_s: [
            pollux_jobs.adaptive(number, change_s=change_s, types=2) for number in pollux_jobs.WORKLOADS
        ]
        for change_s in (30.0, 1.0)
    }
    cases: Sequence[tuple[str, Policy, Sequence[Workload], float]] = (
        ("worth, 30 s, whichever type fits", _Whichever(), adaptive[30.0], 60.0),
        ("goodput, 30 s", Goodput(), adaptive[30.0], 60.0),
        ("worth, 30 s", Worth(), adaptive[30.0], 60.0),
        ("worth, 1 s, at events", Worth(), adaptive[1.0], 0.0),
    )
    base_s = None
    for name, policy, ours, every_s in cases:
        run = Timed.of(ours, nodes, Rules(policy), every_s=every_s)
        base_s = base_s or run.mean_s
        yield run.row(f"two types, 8 x 160 jobs: {name}", f"{run.mean_s / base_s:.2f} of the first")


_DEADLINE_JOBS = 200


def _with_deadlines(load: float, off: float) -> Workload:
    """Jobs on 64 GPUs at a load: half an hour in the median, due after 0.5 to 1.5 times that with what they ask for."""
    rng = np.random.default_rng(int(load * 100))
    lasts_s, slots = (
        rng.lognormal(np.log(1800.0), 1.0, _DEADLINE_JOBS),
        rng.choice([1, 2, 4, 8], _DEADLINE_JOBS),
    )
    apart_s = float((lasts_s * slots).mean()) / (load * 64)
    trace = Trace(
        np.cumsum(rng.exponential(apart_s, _DEADLINE_JOBS)),
        lasts_s,
        slots,
        np.zeros_like(slots),
        ("",) * _DEADLINE_JOBS,
        ("",) * _DEADLINE_JOBS,
    )
    jobs = workload(trace, a100_curves(), change_s=1.0, error_log_sd=off, seed=1)
    due_s = jobs.claims.submitted_s + lasts_s * rng.uniform(0.5, 1.5, _DEADLINE_JOBS)
    return replace(jobs, claims=replace(jobs.claims, deadline_s=due_s))


def deadlines() -> Iterable[Row]:
    """Jobs with deadlines at loads from 0.5 to 1.5; of each policy how many are met, and how many promises are not."""
    nodes = Nodes.of(*[_A_NODE] * 8)
    cases: Sequence[tuple[str, Policy, Caution | None]] = (
        ("edf, all let in", Edf(), None),
        ("edf", Edf(), CERTAIN),
        ("ElasticFlow's rule", Worth(0.0, CERTAIN), CERTAIN),
        ("worth", Worth(), CAUTIOUS),
    )
    for off in (0.0, _OFF):
        for load in (0.5, 1.0, 1.5):
            jobs = _with_deadlines(load, off)
            for name, policy, caution in cases:
                run = Timed.of([jobs], nodes, Rules(policy), accepts=_accepts(caution))
                done = run.completion_s
                met = done <= jobs.claims.deadline_s - jobs.claims.submitted_s
                let_in = np.isfinite(done)
                ended = replace(run.runs[0], completion_s=done[let_in])
                late = (let_in & ~met).sum() / let_in.sum()
                said = (
                    f"{100 * met.mean():.0f} % met, {100 * let_in.mean():.0f} % let in, "
                    f"{100 * late:.1f} % of them late"
                )
                told = f", left off by {100 * off:.0f} %" if off else ""
                yield replace(run, runs=(ended,)).row(
                    f"{_DEADLINE_JOBS} jobs, load {load}{told}: {name}", said
                )


def _accepts(caution: Caution | None) -> Callable[[PoolSeen, int], bool] | None:
    return None if caution is None else lambda seen, row: promise(seen, row, caution).kept


_PARTS: dict[str, tuple[Callable[[], Iterable[Row]], tuple[str, ...]]] = {
    "tiresias": (tiresias, ("tiresias",)),
    **{vc: (partial(cluster, vc), ("philly", "elasticflow")) for vc in _CLUSTERS},
    "speed": (speed, ("philly", "elasticflow")),
    "whole": (whole, ("philly", "elasticflow")),
    **{str(gpus): (partial(size, gpus), ("philly", "elasticflow")) for gpus in _SIZES},
    **{name: (partial(rented, name), ("philly", "itp", "elasticflow")) for name in _TRACES},
    "pollux": (pollux, ("pollux",)),
    "types": (types, ("pollux",)),
    "deadlines": (deadlines, ("elasticflow",)),
}
"""What gives the rows of a part, and the sets of data that it needs."""
_MODELS = ("pollux", "types", "deadlines")


def _rows(parts: Iterable[str]) -> Iterable[Row]:
    """The rows of these parts; of one whose data are not there, a line says so."""
    for part in parts:
        rows, needs = _PARTS[part]
        if missing := [name for name in needs if not (DATA / name).is_dir()]:
            print(f"{part}: left out: there is no {DATA / missing[0]}", flush=True)
            continue
        for row in rows():
            print(*row, sep=" | ", flush=True)
            yield row


def of_parts(parts: Sequence[str]) -> Benchmark:
    """The benchmark with some of its parts."""

    def run(repetitions: int, work_dir: Path) -> Result:
        rows = tuple(_rows(parts))
        return Result(
            headers=HEADERS,
            rows=rows,
            verdict="the function that real pools ask, in virtual time; changes cost nothing unless said",
            figures=_figures(rows),
            remarks=(
                "seconds from submission to end; CPU: of one processor, without reading",
                "reported: of the 60 jobs by Tiresias's own simulator, which takes GPU-seconds for seconds where it "
                "plans its next look at used quanta; of Philly by a prototype in C; of Elastic-Tiresias over Tiresias: "
                "mean, median, 95th percentile, which its paper gives as -89.5, -48.1 and -95.4 %",
                "own VMs: a set of VMs for each job as soon as it comes, with what it asked for; a start takes two "
                "minutes on both sides, a change of a share half a minute; dollars and mean time beside it; list "
                "prices of a2-highgpu-1g, on demand, work left off by 35 %",
                "curves of jobs: ElasticFlow's on A100s, drawn at random; strong scaling",
            ),
        )

    return Benchmark("scheduling", 1, run)


def _figures(rows: Iterable[Row]) -> dict[str, Any]:
    return {row[0]: dict(zip(("mean_s", "median_s", "p95_s"), row[1:4], strict=True)) for row in rows}


def _models(repetitions: int, work_dir: Path) -> Result:
    rows = tuple(_rows(_MODELS))
    return Result(
        headers=HEADERS,
        rows=rows,
        verdict="the function that real pools ask, in virtual time; jobs by models of their speed",
        figures=_figures(rows),
        remarks=(
            "pollux: mean, 99th percentile and makespan in hours as its authors report them: ours. A job has ten "
            "stages, each with its curve of goodput at the best batch size; policies know the curve of the stage. "
            "`tiresias` lets whoever has slots go first within a queue; their simulator does not",
            "two types: gradients take 1.5 to 3.3 times as long on T4s, by kind of job: assumed, since no set of data "
            "has these jobs on two types",
            "deadlines: of all jobs so many are met; a job that cannot be promised its deadline is not let in, and the "
            "times are of those that are; late ones are false promises. ElasticFlow's rule takes all as told",
        ),
    )


BENCHMARK = replace(of_parts(tuple(part for part in _PARTS if part not in _MODELS)), repetitions=1)
MODELS = Benchmark("job_models", 1, _models)
