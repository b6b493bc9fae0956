"""Runs the command line with a stand-in for the driver: `python cli_fake.py MODE ARGUMENTS...`.

The modes: `finish` ends at once, `ask` asks first, `wait` runs until it is stopped, `stubborn` longer, `fail`
ends with a training error, `break` raises what nobody expects, `noisy` is a job in whose process other libraries
write, `train` takes steps until it is stopped, and logs one warning.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cli_samples import make_choice, make_curve, make_report

from scavenger.domain.configuration import Configuration
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import StepRecord
from scavenger.domain.report import (
    ChoiceMade,
    Observer,
    PhaseChanged,
    Predicted,
    RunReport,
    StepDone,
    ViewChanged,
    WorkerChanged,
)
from scavenger.store import Store
from scavenger.train.engines.warm import WarmServers

Run = Callable[..., tuple[int, str, str]]
"""The command line in this process: arguments, and `mode` of the stand-in; (exit code, stdout, stderr)."""

JOB = """\
version: 1
name: digits-cnn
train: train:job
search: {workers: 1..2, batch_size: {min: 64, max: 256}}
goal: {metric: val_accuracy, target: 0.97, max_epochs: 60}
"""


class FakeRun:
    """Has the driver's interface."""

    mode = "finish"

    def __init__(self, prepared, *, store, observer: Observer, run: bool, confirm, audit=False) -> None:  # type: ignore[no-untyped-def]
        self._observer, self._run, self._confirm, self._stop = observer, run, confirm, ""
        if self.mode == "noisy":
            self.job_id = store.create_job("digits-cnn", spec={}, job_file=Path("job.yaml").absolute()).id

    def run(self) -> RunReport:
        curve = make_curve()
        report = make_report(curve, planned=not self._run)
        assert report.predicted is not None
        if self.mode == "noisy":
            noise("at-first")
        self._observer.on_event(PhaseChanged("starting", "1 worker"))
        if self.mode == "noisy":
            noise("later-on")
            logging.getLogger("scavenger.control").warning("of Scavenger's own")
        self._observer.on_event(WorkerChanged("worker-0", "ready"))
        self._observer.on_event(ChoiceMade(curve, make_choice(curve)))
        if self.mode == "break":
            raise ZeroDivisionError("by\x1b[2J zero")
        if self.mode == "fail":
            return replace(
                report,
                job=replace(report.job, state="failed"),
                error="train.py:12: ValueError: no data",
                exit_code=6,
            )
        if self._confirm is not None and not self._confirm(curve, make_choice(curve), report.predicted):
            stopped = bool(self._stop)
            report = make_report(curve, planned=True)
            ended = replace(report.job, state="interrupted" if stopped else "planned")
            return replace(report, job=ended, exit_code=130 if stopped else 0)
        if self.mode == "train":
            self._train(report.predicted)
        if self.mode == "wait":
            while not self._stop:
                time.sleep(0.01)
        if self._stop == "interrupted":
            if "stubborn" in sys.argv[0]:
                time.sleep(30)
            return replace(report, job=replace(report.job, state="interrupted"), exit_code=130)
        return report

    def _train(self, predicted: Predicted) -> None:
        at = Configuration("local-1", 2, 128)
        self._observer.on_event(ViewChanged(2, at, 1, 0.0, "chosen"))
        self._observer.on_event(PhaseChanged("running", "to val_accuracy>=0.97 within 60 epochs"))
        self._observer.on_event(ChoiceMade(make_curve(), make_choice(make_curve()), predicted))
        step = 0
        while not self._stop:
            step += 1
            record = StepRecord(
                step, 2, step // 9, 2, 128, 128, 0.012, 0.008, 0.004, 0.5, 1.0, 0.5, 2, False, step / 100
            )
            self._observer.on_event(StepDone(record, min(step / 1e4, 1.0), step * 1e-6))
            if step == 5:
                logging.getLogger("scavenger.control").warning("the store is slow")
                self._observer.on_event(WorkerChanged("w1", "lost", "killed by signal 9"))
            time.sleep(0.01)

    processes, vms = 2, 0
    job_id = "0123456789abcdef"

    def request_stop(self, reason: str) -> None:
        self._stop = reason

    def kill_now(self) -> None:
        sys.stderr.write("killed\n")
        sys.stderr.flush()


def resume_job(
    job_id: str, *, store: Store, observer: Observer, confirm: object, audit: bool, spec: JobSpec | None
) -> FakeRun:
    """As the driver's: begins the job again and hands out what runs it."""
    job = store.resume_job(job_id, spec=None if spec is None else spec.written())
    return FakeRun(job.spec, store=store, observer=observer, run=True, confirm=confirm)


begun: list[str] = []
"""What the driver had begun ahead, and what was ended: the job's name, and its name with a minus sign."""


def begin_ahead(job: JobSpec, job_file: Path, warm: WarmServers) -> None:
    """As the driver's, but imports nothing."""
    begun.append(job.name)
    close = warm.close
    warm.close = lambda: (begun.append(f"-{job.name}"), close())  # type: ignore[assignment, method-assign, func-returns-value]


def noise(when: str) -> None:
    """Write what libraries write, in each way in which they do."""
    os.write(2, f"I0000 {when} port.cc:153] oneDNN custom operations are on\n".encode())
    os.write(1, f"{when}: printed by C++\n".encode())
    print(f"{when}: printed by Python")
    sys.stderr.write(f"{when}: written to stderr\n")
    logging.getLogger("alib").warning("%s: Retrying (Retry(total=2))", when)
    warnings.warn(f"{when}: is deprecated", FutureWarning, stacklevel=1)
    subprocess.run(["sh", "-c", f"echo {when}: a child; echo {when}: a child of old >&2"], check=True)


def install(mode: str) -> None:
    """Put the stand-in where the command line looks for the driver."""
    FakeRun.mode = mode
    ahead, jobs, resume = (
        types.ModuleType(f"scavenger.control.jobs.{name}") for name in ("ahead", "job_run", "resume")
    )
    ahead.begin_ahead = begin_ahead  # type: ignore[attr-defined]
    jobs.JobRun = FakeRun  # type: ignore[attr-defined]
    resume.resume_job = resume_job  # type: ignore[attr-defined]
    for module in (ahead, jobs, resume):
        sys.modules[module.__name__] = module


if __name__ == "__main__":
    from scavenger_cli.main import main

    mode, *arguments = sys.argv[1:]
    if mode == "stubborn":
        sys.argv[0] = mode
        mode = "wait"
    install(mode)
    sys.exit(main(arguments))
