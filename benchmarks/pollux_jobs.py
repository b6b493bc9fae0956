"""The jobs of Pollux's simulator: how fast each trains with so many GPUs, at the best batch size, as it goes on.

Step times are those that its authors measured, by placement and local batch size; between them they are interpolated.
Goodput is steps a second, each counted as the steps at the least batch size that it is worth [1]_:

    gain(B) = (var + sqr) / (var / (B / B0) + sqr)

where `sqr` and `var` are the squared norm and the variance of the gradient at `B0`, as they were in each epoch.

References:
    .. [1] Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning", OSDI 2021.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from scipy.interpolate import LinearNDInterpolator

from benchmarks.public_steps import DATA
from scavenger.control.pools.traces import Trace
from scavenger.control.search.tables import number, read_table, whole
from scavenger.domain.curve import FloatArray, IntArray
from scavenger.scheduler.jobs.simulation import Stages, Workload
from scavenger.scheduler.jobs.values import Claims, Curves

FOLDER = DATA / "pollux"
A_NODE, SLOTS = 4, 64
WORKLOADS = range(1, 9)
_EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
"""After so many a job has ended."""
_LOCAL_MOST = {"yolov3": 8}
_PASSES = 16
"""Forward and backward passes of a step at most, where gradients are accumulated."""
QUICKER = {"imagenet": 2.8, "deepspeech2": 3.3, "bert": 3.0, "cifar10": 2.0, "ncf": 1.5, "yolov3": 2.5}
"""How much sooner a GPU of a second type has computed a gradient: assumed; the exchange takes as long."""
_STAGES = 10
"""Of a job, each with one curve: the mean over epochs of about as much time on one GPU."""


@dataclass(frozen=True)
class JobModel:
    """A kind of job.

    Attributes:
        points, times: Nodes, GPUs and local batch size; seconds of a step, and of these for the exchange of gradients.
        placed: The same by placement, for up to four nodes: local batch sizes, then the two times.
        batches: Global batch sizes of the runs, rising.
        sqr, var: Shape `(epochs, batches)`.
        progress: Steps at the least batch size that each epoch is worth, shape `(epochs,)`.
    """

    points: FloatArray
    times: FloatArray
    placed: Mapping[str, FloatArray]
    batches: IntArray
    sqr: FloatArray
    var: FloatArray
    progress: FloatArray
    local_most: int

    @cached_property
    def _between(self) -> LinearNDInterpolator:
        """For more nodes than have placements."""
        many = self.points[:, 0] >= max(map(len, self.placed))
        return LinearNDInterpolator(self.points[many], self.times[many])

    @property
    def local_least(self) -> int:
        """Least local batch size."""
        return int(self.points[:, 2].min())

    @property
    def most(self) -> int:
        """No more GPUs have a sample each."""
        return min(SLOTS, int(self.batches[-1]) // self.local_least)

    def step_times(self, slots: int, local: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Seconds of a step and of these for the exchange, on as few nodes as can be; NaN where nothing is known."""
        whole_nodes, rest = divmod(slots, A_NODE)
        name = (str(rest) if rest else "") + str(A_NODE) * whole_nodes
        known = self.placed.get(name)
        if known is not None:
            step, sync = (np.interp(local, known[0], row, left=np.nan, right=np.nan) for row in known[1:])
            return step, sync
        nodes = len(name)
        asked = np.column_stack([np.full(len(local), nodes), np.full(len(local), slots), local])
        found = self._between(asked)
        return found[:, 0], found[:, 1]

    def gain(self, batch: FloatArray) -> FloatArray:
        """Steps at the least batch size that one with these is worth, shape `(epochs, batches)`."""
        scale = batch / self.batches[0]
        rows = []
        for sqr, var in zip(self.sqr, self.var, strict=True):
            sqrs, variances = np.interp(batch, self.batches, sqr), np.interp(batch, self.batches, var)
            rows.append((variances + sqrs) / (variances / scale + sqrs))
        return np.stack(rows)

    def goodput(self) -> FloatArray:
        """Of each epoch with 0 to 64 GPUs, at the best batch size: shape `(epochs, 65)`."""
        rates = np.zeros((len(self.progress), SLOTS + 1))
        grid = np.geomspace(self.local_least, self.local_most, 24).round()
        passes = np.arange(1, _PASSES + 1)[:, None]
        least, most = self.batches[[0, -1]]
        for slots in range(1, self.most + 1):
            whole_batches = self.batches // (slots * passes)
            local = np.unique(np.r_[grid, whole_batches.ravel()])
            local = local[(local >= self.local_least) & (local <= self.local_most)]
            step, sync = self.step_times(slots, local)
            batch = slots * passes * local
            took_s = step + (passes - 1) * (step - sync)
            good = (batch >= least) & (batch <= most) & np.isfinite(took_s)
            if slots == 1:  # the noise is estimated from two gradients
                good &= (passes > 1) | (batch == least)
            if good.any():
                rates[:, slots] = (self.gain(batch[good]) / took_s[good]).max(axis=1)
        rates[:, self.most + 1 :] = rates[:, self.most, None]
        return rates

    def fixed_s(self, slots: int, batch: int) -> float:
        """Seconds from begin to end with so many GPUs at this global batch size."""
        local = math.ceil(batch / slots)
        passes = math.ceil(local / self.local_most)
        if slots == 1 and batch > self.batches[0]:
            passes = max(2, passes)
        each = min(math.ceil(local / passes), int(self.batches[-1]) // (slots * passes))
        step, sync = self.step_times(slots, np.array([float(each)]))
        took_s = step + (passes - 1) * (step - sync)
        rate = self.gain(np.array([float(slots * passes * each)])) / took_s
        return float((self.progress / rate[:, 0]).sum())


@cache
def job_model(name: str) -> JobModel:
    """The model of an application.

    Raises:
        ConfigurationError: Its files are not there.
    """
    folder = FOLDER / "jobs" / name
    placed: dict[str, list[tuple[float, ...]]] = {}
    points: dict[tuple[float, ...], list[tuple[float, float]]] = {}
    columns = ("local_bsz", "step_time", "sync_time")
    for row in read_table(folder / "placements.csv", ("placement", *columns)):
        local, step, sync = (number(row[column]) for column in columns)
        where = row["placement"]
        placed.setdefault(where, []).append((local, step, sync))
        points.setdefault((len(where), sum(map(int, where)), local), []).append((step, sync))
    for row in read_table(folder / "scalability.csv", ("num_nodes", "num_replicas", *columns)):
        local, step, sync = (number(row[column]) for column in columns)
        points.setdefault((whole(row["num_nodes"]), whole(row["num_replicas"]), local), []).append(
            (step, sync)
        )
    epochs = _EPOCHS[name]
    batches = sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("validation-*.csv"))
    runs = [
        read_table(folder / f"validation-{batch}.csv", ("progress", "grad_sqr", "grad_var"))[:epochs]
        for batch in batches
    ]

    def column(name: str) -> FloatArray:
        return np.array([[number(run[epoch][name]) for run in runs] for epoch in range(epochs)])

    return JobModel(
        points=np.array(list(points)),
        times=np.array([np.mean(found, axis=0) for found in points.values()]),
        placed={name: np.array(sorted(rows)).T for name, rows in placed.items()},
        batches=np.array(batches),
        sqr=column("grad_sqr"),
        var=column("grad_var"),
        progress=np.diff(column("progress").min(axis=1), prepend=0.0),
        local_most=_LOCAL_MOST.get(name, int(max(local for *_, local in points))),
    )


@cache
def quicker(name: str) -> JobModel:
    """The same kind of job on GPUs of a second type, with the same network."""
    model, ratio = job_model(name), QUICKER[name]
    times = np.column_stack(
        [(model.times[:, 0] - model.times[:, 1]) / ratio + model.times[:, 1], model.times[:, 1]]
    )
    placed = {
        name: np.stack([local, (step - sync) / ratio + sync, sync])
        for name, (local, step, sync) in model.placed.items()
    }
    return replace(model, times=times, placed=placed)


@cache
def stages(name: str, *, second: bool = False) -> tuple[FloatArray, FloatArray]:
    """The curves of a kind of job as it goes on, and the work of each stage in seconds on one T4.

    Of each stage the curve is that with which it takes as long with each number of GPUs, if these do not change.

    Args:
        second: On GPUs of the second type.
    """
    model = job_model(name)
    goodput = model.goodput()
    alone_s = model.progress / goodput[:, 1]
    if second:
        goodput = quicker(name).goodput()
    part = np.minimum((np.cumsum(alone_s) - 0.5 * alone_s) / alone_s.sum() * _STAGES, _STAGES - 1).astype(int)
    curves, work = [], []
    for stage in np.unique(part):
        rows = part == stage
        with np.errstate(divide="ignore"):
            took_s = (model.progress[rows, None] / goodput[rows]).sum(axis=0)
        work.append(alone_s[rows].sum())
        curves.append(work[-1] / took_s)
    return np.stack(curves), np.array(work)


@dataclass(frozen=True, slots=True)
class _Submitted:
    """The rows of a workload, in the order of submission."""

    submitted_s: FloatArray
    name: tuple[str, ...]
    slots: IntArray
    batch: IntArray


def _read(number_of: int, load: str) -> _Submitted:
    path = FOLDER / f"workloads{load}" / f"workload-{number_of}.csv"
    rows = read_table(path, ("time", "application", "num_replicas", "batch_size"))
    rows = sorted(rows, key=lambda row: number(row["time"]))
    return _Submitted(
        np.array([number(row["time"]) for row in rows]),
        tuple(row["application"] for row in rows),
        np.array([whole(row["num_replicas"]) for row in rows]),
        np.array([whole(row["batch_size"]) for row in rows]),
    )


def rigid(number_of: int, load: str = "") -> Trace:
    """A workload as users of a rigid scheduler submit it: GPUs and batch size of each job are what they ask for."""
    jobs = _read(number_of, load)
    lasts_s = [
        job_model(name).fixed_s(int(slots), int(batch))
        for name, slots, batch in zip(jobs.name, jobs.slots, jobs.batch, strict=True)
    ]
    empty = ("",) * len(lasts_s)
    return Trace(jobs.submitted_s, np.array(lasts_s), jobs.slots, np.zeros_like(jobs.slots), empty, jobs.name)


def adaptive(number_of: int, load: str = "", *, change_s: float, types: int = 1) -> Workload:
    """A workload whose jobs take any number of GPUs, each with its best batch size, known beforehand.

    Args:
        types: 2 for a second type of nodes, with GPUs that compute so much faster as `QUICKER` says.
    """
    jobs = _read(number_of, load)
    kinds = sorted(set(jobs.name))
    found = [stages(name) for name in kinds]
    firsts = np.cumsum([0, *(len(work) for _, work in found)])
    at = np.array([kinds.index(name) for name in jobs.name])
    total = np.array([work.sum() for _, work in found])
    left = [np.append(work.sum() - np.cumsum(work)[:-1], 0.0) for _, work in found]
    count = len(at)
    zeros, ones = np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64)
    claims = Claims(
        user=zeros,
        priority=zeros,
        submitted_s=jobs.submitted_s,
        least=ones,
        asked=ones,
        most=np.array([job_model(name).most for name in kinds])[at],
        curve=firsts[at],
    )
    return Workload(
        claims,
        Curves(
            np.vstack([curves for curves, _ in found]),
            (np.vstack([stages(name, second=True)[0] for name in kinds]),) * (types - 1),
        ),
        work=total[at],
        told=total[at],
        told_log_sd=np.zeros(count),
        change_s=np.full(count, change_s),
        stages=Stages(np.concatenate(left)),
    )
