"""The time of a step beyond its gradient, and compared with plain Keras in one process."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.keras_peer import run_peer
from benchmarks.live import EXAMPLES, job_code, job_file, train, visit
from scavenger.domain.measurement import StepRecord

_BATCH = {"digits": 128, "charlm": 64}
_BATCH_HARD = 32
_HARD = ("embedding", "embedding:adagrad", "embedding:sgd", "diverging")
_STEPS = 20


def _medians(windows: Iterable[list[StepRecord]], field: str) -> Spread:
    return Spread.of(statistics.median(getattr(record, field) for record in window) for window in windows)


def _plain(example: str, batch: int) -> float:
    """Median step of a fresh Keras process, with one thread as a worker has by default."""
    folder, code = job_file(example).parent, job_code(example)
    times: list[float] = run_peer(folder, threads=1, batch=batch, steps=_STEPS, code=code)["step_times_s"]
    return statistics.median(times)


def run(repetitions: int, work_dir: Path) -> Result:
    """The examples; see `measure`."""
    return measure(EXAMPLES, repetitions, work_dir)


def run_hard(repetitions: int, work_dir: Path) -> Result:
    """A large embedding, and gradients whose squares overflow; see `measure`."""
    return measure(_HARD, repetitions, work_dir)


def of_parts(parts: Sequence[str]) -> Benchmark:
    """Some of the examples and of the models whose steps are easily slow."""
    return Benchmark(f"step:{','.join(parts)}", 4, partial(measure, tuple(parts)))


def measure(examples: Sequence[str], repetitions: int, work_dir: Path) -> Result:
    """Windows at K = 1 and K = 2 in turn; fresh processes of plain Keras, half before and half after them."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    verdicts = []
    for example in examples:
        batch = _BATCH.get(example, _BATCH_HARD)
        windows: dict[int, list[list[StepRecord]]] = {1: [], 2: []}
        peers = [_plain(example, batch) for _ in range(repetitions - repetitions // 2)]
        with train(
            example, work_dir / example.replace(":", "-"), workers=2, global_batch_size=batch
        ) as trainer:
            for _ in range(repetitions):
                for workers, seen in windows.items():
                    seen.append(visit(trainer, workers, batch, _STEPS))
        peers += [_plain(example, batch) for _ in range(repetitions // 2)]
        plain = Spread.of(peers)
        rows.append((f"{example}, Keras train_on_batch", str(plain.count), plain.text(1e3), "-", "-", "1.00"))
        found: dict[str, object] = {"global_batch_size": batch, "keras_step_time_s": plain}
        for workers, seen in windows.items():
            step, compute, sync = (_medians(seen, f"{name}_s") for name in ("step_time", "compute", "sync"))
            ratio = step.median / plain.median
            rows.append(
                (
                    f"{example}, K = {workers}",
                    str(step.count),
                    step.text(1e3),
                    compute.text(1e3),
                    sync.text(1e3, 2),
                    f"{ratio:.2f}",
                )
            )
            found[f"workers_{workers}"] = {
                "step_time_s": step,
                "compute_s": compute,
                "sync_s": sync,
                "ratio_to_keras": ratio,
            }
            share = sync.median / step.median
            verdicts.append(f"{example} K = {workers}: sync {share:.1%} of a step, {ratio:.2f} x Keras")
        figures[example] = found
    sizes = ", ".join(f"{example} {_BATCH.get(example, _BATCH_HARD)}" for example in examples)
    return Result(
        headers=("what", "n", "step, ms", "gradient, ms", "sync, ms", "step / Keras"),
        rows=tuple(rows),
        verdict="; ".join(verdicts),
        figures=figures,
        remarks=(
            f"B: {sizes}; one thread per process, Keras's too; n medians of {_STEPS} undisturbed steps each",
            "at K = 1 without the steps' measuring of the gradient noise, which takes 3 % in all",
            "at K = 2, a ratio below 1 is what the second processor gains",
        ),
    )


BENCHMARK = Benchmark("step", 4, run)
HARD_CASES = Benchmark("hard_cases", 2, run_hard)
