"""How long something computes, in units of a fixed piece of work that is timed right next to it.

Processor time alone is no measure on a shared machine: caches, clock rates and sibling threads make the same work
cost three times as much. The ratio of two pieces of work that run in turns stays.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

UNIT_S = 0.01
"""About what one unit takes on a quiet processor of 2020 or later."""


def _unit() -> None:
    # megabytes that are new each time, as in the work that is compared
    values = np.linspace(0.0, 1.0, 500_000)
    for _ in range(2):
        values = np.sqrt(np.exp(-values) + np.log1p(values))
    total = 0
    for number in range(60_000):
        total += number % 7


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def units(work: Callable[[], object], *, repeats: int = 3) -> float:
    """The processor time of `work` over that of a unit: the median of `repeats`, after one that warms up."""
    work()
    return statistics.median(
        _cpu_s(work) / statistics.median(_cpu_s(_unit) for _ in range(5)) for _ in range(repeats)
    )
