"""Sixteen real jobs on a pool of 32 slots of this machine: elastic policies against four workers for each.

The jobs are played (`played_job`): their steps sleep for as long as ElasticFlow's A100 step times say. All else is
real. `python -m benchmarks sixteen:static,worth` takes some of the policies, `sixteen:keras` four Keras jobs on two
slots, of which nothing is played, and `sixteen:4` the first four jobs on 8 slots.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.public_steps import DATA
from benchmarks.real_pool import Kind, RealPool, Steps, kinds, real_pool
from scavenger.domain.curve import FloatArray
from scavenger.scheduler.jobs.allotting import Rules
from scavenger.scheduler.jobs.policy_table import POLICIES
from scavenger.scheduler.jobs.simulation import Run, Workload, simulate
from scavenger.scheduler.jobs.values import Claims, Curves, Nodes

JOBS, EACH_S, SLOTS, ASKED, MOST = 16, 3.0, 32, 4, 8
STATIC, KERAS = "static", "keras"
_ELASTIC = ("elastic-tiresias", "worth")
_KINDS = ("bert 128", "deepspeech2 64", "inception3 128", "resnet50 256", "vgg16 256", "gpt2 256")
_EPOCH_S, _EPOCHS = 4.0, (4, 14)
"""Length of an epoch with four workers; fewest and most epochs of a job."""
BIN_S = 3.0
_AS_FAST = 0.02
"""Jobs on four workers by which a run may be slower than another and still count as fast."""
_PACE = 10.0
"""So much faster are jobs submitted here than in the figure, and as much shorter they are."""
_LIMIT_S = 900.0
_KERAS_JOBS, _KERAS_SLOTS, _KERAS_EPOCHS = 4, 2, 40
_KERAS_MODULE = """\
import keras
from scavenger.sdk import KerasJob
from sklearn.datasets import load_digits


def job():
    x, y = load_digits(return_X_y=True)
    layers = [keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10, "softmax")]
    model = keras.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return KerasJob(model=model, train=(x[:1437] / 16, y[:1437]), validation=(x[1437:] / 16, y[1437:]))
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a policy made of the jobs.

    Attributes:
        submitted_s, begun_s, ended_s: Of each job, from the first submission.
        speed: Work done in each `BIN_S`, in jobs on four workers.
        start_s: From a job's begin until its first step has ended, and from its last step until its slots are free.
        server: Share of a processor that the server took over all, and in the longest time in which nothing changed.
        still_s: How long that was.
        busy: Share of the processors that anybody used.
        simulated: The same in virtual time; None for jobs that are not played.
        at_pace: In virtual time as slowly as in the figure, where begins and changes weigh less.
    """

    submitted_s: FloatArray
    begun_s: FloatArray
    ended_s: FloatArray
    speed: FloatArray
    start_s: Spread
    server: tuple[float, float]
    still_s: float
    busy: float
    worker_start_s: Spread
    change_s: Spread
    moves: int
    simulated: Run | None
    at_pace: Run | None = None

    @property
    def completion_s(self) -> FloatArray:
        """From submission to end."""
        return self.ended_s - self.submitted_s

    @property
    def mean_s(self) -> float:
        """Mean time from submission to end."""
        return float(self.completion_s.mean())

    @property
    def off(self) -> FloatArray:
        """By how much each job's time in virtual time differs, as a share of the real one."""
        assert self.simulated is not None
        return self.simulated.completion_s / self.completion_s - 1.0

    @property
    def mean_off(self) -> float:
        """The same of the mean time."""
        assert self.simulated is not None
        return self.simulated.mean_s / self.mean_s - 1.0


def works(count: int) -> list[tuple[Kind, int]]:
    """The jobs, each with its kind and epochs."""
    rng = np.random.default_rng(7)
    known, epochs = kinds(_KINDS, MOST), rng.integers(*_EPOCHS, count, endpoint=True)
    return [(known[at % len(known)], int(some)) for at, some in enumerate(epochs)]


def _learned(folder: Path) -> Path:
    """A store in which a job of each kind has run, so that those that follow search nothing."""
    with real_pool(folder, MOST * len(_KINDS), "even") as pool:
        for number, kind in enumerate(kinds(_KINDS, MOST)):
            spec = kind.spec(epochs=2, epoch_s=_EPOCH_S, workers=(1, 2, 4, MOST), elastic=(1, MOST))
            pool.submit(f"first-{number}", spec)
        pool.wait(lambda: pool.ended(*pool.jobs), _LIMIT_S)
    return folder / "store.db"


def _submit_each(pool: RealPool, specs: Iterable[Mapping[str, Any]]) -> float:
    """Submit jobs one after the other and wait for their ends; returns how busy the processors were."""
    psutil.cpu_percent()
    begin = time.monotonic()
    for number, spec in enumerate(specs):
        pool.wait(lambda due=begin + number * EACH_S: time.monotonic() >= due, _LIMIT_S)  # type: ignore[misc]
        pool.submit(f"job-{number}", spec)
    pool.wait(lambda: pool.ended(*pool.jobs), _LIMIT_S)
    return float(psutil.cpu_percent()) / 100.0


def _played(folder: Path, policy: str, jobs: Sequence[tuple[Kind, int]], slots: int, known: Path) -> Ran:
    elastic = policy != STATIC
    span = (1, MOST) if elastic else (ASKED, ASKED)
    specs = [
        kind.spec(epochs=epochs, epoch_s=_EPOCH_S, workers=(ASKED,), elastic=span) for kind, epochs in jobs
    ]
    with real_pool(folder, slots, policy if elastic else "fifo", known) as pool:
        busy = _submit_each(pool, specs)
        ran = _read(pool, [kind.batch * kind.rates[ASKED - 1] for kind, _ in jobs], busy)
        played = [_rates(kind, pool.steps(job)) for job, (kind, _) in zip(pool.jobs, jobs, strict=True)]
    whole = np.ones(len(jobs), dtype=np.int64)
    claims = Claims(
        user=0 * whole,
        priority=0 * whole,
        submitted_s=ran.submitted_s,
        least=span[0] * whole,
        asked=ASKED * whole,
        most=span[1] * whole,
        curve=np.arange(len(jobs)),
    )
    curves = Curves(np.stack([np.r_[0.0, rates] for rates in played]))
    work = np.array([epochs * kind.samples(_EPOCH_S) for kind, epochs in jobs], dtype=np.float64)
    nothing = np.zeros(len(jobs))
    rules = Rules(POLICIES[policy if elastic else "fifo"])

    def virtual(pace: float) -> Run:
        workload = Workload(
            claims,
            curves,
            work,
            work,
            nothing,
            nothing + ran.change_s.median / pace,
            begin_s=nothing + ran.start_s.median / pace,
            worker_s=nothing + ran.worker_start_s.median / pace,
        )
        return simulate(workload, Nodes.of(slots), rules, rests=True)

    return replace(ran, simulated=virtual(1.0), at_pace=virtual(_PACE))


def _rates(kind: Kind, steps: Steps) -> FloatArray:
    """Samples a second with 1, 2, ... workers: the steps that are played, and what their exchange took besides."""
    step_s = 1.0 / np.array(kind.rates)
    besides_s = max(0.0, float(np.median(steps.took_s - step_s[steps.workers.astype(int) - 1])))
    rates: FloatArray = kind.batch / (step_s + besides_s)
    return rates


def _keras(folder: Path, policy: str) -> Ran:
    elastic = policy != STATIC
    spec = {
        "train": "digits:job",
        "goal": {"max_epochs": _KERAS_EPOCHS},
        "objective": "time",
        "search": {"workers": [1], "batch_size": [64]},
        "elastic": {"min": 1, "max": _KERAS_SLOTS if elastic else 1},
        "profile": {"steps": 4},
    }
    with real_pool(folder, _KERAS_SLOTS, policy if elastic else "fifo") as pool:
        (folder / "jobs" / "digits.py").write_text(_KERAS_MODULE)
        busy = _submit_each(pool, [spec] * _KERAS_JOBS)
        return _read(pool, [math.inf] * _KERAS_JOBS, busy)


def _read(pool: RealPool, per_s: Sequence[float], busy: float) -> Ran:
    """What the records of a run say.

    Args:
        per_s: Samples a second of each job on four workers.
    """
    records = [pool.submission(job) for job in pool.jobs]
    zero = records[0].submitted_at.timestamp()
    moves = pool.moves()
    times = [(one.submitted_at, one.ended_at) for one in records]
    submitted, ended = np.array([[at.timestamp() - zero for at in row if at] for row in times]).T
    begun = np.array([moves.first_s(f": {one.job.name} begins") for one in records]) - zero
    speed, starts = np.zeros(int(ended.max() / BIN_S) + 1), []
    for row, job in enumerate(pool.jobs):
        steps = pool.steps(job)
        _spread(speed, steps.end_s - zero, steps.took_s, steps.samples / per_s[row])
        first, last = float(steps.end_s[0] - zero), float(steps.end_s[-1] - zero)
        starts.append(first - begun[row] + ended[row] - last)
    events = np.sort(np.r_[moves.at_s, submitted + zero, begun + zero, ended + zero])
    whole, still, still_s = _server_share(np.array(pool.used), events)
    return Ran(
        submitted_s=submitted,
        begun_s=begun,
        ended_s=ended,
        speed=speed / BIN_S,
        start_s=Spread.of(starts),
        server=(whole, still),
        still_s=still_s,
        busy=busy,
        worker_start_s=Spread.of(pool.worker_starts_s()),
        change_s=Spread.of(pool.changes_s() or [0.0]),
        moves=len(moves.lines),
        simulated=None,
    )


def _spread(speed: FloatArray, end_s: FloatArray, took_s: FloatArray, work: FloatArray) -> None:
    """Add the work of steps to the bins in which they were made."""
    for end, took, done in zip(end_s, took_s, work, strict=True):
        begin = max(0.0, end - took)
        for at in range(int(begin / BIN_S), min(int(end / BIN_S), len(speed) - 1) + 1):
            within = min(end, (at + 1) * BIN_S) - max(begin, at * BIN_S)
            speed[at] += done * max(0.0, within) / max(took, 1e-9)


def _server_share(used: FloatArray, events: FloatArray) -> tuple[float, float, float]:
    """Share of a processor that the server took: in all, and between the two events furthest apart; these seconds."""
    at, took = used.T
    whole = float((took[-1] - took[0]) / (at[-1] - at[0]))
    gap = int(np.argmax(np.diff(events)))
    rows = np.flatnonzero((at > events[gap] + 1.0) & (at < events[gap + 1] - 0.5))
    if len(rows) < 2:
        return whole, whole, 0.0
    first, last = rows[0], rows[-1]
    still_s = float(at[last] - at[first])
    return whole, float(took[last] - took[first]) / still_s, still_s


def as_fast(one: Ran, other: Ran) -> float:
    """Share of the time until its last job ends in which a run is as fast as the other."""
    theirs = np.zeros(len(one.speed))
    theirs[: len(other.speed)] = other.speed[: len(theirs)]
    return float((one.speed >= theirs - _AS_FAST).mean())


def run_policies(policies: Sequence[str], count: int, work_dir: Path) -> dict[str, Ran]:
    """Run the played jobs under each policy, one after the other.

    Raises:
        SystemExit: The measured step times are not there.
    """
    if not (DATA / "elasticflow" / "throughputs_A100").is_dir():
        raise SystemExit(f"the public measurements are not at {DATA}: nothing to play")
    known, jobs, slots = _learned(work_dir / "learned"), works(count), SLOTS * count // JOBS
    return {policy: _played(work_dir / policy, policy, jobs, slots, known) for policy in policies}


def _run(parts: Sequence[str], work_dir: Path) -> Result:
    count = next((int(part) for part in parts if part.isdigit()), JOBS)
    named = [part for part in parts if not part.isdigit()] or [*_ELASTIC, STATIC, KERAS]
    ran = run_policies([part for part in named if part != KERAS], count, work_dir) if named != [KERAS] else {}
    static = ran.get(STATIC)
    rows = [_row(f"{count} played: {policy}", one, static) for policy, one in ran.items()]
    figures = {policy: _figures(one) for policy, one in ran.items()}
    if KERAS in named:
        pair = {policy: _keras(work_dir / f"keras-{policy}", policy) for policy in ("worth", STATIC)}
        rows += [
            _row(f"{_KERAS_JOBS} of Keras, 2 slots: {name}", one, pair[STATIC]) for name, one in pair.items()
        ]
        figures |= {f"keras, {policy}": _figures(one) for policy, one in pair.items()}
    headers = (
        "jobs and policy",
        "mean, s",
        "of static",
        "at its pace",
        "makespan, s",
        "virtual mean, s",
        "a job off by",
        "as fast as static",
        "moves",
        "begin and end, s",
        "server, % (still)",
        "busy, %",
    )
    return Result(headers, tuple(rows), _verdict(ran), figures, _REMARKS)


_REMARKS = (
    f"{JOBS} jobs, one each {EACH_S:g} s: figure 15 of Wu et al. (docs/own-loop.md) has one each 30 s on 4 nodes of 8; "
    "ten times as fast here, on one node of 32 slots. What a begin, an end and a change of size cost is not scaled, so "
    "it weighs ten times as much",
    "steps last as long as ElasticFlow's on A100s, played: workers without TensorFlow sleep; all else is real, and so "
    "are the jobs of Keras; a job of each model has run before, so that its curve is known",
    "mean: from submission to end; static: four workers each, in order; of Keras one",
    f"as fast as static: share of the time until the last job's end, in parts of {BIN_S:g} s; speeds are relative to "
    "each job's with four workers",
    "virtual mean: `simulate` with the curves that are played, to which what exchanges took is added, and the medians "
    "of what the run's begins and ends, changes and starts of workers took; a job off by: at most, of its time",
    "at its pace: of static, in virtual time where those take a tenth, as they would with a job each 30 s",
    "server: processor time over all, and in the longest time in which nothing changed",
)


def _verdict(ran: Mapping[str, Ran]) -> str:
    static = ran.get(STATIC)
    if static is None or len(ran) < 2:
        return "only a part: nothing to compare"
    others = {policy: one for policy, one in ran.items() if policy != STATIC}
    found = []
    for policy, one in others.items():
        gain, fast = one.mean_s / static.mean_s - 1.0, as_fast(one, static)
        found.append(
            f"{policy} {gain:+.0%} of the mean time (aim -25 %), as fast as static {fast:.0%} of the time (aim 95 %)"
        )
    mean_off = max(abs(one.mean_off) for one in ran.values())
    job_off = max(float(np.abs(one.off).max()) for one in ran.values())
    virtual = f"virtual time off by {mean_off:.0%} at most (aim 5 %), a job by {job_off:.0%} (aim 15 %)"
    return "; ".join([*found, virtual])


def _row(name: str, one: Ran, static: Ran | None) -> tuple[str, ...]:
    of_static = at_pace = fast = virtual = off = "-"
    if static is not None and one is not static:
        of_static = f"{one.mean_s / static.mean_s - 1.0:+.1%}"
        fast = f"{as_fast(one, static):.0%}" if one.simulated is not None else "-"
        if one.at_pace is not None and static.at_pace is not None:
            at_pace = f"{one.at_pace.mean_s / static.at_pace.mean_s - 1.0:+.1%}"
    if one.simulated is not None:
        virtual = f"{one.simulated.mean_s:.1f} ({one.mean_off:+.1%})"
        off = f"{np.abs(one.off).max():.0%}"
    return (
        name,
        f"{one.mean_s:.1f}",
        of_static,
        at_pace,
        f"{one.ended_s.max():.0f}",
        virtual,
        off,
        fast,
        f"{one.moves}",
        one.start_s.text(),
        f"{one.server[0] * 100:.1f} ({one.server[1] * 100:.1f} in {one.still_s:.0f} s)",
        f"{one.busy * 100:.0f}",
    )


def _figures(one: Ran) -> Mapping[str, Any]:
    return {
        "completion_s": one.completion_s.tolist(),
        "simulated_s": None if one.simulated is None else one.simulated.completion_s.tolist(),
        "speed": one.speed.tolist(),
        "bin_s": BIN_S,
        "begin_and_end_s": one.start_s,
        "worker_start_s": one.worker_start_s,
        "change_s": one.change_s,
        "server_share": one.server[0],
        "server_share_still": one.server[1],
        "still_s": one.still_s,
        "busy": one.busy,
    }


def of_parts(parts: Sequence[str]) -> Benchmark:
    """The benchmark of some parts; see the module."""
    return Benchmark("sixteen", 1, lambda repetitions, work_dir: _run(parts, work_dir))


BENCHMARK = of_parts(())
