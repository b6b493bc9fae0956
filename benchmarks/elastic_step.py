"""The time of a step beyond its gradient, compared with data-parallel training by PyTorch and TensorFlow."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.elastic_supervisor import Training, gradient_s
from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.peers.running import installed, run_peers
from benchmarks.peers.shapes import parameters

_WORKERS = 2
_BATCHES = {"mlp": 32, "cnn": 128}
_WARM_UP_STEPS = 5
_STEPS = 4
"""Length of a window: short, so that other work on the machine affects steps and gradients alike."""
_AIM_RATIO = 1.0
_SCAVENGER = "Scavenger"
_PEERS = {
    "PyTorch DDP, gloo": ("torch_ddp", "torch", _STEPS),
    "TensorFlow MultiWorkerMirrored": ("multiworker", "tensorflow", 2),  # of seconds, with a large network
}


@dataclass(frozen=True, slots=True)
class _Steps:
    """Medians of windows, seconds: whole steps, and the gradient alone in the same processes."""

    step_s: list[float]
    gradient_s: list[float]

    @property
    def beyond(self) -> Spread:
        """The part of a step that is not the computation of the gradient."""
        return Spread.of(step - gradient for step, gradient in zip(self.step_s, self.gradient_s, strict=True))


def _ours(network: str, windows: int, work_dir: Path) -> _Steps:
    with Training(f"benchmarks.peers.keras_jobs:{network}", work_dir) as training:
        training.begin(_WORKERS, _BATCHES[network])
        training.go_on(_WARM_UP_STEPS)
        seen = [training.go_on(_STEPS) for _ in range(windows)]
    measured = training.measured()
    return _Steps(
        [statistics.median(step.step_time_s for step in window) for window in seen],
        [statistics.median(gradient_s(measured, step.step) for step in window) for window in seen],
    )


def _theirs(script: str, network: str, windows: int, steps: int) -> _Steps:
    ranks = run_peers(
        script,
        _WORKERS,
        network=network,
        batch=_BATCHES[network] // _WORKERS,
        steps=steps,
        windows=windows,
    )
    return _Steps(slowest(ranks, "step_times_s", steps), slowest(ranks, "gradient_times_s", steps))


def slowest(ranks: list[dict[str, list[float]]], what: str, steps: int) -> list[float]:
    """Each window's median, of the rank where it is greatest: the others wait for it."""
    return [
        max(statistics.median(rank[what][begin : begin + steps]) for rank in ranks)
        for begin in range(0, len(ranks[0][what]), steps)
    ]


def run(repetitions: int, work_dir: Path) -> Result:
    """Each network by each way, one after the other: so many windows of steps."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, object] = {}
    verdicts = []
    for network in _BATCHES:
        ways = {_SCAVENGER: partial(_ours, network, repetitions, work_dir / network)}
        for name, (script, library, count) in _PEERS.items():
            if installed(library):
                ways[name] = partial(_theirs, script, network, repetitions, count)
        found = {name: way() for name, way in ways.items()}
        own = found[_SCAVENGER].beyond
        for name in (_SCAVENGER, *_PEERS):
            if name not in found:
                rows.append((f"{network}, {name}", "0", "not installed", "-", "-", "-"))
                continue
            steps = found[name]
            step, gradient, beyond = Spread.of(steps.step_s), Spread.of(steps.gradient_s), steps.beyond
            # where nothing is left beside the gradient, the difference is noise
            ratio = own.median / beyond.median if beyond.median > 0.0 else math.nan
            said = "-" if math.isnan(ratio) else f"{ratio:.2f}"
            rows.append(
                (
                    f"{network}, {name}",
                    str(step.count),
                    *(spread.text(1e3) for spread in (step, gradient, beyond)),
                    said,
                )
            )
            figures[f"{network}, {name}"] = {
                "step_s": step,
                "gradient_s": gradient,
                "beyond_s": beyond,
                "scavenger_to_this": None if math.isnan(ratio) else ratio,
            }
            if name != _SCAVENGER:
                verdicts.append(f"{network} to {name} {said}")
    batches = ", ".join(f"{network} {batch}" for network, batch in _BATCHES.items())
    return Result(
        headers=("what", "n", "step, ms", "gradient, ms", "beyond it, ms", "Scavenger to this"),
        rows=tuple(rows),
        verdict=f"aim: what a step takes beyond its gradient at most {_AIM_RATIO:.0f} times that of others; "
        + ("; ".join(verdicts) or "no peer is installed"),
        figures=figures,
        remarks=(
            f"K = {_WORKERS}, one thread per process, Adam; B: {batches}; mlp: {parameters('mlp') / 1e6:.1f} million "
            f"parameters, cnn: {parameters('cnn') / 1e6:.2f}; n medians of a few steps each",
            "gradient: forward and backward pass alone, in the same processes at the same time: Scavenger's within "
            "its steps, the others' in windows between theirs",
            "beyond it: exchange, average and Adam; Scavenger's also the norms and the step's report",
            "PyTorch: DistributedDataParallel with gradients as views of buckets, and fused Adam; TensorFlow: a "
            "custom loop under the strategy with Keras's Adam",
        ),
    )


BENCHMARK = Benchmark("elastic_step", 5, run)
