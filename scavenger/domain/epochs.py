"""The evaluations of a running job, as told to whoever follows it from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from scavenger.domain.measurement import EpochRecord
from scavenger.domain.report import EpochEnded, Event

EPOCHS = "epochs"
"""Kind of the events in the store that hold evaluations."""

_EVERY_S, _EVERY_SHARE = 0.5, 0.03
"""Shortest time between two such events, seconds, and as a share of the job's time: so that epochs of milliseconds
make some hundreds of events, and not one each."""
_LATEST = 100
"""Most evaluations of one event; earlier ones are left out."""


class EpochsToTell:
    """Collects evaluations until they are due."""

    def __init__(self) -> None:
        self._waiting: list[EpochEnded] = []
        self._begun_s: float | None = None
        self._told_s = -math.inf

    def on_event(self, event: Event) -> None:
        """Take in an event."""
        if isinstance(event, EpochEnded):
            self._waiting = [*self._waiting[1 - _LATEST :], event]

    def due(self, now_s: float, cost_usd: float | None, *, last: bool = False) -> tuple[EpochEnded, ...]:
        """What is to be told now, oldest first; may be nothing.

        Args:
            now_s: Monotonic time.
            cost_usd: What the job has cost so far.
            last: Whether this is its end, so that nothing waits.
        """
        if self._begun_s is None:
            self._begun_s = now_s
        wait_s = max(_EVERY_S, _EVERY_SHARE * (now_s - self._begun_s))
        if not self._waiting or (now_s - self._told_s < wait_s and not last):
            return ()
        due, self._waiting, self._told_s = tuple(self._waiting), [], now_s
        return tuple(replace(one, cost_usd=cost_usd) for one in due)


def epochs_data(epochs: tuple[EpochEnded, ...]) -> dict[str, Any]:
    """Evaluations as JSON values, which `read_epochs` reads."""
    latest = epochs[-1]
    return {
        "metric": latest.goal_metric,
        "target": latest.target,
        "cost_usd": latest.cost_usd,
        "epochs": [asdict(one.record) for one in epochs],
    }


def read_epochs(data: Mapping[str, Any]) -> tuple[EpochEnded, ...]:
    """Read `epochs_data`; metrics that were NaN or infinite are NaN.

    Raises:
        ValueError: If that is not what it is.
    """
    try:
        return tuple(
            EpochEnded(
                EpochRecord(
                    int(one["epoch"]),
                    int(one["step"]),
                    {
                        str(name): math.nan if value is None else float(value)
                        for name, value in one["metrics"].items()
                    },
                    float(one["evaluation_s"]),
                    float(one["at_s"]),
                ),
                data["metric"],
                data["target"],
                data["cost_usd"],
            )
            for one in data["epochs"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"these are no evaluations: {error}") from error
