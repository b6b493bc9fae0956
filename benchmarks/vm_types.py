"""Step times on four VM types from twelve probes: what a search over VM types knows of them all.

Three of the types are real: a T4 a machine and four of them (Pollux), eight A100s on Azure (ElasticFlow). The fourth
has as many workers as the first, so that its step times are carried over from it: the first's own measurements with
computing and synchronisation times `SHORTENED`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.figures import Benchmark, Result
from benchmarks.public_steps import read_step_times
from scavenger.domain.configuration import Configuration, Offer, SearchSpace
from scavenger.domain.measurement import Measurement, Profile
from scavenger.models.backtest import PlacementRow
from scavenger.models.backtest_steps import START_S, STEPS, step_times_of
from scavenger.models.design import Candidate, ProfilingCost, propose
from scavenger.models.job_model import TRANSFER_MAX, JobModel
from scavenger.models.parallel import INTERVAL_Z
from scavenger.models.step_laws import StepTimes

PROBES = 12

SHORTENED = (0.4, 0.7)
"""Computing and synchronisation of the fourth type, relative to the first: a faster processor and link."""

TYPES = {"T4": 4, "4 T4": 48, "8 A100": 96, "faster than T4": 8}
"""The types with their processors; the number of workers is in the data."""

JOBS = {
    "cifar10": ("cifar10", "resnet50_cifar10"),
    "deepspeech2": ("deepspeech2", "deepspeech2"),
    "imagenet": ("imagenet", "resnet50"),
}
"""Names of the workload on T4s and on A100s; of cifar10 the networks differ, of the others they do not."""

_Times = dict[tuple[int, int], StepTimes]


def run(repetitions: int, work_dir: Path) -> Result:
    """Once over the jobs: there is no chance in it.

    Raises:
        SystemExit: If the data is not there.
    """
    rows = read_step_times()
    lines: list[tuple[str, ...]] = []
    means: dict[str, float] = {}
    held: list[bool] = []
    for job, names in JOBS.items():
        types = _types(rows, *names)
        by_type, covered = _errors(types)
        means[job] = float(np.mean(by_type))
        held += covered
        lines.append((job, *(f"{error:.1f}" for error in by_type), f"{means[job]:.1f}"))
    mean = float(np.mean(list(means.values())))
    return Result(
        headers=("mean error, percent", *TYPES, "all"),
        rows=tuple(lines),
        verdict=f"{mean:.1f} % in the mean from {PROBES} probes (aim: under 15 %); "
        f"{100 * np.mean(held):.0f} % of the measurements inside their 90 % interval",
        figures={"mean_ape": means, "coverage90": float(np.mean(held))},
        remarks=(
            f"{PROBES - TRANSFER_MAX * (len(TYPES) - 1)} probes of the first type and {TRANSFER_MAX} of each other, "
            "chosen as a search chooses them with its costs; errors at all placements that were not probed",
            "the last type is no measurement: the first's step times, with computing and synchronisation times "
            f"{SHORTENED[0]:g} and {SHORTENED[1]:g}",
        ),
    )


def _types(rows: list[PlacementRow], on_t4: str, on_a100: str) -> list[_Times]:
    """Step times by (K, B) of each of `TYPES`."""
    real = [
        step_times_of([row for row in rows if row.workload == name and row.workers_per_node == per_node])
        for name, per_node in ((on_t4, 1), (on_t4, 4), (on_a100, 8))
    ]
    compute, sync = SHORTENED
    faster = [
        replace(
            t,
            step_time_s=compute * t.compute_s + sync * t.sync_s,
            compute_s=compute * t.compute_s,
            sync_s=sync * t.sync_s,
        )
        for t in real[0]
    ]
    return [{(t.workers, t.global_batch_size): t for t in sorted(times)} for times in (*real, faster)]


def _errors(types: list[_Times]) -> tuple[list[float], list[bool]]:
    """Mean error of each type at what was not probed, and which times lie in their intervals."""
    offers = tuple(
        Offer(
            provider="measured",
            region="",
            vm=vm,
            price_usd_per_hour=1.0,
            price_source="no price matters here",
            cpus=cpus,
            memory_bytes=0,
            workers_per_vm=next(iter(times.values())).workers_per_node,
        )
        for (vm, cpus), times in zip(TYPES.items(), types, strict=True)
    )
    probed = [_probed(times, PROBES - TRANSFER_MAX * (len(types) - 1)) for times in types[:1]]
    probed += [_probed(times, TRANSFER_MAX) for times in types[1:]]
    model = JobModel.fit(
        Profile(
            tuple(
                _measurement(offer.vm, times[place])
                for offer, times, places in zip(offers, types, probed, strict=True)
                for place in places
            ),
            dataset_size=100_000,
        ),
        space=SearchSpace(offers, (1,), (1,)),
        epochs_hint=None,
        max_epochs=1,
        fixed_epochs=True,
    )
    errors, held = [], []
    for offer, times, places in zip(offers, types, probed, strict=True):
        unseen = [place for place in sorted(times) if place not in places]
        workers, batch = np.array(unseen).T
        (parallel,) = [vm.parallel for vm in model.vms if vm.vm == offer.vm]
        predicted, log_sd = parallel.predict(workers, batch, np.ones(len(unseen)), offer.workers_per_vm)
        truth = np.array([times[place].step_time_s for place in unseen])
        errors.append(float(np.mean(100.0 * np.abs(predicted / truth - 1.0))))
        held += (np.abs(np.log(predicted / truth)) < INTERVAL_Z * log_sd).tolist()
    return errors, held


def _probed(times: _Times, points: int) -> list[tuple[int, int]]:
    places = sorted(times)
    candidates = [Candidate(*place, times[place].workers_per_node) for place in places]
    chosen: list[tuple[int, int]] = []
    while len(chosen) < points:
        cost = ProfilingCost(STEPS, START_S, ready=max((workers for workers, _ in chosen), default=0))
        index = propose(candidates, [times[place] for place in chosen], cost=cost)
        if index is None:
            break
        chosen.append(places[index])
    return chosen


def _measurement(vm: str, time: StepTimes) -> Measurement:
    return Measurement(
        configuration=Configuration(vm, time.workers, time.global_batch_size),
        steps=time.steps,
        step_time_s=time.step_time_s,
        step_time_spread_s=time.spread_s,
        compute_s=time.compute_s,
        sync_s=time.sync_s,
        gradient_noise=None,
        noise_scale=None,
        memory_bytes=0,
    )


BENCHMARK = Benchmark("vm_types", 1, run)
