"""Selects where a job runs: on this machine or on a cloud's VMs."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from scavenger.cloud.base import Cloud
from scavenger.cloud.local import LocalCloud
from scavenger.control.job_file.load import place_of
from scavenger.control.jobs.local_resources import LocalResources, report_steps
from scavenger.control.jobs.needs import Kind, Place, check_needs, place_of_workers
from scavenger.control.jobs.pooling import lodged_on_vms, pooled_resources
from scavenger.control.jobs.safekeeping import unkept_notes, with_checkpoints
from scavenger.control.jobs.training_code import check_command, kind_of
from scavenger.control.jobs.variables import check_secrets, settled_variables
from scavenger.control.provisioning.cloud_resources import ADDRESS_VARIABLE, CloudResources, address_of
from scavenger.control.provisioning.fleet import Fleet
from scavenger.control.provisioning.kept_vms import KeptVms
from scavenger.control.provisioning.price_refresh import refresh_if_old
from scavenger.control.provisioning.ray_pods import PodAddresses, on_group
from scavenger.control.search.local_gpus import LocalGpus, gpus_of, one_worker_each
from scavenger.control.search.space import (
    check_keras_backend,
    check_training_module,
    check_worker_counts,
    search_space,
)
from scavenger.control.training.cost_meter import CostMeter
from scavenger.control.training.goal import Goal
from scavenger.control.training.item_meter import ItemMeter
from scavenger.control.training.limits import weights_bytes
from scavenger.control.training.trainer import Trainer
from scavenger.domain.configuration import Offer, SearchSpace
from scavenger.domain.cost import CostTerms, LedgerEntry
from scavenger.domain.job import JobSpec
from scavenger.domain.measurement import StepRecord
from scavenger.errors import ConfigurationError, JobFileError, NotSupportedError
from scavenger.models.aggregation import AggregatorVms, loop_leader_lack
from scavenger.policy.leaders import LeaderPlan
from scavenger.store import Store
from scavenger.store.records import JobRecord
from scavenger.train.checkpoints.files import check_location, check_storage, local_path
from scavenger.train.engines.base import Engine
from scavenger.train.engines.process import ProcessEngine
from scavenger.train.engines.ray.engine import RayHome
from scavenger.train.engines.ray.pods import RayNodes
from scavenger.train.engines.vm.engine import HostEngine, HostSource
from scavenger.train.engines.warm import WarmServers
from scavenger.train.pool.lodging import Lodgings
from scavenger.train.supervisor.face import JobSupervisor

_MEET = (
    "no VM is rented for aggregators: a loop's workers exchange their gradients with the process that leads the job, "
    "by its machine's network"
)
_AMONG_THEMSELVES = (
    "no VM is rented for aggregators: the processes of a command exchange gradients among themselves, and what that "
    "traffic costs between zones is not counted"
)

DRAIN_MARGIN = 2.0
"""Factor on the time to save at the speed of a slow disk, since VMs send the model over the network."""


class Resources(Protocol):
    """Resources allocated to a job until `close`.

    Attributes:
        space: The configurations that may be searched on these resources.
        engine: Starts the job's processes; None for the engine that the job file names.
        sequencer_apart: See `Supervisor.open`: whether aggregators may have to leave their hosts at any time.
    """

    space: SearchSpace
    engine: Callable[[Path, int], Engine] | None
    sequencer_apart: bool

    def meter(self, supervisor: JobSupervisor) -> CostMeter:
        """The job's cost meter."""

    @property
    def vms(self) -> int:
        """Number of VMs being paid for, as of the last check; safe in signal handlers."""

    def terms(self, trainer: Trainer) -> CostTerms | None:
        """Costs besides the workers, as far as known; None if the job rents nothing."""

    def aggregator_vms(self, trainer: Trainer) -> AggregatorVms | None:
        """The rented aggregator VMs; None if there are none, or the model is not known yet."""

    def tick(
        self,
        drain_s: float = 0.0,
        *,
        step: int = 0,
        model_bytes: float = 0.0,
        steps: Sequence[StepRecord] = (),
    ) -> None:
        """Renew the rented VMs and read their state; called about once a second.

        Args:
            drain_s: Time that the job needs for an orderly end, seconds.
            step: Number of the job's last step.
            model_bytes: Size of its model's weights.
            steps: The steps since the last call.

        Raises:
            ScavengerError: If the job must end.
        """

    def close(self) -> None:
        """Release all resources.

        Raises:
            CleanupError: If a VM may be left running.
        """


class Platform(Protocol):
    """Where a job can run, before anything is started or paid for.

    Attributes:
        cloud: The cloud on which the workers run.
        space: The configurations, before the size of the data is known.
        aggregators: The VM type that is rented for the aggregators; None if none is rented.
        notes: Messages for the user.
        rents: Whether running there rents VMs.
        leader: The VM that is rented to lead the job; None if it is led where the command runs.
    """

    cloud: Cloud
    space: SearchSpace
    aggregators: Offer | None
    notes: tuple[str, ...]
    rents: bool
    leader: LeaderPlan | None

    def check(self) -> None:
        """Check that a job can start here.

        Raises:
            ConfigurationError: If something is missing; the message names it.
        """

    def allocate(
        self,
        store: Store,
        record: JobRecord,
        *,
        folder: Path,
        outputs: Path,
        inform: Callable[[str], None],
        warn: Callable[[str], None],
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ) -> Resources:
        """Prepare to start the job's processes; nothing is paid for until the first process is started.

        Args:
            folder: Folder of the training module.
            outputs: Folder of the jobs' outputs.
            inform, warn: Receive messages for the user, now and during the run.
            pause: Waits for a number of seconds, or raises `Interrupted` if the job is to stop.

        Raises:
            ScavengerError: If the job cannot run here.
        """


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job whose file has passed every check that is possible before the start."""

    job: JobSpec
    job_file: Path
    folder: Path
    platform: Platform


def prepare_job(
    job: JobSpec,
    job_file: Path,
    *,
    warm: WarmServers | None = None,
    kept: KeptVms | None = None,
    environ: Mapping[str, str] = os.environ,
) -> PreparedJob:
    """Check a job as far as possible before it starts; starts nothing and spends nothing.

    Args:
        job_file: Its file, next to which its code is.
        warm: Fork servers that jobs of this program share on this machine; None: the job has its own.
        kept: Keeps VMs between the trials of a study; None: those of the job end with it.
        environ: The environment of who begins or submits it.

    Raises:
        ConfigurationError: If the job file asks for something that does not exist; the message begins with the place
            in the file.
    """
    try:
        check_secrets(job, environ)
        return _prepared(settled_variables(job, environ), job_file, warm, kept)
    except ConfigurationError as error:
        if not error.key or isinstance(error, JobFileError):
            raise
        raise type(error)(f"{place_of(error.key, job, job_file)}: {error}", key=error.key) from error


def _prepared(job: JobSpec, job_file: Path, warm: WarmServers | None, kept: KeptVms | None) -> PreparedJob:
    kind = kind_of(job, job_file.resolve().parent)
    check_needs(job, kind)
    Goal(job.goal).check_direction()
    folder = check_training_module(job, job_file)
    loop = kind is Kind.LOOP
    if job.run is not None:
        check_command(job, job.run, folder)
    elif not loop:
        check_keras_backend(os.environ)
    check_writable(folder / job.output, "output")
    job = with_checkpoints(job)
    if job.checkpoint is not None:
        check_location(job.checkpoint.path)
        path = job.checkpoint.path
        at = local_path(path if "://" in path else str(folder / Path(path).expanduser()))
        if at is not None:
            check_writable(Path(at), "checkpoint.path")
        elif not job.infra.capabilities.rents:  # VMs have identities of their own
            check_storage(path)
    if job.infra.capabilities.rents:
        refreshed = refresh_if_old(job)
        resources = CloudResources(job, aggregators=kind is Kind.KERAS, meets_at_leader=loop)
        if job.run is not None:
            refreshed = (*refreshed, _AMONG_THEMSELVES, *unkept_notes(job.run, folder))
        rented = RentedVms(job, resources, refreshed, meets_at_leader=loop, kept=kept)
        return PreparedJob(job, job_file, folder, rented)
    if (gpus := gpus_of(job)) is None:
        return PreparedJob(job, job_file, folder, ThisMachine(job, warm=warm))
    job, notes = one_worker_each(job, len(gpus.names))
    return PreparedJob(job, job_file, folder, ThisMachine(job, gpus, notes, warm=warm))


def check_writable(path: Path, key: str) -> None:
    """Check that a folder can be made and written to; makes nothing.

    Args:
        path: An absolute path.
        key: The key of the job file that names it.

    Raises:
        ConfigurationError: If it cannot.
    """
    place = path
    while not os.path.lexists(place):  # False also for what may not be looked at
        place = place.parent
    if not place.is_dir():
        raise ConfigurationError(f"{key}: {place} is not a folder; name another place", key=key)
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"{key}: {place} cannot be written to; run `chmod u+wx {place}`, or name another folder", key=key
        )


class ThisMachine:
    """This machine, where workers are processes; see `Platform`.

    Args:
        gpus: The GPUs that the workers are placed on; None if they compute on processors.
        notes: Messages for the user.
        warm: Fork servers that the job takes its processes from; None for one of its own.
    """

    def __init__(
        self,
        job: JobSpec,
        gpus: LocalGpus | None = None,
        notes: tuple[str, ...] = (),
        *,
        warm: WarmServers | None = None,
    ) -> None:
        self._warm = warm
        self._gpus = () if gpus is None else gpus.names
        machine = LocalCloud(gpus=len(self._gpus), gpu_model="" if gpus is None else gpus.model)
        self.cloud: Cloud = machine
        self._cpu_price = machine.cpu_price()[0]
        self.space = search_space(job, machine)
        self.aggregators: Offer | None = None
        self.notes = notes
        self._shared = job.elastic.aggregators if job.aggregation == "shared" else 0
        self._here = place_of_workers(job) is Place.HERE  # with Ray, workers are on other machines too
        if self._here:
            cpus, memory_bytes = machine.capacity()
            self.notes += check_worker_counts(job.worker_counts[-1], cpus, memory_bytes)
        self.rents = False
        self.leader: LeaderPlan | None = None

    def check(self) -> None:
        """See `Platform.check`."""

    def allocate(
        self, store: Store, record: JobRecord, *, warn: Callable[[str], None], **_: object
    ) -> Resources:
        for note in self.notes:
            warn(note)
        engine: Callable[[Path, int], Engine] | None = partial(
            ProcessEngine, gpus=self._gpus, warm=self._warm
        )
        if self._shared:
            return pooled_resources(self.space, store, record, self._shared, self._gpus, self._cpu_price)
        return LocalResources(self.space, engine if self._here else None)


class RentedVms:
    """A cloud, where workers run on rented VMs; see `Platform`.

    Args:
        notes: Messages for the user in addition to those of the offers.
        meets_at_leader: Whether workers exchange gradients with the process that leads the job.
        kept: See `prepare_job`.
    """

    def __init__(
        self,
        job: JobSpec,
        cloud_resources: CloudResources,
        notes: Iterable[str] = (),
        *,
        meets_at_leader: bool = False,
        kept: KeptVms | None = None,
    ) -> None:
        self.kept = kept
        self._job, self._cloud_resources = job, cloud_resources
        self._meets_at_leader = meets_at_leader
        self.cloud: Cloud = cloud_resources.cloud
        self.space = cloud_resources.space
        self._shared = job.aggregation == "shared"
        self.aggregators: Offer | None = (
            cloud_resources.aggregators if cloud_resources.rents_aggregators else None
        )
        self.notes = (*notes, *cloud_resources.offered.notes, *((_MEET,) if meets_at_leader else ()))
        self.rents = True
        self.leader = cloud_resources.leader
        if self._shared and self.leader is not None:
            raise NotSupportedError(
                f"aggregation: shared: {self.leader.reason}, and a leader elsewhere cannot reach the pool of "
                f"aggregators, whose manager is on this machine; set {ADDRESS_VARIABLE}, or write own",
                key="aggregation",
            )

    def check(self) -> None:
        """See `Platform.check`: VMs need an address at which they reach this machine."""
        if self._job.leader == "vm":
            raise ConfigurationError(
                "leader: vm is for `scavenger optimize`; what runs here needs leader: here", key="leader"
            )
        if on_group(self._job):
            return  # Ray tells at which address it is
        address, _ = address_of(os.environ)
        if self._meets_at_leader and ipaddress.ip_address(address).is_global:
            raise NotSupportedError(
                f"workers of a LoopJob send every gradient to the process that leads the job, and {address} is outside "
                f"the cloud's network, so that each would be paid for as traffic; write leader: vm, or start the "
                f"command on a machine in that network and set {ADDRESS_VARIABLE} to its private address",
                key="leader",
            )

    @property
    def resources(self) -> CloudResources:
        """What is needed to rent the VM that leads the job."""
        return self._cloud_resources

    def allocate(
        self,
        store: Store,
        record: JobRecord,
        *,
        folder: Path,
        outputs: Path,
        inform: Callable[[str], None],
        warn: Callable[[str], None],
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ) -> Resources:
        cloud_resources = self._cloud_resources
        cloud_resources.pause, cloud_resources.warn = pause, warn
        lodgings = lodged_on_vms(self._job, record) if self._shared else None
        source: HostSource | None = lodgings
        home, kept = None, self.kept
        if on_group(self._job):
            home, kept = RayHome(), None  # agents end with the engine that has started them
            cloud_resources.reached_at = cloud_resources.reached_at or home.address
            addresses = PodAddresses(cloud_resources.provider, store.installation())
            source = RayNodes(addresses)
        space, left_out = cloud_resources.within_quotas()
        for message in (*self.notes, *left_out):
            inform(message)
        fleet = cloud_resources.fleet(
            store,
            record,
            folder=folder,
            outputs=outputs,
            note=warn,
            inform=inform,
            clock=clock,
            make_engine=partial(HostEngine, source=source),
            kept=kept,
        )
        share = ItemMeter(store, record.id, "share") if self._shared else None
        meeting = _MeetingRoom(self._job.worker_counts[-1], warn) if self._meets_at_leader else None
        return _VmResources(space, cloud_resources, fleet, lodgings, share, meeting, home)


@dataclass(slots=True)
class _MeetingRoom:
    """Warns once if the memory of this machine may not do for the workers of a loop, which meet here.

    Attributes:
        workers: The most that may train.
        warn: Shows a warning to the user.
    """

    workers: int
    warn: Callable[[str], None]
    known: bool = False

    def look(self, state_bytes: float) -> None:
        """Look once the size of a replica's state is known."""
        if self.known or not state_bytes:
            return
        self.known = True
        memory_bytes = LocalCloud().capacity()[1]
        if lack := loop_leader_lack(state_bytes, self.workers, memory_bytes=memory_bytes):
            self.warn(lack)


class _VmResources:
    """A fleet of VMs; see `Resources`.

    Args:
        lodgings: The job's aggregators in a pool; None if they are on VMs of its own.
        share: Meters what they use of it.
        meeting: Looks at this machine's memory if workers meet here; None if they do not.
        home: This machine's place in the Ray cluster whose nodes the VMs are; None if they are no such nodes.
    """

    def __init__(
        self,
        space: SearchSpace,
        cloud_resources: CloudResources,
        fleet: Fleet,
        lodgings: Lodgings | None = None,
        share: ItemMeter | None = None,
        meeting: _MeetingRoom | None = None,
        home: RayHome | None = None,
    ) -> None:
        self._home = home
        self.space, self._cloud_resources, self._fleet = space, cloud_resources, fleet
        self._meeting = meeting
        self.engine: Callable[[Path, int], Engine] | None = fleet.engine
        self._share = share
        if share is not None:
            fleet.meter.items["share"] = share
        self._lodgings = lodgings
        self.sequencer_apart = share is not None

    def meter(self, supervisor: JobSupervisor) -> CostMeter:
        return self._fleet.meter

    @property
    def vms(self) -> int:
        return sum(one.state != "GONE" for one in self._fleet.vms)

    def terms(self, trainer: Trainer) -> CostTerms | None:
        manifest = trainer.supervisor.manifest
        weights = 0 if manifest is None else weights_bytes(manifest)
        return replace(
            self._cloud_resources.terms(trainer),
            reserve_s=self._fleet.reserve_s,
            elsewhere=self._fleet.workers_elsewhere,
            traffic_usd_per_step=self._fleet.traffic_usd(weights),
            aggregation_usd_per_step=None if self._share is None else self._share.usd_per_step(trainer.step),
        )

    def aggregator_vms(self, trainer: Trainer) -> AggregatorVms | None:
        manifest = trainer.supervisor.manifest
        if manifest is None or not self._cloud_resources.rents_aggregators:
            return None
        return self._cloud_resources.aggregator_vms(manifest)

    def tick(
        self,
        drain_s: float = 0.0,
        *,
        step: int = 0,
        model_bytes: float = 0.0,
        steps: Sequence[StepRecord] = (),
    ) -> None:
        fleet = self._fleet
        if self._meeting is not None:
            self._meeting.look(model_bytes)
        if (needed_s := DRAIN_MARGIN * drain_s) > 1.2 * fleet.drain_s:
            fleet.drain_s = needed_s
        if self._share is not None and self._lodgings is not None:
            report_steps(self._lodgings, steps, model_bytes)
            self._share.note(LedgerEntry(*self._lodgings.used()), steps[-1].step if steps else None)
        fleet.tick(step, model_bytes)

    def close(self) -> None:
        with ExitStack() as ending:  # whatever fails, the VMs end
            if self._home is not None:
                ending.callback(self._home.close)
            ending.callback(self._fleet.close)
