"""A place where jobs run: what it offers to one job, and what it allocates to it until its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from scavenger.control.training.cost_meter import CostMeter, WorkerCostMeter
from scavenger.control.training.item_meter import ItemMeter
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.cost import CostTerms, PricedExtra
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import StepRecord
from scavenger.models.aggregation import AggregatorVms
from scavenger.policy.leaders import LeaderPlan
from scavenger.store import Store
from scavenger.store.records import JobRecord
from scavenger.train.engines.base import Engine
from scavenger.train.supervisor.face import JobSupervisor

Steps = Sequence[StepRecord]


@dataclass(frozen=True, slots=True)
class JobContext:
    """A job that begins, for the place that allocates to it.

    Attributes:
        inform, warn: Receive messages for the user, now and during the run.
        clock: Monotonic seconds.
        pause: Waits for a number of seconds, or raises `Interrupted` if the job is to stop.
    """

    store: Store
    record: JobRecord
    folder: Path
    outputs: Path
    inform: Callable[[str], None]
    warn: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


class Allocation:
    """Resources allocated to a job until `close`; as it is here, processes of machines that are there anyway.

    Args:
        space: The configurations that may be searched on these resources.
        engine: Makes the engine that starts the job's processes.
        share: Meters what the job's aggregators use of a pool; None if they use none.
        sequencer_apart: See `Supervisor.open`: whether aggregators may have to leave their hosts at any time.
    """

    def __init__(
        self,
        space: SearchSpace,
        engine: Callable[[Path, int], Engine],
        *,
        share: ItemMeter | None = None,
        sequencer_apart: bool = False,
    ) -> None:
        self.space, self.engine, self.share, self.sequencer_apart = space, engine, share, sequencer_apart

    def meter(self, supervisor: JobSupervisor) -> CostMeter:
        """The job's cost meter."""
        return WorkerCostMeter(supervisor, {offer.vm: offer for offer in self.space.offers}, self.share)

    @property
    def vms(self) -> int:
        """Number of VMs being paid for, as of the last check; safe in signal handlers."""
        return 0

    @property
    def worker_vms(self) -> int:
        """Those of them that are not for aggregators."""
        return 0

    def terms(self, trainer: Trainer) -> CostTerms | None:
        """Costs besides the workers, as far as known; None if the job rents nothing."""
        return None

    def aggregator_vms(self, trainer: Trainer) -> AggregatorVms | None:
        """The rented aggregator VMs; None if there are none, or the model is not known yet."""
        return None

    def tick(
        self, drain_s: float = 0.0, *, step: int = 0, model_bytes: float = 0.0, steps: Steps = ()
    ) -> None:
        """Renew the rented VMs and read their state; called about once a second.

        Args:
            drain_s: Time that the job needs for an orderly end, seconds.
            step: Number of the job's last step.
            steps: The steps since the last call.

        Raises:
            ScavengerError: If the job must end.
        """

    def close(self) -> None:
        """Release all resources.

        Raises:
            CleanupError: If a VM may be left running.
        """


class Place:
    """Where a job can run, before anything is started or paid for.

    Attributes:
        job: The job, with what the place limits.
        space: The configurations, before the size of the data is known.
        hardware: What determines a VM type's speed, to distinguish models learned on other hardware.
        aggregators: The VM type that is rented for the aggregators; None if none is rented.
        leader: The VM that is rented to lead the job; None if it is led where the command runs.
        old_prices: Prices of VMs with GPUs that are older than `limits.price_age`, with source and date, as text: of
            them the user is asked; empty if there are none.
        extras: What is paid for beside VM types; empty if no VM is rented.
    """

    job: JobSpec
    space: SearchSpace
    hardware: str
    notes: tuple[str, ...] = ()
    rents = False
    aggregators: Offer | None = None
    leader: LeaderPlan | None = None
    old_prices: str = ""
    extras: tuple[PricedExtra, ...] = ()

    def settled(self, store: Store) -> Self:
        """The place with a number of aggregator VMs, where the job's file leaves that to be chosen by earlier runs.

        Raises:
            ConfigurationError: No VM of that type holds the model.
        """
        return self

    def vm_usd_per_hour(self, offer: Offer) -> float:
        """What one VM of an offer is billed in an hour, with what it has beside its type."""
        return offer.price_usd_per_hour

    def check_prices(self) -> None:
        """Check that there are no old prices of which nobody was asked.

        Raises:
            ConfigurationError: There are.
        """

    def with_old_prices(self) -> Self:
        """The place for a user who was asked and accepts its old prices."""
        return self

    def check(self) -> None:
        """Check that a job can start here.

        Raises:
            ConfigurationError: If something is missing; the message names it.
        """

    def allocate(self, context: JobContext) -> Allocation:
        """Prepare to start the job's processes; nothing is paid for until the first process is started.

        Raises:
            ScavengerError: If the job cannot run here.
        """
        raise NotImplementedError
