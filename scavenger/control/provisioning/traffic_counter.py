"""Counts a job's traffic between zones and records it, for its bill."""

from __future__ import annotations

from dataclasses import asdict

from scavenger.domain.cost import Traffic, TrafficPrice
from scavenger.models.cost import traffic_gib
from scavenger.store import Store

_KIND = "traffic"
"""Kind of the event that holds a job's traffic so far."""
_RECORD_S = 60.0


def recorded_traffic(store: Store, job_id: str) -> Traffic:
    """The traffic of all attempts of a job."""
    found = store.events(job_id, limit=1, kind=_KIND)
    if not found:
        return Traffic()
    data = found[0].data
    return Traffic(float(data["gib"]), float(data["usd"]), str(data["price"]))


class TrafficCounter:
    """The traffic between zones of one job.

    Args:
        price: None if it is not known: then nothing is counted.
        before: Traffic of earlier attempts.

    Attributes:
        total: Traffic so far, with that of earlier attempts.
    """

    def __init__(self, price: TrafficPrice | None, before: Traffic) -> None:
        self._price, self._before = price, before
        self.total = self._recorded = before
        self._step: int | None = None
        self._recorded_at_s = 0.0

    @property
    def attempt_usd(self) -> float:
        """Cost of the traffic of this attempt."""
        return self.total.usd - self._before.usd

    def count(self, step: int, *, workers: float, weights_bytes: float) -> None:
        """Count the steps since the last call; steps that are done again after a failure are counted again.

        Args:
            step: Number of the job's last step.
            workers: Number of workers in other zones than the aggregators; see `workers_elsewhere`.
            weights_bytes: Size of the model's weights.
        """
        steps = 0 if self._step is None else max(0, step - self._step)
        self._step = step
        if steps and workers and self._price is not None:
            self.total = self.total.plus(traffic_gib(steps, workers, weights_bytes), self._price)

    def record(self, store: Store, job_id: str, now_s: float, *, at_once: bool = False) -> None:
        """Record the traffic, about once a minute if it grows.

        Raises:
            StoreBusyError, StoreReadOnlyError, StoreUnavailableError: Try again later.
        """
        if self.total == self._recorded or not (at_once or now_s - self._recorded_at_s >= _RECORD_S):
            return
        text = f"{self.total.gib:.4g} GiB between zones: ${self.total.usd:.4f}"
        store.add_event(job_id, _KIND, text, data=asdict(self.total), replacing=True)
        self._recorded, self._recorded_at_s = self.total, now_s
