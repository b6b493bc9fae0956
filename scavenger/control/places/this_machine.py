"""This machine as a place, where workers are processes; or the Ray cluster that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from scavenger.cloud.local import LocalCloud
from scavenger.control.places.gpus import LocalGpus
from scavenger.control.places.needs import Where, where_workers_are
from scavenger.control.places.place import Allocation, JobContext, Place
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError
from scavenger.presentation.formatting import plural
from scavenger.train.engines.base import Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.engines.warm import WarmServers

WORKER_BYTES_MIN = 256 * 2**20
"""Least memory of a worker process that it shares with no other: TensorFlow and Keras, only imported, take 277 MiB."""
CROWDED = 4
"""Workers per processor above which a step only takes longer with every further worker."""


class ThisMachine(Place):
    """This machine; see `Place`.

    Args:
        gpus: The GPUs that the workers are placed on; None if they compute on processors.
        warm: Fork servers that the job takes its processes from; None for one of its own.

    Raises:
        ConfigurationError: If no VM type is suitable, or the workers need more memory than there is.
    """

    def __init__(
        self,
        job: JobSpec,
        gpus: LocalGpus | None = None,
        notes: tuple[str, ...] = (),
        *,
        warm: WarmServers | None = None,
    ) -> None:
        self.job, self.notes, self._warm = job, notes, warm
        self._gpus = () if gpus is None else gpus.names
        model = "" if gpus is None else gpus.model
        machine = LocalCloud(gpus=len(self._gpus), gpu_model=model, processes=job.elastic.processes)
        self.hardware = machine.hardware()
        self._cpu_price = machine.cpu_price()[0]
        self.space = search_space(job, machine)
        self._by_processes = (
            where_workers_are(job) is Where.HERE
        )  # with Ray, workers are on other machines too
        if self._by_processes:
            self.notes += check_worker_counts(job.worker_counts[-1], *machine.capacity())

    def allocate(self, context: JobContext) -> Allocation:
        for note in self.notes:
            context.warn(note)
        if self.job.aggregation == "shared":
            from scavenger.control.places.pool import pooled_allocation  # with it, engines of other hosts

            return pooled_allocation(self.job, self.space, context, self._gpus, self._cpu_price)
        engine: Callable[[Path, int], Engine] = partial(ProcessEngine, gpus=self._gpus, warm=self._warm)
        if not self._by_processes:
            from scavenger.train.engines.ray.engine import engine_maker

            engine = engine_maker(self.job.engine) or engine
        return Allocation(self.space, engine)


def check_worker_counts(workers: int, cpus: int, memory_bytes: int) -> tuple[str, ...]:
    """Check that worker processes fit on one machine.

    Args:
        workers: The largest cluster size of the search.

    Returns:
        A warning if there are far more workers than processors.

    Raises:
        ConfigurationError: If the workers need more memory than there is.
    """
    to_write = f"write {f'workers: 1..{cpus}' if cpus > 1 else 'workers: 1'}, or use a cloud"
    if workers * WORKER_BYTES_MIN > memory_bytes:
        raise ConfigurationError(
            f"search.workers: {workers} workers need at least {workers * WORKER_BYTES_MIN >> 30} GiB of memory, and "
            f"this machine has {memory_bytes >> 30}; {to_write}",
            key="search.workers",
        )
    if workers <= CROWDED * cpus:
        return ()
    return (
        f"search.workers: {workers} workers would share {plural(cpus, 'processor')}, so most "
        f"cluster sizes only make steps longer; {to_write}",
    )


def search_space(job: JobSpec, cloud: LocalCloud) -> SearchSpace:
    """The search space of a job on this machine: of the VM types that its file names, or else the first suitable one.

    Raises:
        ConfigurationError: If no VM type is suitable.
    """
    wanted, offers = job.resources, cloud.offers(workers_max=job.worker_counts[-1])
    if wanted is None:
        chosen = offers[:1]
    elif wanted.vms:
        by_name = {offer.vm: offer for offer in offers}
        if missing := [vm for vm in wanted.vms if vm not in by_name]:
            raise ConfigurationError(
                f"resources: {job.infra} has no VM type {missing[0]!r}; it has {', '.join(by_name)}",
                key="resources",
            )
        chosen = tuple(by_name[vm] for vm in wanted.vms)
    else:
        chosen = tuple(
            offer
            for offer in offers
            if (wanted.cpus is None or wanted.cpus.admits(offer.cpus))
            and (wanted.memory is None or wanted.memory.admits(offer.memory_bytes / 2**30))
            and (wanted.accelerators is None or cloud.gpus)
        )[:1]
        if not chosen:
            raise ConfigurationError(
                f"resources: {job.infra} has no VM type with cpus {wanted.cpus or 'any'}, memory "
                f"{wanted.memory or 'any'} GiB and accelerators {wanted.accelerators or 'none'}; it has "
                f"{', '.join(o.vm for o in offers)}",
                key="resources",
            )
    return SearchSpace(chosen, job.worker_counts, job.batch_sizes)
