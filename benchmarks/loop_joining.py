"""How long a PyTorch loop stands still when a worker joins: beside the training, and with the others waiting for it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.loop_step import environment
from benchmarks.peers.running import installed
from benchmarks.peers.shapes import parameters
from scavenger import run_loop
from scavenger.train.custom_loop import supervisor
from scavenger.train.custom_loop.run import LoopRun
from scavenger.train.supervisor.events import Event
from scavenger.train.transport.messages import StepReport

_ROOT = Path(__file__).resolve().parents[1]
_BATCH, _STEPS, _BEFORE, _AFTER = 32, 60, 5, 3
_AIM_STEPS = 2.0
_WAYS = ("joins beside the training", "the others wait for it")


def _standstill(work_dir: Path) -> tuple[float, float]:
    """By what the longest step around a join from K = 1 to 2 was longer than usual, and a usual step, seconds."""
    seen: list[StepReport] = []

    def on_event(run: LoopRun, event: Event) -> None:
        if isinstance(event, StepReport):
            seen.append(event)
            if len(seen) == _BEFORE:
                run.scale_out(1)

    with environment(BENCHMARK_LOCAL_BATCH=str(_BATCH), BENCHMARK_STEPS=str(_STEPS)):
        run_loop(
            "benchmarks.peers.torch_loop:mlp",
            workers=1,
            work_dir=work_dir,
            job_dir=_ROOT,
            on_event=on_event,
        )
    joined = next(number for number, step in enumerate(seen) if step.workers == 2)
    around = seen[max(_BEFORE, joined - supervisor.BEHIND_MAX - _AFTER) : joined + _AFTER]
    usual_s = statistics.median(step.step_time_s for step in seen[joined + _AFTER :])
    return max(step.step_time_s for step in around) - usual_s, usual_s


@contextmanager
def _waiting() -> Iterator[None]:
    before = supervisor.BEHIND_MIN, supervisor.BEHIND_MAX
    supervisor.BEHIND_MIN = supervisor.BEHIND_MAX = 0
    try:
        yield
    finally:
        supervisor.BEHIND_MIN, supervisor.BEHIND_MAX = before


def run(repetitions: int, work_dir: Path) -> Result:
    """Both ways in turn, so many times."""
    headers = ("when a worker joins", "n", "stands still longer by, ms", "in steps", "ordinary step, ms")
    if not installed("torch"):
        return Result(headers, (), "PyTorch is not installed", {})
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
    for number in range(repetitions):
        found[_WAYS[0]].append(_standstill(work_dir / f"beside-{number}"))
        with _waiting():
            found[_WAYS[1]].append(_standstill(work_dir / f"waiting-{number}"))
    rows, figures = [], dict[str, object]()
    for way, pairs in found.items():
        excess, step = (Spread.of(column) for column in zip(*pairs, strict=True))
        steps = Spread.of(longer_s / usual_s for longer_s, usual_s in pairs)
        rows.append((way, str(repetitions), excess.text(1e3), steps.text(digits=2), step.text(1e3)))
        figures[way] = {"excess_s": excess, "steps": steps, "step_s": step}
    beside = Spread.of(longer_s / usual_s for longer_s, usual_s in found[_WAYS[0]])
    return Result(
        headers=headers,
        rows=tuple(rows),
        verdict=f"aim: below {_AIM_STEPS:.0f} steps when a worker joins; {beside.text(digits=2)}",
        figures=figures,
        remarks=(
            f"a network of {parameters('mlp') / 1e6:.1f} million parameters with Adam, {_BATCH} samples a worker",
            "the longest step around the join, less the median of those after it; every joiner is a new process",
        ),
    )


BENCHMARK = Benchmark("loop_joining", 3, run)
