"""The time of a whole step of a PyTorch loop with `scavenger.sdk.loop`, compared with DDP over gloo."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.peers.running import installed, run_peers
from benchmarks.peers.shapes import parameters
from scavenger import run_loop
from scavenger.train.custom_loop.run import LoopRun
from scavenger.train.engines.base import Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.supervisor.events import Event
from scavenger.train.transport.messages import StepReport

_WORKERS = 2
_BATCHES = {"mlp": 32, "cnn": 128}
_STEPS, _WARM_UP = 12, 3
_AIM_RATIO = 1.0
_ROOT = Path(__file__).resolve().parents[1]


def ours(
    network: str,
    work_dir: Path,
    *,
    workers: int = _WORKERS,
    local: int,
    steps: int = _STEPS,
    device: str = "cpu",
    engine: Callable[[Path, int], Engine] = ProcessEngine,
) -> float:
    """The median time of a step, seconds, from one mean to the next.

    Args:
        local: Samples of a worker's batch.
        device: Where each worker computes.
        engine: Makes what starts the workers.
    """
    seen: list[float] = []

    def on_event(run: LoopRun, event: Event) -> None:
        if isinstance(event, StepReport):
            seen.append(event.step_time_s)

    variables = {
        "BENCHMARK_LOCAL_BATCH": str(local),
        "BENCHMARK_STEPS": str(steps + _WARM_UP),
        "BENCHMARK_DEVICE": device,
    }
    with environment(**variables):
        run_loop(
            f"benchmarks.peers.torch_loop:{network}",
            workers=workers,
            work_dir=work_dir,
            job_dir=_ROOT,
            engine=engine,
            on_event=on_event,
        )
    return statistics.median(seen[_WARM_UP:])


def theirs(
    network: str, *, workers: int = _WORKERS, local: int, steps: int = _STEPS, device: str = "cpu"
) -> float:
    """The median time of a step of the slowest rank, seconds; see `ours`."""
    given = {"network": network, "batch": local, "steps": steps, "windows": 1, "device": device}
    ranks = run_peers("torch_ddp", workers, **given)
    medians: list[float] = [statistics.median(rank["step_times_s"]) for rank in ranks]
    return max(medians)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def run(repetitions: int, work_dir: Path) -> Result:
    """Each network by both ways in turn, so many times."""
    headers = ("network", "n", "Scavenger, ms", "DDP (gloo), ms", "Scavenger to DDP")
    if not installed("torch"):
        return Result(headers, (), "PyTorch is not installed", {})
    rows, figures, ratios = [], dict[str, object](), []
    for network in _BATCHES:
        local = _BATCHES[network] // _WORKERS
        pairs = [
            (ours(network, work_dir / f"{network}-{n}", local=local), theirs(network, local=local))
            for n in range(repetitions)
        ]
        own, other = (Spread.of(column) for column in zip(*pairs, strict=True))
        ratio = Spread.of(mine / theirs for mine, theirs in pairs)
        rows.append((network, str(repetitions), own.text(1e3), other.text(1e3), ratio.text(digits=2)))
        figures[network] = {"step_s": own, "ddp_step_s": other, "ratio": ratio}
        ratios.append(f"{network} {ratio.median:.2f}")
    sizes = ", ".join(f"{network} {parameters(network) / 1e6:.1f} million parameters" for network in _BATCHES)
    return Result(
        headers,
        tuple(rows),
        f"aim: a whole step takes at most {_AIM_RATIO:.1f} times that of DDP; {', '.join(ratios)}",
        figures,
        remarks=(f"{_WORKERS} workers with one thread each, Adam (fused); {sizes}",),
    )


BENCHMARK = Benchmark("loop_step", 3, run)
