"""The pool of aggregators as a part of a place: room in it for a job with `aggregation: shared`, and its use."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from scavenger.control.places.place import Allocation, JobContext, Steps
from scavenger.control.training.item_meter import ItemMeter
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.cost import CostTerms, LedgerEntry
from scavenger.domain.job import JobSpec
from scavenger.errors import StoreBusyError, StoreReadOnlyError, StoreUnavailableError, TransientError
from scavenger.store import Store
from scavenger.store.records import JobRecord
from scavenger.train.engines.base import Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.pool.connection import load_of, wait_for_load
from scavenger.train.pool.lodging import Lodgings
from scavenger.train.pool.protocol import PROTOCOL, PoolJoin, PoolLoad, pool_folder
from scavenger.train.pool.tenants import Tenants

LOCAL_PLACE = "local"
"""The place of nodes on other machines whose jobs have `infra: local`."""


class PooledAllocation(Allocation):
    """This machine, with the job's aggregators in a pool; see `Allocation`.

    The job reports its steps to the pool, and pays for the processor time that its aggregators use.

    Args:
        pool: The job's aggregators there, which `engine` uses.
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
        self._share = ItemMeter(store, job_id, "share")
        super().__init__(space, engine, share=self._share, sequencer_apart=isinstance(pool, Lodgings))
        self._pool, self._price = pool, usd_per_cpu_hour

    def terms(self, trainer: Trainer) -> CostTerms | None:
        """See `Allocation.terms`: what a step has used since the first one of this attempt."""
        usd = self._share.usd_per_step(trainer.step)
        return None if usd is None else CostTerms(aggregation_usd_per_step=usd)

    def tick(
        self, drain_s: float = 0.0, *, step: int = 0, model_bytes: float = 0.0, steps: Steps = ()
    ) -> None:
        report_use(self._pool, self._share, steps, model_bytes, self._price)
        self._record()

    def close(self) -> None:
        self._record(at_once=True)

    def _record(self, *, at_once: bool = False) -> None:
        # the job's recorder reports outages of the store and limits them
        with contextlib.suppress(StoreBusyError, StoreReadOnlyError, StoreUnavailableError):
            self._share.record(at_once=at_once)


def report_use(
    pool: Tenants | Lodgings,
    share: ItemMeter,
    steps: Steps,
    model_bytes: float,
    usd_per_cpu_hour: float = 0.0,
) -> None:
    """Report a job's steps to the pool, those of each view apart, and note what its aggregators have used of it.

    Args:
        model_bytes: Size of its model's weights, of which each worker sends as much as gradients in a step.
        usd_per_cpu_hour: Price of a processor of this machine.
    """
    for view in dict.fromkeys(record.view for record in steps):
        made = [record for record in steps if record.view == view]
        pool.report(view, [record.step_time_s for record in made], int(made[-1].workers * model_bytes))
    cpu_s, usd = pool.used()
    used = LedgerEntry(cpu_s, cpu_s / 3600.0 * usd_per_cpu_hour if usd is None else usd)
    share.note(used, steps[-1].step if steps else None)


def pooled_allocation(
    job: JobSpec, space: SearchSpace, context: JobContext, gpus: Sequence[str], usd_per_cpu_hour: float
) -> PooledAllocation:
    """Use nodes of this machine, by shared memory, if they have room, and otherwise those of others.

    Args:
        gpus: The GPUs that its workers are placed on.
        usd_per_cpu_hour: Price of a processor of this machine.

    Raises:
        TransientError: If neither has room.
    """
    folder, record, aggregators = pool_folder(), context.record, job.elastic.aggregators
    load = wait_for_load(folder)
    pool: Tenants | Lodgings
    if load.free < aggregators <= load.free_at(LOCAL_PLACE):
        pool = Lodgings(folder, PoolJoin(PROTOCOL, record.id, record.name, LOCAL_PLACE), workers_here=True)
        make: Callable[[Path, int], Engine] = partial(
            _lodged_engine, address=load.address, lodgings=pool, gpus=gpus
        )
    else:
        check_room(load, aggregators)
        pool = Tenants(folder, PoolJoin(PROTOCOL, record.id, record.name))
        make = partial(ProcessEngine, gpus=gpus, tenants=pool)
    return PooledAllocation(space, make, pool, context.store, record.id, usd_per_cpu_hour)


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
