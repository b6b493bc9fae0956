"""Where a job runs, this machine or a cloud's VMs: the one place where that is decided."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from scavenger.cloud.base import Cloud
from scavenger.cloud.local import LocalCloud
from scavenger.control.provisioning.cloud_resources import CloudResources, address_of
from scavenger.control.provisioning.fleet import Fleet
from scavenger.control.search.space import (
    check_keras_backend,
    check_supported,
    check_training_module,
    search_space,
)
from scavenger.control.training.cost_meter import CostMeter
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.cost import CostTerms
from scavenger.domain.job import JobSpec
from scavenger.store import Store
from scavenger.store.records import JobRecord
from scavenger.train.engines.base import Engine

__all__ = ["Platform", "PreparedJob", "Resources", "platform_of", "prepare_job"]

DRAIN_MARGIN = 2.0
"""What is set aside for saving on VMs, of the time that it takes at the speed of a slow disk: it goes over a line."""


class Resources(Protocol):
    """What a job has been given to run on, until `close`.

    Attributes:
        space: The configurations that may be searched there.
        engine: Starts the job's processes; None for the engine that the job file names.
        meter: Says what the job costs; None where its workers are all that is paid for.
    """

    space: SearchSpace
    engine: Callable[[Path, int], Engine] | None
    meter: CostMeter | None

    @property
    def vms(self) -> int:
        """How many VMs are paid for, as of the last look; safe from signal handlers."""

    def terms(self, trainer: Trainer) -> CostTerms | None:
        """What the job pays beside its workers, as far as that is known by now; None where it rents nothing."""

    def tick(self, drain_s: float = 0.0) -> None:
        """About once a second: keep what is rented, and take in what has become of it.

        Args:
            drain_s: How long the job takes to end in order.

        Raises:
            ScavengerError: What ends the job.
        """

    def close(self) -> None:
        """Give everything back.

        Raises:
            CleanupError: If something may be left.
        """


class Platform(Protocol):
    """What a job can be searched over, before anything is started or paid for.

    Attributes:
        cloud: That the workers run on.
        space: The configurations before the data is known.
        aggregators: The VM that is rented for the aggregators; None where none is.
        notes: What the user should know.
        rents: Whether running there rents VMs.
    """

    cloud: Cloud
    space: SearchSpace
    aggregators: Offer | None
    notes: tuple[str, ...]
    rents: bool

    def check(self) -> None:
        """Refuse to start where that cannot work.

        Raises:
            ConfigurationError: Naming what is missing.
        """

    def allocate(
        self,
        store: Store,
        record: JobRecord,
        *,
        folder: Path,
        outputs: Path,
        before_usd: float,
        inform: Callable[[str], None],
        warn: Callable[[str], None],
        clock: Callable[[], float],
    ) -> Resources:
        """Get ready to start the job's processes; nothing is paid for until the first one is started.

        Args:
            folder: With the training module.
            outputs: Where jobs write to.
            before_usd: What earlier attempts are known to have spent.
            inform, warn: Are told what the user should know, now and later.

        Raises:
            ScavengerError: If the job cannot run there.
        """


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job whose file has been checked against everything that is known before it starts."""

    job: JobSpec
    job_file: Path
    folder: Path
    platform: Platform


def prepare_job(job: JobSpec, job_file: Path) -> PreparedJob:
    """Check everything that can be checked before a job starts; starts and spends nothing.

    Raises:
        ConfigurationError: If the job file asks for what there is not.
    """
    check_supported(job)
    check_keras_backend(os.environ)
    folder = check_training_module(job, job_file)
    return PreparedJob(job, job_file, folder, platform_of(job))


def platform_of(job: JobSpec) -> Platform:
    """This machine or a cloud, as the job file says.

    Raises:
        ConfigurationError: If it has no VM type that will do, or a price is not known.
    """
    return ThisMachine(job) if job.infra.provider == "local" else RentedVms(job, CloudResources(job))


class ThisMachine:
    """Workers are processes here; see `Platform`."""

    def __init__(self, job: JobSpec) -> None:
        machine = LocalCloud()
        self.cloud: Cloud = machine
        self.space = search_space(job, machine)
        self.aggregators: Offer | None = None
        self.notes: tuple[str, ...] = ()
        self.rents = False

    def check(self) -> None:
        """See `Platform.check`."""

    def allocate(self, store: Store, record: JobRecord, **_: object) -> Resources:
        """See `Platform.allocate`."""
        return _Nothing(self.space)


class _Nothing:
    """Nothing is rented; see `Resources`."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.engine: Callable[[Path, int], Engine] | None = None
        self.meter: CostMeter | None = None

    @property
    def vms(self) -> int:
        return 0

    def terms(self, trainer: Trainer) -> CostTerms | None:
        return None

    def tick(self, drain_s: float = 0.0) -> None:
        pass

    def close(self) -> None:
        pass


class RentedVms:
    """Workers are on VMs of a cloud; see `Platform`."""

    def __init__(self, job: JobSpec, cloud_resources: CloudResources) -> None:
        self._job, self._cloud_resources = job, cloud_resources
        self.cloud: Cloud = cloud_resources.cloud
        self.space = cloud_resources.space
        self.aggregators: Offer | None = cloud_resources.aggregators
        self.notes = cloud_resources.offered.notes
        self.rents = True

    def check(self) -> None:
        """See `Platform.check`: VMs need an address at which they reach this machine."""
        address_of(os.environ)

    def allocate(
        self,
        store: Store,
        record: JobRecord,
        *,
        folder: Path,
        outputs: Path,
        before_usd: float,
        inform: Callable[[str], None],
        warn: Callable[[str], None],
        clock: Callable[[], float],
    ) -> Resources:
        """See `Platform.allocate`."""
        cloud_resources = self._cloud_resources
        space, left_out = cloud_resources.within_quotas()
        for message in (*cloud_resources.offered.notes, *left_out):
            inform(message)
        fleet = cloud_resources.fleet(
            store, record, folder=folder, outputs=outputs, before_usd=before_usd, note=warn, clock=clock
        )
        return _Vms(space, cloud_resources, fleet)


class _Vms:
    """A fleet of VMs; see `Resources`."""

    def __init__(self, space: SearchSpace, cloud_resources: CloudResources, fleet: Fleet) -> None:
        self.space, self._cloud_resources, self._fleet = space, cloud_resources, fleet
        self.engine: Callable[[Path, int], Engine] | None = fleet.engine
        self.meter: CostMeter | None = fleet.meter

    @property
    def vms(self) -> int:
        return sum(one.state != "GONE" for one in self._fleet.vms)

    def terms(self, trainer: Trainer) -> CostTerms | None:
        return replace(self._cloud_resources.terms(trainer), reserve_s=self._fleet.reserve_s)

    def tick(self, drain_s: float = 0.0) -> None:
        fleet = self._fleet
        if (needed_s := DRAIN_MARGIN * drain_s) > 1.2 * fleet.drain_s:
            fleet.drain_s = needed_s
        fleet.tick()

    def close(self) -> None:
        self._fleet.close()
