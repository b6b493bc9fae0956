"""Budget and deadline of a run, and the reserve kept for an orderly end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from scavenger.errors import LimitReachedError
from scavenger.train.transport.messages.values import Manifest

DRAIN_S = 5.0
"""Time kept in reserve below a deadline or budget, for saving a small model and ending the workers."""
CLOSE_S = 2.0
"""The part of `DRAIN_S` in which the workers end; the rest is for saving."""
SAVED_BYTES_PER_S = 50e6
"""Minimum speed of writing a model, as on a slow network disk."""
_COPIES = 4
"""Copies of the weights to write: the model, and a checkpoint of the weights with two moments each."""
_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


WARNED_AT = 0.8
"""Share of a limit at which the user is warned."""


@dataclass(slots=True)
class Limits:
    """Limits of a run: deadline in seconds and budget in US dollars; None means no limit."""

    deadline_s: float | None
    budget_usd: float | None
    _reported: set[str] = field(default_factory=set)

    def near(self, *, elapsed_s: float, cost_usd: float) -> tuple[str, ...]:
        """Warnings about limits of which four fifths are used up, each given once.

        Args:
            elapsed_s: Time since the job began.
            cost_usd: Cost so far, plus the reserve for the end of the rented VMs.
        """
        found = []
        for name, limit, used, words in (
            ("deadline", self.deadline_s, elapsed_s, f"{elapsed_s:.0f} s of the deadline of {{:g}} s"),
            (
                "budget",
                self.budget_usd,
                cost_usd,
                f"${cost_usd:.4f} of the budget of ${{:g}}, including the reserve for the end,",
            ),
        ):
            if limit is not None and name not in self._reported and used >= WARNED_AT * limit:
                self._reported.add(name)
                found.append(f"{words.format(limit)} are used up; the job is stopped before it is crossed")
        return tuple(found)

    def hold(self, *, elapsed_s: float, cost_usd: float, drain_s: float, drain_usd: float) -> None:
        """Check that enough is left for an orderly end, which takes `drain_s` and `drain_usd`.

        Raises:
            LimitReachedError: If not enough is left.
        """
        if self.deadline_s is not None and elapsed_s + drain_s >= self.deadline_s:
            raise LimitReachedError(
                f"stopped after {elapsed_s:.0f} s, before the deadline of {self.deadline_s:g} s is crossed",
                limit="deadline",
            )
        if self.budget_usd is not None and cost_usd + drain_usd > self.budget_usd:
            raise LimitReachedError(
                f"stopped at ${cost_usd:.4f}, before the budget of ${self.budget_usd:g} would be crossed",
                limit="budget",
            )


def weights_bytes(manifest: Manifest) -> int:
    """Size of a model's weights."""
    return sum(math.prod(t.shape) * _BYTES.get(t.dtype, 8) for t in manifest.tensors)


def reserve_s(manifest: Manifest | None, busy_s: Iterable[float]) -> float:
    """Time for an orderly end, seconds: finish current work, write a checkpoint and the model, end the workers.

    Args:
        manifest: Describes the tensors to write; None if not known yet.
        busy_s: Durations of what a worker may currently be doing, seconds.
    """
    state_bytes = 0 if manifest is None else weights_bytes(manifest)
    return DRAIN_S + _COPIES * state_bytes / SAVED_BYTES_PER_S + max(busy_s, default=0.0)
