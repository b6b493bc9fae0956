"""What a job uses of this machine: its own processes alone, or also a share of the pool of aggregators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from scavenger.control.training.cost_meter import CostMeter, PooledCostMeter, WorkerCostMeter
from scavenger.control.training.item_meter import ItemMeter
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.cost import CostTerms, LedgerEntry
from scavenger.domain.measurement import StepRecord
from scavenger.errors import StoreBusyError, StoreReadOnlyError, StoreUnavailableError
from scavenger.models.aggregation import AggregatorVms
from scavenger.store import Store
from scavenger.train.engines.base import Engine
from scavenger.train.pool.lodging import Lodgings
from scavenger.train.pool.tenants import Tenants
from scavenger.train.supervisor.face import JobSupervisor


class LocalResources:
    """This machine's resources, for which nothing is rented; see `platform.Resources`."""

    sequencer_apart = False

    def __init__(self, space: SearchSpace, engine: Callable[[Path, int], Engine] | None) -> None:
        self.space, self.engine = space, engine

    def meter(self, supervisor: JobSupervisor) -> CostMeter:
        return WorkerCostMeter(supervisor, {offer.vm: offer for offer in self.space.offers})

    @property
    def vms(self) -> int:
        return 0

    def terms(self, trainer: Trainer) -> CostTerms | None:
        return None

    def aggregator_vms(self, trainer: Trainer) -> AggregatorVms | None:
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
    """This machine, with the job's aggregators in a pool; see `platform.Resources`.

    The job reports its steps to the pool, and pays for the processor time that its aggregators use.

    Args:
        space: The configurations.
        pool: The job's aggregators there, which `engine` uses.
        store: Records the job's share.
        usd_per_cpu_hour: Price of a processor of this machine; nodes on others have prices of their own.
    """

    def __init__(
        self,
        space: SearchSpace,
        engine: Callable[[Path, int], Engine],
        pool: Tenants | Lodgings,
        store: Store,
        job_id: str,
        usd_per_cpu_hour: float,
    ) -> None:
        super().__init__(space, engine)
        self._pool, self._price = pool, usd_per_cpu_hour
        self._share = ItemMeter(store, job_id, "share")

    def meter(self, supervisor: JobSupervisor) -> CostMeter:
        return PooledCostMeter(supervisor, {offer.vm: offer for offer in self.space.offers}, self._share)

    def terms(self, trainer: Trainer) -> CostTerms | None:
        """See `platform.Resources.terms`: what a step has used since the first one of this attempt."""
        usd = self._share.usd_per_step(trainer.step)
        return None if usd is None else CostTerms(aggregation_usd_per_step=usd)

    def tick(
        self,
        drain_s: float = 0.0,
        *,
        step: int = 0,
        model_bytes: float = 0.0,
        steps: Sequence[StepRecord] = (),
    ) -> None:
        report_steps(self._pool, steps, model_bytes)
        cpu_s, usd = self._pool.used()
        used = LedgerEntry(cpu_s, cpu_s / 3600.0 * self._price if usd is None else usd)
        self._share.note(used, steps[-1].step if steps else None)
        self._record()

    def close(self) -> None:
        self._record(at_once=True)

    def _record(self, *, at_once: bool = False) -> None:
        # the job's recorder reports outages of the store and limits them
        with contextlib.suppress(StoreBusyError, StoreReadOnlyError, StoreUnavailableError):
            self._share.record(at_once=at_once)


def report_steps(pool: Tenants | Lodgings, steps: Sequence[StepRecord], model_bytes: float) -> None:
    """Tell the pool of a job's steps, those of each view apart.

    Args:
        model_bytes: Size of its model's weights, of which each worker sends as much as gradients in a step.
    """
    for view in dict.fromkeys(record.view for record in steps):
        made = [record for record in steps if record.view == view]
        times_s = [record.step_time_s for record in made]
        pool.report(view, times_s, int(made[-1].workers * model_bytes))
