"""Epochs to the target by batch size in plain Keras, with the learning rate kept, and scaled with the batch.

They do not depend on how busy the machine is. `python -m benchmarks kept_rate:gru,tabular` measures some jobs of
`real_runs`, each with its own Adam; `kept_rate:tabular/sgd` one with SGD with momentum. What the noise scale of
the first steps says of the critical batch size B* stands beside the B* that the epochs show.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.real_runs import GOALS
from scavenger.models.noise import NoiseReading, critical_batch_from_noise, noise_scale_parts

_SIZES = (32, 128, 256)
_EPOCHS_MAX = 80
_NOISE_STEPS = 60
_OPTIMIZERS = ("adam", "sgd")
_POWERS = {"kept": 0.0, "sqrt": 0.5, "linear": 1.0}
"""Power of the batch size with which the learning rate grows."""
_SGD_RATE = 0.05


@dataclass(frozen=True)
class _Row:
    """Epochs of one job and optimizer, means over seeds; None where a run missed its target.

    Attributes:
        epochs: By batch size, at the rate of the smallest one.
        scaled: By rule of the learning rate, at the largest batch size.
        noise_scale, noise_batch: φ at the smallest batch, and the B* that follows from it.
    """

    job: str
    optimizer: str
    epochs: dict[int, float | None]
    scaled: dict[str, float | None]
    noise_scale: float | None
    noise_batch: float | None

    def ratio(self, epochs: float | None) -> float | None:
        """To the epochs at the smallest batch size."""
        base = self.epochs[_SIZES[0]]
        return None if base is None or epochs is None else epochs / base

    @property
    def ratios(self) -> dict[int, float]:
        """e(B) / e(32) at the kept rate, where it is known."""
        found = {size: self.ratio(epochs) for size, epochs in self.epochs.items()}
        return {size: ratio for size, ratio in found.items() if ratio is not None}

    @property
    def power(self) -> float | None:
        """p of e ∝ B^p, by least squares in logarithms."""
        if len(self.ratios) < 2:
            return None
        x, y = ([math.log(v) for v in values] for values in (self.ratios, self.ratios.values()))
        return statistics.linear_regression(x, y).slope

    @property
    def critical_batch(self) -> float | None:
        """B* of e ∝ 1 + B / B*, by least squares in logarithms; from 1 to 160,000 samples."""
        ratios = self.ratios
        if len(ratios) < 2:
            return None

        def misfit(log_critical: float) -> float:
            return statistics.pvariance(
                [math.log(r) - math.log1p(b / math.exp(log_critical)) for b, r in ratios.items()]
            )

        return math.exp(min((0.05 * step for step in range(240)), key=misfit))


def _compiled(kind: str, optimizer: str, scale: float, seed: int) -> Any:
    import keras

    from benchmarks.jobs.ordinary import train

    keras.utils.set_random_seed(seed)
    job = train.job(kind)
    own: Any = job.model.optimizer
    rate = float(own.learning_rate.numpy()) if optimizer == "adam" else _SGD_RATE
    made = (
        keras.optimizers.Adam(rate * scale)
        if optimizer == "adam"
        else keras.optimizers.SGD(rate * scale, momentum=0.9)
    )
    metrics = ["accuracy"] if GOALS[kind][0] == "val_accuracy" else None
    job.model.compile(made, job.model.loss, metrics=metrics, steps_per_execution=8, jit_compile=False)
    return job


def _epochs(kind: str, optimizer: str, rule: str, size: int, seed: int) -> float | None:
    """Epochs to the target, between evaluations by a line; None if it is not reached."""
    job = _compiled(kind, optimizer, (size / _SIZES[0]) ** _POWERS[rule], seed)
    metric, target, _ = GOALS[kind]
    sign = 1.0 if "acc" in metric else -1.0
    best = -math.inf
    (x, y), validation = job.train, job.validation
    for epoch in range(1, _EPOCHS_MAX + 1):
        job.model.fit(x, y, batch_size=size, epochs=1, verbose=0)
        answer = job.model.evaluate(*validation, batch_size=500, verbose=0, return_dict=True)
        value = sign * float(answer[metric.removeprefix("val_")])
        if not math.isfinite(value):
            return None
        if value >= sign * target:
            below = best if math.isfinite(best) else value - 1.0
            return epoch - (value - sign * target) / max(value - below, 1e-9)
        best = max(best, value)
    return None


def _noise_scale(kind: str, optimizer: str, seed: int) -> tuple[float | None, int]:
    """φ over the first steps at the smallest batch, from halves of it as one worker measures it; and the samples."""
    import numpy as np
    import tensorflow as tf

    job = _compiled(kind, optimizer, 1.0, seed)
    model, (x, y), size = job.model, job.train, _SIZES[0]
    parts: list[tuple[float, float]] = []

    def gradients(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=inputs, y=targets, y_pred=model(inputs, training=True))
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_variables)]

    traced = tf.function(gradients)
    order = np.random.default_rng(seed).permutation(len(x))
    for step in range(_NOISE_STEPS):
        at = order[step * size : (step + 1) * size]
        halves = [traced(x[part], y[part]) for part in (at[: size // 2], at[size // 2 :])]
        mean = [(a + b) / 2 for a, b in zip(*halves, strict=True)]
        model.optimizer.apply_gradients(zip(mean, model.trainable_variables, strict=True))
        norms = [sum(float(tf.reduce_sum(g * g)) for g in each) for each in (*halves, mean)]
        parts.append(noise_scale_parts((norms[0] + norms[1]) / 2, norms[2], size / 2, size))
    trace, true = (statistics.fmean(part[of] for part in parts) for of in (0, 1))
    return (trace / true if min(trace, true) > 0.0 else None), len(x)


def _mean(kind: str, optimizer: str, rule: str, size: int, seeds: Sequence[int]) -> float | None:
    found = [_epochs(kind, optimizer, rule, size, seed) for seed in seeds]
    print(kind, optimizer, rule, size, found, flush=True)
    reached = [value for value in found if value is not None]
    return statistics.fmean(reached) if len(reached) == len(found) else None


def _measured(kind: str, optimizer: str, seeds: Sequence[int]) -> _Row:
    scales = [_noise_scale(kind, optimizer, seed) for seed in seeds]
    epochs = {size: _mean(kind, optimizer, "kept", size, seeds) for size in _SIZES}
    scaled = {rule: _mean(kind, optimizer, rule, _SIZES[-1], seeds) for rule in _POWERS if rule != "kept"}
    known, base = [scale for scale, _ in scales if scale is not None], epochs[_SIZES[0]]
    scale, told = (statistics.median(known) if known else None), None
    if scale is not None and base is not None:
        behind = _NOISE_STEPS * _SIZES[0] / (base * scales[0][1])
        told = critical_batch_from_noise([NoiseReading(min(behind, 1.0), scale, _NOISE_STEPS, _SIZES[0])])
    return _Row(kind, optimizer, epochs, scaled, scale, None if told is None else told.critical_batch_size)


def run(repetitions: int, work_dir: Path, *, wanted: Sequence[tuple[str, str]]) -> Result:
    """Every job at each batch size, and at the largest one with each rule, by so many seeds."""
    return _result([_measured(kind, optimizer, range(1, repetitions + 1)) for kind, optimizer in wanted])


def _text(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _result(rows: Sequence[_Row]) -> Result:
    kept = [row for row in rows if row.critical_batch and row.noise_batch]
    off = [math.log((row.critical_batch or 1.0) / (row.noise_batch or 1.0)) for row in kept]
    spread = Spread.of(math.exp(value) for value in off or [0.0])
    return Result(
        headers=(
            "job, optimizer",
            f"epochs at {_SIZES[0]}",
            *(f"x at {size}" for size in _SIZES[1:]),
            *(f"{rule}, x at {_SIZES[-1]}" for rule in _POWERS if rule != "kept"),
            "power of B",
            "B* of the epochs",
            "B* by noise",
        ),
        rows=tuple(
            (
                f"{row.job}, {row.optimizer}",
                _text(row.epochs[_SIZES[0]]),
                *(_text(row.ratios.get(size), 2) for size in _SIZES[1:]),
                *(_text(row.ratio(epochs), 2) for epochs in row.scaled.values()),
                _text(row.power, 2),
                _text(row.critical_batch, 0),
                _text(row.noise_batch, 0),
            )
            for row in rows
        ),
        verdict=f"B* at a kept rate over that by the noise scale: {spread.text(digits=2)}, {len(kept)} jobs",
        figures={
            "rows": [
                asdict(row) | {"power": row.power, "critical_batch": row.critical_batch} for row in rows
            ],
            "kept_over_noise": spread,
        },
        remarks=(
            f"means over seeds; - where a run missed its target within {_EPOCHS_MAX} epochs",
            "x at: epochs over those at the smallest batch, at its rate, or at that times a power of the batch",
        ),
    )


def of_parts(parts: Sequence[str]) -> Benchmark:
    """The benchmark of some jobs: each a name, or a name and an optimizer as `gru/sgd`.

    Raises:
        ValueError: There is no such job.
    """
    wanted: list[tuple[str, str]] = []
    for part in parts:
        name, _, optimizer = part.partition("/")
        if name not in GOALS or optimizer not in ("", *_OPTIMIZERS):
            raise ValueError(
                f"no job {part}; there are {', '.join(GOALS)}, each also with {' or '.join(_OPTIMIZERS)}"
            )
        wanted.append((name, optimizer or _OPTIMIZERS[0]))
    return Benchmark("kept_rate", 2, partial(run, wanted=wanted))


BENCHMARK = of_parts(tuple(GOALS))
