"""Indicators of a running job: numbers that its training reports at each step, such as gradient noise and step time."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

BATCH_VALUES_MAX = 100_000
"""Most values of one batch, over all its columns."""
COLUMNS_MAX = 64
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class IndicatorBatch:
    """Values of consecutive steps, by name.

    Attributes:
        id: Grows with time.
        steps: Steps, growing.
        values: By name, one number a step; NaN where a step has none. Names end with their unit.
    """

    id: int
    job_id: str
    at: datetime
    steps: Sequence[int]
    values: Mapping[str, Sequence[float]]


def check_batch(steps: Sequence[int], values: Mapping[str, Sequence[float]]) -> None:
    """Refuse a batch that is not consistent.

    Raises:
        ValueError: It is empty, too large, its steps do not grow, or a column is misnamed, has another length or a
            value that is infinite.
    """
    if not steps or not values:
        raise ValueError("a batch of indicators has at least one step and one column")
    if len(values) > COLUMNS_MAX:
        raise ValueError(f"a batch has at most {COLUMNS_MAX} columns, not {len(values)}")
    if len(steps) * len(values) > BATCH_VALUES_MAX:
        raise ValueError(f"a batch has at most {BATCH_VALUES_MAX:,} values, not {len(steps) * len(values):,}")
    if steps[0] < 0 or steps[-1] >= 2**53 or any(a >= b for a, b in itertools.pairwise(steps)):
        raise ValueError("the steps of a batch are whole numbers from 0 on that grow")
    for name, column in values.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"an indicator is named as step_time_s is, not {name[:80]!r}")
        if len(column) != len(steps):
            raise ValueError(f"{name} has {len(column)} values for {len(steps)} steps")
        if any(map(math.isinf, column)):
            raise ValueError(f"{name} has a value that is infinite")
