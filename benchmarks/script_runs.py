"""Predictions of the total time and cost of the scripts of the examples, as `real_runs` has them of Keras models.

`python -m benchmarks script_runs:jax_script` runs one of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.figures import Benchmark
from benchmarks.real_runs import run
from scavenger.control.job_file.load import load_job
from scavenger.control.jobs.job_run import JobRun
from scavenger.control.jobs.prepared import prepare_job
from scavenger.control.jobs.script_job import job_file_of_script
from scavenger.domain.job import JobSpec
from scavenger.domain.report import Observer, RunReport
from scavenger.store import Store

_EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TARGETS = {
    "torch_script": 0.97,
    "torch_accelerate": 0.97,
    "torch_trainer": 0.93,
    "torch_lightning": 0.97,
    "jax_script": 0.9,
    "torch_fsdp": 0.97,
}
"""Accuracy that each script is trained to."""


def _report(store: Store, folder: Path, name: str, workers: int, number: int) -> RunReport:
    script = folder / "train.py"
    if not script.exists():
        shutil.copy(_EXAMPLES / name / "train.py", script)
    file = job_file_of_script(script, (), tell=lambda line: None)
    written = load_job(file).written()
    written["goal"] |= {"metric": "val_accuracy", "target": TARGETS[name]}
    written["search"] |= {"workers": list(range(1, workers + 1)), "batch_size": {"min": 32, "max": 128}}
    if name == "torch_fsdp":
        written["elastic"] = {"processes": 2}
    written |= {"name": name.replace("_", "-"), "seed": number, "output": str(folder / str(number))}
    job = prepare_job(JobSpec.model_validate(written), file)
    return JobRun(job, store=store, observer=Observer(), run=True, confirm=None).run()


def of_parts(parts: Sequence[str]) -> Benchmark:
    """The benchmark of some of the scripts, each with up to two workers.

    Raises:
        ValueError: There is no such script.
    """
    for part in parts:
        if part not in TARGETS:
            raise ValueError(f"no script {part}; there are {', '.join(TARGETS)}")
    return Benchmark("script_runs", 2, partial(run, wanted=[(part, 2) for part in parts], report_of=_report))


BENCHMARK = of_parts(tuple(TARGETS))
