"""What a runner adds to a job: the same job by the command itself and detached, in turn, and the runner's own work."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.live import job_file
from scavenger.control.service.runner import RENEW_S
from scavenger.domain.submission import NewSubmission, runner_lease
from scavenger.store import Store

_EPOCHS, _WORKERS, _BATCH = 6, 1, 32
_LIMIT_S = 900.0
_ROUNDS = 300
_AIM = 0.01
_JOB = """\
version: 1
name: digits-cnn
train: train:job
search: {{workers: {workers}, batch_size: {batch}}}
goal: {{metric: val_accuracy, target: 1.0, max_epochs: {epochs}}}
"""


def _folder(work_dir: Path, name: str) -> Path:
    folder = work_dir / name
    shutil.copytree(job_file("digits").parent, folder)
    (folder / "job.yaml").write_text(_JOB.format(workers=_WORKERS, batch=_BATCH, epochs=_EPOCHS))
    return folder


def _run(work_dir: Path, name: str, *, detached: bool) -> list[float]:
    """Run the job; returns its step times, seconds.

    Raises:
        RuntimeError: It did not run to its end.
    """
    folder, url = _folder(work_dir, name), f"sqlite:///{work_dir / name}.db"
    command = [
        sys.executable,
        "-m",
        "scavenger_cli",
        "optimize",
        str(folder / "job.yaml"),
        "--yes",
        "--store",
        url,
    ]
    done = subprocess.run(
        [*command, *(["--detach"] if detached else [])], capture_output=True, text=True, check=False
    )
    with Store.open(url) as store:
        until = time.monotonic() + _LIMIT_S
        while any(one.is_open for one in store.submissions()) and time.monotonic() < until:
            time.sleep(0.5)
        jobs = store.jobs()
    if not jobs or jobs[0].measurements_path is None or jobs[0].state not in ("succeeded", "target_missed"):
        raise RuntimeError(f"the job did not run to its end: {done.stderr[-500:]}")
    with open(jobs[0].measurements_path) as journal:
        steps = [record for record in map(json.loads, journal) if record["kind"] == "step"]
    return [float(step["step_time_s"]) for step in steps]


def _own_work_s(work_dir: Path) -> tuple[float, float]:
    """Processor time of one look of the thread that keeps the lease, and what the fence adds to a write, seconds."""
    url = f"sqlite:///{work_dir}/own.db"
    with Store.open(url) as free, Store.open(url) as fenced:
        job = free.submit(NewSubmission("j", {}, "/job.yaml", "ann", "here", os.getuid()))
        lease = free.start_runner(job.id, "server", None)
        assert lease is not None
        assert lease.name == runner_lease(job.id)
        free.create_job("j", spec={}, job_file="/job.yaml", job_id=job.id)
        fenced.fence(lease.fence)

        def timed(call: object) -> float:
            begin = time.thread_time()
            for _ in range(_ROUNDS):
                call()  # type: ignore[operator]
            return (time.thread_time() - begin) / _ROUNDS

        look = timed(lambda: (fenced.renew_lease(lease.fence), fenced.submission(job.id)))
        with_fence = timed(lambda: fenced.heartbeat(job.id))
        without = timed(lambda: free.heartbeat(job.id))
    return look, max(0.0, with_fence - without)


def run(repetitions: int, work_dir: Path) -> Result:
    """Pairs of runs, one after the other, so that both see the same machine."""
    rows: list[tuple[str, ...]] = []
    ratios, pairs = [], []
    for index in range(repetitions):
        times = {}
        for detached in (False, True) if index % 2 == 0 else (True, False):
            name = f"{'detached' if detached else 'embedded'}-{index}"
            times[detached] = _run(work_dir, name, detached=detached)
            middle = statistics.median(times[detached])
            rows.append((name, f"{len(times[detached]):,}", f"{middle * 1e3:.3f}"))
        ratios.append(statistics.median(times[True]) / statistics.median(times[False]) - 1.0)
        pairs.append(
            {"embedded_s": statistics.median(times[False]), "detached_s": statistics.median(times[True])}
        )
    look_s, fence_s = _own_work_s(work_dir)
    share = look_s / RENEW_S
    ratio = Spread.of(ratios)
    return Result(
        headers=("run", "steps", "median step, ms"),
        rows=tuple(rows),
        verdict=f"aim: less than {_AIM:.0%} of a step; detached / embedded - 1, in %: {ratio.text(100, 2)}; the "
        f"runner's own thread takes {share:.2%} of one processor, {'kept' if share < _AIM else 'missed'}",
        figures={"pairs": pairs, "ratio": ratio, "look_s": look_s, "fence_s": fence_s, "share": share},
        remarks=(
            f"the thread renews the lease and looks whether the job is to stop, every {RENEW_S:g} s: "
            f"{look_s * 1e3:.2f} ms of processor time each; the fence adds {fence_s * 1e3:.2f} ms to a write, of which "
            "a job makes about one a second, none of them waited for by training",
            f"digits, {_WORKERS} worker, batch {_BATCH}, {_EPOCHS} epochs, on this machine",
        ),
    )


BENCHMARK = Benchmark("runner", 2, run)
