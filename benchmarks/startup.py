"""The time that the command takes to answer and to train, and the start-up time and memory of a job's processes."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.live import EXAMPLES, job_file, train, visit
from scavenger.control.job_file.load import load_job

_AIM_HELP_S = 0.5
_AIM_FIRST_S = 4.0
_AIM_BYTES = 1e9
_STEPS = 10
_LIMIT_S = 120.0
_LOOK_S = 0.01
_COMMANDS = {
    "scavenger --help": [sys.executable, "-m", "scavenger_cli", "--help"],
    "python -c pass": [sys.executable, "-c", "pass"],
}


_PLAIN = """
import os, sys, keras
sys.path.insert(0, sys.argv[1])
import train

class End(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        os._exit(0)

job = train.job()
job.model.fit(*job.train, batch_size=32, verbose=0, callbacks=[End()])
"""
"""What the first step takes without Scavenger: the same job, by Keras."""


def _processor_s(command: subprocess.Popen[bytes]) -> float:
    """Processor seconds of a command and of all that it has started, as far as it still runs or was waited for."""
    used = 0.0
    whole = psutil.Process(command.pid)
    for process in (whole, *whole.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            used += sum(process.cpu_times()[:4])
    return used


def _first(work_dir: Path) -> tuple[float, float, float]:
    """Begin to optimise the digits example as a user does, in a folder and with a database of its own.

    Returns:
        Seconds from the command until its first step has ended, and until the first configuration is measured;
        processor seconds of all processes until that first step.

    Raises:
        RuntimeError: If the command does not come so far.
    """
    folder = work_dir / "job"
    shutil.copytree(job_file("digits").parent, folder, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    arguments = [str(folder / "job.yaml"), "--yes", "--store", f"sqlite:///{work_dir}/store.db"]
    begin = time.perf_counter()
    at_s: dict[str, float] = {}
    processor_s = 0.0
    with subprocess.Popen(
        [sys.executable, "-m", "scavenger_cli", "optimize", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as command:
        while not {"step", "measurement"} <= at_s.keys():
            now_s = time.perf_counter() - begin
            if command.poll() is not None or now_s > _LIMIT_S:
                raise RuntimeError("the command has ended, or trains nothing")
            for journal in folder.glob(".scavenger/*/measurements.jsonl"):
                for line in journal.read_bytes().split(b"\n")[:-1]:
                    at_s.setdefault(json.loads(line)["kind"], now_s)
            if "step" in at_s and not processor_s:
                processor_s = _processor_s(command)
            time.sleep(_LOOK_S)
        command.send_signal(signal.SIGTERM)
    return at_s["step"], at_s["measurement"], processor_s


def _peak_bytes(pid: int, sampled_bytes: int) -> int:
    """The most resident memory a process has had, as the kernel counts it; else the most that was seen."""
    status = Path(f"/proc/{pid}/status")
    if not status.is_file():
        return sampled_bytes
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _memory(example: str, work_dir: Path) -> tuple[dict[str, list[int]], list[float]]:
    """Peaks by role, after the largest batch at K = 1 and K = 2 and an evaluation; set-up times."""
    batch = load_job(job_file(example)).batch_sizes[-1]
    with train(example, work_dir, workers=2, global_batch_size=batch) as trainer:
        visit(trainer, 1, batch, _STEPS)
        visit(trainer, 2, batch, _STEPS)
        epochs = len(trainer.history.epochs)
        trainer.until(lambda: len(trainer.history.epochs) > epochs)  # evaluation needs memory too
        sampled = trainer.supervisor.memory_bytes
        peaks: dict[str, list[int]] = {}
        for process in trainer.supervisor.processes():
            if process.state != "gone":
                peak = _peak_bytes(process.pid, sampled.get(process.name, 0))
                peaks.setdefault(process.role, []).append(peak)
        return peaks, list(trainer.history.setup_s)


def run(repetitions: int, work_dir: Path) -> Result:
    """Answer so many times; begin to train a third as often; train each example once."""
    times: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    for index in range(repetitions + 1):
        for name, command in _COMMANDS.items():
            begin = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            if index:  # the first writes byte code and fills the disk's cache
                times[name].append(time.perf_counter() - begin)
    spreads = {name: Spread.of(values) for name, values in times.items()}
    rows = [(name, str(spread.count), spread.text(1e3, 0) + " ms") for name, spread in spreads.items()]
    figures: dict[str, object] = {f"{name}_s": spread for name, spread in spreads.items()}
    firsts = []
    for index in range(max(1, repetitions // 3)):
        (folder := work_dir / f"first-{index}").mkdir()
        firsts.append(_first(folder))
    names = ("step", "measurement", "processor")
    first = dict(zip(names, map(Spread.of, zip(*firsts, strict=True)), strict=True))
    for name, what in (("step", "its first step"), ("measurement", "the first configuration is measured")):
        rows.append((f"scavenger optimize, until {what}", str(first[name].count), first[name].text() + " s"))
    rows.append(("processor time until its first step", str(len(firsts)), first["processor"].text() + " s"))
    folder, plain_s = job_file("digits").parent, list[float]()
    for _ in firsts:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", _PLAIN, folder], check=True, capture_output=True)
        plain_s.append(time.perf_counter() - begin)
    plain = Spread.of(plain_s)
    rows.append(("plain Keras, the same job until its first step", str(plain.count), plain.text() + " s"))
    first_s = first["step"].median
    figures["plain_s"] = plain
    figures["first"] = {f"{name}_s": spread for name, spread in first.items()}
    worst = 0
    for example in EXAMPLES:
        peaks, setup = _memory(example, work_dir / example)
        roles = {role: Spread.of(sizes) for role, sizes in sorted(peaks.items())}
        ready = Spread.of(setup)
        for role, sizes in roles.items():
            rows.append((f"{example}: {role}, peak memory", str(sizes.count), sizes.text(1e-6, 0) + " MB"))
        rows.append((f"{example}: two workers at once, until ready", str(ready.count), ready.text() + " s"))
        figures[example] = {**{f"{role}_bytes": sizes for role, sizes in roles.items()}, "setup_s": ready}
        worst = max(worst, *(round(sizes.high) for sizes in roles.values()))
    answer, bare = spreads["scavenger --help"], spreads["python -c pass"]
    return Result(
        headers=("what", "n", "median (least – greatest)"),
        rows=tuple(rows),
        verdict=f"aim: help within {_AIM_HELP_S * 1e3:.0f} ms: {answer.median * 1e3:.0f} ms, "
        f"{answer.median / bare.median:.1f} times the bare interpreter; a first step within {_AIM_FIRST_S:g} s: "
        f"{first_s:.1f} s, {first_s / plain.median:.1f} times plain Keras; every process below "
        f"{_AIM_BYTES * 1e-6:.0f} MB: largest {worst * 1e-6:.0f} MB",
        figures=figures,
        remarks=(
            "memory: most resident memory over the process's life, shared pages counted in each process",
        ),
    )


BENCHMARK = Benchmark("startup", 10, run)
