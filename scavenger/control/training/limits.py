"""What a run must not exceed, and what it keeps in reserve to end in order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from scavenger.errors import LimitReachedError
from scavenger.train.transport.messages.values import Manifest

__all__ = ["CLOSE_S", "DRAIN_S", "Limits", "reserve_s"]

DRAIN_S = 5.0
"""Time kept in reserve below a deadline or budget, for saving a small model and ending the workers."""
CLOSE_S = 2.0
"""The part of `DRAIN_S` in which the workers end; the rest is for saving."""
SAVED_BYTES_PER_S = 50e6
"""How fast a model is written at least: a slow network disk, where a model's file is often bound for."""
_COPIES = 4
"""The model, and a checkpoint of weights and two moments of each."""
_BYTES = {"float16": 2, "int16": 2, "float32": 4, "int32": 4, "uint32": 4, "int8": 1, "uint8": 1, "bool": 1}


WARNED_AT = 0.8
"""Share of a limit at which the user is told."""


@dataclass(slots=True)
class Limits:
    """What the run must not exceed; None where there is no limit."""

    deadline_s: float | None
    budget_usd: float | None
    _reported: set[str] = field(default_factory=set)

    def near(self, *, elapsed_s: float, cost_usd: float) -> tuple[str, ...]:
        """Of which limit four fifths are used up, each told once.

        Args:
            elapsed_s: Since the job began.
            cost_usd: Spent, and set aside for the end of what is paid for.
        """
        found = []
        for name, limit, used, words in (
            ("deadline", self.deadline_s, elapsed_s, f"{elapsed_s:.0f} s of the deadline of {{:g}} s"),
            (
                "budget",
                self.budget_usd,
                cost_usd,
                f"${cost_usd:.4f} of the budget of ${{:g}}, with what is set aside for the end,",
            ),
        ):
            if limit is not None and name not in self._reported and used >= WARNED_AT * limit:
                self._reported.add(name)
                found.append(f"{words.format(limit)} are used up; the job is stopped before it is crossed")
        return tuple(found)

    def hold(self, *, elapsed_s: float, cost_usd: float, drain_s: float, drain_usd: float) -> None:
        """Nothing, while there is still enough left to end in order, which takes `drain_s` and `drain_usd`.

        Raises:
            LimitReachedError: If there is not.
        """
        if self.deadline_s is not None and elapsed_s + drain_s >= self.deadline_s:
            raise LimitReachedError(
                f"stopped after {elapsed_s:.0f} s, before the deadline of {self.deadline_s:g} s is crossed"
            )
        if self.budget_usd is not None and cost_usd + drain_usd > self.budget_usd:
            raise LimitReachedError(
                f"stopped at ${cost_usd:.4f}, before the budget of ${self.budget_usd:g} would be crossed"
            )


def reserve_s(manifest: Manifest | None, busy_s: Iterable[float]) -> float:
    """Time to end in order: a checkpoint and the model are written after what is under way, and all are ended.

    Args:
        manifest: What is written; None where that is not known yet.
        busy_s: What a worker may be at, seconds each.
    """
    tensors = () if manifest is None else manifest.tensors
    state_bytes = sum(math.prod(t.shape) * _BYTES.get(t.dtype, 8) for t in tensors)
    return DRAIN_S + _COPIES * state_bytes / SAVED_BYTES_PER_S + max(busy_s, default=0.0)
