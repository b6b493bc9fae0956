"""What the VMs or hosts of a pool cost, how long they take to start, and how many jobs take besides their workers'."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path

from pydantic_core import PydanticCustomError

from scavenger.cloud.base import OwnedMachines
from scavenger.control.places.kinds import kind_of
from scavenger.control.places.offers import CatalogCloud
from scavenger.control.pools.nodes import still_drained, with_drained
from scavenger.control.provisioning.providers import open_provider
from scavenger.control.settings import settings_of
from scavenger.domain.infra import Infra
from scavenger.domain.intent import Intent
from scavenger.domain.job import JobSpec, ResourcesSpec
from scavenger.domain.pool import Pool, PoolAllotment, PoolNode, PoolVms
from scavenger.domain.pool_settings import PoolSettings
from scavenger.domain.vm_settings import CloudSettings
from scavenger.errors import ConfigurationError
from scavenger.policy.admission import budget_period
from scavenger.policy.provisioning.boots import UsualBoot, usual_boot
from scavenger.scheduler.jobs.seeing import Means
from scavenger.store import Store
from scavenger.store.operations import VMS_OF
from scavenger.store.pools import ALLOTMENTS_MAX
from scavenger.store.records import JobRecord

KEEPER_NAME = "pool-vms"
"""What the record of VMs that a pool keeps is called."""
_KEEPERS_MAX = 1_000
_STARTS_S, _UNMEASURED_S = 300.0, 20.0
"""How often the time is looked for that VMs take to start; and while none was measured."""
_OVERLAP = timedelta(seconds=60.0)
"""Another server's allotments of so long ago are looked for again: its clock may be behind."""


def rented_by(one: PoolSettings, environment: Mapping[str, str] = os.environ) -> tuple[PoolVms, int]:
    """What a pool rents, or the hosts that it has, by its settings; and how many there may be.

    Raises:
        ConfigurationError: There is no such place, type or host, or its price is not known.
    """
    assert one.infra is not None
    infra = _cloud(one.infra)
    settings = settings_of(infra, environment)
    vms = PoolVms(
        one.infra,
        one.vm or "",
        one.spot,
        0.0,
        one.budget,
        one.hour,
        one.min,
        one.idle_duration,
    )
    if not infra.capabilities.owned:
        if one.vm is None or one.max is None:
            raise ConfigurationError(f"vm and max must be given, for VMs of {infra}")
        usd_per_hour, per_slot = _of_type(infra, settings, vms, environment)
        return replace(vms, usd_per_hour=usd_per_hour, per_slot=per_slot), one.max
    if one.vm is not None:
        raise ConfigurationError(
            f"vm is for VMs that are rented; the hosts of {infra} are the pool's, whatever they are"
        )
    if one.spot:
        raise ConfigurationError(f"spot: {infra} has no spot VMs; leave it out")
    prices = open_owned(infra, settings, environment).prices(infra.zone)
    return replace(vms, usd_per_hour=max(prices)), len(prices)


def open_owned(
    infra: Infra, settings: CloudSettings, environment: Mapping[str, str] = os.environ
) -> OwnedMachines:
    """The provider of machines that one has.

    Raises:
        ConfigurationError: There are none.
    """
    provider = open_provider(infra.provider, infra.region, environment, settings)
    assert isinstance(provider, OwnedMachines)
    return provider


def _of_type(
    infra: Infra, settings: CloudSettings, vms: PoolVms, environment: Mapping[str, str]
) -> tuple[float, int]:
    """Price of a VM with its disk and address, and its workers.

    Raises:
        ConfigurationError: There is no such type, or its price is not known.
    """
    spot = vms.spot
    cloud = CatalogCloud(
        infra.provider,
        infra.region,
        spot="always" if spot else "never",
        environment=environment,
        settings=settings,
        public=settings.public_address is not False,
    )
    offered = cloud.offers_for(ResourcesSpec(vm=vms.vm), workers=(1, 1))
    offer = offered.offers[0]
    extras = cloud.extras(offered.disk_gib, spot=spot)
    return offer.price_usd_per_hour + extras.usd_per_hour, offer.workers_per_vm


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

    def at(
        self, now: datetime, last: PoolAllotment | None, seen: tuple[PoolNode, ...] | None = None
    ) -> Means:
        """What it can do at this time.

        Args:
            last: The last allotment on record.
            seen: The hosts of a pool that has some; None for those of the last allotment.
        """
        pool, drained = self._pool, () if last is None else still_drained(self._store, last)
        if pool.vms is None:
            return Means(drained=drained)
        nodes = None
        if pool.vms.owned:
            before = () if last is None else last.nodes
            nodes = with_drained(before if seen is None else seen, drained, before, now)
        return replace(self._payable(now), nodes=nodes, drained=drained)

    def _payable(self, now: datetime) -> Means:
        """What can be paid, and how long a start takes."""
        pool, store = self._pool, self._store
        assert pool.vms is not None
        if self._clock() > self._look_at:
            usual = _usual_start(pool.vms, store.intents())
            self._look_at = self._clock() + (_STARTS_S if usual.measured else _UNMEASURED_S)
            self._start_s = usual.seconds
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


def _usual_start(vms: PoolVms, history: Iterable[Intent]) -> UsualBoot:
    """From the request of a VM until it has joined: the median of the latest in its region, or an estimate.

    Args:
        history: Intents of all jobs, oldest first.
    """
    infra = Infra.parse(vms.infra)
    here = [one for one in history if (one.provider, one.region) == (infra.provider, infra.region)]
    image = here[-1].request.template.image if here else ""
    return usual_boot(here, provider=infra.provider, region=infra.region, image=image)
