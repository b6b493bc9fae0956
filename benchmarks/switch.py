"""How long the remaining workers stop when (K, B) changes, compared with resuming from a checkpoint."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.keras_peer import run_peer
from benchmarks.live import job_file, train, visit
from scavenger.control.training.trainer import Trainer

_EXAMPLE = "digits"
_BATCH, _OTHER_BATCH = 128, 64
_STEPS = 15
_AIM_S = 0.2
_CYCLE = (
    (f"B {_BATCH} to {_OTHER_BATCH}, K = 1", 1, _OTHER_BATCH),
    ("K 1 to 2, joiner warm", 2, _OTHER_BATCH),
    ("K 2 to 1", 1, _OTHER_BATCH),
    (f"B {_OTHER_BATCH} to {_BATCH}, K = 1", 1, _BATCH),
)


@dataclass(frozen=True, slots=True)
class _Change:
    """One change of the view; all in seconds.

    Attributes:
        stall_s: The view's first step beyond the median of its undisturbed steps.
        sync_s: What of the first step was not computing.
        step_s: That median.
        effect_s: From asking for the view until its first step is applied; the step under way included.
    """

    stall_s: float
    sync_s: float
    step_s: float
    effect_s: float


def _change(trainer: Trainer, workers: int, batch: int) -> _Change | None:
    """Go over to K and B; None where the first step of the view was the short one that ends an epoch."""
    before, asked_at = trainer.step, trainer.elapsed_s
    window = visit(trainer, workers, batch, _STEPS)
    first = next(r for r in trainer.history.steps if r.step > before and r.view == window[-1].view)
    if first.samples < batch:
        return None
    step_s = statistics.median(record.step_time_s for record in window)
    return _Change(first.step_time_s - step_s, first.sync_s, step_s, first.at_s - asked_at)


def _stop_and_resume(repetitions: int, work_dir: Path, threads: int) -> tuple[Spread, Spread]:
    """Stall of saving, starting a fresh process, loading and making a step; and the ordinary step."""
    checkpoint = work_dir / "checkpoint.weights.h5"
    folder = job_file(_EXAMPLE).parent
    stalls, ordinary = [], []
    for _ in range(repetitions):
        stopped = run_peer(folder, threads=threads, batch=_OTHER_BATCH, steps=_STEPS, save=checkpoint)
        step_s = statistics.median(stopped["step_times_s"])
        started_at = time.monotonic()
        resumed = run_peer(folder, threads=threads, batch=_OTHER_BATCH, steps=0, load=checkpoint)
        stalls.append(stopped["save_s"] + resumed["first_step_at_s"] - started_at - step_s)
        ordinary.append(step_s)
    return Spread.of(stalls), Spread.of(ordinary)


def run(repetitions: int, work_dir: Path) -> Result:
    """Go round the four changes so many times, then stop and resume so many times."""
    seen: dict[str, list[_Change]] = {name: [] for name, _, _ in _CYCLE}
    with train(_EXAMPLE, work_dir, workers=2, global_batch_size=_BATCH) as trainer:
        threads = trainer.offer.cpus
        visit(trainer, 1, _BATCH, _STEPS)
        for _ in range(repetitions):
            for name, workers, batch in _CYCLE:
                change = _change(trainer, workers, batch)
                if change is not None:
                    seen[name].append(change)
    resume, ordinary = _stop_and_resume(repetitions, work_dir, threads)

    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    stalls = []
    for name, changes in seen.items():
        if not changes:  # every one began with the last, short step of an epoch
            rows.append((name, "0", *("not measured",) * 4, "-"))
            continue
        stall = Spread.of(change.stall_s for change in changes)
        sync = Spread.of(change.sync_s for change in changes)
        step = Spread.of(change.step_s for change in changes)
        effect = Spread.of(change.effect_s for change in changes)
        stalls.append(stall)
        figures[name] = {"stall_s": stall, "sync_s": sync, "step_s": step, "effect_s": effect}
        ratio = f"{resume.median / stall.high:.0f}" if stall.high > 0 else "no stall seen"
        spreads = (spread.text(1e3) for spread in (stall, sync, step, effect))
        rows.append((name, str(stall.count), *spreads, ratio))
    figures["stop and resume"] = {"stall_s": resume, "step_s": ordinary}
    rows.append(
        ("stop and resume (Keras)", str(resume.count), resume.text(1e3), "-", ordinary.text(1e3), "-", "1")
    )
    worst = Spread.of(stall.median for stall in stalls).high
    greatest = Spread.of(stall.high for stall in stalls).high
    return Result(
        headers=(
            "change",
            "n",
            "stall, ms",
            "sync of the first step, ms",
            "ordinary step, ms",
            "asked until applied, ms",
            "resume / greatest stall",
        ),
        rows=tuple(rows),
        verdict=f"aim: a stall below {_AIM_S * 1e3:.0f} ms beyond one step; the slowest kind of change: "
        f"{worst * 1e3:.1f} ms in the median, {greatest * 1e3:.1f} ms at most; "
        f"stop and resume: {resume.median:.1f} s",
        figures=figures,
        remarks=(
            f"{_EXAMPLE}, one thread per worker; ordinary: median of {_STEPS} undisturbed steps of the view",
            "a stall below 0 is a first step faster than the median: noise, or less to do than usual",
            "stop and resume: save weights and optimizer; start Python, import, build, load, trace, one step",
        ),
    )


BENCHMARK = Benchmark("switch", 5, run)
