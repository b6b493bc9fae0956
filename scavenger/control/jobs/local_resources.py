"""What a job uses of this machine: its own processes alone, or also a share of the pool of aggregators."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scavenger.control.training.aggregation_share import record_share, recorded_share
from scavenger.control.training.cost_meter import CostMeter, PooledCostMeter, WorkerCostMeter
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.cost import AggregationShare, CostTerms
from scavenger.domain.measurement import StepRecord
from scavenger.errors import StoreBusyError, StoreReadOnlyError, StoreUnavailableError
from scavenger.models.aggregation import AggregatorVms
from scavenger.store import Store
from scavenger.train.engines.base import Engine
from scavenger.train.pool.engine import PooledEngine
from scavenger.train.supervisor.face import JobSupervisor

__all__ = ["LocalResources", "PooledResources"]

_RECORD_S = 60.0


class LocalResources:
    """This machine's resources, for which nothing is rented; see `platform.Resources`."""

    def __init__(self, space: SearchSpace, engine: Callable[[Path, int], Engine] | None) -> None:
        self.space, self.engine = space, engine

    def meter(self, supervisor: JobSupervisor) -> CostMeter:
        """See `platform.Resources.meter`."""
        return WorkerCostMeter(supervisor, {offer.vm: offer for offer in self.space.offers})

    @property
    def vms(self) -> int:
        """See `platform.Resources.vms`."""
        return 0

    def terms(self, trainer: Trainer) -> CostTerms | None:
        """See `platform.Resources.terms`."""
        return None

    def aggregator_vms(self, trainer: Trainer) -> AggregatorVms | None:
        """See `platform.Resources.aggregator_vms`."""
        return None

    def tick(
        self,
        drain_s: float = 0.0,
        *,
        step: int = 0,
        model_bytes: float = 0.0,
        steps: Sequence[StepRecord] = (),
    ) -> None:
        """See `platform.Resources.tick`."""

    def close(self) -> None:
        """See `platform.Resources.close`."""


class PooledResources(LocalResources):
    """This machine, with the job's aggregators in the pool; see `platform.Resources`.

    The job reports its steps to the pool, and pays for the processor time that its aggregators use.

    Args:
        space: The configurations.
        make: Makes the engine.
        store: Records the job's share.
        job_id: The job's id.
        usd_per_cpu_hour: Price of a processor of this machine.
    """

    def __init__(
        self,
        space: SearchSpace,
        make: Callable[[Path, int], PooledEngine],
        store: Store,
        job_id: str,
        usd_per_cpu_hour: float,
    ) -> None:
        super().__init__(space, self._engine_of)
        self._make, self._store, self._job_id, self._price = make, store, job_id, usd_per_cpu_hour
        self._engine: PooledEngine | None = None
        self._before = self._recorded = recorded_share(store, job_id)
        self._share = AggregationShare()
        self._recorded_at = 0.0
        self._first: tuple[int, float] | None = None  # a step, and what had been used for starting until then

    def meter(self, supervisor: JobSupervisor) -> CostMeter:
        """See `platform.Resources.meter`."""
        return PooledCostMeter(
            supervisor, {offer.vm: offer for offer in self.space.offers}, lambda: self._share
        )

    def terms(self, trainer: Trainer) -> CostTerms | None:
        """See `platform.Resources.terms`: what a step has used since the first one of this attempt."""
        if self._first is None or trainer.step <= self._first[0]:
            return None
        step, usd = self._first
        return CostTerms(aggregation_usd_per_step=(self._share.usd - usd) / (trainer.step - step))

    def tick(
        self,
        drain_s: float = 0.0,
        *,
        step: int = 0,
        model_bytes: float = 0.0,
        steps: Sequence[StepRecord] = (),
    ) -> None:
        """See `platform.Resources.tick`."""
        if self._engine is None:
            return
        for view in dict.fromkeys(record.view for record in steps):
            self._engine.report(view, [record.step_time_s for record in steps if record.view == view])
        self._share = AggregationShare().plus(self._engine.aggregation_cpu_s(), self._price)
        if steps and self._first is None:
            self._first = steps[-1].step, self._share.usd
        if time.monotonic() - self._recorded_at >= _RECORD_S:
            self._record()

    def close(self) -> None:
        """See `platform.Resources.close`."""
        self._record()

    def _engine_of(self, log_dir: Path, memory_fd: int) -> PooledEngine:
        self._engine = self._make(log_dir, memory_fd)
        return self._engine

    def _record(self) -> None:
        total = self._before.plus(self._share.cpu_s, self._price)
        if total == self._recorded:
            return
        with contextlib.suppress(StoreBusyError, StoreReadOnlyError, StoreUnavailableError):
            record_share(self._store, self._job_id, total)
            self._recorded, self._recorded_at = total, time.monotonic()
