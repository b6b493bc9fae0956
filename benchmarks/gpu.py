"""What is promised of GPUs, on a machine that has some: placement, times beside plain Keras and DDP, memory, a job."""

from __future__ import annotations

import os
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import divided_step, loop_step
from benchmarks.figures import Benchmark, Result
from benchmarks.gpu_steps import measured
from benchmarks.live import job_file
from scavenger.control.job_file.load import load_job, override_job
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.prepared import prepare_job
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Observer
from scavenger.errors import ScavengerError
from scavenger.store import Store
from scavenger.train.devices import Devices, driver_gpus, find_devices, has_driver
from scavenger.train.engines.gpus import gpu_names, only
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.supervisor import Supervisor

_EXAMPLE = "digits"
_BATCHES = (64, 256, 1024)
_STEPS = 30
_SEQUENCES = 32
_MOST = 1 << 18
_READY_S = 180.0
_HEADERS = ("what", "found", "as promised")


def why_not() -> tuple[Devices | None, str]:
    """What TensorFlow sees, or why it cannot show anything of GPUs."""
    try:
        devices = find_devices()
    except ScavengerError as error:
        return None, str(error)
    if not devices.gpus:
        return None, f"TensorFlow {devices.version} sees no GPU; `scavenger doctor` tells more"
    return devices, ""


def run(repetitions: int, work_dir: Path) -> Result:
    """All of it, steps of PyTorch so many times; without a GPU nothing, which the table says."""
    reason = "" if has_driver() else "this machine has no NVIDIA driver"
    try:
        there = {} if reason else driver_gpus()
    except ScavengerError as error:
        there, reason = {}, str(error)
    if not there:
        reason = reason or "nvidia-smi lists no GPU"
        return Result(_HEADERS, (("skipped", reason, "-"),), f"skipped: {reason}", {"skipped": reason})
    steps = loop_step.in_turn(
        "transformer",
        work_dir,
        workers=len(there),
        local=_SEQUENCES,
        steps=_STEPS,
        repetitions=repetitions,
        device="cuda",
        engine=partial(ProcessEngine, gpus=tuple(there)),
    )
    row = (
        f"step of PyTorch on {len(there)}, {_SEQUENCES} sequences each, bfloat16, ms",
        f"loop {steps.step_s.text(1e3)}, by a process group (NCCL) {steps.group_step_s.text(1e3)}, "
        f"DDP (NCCL) {steps.ddp_step_s.text(1e3)}",
        "-",
    )
    verdict = (
        f"a step of a PyTorch loop takes {steps.ratio.text(digits=2)} times that of DDP over NCCL, and "
        f"{steps.group_ratio.text(digits=2)} times by a process group of NCCL"
    )
    figures: dict[str, Any] = {"torch": steps._asdict()}
    more = []
    if (workers := len(there) // divided_step.PROCESSES) > 0:
        wanted = f"{next(iter(there.values())).name.split()[-1]}:{workers * divided_step.PROCESSES}"
        divided = divided_step.in_turn(
            work_dir, workers=workers, repetitions=repetitions, accelerators=wanted
        )
        figures["divided"] = divided._asdict()
        words = f"{divided.ours_s.text(1e3)}, torchrun {divided.theirs_s.text(1e3)}"
        more = [(f"step of a model that fully_shard divides, on {wanted}, ms", words, "-")]
    devices, reason = why_not()
    if devices is None:
        rows = (("TensorFlow", reason, "-"), row, *more)
        return Result(_HEADERS, rows, verdict, figures | {"tensorflow": reason})
    keras = of_keras(devices, work_dir)
    return Result(
        _HEADERS,
        (*keras.rows, row, *more),
        f"{keras.verdict}; {verdict}",
        keras.figures | figures,
        keras.remarks,
    )


def of_keras(devices: Devices, work_dir: Path) -> Result:
    """What is promised of Keras models, on the GPUs that TensorFlow sees."""
    names = gpu_names(len(devices.gpus), os.environ)
    seen = measured(only(names[0]), batches=_BATCHES, steps=_STEPS, most=_MOST)
    placed = _placement(names, work_dir / "placement")
    wrong = shared_or_strange(placed["workers"], placed["used"])
    state = _job(devices, len(names), work_dir / "job")
    rows = [
        ("TensorFlow", f"{devices.version}, {', '.join(gpu.name for gpu in devices.gpus)}", "-"),
        (
            "each worker on a GPU of its own",
            wrong or f"{len(names)} workers, {len(names)} GPUs",
            _yes(not wrong),
        ),
    ]
    for size, took in seen["steps"].items():
        text = ", ".join(f"{name} {1e3 * took[f'{name}_s']:.1f}" for name in ("keras", "whole", "with_noise"))
        rows.append((f"step of {size} samples, ms", text, "-"))
    rows += [
        (
            "out of memory is computed in parts",
            f"from {seen['too_many']} samples on, gradient off by {seen['parts_error']}",
            _yes(seen["too_many"] is not None and seen["parts_error"] < 1e-3),
        ),
        (
            f"a job with accelerators, K up to {len(names)}",
            state,
            _yes(state in ("succeeded", "target_missed")),
        ),
    ]
    last = seen["steps"][str(_BATCHES[-1])]
    return Result(
        headers=_HEADERS,
        rows=tuple(rows),
        verdict=f"at {_BATCHES[-1]} samples, a gradient with its noise takes "
        f"{last['with_noise_s'] / last['whole_s']:.2f} times as long as without, "
        f"and that {last['whole_s'] / last['keras_s']:.2f} times as long as plain Keras",
        figures={"device": devices.gpus[0].name, "placed": placed, "job": state, **seen},
        remarks=(
            "whole: a gradient with its way to main memory; keras: a step of train_on_batch, update included",
        ),
    )


def _yes(right: bool) -> str:
    return "yes" if right else "NO"


def _placement(names: tuple[str, ...], work_dir: Path) -> dict[str, Any]:
    """Start a worker for each GPU; returns their process ids, and which process uses which GPU."""
    file = job_file(_EXAMPLE)
    job = load_job(file)
    work_dir.mkdir()
    supervisor = Supervisor.open(
        JobSource(str(job.train), file.parent, job.seed, 1),
        work_dir=work_dir,
        timeouts=Timeouts(job.limits.start, job.limits.step),
        engine=partial(ProcessEngine, gpus=names),
    )
    try:
        supervisor.start(len(names))
        until = time.monotonic() + _READY_S
        while supervisor.ready < len(names):
            supervisor.poll(0.05)
            if time.monotonic() > until:
                raise RuntimeError(f"{supervisor.ready} of {len(names)} workers are ready: see {work_dir}")
        workers = [state.pid for state in supervisor.processes() if state.role == "worker"]
        others = [state.pid for state in supervisor.processes() if state.role != "worker"]
        return {"workers": workers, "used": _used({*workers, *others})}
    finally:
        supervisor.close()


def _used(ours: set[int]) -> list[tuple[int, str]]:
    """Which of these processes use which GPUs, by the driver."""
    command = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = [line.split(", ") for line in lines if line.strip()]
    return [(int(pid), gpu) for pid, gpu in pairs if int(pid) in ours]


def shared_or_strange(workers: list[int], used: list[tuple[int, str]]) -> str:
    """What is wrong with a placement; empty if each worker, and nobody else, uses one GPU that no other uses.

    Args:
        workers: Their process ids.
        used: Process ids, and the GPU of each.
    """
    if strangers := [pid for pid, _ in used if pid not in workers]:
        return f"processes {strangers} are no workers"
    if sorted(pid for pid, _ in used) != sorted(workers):
        return f"workers {workers} use {used}"
    gpus = [gpu for _, gpu in used]
    return "" if len(set(gpus)) == len(gpus) else f"two workers share a GPU: {used}"


def _job(devices: Devices, count: int, work_dir: Path) -> str:
    """Search and train the example with all GPUs; returns the state in which the job ended."""
    work_dir.mkdir()
    model = devices.gpus[0].name.split()[1]  # as in "NVIDIA L4" and "Tesla T4"
    written = load_job(job_file(_EXAMPLE)).written()
    written["resources"] = {"accelerators": f"{model}:{count}"}
    written["search"] = {"workers": f"1..{count}" if count > 1 else 1, "batch_size": [64, 128]}
    job = override_job(JobSpec.model_validate(written), {"output": str(work_dir / "output")})
    with Store.open(f"sqlite:///{work_dir / 'store.db'}") as store:
        prepared = prepare_job(job, job_file(_EXAMPLE))
        report = JobRun(prepared, store=store, observer=Observer(), run=True, confirm=None).run()
    return report.job.state


BENCHMARK = Benchmark("gpu", 3, run)
