"""The time of a whole step of a PyTorch loop with `scavenger.sdk.loop`, by each way, compared with DDP over gloo."""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.peers.running import installed, run_peers
from benchmarks.peers.shapes import parameters
from scavenger import run_loop
from scavenger.domain.elastic import GradientExchange
from scavenger.train.custom_loop.run import LoopRun
from scavenger.train.engines.base import Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.supervisor.events import Event, Told
from scavenger.train.transport.messages import StepReport

_WORKERS = 2
_COUNTS = (1, 2)
_BATCHES = {"mlp": 32, "cnn": 128}
_STEPS, _WARM_UP, _UNTIL_GROUP = 12, 3, 30
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
    exchange: GradientExchange = "leader",
    engine: Callable[[Path, int], Engine] = ProcessEngine,
) -> float:
    """The median time of a step, seconds, from one mean to the next.

    Args:
        local: Samples of a worker's batch.
        device: Where each worker computes.
        exchange: Who averages the gradients; steps before a process group does are not counted.
        engine: Makes what starts the workers.

    Raises:
        RuntimeError: If no process group has averaged so many.
    """
    seen: list[float] = []
    waits = exchange == "process_group"

    def on_event(run: LoopRun, event: Event) -> None:
        nonlocal waits
        if isinstance(event, StepReport):
            seen.append(event.step_time_s)
        elif isinstance(event, Told):
            waits = False
            seen.clear()

    variables = {
        "BENCHMARK_LOCAL_BATCH": str(local),
        "BENCHMARK_STEPS": str(steps + _WARM_UP + waits * _UNTIL_GROUP),
        "BENCHMARK_DEVICE": device,
    }
    with environment(**variables):
        run_loop(
            f"benchmarks.peers.torch_loop:{network}",
            workers=workers,
            work_dir=work_dir,
            job_dir=_ROOT,
            exchange=exchange,
            engine=engine,
            on_event=on_event,
        )
    if waits or len(seen) < steps + _WARM_UP:
        raise RuntimeError(f"a process group has averaged the gradients of {0 if waits else len(seen)} steps")
    return statistics.median(seen[_WARM_UP : _WARM_UP + steps])


def theirs(
    network: str, *, workers: int = _WORKERS, local: int, steps: int = _STEPS, device: str = "cpu"
) -> float:
    """The median time of a step of the slowest rank, seconds; see `ours`."""
    given = {"network": network, "batch": local, "steps": steps, "windows": 1, "device": device}
    ranks = run_peers("torch_ddp", workers, **given)
    medians: list[float] = [statistics.median(rank["step_times_s"]) for rank in ranks]
    return max(medians)


class Steps(NamedTuple):
    """Median times of steps, seconds: of a loop whose leader averages, of one by a process group, and of DDP."""

    step_s: Spread
    group_step_s: Spread
    ddp_step_s: Spread
    ratio: Spread
    group_ratio: Spread
    """The first and the second over the third."""


def in_turn(
    network: str,
    work_dir: Path,
    *,
    local: int,
    repetitions: int,
    workers: int = _WORKERS,
    steps: int = _STEPS,
    device: str = "cpu",
    engine: Callable[[Path, int], Engine] = ProcessEngine,
) -> Steps:
    """Steps by each way in turn, so many times; see `ours`.

    Args:
        network: As of `benchmarks.peers.shapes`.
        device: `cuda`, where the workers of the engine see a GPU each, or `cpu`.
    """
    size = {"workers": workers, "local": local, "steps": steps}
    folders = (work_dir / f"{network}-{number}" for number in itertools.count())

    def by(exchange: GradientExchange) -> float:
        return ours(network, next(folders), device=device, exchange=exchange, engine=engine, **size)

    group: GradientExchange = (
        "process_group" if workers > 1 else "leader"
    )  # of one, there is nothing to average
    rows = [(by("leader"), by(group), theirs(network, device=device, **size)) for _ in range(repetitions)]
    ratios = (Spread.of(row[way] / row[2] for row in rows) for way in (0, 1))
    return Steps(*(Spread.of(column) for column in zip(*rows, strict=True)), *ratios)


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
    headers = (
        "network",
        "workers",
        "n",
        "Scavenger, ms",
        "by groups, ms",
        "DDP (gloo), ms",
        "Scavenger to DDP",
        "groups to DDP",
    )
    if not installed("torch"):
        return Result(headers, (), "PyTorch is not installed", {})
    rows, figures, ratios = [], dict[str, object](), []
    for network, workers in itertools.product(_BATCHES, _COUNTS):
        local = _BATCHES[network] // workers
        folder = work_dir / str(workers)
        found = in_turn(network, folder, repetitions=repetitions, local=local, workers=workers)
        texts = [one.text(1e3) for one in found[:3]] + [one.text(digits=2) for one in found[3:]]
        rows.append((network, str(workers), str(repetitions), *texts))
        figures[f"{network}, {workers}"] = found._asdict()
        ratios.append(f"{network} with {workers} {found.ratio.median:.2f}")
    sizes = ", ".join(f"{network} {parameters(network) / 1e6:.1f} million parameters" for network in _BATCHES)
    return Result(
        headers,
        tuple(rows),
        f"aim: a whole step takes at most {_AIM_RATIO:.1f} times that of DDP; {', '.join(ratios)}",
        figures,
        remarks=(
            f"workers with one thread each, Adam (fused); {sizes}; with one, both ways are the leader's",
            "by groups: elastic.exchange: process_group, over gloo; else the leader averages, which is the default",
        ),
    )


BENCHMARK = Benchmark("loop_step", 3, run)
