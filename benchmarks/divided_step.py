"""The time of a step of a model that `fully_shard` divides, in workers of two processes, compared with torchrun's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.loop_step import environment
from benchmarks.peers.running import installed
from scavenger.control.job_file.load import load_job
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.prepared import prepare_job
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Observer
from scavenger.store import Store

_FILE = Path(__file__).with_name("jobs") / "divided" / "job.yaml"
PROCESSES, _TIMEOUT_S = 2, 300.0


class Steps(NamedTuple):
    """Median times of steps, seconds: of a job, and of torchrun; and the first over the second."""

    ours_s: Spread
    theirs_s: Spread
    ratio: Spread


def in_turn(work_dir: Path, *, workers: int, repetitions: int, accelerators: str = "") -> Steps:
    """Steps of a job and of torchrun in turn, so many times.

    Args:
        accelerators: Of this machine, as a job file names them, a process on each; empty for processors.
    """
    pairs = []
    for number in range(repetitions):
        folders = [work_dir / f"{way}-{workers}-{number}" for way in ("ours", "theirs")]
        for folder in folders:
            folder.mkdir()
        pairs.append(
            (_ours(folders[0], workers, accelerators), _theirs(folders[1], workers, bool(accelerators)))
        )
    ours, theirs = (Spread.of(column) for column in zip(*pairs, strict=True))
    return Steps(ours, theirs, Spread.of(own / other for own, other in pairs))


def _ours(folder: Path, workers: int, accelerators: str) -> float:
    written = load_job(_FILE).written()
    written["search"]["workers"] = workers
    written["output"] = str(folder / "output")
    if accelerators:
        written |= {"train": "train.py --device cuda", "resources": {"accelerators": accelerators}}
    with environment(BENCHMARK_OUT=str(folder)), Store.open(f"sqlite:///{folder / 'store.db'}") as store:
        job = prepare_job(JobSpec.model_validate(written), _FILE)
        JobRun(job, store=store, observer=Observer(), run=True, confirm=None).run()
    return _told(folder)


def _theirs(folder: Path, workers: int, on_gpus: bool) -> float:
    count = workers * PROCESSES
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "BENCHMARK_OUT": str(folder)}
    options = [f"--replicas={workers}", *(["--device=cuda"] if on_gpus else [])]
    command = [sys.executable, *launch, str(_FILE.with_name("train.py")), *options]
    subprocess.run(command, check=True, timeout=_TIMEOUT_S, env=environ, capture_output=True)
    return _told(folder)


def _told(folder: Path) -> float:
    """The median time of a step of the slowest process, seconds."""
    return max(float(json.loads(file.read_text())) for file in folder.glob("*.json"))


def run(repetitions: int, work_dir: Path) -> Result:
    """One worker, and two, each in turn with as many processes of torchrun."""
    headers = ("workers", "processes", "n", "Scavenger, ms", "torchrun, ms", "Scavenger to torchrun")
    if not installed("torch"):
        return Result(headers, (), "PyTorch is not installed", {})
    rows, figures, ratios = [], dict[str, object](), []
    for workers in (1, 2):
        found = in_turn(work_dir, workers=workers, repetitions=repetitions)
        counts = (str(workers), str(workers * PROCESSES), str(repetitions))
        rows.append((*counts, found.ours_s.text(1e3), found.theirs_s.text(1e3), found.ratio.text(digits=2)))
        figures[f"{workers} workers"] = found._asdict()
        ratios.append(f"{workers}: {found.ratio.median:.2f}")
    return Result(
        headers,
        tuple(rows),
        f"aim: a step takes as long as torchrun's; by workers {', '.join(ratios)}",
        figures,
        remarks=(
            "six layers of 1,024 by 1,024, 6.3 million parameters, Adam, B = 64, gloo, one thread for each process",
            "torchrun: fully_shard over its two processes; with two workers, over a mesh of two replicas of two",
        ),
    )


BENCHMARK = Benchmark("divided_step", 3, run)
