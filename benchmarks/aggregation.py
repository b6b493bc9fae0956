"""The aggregator's arithmetic: sum, norms and optimizer, compared with Keras and with a plain copy of the memory."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.figures import Benchmark, Result, Spread
from scavenger.train.aggregation.kernels import Array
from scavenger.train.aggregation.shard_state import ShardState
from scavenger.train.aggregation.update import Update
from scavenger.train.transport.messages.values import TensorSpec

_Shapes = tuple[tuple[int, ...], ...]
_LARGE: _Shapes = ((5000, 4000), (4_999_744,), (256,))
_SMALL: _Shapes = ((64,),) * 1000
_PARAMETERS = sum(math.prod(shape) for shape in _LARGE)
_AIM_S = 0.1


@dataclass(frozen=True, slots=True)
class _Case:
    """A step to be timed: which optimizer with how many workers over which tensors."""

    name: str
    class_name: str
    options: dict[str, object] = field(default_factory=dict)
    workers: int = 2
    threads: int | None = None
    shapes: _Shapes = _LARGE

    @property
    def label(self) -> str:
        return f"{self.name}, K = {self.workers}"


_AIMED = _Case("Adam", "Adam")
_CASES = (
    _AIMED,
    _Case("Adam, one thread", "Adam", threads=1),
    _Case("Adam", "Adam", workers=4),
    _Case("Adam, clipnorm", "Adam", {"clipnorm": 1.0}),
    _Case("AdamW", "AdamW"),
    _Case("RMSprop", "RMSprop"),
    _Case("SGD, momentum", "SGD", {"momentum": 0.9}),
    _Case("Adam, small tensors", "Adam", shapes=_SMALL),
    # an option that no kernel exists for, so that Keras's own code runs on TensorFlow
    _Case("Adam by Keras", "Adam", {"loss_scale_factor": 1.0}),
)


def _optimizer(class_name: str, options: dict[str, object]) -> str:
    return json.dumps(
        {
            "module": "keras.optimizers",
            "class_name": class_name,
            "config": {"learning_rate": 0.001, **options},
            "registered_name": None,
        }
    )


def run(repetitions: int, work_dir: Path) -> Result:
    """Everything in this process, so many times after a first one that is not counted."""
    rows, spreads = [], {}
    for case in _CASES:
        spread, arrays, copied = _measure(case, repetitions)
        # what is small lies in the cache, where a copy tells nothing
        ratio = f"{spread.median / copied.median:.1f}" if case.shapes is _LARGE else "-"
        rows.append((case.label, str(arrays), spread.text(1e3), ratio))
        spreads[case.label] = spread
    return Result(
        headers=("what", "arrays", "median (least – greatest), ms", "times a copy"),
        rows=tuple(rows),
        verdict=f"aim: below {_AIM_S * 1e3:.0f} ms for sum, norms and Adam over {_PARAMETERS / 1e6:.0f} M float32 "
        f"parameters at K = 2: {spreads[_AIMED.label].median * 1e3:.0f} ms",
        figures={"parameters": _PARAMETERS, **{f"{label}_s": spread for label, spread in spreads.items()}},
        remarks=(
            "one thread for each processor, at most four, but where one is named",
            f"arrays: of {_PARAMETERS * 4 / 1e6:.0f} MB each that one pass reads or writes; times a copy: beside one "
            "thread that copies memory of which it reads and writes as much",
            f"small tensors: {len(_SMALL)} of {math.prod(_SMALL[0])} parameters each: nothing but the cost of calls",
            "by Keras: mean and norms as above, then Keras's optimizer on TensorFlow, its state copied in and out",
        ),
    )


def one_core(workers: int, repetitions: int) -> tuple[float, int]:
    """Median processor seconds in which one core sums so many gradients and updates by Adam, and the parameters."""
    case = _Case("Adam", "Adam", workers=workers, threads=1)
    spread, _, _ = _measure(case, repetitions, clock=time.process_time)
    return spread.median, _PARAMETERS


def _measure(
    case: _Case, repetitions: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[Spread, int, Spread]:
    """Time of a step, how many arrays of the parameters' size pass, and the time of a copy of as many."""
    random = np.random.default_rng(0)

    def fresh() -> list[Array]:
        return [random.standard_normal(shape, dtype=np.float32) for shape in case.shapes]

    tensors = [TensorSpec(f"tensor{i}", shape, "float32", "trainable") for i, shape in enumerate(case.shapes)]
    update = Update(tensors, _optimizer(case.class_name, case.options), threads=case.threads)
    contributions = [(1, fresh()) for _ in range(case.workers)]
    weights = fresh(), fresh()
    slots = [[slot.copy() for slot in update.initial_slots(weights[0])] for _ in range(2)]

    def step(number: int) -> None:
        old, new = (number - 1) % 2, number % 2
        before, after = (ShardState(weights[turn], slots[turn]) for turn in (old, new))
        update.apply(contributions, before, after, step=number)

    arrays = case.workers + 2 * (1 + len(update.slots) // len(tensors))

    def copy(number: int) -> None:
        for _ in range(arrays // 2):  # each is read and written
            for source, target in zip(*weights, strict=True):
                np.copyto(target, source)

    return _timed(step, repetitions, clock), arrays, _timed(copy, repetitions, clock)


def _timed(task: Callable[[int], None], repetitions: int, clock: Callable[[], float]) -> Spread:
    task(1)
    seen = []
    for number in range(repetitions):
        begin = clock()
        task(number + 2)
        seen.append(clock() - begin)
    return Spread.of(seen)


BENCHMARK = Benchmark("aggregation", 10, run)
