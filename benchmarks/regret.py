"""Regret of the choice between VM types after at most `PROBES` measurements, by time and by cost.

Four types: a T4 a machine, two and four of them (Pollux), and the first one's step times with computing and
synchronisation `vm_types.SHORTENED`. Which configuration is measured next, when no more is measured, the models and the
choice are the product's; times to the target are measured steps to the target times measured step times, between
measured local batches interpolated in the logarithms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from benchmarks.backtest import samples_to_target, three_points
from benchmarks.public_steps import DATA, T4, read_more_step_times, read_step_times
from benchmarks.vm_types import SHORTENED
from scavenger.control.search.tables import number, read_table
from scavenger.domain.configuration import Configuration, Offer, SearchSpace
from scavenger.domain.curve import FloatArray, Infeasible, Objective
from scavenger.domain.measurement import ConvergenceRecord, Measurement, Profile
from scavenger.models.backtest import PlacementRow
from scavenger.models.backtest_steps import START_S, STEPS, step_times_of
from scavenger.models.job_model import JobModel
from scavenger.search.choose import choose
from scavenger.search.curve import build_curve
from scavenger.search.plan import next_configuration, plan_search

PROBES = 8

TYPES = {"T4": (1, 0.526), "2 T4": (2, 1.9), "4 T4": (4, 3.912), "faster than T4": (1, 0.9)}
"""Workers a machine, and dollars an hour: AWS's list price of one and of four, the others between."""

OBJECTIVES: tuple[Objective, ...] = ("time", "cost")


class Regret(NamedTuple):
    """By how many percent the choice is worse than the best, and what led to it."""

    percent: float
    measured: tuple[Measurement, ...]
    chosen: Configuration


class _Times(NamedTuple):
    """Local batch sizes and step times that were measured at one number of workers, and the computing among these."""

    local: FloatArray
    step_s: FloatArray
    compute_s: FloatArray


class Job:
    """What is true of a job: step times by type, workers and batch, and samples to the target."""

    def __init__(self, name: str, rows: list[PlacementRow]) -> None:
        self.samples = samples_to_target(name)
        self._noise_scale = _noise_scale(name)
        self._times = {vm: _by_workers(rows, name, vm, per_node) for vm, (per_node, _) in TYPES.items()}
        offers = tuple(
            Offer("measured", "", vm, price, "list", 4 * per_node, 0, workers_per_vm=per_node)
            for vm, (per_node, price) in TYPES.items()
        )
        workers = sorted({count for times in self._times.values() for count in times})
        self.space = SearchSpace(offers, tuple(workers), tuple(sorted(self.samples)))
        self._known = {c for c in self.space.configurations() if self._is_known(c)}

    def _is_known(self, at: Configuration) -> bool:
        times = self._times[at.vm].get(at.workers)
        return times is not None and times.local[0] <= at.local_batch_size <= times.local[-1]

    def _measurement(self, at: Configuration) -> Measurement:
        times, local = self._times[at.vm][at.workers], np.log(at.local_batch_size)
        step_s, compute_s = (
            float(np.exp(np.interp(local, np.log(times.local), np.log(values))))
            for values in (times.step_s, times.compute_s)
        )
        sync_s = max(step_s - compute_s, 0.0)
        return Measurement(at, STEPS, step_s, 0.0, compute_s, sync_s, None, self._noise_scale, 0)

    def _true(self, at: Configuration, objective: Objective) -> float:
        """Seconds or dollars to the target."""
        offer, batch = self.space.offer(at.vm), at.global_batch_size
        time_s = self.samples[batch] / batch * self._measurement(at).step_time_s
        vms = -(-at.workers // offer.workers_per_vm)
        return time_s if objective == "time" else time_s * vms * offer.price_usd_per_hour / 3600.0

    def regret(self, objective: Objective, *, finished: bool, probes: int = PROBES) -> Regret:
        """Of the choice after a search.

        Args:
            finished: Whether runs at three batch sizes have finished before; else the search is the first.
        """
        absent = [c for c in self.space.configurations() if c not in self._known]
        plan = plan_search(self.space, "partial", has_same=False, has_any=False, steps=STEPS, points=probes)
        plan = replace(plan, points=probes + len(absent))
        unit = min(self.samples.values())
        known = three_points(self.samples)[1] if finished else []
        records = tuple(ConvergenceRecord(size, self.samples[size] / unit) for size in known)
        measured: list[Measurement] = []
        while len(measured) < probes:
            at = next_configuration(
                plan,
                self.space,
                measured,
                [*absent, *(m.configuration for m in measured)],
                ready=max((m.configuration.workers for m in measured), default=0),
                setup_s=START_S,
            )
            if at is None:
                break
            measured.append(self._measurement(at))
        model = JobModel.fit(
            Profile(tuple(measured), round(unit), convergence=records),
            space=self.space,
            epochs_hint=None,
            max_epochs=10,
        )
        curve = build_curve(model, self.space)
        late = np.array([c not in self._known for c in self.space.configurations()])
        excluded = np.where(late, len(curve.marks.reasons), curve.marks.excluded)
        marks = replace(curve.marks, excluded=excluded, reasons=(*curve.marks.reasons, "was not measured"))
        chosen = choose(replace(curve, marks=marks), objective)
        if isinstance(chosen, Infeasible):
            raise RuntimeError(f"nothing is allowed: {chosen}")
        best = min(self._true(at, objective) for at in self._known)
        return Regret(
            100.0 * (self._true(chosen.configuration, objective) / best - 1.0),
            tuple(measured),
            chosen.configuration,
        )


def jobs() -> dict[str, Job]:
    """The jobs by name.

    Raises:
        SystemExit: If the data is not there.
    """
    rows = [*read_step_times(), *read_more_step_times()]
    return {name: Job(name, rows) for name in ("cifar10", "deepspeech2", "imagenet")}


def _by_workers(rows: list[PlacementRow], name: str, vm: str, per_node: int) -> dict[int, _Times]:
    compute, sync = SHORTENED if vm.startswith("faster") else (1.0, 1.0)
    found: dict[int, _Times] = {}
    here = [
        row for row in rows if row.workload == name and row.cluster == T4 and row.workers_per_node == per_node
    ]
    times = step_times_of(here)
    for count in sorted({t.workers for t in times}):
        of_count = sorted(
            (t.local_batch_size, compute * t.compute_s, sync * t.sync_s) for t in times if t.workers == count
        )
        local, compute_s, sync_s = np.array(of_count).T
        found[count] = _Times(local, compute_s + sync_s, compute_s)
    return found


def _noise_scale(name: str) -> float:
    """As the first readings of the job's runs say, samples."""
    rows = read_table(
        DATA / "measured" / "training_runs.csv", ("workload", "global_batch_size", "grad_sqr", "grad_var")
    )
    first: dict[str, float] = {}
    for row in rows:
        if row["workload"] == name and number(row["grad_sqr"]) > 0.0:
            ratio = number(row["grad_var"]) / number(row["grad_sqr"])
            first.setdefault(row["global_batch_size"], ratio)
    return float(np.median(list(first.values()))) * min(int(size) for size in first)
