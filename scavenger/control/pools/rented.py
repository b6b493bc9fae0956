"""What the VMs of a pool cost, how long they take to start, and how many jobs take besides their workers'."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path

from pydantic_core import PydanticCustomError

from scavenger.control.places.kinds import kind_of
from scavenger.control.places.offers import CatalogCloud
from scavenger.control.settings import settings_of
from scavenger.domain.infra import Infra
from scavenger.domain.intent import Intent
from scavenger.domain.job import JobSpec, ResourcesSpec
from scavenger.domain.pool import Pool, PoolVms
from scavenger.errors import ConfigurationError
from scavenger.policy.admission import budget_period
from scavenger.policy.provisioning.boots import usual_boot
from scavenger.scheduler.jobs.seeing import Means
from scavenger.store import Store
from scavenger.store.operations import VMS_OF
from scavenger.store.pools import ALLOTMENTS_MAX
from scavenger.store.records import JobRecord

KEEPER_NAME = "pool-vms"
"""What the record of VMs that a pool keeps is called."""
_KEEPERS_MAX = 1_000
_STARTS_S = 300.0
"""How often the time is looked for that VMs take to start."""
_OVERLAP = timedelta(seconds=60.0)
"""Another server's allotments of so long ago are looked for again: its clock may be behind."""


def vm_usd_per_hour(place: str, vm: str, spot: bool, environment: Mapping[str, str] = os.environ) -> float:
    """Price of a VM with its disk and address.

    Raises:
        ConfigurationError: There is no such place or type, its price is not known, or it has several workers.
    """
    infra = _cloud(place)
    settings = settings_of(infra, environment)
    cloud = CatalogCloud(
        infra.provider,
        infra.region,
        spot="always" if spot else "never",
        environment=environment,
        settings=settings,
        public=settings.public_address is not False,
    )
    offered = cloud.offers_for(ResourcesSpec(vm=vm), workers=(1, 1))
    offer = offered.offers[0]
    if offer.workers_per_vm > 1:
        raise ConfigurationError(
            f"a slot of a pool is one VM with one worker, and {vm} has {offer.workers_per_vm} GPUs, one worker on each"
        )
    return offer.price_usd_per_hour + cloud.extras(offered.disk_gib, spot=spot).usd_per_hour


def _cloud(place: str) -> Infra:
    try:
        infra = Infra.parse(place)
    except PydanticCustomError as error:
        raise ConfigurationError(f"infra {error}") from error
    if not infra.capabilities.zones:
        raise ConfigurationError(f"infra: a pool rents VMs of a cloud, such as gcp/us-central1, not {place}")
    return infra


def apart_of(pool: Pool, job: JobSpec, job_file: str | Path) -> int:
    """VMs that a job has in a pool besides those of its workers: one for its aggregators, if it has any there."""
    if pool.vms is None or job.aggregation == "shared":
        return 0
    return int(kind_of(job, Path(job_file).resolve().parent).has_aggregators)


def keepers_of(store: Store, pool: Pool) -> tuple[JobRecord, ...]:
    """The records of the VMs that a pool keeps, or has kept, between its jobs."""
    found = store.jobs(_KEEPERS_MAX, name=KEEPER_NAME)
    return tuple(one for one in found if one.spec.get(VMS_OF) == pool.name)


def idle_vms(store: Store, pool: Pool, now: datetime) -> tuple[int, float]:
    """How many VMs of a pool wait for a job, and what VMs have cost in this month while they waited."""
    keepers = [record.id for record in keepers_of(store, pool)]
    waiting = [one for id in keepers for one in store.intents(id) if one.state == "UP"]
    return len(waiting), store.spent_by(keepers, budget_period(now))


class MeansKnown:
    """What a pool that rents its VMs can do, of what is on record; a server keeps it, so as not to read all again.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, store: Store, pool: Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._pool, self._clock = store, pool, clock
        self._start_s, self._look_at = 0.0, -inf
        self._jobs = set[str]()
        self._known_until = datetime.fromtimestamp(0.0, UTC)

    def at(self, now: datetime) -> Means:
        """What it can do at this time."""
        pool, store = self._pool, self._store
        if pool.vms is None:
            return Means()
        if self._clock() > self._look_at:
            self._look_at = self._clock() + _STARTS_S
            self._start_s = _start_s(pool.vms, store.intents())
        if pool.vms.budget_usd is None:
            return Means(start_s=self._start_s)
        month = budget_period(now)
        for one in store.allotments(pool.name, ALLOTMENTS_MAX, since=max(month, self._known_until)):
            self._jobs |= one.shares.keys()
        self._jobs |= {record.id for record in keepers_of(store, pool)}
        self._known_until = now - _OVERLAP
        infra = Infra.parse(pool.vms.infra)
        there = store.vms_of_pool(pool.name, infra.provider, infra.region)
        return Means(
            pool.vms.budget_usd - store.spent_by(self._jobs, month),
            self._start_s,
            sum(one.charges.usd_per_hour for one in there) / 3600.0,
        )


def _start_s(vms: PoolVms, history: Iterable[Intent]) -> float:
    """From the request of a VM until it has joined: the median of the latest in its region, or an estimate.

    Args:
        history: Intents of all jobs, oldest first.
    """
    infra = Infra.parse(vms.infra)
    here = [one for one in history if (one.provider, one.region) == (infra.provider, infra.region)]
    image = here[-1].request.template.image if here else ""
    return usual_boot(here, provider=infra.provider, region=infra.region, image=image).seconds
