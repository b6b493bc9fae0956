"""Where the aggregators of a job with `aggregation: shared` are, and what it needs to use that part of the pool."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from scavenger.control.jobs.local_resources import PooledResources
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.job import JobSpec
from scavenger.errors import TransientError
from scavenger.store import Store
from scavenger.store.records import JobRecord
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.pool.connection import load_of, wait_for_load
from scavenger.train.pool.lodging import Lodgings
from scavenger.train.pool.protocol import PROTOCOL, PoolJoin, PoolLoad, pool_folder
from scavenger.train.pool.tenants import Tenants

LOCAL_PLACE = "local"
"""The place of nodes on other machines whose jobs have `infra: local`."""


class LodgedResources(PooledResources):
    """This machine, with the job's aggregators on others; see `platform.Resources`."""

    sequencer_apart = True


def pooled_resources(
    space: SearchSpace,
    store: Store,
    record: JobRecord,
    aggregators: int,
    gpus: Sequence[str],
    usd_per_cpu_hour: float,
) -> PooledResources:
    """Use nodes of this machine, by shared memory, if they have room, and otherwise those of others.

    Args:
        aggregators: How many the job has.
        gpus: The GPUs that its workers are placed on.
        usd_per_cpu_hour: Price of a processor of this machine.

    Raises:
        TransientError: If neither has room.
    """
    folder = pool_folder()
    load = wait_for_load(folder)
    if load.free < aggregators <= load.free_at(LOCAL_PLACE):
        join = PoolJoin(PROTOCOL, record.id, record.name, LOCAL_PLACE)
        lodgings = Lodgings(folder, join, workers_here=True)
        make = partial(_lodged_engine, address=load.address, lodgings=lodgings, gpus=gpus)
        return LodgedResources(space, make, lodgings, store, record.id, usd_per_cpu_hour)
    check_room(load, aggregators)
    tenants = Tenants(folder, PoolJoin(PROTOCOL, record.id, record.name))
    here = partial(ProcessEngine, gpus=gpus, tenants=tenants)
    return PooledResources(space, here, tenants, store, record.id, usd_per_cpu_hour)


def _lodged_engine(
    log_dir: Path, memory_fd: int, *, address: str, lodgings: Lodgings, gpus: Sequence[str]
) -> HostEngine:
    with tempfile.TemporaryDirectory() as empty:  # aggregators need no training code
        agents = AgentServer(address, Path(empty))
    local = ProcessEngine(log_dir, memory_fd, gpus=gpus)
    agents.start()
    return HostEngine(log_dir, agents, source=lodgings, local=local)


def lodged_on_vms(job: JobSpec, record: JobRecord) -> Lodgings:
    """Have the aggregators of a job whose workers are on VMs on nodes of their cloud and region.

    Raises:
        TransientError: If there is no pool with such nodes, or no room.
    """
    folder, place = pool_folder(), f"{job.infra.provider}/{job.infra.region}"
    load = load_of(folder)
    if load is None or not load.address:
        raise TransientError(
            f"aggregation: shared with infra: {job.infra} needs a pool with nodes there: `scavenger aggregators serve "
            f"--infra {place}` rents them as jobs need them, and with `--listen ADDRESS`, machines join it by "
            "`scavenger aggregators add-node`"
        )
    check_room(load, job.elastic.aggregators, place)
    join, checkpoints = PoolJoin(PROTOCOL, record.id, record.name, place), job.checkpoint is not None
    return Lodgings(folder, join, checkpoints=checkpoints)


def check_room(load: PoolLoad, aggregators: int, place: str = "") -> None:
    """Check that a pool takes so many aggregators more.

    Args:
        place: Where; empty: on this machine, or on others for jobs with `infra: local`.

    Raises:
        TransientError: If it does not; the message says what to do.
    """
    free = load.free_at(place) if place else max(load.free, load.free_at(LOCAL_PLACE))
    if free < aggregators:
        where = f"at {place}" if place else "of this machine"
        more = f", or add a machine (`scavenger aggregators add-node NAME --place {place}`)" if place else ""
        raise TransientError(
            f"aggregation: shared: the pool {where} has room for {free} of {aggregators} aggregators "
            f"(`scavenger aggregators` shows whose are there); wait for a job to end{more}, or write own"
        )
